"""Converts the error responses of a gateway to exceptions. Where the application has an exception for an error, for
example `JobFailed`, the client raises this exception too."""

from __future__ import annotations

from typing import Any

import httpx2

from fairlead import errors
from fairlead.errors import FairleadError, JobCancelled, JobFailed, RequestError, TooManyWaiting, Unavailable


class Unauthorized(RequestError):
    """The key is missing, wrong or revoked."""

    code = "unauthorized"
    status = 401


class Forbidden(RequestError):
    """The role of the key does not allow the request."""

    code = "forbidden"
    status = 403


class TooManyRequests(RequestError):
    """The user submits too fast; retry after `retry_after` seconds."""

    code = "rate_limited"
    status = 429

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NoConnection(Unavailable):
    """The gateway could not be reached, or did not answer."""

    code = "no_connection"


class NotAGateway(FairleadError):
    """The response is not from a Fairlead gateway: the URL is wrong, or a proxy answered."""

    code = "not_a_gateway"


_BY_CODE: dict[str, type[RequestError]] = {
    kind.code: kind
    for kind in (
        errors.InvalidInput,
        errors.UnknownFeature,
        errors.IdempotencyMismatch,
        errors.NotFound,
        errors.WrongState,
        errors.TooLarge,
        errors.FileQuota,
        errors.BudgetSpent,
        Unauthorized,
        Forbidden,
    )
}
_BY_STATUS: dict[int, type[RequestError]] = {
    401: Unauthorized,
    402: errors.BudgetSpent,
    403: Forbidden,
    404: errors.NotFound,
    409: errors.WrongState,
    413: errors.TooLarge,
    422: errors.InvalidInput,
}


def of_response(response: httpx2.Response) -> FairleadError:
    """Return the exception for an error response (`application/problem+json`). The body of the response is in the
    exception's `problem`."""
    try:
        problem: dict[str, Any] = response.json()
        message = str(problem.get("detail") or problem["title"])
        code = str(problem.get("code", ""))
    except (ValueError, AttributeError, KeyError, TypeError):
        return not_a_gateway(response)
    error = _of_problem(response, problem, message, code)
    error.problem = problem
    if code and code != error.code:
        error.code = code  # type: ignore[misc]  # more specific than the class, such as cross_site
    return error


def _of_problem(response: httpx2.Response, problem: dict[str, Any], message: str, code: str) -> FairleadError:
    status, wait = response.status_code, retry_after(response)
    if status == 429:
        busy = TooManyWaiting if code == TooManyWaiting.code else TooManyRequests
        return busy(message, retry_after=wait or 1.0)
    if code == "inference_failed":
        job = problem.get("details", {})
        why = dict(job.get("error") or {})
        return JobFailed(message, job_id=str(job.get("job_id", "")), error=why, retryable=bool(job.get("retryable")))
    if code == "inference_cancelled":
        return JobCancelled(message, job_id=str(problem.get("details", {}).get("job_id", "")))
    if status >= 500:
        return Unavailable(message, retry_after=wait or 1.0)
    codes = {each.get("code") for each in problem.get("errors") or () if isinstance(each, dict)}
    if len(codes) == 1:
        code = str(codes.pop())  # all fields, or all items of a bulk request, have the same error
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, RequestError)
    details: dict[str, Any] = {name: problem[name] for name in ("errors", "request_id") if name in problem}
    return kind(message, pointer=problem.get("pointer"), details={**details, **problem.get("details", {})})


def not_a_gateway(response: httpx2.Response) -> NotAGateway:
    request = response.request
    outcome = f"{request.method} {request.url.path} returned {response.status_code}"
    return NotAGateway(f"{outcome}, which is not a response of a Fairlead gateway; check the URL")


def retry_after(response: httpx2.Response) -> float | None:
    """Return the seconds of the `Retry-After` header, or None if the header is absent or not a number."""
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return None
