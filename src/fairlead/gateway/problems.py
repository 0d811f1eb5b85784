"""Every error as `application/problem+json` (RFC 9457).

`code` is what programs compare, `pointer` names the offending field, `errors` lists all of them when there are several,
and `request_id` is what the log line of this request carries. A 500 says nothing about our insides; the log does.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from fairlead.errors import FairleadError, InvalidInput, NotFound, RequestError, Unavailable

log = logging.getLogger("fairlead.gateway")

MEDIA_TYPE = "application/problem+json"
REQUEST_ID = "fairlead.request_id"
RATE_HEADERS = "fairlead.rate_headers"
LONGEST_DETAIL = 1000


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


class UnsupportedMediaType(RequestError):
    code = "unsupported_media_type"
    status = 415


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
    """The model was asked and did not answer: the job behind `POST /inference` is FAILED."""

    code = "inference_failed"
    status = 502


class InferenceCancelled(RequestError):
    code = "inference_cancelled"
    status = 409


class ManyInvalid(InvalidInput):
    """Several fields are wrong, and all of them are told at once."""

    def __init__(self, found: Sequence[RequestError]) -> None:
        first = found[0]
        message = first.message if len(found) == 1 else f"{len(found)} errors; the first: {first.message}"
        super().__init__(message, pointer=first.pointer)
        self.found = tuple(found)


class Internal(FairleadError):
    """What any unexpected exception looks like from outside."""

    code = "internal_error"


class NotReady(FairleadError):
    code = "not_ready"
    status = 503

    def __init__(self, checks: dict[str, str]) -> None:
        self.message = "; ".join(f"{part}: {said}" for part, said in checks.items() if said != "ok")
        super().__init__(self.message)
        self.checks = checks
        self.retry_after = 1.0


TITLES = {
    "bad_request": "The request cannot be understood",
    "bad_json": "The body is not JSON",
    "unauthorized": "A key is needed",
    "forbidden": "This key may not do that",
    "cross_site": "Refused: the request comes from another site",
    "not_found": "There is nothing of that name",
    "no_such_route": "There is no such route",
    "method_not_allowed": "This route does not know the method",
    "body_timeout": "The body did not come",
    "wrong_state": "The job's state does not allow it",
    "too_large": "The body is too large",
    "unsupported_media_type": "The body is of another type than is taken here",
    "wrong_host": "This server is not that host",
    "invalid_input": "The request is not valid",
    "unknown_feature": "No pipeline or service has this name",
    "idempotency_mismatch": "The Idempotency-Key was used with another body",
    "inference_failed": "The model gave no result",
    "inference_cancelled": "The job was cancelled",
    "rate_limited": "This user submits too fast",
    "too_many_waiting": "This user has too many jobs waiting",
    "internal_error": "Something went wrong on our side",
    "unavailable": "Not now: try again",
    "not_ready": "Not ready",
}


def problem(error: BaseException, request_id: str | None) -> dict[str, Any]:
    """The body of the answer."""
    known = error if isinstance(error, FairleadError) and error.code in TITLES else Internal("see the log")
    said = known.public if isinstance(known, Unavailable) else getattr(known, "message", None)
    message = said or f"the log has the cause, under request_id {request_id}"
    body: dict[str, Any] = {
        "type": f"urn:fairlead:problem:{known.code}",
        "title": TITLES[known.code],
        "status": known.status,
        "detail": message[:LONGEST_DETAIL],
        "code": known.code,
        "retryable": known.status in (429, 503),
        "request_id": request_id,
    }
    if isinstance(known, RequestError):
        _add_where(body, known)
    if isinstance(known, NotReady):
        body |= {"ready": False, "checks": known.checks}
    return body


def _add_where(body: dict[str, Any], error: RequestError) -> None:
    found = error.found if isinstance(error, ManyInvalid) else (error,)
    if error.pointer is not None:
        body["pointer"] = error.pointer
        body["errors"] = [
            {"pointer": each.pointer, "code": each.code, "detail": each.message[:LONGEST_DETAIL]} for each in found
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
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = 'Bearer realm="fairlead"'
    if isinstance(error, MethodNotAllowed):
        headers["Allow"] = error.allow
    if body["status"] in (408, 413):
        # The rest of the body is not read; a connection in the middle of one cannot be used again.
        headers["Connection"] = "close"
    return Response(orjson.dumps(body, default=str), body["status"], headers, MEDIA_TYPE)


# ---------------------------------------------------------------- what FastAPI and Starlette raise


def of_http_exception(error: HTTPException, scope: Scope) -> RequestError:
    path = scope["path"][:200]
    if error.status_code == 404:
        return NoSuchRoute(f"there is no route {path!r}; GET /openapi.json lists them")
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        return MethodNotAllowed(f"{path!r} knows {allow}, not {scope['method']}", allow=allow)
    return RequestError(str(error.detail))


def of_validation(issues: Sequence[Any], *, skip: int = 0) -> ManyInvalid:
    """pydantic's findings; `skip` drops the first parts of a location ("query", "path"), which are no fields."""
    found = []
    for issue in issues:
        where = issue["loc"][skip:]
        text = issue["msg"].removeprefix("Input ").removeprefix("Value error, ")
        if issue["type"] == "extra_forbidden":
            text = "is not known here"
        elif issue["type"] in ("model_type", "model_attributes_type"):
            text = "must be a JSON object"  # pydantic's own words name our class
        text = f"{'.'.join(map(str, where))}: {text}" if where else text
        found.append(InvalidInput(text, pointer=pointer(*where)))
    return ManyInvalid(found)


def pointer(*parts: object) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join(f"/{str(part)[:100].replace('~', '~0').replace('/', '~1')}" for part in parts)


async def handle_error(request: Request, error: Exception) -> Response:
    return problem_response(error, request.scope)


async def handle_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return problem_response(of_validation(error.errors(), skip=1), request.scope)
