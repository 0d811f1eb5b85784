"""Errors as `application/problem+json` (RFC 9457).

Programs compare `code`. `pointer` names the first invalid field, `errors` lists all invalid fields, and `request_id` is
also in the log line of the request. A 500 reveals nothing internal; the log has the exception.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from fairlead.errors import BudgetSpent, FairleadError, InvalidInput, NotFound, RequestError, Unavailable
from fairlead.gateway.fronts.fal import errors as fal_errors
from fairlead.gateway.fronts.openai.errors import is_front, openai_error

log = logging.getLogger("fairlead.gateway")

MEDIA_TYPE = "application/problem+json"
REQUEST_ID = "fairlead.request_id"
RATE_HEADERS = "fairlead.rate_headers"
MAX_DETAIL = 1000
MAX_ERRORS = 20
"""Maximum number of errors that one response lists."""


class BadJson(RequestError):
    code = "bad_json"
    status = 400


class Unauthorized(RequestError):
    code = "unauthorized"
    status = 401


class CrossSite(RequestError):
    code = "cross_site"
    status = 403


class Forbidden(RequestError):
    code = "forbidden"
    status = 403


class NoSuchRoute(NotFound):
    code = "no_such_route"


class MethodNotAllowed(RequestError):
    code = "method_not_allowed"
    status = 405

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class BodyTimeout(RequestError):
    code = "body_timeout"
    status = 408


class HeadTimeout(RequestError):
    code = "head_timeout"
    status = 408


class PreconditionFailed(RequestError):
    code = "precondition_failed"
    status = 412


class UrlTooLong(RequestError):
    code = "url_too_long"
    status = 414


class HeadTooLarge(RequestError):
    code = "head_too_large"
    status = 431


class UnsupportedMediaType(RequestError):
    code = "unsupported_media_type"
    status = 415


class RangeNotSatisfiable(RequestError):
    code = "range_not_satisfiable"
    status = 416

    def __init__(self, size: int) -> None:
        super().__init__(f"the file has {size} bytes, and the range begins after them", details={"size": size})
        self.content_range = f"bytes */{size}"


class WrongHost(RequestError):
    code = "wrong_host"
    status = 421


class RateLimited(RequestError):
    code = "rate_limited"
    status = 429

    def __init__(self, message: str, *, retry_after: float, headers: Mapping[str, str]) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.headers = dict(headers)


class InferenceFailed(RequestError):
    """The job behind `POST /inference` is FAILED."""

    code = "inference_failed"
    status = 502


class InferenceCancelled(RequestError):
    code = "inference_cancelled"
    status = 409


class ManyInvalid(InvalidInput):
    """One or more fields are invalid. The response lists the first `MAX_ERRORS` errors. Callers may stop after
    `MAX_ERRORS + 1` errors, which is enough for the message to say that there are more."""

    def __init__(self, errors: Sequence[RequestError]) -> None:
        first = errors[0]
        count = f"{len(errors)}" if len(errors) <= MAX_ERRORS else f"more than {MAX_ERRORS}"
        message = first.message if len(errors) == 1 else f"{count} errors; the first: {first.message}"
        super().__init__(message, pointer=first.pointer)
        self.errors = tuple(errors)


class Internal(FairleadError):
    """The error that clients receive for any unexpected exception."""

    code = "internal_error"


class NotReady(FairleadError):
    code = "not_ready"
    status = 503

    def __init__(self, checks: dict[str, str]) -> None:
        self.message = "; ".join(f"{part}: {result}" for part, result in checks.items() if result != "ok")
        super().__init__(self.message)
        self.checks = checks
        self.retry_after = 1.0


TITLES = {
    "bad_request": "The request is malformed",
    "bad_json": "The body is not JSON",
    "unauthorized": "A valid key is required",
    "forbidden": "The key does not allow this",
    "cross_site": "Requests from other sites are refused",
    "not_found": "Not found",
    "no_such_route": "No such route",
    "model_not_found": "No service serves this model",
    "method_not_allowed": "The route does not support this method",
    "body_timeout": "The body did not arrive in time",
    "head_timeout": "The request did not arrive in time",
    "url_too_long": "The URL is too long",
    "head_too_large": "The headers are too large",
    "wrong_state": "The current state does not allow this",
    "budget_spent": "A budget is spent",
    "precondition_failed": "A condition of the request is not met",
    "too_large": "The body is too large",
    "file_quota": "The files of this user keep too many bytes",
    "unsupported_media_type": "The media type of the body is not supported",
    "range_not_satisfiable": "The range is outside of the file",
    "wrong_host": "The Host header names another server",
    "invalid_input": "The request is invalid",
    "unknown_feature": "No pipeline or service has this name",
    "idempotency_mismatch": "The Idempotency-Key was used with another body",
    "inference_failed": "The model returned no result",
    "inference_cancelled": "The job was cancelled",
    "rate_limited": "The user submits too many jobs",
    "too_many_readers": "The output of the job has too many readers",
    "too_many_waiting": "The user has too many waiting jobs",
    "internal_error": "Internal error",
    "unavailable": "Temporarily unavailable",
    "not_ready": "Not ready",
}


def problem(error: BaseException, request_id: str | None) -> dict[str, Any]:
    """Return the `application/problem+json` body for an error."""
    known = error if isinstance(error, FairleadError) and error.code in TITLES else Internal("see the log")
    public = known.public if isinstance(known, Unavailable) else getattr(known, "message", None)
    message = public or f"see the log for request_id {request_id}"
    body: dict[str, Any] = {
        "type": f"urn:fairlead:problem:{known.code}",
        "title": TITLES[known.code],
        "status": known.status,
        "detail": message[:MAX_DETAIL],
        "code": known.code,
        "retryable": known.status in (429, 503),
        "request_id": request_id,
    }
    if isinstance(known, RequestError):
        _add_pointers(body, known)
    if isinstance(known, NotReady):
        body |= {"ready": False, "checks": known.checks}
    return body


def _add_pointers(body: dict[str, Any], error: RequestError) -> None:
    errors = error.errors if isinstance(error, ManyInvalid) else (error,)
    if error.pointer is not None:
        body["pointer"] = error.pointer
        body["errors"] = [
            {"pointer": each.pointer, "code": each.code, "detail": each.message[:MAX_DETAIL]}
            for each in errors[:MAX_ERRORS]
        ]
    if error.details:
        body["details"] = error.details


def problem_response(error: BaseException, scope: Scope) -> Response:
    request_id = scope.get(REQUEST_ID)
    body = problem(error, request_id)
    if isinstance(error, Unavailable) and error.public != error.message:
        log.info("request %s: %s", request_id, error.message)
    headers = dict(error.headers) if isinstance(error, RateLimited) else dict(scope.get(RATE_HEADERS, ()))
    retry_after = getattr(error, "retry_after", None)
    if retry_after is not None and body["retryable"]:
        headers["Retry-After"] = str(max(1, math.ceil(retry_after)))
    if isinstance(error, BudgetSpent):
        spent, app = error.details, scope["app"].state.fairlead
        headers |= budget_headers(spent["budget"], 0, spent["until"], app.now())
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = 'Bearer realm="fairlead"'
    if isinstance(error, MethodNotAllowed):
        headers["Allow"] = error.allow
    if isinstance(error, RangeNotSatisfiable):
        headers["Content-Range"] = error.content_range
    if body["status"] in (408, 413):
        # The rest of the body is not read, so the connection cannot be reused.
        headers["Connection"] = "close"
    if is_front(scope):
        status, answer = openai_error(body, headers)
        return Response(orjson.dumps(answer), status, headers, "application/json")
    if fal_errors.is_front(scope):
        return fal_errors.of_problem(body, headers)
    return Response(orjson.dumps(body, default=str), body["status"], headers, MEDIA_TYPE)


def budget_headers(budget: str, remaining: float, window_end: str, now: float) -> dict[str, str]:
    """The headers that show what is left of a budget, for accepted and for refused requests."""
    seconds = datetime.fromisoformat(window_end).timestamp() - now
    return {
        "X-Fairlead-Budget": budget,
        "X-Fairlead-Budget-Remaining": f"{remaining:.15g}",
        "X-Fairlead-Budget-Reset": str(max(0, math.ceil(seconds))),
    }


# ---------------------------------------------------------------- errors of FastAPI and Starlette


def of_http_exception(error: HTTPException, scope: Scope) -> RequestError:
    path = scope["path"][:200]
    if error.status_code == 404:
        return NoSuchRoute(f"there is no route {path!r}; GET /openapi.json lists them")
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        return MethodNotAllowed(f"{path!r} supports {allow}, not {scope['method']}", allow=allow)
    return RequestError(str(error.detail))


def of_validation(issues: Sequence[Any], *, skip: int = 0) -> ManyInvalid:
    """Convert pydantic's errors to one ManyInvalid. `skip` is the number of leading parts of an error's location that
    are not fields, such as "query" or "path"."""
    errors = []
    for issue in issues[: MAX_ERRORS + 1]:
        where = issue["loc"][skip:]
        text = issue["msg"].removeprefix("Input ").removeprefix("Value error, ")
        if issue["type"] == "extra_forbidden":
            text = "unknown field"
        elif issue["type"] == "missing":
            text = "is required"
        elif issue["type"] in ("model_type", "model_attributes_type"):
            text = "must be a JSON object"  # pydantic's message names our class
        text = f"{'.'.join(map(str, where))}: {text}" if where else text
        errors.append(InvalidInput(text, pointer=pointer(*where)))
    return ManyInvalid(errors)


def pointer(*parts: object) -> str:
    """Join the names and indices of a path to a JSON pointer (RFC 6901)."""
    return "".join(f"/{str(part)[:100].replace('~', '~0').replace('/', '~1')}" for part in parts)


async def handle_error(request: Request, error: Exception) -> Response:
    return problem_response(error, request.scope)


async def handle_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return problem_response(of_validation(error.errors(), skip=1), request.scope)
