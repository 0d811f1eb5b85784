"""The interface of output logs: they keep the chunks that steps emit while they run.

A log keeps chunks for a while and up to a size, and may lose them. A reader that needs more reads the result of the
step from the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fairlead.domain.fast_dataclass import StringEnum
from fairlead.domain.output import Entry, Position

MAX_ENTRIES = 10_000
"""The number of entries that are kept for a job. Older ones are dropped."""
KEEP_S = 600.0
"""How long the output of a job is kept after its last entry."""
PAGE = 100
"""The number of entries that one read returns."""


class Appended(StringEnum):
    """What became of an entry that was to be appended."""

    KEPT = "kept"
    LOST = "lost"
    """The log has lost the beginning of the run: append all its chunks again."""
    FAILED = "failed"
    """The log cannot be reached."""


class OutputLog(Protocol):
    async def append(self, entries: Sequence[Entry]) -> Sequence[Appended]:
        """Append entries, in order. An entry that was appended before, or whose job has a newer run, is ignored."""
        ...

    async def read(self, job_id: str, since: Position | None = None) -> list[Entry]:
        """The oldest `PAGE` entries of a job; with `since`, the oldest that have chunks at this position or after it.
        Raises Unavailable."""
        ...

    async def delete(self, job_ids: Sequence[str]) -> None:
        """Delete the output of these jobs. Raises Unavailable."""
        ...

    async def close(self) -> None: ...
