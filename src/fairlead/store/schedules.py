"""Writes, reads and rows of schedules, shared by both engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import orjson

from fairlead.domain.schedules import Missed, Overlap, RunOutcome, Schedule, ScheduleRun, Timing
from fairlead.errors import InvalidInput, WrongState

OUTCOMES = (RunOutcome.SUBMITTED, RunOutcome.SKIPPED, RunOutcome.MISSED, RunOutcome.REFUSED)
OUTCOME_CODES = {outcome: code for code, outcome in enumerate(OUTCOMES)}
KEPT_RUNS = 100
"""The runs of a schedule that are kept; older ones are deleted."""
MAX_DETAIL = 500


class ScheduleMoved(WrongState):
    """The schedule was changed, paused or deleted, or another process has decided this occurrence. Nothing was
    stored."""


@dataclass(frozen=True, slots=True)
class SaveSchedule:
    """Store a schedule. With `was`, replace the one that has this revision. Returns the stored schedule. Refused if the
    schedule exists, or has another revision."""

    schedule: Schedule
    was: int | None = None


@dataclass(frozen=True, slots=True)
class DeclareSchedules:
    """Store the schedules of the configuration and the code, and delete earlier ones that are no longer declared. A
    schedule whose timing is unchanged keeps its next time, and a pause stays."""

    schedules: tuple[Schedule, ...]


@dataclass(frozen=True, slots=True)
class DeleteSchedule:
    """Delete a schedule and its runs; their jobs stay. Refused if there is none."""

    schedule_id: str


@dataclass(frozen=True, slots=True)
class FireSchedule:
    """Move a schedule forward and record what became of its occurrences, in one atomic commit with the submit of its
    job. Raises ScheduleMoved, and nothing of the commit is stored, if it no longer has `revision`, is paused, or is not
    due by the database's clock. Without `revision`, only record the runs. Refused if `stored_job` is given and there is
    no such job, because the submit found another one by its idempotency key."""

    schedule_id: str
    revision: int | None
    runs: tuple[ScheduleRun, ...]
    stored_job: str | None = None
    next_at: float | None = None
    last_at: float | None = None
    waiting_at: float | None = None


KINDS: tuple[type, ...] = (SaveSchedule, DeclareSchedules, DeleteSchedule, FireSchedule)
"""The writes of schedules, in the order in which a commit applies them, after all submits."""


class NextSchedule(NamedTuple):
    """When the next schedule is due, and whether an occurrence waits for an earlier run."""

    next_at: float | None
    waiting: bool


class ScheduleReads(Protocol):
    async def schedules(self, user_id: str | None = None, *, ids: Sequence[str] | None = None) -> list[Schedule]:
        """The schedules in the order of their ids: all, those of one user, or those with these ids."""
        ...

    async def next_schedule(self) -> NextSchedule:
        """Paused schedules do not count."""
        ...

    async def due_schedules(self, now: float) -> list[Schedule]:
        """The schedules that are due or have a waiting occurrence, and are not paused, in the order in which they are
        due."""
        ...

    async def has_open_run(self, schedule_id: str) -> bool:
        """Whether a job of the schedule has not ended."""
        ...

    async def schedule_runs(self, schedule_id: str, *, before: int | None, limit: int) -> list[ScheduleRun]:
        """What became of the occurrences, newest first. `before` is the seq of the last run of the previous page."""
        ...


def schedule_row(schedule: Schedule) -> tuple[Any, ...]:
    texts = (schedule.id, schedule.user_id, schedule.name)
    if any("\0" in text for text in texts if text is not None):
        raise InvalidInput("a name must not contain the character NUL")
    timing = schedule.timing
    spec = {
        "job": dict(schedule.job),
        "missed": schedule.missed,
        "overlap": schedule.overlap,
        "lowers_only": schedule.lowers_only,
    }
    return (
        *texts,
        schedule.declared,
        orjson.dumps(spec, option=orjson.OPT_SORT_KEYS).decode(),
        orjson.dumps((timing.cron, timing.every, timing.timezone)).decode(),
        schedule.secret,
        _micros(schedule.created_at),
        schedule.revision,
        *map(_micros, (schedule.next_at, schedule.last_at, schedule.waiting_at, schedule.paused_at)),
    )


def schedule_of(row: Sequence[Any]) -> Schedule:
    id_, user_id, name, declared, spec, timing, secret, created_at, revision, *moments = row
    next_at, last_at, waiting_at, paused_at = (None if moment is None else moment / 1e6 for moment in moments)
    values = orjson.loads(spec)
    return Schedule(
        id_,
        user_id,
        Timing(*orjson.loads(timing)),
        values["job"],
        Missed(values["missed"]),
        Overlap(values["overlap"]),
        values["lowers_only"],
        bool(declared),
        name,
        secret,
        created_at / 1e6,
        revision,
        next_at,
        last_at,
        waiting_at,
        paused_at,
    )


def run_row(run: ScheduleRun) -> tuple[Any, ...]:
    detail = None if run.detail is None else run.detail.replace("\0", "")[:MAX_DETAIL]
    return OUTCOME_CODES[run.outcome], _micros(run.at), _micros(run.due_at), run.job_id, run.count, detail


def run_of(row: Sequence[Any]) -> ScheduleRun:
    seq, outcome, at, due_at, job_id, count, detail = row
    return ScheduleRun(
        OUTCOMES[outcome], at / 1e6, None if due_at is None else due_at / 1e6, job_id, count, detail, seq
    )


def moved() -> ScheduleMoved:
    return ScheduleMoved("the schedule has changed meanwhile; try again")


def _micros(moment: float | None) -> int | None:
    return None if moment is None else round(moment * 1e6)
