"""A job as its user sees it: DESIGN section 7's names, and nothing of the machinery."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from fairlead.domain.job import Job, JobRecord, JobStatus, Priority, StepResult
from fairlead.domain.order import Place
from fairlead.runtime import events
from fairlead.runtime.events import Event, iso


@dataclass(frozen=True, slots=True)
class EstimatedWait:
    low: float
    high: float

    @classmethod
    def of(cls, place: Place) -> EstimatedWait | None:
        wait = place.estimated_wait()
        return None if wait is None else cls(*wait)


@dataclass(frozen=True, slots=True)
class JobView:
    """Everything about one job. `history` are results that a later round has replaced; it, `context` and `attempts` are
    None in lists, where they are not read. `turn`: its caller does the work."""

    job_id: str
    feature_name: str
    user_id: str
    status: JobStatus
    priority: Priority
    original_priority: Priority
    priority_source: str | None
    created_at: float
    queued_at: float | None
    scheduled_at: float | None
    promoted_at: float | None
    started_at: float | None
    finished_at: float | None
    last_progress_at: float | None
    current_step_index: int
    total_steps: int
    steps: tuple[str, ...]
    position: int | None
    estimated_wait: EstimatedWait | None
    retryable: bool | None
    error: dict[str, Any] | None
    progress: dict[str, Any] | None
    result: Any = None
    context: dict[str, Any] | None = None
    attempts: list[dict[str, Any]] | None = None
    history: list[dict[str, Any]] | None = None
    input_data: Any = None
    metadata: dict[str, Any] | None = None
    region: str | None = None
    allowed_regions: tuple[str, ...] | None = None
    turn: bool = False

    def as_dict(self) -> dict[str, Any]:
        """As the gateway answers: times in ISO 8601."""
        shown = {name: getattr(self, name) for name in _NAMES}
        for name in _TIMES:
            shown[name] = iso(shown[name])
        if self.estimated_wait is not None:
            shown["estimated_wait"] = {
                "low": round(self.estimated_wait.low, 3),
                "high": round(self.estimated_wait.high, 3),
            }
        return shown


_NAMES = tuple(field.name for field in fields(JobView))
_TIMES = tuple(name for name in _NAMES if name.endswith("_at"))


def of_record(record: JobRecord, place: Place | None) -> JobView:
    attempts = [
        {
            "step": attempt.step,
            "service": attempt.service,
            "round": attempt.round,
            "attempt": attempt.attempt,
            "error": dict(attempt.error),
            "started_at": iso(attempt.started_at),
            "ended_at": iso(attempt.ended_at),
            "worker": attempt.worker,
            "region": attempt.region,
        }
        for attempt in record.attempts
    ]
    return _view(
        record.job,
        place,
        result=record.result,
        context=record.context,
        attempts=attempts,
        history=[_earlier(result) for result in record.history],
        input_data=record.input_data,
        metadata=record.metadata,
    )


def _earlier(result: StepResult) -> dict[str, Any]:
    return {
        "step": result.step,
        "service": result.service,
        "round": result.round,
        "data": result.data,
        "metrics": result.metrics,
        "finished_at": iso(result.finished_at),
    }


def of_job(job: Job, place: Place | None) -> JobView:
    """A row of a list: without what is kept beside the job."""
    return _view(job, place)


def _view(job: Job, place: Place | None, **beside: Any) -> JobView:
    waiting = place if job.status is JobStatus.PENDING else None
    return JobView(
        job_id=job.id,
        feature_name=job.feature_name,
        user_id=job.user_id,
        status=job.status,
        priority=job.priority,
        original_priority=job.original_priority,
        priority_source=job.priority_source,
        created_at=job.created_at,
        queued_at=job.queued_at,
        scheduled_at=job.scheduled_at,
        promoted_at=job.promoted_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        last_progress_at=job.last_progress_at,
        current_step_index=job.step,
        total_steps=len(job.steps),
        steps=job.steps,
        position=waiting.position if waiting else None,
        estimated_wait=EstimatedWait.of(waiting) if waiting else None,
        retryable=job.retryable,
        error=dict(job.error) if job.error else None,
        progress=dict(job.progress) if job.progress else None,
        region=job.region,
        allowed_regions=job.allowed_regions,
        turn=job.turn is not None,
        **beside,
    )


def ending(job: JobView, now: float) -> dict[str, Any]:
    """The terminal event of a job whose end was not witnessed here."""
    kinds = {
        JobStatus.COMPLETED: events.JOB_COMPLETE,
        JobStatus.FAILED: events.JOB_FAILED,
        JobStatus.CANCELLED: events.JOB_CANCELLED,
    }
    details = {"error": job.error, "retryable": bool(job.retryable)} if job.status is JobStatus.FAILED else {}
    return Event(kinds[job.status], job.job_id, now, f"the job is {job.status}", details).as_dict()
