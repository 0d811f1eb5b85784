"""The lines of a file batch: the requests of its input file, and the results in its output files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from fairlead.domain.batch import REMOVED, ItemView
from fairlead.domain.file_batch import FileBatch, FileBatchStatus
from fairlead.domain.job import JobStatus, Priority
from fairlead.domain.json_codec import NotJson, from_upstream
from fairlead.domain.openai import FrontAnswer, FrontRequest, priority_of
from fairlead.domain.retry import DEADLINE_PASSED

MAX_CUSTOM_ID = 255
TIERS = frozenset({"auto", "default", "flex", "scale", "priority", "fast"})
_JSON = "application/json"
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 19
EXPIRED, CANCELLED = "batch_expired", "batch_cancelled"
_MESSAGES = {
    EXPIRED: "This request could not be executed before the completion window expired.",
    CANCELLED: "The batch was cancelled before this request was executed.",
}


class BadLine(Exception):
    """A line of the input file is not a request of its batch. `code` and `param` are for programs."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class LineRequest:
    """A request of the input file. `body` is its body as JSON."""

    custom_id: str
    model: str
    priority: str
    body: bytes

    def as_input(self, endpoint: str) -> dict[str, Any]:
        """The input of its job."""
        return FrontRequest(endpoint.removeprefix("/v1/"), _JSON, self.body).as_input()


