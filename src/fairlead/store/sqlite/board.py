"""What the dashboard keeps, as rows of the view `batch` (see `board.sql`), and what it asks, in SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from fairlead.domain.activity import Activity
from fairlead.domain.job import Job
from fairlead.store.board import (
    CloseSession,
    DeadGroup,
    NoteActivity,
    OpenSession,
    Session,
    UserLoad,
    Waiting,
    activity_of,
    activity_rows,
    dead_group_of,
)
from fairlead.store.rows import jobs_of, micros, seconds
from fairlead.store.sqlite.encode import Row


def board_rows(transitions: Sequence[Any]) -> list[Row]:
    return [_row(transition) for transition in transitions]


def _row(transition: Any) -> Row:
    match transition:
        case OpenSession(hash_, key_id, expires_at):
            return "open_session", _body((hash_, key_id, micros(expires_at)))
        case CloseSession(hash_):
            return "close_session", hash_
        case NoteActivity(process, _, keep_from):
            return "activity", _body((process, keep_from, activity_rows(transition)))
        case _:
            raise TypeError(f"no transition of the dashboard: {transition!r}")


def _body(value: Any) -> str:
    return orjson.dumps(value).decode()


class BoardReads:
    """A part of `Reads`."""

    _sql: dict[str, str]

    async def _ask(self, sql: str, *parameters: Any) -> Any:
        raise NotImplementedError

    async def session(self, hash_: str, now: float) -> Session | None:
        found = await self._ask(self._sql["session"], hash_, micros(now))
        if found is None:
            return None
        key_id, expires_at = orjson.loads(found)
        return Session(key_id, expires_at / 1e6)

    async def activity(self, from_minute: int) -> list[Activity]:
        return [activity_of(row) for row in await self._rows("activity", from_minute)]

    async def waiting_by_service(self) -> dict[str, Waiting]:
        rows = await self._rows("waiting_by_service")
        return {service: Waiting(seconds(oldest), retrying) for service, oldest, retrying in rows}

    async def user_loads(self, limit: int) -> list[UserLoad]:
        return [
            UserLoad(user_id, waiting, running, seconds(oldest), float(weight))
            for user_id, waiting, running, oldest, weight in await self._rows("user_loads", limit)
        ]

    async def dead_groups(self, limit: int) -> list[DeadGroup]:
        return [dead_group_of(row) for row in await self._rows("dead_groups", limit)]

    async def heads(self, service: str, user_ids: Sequence[str] | None, each: int) -> list[Job]:
        if user_ids is None:
            return jobs_of(await self._ask(self._sql["first_in_line"], service, each))
        wanted = orjson.dumps(list(user_ids)).decode()
        return jobs_of(await self._ask(self._sql["heads"], wanted, service, each))

    async def _rows(self, name: str, *parameters: Any) -> list[Any]:
        rows: list[Any] = orjson.loads(await self._ask(self._sql[name], *parameters))
        return rows
