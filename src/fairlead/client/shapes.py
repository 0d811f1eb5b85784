"""Answers as typed values. What a newer gateway adds is left out; what an older one lacks is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from fairlead.domain.job import JobStatus, Priority, step_key
from fairlead.runtime.reasons import Reason
from fairlead.runtime.view import EstimatedWait, JobView
from fairlead.runtime.why import Why


@dataclass(frozen=True, slots=True)
class Submitted:
    """What the gateway said as it took the job in. `replayed`: the idempotency key was seen before."""

    job_id: str
    priority: Priority
    status: JobStatus
    position: int | None
    estimated_wait: EstimatedWait | None
    scheduled_at: float | None
    replayed: bool


@dataclass(frozen=True, slots=True)
class Inference:
    """A model's answer. `latency_ms` is from the job's acceptance to its end; `region` is where its last step ran."""

    job_id: str
    model: str
    result: Any
    region: str | None
    latency_ms: float


@dataclass(frozen=True, slots=True)
class JobPage:
    """Newest first; `next_cursor` is None on the last page."""

    data: list[JobView]
    next_cursor: str | None


_FIELDS = tuple(field.name for field in fields(JobView))


def job_of(said: Mapping[str, Any]) -> JobView:
    values: dict[str, Any] = {name: said.get(name) for name in _FIELDS}
    for name in _FIELDS:
        if name.endswith("_at"):
            values[name] = moment(values[name])
    return JobView(
        **{
            **values,
            "status": JobStatus(said["status"]),
            "priority": Priority(said["priority"]),
            "original_priority": Priority(said["original_priority"]),
            "steps": tuple(said["steps"]),
            "estimated_wait": wait_of(said.get("estimated_wait")),
        }
    )


def submitted_of(said: Mapping[str, Any], *, replayed: bool) -> Submitted:
    return Submitted(
        job_id=said["job_id"],
        priority=Priority(said["priority"]),
        status=JobStatus(said["status"]),
        position=said.get("position"),
        estimated_wait=wait_of(said.get("estimated_wait")),
        scheduled_at=moment(said.get("scheduled_at")),
        replayed=replayed,
    )


def inference_of(said: Mapping[str, Any]) -> Inference:
    return Inference(said["job_id"], said["model"], said["result"], said.get("region"), float(said["latency_ms"]))


def inference_of_job(job: JobView) -> Inference:
    """The same of a job that is COMPLETED, as `GET` shows it."""
    last = (job.context or {}).get(step_key(len(job.steps) - 1, job.steps[-1]), {})
    took = (job.finished_at or job.created_at) - job.created_at
    region = last.get("metrics", {}).get("region")
    return Inference(job.job_id, job.feature_name, job.result, region, round(took * 1000, 3))


def page_of(said: Mapping[str, Any]) -> JobPage:
    return JobPage([job_of(job) for job in said["data"]], said.get("next_cursor"))


def why_of(said: Mapping[str, Any]) -> Why:
    return Why(
        job_id=said["job_id"],
        status=JobStatus(said["status"]),
        summary=said["summary"],
        reasons=tuple(Reason(each["code"], each["message"], each["details"]) for each in said["reasons"]),
        position=said.get("position"),
        estimated_wait=wait_of(said.get("estimated_wait")),
    )


def moment(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()


def wait_of(said: Mapping[str, float] | None) -> EstimatedWait | None:
    return None if said is None else EstimatedWait(said["low"], said["high"])
