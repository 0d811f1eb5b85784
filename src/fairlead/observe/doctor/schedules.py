"""Checks of schedules: recurring jobs that cannot be submitted, because no service or pipeline has their feature, and
those that fail again and again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from fairlead.domain.job import JobStatus
from fairlead.domain.schedules import LATE_AFTER, RunOutcome, Schedule
from fairlead.observe.doctor.finding import Finding, Kind, Severity, shown
from fairlead.store.port import Store

if TYPE_CHECKING:
    from fairlead.observe.doctor.facts import Facts

UNKNOWN = Kind("schedule-unknown-feature", Severity.WARNING, "a schedule submits nothing: its feature is unknown")
FAILS = Kind("schedule-fails", Severity.WARNING, "the runs of a schedule fail again and again")

IN_A_ROW = 3
"""A finding is reported if so many runs, one after the other, have failed or were refused."""
LOOKED_AT = 100
"""The schedules whose runs are read, those that ran last."""


async def failures(store: Store, schedules: Sequence[Schedule]) -> dict[str, list[str]]:
    """For each schedule whose last runs have all failed, why, newest first. Runs whose job has not ended or was deleted
    do not count, nor do occurrences that were skipped or missed."""
    active = [each for each in schedules if each.paused_at is None]
    latest = sorted(active, key=lambda each: each.last_at or each.created_at, reverse=True)[:LOOKED_AT]
    runs = {each.id: await store.schedule_runs(each.id, before=None, limit=4 * IN_A_ROW) for each in latest}
    jobs = await store.get_jobs([run.job_id for found in runs.values() for run in found if run.job_id is not None])
    failing: dict[str, list[str]] = {}
    for schedule_id, found in runs.items():
        ends: list[str | None] = []
        for run in found:
            job = jobs.get(run.job_id or "")
            if run.outcome is RunOutcome.REFUSED:
                ends.append(run.detail or "refused")
            elif job is not None and job.status is JobStatus.FAILED:
                ends.append(f"job {job.id}: {(job.error or {}).get('code', 'failed')}")
            elif job is not None and job.status in (JobStatus.COMPLETED, JobStatus.CANCELLED):
                ends.append(None)
        problems = [end for end in ends[:IN_A_ROW] if end is not None]
        if len(problems) == IN_A_ROW:
            failing[schedule_id] = problems
    return failing


def check(facts: Facts) -> Iterator[Finding]:
    for schedule in facts.schedules:
        feature, next_at = schedule.job["feature_name"], schedule.next_at
        if schedule.id in facts.failing_schedules:
            yield _fails(schedule, facts.failing_schedules)
        if facts.config.steps_of(feature) is not None or feature in facts.rules.services:
            continue
        late = 0.0 if next_at is None or schedule.paused_at is not None else max(0.0, facts.now - next_at)
        if facts.outside and late <= LATE_AFTER:
            continue  # the managers may know features that this process does not
        waits = f", which has waited for {shown(late)}" if late > 0 else ""
        yield UNKNOWN.found(
            f"the schedule {schedule.id} submits {feature!r}{waits}; no pipeline or service is called that",
            fix=f"add the feature, or stop the schedule: `fairlead schedules pause {schedule.id}` or "
            f"`fairlead schedules delete {schedule.id}`",
            about=schedule.id,
            feature_name=feature,
            user_id=schedule.user_id,
            late=round(late),
        )


def _fails(schedule: Schedule, failing: Mapping[str, Sequence[str]]) -> Finding:
    problems = failing[schedule.id]
    return FAILS.found(
        f"the last {len(problems)} runs of the schedule {schedule.id}, which submits "
        f"{schedule.job['feature_name']!r} for {schedule.user_id}, have failed: {problems[0]}",
        fix=f"read the errors in `fairlead schedules runs {schedule.id}` and `fairlead dead list`, and correct the "
        f"cause, or stop the schedule: `fairlead schedules pause {schedule.id}`",
        about=schedule.id,
        feature_name=schedule.job["feature_name"],
        user_id=schedule.user_id,
        failures=list(problems),
    )
