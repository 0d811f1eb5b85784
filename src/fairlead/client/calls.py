"""Builds the requests of both clients and parses the responses. The clients send the requests; nothing in this module
does I/O."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Generic, TypedDict, TypeVar

import httpx2
from uuid_utils import uuid4

from fairlead.client.errors import not_a_gateway
from fairlead.client.shapes import Inference, JobPage, Submitted, inference_of, job_of, page_of, submitted_of, why_of
from fairlead.domain.job import JobStatus
from fairlead.domain.json_codec import NotJson, to_json
from fairlead.domain.submission import Submission
from fairlead.domain.trace_context import TraceContext, headers_of
from fairlead.domain.validation import check_id
from fairlead.domain.views import JobView, RetriedJob, Why, retried
from fairlead.errors import InvalidInput, WrongState

JOBS = "/api/v1/jobs"
USAGE = "/api/v1/usage"
JSON = {"Content-Type": "application/json"}
LONGEST_WAIT = 30
"""Maximum number of seconds that one request waits for the end of a job, because proxies cut off long requests."""

T = TypeVar("T")


class UsageOptions(TypedDict, total=False):
    """The calls that `usage` sums up, and the interval of its rows."""

    interval: str
    start: datetime | str | None
    end: datetime | str | None
    user: str
    plan: str
    group: str
    feature: str
    service: str
    model: str
    region: str
    outcome: str


@dataclass(frozen=True, slots=True)
class ApiCall(Generic[T]):
    """One request, and the function that parses its response (`read`).

    `again` is true if it is safe to repeat the request although the gateway may already have processed it. If a
    repeated request is refused because the job is in the status `if_late`, an earlier attempt has succeeded, and only
    its response was lost. The client then sends `instead` to get the response.
    """

    method: str
    path: str
    read: Callable[[httpx2.Response], T]
    again: bool = True
    params: Mapping[str, Any] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    if_late: JobStatus | None = None
    instead: ApiCall[T] | None = None

    def already_done(self, error: Exception) -> bool:
        """Return whether the gateway refused a repeated request because an earlier attempt succeeded. See `if_late`."""
        return (
            self.if_late is not None
            and isinstance(error, WrongState)
            and error.details.get("status") == self.if_late.value
        )


def parsed(call: ApiCall[T], response: httpx2.Response) -> T:
    """Parse the response to a call. Raises NotAGateway if it cannot be parsed."""
    try:
        return call.read(response)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise not_a_gateway(response) from None


def submit(submission: Submission, key: str | None) -> ApiCall[Submitted]:
    return ApiCall("POST", JOBS, _submitted, body=json_of(body_of(submission)), headers=with_body(key))


def submit_many(submissions: Sequence[Submission], key: str | None) -> ApiCall[list[Submitted]]:
    def read(response: httpx2.Response) -> list[Submitted]:
        replayed = "idempotent-replayed" in response.headers
        jobs = response.json()["jobs"]
        if len(jobs) != len(submissions):
            raise ValueError("the response must have one entry per job")
        return [submitted_of(job, replayed=replayed) for job in jobs]

    body = json_of({"jobs": [*map(body_of, submissions)]})
    return ApiCall("POST", f"{JOBS}/bulk", read, body=body, headers=with_body(key))


def infer(model: str, options: Mapping[str, Any], timeout: float, key: str | None) -> ApiCall[Inference | Submitted]:
    """Build the call of a model. Its result is an `Inference`, or a `Submitted` if the job has not ended within the
    timeout, which is at most `LONGEST_WAIT` for one request."""
    fields = {name: value for name, value in options.items() if value is not None}
    body = json_of({"model": model, **fields, "timeout": min(timeout, LONGEST_WAIT)})
    return ApiCall("POST", "/inference", _inferred, body=body, headers=with_body(key))


def get(job_id: str, wait: int | None = None) -> ApiCall[JobView]:
    headers = {} if wait is None else {"Prefer": f"wait={wait}"}
    return ApiCall("GET", path_of(job_id), _job, headers=headers)


def list_jobs(**filters: Any) -> ApiCall[JobPage]:
    params = {name: str(value) for name, value in filters.items() if value is not None}
    return ApiCall("GET", JOBS, lambda response: page_of(response.json()), params=params)


def cancel(job_id: str) -> ApiCall[JobView]:
    return ApiCall("POST", f"{path_of(job_id)}/cancel", _job, if_late=JobStatus.CANCELLED, instead=get(job_id))


def resume(job_id: str) -> ApiCall[JobView]:
    return ApiCall("POST", f"{path_of(job_id)}/resume", _job, again=False)


def retry(job_id: str, *, from_start: bool) -> ApiCall[RetriedJob]:
    body = json_of({"from": "start" if from_start else "step"})
    return ApiCall("POST", f"{path_of(job_id)}/retry", _retried, again=False, body=body, headers=JSON)


def retry_step(job_id: str, step: int) -> ApiCall[JobView]:
    return ApiCall("POST", f"{path_of(job_id)}/steps/{int(step)}/retry", _job, again=False)


def delete(job_id: str) -> ApiCall[None]:
    return ApiCall("DELETE", path_of(job_id), lambda response: None, again=False)


def why(job_id: str) -> ApiCall[Why]:
    return ApiCall("GET", f"{path_of(job_id)}/why", lambda response: why_of(response.json()))


def usage(params: Mapping[str, str], cursor: str | None) -> ApiCall[dict[str, Any]]:
    """Build the request for one page of usage. `params` are the parameters of the route."""
    more = {} if cursor is None else {"cursor": cursor}
    return ApiCall("GET", USAGE, lambda response: dict(response.json()), params={**params, **more})


def budgets(user_id: str | None, budget: str | None) -> ApiCall[list[dict[str, Any]]]:
    params = {name: value for name, value in (("user_id", user_id), ("budget", budget)) if value is not None}
    return ApiCall("GET", "/api/v1/budgets", lambda response: list(response.json()["data"]), params=params)


def usage_params(group_by: str | Sequence[str], asked: UsageOptions) -> dict[str, str]:
    fields: dict[str, Any] = {**asked, "group_by": group_by if isinstance(group_by, str) else ",".join(group_by)}
    fields |= {"from": _time(fields.pop("start", None)), "to": _time(fields.pop("end", None))}
    return {name: value for name, value in fields.items() if value}


def _time(value: datetime | str | None) -> str | None:
    return value.isoformat() if isinstance(value, datetime) else value


def raw(method: str, path: str, json: Any, content: bytes | None, **request: Any) -> ApiCall[Any]:
    """Build any request. The result of the call is the JSON of the response, unchanged."""
    headers = dict(request.pop("headers", None) or {})
    if json is not None:
        content, headers = json_of(json), {"Content-Type": "application/json", **headers}
    again = method == "GET" or "Idempotency-Key" in headers or "Upload-Offset" in headers
    return ApiCall(method, path, _json, again=again, params=request["params"] or {}, body=content, headers=headers)


def events_of(job_id: str) -> str:
    return f"{path_of(job_id)}/events"


def path_of(job_id: str) -> str:
    return f"{JOBS}/{check_id(job_id)}"


def body_of(submission: Submission) -> dict[str, Any]:
    """Return the fields of a submission that are set. The gateway uses its defaults for the others."""
    if not isinstance(submission, Submission):
        raise InvalidInput(f"a job to submit is a Submission, not {type(submission).__name__}")
    values = {each.name: getattr(submission, each.name) for each in fields(submission)}
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in values.items()
        if value is not None
    }


def json_of(value: Any) -> bytes:
    try:
        return to_json(value).encode()
    except NotJson as error:
        raise InvalidInput(f"the request is not JSON-serialisable: {error}") from None


def with_body(key: str | None) -> dict[str, str]:
    return {"Content-Type": "application/json", "Idempotency-Key": key or str(uuid4()), **_current_trace()}


def _current_trace() -> dict[str, str]:
    """The headers that make the job part of the caller's trace. Empty if the caller does not use OpenTelemetry, or if
    no span is current."""
    otel = sys.modules.get("opentelemetry.trace")
    context = None if otel is None else otel.get_current_span().get_span_context()
    if context is None or not context.is_valid:
        return {}
    found = TraceContext(
        f"{context.trace_id:032x}", f"{context.span_id:016x}", int(context.trace_flags), context.trace_state.to_header()
    )
    return headers_of(str(found))


def _submitted(response: httpx2.Response) -> Submitted:
    return submitted_of(response.json(), replayed="idempotent-replayed" in response.headers)


def _inferred(response: httpx2.Response) -> Inference | Submitted:
    return _submitted(response) if response.status_code == 202 else inference_of(response.json())


def _json(response: httpx2.Response) -> Any:
    return response.json() if response.content else None


def _retried(response: httpx2.Response) -> RetriedJob:
    body = response.json()
    return retried(job_of(body), body.get("warning"))


def _job(response: httpx2.Response) -> JobView:
    return job_of(response.json())
