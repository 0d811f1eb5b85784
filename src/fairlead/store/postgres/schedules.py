"""Writes and reads of schedules in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead.domain.schedules import Schedule, ScheduleRun
from fairlead.store.port import Done, Outcome
from fairlead.store.postgres.encode import columns
from fairlead.store.postgres.queries import READS, Ask
from fairlead.store.records import NO_SCHEDULE, OTHER_JOB, OTHER_REVISION
from fairlead.store.rows import micros, micros_by, seconds
from fairlead.store.schedules import (
    KEPT_RUNS,
    DeclareSchedules,
    DeleteSchedule,
    FireSchedule,
    NextSchedule,
    SaveSchedule,
    moved,
    run_of,
    run_row,
    schedule_of,
    schedule_row,
)


async def apply(transition: Any, ask: Ask, now: int) -> Outcome:
    """Apply one write of schedules within an open transaction. If it raises ScheduleMoved, the transaction must be
    rolled back."""
    match transition:
        case SaveSchedule(schedule, was):
            row = schedule_row(schedule)
            values = (*row[:8], *row[9:])
            if was is None:
                rows = await ask("create_schedule", *values)
            else:
                rows = await ask("change_schedule", *values, was)
            return Done(schedule_of(rows[0])) if rows else OTHER_REVISION
        case DeclareSchedules(schedules):
            for schedule in sorted(schedules, key=lambda each: each.id):  # their rows stay locked
                id_, user_id, name, _, spec, timing, secret, _, _, next_at, *_ = schedule_row(schedule)
                await ask("declare_schedule", id_, user_id, name, spec, timing, secret, now, next_at)
            gone = await ask("undeclare_schedules", [schedule.id for schedule in schedules])
            await ask("delete_schedule_runs", [row[0] for row in gone])
            return Done()
        case DeleteSchedule(schedule_id):
            await ask("delete_schedule_runs", [schedule_id])
            return Done() if await ask("delete_schedule", schedule_id) else NO_SCHEDULE
        case FireSchedule():
            return await _fire(transition, ask, now)
        case _:
            raise TypeError(f"not a write of schedules: {transition!r}")


async def _fire(fire: FireSchedule, ask: Ask, now: int) -> Outcome:
    if not await ask("lock_schedule", fire.schedule_id, fire.revision, now):
        raise moved()
    if fire.stored_job is not None and not await ask("has_job", fire.stored_job):
        return OTHER_JOB
    if fire.revision is not None:
        moments = map(micros, (fire.next_at, fire.last_at, fire.waiting_at))
        await ask("move_schedule", fire.schedule_id, *moments)
    if fire.runs:
        await ask("record_runs", fire.schedule_id, *columns([run_row(run) for run in fire.runs]))
        await ask("trim_runs", fire.schedule_id, KEPT_RUNS)
    return Done()


class PostgresScheduleReads:
    """The reads of schedules; `Reads` inherits them."""

    async def _ask(self, sql: str, *parameters: Any) -> list[Any]:
        raise NotImplementedError

    async def schedules(self, user_id: str | None = None, *, ids: Sequence[str] | None = None) -> list[Schedule]:
        rows = await self._ask(READS["schedules"], user_id, None if ids is None else list(ids))
        return [schedule_of(row) for row in rows]

    async def next_schedule(self) -> NextSchedule:
        ((next_at, waiting),) = await self._ask(READS["next_schedule"])
        return NextSchedule(seconds(next_at), waiting)

    async def due_schedules(self, now: float) -> list[Schedule]:
        return [schedule_of(row) for row in await self._ask(READS["due_schedules"], micros_by(now))]

    async def has_open_run(self, schedule_id: str) -> bool:
        return bool(await self._ask(READS["has_open_run"], schedule_id))

    async def schedule_runs(self, schedule_id: str, *, before: int | None, limit: int) -> list[ScheduleRun]:
        return [run_of(row) for row in await self._ask(READS["schedule_runs"], schedule_id, before, limit)]
