"""A handler's return value becomes the step's result, or the reason why it cannot be one."""

from __future__ import annotations

from typing import Any

from fairlead.domain.retry import BAD_RESULT, Failure
from fairlead.domain.wire import NotJson, to_json
from fairlead.executors.port import Success


def encoded(value: Any, max_result: int) -> Success | Failure:
    try:
        data = to_json(value)
    except NotJson as error:
        return bad(f"the result is not JSON-serialisable: {error}")
    if len(data) > max_result:
        return too_large(len(data), max_result)
    return Success(data)


def enveloped(answer: Any) -> Success | Failure:
    """What a service answers that was called with meta and payload."""
    if not isinstance(answer, dict) or "data" not in answer:
        return bad('the service\'s answer is not of the shape {"data": ..., "metrics": ...}')
    metrics = answer.get("metrics")
    try:
        return Success(to_json(answer["data"]), metrics if isinstance(metrics, dict) else None)
    except NotJson as error:
        return bad(f"the service's data cannot be kept: {error}")


def bad(message: str) -> Failure:
    return Failure(BAD_RESULT, message, retryable=False)


def too_large(size: int, max_result: int) -> Failure:
    return bad(
        f"the result is too large: {size} bytes, and worker.max_result allows {max_result}; "
        "store it elsewhere and return a reference"
    )
