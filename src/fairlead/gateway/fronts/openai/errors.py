"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`. OpenAI's clients choose the exception by
the status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.types import Scope

PREFIX = "/v1/"
SHOULD_RETRY = "x-should-retry"
"""The clients obey this header of a response, whatever its status is."""
NO_QUOTA = "insufficient_quota"
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_TIMEOUTS = frozenset({"TIMEOUT", "RESOURCE_EXHAUSTED", "DEADLINE_PASSED"})
_NO_ANSWER = frozenset({"CONNECTION", "TIMEOUT"})
_OF_THE_MODEL = frozenset({"PERMANENT", "EXCEPTION", "RETRY_ASKED", "WORKER_DIED"})


def is_front(scope: Scope) -> bool:
    """Whether a request is one to this front, also if no route matches its path."""
    return scope.get("type") == "http" and path_of(scope).startswith(PREFIX)


def path_of(scope: Scope) -> str:
    """The path of a request, without the prefix that a proxy in front of the gateway may add."""
    path: str = scope.get("path", "")
    return path.removeprefix(scope.get("root_path", ""))


def openai_error(problem: Mapping[str, Any], headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
    """Convert an `application/problem+json` body. Returns the status and the body, and adds to the headers. For a spent
    budget, OpenAI itself answers 429, which its clients would repeat."""
    if problem["code"] == "budget_spent":
        headers[SHOULD_RETRY] = "false"
        return 429, {"error": {"message": problem["detail"], "type": NO_QUOTA, "param": None, "code": NO_QUOTA}}
    pointer = problem.get("pointer") or ""
    status = problem["status"]
    return status, error_of(problem["detail"], status, problem["code"], pointer.removeprefix("/") or None)


def error_of(message: str, status: int, code: str | None, param: str | None = None) -> dict[str, Any]:
    kind = _TYPES.get(status) or ("server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def of_failed_job(error: Mapping[str, Any] | None) -> tuple[int, dict[str, Any]]:
    """The status and the body for a job that failed with this error."""
    error = error or {}
    code = str(error.get("code", "unknown"))
    status = error.get("http_status")
    if not isinstance(status, int) or not 429 <= status < 600:
        status = 504 if code in _TIMEOUTS else 500 if code in _OF_THE_MODEL else 502
    return status, error_of(str(error.get("message", "the job failed")), status, code.lower())


def is_unreachable(error: Mapping[str, Any] | None) -> bool:
    """Whether a job failed with this error because the upstream did not answer."""
    return error is not None and (error.get("code") in _NO_ANSWER or error.get("http_status") in (502, 504))


def of_cancelled_job(job_id: str) -> tuple[int, dict[str, Any]]:
    return 409, error_of(f"job {job_id} was cancelled", 409, "cancelled")
