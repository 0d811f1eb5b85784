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


def bad(message: str) -> Failure:
    return Failure(BAD_RESULT, message, retryable=False)


def too_large(size: int, max_result: int) -> Failure:
    return bad(
        f"the result is too large: {size} bytes, and worker.max_result allows {max_result}; "
        "store it elsewhere and return a reference"
    )
