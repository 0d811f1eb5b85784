"""Errors in fal's shape: `{"detail": ..., "error_type": ...}`, where the detail of a 422 is a list of fields.

fal's clients decide by the status whether to send a request again: the Python client after 408, 409 and 429, the
JavaScript client after 429, 502, 503 and 504. So what is temporary is a 429, and what is final has none of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Scope

from fairlead.domain import retry
from fairlead.domain.waiting_timers import START_TIMEOUT
from fairlead.gateway.fronts.openai.errors import path_of

PREFIX = "/fal/"
REQUEST_ID = "x-fal-request-id"
ERROR_TYPE = "x-fal-error-type"
TIMEOUT_TYPE = "x-fal-request-timeout-type"
RETRIED = 429
"""The only status after which both clients send a request again."""
_STATUSES = {409: 400, 503: RETRIED}
PASSED_ON = frozenset({400, 413, 415, 422})
"""The statuses of an endpoint that concern the input. All others are errors of the endpoint."""
STARTUP_TIMEOUT, CANCELLED, SERVER_ERROR = "startup_timeout", "cancelled", "runner_server_error"
_TYPES = {
    retry.TIMEOUT: "request_timeout",
    retry.DEADLINE_PASSED: "request_timeout",
    retry.RESOURCE_EXHAUSTED: "runner_scheduling_failure",
    retry.WORKER_DIED: "runner_disconnected",
    retry.CONNECTION: "runner_connection_error",
    retry.PERMANENT: "value_error",
}


def is_front(scope: Scope) -> bool:
    """Whether a request is one to this front, also if no route matches its path."""
    return scope.get("type") == "http" and path_of(scope).startswith(PREFIX)


def of_problem(problem: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
    """Convert an `application/problem+json` body to a response of this front."""
    status, code, text = problem["status"], problem["code"], problem["detail"]
    detail: Any = text
    if status == 422:
        errors = problem.get("errors") or [{"pointer": problem.get("pointer"), "code": code, "detail": text}]
        detail = [field_error(each.get("pointer"), each["detail"], each["code"]) for each in errors]
    named = {REQUEST_ID: problem.get("request_id") or "", **headers}
    return response_of(_STATUSES.get(status, status), detail, code, named, message=text)


def field_error(pointer: str | None, message: str, kind: str) -> dict[str, Any]:
    """An error of one field. A JSON pointer names the field of a job, whose input is the body of the request."""
    parts = [part for part in (pointer or "").split("/") if part]
    return {"loc": ["body", *(parts[1:] if parts[:1] == ["input_data"] else parts)], "msg": message, "type": kind}


def response_of(
    status: int, detail: Any, kind: str, headers: Mapping[str, str], *, message: str | None = None
) -> Response:
    body = {"detail": detail, "message": message if message is not None else str(detail), "error_type": kind}
    return Response(orjson.dumps(body), status, {**headers, ERROR_TYPE: kind}, "application/json")


def of_error(error: Mapping[str, Any] | None) -> tuple[int, str, str]:
    """The status, the text and the type for a job that failed with this error."""
    error = error or {}
    code, text = str(error.get("code", "")), str(error.get("message", "the request failed"))
    http_status = error.get("http_status")
    if START_TIMEOUT in error:
        return 504, text, STARTUP_TIMEOUT
    if code == retry.PERMANENT or http_status == 422:
        return 422, text, "value_error"
    if isinstance(http_status, int) and http_status in PASSED_ON:
        return http_status, text, "bad_request"
    return 500, text, _TYPES.get(code, SERVER_ERROR)


def of_failed_job(error: Mapping[str, Any] | None, headers: Mapping[str, str]) -> Response:
    status, text, kind = of_error(error)
    detail: Any = [field_error(None, text, kind)] if status == 422 else text
    if kind == STARTUP_TIMEOUT:
        headers = {**headers, TIMEOUT_TYPE: "user"}
    return response_of(status, detail, kind, headers, message=text)
