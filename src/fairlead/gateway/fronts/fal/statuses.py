"""The status of a request, as fal's clients know it: IN_QUEUE, IN_PROGRESS or COMPLETED. A request that failed or was
cancelled is COMPLETED too, with an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fairlead.domain import events
from fairlead.domain.job import FINISHED, JobStatus
from fairlead.domain.views import JobView
from fairlead.gateway.fronts.fal import errors

IN_QUEUE, IN_PROGRESS, COMPLETED = "IN_QUEUE", "IN_PROGRESS", "COMPLETED"
MOST_LOGS = 500
"""The number of lines that are kept for a request."""
_RUNS = frozenset({events.STEP_START, events.STEP_COMPLETE, events.PROGRESS, events.JOB_RETRYING})

Log = dict[str, Any]


@dataclass(frozen=True, slots=True)
class State:
    """What is known of a request. `position` counts from 0. `ending` has what only a request that has ended has."""

    kind: str
    position: int = 0
    ending: Mapping[str, Any] | None = None


def of_job(job: JobView) -> State:
    if job.status.finished:
        return State(COMPLETED, ending=_ending(job))
    if job.started_at is not None:
        return State(IN_PROGRESS)
    return State(IN_QUEUE, max(0, (job.position or 1) - 1))


def _ending(job: JobView) -> dict[str, Any]:
    seconds = 0.0
    if job.started_at is not None and job.finished_at is not None:
        seconds = max(0.0, (job.finished_at - job.started_at).total_seconds())
    ending: dict[str, Any] = {"metrics": {"inference_time": round(seconds, 6)}}
    if job.status is JobStatus.FAILED:
        _, text, kind = errors.of_error(job.error)
        return ending | {"error": text, "error_type": kind}
    if job.status is JobStatus.CANCELLED:
        return ending | {"error": "the request was cancelled", "error_type": errors.CANCELLED}
    return ending


def after(state: State | None, event: Mapping[str, Any]) -> State | None:
    """The state after an event of the job. The end of a job is read from the database instead."""
    if event["type"] == events.SNAPSHOT:
        job = event["job"]
        if job["started_at"] is not None:
            return State(IN_PROGRESS)
        position = job["position"]
        if position is None and state is not None and state.kind == IN_QUEUE:
            return state  # the dispatcher does not answer; the last known position is the best there is
        return State(IN_QUEUE, max(0, (position or 1) - 1))
    if event["type"] == events.POSITION and (state is None or state.kind == IN_QUEUE):
        return State(IN_QUEUE, max(0, (event.get("position") or 1) - 1))
    return State(IN_PROGRESS) if event["type"] in _RUNS else state


def has_ended(event: Mapping[str, Any]) -> bool:
    """Whether an event is the snapshot of a job that has ended."""
    return event["type"] == events.SNAPSHOT and event["job"]["status"] in FINISHED


def log_of(event: Mapping[str, Any]) -> Log | None:
    """The line of the log that an event of the job is; None if it is none."""
    if event["type"] == events.PROGRESS:
        return line(event["message"], event["at"])
    progress = event["job"].get("progress") if event["type"] == events.SNAPSHOT else None
    return None if progress is None else of_progress(progress, event["job"]["last_progress_at"] or event["at"])


def of_progress(progress: Mapping[str, Any], at: datetime | str | None) -> Log:
    """The line for the last progress of a job."""
    text = progress.get("message")
    if text is None:
        text = f"{progress.get('service', 'the step')} is at {progress.get('fraction') or 0:.0%}"
    return line(str(text), at if isinstance(at, str) else events.iso(at) or "")


def line(message: str, at: str) -> Log:
    return {"message": message, "level": "INFO", "source": "USER", "timestamp": at}


def logs_of(job: JobView) -> list[Log]:
    """The log of a job that nothing has followed: its last progress."""
    return [] if job.progress is None else [of_progress(job.progress, job.last_progress_at)]


def body_of(
    state: State, request_id: str, urls: Mapping[str, str], logs: Sequence[Log] | None
) -> tuple[int, dict[str, Any]]:
    """The HTTP status and the body of a status request. `logs` is None if the client does not want them."""
    body: dict[str, Any] = {"status": state.kind, "request_id": request_id, **urls}
    if state.kind == IN_QUEUE:
        return 202, body | {"queue_position": state.position}
    body["logs"] = logs
    if state.kind == IN_PROGRESS:
        return 202, body
    return 200, body | dict(state.ending or {"metrics": {}})
