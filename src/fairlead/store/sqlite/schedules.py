"""Encodes the writes of schedules as rows of the view `batch` (see `schedules.sql`), and runs their reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from fairlead.domain.schedules import Schedule, ScheduleRun
from fairlead.store.port import Done, Outcome
from fairlead.store.records import NO_SCHEDULE, OTHER_JOB, OTHER_REVISION
from fairlead.store.rows import micros, micros_by, seconds
from fairlead.store.schedules import (
    KEPT_RUNS,
    DeclareSchedules,
    DeleteSchedule,
    FireSchedule,
    NextSchedule,
    SaveSchedule,
    run_of,
    run_row,
    schedule_of,
    schedule_row,
)
from fairlead.store.sqlite.encode import Row, json_body


def schedule_rows(transitions: Sequence[Any]) -> list[Row]:
    return [_row(transition) for transition in transitions]


def _row(transition: Any) -> Row:
    match transition:
        case SaveSchedule(schedule, was):
            return "schedule", json_body((*schedule_row(schedule), was))
        case DeclareSchedules(schedules):
            return "declare_schedules", json_body([schedule_row(schedule) for schedule in schedules])
        case DeleteSchedule(schedule_id):
            return "delete_schedule", schedule_id
        case FireSchedule(id_, revision, runs, stored_job, next_at, last_at, waiting_at):
            moments = map(micros, (next_at, last_at, waiting_at))
            return "fire", json_body((id_, revision, *moments, stored_job, [run_row(run) for run in runs], KEPT_RUNS))
        case _:
            raise TypeError(f"not a write of schedules: {transition!r}")


OUTCOMES: dict[type, tuple[str, Callable[[Any], Outcome]]] = {
    SaveSchedule: ("schedule", lambda row: OTHER_REVISION if row is None else Done(schedule_of(row))),
    DeleteSchedule: ("delete_schedule", lambda changed: Done() if changed else NO_SCHEDULE),
    FireSchedule: ("fire", lambda stored: Done() if stored else OTHER_JOB),
}


class SqliteScheduleReads:
    """The reads of schedules; `Reads` inherits them."""

    _sql: dict[str, str]

    async def _ask(self, sql: str, *parameters: Any) -> Any:
        raise NotImplementedError

    async def schedules(self, user_id: str | None = None, *, ids: Sequence[str] | None = None) -> list[Schedule]:
        chosen = None if ids is None else orjson.dumps(list(ids)).decode()
        return [schedule_of(row) for row in orjson.loads(await self._ask(self._sql["schedules"], user_id, chosen))]

    async def next_schedule(self) -> NextSchedule:
        next_at, waiting = orjson.loads(await self._ask(self._sql["next_schedule"]))
        return NextSchedule(seconds(next_at), bool(waiting))

    async def due_schedules(self, now: float) -> list[Schedule]:
        rows = orjson.loads(await self._ask(self._sql["due_schedules"], micros_by(now)))
        return [schedule_of(row) for row in rows]

    async def has_open_run(self, schedule_id: str) -> bool:
        return bool(await self._ask(self._sql["has_open_run"], schedule_id))

    async def schedule_runs(self, schedule_id: str, *, before: int | None, limit: int) -> list[ScheduleRun]:
        rows = orjson.loads(await self._ask(self._sql["schedule_runs"], schedule_id, before, limit))
        return [run_of(row) for row in rows]
