"""Removes finished jobs that are kept no longer, in small batches so that nobody waits behind it."""

from __future__ import annotations

from fairlead.domain.config import RetentionConfig
from fairlead.store.journal import Journal
from fairlead.store.port import Done, Prune

BATCH = 500
EVERY = 60.0


class PruneLoop:
    name = "prune"

    def __init__(self, journal: Journal, config: RetentionConfig) -> None:
        self._journal = journal
        self._config = config
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        outcome = await self._journal.write(
            Prune(now - self._config.keep_finished, now - self._config.keep_failed, BATCH)
        )
        count = int(outcome.value or 0) if isinstance(outcome, Done) else 0
        self.scanned += count
        self.queued += count
        every = min(EVERY, self._config.keep_finished, self._config.keep_failed)
        return now if count == BATCH else now + every
