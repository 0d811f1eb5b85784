"""Removes files that have ended, and objects that no row names."""

from __future__ import annotations

from fairlead.artifacts.files import Files

BATCH = 200
SWEEP_EVERY = 60.0
LIST_EVERY = 86400.0
FIRST_LISTING = 3600.0
UNKNOWN_AFTER = 86400.0
"""An object without a row is deleted when it is this old, in seconds. The row of an object is always older than the
object itself, so this only allows for clocks that differ."""


class FilesLoop:
    """Sweeps files. Once a day it also lists the object store, for what an uploader wrote after its upload was given
    up."""

    name = "files"

    def __init__(self, files: Files) -> None:
        self._files = files
        self._list_at: float | None = None
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        found = await self._files.sweep(BATCH)
        self.scanned += found
        self.queued += found
        if self._list_at is None:
            self._list_at = now + FIRST_LISTING
        elif now >= self._list_at:
            self._list_at = now + LIST_EVERY
            self.queued += await self._files.sweep_unknown(UNKNOWN_AFTER)
        return now if found >= BATCH else now + min(SWEEP_EVERY, self._files.config.orphan_after)
