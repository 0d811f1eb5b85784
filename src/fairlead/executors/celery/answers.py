"""What Celery says of a task, in our words: how it ended, or how far it is.

A `Meta` is what Celery's result backends keep of a task: `status`, `result`, and little else that matters here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from fairlead.domain.retry import BAD_RESULT, EXCEPTION, PERMANENT, RETRY_ASKED, TIMEOUT, WORKER_DIED, Failure
from fairlead.executors.failure import storable
from fairlead.executors.port import Call, Success
from fairlead.executors.result import encoded, enveloped, too_large

Meta = Mapping[str, Any]

ENDED = frozenset({"SUCCESS", "FAILURE", "REVOKED"})
STARTED = "STARTED"
_OWN_STATES = frozenset({"PENDING", "RECEIVED", STARTED, "RETRY", "REJECTED", "IGNORED"})

# By the module that the exception is of, or the part of it before the first dot, and its name.
_MEANING = {
    ("fairlead", "Permanent"): (PERMANENT, False),
    ("fairlead", "Retry"): (RETRY_ASKED, True),
    ("billiard", "WorkerLostError"): (WORKER_DIED, True),
    ("billiard", "TimeLimitExceeded"): (TIMEOUT, True),
    ("billiard", "SoftTimeLimitExceeded"): (TIMEOUT, True),
    ("celery", "NotRegistered"): (PERMANENT, False),
    ("kombu", "EncodeError"): (BAD_RESULT, False),
    ("builtins", "TimeoutError"): (TIMEOUT, True),
}


def outcome_of(meta: Meta, *, raw: bool, max_result: int) -> Success | Failure:
    """Of a task that has ended."""
    if meta["status"] == "REVOKED":
        return _revoked(_message(meta.get("result")))
    if meta["status"] == "FAILURE":
        return _failed(meta.get("result"))
    result = meta.get("result")
    if raw:
        return encoded(result, max_result)
    outcome = enveloped(result)
    if isinstance(outcome, Success) and len(outcome.data_json) > max_result:
        return too_large(len(outcome.data_json), max_result)
    return outcome


def tell_progress(call: Call, meta: Meta) -> None:
    """`update_state(state="PROGRESS", meta={"fraction": 0.3, "message": "..."})`; `current` and `total` do as well."""
    said = meta.get("result")
    if meta["status"] in _OWN_STATES or not isinstance(said, dict):
        return
    details = {name: value for name, value in said.items() if name not in ("fraction", "message", "self")}
    with contextlib.suppress(TypeError, ValueError):  # what a task tells of itself must not end it
        call.progress(_fraction(said), said.get("message"), **details)


def _fraction(said: Mapping[str, Any]) -> float | None:
    if "fraction" in said:
        return float(said["fraction"])
    if said.get("total") and "current" in said:
        return float(said["current"]) / float(said["total"])
    return None


def _failed(error: Any) -> Failure:
    if isinstance(error, BaseException):  # from backends that Celery itself reads
        error = {"exc_type": type(error).__name__, "exc_module": type(error).__module__, "exc_message": error.args}
    if not isinstance(error, dict):
        return Failure(EXCEPTION, storable(str(error)), retryable=True)
    name, module = str(error.get("exc_type", "Exception")), str(error.get("exc_module", ""))
    text = _message(error)
    code, retryable = _MEANING.get((module.partition(".")[0], name), (EXCEPTION, True))
    if name == "NotRegistered":
        return Failure(code, storable(f"no Celery worker knows the task {text}"), retryable)
    ours = module.partition(".")[0] == "fairlead"
    return Failure(code, storable(text if ours and text else f"{name}: {text}"), retryable)


def _revoked(reason: str) -> Failure:
    if "expired" in reason:
        return Failure(TIMEOUT, "the Celery task expired before a worker took it", retryable=True)
    return Failure(PERMANENT, storable(f"the Celery task was revoked: {reason or 'no reason given'}"), retryable=False)


def _message(error: Any) -> str:
    said = error.get("exc_message", "") if isinstance(error, dict) else error
    if isinstance(said, list | tuple):
        return ", ".join(str(part) for part in said)
    return "" if said is None else str(said)
