"""What callers see of a job: its fields and results, and the reasons why it waits, runs or has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from fairlead.domain import events
from fairlead.domain.events import Event, iso, utc
from fairlead.domain.fair_share import QueuePosition
from fairlead.domain.fast_dataclass import fast_dataclass
from fairlead.domain.job import Job, JobRecord, JobStatus, Priority, StepResult
from fairlead.domain.processes import ProcessRecord
from fairlead.domain.retry import TRACEBACK, without_traceback
from fairlead.domain.trace_context import trace_id_of
from fairlead.domain.transition_types import Move
from fairlead.errors import JobCancelled, JobFailed, ResultTimeout


@dataclass(frozen=True, slots=True)
class EstimatedWait:
    low: float
    high: float

    @classmethod
    def of(cls, position: QueuePosition) -> EstimatedWait | None:
        wait = position.estimated_wait()
        return None if wait is None else cls(*wait)


@fast_dataclass
class EndedJob:
    """What the caller of a job needs to know once the job has ended."""

    job_id: str
    status: JobStatus
    priority: Priority
    result: Any = None
    error: Mapping[str, Any] | None = None

    @classmethod
    def of_move(cls, job: Job, move: Move) -> EndedJob | None:
        """The end that this move of the job writes. None if the end depends on what the database has: the results of
        earlier steps and rounds."""
        if not move.status.finished or len(job.steps) > 1 or job.round or move.round:
            return None
        result = None if move.result is None else move.result.data
        return cls(job.id, move.status, job.priority, result, move.error)

    @classmethod
    def of_view(cls, job: JobView) -> EndedJob:
        return cls(job.job_id, job.status, job.priority, job.result, job.error)


@dataclass(frozen=True, slots=True)
class JobView:
    """Everything that callers see of one job. `history` holds the results that a later round replaced. Lists do not
    read `history`, `context` and `attempts`, so these are None there. `turn` is true for a turn. `kept_until` is set
    while the caller of a waiting turn is absent: the turn is SCHEDULED, and its place is kept until that time.
    `trace_id` is the trace that the job belongs to, if it has one."""

    job_id: str
    feature_name: str
    user_id: str
    status: JobStatus
    priority: Priority
    original_priority: Priority
    priority_source: str | None
    created_at: datetime
    queued_at: datetime | None
    scheduled_at: datetime | None
    promoted_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    last_progress_at: datetime | None
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
    kept_until: datetime | None = None
    trace_id: str | None = None

    def as_dict(self, *, tracebacks: bool = False) -> dict[str, Any]:
        """This job as the JSON object that the gateway returns, with times in ISO 8601. Tracebacks reveal the code of
        the service, so include them only for its operators."""
        shown = {name: getattr(self, name) for name in _NAMES}
        if not tracebacks and self.attempts:
            shown["attempts"] = [{**attempt, "traceback": None} for attempt in self.attempts]
        for name in _TIMES:
            shown[name] = iso(shown[name])
        if self.estimated_wait is not None:
            shown["estimated_wait"] = {
                "low": round(self.estimated_wait.low, 3),
                "high": round(self.estimated_wait.high, 3),
            }
        return shown


@dataclass(frozen=True, slots=True)
class RetriedJob(JobView):
    """A job that was retried. `warning` is set if the last error of the job was permanent."""

    warning: str | None = None

    def as_dict(self, *, tracebacks: bool = False) -> dict[str, Any]:
        return {**JobView.as_dict(self, tracebacks=tracebacks), "warning": self.warning}


_NAMES = tuple(field.name for field in fields(JobView))
_TIMES = (*(name for name in _NAMES if name.endswith("_at")), "kept_until")


def of_record(record: JobRecord, position: QueuePosition | None) -> JobView:
    attempts = [
        {
            "step": attempt.step,
            "step_index": attempt.step,
            "service": attempt.service,
            "round": attempt.round,
            "attempt": attempt.attempt,
            "error": without_traceback(attempt.error),
            "traceback": attempt.error.get(TRACEBACK),
            "started_at": iso(attempt.started_at),
            "ended_at": iso(attempt.ended_at),
            "worker": attempt.worker,
            "region": attempt.region,
        }
        for attempt in record.attempts
    ]
    return _view(
        record.job,
        position,
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
        "step_index": result.step,
        "service": result.service,
        "round": result.round,
        "data": result.data,
        "metrics": result.metrics,
        "finished_at": iso(result.finished_at),
    }


def of_job(job: Job, position: QueuePosition | None) -> JobView:
    """The view of a job as one row of a list, without results and attempts."""
    return _view(job, position)


def _view(job: Job, position: QueuePosition | None, **extra: Any) -> JobView:
    waiting = position if job.status is JobStatus.PENDING else None
    return JobView(
        job_id=job.id,
        feature_name=job.feature_name,
        user_id=job.user_id,
        status=job.status,
        priority=job.priority,
        original_priority=job.original_priority,
        priority_source=job.priority_source,
        created_at=utc(job.created_at),
        queued_at=utc(job.queued_at),
        scheduled_at=utc(job.scheduled_at),
        promoted_at=utc(job.promoted_at),
        started_at=utc(job.started_at),
        finished_at=utc(job.finished_at),
        last_progress_at=utc(job.last_progress_at),
        current_step_index=job.step,
        total_steps=len(job.steps),
        steps=job.steps,
        position=waiting.position if waiting else None,
        estimated_wait=EstimatedWait.of(waiting) if waiting else None,
        retryable=job.retryable,
        error=dict(job.error) if job.error and not job.is_set_aside else None,
        progress=dict(job.progress) if job.progress else None,
        region=job.region,
        allowed_regions=job.allowed_regions,
        turn=job.turn is not None,
        kept_until=utc(job.timer_at) if job.is_set_aside else None,
        trace_id=trace_id_of(job.trace),
        **extra,
    )


def retried(job: JobView, warning: str | None) -> RetriedJob:
    return RetriedJob(**{name: getattr(job, name) for name in _NAMES}, warning=warning)


def ending(job: JobView, now: float) -> dict[str, Any]:
    """Build the last event of a job that ended in another process."""
    kinds = {
        JobStatus.COMPLETED: events.JOB_COMPLETE,
        JobStatus.FAILED: events.JOB_FAILED,
        JobStatus.CANCELLED: events.JOB_CANCELLED,
    }
    details = {"error": job.error, "retryable": bool(job.retryable)} if job.status is JobStatus.FAILED else {}
    return Event(kinds[job.status], job.job_id, now, f"the job is {job.status}", details).as_dict()


def result_of(job: JobView, timeout: float | None) -> Any:
    """Return the data of the last step, or raise the error that explains why there is none."""
    match job.status:
        case JobStatus.COMPLETED:
            return job.result
        case JobStatus.FAILED:
            error = job.error or {}
            text = f"job {job.job_id} failed: {error.get('message', 'unknown reason')}"
            failed = JobFailed(text, job_id=job.job_id, error=error, retryable=bool(job.retryable))
            last = job.attempts[-1] if job.attempts else {}
            # The codes differ if the job failed while waiting, after an attempt that failed for another reason.
            if last.get("traceback") and last["error"].get("code") == error.get("code"):
                failed.add_note(f"\nThe handler's traceback:\n\n{last['traceback']}")
            raise failed
        case JobStatus.CANCELLED:
            raise JobCancelled(f"job {job.job_id} was cancelled", job_id=job.job_id)
        case unfinished:
            raise ResultTimeout(f"job {job.job_id} is {unfinished} after {timeout:g} s", job_id=job.job_id)


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why a job is not running. Programs compare `code`, which is stable; `message` is for people."""

    code: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Why:
    """The reasons that keep a job waiting, most important first, and a one-sentence summary."""

    job_id: str
    status: JobStatus
    summary: str
    reasons: tuple[Reason, ...]
    position: int | None = None
    estimated_wait: EstimatedWait | None = None

    def as_dict(self) -> dict[str, Any]:
        wait = self.estimated_wait
        return {
            "job_id": self.job_id,
            "status": self.status.value,
            "summary": self.summary,
            "position": self.position,
            "estimated_wait": {"low": round(wait.low, 3), "high": round(wait.high, 3)} if wait is not None else None,
            "reasons": [
                {"code": each.code, "message": each.message, "details": dict(each.details)} for each in self.reasons
            ],
        }


