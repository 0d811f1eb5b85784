"""The parts of OpenAI's protocol that need no I/O: requests as the input of a job, answers as its result, models, tiers
and usage.

The input of a job is `FrontRequest.as_input()`, its result is `FrontAnswer.as_result()`. Bodies are kept as the client
or the upstream sent them: as text, or as base64 if they are not text.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import orjson

from fairlead.domain.fast_dataclass import fast_dataclass
from fairlead.domain.job import Priority
from fairlead.domain.json_codec import NotJson, from_upstream
from fairlead.domain.usage import Usage, reported

CHAT, COMPLETIONS, RESPONSES = "chat/completions", "completions", "responses"
IMAGES, IMAGE_EDITS, IMAGE_VARIATIONS = "images/generations", "images/edits", "images/variations"
JSON_PATHS = frozenset({CHAT, COMPLETIONS, "embeddings", IMAGES, "moderations", RESPONSES})
"""Paths whose answers are JSON, unless they are streamed. White space before such an answer is harmless."""
WITH_DONE = frozenset({CHAT, COMPLETIONS})
"""Paths whose streams end with `[DONE]`, and whose usage is sent only on request."""
DONE = b"[DONE]"
"""The data of the last event."""
EVENT_STREAM = "text/event-stream"
RETRIED_BY_CLIENTS = frozenset({408, 409})
"""The statuses of results after which OpenAI's clients send the request again."""
PATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")
"""The paths below `/v1` that are passed on. No part of a path begins with a dot, so none leads out of the upstream's
base URL."""
MAX_PATH = 200
_QUERY = re.compile(r"[A-Za-z0-9_.~!$&'()*+,;=:@/?%\[\]-]*")
MAX_QUERY = 2000

_TIER_PRIORITY = {"priority": Priority.HIGH, "fast": Priority.HIGH, "flex": Priority.LOW}
_PRIORITY_TIER = {Priority.HIGH: "priority", Priority.MEDIUM: "default", Priority.LOW: "flex"}
# Anchored to the beginning of a line: a search that may begin anywhere in a long line takes quadratic time.
_PART_NAME = re.compile(rb'^content-disposition:[^\r\n]*?[;\s]name="([^"\r\n]*)"', re.IGNORECASE | re.MULTILINE)
_FILE_NAME = re.compile(rb"[;\s]filename\*?=", re.IGNORECASE)
_BOUNDARY = re.compile(r'boundary="?([^";,\s]{1,70})"?', re.IGNORECASE)
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
_PASSED = re.compile(r"content-(?:type|disposition)\Z|openai-")
_LINE_END = re.compile(r"\r\n|\n|\r")
MAX_FIELD = 4096


def priority_of(tier: str | None) -> Priority | None:
    """The priority that a `service_tier` requests, or None if it leaves the priority to the gateway."""
    return _TIER_PRIORITY.get(tier or "")


def tier_of(priority: Priority | str) -> str:
    """The `service_tier` to report for a job of this priority."""
    return _PRIORITY_TIER[Priority(priority)]


def has_tier(answer: Mapping[str, Any]) -> bool:
    """Whether an answer reports the `service_tier` that was used, also if the upstream does not know the field."""
    return "service_tier" in answer or answer.get("object") in ("chat.completion", "response")


# ---------------------------------------------------------------- requests


