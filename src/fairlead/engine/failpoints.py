"""Named points in the code where a test can kill or stop the process. `FAIRLEAD_FAILPOINT=after_claim` kills the
process when the point `after_claim` is passed for the `FAIRLEAD_FAILPOINT_AFTER`-th time (default 5). Without the
variable, a point costs one comparison."""

from __future__ import annotations

import logging
import os
import signal

log = logging.getLogger("fairlead.failpoints")

AFTER_CLAIM = "after_claim"
AFTER_FINISH = "after_finish"
MID_REBUILD = "mid_rebuild"

_SIGNALS = {AFTER_CLAIM: signal.SIGKILL, AFTER_FINISH: signal.SIGKILL, MID_REBUILD: signal.SIGSTOP}
_active = os.environ.get("FAIRLEAD_FAILPOINT")
_passes_left = int(os.environ.get("FAIRLEAD_FAILPOINT_AFTER", "5"))


def passed(name: str) -> None:
    global _passes_left
    if name != _active:
        return
    _passes_left -= 1
    if _passes_left == 0:
        log.warning("the failpoint %s is reached", name)
        os.kill(os.getpid(), _SIGNALS[name])
