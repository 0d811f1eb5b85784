"""Loops that delete or end what is no longer needed: data whose retention is over, batches whose jobs have all ended,
and holds of calls that can no longer be running."""

from __future__ import annotations

from time import perf_counter

from fairlead.dispatch.port import Dispatcher
from fairlead.domain.config import RetentionConfig
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Done, EndHolds, Outcome, Prune, PruneBatches, PruneRecords, SettleBatch, Store

BATCH = 500
BATCHES = 5
"""The number of batches deleted per tick. It is small because a batch may have ten thousand items."""
PRUNE_EVERY = 60.0
KEEP_PROCESSES = 86400.0
AT_A_TIME = 100
SETTLE_EVERY = 1.0
# Scanning large batches takes a while: it may use this share of the time.
SHARE = 0.02
HOLDS_EVERY = 1.0


class PruneLoop:
    """Deletes finished jobs, batches, audit records and registrations of dead processes when their retention time is
    over. Each tick deletes a small number of rows, so that other writes do not wait."""

    name = "prune"

    def __init__(self, group_commit: GroupCommit, config: RetentionConfig) -> None:
        self._group_commit = group_commit
        self._config = config
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        config = self._config
        # A batch is deleted with its last job, however that ended.
        ended_before = now - max(config.keep_finished, config.keep_failed)
        jobs, batches, records = await self._group_commit.write_each(
            [
                Prune(now - config.keep_finished, now - config.keep_failed, BATCH),
                PruneBatches(ended_before, BATCHES),
                PruneRecords(now - config.keep_audit, now - KEEP_PROCESSES, BATCH),
            ]
        )
        counts = _count(jobs), _count(records), _count(batches)
        self.scanned += sum(counts)
        self.queued += sum(counts)
        every = min(PRUNE_EVERY, config.keep_finished, config.keep_failed, config.keep_audit)
        more = BATCH in counts[:2] or counts[2] == BATCHES
        return now if more else now + every


def _count(outcome: Outcome | Exception) -> int:
    if isinstance(outcome, Exception):
        raise outcome
    return int(outcome.value or 0) if isinstance(outcome, Done) else 0


class BatchesLoop:
    """Records the ends of batches that no caller reads; reading a batch also records its end. Counts the ended batches
    that it found (`scanned`), and the ones whose end it recorded (`queued`)."""

    name = "batches"

    def __init__(self, store: Store, group_commit: GroupCommit) -> None:
        self._store = store
        self._group_commit = group_commit
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        began = perf_counter()
        ended = await self._store.ended_batches(AT_A_TIME)
        outcomes = await self._group_commit.write_each([SettleBatch(batch_id, now) for batch_id in ended])
        self.scanned += len(ended)
        self.queued += sum(isinstance(outcome, Done) for outcome in outcomes)
        return now + max(SETTLE_EVERY, (perf_counter() - began) / SHARE)


class HoldsLoop:
    """Ends holds whose deadline has passed: their calls can no longer be running."""

    name = "holds"

    def __init__(self, store: Store, group_commit: GroupCommit, dispatcher: Dispatcher) -> None:
        self._store = store
        self._group_commit = group_commit
        self._dispatcher = dispatcher
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        holds = await self._store.holds()
        self.scanned += len(holds)
        if any(hold.until <= now for hold in holds):
            await self._group_commit.write(EndHolds(now))
        # Do this in any case: the leader of another shard may have ended the rows first.
        self.queued += await self._dispatcher.end_holds()
        return now + HOLDS_EVERY
