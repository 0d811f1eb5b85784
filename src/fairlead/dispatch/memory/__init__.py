"""The in-memory dispatcher, for a single process. The process rebuilds it from the store at startup.

`dispatcher` implements the operations, `service` one service with its users, leases and holds, `fair_queue` the order
of waiting steps, `claim_sources` the services and pools that a claim takes steps from, and `positions` queue positions.
"""

from fairlead.dispatch.memory.dispatcher import MemoryDispatcher

__all__ = ["MemoryDispatcher"]
