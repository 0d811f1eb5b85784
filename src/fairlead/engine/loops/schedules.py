"""Submits recurring jobs when they are due, and stores the schedules of the configuration.

The commit that stores a job also moves its schedule forward, on condition that the schedule has not changed since it
was read. So each occurrence is submitted once, whichever managers run or die.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from fairlead.domain.config_schedules import ScheduleConfig
from fairlead.domain.events import iso
from fairlead.domain.schedules import Overlap, RunOutcome, Schedule, ScheduleRun, Step, decide, run_key
from fairlead.domain.submission import Submission
from fairlead.domain.transitions import Submit
from fairlead.errors import RequestError, Unavailable, UnknownFeature
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Accepted, Refused, Store
from fairlead.store.schedules import DeclareSchedules, FireSchedule, ScheduleMoved

log = logging.getLogger("fairlead.schedules")

LOOK_EVERY = 1.0
"""Seconds between two looks at the database, which finds schedules of other processes and runs that have ended."""
LOOK_AGAIN = 0.05
STEPS = 200
"""Moves of one schedule within one tick."""


class NewJobs(Protocol):
    """Prepares the jobs of schedules as those of callers are prepared."""

    async def prepare(self, submission: Submission, *, key: str | None, lowers_only: bool) -> Submit:
        """Check the submission and settle its priority. Raises a RequestError that names the invalid field."""
        ...

    async def accepted(self, submit: Submit) -> None:
        """Publish a job that was committed."""
        ...


class SchedulesLoop:
    """Counts the schedules that were due (`scanned`), and the jobs that it submitted (`queued`)."""

    name = "schedules"

    def __init__(self, store: Store, group_commit: GroupCommit, new_jobs: NewJobs) -> None:
        self._store = store
        self._group_commit = group_commit
        self._new_jobs = new_jobs
        self._unknown: set[str] = set()
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        first, waiting = await self._store.next_schedule()
        moved = False
        if waiting or (first is not None and first <= now):
            for schedule in await self._store.due_schedules(now):
                self.scanned += 1
                try:
                    moved |= await self._advance(schedule, now)
                except Unavailable:
                    raise
                except Exception:  # the other schedules go on
                    log.exception("the schedule %s failed; trying again", schedule.id)
            first, _ = await self._store.next_schedule()
        if moved:
            return now + LOOK_AGAIN
        return now + LOOK_EVERY if first is None or first <= now else min(first, now + LOOK_EVERY)

    async def _advance(self, schedule: Schedule, now: float) -> bool:
        """Decide the due occurrences of a schedule, one commit for each. Returns True if another process has changed
        the schedule meanwhile."""
        for _ in range(STEPS):
            busy = schedule.overlap is not Overlap.ALLOW and await self._store.has_open_run(schedule.id)
            step = decide(schedule, now, busy=busy)
            if step is None:
                return False
            try:
                if not await self._take(schedule, step, now):
                    return False
            except ScheduleMoved:
                return True
            schedule = replace(
                schedule,
                revision=schedule.revision + 1,
                next_at=step.next_at,
                last_at=step.last_at,
                waiting_at=step.waiting_at,
            )
        return True

    async def _take(self, schedule: Schedule, step: Step, now: float) -> bool:
        """Commit one step. Returns False if this process does not know the feature: another manager may know it."""
        if step.run_at is None:
            await self._fire(schedule, step, now)
            return True
        try:
            submit = await self._new_jobs.prepare(
                submission_of(schedule, step.run_at),
                key=run_key(schedule, step.run_at),
                lowers_only=schedule.lowers_only,
            )
            await self._submit(schedule, step, now, submit)
        except ScheduleMoved:
            raise
        except UnknownFeature as error:
            if schedule.id not in self._unknown:
                self._unknown.add(schedule.id)
                log.error("the schedule %s waits: %s", schedule.id, error)
            return False
        except RequestError as error:
            log.warning("a run of the schedule %s was refused: %s", schedule.id, error)
            refused = ScheduleRun(RunOutcome.REFUSED, now, step.run_at, detail=f"{error.code}: {error}")
            await self._fire(schedule, step, now, refused)
        self._unknown.discard(schedule.id)
        return True

    async def _submit(self, schedule: Schedule, step: Step, now: float, submit: Submit) -> None:
        accepted, fired = await self._group_commit.write_all(
            [submit, _fired(schedule, step, now, ScheduleRun(RunOutcome.SUBMITTED, now, step.run_at, submit.job.id))]
        )
        assert isinstance(accepted, Accepted)
        if isinstance(fired, Refused):
            # An earlier commit stored the job without moving the schedule: the database was restored, for example.
            run = ScheduleRun(RunOutcome.SUBMITTED, now, step.run_at, accepted.job_id)
            await self._fire(schedule, step, now, run)
        else:
            self.queued += 1
            await self._new_jobs.accepted(submit)

    async def _fire(self, schedule: Schedule, step: Step, now: float, *runs: ScheduleRun) -> None:
        await self._group_commit.write_all([replace(_fired(schedule, step, now, *runs), stored_job=None)])


def _fired(schedule: Schedule, step: Step, now: float, *runs: ScheduleRun) -> FireSchedule:
    before = []
    if step.missed_at is not None:
        before.append(ScheduleRun(RunOutcome.MISSED, now, step.missed_at, count=step.missed))
    if step.skipped_at is not None:
        before.append(ScheduleRun(RunOutcome.SKIPPED, now, step.skipped_at))
    return FireSchedule(
        schedule.id,
        schedule.revision,
        (*before, *runs),
        runs[0].job_id if runs else None,
        step.next_at,
        step.last_at,
        step.waiting_at,
    )


def submission_of(schedule: Schedule, due_at: float | None) -> Submission:
    """The job of an occurrence. Its metadata name the schedule and the time at which it was due, None if a caller
    started it."""
    fields: dict[str, Any] = dict(schedule.job)
    about = {"id": schedule.id, "due_at": None if due_at is None else iso(due_at)}
    metadata = {**(fields.pop("metadata", None) or {}), "schedule": about}
    return Submission(**fields, user_id=schedule.user_id, metadata=metadata)


async def declare(schedules: Mapping[str, ScheduleConfig], store: Store, group_commit: GroupCommit, now: float) -> None:
    """Store the schedules of the configuration and the code."""
    known = {schedule.id: schedule for schedule in await store.schedules()}
    if not schedules and not any(schedule.declared for schedule in known.values()):
        return
    declared = []
    for name, config in schedules.items():
        last_at = known[name].last_at if name in known else None
        schedule = Schedule(
            name,
            config.user_id,
            config.timing,
            config.job(name),
            config.missed,
            config.overlap,
            declared=True,
            name=name,
            secret=secrets.token_hex(8),
            created_at=now,
            last_at=last_at,
        )
        declared.append(replace(schedule, next_at=schedule.following(now)))
    await group_commit.write(DeclareSchedules(tuple(declared)))
