"""Writes and reads of the dashboard in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
from fairlead.store.port import Done, Outcome
from fairlead.store.postgres.moves import Ask
from fairlead.store.postgres.queries import READS
from fairlead.store.rows import job_of, micros, seconds


async def apply(transition: Any, ask: Ask, now: int) -> Outcome:
    """Apply one write of the dashboard within an open transaction."""
    match transition:
        case OpenSession(hash_, key_id, expires_at, per_key, in_all):
            await ask("open_session", hash_, key_id, micros(expires_at), now, per_key - 1, in_all - 1)
        case CloseSession(hash_):
            await ask("close_session", hash_)
        case RecordMinuteStats(process, _, keep_from):
            if rows := activity_rows(transition):
                await ask("record_activity", process, *(list(column) for column in zip(*rows, strict=True)))
            await ask("prune_activity", keep_from)
        case _:
            raise TypeError(f"not a write of the dashboard: {transition!r}")
    return Done()


class PostgresDashboardReads:
    """The reads of the dashboard; `Reads` inherits them."""

    async def _ask(self, sql: str, *parameters: Any) -> list[Any]:
        raise NotImplementedError

    async def session(self, hash_: str, now: float) -> Session | None:
        rows = await self._ask(READS["session"], hash_, micros(now))
        return Session(rows[0][0], rows[0][1] / 1e6) if rows else None

    async def activity(self, from_minute: int) -> list[MinuteStats]:
        return [activity_of(row) for row in await self._ask(READS["activity"], from_minute)]

    async def waiting_by_service(self) -> dict[str, Waiting]:
        rows = await self._ask(READS["waiting_by_service"])
        return {service: Waiting(seconds(oldest), retrying) for service, oldest, retrying in rows}

    async def user_loads(self, limit: int) -> list[UserLoad]:
        return [
            UserLoad(user_id, waiting, running, seconds(oldest), float(weight), group, plan)
            for user_id, waiting, running, oldest, weight, group, plan in await self._ask(READS["user_loads"], limit)
        ]

    async def dead_groups(self, limit: int) -> list[DeadGroup]:
        return [dead_group_of(row) for row in await self._ask(READS["dead_groups"], limit)]

    async def heads(self, service: str, user_ids: Sequence[str] | None, each: int) -> list[Job]:
        if user_ids is None:
            rows = await self._ask(READS["first_in_line"], service, each)
        else:
            rows = await self._ask(READS["heads"], list(user_ids), service, each)
        return [job_of(row) for row in rows]
