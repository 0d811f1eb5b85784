"""Writes down that batches have ended of which nobody asks."""

from __future__ import annotations

from time import perf_counter

from fairlead.store.journal import Journal
from fairlead.store.port import Done, SettleBatch, Store

AT_A_TIME = 100
EVERY = 1.0
# Looking through large batches takes a while: it may have this share of the time.
SHARE = 0.02


class BatchesLoop:
    """Counts the batches that it found ended (`scanned`), and those of them that it settled (`queued`)."""

    name = "batches"

    def __init__(self, store: Store, journal: Journal) -> None:
        self._store = store
        self._journal = journal
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        began = perf_counter()
        ended = await self._store.ended_batches(AT_A_TIME)
        outcomes = await self._journal.write_each([SettleBatch(batch_id, now) for batch_id in ended])
        self.scanned += len(ended)
        self.queued += sum(isinstance(outcome, Done) for outcome in outcomes)
        return now + max(EVERY, (perf_counter() - began) / SHARE)
