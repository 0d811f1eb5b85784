"""The responses of the gateway as typed objects. Fields that a newer gateway adds are ignored; fields that an older
gateway lacks are None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from fairlead.domain.job import JobStatus, Priority, step_key
from fairlead.domain.views import EstimatedWait, JobView, Reason, Why


@dataclass(frozen=True, slots=True)
class Submitted:
    """The response to a submit. `replayed` is True if the idempotency key was used before, and no new job was
    created."""

    job_id: str
    priority: Priority
    status: JobStatus
    position: int | None
    estimated_wait: EstimatedWait | None
    scheduled_at: datetime | None
    replayed: bool


@dataclass(frozen=True, slots=True)
class Inference:
    """The result of a model. `latency_ms` is the time from the submit to the end of the job; `region` is where the last
    step ran."""

    job_id: str
    model: str
    result: Any
    region: str | None
    latency_ms: float


@dataclass(frozen=True, slots=True)
class JobPage:
    """One page of a list of jobs, newest first. `next_cursor` is None on the last page."""

    data: list[JobView]
    next_cursor: str | None


_FIELDS = tuple(field.name for field in fields(JobView))


def job_of(body: Mapping[str, Any]) -> JobView:
    values: dict[str, Any] = {name: body.get(name) for name in _FIELDS}
    for name in _FIELDS:
        if name.endswith("_at") or name == "kept_until":
            values[name] = moment(values[name])
    return JobView(
        **{
            **values,
            "status": JobStatus(body["status"]),
            "priority": Priority(body["priority"]),
            "original_priority": Priority(body["original_priority"]),
            "steps": tuple(body["steps"]),
            "estimated_wait": wait_of(body.get("estimated_wait")),
        }
    )


def submitted_of(body: Mapping[str, Any], *, replayed: bool) -> Submitted:
    return Submitted(
        job_id=body["job_id"],
        priority=Priority(body["priority"]),
        status=JobStatus(body["status"]),
        position=body.get("position"),
        estimated_wait=wait_of(body.get("estimated_wait")),
        scheduled_at=moment(body.get("scheduled_at")),
        replayed=replayed,
    )


def inference_of(body: Mapping[str, Any]) -> Inference:
    return Inference(body["job_id"], body["model"], body["result"], body.get("region"), float(body["latency_ms"]))


def inference_of_job(job: JobView) -> Inference:
    """Return the `Inference` of a COMPLETED job."""
    last = (job.context or {}).get(step_key(len(job.steps) - 1, job.steps[-1]), {})
    took = (job.finished_at or job.created_at) - job.created_at
    region = last.get("metrics", {}).get("region")
    return Inference(job.job_id, job.feature_name, job.result, region, round(took.total_seconds() * 1000, 3))


def page_of(body: Mapping[str, Any]) -> JobPage:
    return JobPage([job_of(job) for job in body["data"]], body.get("next_cursor"))


def why_of(body: Mapping[str, Any]) -> Why:
    return Why(
        job_id=body["job_id"],
        status=JobStatus(body["status"]),
        summary=body["summary"],
        reasons=tuple(Reason(each["code"], each["message"], each["details"]) for each in body["reasons"]),
        position=body.get("position"),
        estimated_wait=wait_of(body.get("estimated_wait")),
    )


def moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def wait_of(body: Mapping[str, float] | None) -> EstimatedWait | None:
    return None if body is None else EstimatedWait(body["low"], body["high"])
