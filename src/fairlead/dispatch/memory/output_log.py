"""The output log in the memory of this process."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fairlead.dispatch.output_log import KEEP_S, MAX_ENTRIES, PAGE, Appended
from fairlead.domain.output import Entry, Position

MAX_CHARACTERS = 64 << 20
"""For all jobs together. The output of the job that was written longest ago is dropped first."""


@dataclass(slots=True)
class _Kept:
    entries: list[Entry] = field(default_factory=list)
    """In the order of their positions. A list, because readers look for the middle of it."""
    size: int = 0
    written_at: float = 0.0


class MemoryOutputLog:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._jobs: dict[str, _Kept] = {}
        """In the order of the last write."""
        self._size = 0

    async def append(self, entries: Sequence[Entry]) -> Sequence[Appended]:
        replies = [self._append(entry) for entry in entries]
        self._drop_old()
        return replies

    async def read(self, job_id: str, since: Position | None = None) -> list[Entry]:
        self._drop_old()
        kept = self._jobs.get(job_id)
        if kept is None:
            return []
        start = 0 if since is None else bisect_left(kept.entries, since, key=_end)
        return kept.entries[start : start + PAGE]

    async def delete(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            if (kept := self._jobs.pop(job_id, None)) is not None:
                self._size -= kept.size

    async def close(self) -> None:
        self._jobs.clear()

    def _append(self, entry: Entry) -> Appended:
        kept = self._jobs.pop(entry.job_id, None)
        if kept is None:
            if entry.first:
                return Appended.LOST
            kept = _Kept()
        self._jobs[entry.job_id] = kept
        kept.written_at = self._clock()
        newest = kept.entries[-1] if kept.entries else None
        if newest is None or _end(entry) > _end(newest):
            kept.entries.append(entry)
            self._grow(kept, _size(entry))
            if len(kept.entries) > MAX_ENTRIES:
                self._grow(kept, -_size(kept.entries.pop(0)))
        return Appended.KEPT

    def _grow(self, kept: _Kept, size: int) -> None:
        kept.size += size
        self._size += size

    def _drop_old(self) -> None:
        until = self._clock() - KEEP_S
        while self._jobs:
            job_id, kept = next(iter(self._jobs.items()))
            if kept.written_at > until and self._size <= MAX_CHARACTERS:
                return
            del self._jobs[job_id]
            self._size -= kept.size


def _end(entry: Entry) -> Position:
    return Position(entry.run, entry.last)


def _size(entry: Entry) -> int:
    return sum(map(len, entry.chunks))