def request_of(text: bytes, endpoint: str) -> LineRequest:
    """Decode a line of the input file. Raises BadLine."""
    value, body_text = _decoded(text)
    custom_id = value.get("custom_id")
    if custom_id is None:
        raise BadLine("missing_required_parameter", "custom_id is missing", "custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID or "\0" in custom_id:
        raise BadLine("invalid_custom_id", f"custom_id must be text of 1 to {MAX_CUSTOM_ID} characters", "custom_id")
    if value.get("method") != "POST":
        raise BadLine("invalid_method", 'method must be "POST"', "method")
    if value.get("url") != endpoint:
        raise BadLine("url_mismatch", f"url must be the endpoint of the batch, {endpoint}", "url")
    body = value.get("body")
    if not isinstance(body, dict):
        raise BadLine("missing_required_parameter", "body must be a JSON object", "body")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise BadLine("missing_required_parameter", "body.model is missing", "body.model")
    for name in ("stream", "background"):
        if body.get(name):
            raise BadLine("unsupported_parameter", f"{name} must not be set in a batch", f"body.{name}")
    return LineRequest(custom_id, model, _priority(body.get("service_tier")), body_text)


def _decoded(text: bytes) -> tuple[dict[str, Any], bytes]:
    """The line as an object, and its body as JSON. Integers may have many digits; orjson, which is the stricter parser,
    would round them."""
    try:
        value = orjson.loads(text)
    except ValueError:
        raise BadLine("invalid_json_line", "this line is not JSON") from None
    if not isinstance(value, dict):
        raise BadLine("invalid_json_line", "this line is not a JSON object")
    try:
        body = orjson.dumps(value.get("body"))
        if _LONG_NUMBER in text.translate(_DIGITS):
            value = json.loads(text)
            body = json.dumps(value.get("body"), ensure_ascii=False, separators=(",", ":")).encode()
    except (orjson.JSONEncodeError, RecursionError):
        raise BadLine("invalid_json_line", "this line is nested too deeply", "body") from None
    return value, body


def _priority(tier: Any) -> str:
    """The priority of a request: low, unless its `service_tier` says more."""
    if tier is not None and (not isinstance(tier, str) or tier not in TIERS):
        known = ", ".join(sorted(TIERS))
        raise BadLine("invalid_value", f"service_tier must be one of {known}", "body.service_tier")
    return (priority_of(tier) or Priority.LOW).value


# ---------------------------------------------------------------- results


@dataclass(frozen=True, slots=True)
class ResultLine:
    """A line of an output file. `usage` is what the answer reports, `code` why there is no answer."""

    ok: bool
    text: bytes
    usage: Mapping[str, int] | None = None
    code: str | None = None


def result_line(item: ItemView, batch: FileBatch) -> ResultLine:
    """The line for an item that has ended, with its result loaded."""
    line_id = f"batch_req_{item.job_id.replace('-', '')}"
    error = item.error or {}
    if item.status == JobStatus.COMPLETED:
        answer = FrontAnswer.of_result(item.result)
        if answer is not None:
            return _answered(line_id, item, answer)
        return failed_line(line_id, item.custom_id, "bad_result", "the result is not an answer of an upstream")
    if item.status == JobStatus.CANCELLED:
        return failed_line(line_id, item.custom_id, CANCELLED)
    if item.status == JobStatus.FAILED and error.get("code") == DEADLINE_PASSED:
        return failed_line(line_id, item.custom_id, EXPIRED)
    if item.status == REMOVED:
        return failed_line(line_id, item.custom_id, "removed", "the job of this request was removed")
    if item.status != JobStatus.FAILED:
        message = "the job of this request was put back in the queue while the results were written"
        return failed_line(line_id, item.custom_id, "not_finished", message)
    message = str(error.get("message", "the job failed"))
    code = str(error.get("code", "unknown")).lower()
    status = error.get("http_status")
    if not isinstance(status, int):
        return failed_line(line_id, item.custom_id, code, message)
    body = {"error": {"message": message, "type": "server_error", "param": None, "code": code}}
    return ResultLine(False, _line(line_id, item.custom_id, _response(status, item.job_id, body), None))


def _answered(line_id: str, item: ItemView, answer: FrontAnswer) -> ResultLine:
    usage = None
    try:
        value = from_upstream(answer.body)
        usage = _usage(value) if isinstance(value, dict) else None
        # A line break in JSON is always white space between its values.
        body: Any = orjson.Fragment(answer.body.replace(b"\r", b" ").replace(b"\n", b" "))
    except NotJson:
        body = answer.body.decode("utf-8", "replace")
    text = _line(line_id, item.custom_id, _response(answer.status, item.job_id, body), None)
    return ResultLine(answer.status < 400, text, usage)


def unsubmitted_line(batch: FileBatch, number: int, custom_id: str | None) -> ResultLine:
    """The line for a request that was never submitted: the window was over, or the batch was cancelled."""
    code = CANCELLED if batch.status is FileBatchStatus.CANCELLING else EXPIRED
    return failed_line(f"batch_req_{batch.id.removeprefix('batch_')}_{number}", custom_id, code)


def failed_line(line_id: str, custom_id: str | None, code: str, message: str | None = None) -> ResultLine:
    error = {"code": code, "message": message or _MESSAGES[code]}
    return ResultLine(False, _line(line_id, custom_id, None, error), code=code)


def _response(status: int, request_id: str, body: Any) -> dict[str, Any]:
    return {"status_code": status, "request_id": request_id, "body": body}


def _line(line_id: str, custom_id: str | None, response: Any, error: Any) -> bytes:
    value = {"id": line_id, "custom_id": custom_id, "response": response, "error": error}
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


MOST_TOKENS = 1 << 40
"""A greater count is no count: the sum over all lines must fit in 64 bits."""
USAGE = ("input_tokens", "output_tokens", "total_tokens", "cached_tokens", "reasoning_tokens")


def _usage(answer: Mapping[str, Any]) -> dict[str, int] | None:
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return None
    read = _count(usage, "prompt_tokens") or _count(usage, "input_tokens")
    written = _count(usage, "completion_tokens") or _count(usage, "output_tokens")
    read_details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    written_details = usage.get("completion_tokens_details") or usage.get("output_tokens_details")
    counts = (
        read,
        written,
        _count(usage, "total_tokens") or read + written,
        _count(read_details, "cached_tokens"),
        _count(written_details, "reasoning_tokens"),
    )
    return dict(zip(USAGE, counts, strict=True))


def _count(values: Any, name: str) -> int:
    value = values.get(name) if isinstance(values, dict) else None
    return value if type(value) is int and 0 <= value < MOST_TOKENS else 0
