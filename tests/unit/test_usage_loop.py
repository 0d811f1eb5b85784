"""The leader's loop of the usage ledger: a backlog is added at once, and pruning has its own pace."""

from __future__ import annotations

from typing import Any, cast

from fairlead.domain.config import RetentionConfig
from fairlead.engine.loops.usage import BATCH, PRUNE_EVERY, ROLL_UP_EVERY, UsageLoop
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Done, PruneUsage, RollUpUsage


class Commits:
    """Answers each write with the next number of rows."""

    def __init__(self, *counts: int) -> None:
        self.counts = list(counts)
        self.writes: list[Any] = []

    async def write(self, write: Any) -> Done:
        self.writes.append(write)
        return Done(self.counts.pop(0))


async def test_a_backlog_is_added_at_once_and_pruning_waits_for_it() -> None:
    commits = Commits(BATCH, 3, BATCH, 0, 1, 2)
    keep = RetentionConfig(keep_usage=100, keep_usage_hours=200, keep_usage_days=300)
    loop = UsageLoop(cast(GroupCommit, commits), keep)
    assert await loop.tick(1000.0) == 1000.0
    assert await loop.tick(1000.0) == 1000.0
    assert commits.writes[-1] == PruneUsage(900.0, 800.0, 700.0, BATCH)
    assert await loop.tick(1000.0) == 1000.0 + ROLL_UP_EVERY
    assert await loop.tick(1000.0 + ROLL_UP_EVERY) == 1000.0 + 2 * ROLL_UP_EVERY
    assert commits.writes[-1] == RollUpUsage(BATCH)
    assert (loop.scanned, loop.queued) == (BATCH + 3 + 2, BATCH + 1)
    commits.counts = [0, 0]
    await loop.tick(1000.0 + PRUNE_EVERY)
    assert isinstance(commits.writes[-1], PruneUsage)