MOST_HOLDERS = 10
"""At most this many holders of slots, or busy workers, are listed in a reason."""


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """The live processes that can execute a service. `band` is the band that a worker must serve to take the job (None:
    any band)."""

    serving: Sequence[ProcessRecord]
    band: Priority | None

    def reason(self, service: str, *, slots_are_free: bool, private: bool, place: str | None = None) -> Reason | None:
        """The reason why no worker takes the job, or None if a worker could. Full workers are a reason only if
        `slots_are_free`. With `private`, the reason does not name them. `place` is how the message names the service:
        with its regions, if the step may run only in some of them."""
        awake = [each for each in self.serving if not (each.draining or each.drain_asked)]
        fit = [each for each in awake if self.band is None or self.band.value in each.bands]
        details: dict[str, Any] = {"service": service, "workers": len(self.serving)}
        if not fit:
            details |= {"draining": len(self.serving) - len(awake), "other_bands": len(awake)}
            return Reason(
                "no_worker", f"no worker is alive for {place or service}{self._details_text(details)}", details
            )
        if slots_are_free and all(each.running >= each.concurrency for each in fit):
            if not private:
                details["busy"] = [
                    {"worker": each.name, "running": each.running, "concurrency": each.concurrency}
                    for each in fit[:MOST_HOLDERS]
                ]
            text = f"slots are free, but every worker for {service} is at its concurrency limit"
            return Reason("workers_full", text, details)
        return None

    def _details_text(self, details: Mapping[str, Any]) -> str:
        if details["other_bands"]:
            return f" and {self.band} priority; the live ones serve other priorities"
        return "; the live ones are draining" if details["draining"] else ""
