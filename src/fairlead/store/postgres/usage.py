"""Writes and reads of the usage ledger in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead.domain.usage_report import CallRecord, UsageQuery, UsageTotal
from fairlead.store.port import Done, Outcome
from fairlead.store.postgres.queries import WRITES, Ask
from fairlead.store.usage import (
    DAY,
    HOUR,
    PruneUsage,
    RollUpUsage,
    call_of,
    prune_row,
    query_row,
    total_of,
)


async def apply(transition: Any, ask: Ask) -> Outcome:
    """Apply one write of the ledger within an open transaction."""
    match transition:
        case RollUpUsage(limit):
            ((restored,),) = await ask("lock_usage")
            if restored:
                await ask("renumber_usage")
                await ask("restart_usage")
            ((added,),) = await ask("roll_up_usage", limit)
            return Done(added)
        case PruneUsage():
            before, first_hour, first_day, limit = prune_row(transition)
            ((pruned,),) = await ask("prune_usage", before, limit)
            await ask("prune_usage_totals", HOUR, first_hour)
            await ask("prune_usage_totals", DAY, first_day)
            return Done(pruned)
        case _:
            raise TypeError(f"not a write of the ledger: {transition!r}")


class PostgresUsageReads:
    """The reads of the ledger; `Reads` inherits them."""

    async def _ask(self, sql: str, *parameters: Any) -> list[Any]:
        raise NotImplementedError

    async def usage(self, query: UsageQuery) -> list[UsageTotal]:
        rows: Sequence[Any] = await self._ask(WRITES["usage_totals"], *query_row(query))
        return [total_of(row, query) for row in rows]

    async def latest_calls(self, limit: int, *, user_id: str | None = None) -> list[CallRecord]:
        return [call_of(row) for row in await self._ask(WRITES["latest_calls"], limit, user_id)]
