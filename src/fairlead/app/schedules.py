"""`app.schedules`: recurring jobs, and what became of their occurrences."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Unpack

from pydantic import ValidationError

from fairlead.app import audit
from fairlead.app.audit import AuditLog, act_of
from fairlead.app.declarations import ScheduleOptions
from fairlead.app.new_jobs import NewJobs
from fairlead.app.runtime import Runtime
from fairlead.domain.config_schedules import ScheduleConfig
from fairlead.domain.events import iso
from fairlead.domain.job import Job
from fairlead.domain.pagination import Page, check_limit, read_cursor, write_cursor
from fairlead.domain.schedules import RunOutcome, Schedule, ScheduleRun, Timing
from fairlead.domain.submission import MAX_USER_ID, SubmissionChecker
from fairlead.domain.validation import check_text
from fairlead.engine.clock import id_at
from fairlead.engine.loops.schedules import submission_of
from fairlead.errors import InvalidInput, NotFound, Unavailable, WrongState
from fairlead.store.port import Accepted, Done
from fairlead.store.schedules import DeleteSchedule, FireSchedule, SaveSchedule, ScheduleMoved

MOST_SCHEDULES = 20
"""Schedules that a user may create."""
MAX_ID = 100
NEXT_TIMES = 5
TRIES = 10


class Schedules:
    """A `user_id` limits each method to the schedules of that user."""

    def __init__(self, runtime: Runtime, audit: AuditLog) -> None:
        self._runtime = runtime
        self._audit = audit
        self._new = NewJobs(runtime)

    async def all(self, user_id: str | None = None) -> list[Schedule]:
        return await self._runtime.store.schedules(user_id)

    async def get(self, schedule_id: str, *, user_id: str | None = None) -> Schedule:
        found = await self._runtime.store.schedules(user_id, ids=[check_text(schedule_id, "schedule_id", MAX_ID)])
        if not found:
            raise NotFound(f"there is no schedule {schedule_id[:MAX_ID]}")
        return found[0]

    async def create(
        self,
        feature_name: str,
        *,
        name: str | None = None,
        by_user: bool = False,
        who: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Create a schedule. With `by_user`, its user creates it: there is a limit, and its priority only lowers the
        user's own."""
        now = self._runtime.clock.now()
        id_ = f"sch_{id_at(now).replace('-', '')}"
        config = _checked(feature_name, options)
        if name is not None:
            check_text(name, "name", MAX_ID)
        if by_user and len(await self.all(config.user_id)) >= MOST_SCHEDULES:
            raise WrongState(f"a user has at most {MOST_SCHEDULES} schedules; delete one first")
        schedule = Schedule(
            id_,
            check_text(config.user_id, "user_id", MAX_USER_ID),
            config.timing,
            config.job(feature_name),
            config.missed,
            config.overlap,
            by_user,
            name=name,
            secret=secrets.token_hex(8),
            created_at=now,
            next_at=config.timing.after(now),
        )
        self._check_job(schedule)
        act = act_of(who, audit.CREATE_SCHEDULE, id_, feature_name=feature_name, user_id=schedule.user_id)
        (outcome,) = await self._audit.write(act, SaveSchedule(schedule))
        assert isinstance(outcome, Done)
        return self._stored(replace(schedule, revision=1))

    async def change(
        self,
        schedule_id: str,
        changes: Mapping[str, Any],
        *,
        user_id: str | None = None,
        who: str | None = None,
    ) -> Schedule:
        """Change a schedule: `feature_name`, `name` and the options of `create`, except its user. None resets an option
        to its default. If its timing changes, its next time is computed from now."""
        if "user_id" in changes:
            raise InvalidInput("the user of a schedule cannot be changed; create another one", pointer="/user_id")

        def changed(schedule: Schedule, now: float) -> Schedule:
            options = {**schedule.job, **_options_of(schedule), **changes}
            for given, other in (("cron", "every"), ("every", "cron")):
                if changes.get(given) is not None and changes.get(other) is None:
                    options.pop(other, None)
            name = options.pop("name", schedule.name)
            feature_name = options.pop("feature_name")
            options = {key: value for key, value in options.items() if value is not None}
            config = _checked(feature_name, {**options, "user_id": schedule.user_id})
            new = replace(
                schedule,
                name=None if name is None else check_text(name, "name", MAX_ID),
                timing=config.timing,
                job=config.job(feature_name),
                missed=config.missed,
                overlap=config.overlap,
            )
            self._check_job(new)
            return new if new.timing == schedule.timing else replace(new, next_at=new.following(now))

        schedule = await self.get(schedule_id, user_id=user_id)
        if schedule.declared:
            raise _is_declared(schedule)
        return await self._save(schedule_id, changed, user_id, act_of(who, audit.CHANGE_SCHEDULE, schedule_id))

    async def pause(self, schedule_id: str, *, user_id: str | None = None, who: str | None = None) -> Schedule:
        """Submit nothing until the schedule is resumed. A run that waits for an earlier one is dropped."""

        def paused(schedule: Schedule, now: float) -> Schedule:
            return replace(schedule, paused_at=schedule.paused_at or now, waiting_at=None)

        return await self._save(schedule_id, paused, user_id, act_of(who, audit.PAUSE_SCHEDULE, schedule_id))

    async def resume(self, schedule_id: str, *, user_id: str | None = None, who: str | None = None) -> Schedule:
        """Resume a paused schedule. What was due meanwhile is not submitted."""

        def resumed(schedule: Schedule, now: float) -> Schedule:
            if schedule.paused_at is None:
                return schedule
            return replace(schedule, paused_at=None, next_at=schedule.following(now))

        return await self._save(schedule_id, resumed, user_id, act_of(who, audit.RESUME_SCHEDULE, schedule_id))

    async def run(self, schedule_id: str, *, user_id: str | None = None, who: str | None = None) -> str:
        """Submit a job of the schedule now, also if it is paused or an earlier run is open. Returns the job's id."""
        schedule = await self._own(schedule_id, user_id)
        submit = await self._new.prepare(submission_of(schedule, None), lowers_only=schedule.lowers_only)
        run = ScheduleRun(RunOutcome.SUBMITTED, self._runtime.clock.now(), job_id=submit.job.id)
        act = act_of(who, audit.RUN_SCHEDULE, schedule_id, job_id=submit.job.id)
        try:
            accepted, _ = await self._audit.write(act, submit, FireSchedule(schedule.id, None, (run,), submit.job.id))
        except ScheduleMoved:
            raise NotFound(f"there is no schedule {schedule_id}") from None
        assert isinstance(accepted, Accepted)
        await self._new.accepted(submit)
        return accepted.job_id

    async def delete(self, schedule_id: str, *, user_id: str | None = None, who: str | None = None) -> None:
        """Delete a schedule. Its jobs stay."""
        schedule = await self.get(schedule_id, user_id=user_id)
        if schedule.declared:
            raise _is_declared(schedule)
        act = act_of(who, audit.DELETE_SCHEDULE, schedule.id)
        (outcome,) = await self._audit.write(act, DeleteSchedule(schedule.id))
        if not isinstance(outcome, Done):
            raise NotFound(f"there is no schedule {schedule_id}")

    async def runs(
        self, schedule_id: str, *, user_id: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[tuple[ScheduleRun, Job | None]]:
        """A page of what became of the occurrences, newest first, each with its job if there is one. The last hundred
        are kept."""
        check_limit(limit)
        schedule, store = await self.get(schedule_id, user_id=user_id), self._runtime.store
        before = None if cursor is None else read_cursor(cursor, schedule.id)
        runs = await store.schedule_runs(schedule.id, before=before, limit=limit + 1)
        jobs = await store.get_jobs([run.job_id for run in runs if run.job_id is not None])
        page = [(run, jobs.get(run.job_id or "")) for run in runs[:limit]]
        return Page(page, write_cursor(runs[limit - 1].seq, schedule.id) if len(runs) > limit else None)

    async def _own(self, schedule_id: str, user_id: str | None) -> Schedule:
        schedule = await self.get(schedule_id, user_id=user_id)
        if user_id is not None and schedule.declared:
            raise _is_declared(schedule)
        return schedule

    async def _save(
        self, schedule_id: str, build: Callable[[Schedule, float], Schedule], user_id: str | None, act: Any
    ) -> Schedule:
        """Change a schedule on condition that it has not changed meanwhile; then start over."""
        for _ in range(TRIES):
            schedule = await self._own(schedule_id, user_id)
            new = build(schedule, self._runtime.clock.now())
            if new == schedule:
                return schedule
            (outcome,) = await self._audit.write(act, SaveSchedule(new, schedule.revision))
            if isinstance(outcome, Done):
                return self._stored(replace(new, revision=schedule.revision + 1))
        raise Unavailable(f"schedule {schedule_id} keeps changing; try again")

    def _stored(self, schedule: Schedule) -> Schedule:
        if self._runtime.node is not None and schedule.next_at is not None:
            self._runtime.node.schedule_set(schedule.next_at)
        return schedule

    def _check_job(self, schedule: Schedule) -> None:
        """Raise the error with which a submit of its job would be refused now."""
        now = self._runtime.clock.now()
        SubmissionChecker(self._runtime.config, now=now).submit_of(submission_of(schedule, now))


def _checked(feature_name: Any, options: Mapping[str, Any]) -> ScheduleConfig:
    """Check the options as those of the configuration. The feature is checked with the job."""
    check_text(feature_name, "feature_name", 63)
    timing = Timing(options.get("cron"), options.get("every"), options.get("timezone", "UTC"))
    try:
        if isinstance(timing.cron, str | None) and isinstance(timing.every, int | float | None):
            timing.check()
        return ScheduleConfig.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidInput(f"{where}: {first['msg']}", pointer=f"/{where.replace('.', '/')}") from None


def _options_of(schedule: Schedule) -> dict[str, Any]:
    timing = schedule.timing
    return {
        "cron": timing.cron,
        "every": timing.every,
        "timezone": timing.timezone,
        "missed": schedule.missed.value,
        "overlap": schedule.overlap.value,
    }


def _is_declared(schedule: Schedule) -> WrongState:
    return WrongState(f"this schedule is {schedule.id} of the configuration or the code; change it there")


def shown_schedule(schedule: Schedule) -> dict[str, Any]:
    """The fields of a schedule that callers may see."""
    job = schedule.job
    next_at = None if schedule.paused_at is not None else schedule.next_at
    return {
        "id": schedule.id,
        "name": schedule.name,
        "source": "config" if schedule.declared else "api",
        "feature_name": job["feature_name"],
        "user_id": schedule.user_id,
        **_options_of(schedule),
        "input_data": job.get("input_data", {}),
        **{name: job.get(name) for name in ("priority", "deadline", "cost", "metadata", "region", "allowed_regions")},
        "webhook_url": job.get("webhook_url"),
        "webhook_events": job.get("webhook_events"),
        "created_at": iso(schedule.created_at),
        "paused_at": iso(schedule.paused_at),
        "next_at": iso(next_at),
        "next_times": [iso(each) for each in schedule.timing.next_times(next_at, NEXT_TIMES)],
        "last_at": iso(schedule.last_at),
        "waiting_at": iso(schedule.waiting_at),
    }


def shown_run(run: ScheduleRun, job: Job | None) -> dict[str, Any]:
    return {
        "outcome": run.outcome,
        "at": iso(run.at),
        "due_at": iso(run.due_at),
        "job_id": run.job_id,
        "status": None if job is None else job.status,
        "count": run.count,
        "detail": run.detail,
    }
