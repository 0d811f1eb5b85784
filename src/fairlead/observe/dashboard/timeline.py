"""A job's timeline: when each of its calls waited, ran and ended."""

from __future__ import annotations

import contextlib
from typing import Any

from fairlead.domain import reruns
from fairlead.domain.job import Attempt, Job, JobRecord, JobStatus, StepResult
from fairlead.domain.retry import RETRY_IN, without_traceback
from fairlead.errors import WrongState
from fairlead.observe.dashboard.overview import known


def runs(job: Job) -> dict[str, Any] | None:
    """The steps that would run again: in a retry of the job (`retry`), and in a re-run of each single step
    (`again`)."""
    if job.turn is not None or job.status not in (JobStatus.COMPLETED, JobStatus.FAILED):
        return None
    again = {}
    for step in range(len(job.steps)):
        with contextlib.suppress(WrongState):  # this step was not reached
            again[str(step)] = reruns.steps_of_rerun(job, step)
    return known(retry=reruns.steps_of_retry(job) if job.status is JobStatus.FAILED else None, again=again)


def timeline(record: JobRecord) -> list[dict[str, Any]]:
    """The calls of a job and the waits before them, in order of time. If the job is open, the last entry is its current
    call or wait."""
    calls = [*map(_failed, record.attempts), *map(_done, record.results)]
    calls.sort(key=lambda call: call["ended"])
    before: dict[str, Any] | None = None
    for call in calls:
        call["waited_from"] = _waited_from(record, _free(before), call["started"])
        before = call
    if before is not None and "backoff_until" in before and record.job.finished_at is not None:
        before["backoff_until"] = min(before["backoff_until"], record.job.finished_at)  # cancelled meanwhile
    return [*calls, *_now(record, before)]


def _free(call: dict[str, Any] | None) -> float | None:
    """The time from which the job could be queued again after this call: the end of the call, or of its backoff."""
    return None if call is None else call.get("backoff_until", call["ended"])


def _waited_from(record: JobRecord, ended: float | None, started: float) -> float:
    """The time at which the wait before a call began. `ended` is the time from which the job could be queued after its
    previous call; None for the first call. If the job was resumed since, the wait began with the resume."""
    job = record.job
    first = job.created_at if job.scheduled_at is None else job.scheduled_at
    begun = first if ended is None else ended
    if job.queued_at is not None and begun < job.queued_at <= started:
        begun = job.queued_at
    return min(begun, started)


def _failed(attempt: Attempt) -> dict[str, Any]:
    delay = attempt.error.get(RETRY_IN)
    return known(
        step=attempt.step,
        service=attempt.service,
        round=attempt.round,
        attempt=attempt.attempt,
        region=attempt.region,
        worker=attempt.worker,
        started=attempt.ended_at if attempt.started_at is None else attempt.started_at,
        ended=attempt.ended_at,
        backoff_until=None if not delay else attempt.ended_at + delay,
        outcome="failed",
        error=without_traceback(attempt.error),
    )


def _done(result: StepResult) -> dict[str, Any]:
    """The entry of a successful call. Its start is computed from its end and its duration, because results do not store
    when a call began."""
    took = result.metrics.get("execution_time_ms")
    seconds = took / 1000 if isinstance(took, int | float) and not isinstance(took, bool) else 0.0
    return known(
        step=result.step,
        service=result.service,
        round=result.round,
        started=result.finished_at - max(0.0, seconds),
        ended=result.finished_at,
        outcome="ok",
    )


def _now(record: JobRecord, before: dict[str, Any] | None) -> list[dict[str, Any]]:
    job, free = record.job, _free(before)
    here = known(step=job.step, service=job.service, round=job.round)
    match job.status:
        case JobStatus.RUNNING:
            started = job.call_started_at or job.created_at
            return [
                here
                | known(
                    attempt=job.attempt,
                    region=job.call_region,
                    worker=job.worker,
                    waited_from=_waited_from(record, free, started),
                    started=started,
                    outcome="running",
                )
            ]
        case JobStatus.PENDING:
            return [here | known(attempt=job.attempt + 1, waited_from=job.waiting_since, outcome="waiting")]
        case JobStatus.RETRYING if before is None or "backoff_until" not in before:
            # Older releases did not record the backoff with the call.
            return [here | known(waited_from=free, backoff_until=job.timer_at, outcome="backing_off")]
        case JobStatus.SCHEDULED if job.is_set_aside:
            return [here | known(waited_from=job.waiting_since, backoff_until=job.timer_at, outcome="waiting")]
        case JobStatus.SCHEDULED:
            return [here | known(waited_from=job.created_at, backoff_until=job.scheduled_at, outcome="scheduled")]
        case JobStatus.FAILED | JobStatus.CANCELLED if job.finished_at is not None and (
            before is None or job.finished_at != before["ended"]
        ):
            # The job ended while it waited: by a timeout, a deadline or a cancellation.
            begun = _waited_from(record, free, job.finished_at)
            error = dict(job.error) if job.error else None
            return [here | known(waited_from=begun, ended=job.finished_at, outcome=job.status.lower(), error=error)]
        case _:
            return []
