"""Writes and reads of the usage ledger in SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from fairlead.domain.usage_report import CallRecord, UsageQuery, UsageTotal
from fairlead.store.sqlite.encode import Row, json_body
from fairlead.store.usage import (
    PruneUsage,
    RollUpUsage,
    call_of,
    prune_row,
    query_row,
    total_of,
)


def usage_rows(transitions: Sequence[Any]) -> list[Row]:
    return [_row(transition) for transition in transitions]


def _row(transition: Any) -> Row:
    match transition:
        case RollUpUsage(limit):
            return "roll_up", limit
        case PruneUsage():
            return "prune_usage", json_body(prune_row(transition))
        case _:
            raise TypeError(f"not a write of the ledger: {transition!r}")


class SqliteUsageReads:
    """The reads of the ledger; `Reads` inherits them."""

    _sql: dict[str, str]

    async def _ask(self, sql: str, *parameters: Any) -> Any:
        raise NotImplementedError

    async def usage(self, query: UsageQuery) -> list[UsageTotal]:
        answer = orjson.loads(await self._ask(self._sql["usage_totals"], *query_row(query)))
        return [total_of(row, query) for row in answer]

    async def latest_calls(self, limit: int, *, user_id: str | None = None) -> list[CallRecord]:
        return [call_of(row) for row in orjson.loads(await self._ask(self._sql["latest_calls"], limit, user_id))]
