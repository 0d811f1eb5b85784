"""Named places where a test may stop a process: `FAIRLEAD_FAILPOINT=after_claim` kills it there, after
`FAIRLEAD_FAILPOINT_AFTER` (5) passes. Without the variable a place costs one comparison."""

from __future__ import annotations

import logging
import os
import signal

log = logging.getLogger(__name__)

AFTER_CLAIM = "after_claim"
AFTER_FINISH = "after_finish"
MID_REBUILD = "mid_rebuild"

_SIGNALS = {AFTER_CLAIM: signal.SIGKILL, AFTER_FINISH: signal.SIGKILL, MID_REBUILD: signal.SIGSTOP}
_wanted = os.environ.get("FAIRLEAD_FAILPOINT")
_passes_left = int(os.environ.get("FAIRLEAD_FAILPOINT_AFTER", "5"))


def passed(name: str) -> None:
    global _passes_left
    if name != _wanted:
        return
    _passes_left -= 1
    if _passes_left == 0:
        log.warning("the failpoint %s is reached", name)
        os.kill(os.getpid(), _SIGNALS[name])
