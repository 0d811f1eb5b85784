"""Removes what is kept no longer, in small batches so that nobody waits behind it: finished jobs, batches,
audit records, and processes that are long dead."""

from __future__ import annotations

from fairlead.domain.config import RetentionConfig
from fairlead.store.journal import Journal
from fairlead.store.port import Done, Outcome, Prune, PruneBatches, PruneRecords

BATCH = 500
BATCHES = 5
"""Batches of jobs at a time: one may have ten thousand items."""
EVERY = 60.0
KEEP_PROCESSES = 86400.0


class PruneLoop:
    name = "prune"

    def __init__(self, journal: Journal, config: RetentionConfig) -> None:
        self._journal = journal
        self._config = config
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        config = self._config
        # A batch goes when its last job does, whichever way that ended.
        ended_before = now - max(config.keep_finished, config.keep_failed)
        jobs, batches, records = await self._journal.write_each(
            [
                Prune(now - config.keep_finished, now - config.keep_failed, BATCH),
                PruneBatches(ended_before, BATCHES),
                PruneRecords(now - config.keep_audit, now - KEEP_PROCESSES, BATCH),
            ]
        )
        counts = _count(jobs), _count(records), _count(batches)
        self.scanned += sum(counts)
        self.queued += sum(counts)
        every = min(EVERY, config.keep_finished, config.keep_failed, config.keep_audit)
        more = BATCH in counts[:2] or counts[2] == BATCHES
        return now if more else now + every


def _count(outcome: Outcome | Exception) -> int:
    if isinstance(outcome, Exception):
        raise outcome
    return int(outcome.value or 0) if isinstance(outcome, Done) else 0
