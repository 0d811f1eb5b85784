"""Adds the rows of the usage ledger to the totals of their hour and day, and deletes what is past its retention."""

from __future__ import annotations

from fairlead.domain.config import RetentionConfig
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Done, PruneUsage, RollUpUsage

ROLL_UP_EVERY = 10.0
PRUNE_EVERY = 60.0
BATCH = 2000
"""Rows per tick. A tick is one commit, and other commits wait for it in SQLite."""


class UsageLoop:
    """Counts the rows that it added to the totals (`scanned`), and the rows that it deleted (`queued`)."""

    name = "usage"

    def __init__(self, group_commit: GroupCommit, config: RetentionConfig) -> None:
        self._group_commit = group_commit
        self._config = config
        self._prune_at = 0.0
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        added = await self._write(RollUpUsage(BATCH))
        self.scanned += added
        if added >= BATCH:
            return now
        if now >= self._prune_at:
            config = self._config
            rows, hours, days = now - config.keep_usage, now - config.keep_usage_hours, now - config.keep_usage_days
            deleted = await self._write(PruneUsage(rows, hours, days, BATCH))
            self.queued += deleted
            if deleted >= BATCH:
                return now
            self._prune_at = now + min(PRUNE_EVERY, config.keep_usage)
        return now + ROLL_UP_EVERY

    async def _write(self, write: RollUpUsage | PruneUsage) -> int:
        outcome = await self._group_commit.write(write)
        assert isinstance(outcome, Done)
        return int(outcome.value)
