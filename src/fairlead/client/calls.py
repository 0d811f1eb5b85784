"""Every call as a request and what its answer means, without sending anything: both clients send the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx2
from uuid_utils import uuid4

from fairlead.client.shapes import JobPage, Submitted, job_of, page_of, submitted_of, why_of
from fairlead.domain.job import JobStatus
from fairlead.errors import InvalidInput, WrongState
from fairlead.runtime.submission import Submission
from fairlead.runtime.view import JobView
from fairlead.runtime.why import Why

JOBS = "/api/v1/jobs"
LONGEST_WAIT = 30
"""Seconds that one request waits for a job's end at most; proxies cut longer ones."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """`again`: may be sent once more although the first one may have been carried out. `if_late`: what a refusal of the
    second one means, when it was the first that did it."""

    method: str
    path: str
    read: Callable[[httpx2.Response], T]
    again: bool = True
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    if_late: JobStatus | None = None

    def meant(self, error: Exception) -> bool:
        """Was it ours already, whose answer was lost?"""
        return (
            self.if_late is not None
            and isinstance(error, WrongState)
            and error.details.get("status") == self.if_late.value
        )


def submit(wanted: Submission, key: str | None) -> Call[Submitted]:
    headers = {"Idempotency-Key": key or str(uuid4())}
    return Call("POST", JOBS, _submitted, body=body_of(wanted), headers=headers)


def submit_many(wanted: Sequence[Submission], key: str | None) -> Call[list[Submitted]]:
    headers = {"Idempotency-Key": key or str(uuid4())}
    return Call("POST", f"{JOBS}/bulk", _all_submitted, body={"jobs": [*map(body_of, wanted)]}, headers=headers)


def get(job_id: str, wait: int | None = None) -> Call[JobView]:
    headers = {} if wait is None else {"Prefer": f"wait={wait}"}
    return Call("GET", path_of(job_id), _job, headers=headers)


def list_jobs(**filters: Any) -> Call[JobPage]:
    params = {name: str(value) for name, value in filters.items() if value is not None}
    return Call("GET", JOBS, lambda response: page_of(response.json()), params=params)


def cancel(job_id: str) -> Call[JobView]:
    return Call("POST", f"{path_of(job_id)}/cancel", _job, if_late=JobStatus.CANCELLED)


def resume(job_id: str) -> Call[JobView]:
    return Call("POST", f"{path_of(job_id)}/resume", _job, again=False)


def delete(job_id: str) -> Call[None]:
    return Call("DELETE", path_of(job_id), lambda response: None, again=False)


def why(job_id: str) -> Call[Why]:
    return Call("GET", f"{path_of(job_id)}/why", lambda response: why_of(response.json()))


def path_of_late(call: Call[Any]) -> str:
    """Where the job is that a call of ours has moved already."""
    return call.path.rpartition("/")[0]


def events_of(job_id: str) -> str:
    return f"{path_of(job_id)}/events"


def path_of(job_id: str) -> str:
    if not isinstance(job_id, str) or job_id in ("", ".", ".."):
        raise InvalidInput(f"{job_id!r} is not a job id", pointer="/job_id")
    return f"{JOBS}/{quote(job_id, safe='')}"


def body_of(wanted: Submission) -> dict[str, Any]:
    """Only what was given: what is not is the gateway's to decide."""
    said = {name: getattr(wanted, name) for name in wanted.__slots__}
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in said.items()
        if value is not None
    }


def _submitted(response: httpx2.Response) -> Submitted:
    return submitted_of(response.json(), replayed="idempotent-replayed" in response.headers)


def _all_submitted(response: httpx2.Response) -> list[Submitted]:
    replayed = "idempotent-replayed" in response.headers
    return [submitted_of(one, replayed=replayed) for one in response.json()["jobs"]]


def _job(response: httpx2.Response) -> JobView:
    return job_of(response.json())
