"""What the dashboard stores and reads in SQLite: sessions and minute statistics.

A commit inserts each write as a row of the temporary view `batch`, and the triggers in `dashboard.sql` change the
tables. This module builds these rows, and runs the dashboard's queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from fairlead.domain.job import Job
from fairlead.domain.stats import MinuteStats
from fairlead.store.dashboard import (
    CloseSession,
    DeadGroup,
    OpenSession,
    RecordMinuteStats,
    Session,
    UserLoad,
    Waiting,
    activity_of,
    activity_rows,
    dead_group_of,
)
from fairlead.store.rows import jobs_of, micros, seconds
from fairlead.store.sqlite.encode import Row, json_body


def board_rows(transitions: Sequence[Any]) -> list[Row]:
    return [_row(transition) for transition in transitions]


def _row(transition: Any) -> Row:
    match transition:
        case OpenSession(hash_, key_id, expires_at, per_key, in_all):
            return "open_session", json_body((hash_, key_id, micros(expires_at), per_key - 1, in_all - 1))
        case CloseSession(hash_):
            return "close_session", hash_
        case RecordMinuteStats(process, _, keep_from):
            return "activity", json_body((process, keep_from, activity_rows(transition)))
        case _:
            raise TypeError(f"not a write of the dashboard: {transition!r}")


class SqliteDashboardReads:
    """The reads of the dashboard; `Reads` inherits them."""

    _sql: dict[str, str]

    async def _ask(self, sql: str, *parameters: Any) -> Any:
        raise NotImplementedError

    async def session(self, hash_: str, now: float) -> Session | None:
        answer = await self._ask(self._sql["session"], hash_, micros(now))
        if answer is None:
            return None
        key_id, expires_at = orjson.loads(answer)
        return Session(key_id, expires_at / 1e6)

    async def activity(self, from_minute: int) -> list[MinuteStats]:
        return [activity_of(row) for row in await self._rows("activity", from_minute)]

    async def waiting_by_service(self) -> dict[str, Waiting]:
        rows = await self._rows("waiting_by_service")
        return {service: Waiting(seconds(oldest), retrying) for service, oldest, retrying in rows}

    async def user_loads(self, limit: int) -> list[UserLoad]:
        return [
            UserLoad(user_id, waiting, running, seconds(oldest), float(weight), group, plan)
            for user_id, waiting, running, oldest, weight, group, plan in await self._rows("user_loads", limit)
        ]

    async def dead_groups(self, limit: int) -> list[DeadGroup]:
        return [dead_group_of(row) for row in await self._rows("dead_groups", limit)]

    async def heads(self, service: str, user_ids: Sequence[str] | None, each: int) -> list[Job]:
        if user_ids is None:
            return jobs_of(await self._ask(self._sql["first_in_line"], service, each))
        users = orjson.dumps(list(user_ids)).decode()
        return jobs_of(await self._ask(self._sql["heads"], users, service, each))

    async def _rows(self, name: str, *parameters: Any) -> list[Any]:
        rows: list[Any] = orjson.loads(await self._ask(self._sql[name], *parameters))
        return rows
