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
FILE_CREATED = "file_created"
FILE_WRITING = "file_writing"
FILE_WRITTEN = "file_written"
FILE_COMPLETED = "file_completed"
FILES_SWEPT = "files_swept"
OBJECTS_DELETED = "objects_deleted"
PART_WRITTEN = "part_written"
OF_FILES = (FILE_CREATED, FILE_WRITING, FILE_WRITTEN, FILE_COMPLETED, FILES_SWEPT, OBJECTS_DELETED, PART_WRITTEN)
"""The points on the way of a file, from its first row to the end of its object."""

BATCH_CREATED = "batch_created"
BATCH_VALIDATED = "batch_validated"
BATCH_PART_SUBMITTED = "batch_part_submitted"
BATCH_PART_RECORDED = "batch_part_recorded"
BATCH_FINALIZING = "batch_finalizing"
BATCH_FILES_WRITTEN = "batch_files_written"
BATCH_FINISHED = "batch_finished"
OF_BATCHES = (
    BATCH_CREATED,
    BATCH_VALIDATED,
    BATCH_PART_SUBMITTED,
    BATCH_PART_RECORDED,
    BATCH_FINALIZING,
    BATCH_FILES_WRITTEN,
    BATCH_FINISHED,
)
"""The points on the way of a file batch, from its creation to its end."""

_SIGNALS = {
    AFTER_CLAIM: signal.SIGKILL,
    AFTER_FINISH: signal.SIGKILL,
    MID_REBUILD: signal.SIGSTOP,
    **dict.fromkeys((*OF_FILES, *OF_BATCHES), signal.SIGKILL),
}
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
