"""What a gateway's refusal is in Python: the class that the application itself would raise, where there is one."""

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
    """The key's role does not allow it."""

    code = "forbidden"
    status = 403


class TooManyRequests(RequestError):
    """This user submits too fast; `retry_after` says when to come again, in seconds."""

    code = "rate_limited"
    status = 429

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NoConnection(Unavailable):
    """The gateway could not be reached, or did not answer."""

    code = "no_connection"


class NotAGateway(FairleadError):
    """Somebody answered, but it was no Fairlead gateway: the URL is wrong, or a proxy speaks for it."""

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
        Unauthorized,
        Forbidden,
    )
}
_BY_STATUS: dict[int, type[RequestError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: errors.NotFound,
    409: errors.WrongState,
    413: errors.TooLarge,
    422: errors.InvalidInput,
}


def of_response(response: httpx2.Response) -> FairleadError:
    """The error that this answer of `application/problem+json` tells of."""
    try:
        problem: dict[str, Any] = response.json()
        message = str(problem.get("detail") or problem["title"])
        code = str(problem.get("code", ""))
    except (ValueError, AttributeError, KeyError, TypeError):
        return not_a_gateway(response)
    status, wait = response.status_code, retry_after(response)
    if status == 429:
        busy = TooManyWaiting if code == TooManyWaiting.code else TooManyRequests
        return busy(message, retry_after=wait or 1.0)
    if code == "inference_failed":
        said = problem.get("details", {})
        why = dict(said.get("error") or {})
        return JobFailed(message, job_id=str(said.get("job_id", "")), error=why, retryable=bool(said.get("retryable")))
    if code == "inference_cancelled":
        return JobCancelled(message, job_id=str(problem.get("details", {}).get("job_id", "")))
    if status >= 500:
        return Unavailable(message, retry_after=wait or 1.0)
    codes = {each.get("code") for each in problem.get("errors") or () if isinstance(each, dict)}
    if len(codes) == 1:
        code = str(codes.pop())  # all fields, or all items of a bulk, are wrong in the same way
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, RequestError)
    details: dict[str, Any] = {name: problem[name] for name in ("errors", "request_id") if name in problem}
    error = kind(message, pointer=problem.get("pointer"), details={**details, **problem.get("details", {})})
    if code:
        error.code = code  # type: ignore[misc]  # finer than the class, such as cross_site
    return error


def not_a_gateway(response: httpx2.Response) -> NotAGateway:
    request = response.request
    said = f"{request.method} {request.url.path} was answered with {response.status_code}"
    return NotAGateway(f"{said}, which is no answer of a Fairlead gateway; is the URL right?")


def retry_after(response: httpx2.Response) -> float | None:
    """The header, if it is a number of seconds."""
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return None
