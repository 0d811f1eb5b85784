"""The dispatcher in memory: for one process, which rebuilds it from the store at its start.

`dispatcher` has the operations; `service` one service with its users, leases and holds; `lines` the order in which its
steps wait; `pool` how services share one limit; `places` where a step stands.
"""

from fairlead.dispatch.memory.dispatcher import MemoryDispatcher

__all__ = ["MemoryDispatcher"]
