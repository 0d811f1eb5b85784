"""Who goes first: what a job's priority and weight are, where its submitter does not say so.

`port.py` is what can be asked about a user; `hook.py` (a function of the application) and `service.py` (an HTTP
endpoint) are the two that can; `decide.py` asks them, remembers, and settles what is submitted.
"""

from fairlead.runtime.priority.decide import Priorities
from fairlead.runtime.priority.hook import PriorityHook

__all__ = ["Priorities", "PriorityHook"]