class BadRequest(Exception):
    """A request that is refused with 400. `param` is the field with the error."""

    def __init__(self, message: str, param: str, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.param = param
        self.code = code

    def answer(self) -> FrontAnswer:
        error = {"message": str(self), "type": "invalid_request_error", "param": self.param, "code": self.code}
        return FrontAnswer(400, {"content-type": "application/json"}, orjson.dumps({"error": error}))


@fast_dataclass
class FrontRequest:
    """A request for the upstream. `path` is relative to the base URL; `stream` is whether the client wants a stream;
    `query` is the part of the URL after the question mark. `background`: the client does not wait for the answer.
    `previous` is the id of the response whose conversation the body continues."""

    path: str
    content_type: str
    body: bytes
    stream: bool = False
    query: str = ""
    background: bool = False
    previous: str | None = None

    def as_input(self) -> dict[str, Any]:
        value: dict[str, Any] = {"path": self.path, "content_type": self.content_type, "stream": self.stream}
        if self.query:
            value["query"] = self.query
        if self.background:
            value["background"] = True
        if self.previous is not None:
            value["previous_response_id"] = self.previous
        return _packed(value, self.body)

    @classmethod
    def of_input(cls, value: Mapping[str, Any]) -> FrontRequest:
        """Decode the input of a job. Raises ValueError if the job was not submitted by the front."""
        try:
            path, content_type, query = value["path"], value["content_type"], value.get("query", "")
            flags = bool(value.get("stream")), query, bool(value.get("background"))
            request = cls(path, content_type, _unpacked(value), *flags, value.get("previous_response_id"))
        except (KeyError, TypeError, ValueError):
            raise ValueError("the input is not a request of the OpenAI front: path, content_type, body") from None
        if not (isinstance(path, str) and isinstance(content_type, str) and is_path(path)):
            raise ValueError("path must be a path below /v1, for example chat/completions")
        if not is_header_value(content_type):
            raise ValueError("content_type has characters that no header may have")
        if query != "" and not (isinstance(query, str) and is_query(query)):
            raise ValueError("query must be the query of a URL")
        return request


def may_stream(request: FrontRequest) -> bool:
    """Whether a stream can be the answer. Some servers take other values than `true` for a wish to stream."""
    if request.stream or request.path not in JSON_PATHS:
        return True
    return bool((json_object(request.body) or {}).get("stream"))


def is_path(path: str) -> bool:
    return len(path) <= MAX_PATH and PATH.fullmatch(path) is not None


def is_query(text: str) -> bool:
    return len(text) <= MAX_QUERY and _QUERY.fullmatch(text) is not None


def is_header_value(text: str) -> bool:
    """Whether every server and client accepts this value of a header."""
    return _HEADER_VALUE.fullmatch(text) is not None


def form_fields(content_type: str, body: bytes, names: frozenset[str]) -> dict[str, str]:
    """The values of the short text fields with these names in a multipart form. Files are not read."""
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        return {}
    found: dict[str, str] = {}
    for part in body.split(b"--" + boundary[1].encode("latin-1")):
        head, blank, value = part.partition(b"\r\n\r\n")
        name = _PART_NAME.search(head[:MAX_FIELD]) if blank else None
        if name is None or len(value) > MAX_FIELD or _FILE_NAME.search(head[:MAX_FIELD]):
            continue
        text = name[1].decode("utf-8", "replace")
        if text in names:
            found[text] = value.removesuffix(b"\r\n").decode("utf-8", "replace")
    return found


def form_with(content_type: str, body: bytes, name: str, value: str | None) -> bytes:
    """The multipart form with another value of the text field of this name; with None, without the field."""
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        return body
    mark = b"--" + boundary[1].encode("latin-1")
    parts = []
    for part in body.split(mark):
        if not _is_field(part, name.encode()):
            parts.append(part)
        elif value is not None:
            head, blank, _ = part.partition(b"\r\n\r\n")
            parts.append(head + blank + value.encode() + b"\r\n")
    return mark.join(parts)


def _is_field(part: bytes, name: bytes) -> bool:
    head, blank, _ = part.partition(b"\r\n\r\n")
    found = _PART_NAME.search(head[:MAX_FIELD]) if blank else None
    return found is not None and found[1] == name and not _FILE_NAME.search(head[:MAX_FIELD])


def without_boundary(content_type: str, body: bytes) -> bytes:
    """The body without the boundary between the parts of a form. Clients choose another one each time they send it."""
    boundary = _BOUNDARY.search(content_type)
    return body if boundary is None else body.replace(b"--" + boundary[1].encode("latin-1"), b"--")


def with_usage(body: bytes, value: Mapping[str, Any]) -> bytes:
    """The body of a streamed request, changed so that the stream reports its usage. `value` is the decoded body. If
    the body has no `stream_options`, the rest of it stays as it is, byte for byte."""
    options = value.get("stream_options")
    if options is None and "stream_options" not in value:
        start = body.index(b"{") + 1
        more = b"," if value else b""
        return body[:start] + b'"stream_options":{"include_usage":true}' + more + body[start:]
    return replaced(body, "stream_options", {**(options if isinstance(options, dict) else {}), "include_usage": True})


def replaced(body: bytes, name: str, value: Any) -> bytes:
    """The JSON object `body` with another value of one field. Integers may have any length; orjson would round them."""
    fields = json.loads(body)
    fields[name] = value
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def without(body: bytes, name: str) -> bytes:
    """The JSON object `body` without one field."""
    fields = json.loads(body)
    fields.pop(name, None)
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def asks_for_usage(value: Mapping[str, Any]) -> bool:
    options = value.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


# ---------------------------------------------------------------- answers


@fast_dataclass
class FrontAnswer:
    """An answer of the upstream: its status, the headers that clients receive, and its body. `files`: the body names
    files, for which clients receive URLs."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    files: bool = False

    def as_result(self) -> dict[str, Any]:
        value: dict[str, Any] = {"status": self.status, "headers": dict(self.headers)}
        if self.files:
            value["files"] = True
        return _packed(value, self.body)

    @classmethod
    def of_result(cls, value: Any) -> FrontAnswer | None:
        """Decode the result of a job; None if the job was not one of the front. The result of a stream is its text."""
        if isinstance(value, str):
            return cls(200, {"content-type": EVENT_STREAM}, value.encode())
        try:
            return cls(int(value["status"]), dict(value["headers"]), _unpacked(value), bool(value.get("files")))
        except (KeyError, TypeError, ValueError):
            return None


def passed_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of an upstream's answer that clients receive."""
    return {
        lower: value
        for name, value in headers.items()
        if _PASSED.match(lower := name.lower()) and is_header_value(value)
    }


def usage_of(value: Any) -> dict[str, int] | None:
    """The tokens that a decoded answer, or an event of a stream, reports; None if it reports none."""
    value = _answer_in(value)
    usage = value.get("usage") if isinstance(value, dict) else None
    if not isinstance(usage, dict):
        return None
    read = usage.get("prompt_tokens", usage.get("input_tokens"))
    written = usage.get("completion_tokens", usage.get("output_tokens"))
    counts = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": usage.get("total_tokens")}
    return {name: count for name, count in counts.items() if type(count) is int and count >= 0} or None


def has_token(event: Mapping[str, Any]) -> bool:
    """Whether this event of a stream has output of the model, not only its role or the end."""
    if str(event.get("type", "")).endswith(".delta"):  # an event of /responses
        return True
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role"):
            return True
        if isinstance(choice, dict) and choice.get("text"):
            return True
    return False


def is_streamed_request(input_data: Any) -> bool:
    """Whether this is the input of a job whose output is the events of a stream."""
    return isinstance(input_data, dict) and bool(
        input_data.get("stream") and input_data.get("path") and input_data.get("content_type")
    )


def text_of_events(chunk: str) -> str:
    """The text that a chunk of a stream adds to the answer, to show it to people. A chunk has complete events."""
    return "".join(map(_text_added, events_in(chunk)))


def events_in(chunk: str) -> Iterator[dict[str, Any]]:
    """The decoded data of the events in a chunk of a stream."""
    lines = (line[5:] for line in _LINE_END.split(chunk) if line.startswith("data:"))
    return filter(None, (json_object(line.encode()) for line in lines))


def _text_added(event: Mapping[str, Any]) -> str:
    if error := event.get("error"):
        return f"\n{error.get('message', error) if isinstance(error, dict) else error}\n"
    if isinstance(event.get("delta"), str) and str(event.get("type")).endswith(".delta"):
        return str(event["delta"])
    choices = event.get("choices")
    listed = [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []
    choice: dict[str, Any] = next((each for each in listed if not each.get("index")), {})
    delta = _object(choice.get("delta"))
    parts = [choice.get("text"), *(delta.get(name) for name in ("reasoning_content", "content", "refusal"))]
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = _object(_object(call).get("function"))
        parts += [f"\n{function['name']}: " if function.get("name") else None, function.get("arguments")]
    return "".join(part for part in parts if isinstance(part, str))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def reported_usage(value: Any) -> Usage | None:
    """The usage that a decoded answer, or an event of a stream, reports, with the model that answered."""
    value = _answer_in(value)
    return reported(value.get("usage"), model=value.get("model")) if isinstance(value, dict) else None


def _answer_in(value: Any) -> Any:
    """The answer in an event of `/responses`; other values are returned as they are."""
    if isinstance(value, dict) and isinstance(value.get("response"), dict):
        return value["response"]
    return value


def json_object(body: bytes | str) -> dict[str, Any] | None:
    """The decoded body, or None if it is not a JSON object."""
    try:
        value = from_upstream(body)
    except NotJson:
        return None
    return value if isinstance(value, dict) else None


_OPERATIONS = {CHAT: "chat", COMPLETIONS: "text_completion", "embeddings": "embeddings", "responses": "chat"}


def span_attributes(request: FrontRequest, aliases: Mapping[str, str]) -> dict[str, str]:
    """The attributes that OpenTelemetry's conventions for generative AI give a request. `span.name` is the name of its
    span."""
    operation = _OPERATIONS.get(request.path)
    if operation is None:
        return {}
    found = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "openai", "span.name": operation}
    model = (json_object(request.body) or {}).get("model")
    if isinstance(model, str):
        model = aliases.get(model, model)
        found |= {"gen_ai.request.model": model, "span.name": f"{operation} {model}"}
    return found


def _packed(value: dict[str, Any], body: bytes) -> dict[str, Any]:
    """Add a body to the input or the result of a job, and return it."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # PostgreSQL cannot query text with NUL
        value["body_base64"] = b64encode(body).decode()
    else:
        value["body"] = text
    return value


def _unpacked(value: Mapping[str, Any]) -> bytes:
    if "body" in value:
        return str(value["body"]).encode()
    return b64decode(value["body_base64"], validate=True)


# ---------------------------------------------------------------- costs

CHARACTERS_PER_TOKEN = 4
TOKENS_OF_A_FILE = 1000
USUAL_OUTPUT = 256
"""The tokens of an answer whose request sets no maximum. What calls really use is learned."""
_COSTED = frozenset({CHAT, COMPLETIONS, "embeddings", RESPONSES, "moderations"})
_ANSWERED = frozenset({CHAT, COMPLETIONS, RESPONSES})
_TEXTS = ("messages", "input", "prompt", "instructions", "tools")
_MAXIMA = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_ANSWERS = ("n", "best_of")
_FILES = frozenset({"image_url", "input_audio", "file", "file_data", "image", "audio", "data"})
_LARGEST_READ = 1 << 18
_DEEPEST = 12


def estimated_tokens(value: Any, *, answers: bool = True) -> float | None:
    """The tokens that a request may use, from the input of its job: those of its texts, and with `answers` the maximum
    of its answers. None if its path is not counted in tokens."""
    if not isinstance(value, Mapping) or value.get("path") not in _COSTED or not isinstance(value.get("body"), str):
        return None
    text = value["body"]
    request = json_object(text) if len(text) <= _LARGEST_READ else None
    if request is None:
        return len(text) / CHARACTERS_PER_TOKEN + (USUAL_OUTPUT if answers else 0)
    tokens = sum([_tokens(request[name]) for name in _TEXTS if name in request])
    if answers and value["path"] in _ANSWERED:
        most, number = _counts(request, _MAXIMA), _counts(request, _ANSWERS)
        tokens += (most[0] if most else USUAL_OUTPUT) * max([1, *number])
    return float(min(max(tokens, 1.0), MAX_ESTIMATE))


MAX_ESTIMATE = 1e8


def _counts(request: Mapping[str, Any], names: Sequence[str]) -> list[int]:
    """The values of these fields that are counts."""
    values = [request[name] for name in names if name in request]
    return [value for value in values if type(value) is int and 0 < value <= MAX_ESTIMATE]


def _tokens(value: Any, depth: int = 0) -> float:
    """The tokens of the texts in a value. A list of numbers is a text in tokens."""
    kind = type(value)
    if kind is str:
        return len(value) / CHARACTERS_PER_TOKEN
    if depth > _DEEPEST:
        return 0.0
    tokens = 0.0
    if kind is list:
        for each in value:
            tokens += 1.0 if type(each) is int else _tokens(each, depth + 1)
    elif kind is dict:
        for name, each in value.items():
            tokens += TOKENS_OF_A_FILE if name in _FILES else _tokens(each, depth + 1)
    return tokens
