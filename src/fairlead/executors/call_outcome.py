"""Converts what a handler returns or raises to the outcome of its call: a result that can be stored, or a failure."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.domain.json_codec import NotJson, to_json
from fairlead.domain.redaction import redacted
from fairlead.domain.retry import BAD_RESULT, EXCEPTION, PERMANENT, RETRY_ASKED, TIMEOUT, Failure
from fairlead.domain.usage import Usage, reported
from fairlead.errors import Permanent, Retry
from fairlead.executors.port import Call, CallOutput, OutputTooLarge, Success

LONGEST = 2000
MOST_FRAMES = 30
"""A traceback shows at most this many frames of each exception, the innermost ones."""
LONGEST_TRACEBACK = 15_000
LONGEST_CUT = 25
"""Half of the longest line that replaces the middle of a traceback."""
_OWN_FRAMES = str(Path(__file__).parent)


def failure_of(error: BaseException) -> Failure:
    """Convert an exception to a failure. The failure is retryable unless the exception is `Permanent`."""
    trace = traceback_of(error)
    match error:
        case Permanent():
            return Failure(PERMANENT, message_of(error), retryable=False, traceback=trace)
        case Retry():
            return Failure(RETRY_ASKED, message_of(error), retryable=True, retry_after=error.after, traceback=trace)
        case OutputTooLarge():
            return too_large(error.size, error.limit, error.setting)
        case TimeoutError():
            return Failure(TIMEOUT, message_of(error), retryable=True, traceback=trace)
        case _:
            text = f"{type(error).__name__}: {message_of(error)}"
            return Failure(EXCEPTION, text, retryable=True, traceback=trace)


def traceback_of(error: BaseException) -> str | None:
    """The traceback of an exception as text, without local variables and without Fairlead's own frames above the
    handler. None if the traceback has no frame of the handler, or cannot be formatted."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN_FRAMES):
        trace = trace.tb_next
    if trace is None:
        return None
    try:
        lines = traceback.format_exception(type(error), error, trace, limit=-MOST_FRAMES)
    except Exception:  # the exception's own __str__, or reading its source, may fail
        return None
    return shortened("".join(lines).rstrip())


def shortened(trace: str) -> str:
    """Shorten a long traceback by cutting out its middle. Both ends are kept, because the exception itself is at the
    bottom and its first cause at the top."""
    # Redact first: half a URL would not be recognised.
    trace = redacted(trace.encode("utf-8", "replace").decode())  # lone surrogates cannot be stored
    if len(trace) <= LONGEST_TRACEBACK:
        return trace
    half = LONGEST_TRACEBACK // 2 - LONGEST_CUT
    return f"{trace[:half]}\n[... {len(trace) - 2 * half} characters ...]\n{trace[-half:]}"


def message_of(error: BaseException) -> str:
    try:
        return storable(str(error)) or type(error).__name__
    except Exception:  # the exception's own __str__ may fail
        return type(error).__name__


def storable(text: str) -> str:
    """Make a text storable as JSON: replace lone surrogates, and cut the text off if it is too long. Credentials in
    URLs are removed first, because half a URL would not be recognised."""
    return redacted(text[: 4 * LONGEST])[:LONGEST].encode("utf-8", "replace").decode()


def concluded(value: Any, call: Call, max_result: int) -> Success | Failure:
    """The outcome of a call that returned `value`. If the call has an output, that is the result in place of None."""
    return encoded(value, max_result) if call.output is None else with_output(call.output, encoded(value, max_result))


def with_output(output: CallOutput, outcome: Success | Failure) -> Success | Failure:
    """The outcome of a call with this output."""
    output.closed = True
    if output.error is not None:
        return failure_of(output.error)
    if isinstance(outcome, Success) and outcome.data_json == "null":
        return Success(output.result_json(), outcome.metrics, outcome.usage)
    return outcome


def encoded(value: Any, max_result: int) -> Success | Failure:
    try:
        data = to_json(value)
    except NotJson as error:
        return bad(f"the result is not JSON-serialisable: {error}")
    if len(data) > max_result:
        return too_large(len(data), max_result)
    return Success(data)


def enveloped(response: Any) -> Success | Failure:
    """Read the result from a response of the form `{"data": ..., "metrics": ...}`. Services that receive meta and
    payload respond in this form."""
    if not isinstance(response, dict) or "data" not in response:
        return bad('the service\'s response does not have the form {"data": ..., "metrics": ...}')
    metrics = response.get("metrics")
    if not isinstance(metrics, dict):
        metrics = None
    try:
        data = to_json(response["data"])
    except NotJson as error:
        return bad(f"the service's data cannot be stored: {error}")
    try:
        to_json(metrics)
    except NotJson as error:
        return bad(f"the service's metrics cannot be stored: {error}")
    return Success(data, metrics, _usage_in(response, metrics))


def _usage_in(response: Mapping[str, Any], metrics: Mapping[str, Any] | None) -> Usage | None:
    """The usage that a service reports in its metrics or beside them."""
    in_metrics = None if metrics is None else metrics.get("usage")
    return reported(response.get("usage") if in_metrics is None else in_metrics, model=response.get("model"))


def usage_in(answer: Any) -> Usage | None:
    """The usage that an answer without an envelope reports: its field `usage`."""
    return reported(answer.get("usage"), model=answer.get("model")) if isinstance(answer, dict) else None


def bad(message: str) -> Failure:
    return Failure(BAD_RESULT, message, retryable=False)


def too_large(size: int, most: int, setting: str = "worker.max_result") -> Failure:
    return bad(
        f"the result is too large: {size} bytes, and {setting} allows {most}; store it elsewhere and return a reference"
    )
