"""A job as a row of calls, one after the other: since when each waited, when it ran, and how it ended."""

from __future__ import annotations

from typing import Any

from fairlead.domain.job import Attempt, JobRecord, JobStatus, StepResult
from fairlead.domain.retry import RETRY_IN
from fairlead.runtime.dashboard.slots import known


def timeline(record: JobRecord) -> list[dict[str, Any]]:
    """In order of time; the last is what is under way or waited for, if the job is open."""
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
    """Since when the job could be in line again after this call: at once, or when it had backed off."""
    return None if call is None else call.get("backoff_until", call["ended"])


def _waited_from(record: JobRecord, ended: float | None, started: float) -> float:
    """After a resume it waits since that, not since it failed."""
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
        error=dict(attempt.error),
    )


def _done(result: StepResult) -> dict[str, Any]:
    """When its call began is not kept; how long it took is."""
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
            # A release before did not write down with the call how long it backs off.
            return [here | known(waited_from=free, backoff_until=job.timer_at, outcome="backing_off")]
        case JobStatus.SCHEDULED:
            return [here | known(waited_from=job.created_at, backoff_until=job.scheduled_at, outcome="scheduled")]
        case JobStatus.FAILED | JobStatus.CANCELLED if job.finished_at is not None and (
            before is None or job.finished_at != before["ended"]
        ):
            # It ended in line: waited too long, past its deadline, or cancelled.
            begun = _waited_from(record, free, job.finished_at)
            error = dict(job.error) if job.error else None
            return [here | known(waited_from=begun, ended=job.finished_at, outcome=job.status.lower(), error=error)]
        case _:
            return []
