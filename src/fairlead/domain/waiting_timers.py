"""Computes the time at which the timer of a waiting job fires: the job is due, has waited too long for a slot or for
its preferred region, or reaches its deadline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fairlead.domain.fast_dataclass import changed, fast_dataclass
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.retry import RESOURCE_EXHAUSTED

WaitTimeouts = Mapping[str, float]
"""Seconds that a step may wait for capacity, by service. Services without a limit are absent."""

AutoResumes = Mapping[str, float]
"""Services with `resume = "auto"`: the seconds after which a job that waited too long is queued again."""
NO_RESUMES: AutoResumes = {}


@fast_dataclass
class FirstState:
    """The state in which a new job is inserted."""

    status: JobStatus
    queued_at: float | None
    timer_at: float | None


def first_state(
    service: str,
    *,
    now: float,
    due_at: float | None,
    deadline_at: float | None,
    waits: WaitTimeouts,
    spill_after: float | None = None,
) -> FirstState:
    """The first state of a new job: SCHEDULED if it is not due yet, else PENDING. `spill_after` is given only if the
    job prefers a region."""
    if due_at is not None and due_at > now:
        return FirstState(JobStatus.SCHEDULED, None, earliest(due_at, deadline_at))
    return FirstState(JobStatus.PENDING, now, waiting_timer(service, now, deadline_at, waits, spill_after))


def with_start_timeout(job: Job, seconds: float) -> Job:
    """The new job with a limit on the time until it starts."""
    limited = changed(job, start_within=seconds)
    return changed(limited, timer_at=earliest(job.timer_at, limited.start_by))


def waiting_timer(
    service: str, since: float, deadline_at: float | None, waits: WaitTimeouts, spill_after: float | None
) -> float | None:
    longest = waits.get(service)
    if spill_after is not None:
        longest = spill_after if longest is None else min(longest, spill_after)
    return deadline_at if longest is None else earliest(since + longest, deadline_at)


START_TIMEOUT = "start_timeout"
"""The key in the error of a job that did not start in time: the seconds that its caller allowed."""
_ROUNDING_S = 1e-3
"""Stored times are rounded to microseconds."""


def start_is_overdue(job: Job) -> bool:
    """Whether the timer of this waiting job, which has fired, ends its wait because it has not started in time."""
    start_by, timer_at = job.start_by, job.timer_at
    return start_by is not None and timer_at is not None and timer_at >= start_by - _ROUNDING_S


def too_late(job: Job) -> dict[str, Any]:
    """The error of a job that has waited too long for a slot."""
    if start_is_overdue(job):
        text = f"the job did not start within {job.start_within:g} s, the start timeout of its caller"
        return {"code": RESOURCE_EXHAUSTED, "message": text, START_TIMEOUT: job.start_within}
    text = f"{job.service} had no capacity within its wait_timeout; the job can be resumed"
    return {"code": RESOURCE_EXHAUSTED, "message": text}


def spills(job: Job, waits: WaitTimeouts) -> bool:
    """Whether the timer of this waiting job ends its wait for the preferred region: once it fires, the job may go to
    other regions. Otherwise the timer ends the wait altogether. The caller has
    checked the job's deadline, which uses the same timer."""
    if job.spill_after is None or start_is_overdue(job) or not job.asks_for_region(job.step, job.attempt):
        return False
    return job.spill_after < waits.get(job.service, math.inf)


def due_after(job: Job, now: float, delay: float) -> float:
    """The time at which the backoff of a job ends: after `delay` seconds, or at the job's deadline if that is
    earlier."""
    return now + delay if job.deadline_at is None else min(now + delay, job.deadline_at)


def resumed_queued_at(job: Job, now: float) -> float:
    """The `queued_at` of a failed job that is resumed. The time that it waited before the failure counts towards its
    promotion; the time during which it was FAILED does not."""
    if job.queued_at is None or job.finished_at is None:
        return now
    return min(now, job.queued_at + max(0.0, now - job.finished_at))


def earliest(*moments: float | None) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)
