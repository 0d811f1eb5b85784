"""Every call as a request and what its answer means, without sending anything: both clients send the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Generic, TypeVar

import httpx2
from uuid_utils import uuid4

from fairlead.client.errors import not_a_gateway
from fairlead.client.shapes import Inference, JobPage, Submitted, inference_of, job_of, page_of, submitted_of, why_of
from fairlead.domain.job import JobStatus
from fairlead.domain.wire import NotJson, to_json
from fairlead.errors import InvalidInput, WrongState
from fairlead.runtime.operations import check_id
from fairlead.runtime.submission import Submission
from fairlead.runtime.view import JobView
from fairlead.runtime.why import Why

JOBS = "/api/v1/jobs"
LONGEST_WAIT = 30
"""Seconds that one request waits for a job's end at most; proxies cut longer ones."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """`again`: may be sent once more although the first one may have been carried out. `if_late`: the job's state if it
    was the first that did it, and the second is refused for that; `instead` then tells what the first would have."""

    method: str
    path: str
    read: Callable[[httpx2.Response], T]
    again: bool = True
    params: Mapping[str, Any] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    if_late: JobStatus | None = None
    instead: Call[T] | None = None

    def meant(self, error: Exception) -> bool:
        """Does this refusal say that it was done before?"""
        return (
            self.if_late is not None
            and isinstance(error, WrongState)
            and error.details.get("status") == self.if_late.value
        )


def answer_of(call: Call[T], response: httpx2.Response) -> T:
    """What the answer means; or that nobody knows."""
    try:
        return call.read(response)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise not_a_gateway(response) from None


def submit(wanted: Submission, key: str | None) -> Call[Submitted]:
    return Call("POST", JOBS, _submitted, body=json_of(body_of(wanted)), headers=with_body(key))


def submit_many(wanted: Sequence[Submission], key: str | None) -> Call[list[Submitted]]:
    def read(response: httpx2.Response) -> list[Submitted]:
        replayed = "idempotent-replayed" in response.headers
        said = response.json()["jobs"]
        if len(said) != len(wanted):
            raise ValueError("there must be one answer for each job")
        return [submitted_of(one, replayed=replayed) for one in said]

    body = json_of({"jobs": [*map(body_of, wanted)]})
    return Call("POST", f"{JOBS}/bulk", read, body=body, headers=with_body(key))


def infer(model: str, wanted: Mapping[str, Any], timeout: float, key: str | None) -> Call[Inference | Submitted]:
    """`Submitted`: it has not ended within the timeout, which proxies let pass."""
    said = {"model": model, **{name: value for name, value in wanted.items() if value is not None}}
    body = json_of({**said, "timeout": min(timeout, LONGEST_WAIT)})
    return Call("POST", "/inference", _inferred, body=body, headers=with_body(key))


def get(job_id: str, wait: int | None = None) -> Call[JobView]:
    headers = {} if wait is None else {"Prefer": f"wait={wait}"}
    return Call("GET", path_of(job_id), _job, headers=headers)


def list_jobs(**filters: Any) -> Call[JobPage]:
    params = {name: str(value) for name, value in filters.items() if value is not None}
    return Call("GET", JOBS, lambda response: page_of(response.json()), params=params)


def cancel(job_id: str) -> Call[JobView]:
    return Call("POST", f"{path_of(job_id)}/cancel", _job, if_late=JobStatus.CANCELLED, instead=get(job_id))


def resume(job_id: str) -> Call[JobView]:
    return Call("POST", f"{path_of(job_id)}/resume", _job, again=False)


def retry_step(job_id: str, step: int) -> Call[JobView]:
    return Call("POST", f"{path_of(job_id)}/steps/{int(step)}/retry", _job, again=False)


def delete(job_id: str) -> Call[None]:
    return Call("DELETE", path_of(job_id), lambda response: None, again=False)


def why(job_id: str) -> Call[Why]:
    return Call("GET", f"{path_of(job_id)}/why", lambda response: why_of(response.json()))


def events_of(job_id: str) -> str:
    return f"{path_of(job_id)}/events"


def path_of(job_id: str) -> str:
    return f"{JOBS}/{check_id(job_id)}"


def body_of(wanted: Submission) -> dict[str, Any]:
    """Only what was given: what is not is the gateway's to decide."""
    if not isinstance(wanted, Submission):
        raise InvalidInput(f"a job to submit is a Submission, not {type(wanted).__name__}")
    said = {each.name: getattr(wanted, each.name) for each in fields(wanted)}
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in said.items()
        if value is not None
    }


def json_of(value: Any) -> bytes:
    try:
        return to_json(value).encode()
    except NotJson as error:
        raise InvalidInput(f"what is submitted is not JSON: {error}") from None


def with_body(key: str | None) -> dict[str, str]:
    return {"Content-Type": "application/json", "Idempotency-Key": key or str(uuid4())}


def _submitted(response: httpx2.Response) -> Submitted:
    return submitted_of(response.json(), replayed="idempotent-replayed" in response.headers)


def _inferred(response: httpx2.Response) -> Inference | Submitted:
    return _submitted(response) if response.status_code == 202 else inference_of(response.json())


def _job(response: httpx2.Response) -> JobView:
    return job_of(response.json())
