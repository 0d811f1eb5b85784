"""Reads a streamed answer of a server with OpenAI's protocol, and emits its events as they arrive."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import aiohttp

from fairlead.domain import openai
from fairlead.domain.json_codec import NotJson, from_upstream
from fairlead.domain.model_stats import FIRST_TOKEN
from fairlead.domain.openai import FrontRequest
from fairlead.domain.usage import Usage
from fairlead.executors.call_outcome import storable
from fairlead.executors.http_client import AnyResponse
from fairlead.executors.http_stream import BrokenStream
from fairlead.executors.port import Call

_END = re.compile(rb"\r\n\r\n|\n\n|\n\r\n|\r\r")
_LINES = re.compile(rb"\r\n|\n|\r")
_ERROR = (b"event: error", b"event:error")
_LAST = frozenset({"response.completed", "response.failed", "response.incomplete", "response.cancelled", "error"})
"""The types of the events that end a stream of `/responses`."""
_FORBIDDEN = (b"id:", b"retry:", b"id ", b"retry ")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DONE_LINES = (b"data: " + openai.DONE, b"data:" + openai.DONE)
END_WITHIN_S = 1.0
"""How long an upstream may keep the connection open after `[DONE]`."""


class UpstreamError(BrokenStream):
    """The upstream reported an error within the stream."""


class Events:
    """Splits a stream into its events. Raises BrokenStream for an event over `largest` bytes."""

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._rest = b""
        self._scanned = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The events that are complete now. The last one, `[DONE]`, is complete without the empty line after it: the
        upstream may leave the line out, and keep the connection open."""
        self._rest += data
        start = 0
        while end := _END.search(self._rest, max(start, self._scanned)):
            yield self._rest[start : end.start()]
            start = end.end()
            self._scanned = start
        self._rest = self._rest[start:]
        self._scanned = max(0, len(self._rest) - 3)
        if self._rest.startswith(_DONE_LINES) and self._rest.strip() in _DONE_LINES:
            done, self._rest = self._rest.strip(), b""
            yield done
        if len(self._rest) > self._largest:
            raise BrokenStream(f"the upstream sent an event of more than {self._largest} bytes")

    @property
    def rest(self) -> bytes:
        """What follows the last complete event."""
        return self._rest


class ChatStream:
    """The stream of one call: its events for the client, and what they say about the call.

    `hides_usage`: the client has not asked for the event with the usage. `began` is when the call was sent, by the
    clock of the event loop; by default now.
    """

    def __init__(self, request: FrontRequest, *, hides_usage: bool, began: float | None = None) -> None:
        self._has_done = request.path in openai.WITH_DONE
        self._hides_usage = hides_usage
        self.usage: dict[str, int] | None = None
        self.reported: Usage | None = None
        self.complete = not self._has_done and request.path != openai.RESPONSES
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock() if began is None else began
        self._first_token_at: float | None = None
        self.done = False
        """The stream has sent `[DONE]`. Whatever follows is not part of it."""
        self.value: dict[str, Any] | None = None
        """The data of the last event."""

    @property
    def metrics(self) -> dict[str, Any]:
        """What the step's metrics have of this stream: its usage, and the time to its first token."""
        usage = {} if self.usage is None else {"usage": self.usage}
        if self._first_token_at is None:
            return usage
        return {**usage, FIRST_TOKEN: round((self._first_token_at - self._began) * 1000, 3)}

    def text_of(self, event: bytes) -> str:
        """The event as the client receives it; empty if it does not receive the event. Raises BrokenStream."""
        self.value = None
        if self.done:
            return ""
        event = event.removeprefix(_BYTE_ORDER_MARK)
        if event.startswith(b"data: ") and b"\n" not in event and b"\r" not in event:  # nearly all events
            return self._decoded([event]) if self._passes(event[6:]) else ""
        data = b""
        kept: list[bytes] = []
        lines = _LINES.split(event)
        for line in lines:
            if line.startswith(b"data:"):
                data += (b"\n" if data else b"") + line[5:].removeprefix(b" ")
            if not line.startswith(_FORBIDDEN) and line not in (b"id", b"retry"):
                kept.append(line)
        if data and not self._passes(data, is_error=self._has_done and any(line in _ERROR for line in lines)):
            return ""
        if not data:
            # An event without data breaks OpenAI's Python client; comments do not.
            kept = [line for line in kept if line.startswith(b":")]
        return self._decoded(kept) if kept else ""

    def closing_text(self) -> str:
        """What the client receives after the last event of a complete stream. Raises BrokenStream."""
        return ""

    def _decoded(self, lines: list[bytes]) -> str:
        try:
            return b"\n".join(lines).decode() + "\n\n"
        except UnicodeDecodeError:
            raise BrokenStream("the upstream sent a stream that is not UTF-8") from None

    def _passes(self, data: bytes, *, is_error: bool = False) -> bool:
        """Take note of the data of an event. Returns whether the client receives it."""
        data = data.strip()
        if data == openai.DONE:
            self.complete = self.done = True
            return True
        if not data:
            return False
        try:
            value = from_upstream(data)
        except NotJson as error:
            raise BrokenStream(f"the upstream sent an event that is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise BrokenStream("the upstream sent an event that is not a JSON object")
        self.value = value
        if is_error or value.get("error") or value.get("object") == "error":
            raise UpstreamError(error_text(value.get("error") or value, "within the stream"))
        if self._first_token_at is None and openai.has_token(value):
            self._first_token_at = self._clock()
        usage = openai.usage_of(value)
        if usage is not None:
            self.usage, self.reported = usage, openai.reported_usage(value)
        choices = value.get("choices")
        if not self._has_done:
            self.complete = self.complete or str(value.get("type")) in _LAST
        elif isinstance(choices, list) and any(_is_last(choice) for choice in choices):
            self.complete = True
        return not (self._hides_usage and usage is not None and choices == [])


async def emit_events(response: AnyResponse, call: Call, stream: ChatStream, largest: int) -> None:
    """Emit the events of a stream as they arrive, all that arrive together as one chunk. Raises BrokenStream."""
    events = Events(largest)
    call.open_output()
    async for data in response.content.iter_any():
        texts: list[str] = []
        try:
            texts.extend(map(stream.text_of, events.feed(data)))
            if stream.done:
                texts.append(stream.closing_text())
        finally:  # clients receive the events before an error
            if text := "".join(texts):
                call.emit(text)
        if stream.done:
            await _read_to_end(response)
            return
    if events.rest.strip() and (text := stream.text_of(events.rest.strip(b"\r\n"))):
        call.emit(text)
    if not stream.complete:
        raise BrokenStream("the upstream closed the stream before its end")
    if text := stream.closing_text():
        call.emit(text)


async def _read_to_end(response: AnyResponse) -> None:
    """Read what follows `[DONE]`, normally nothing, so that the connection can be used again."""
    try:
        async with asyncio.timeout(END_WITHIN_S):
            async for _ in response.content.iter_any():
                pass
    except (aiohttp.ClientError, OSError, TimeoutError):
        response.close()


def _is_last(choice: Any) -> bool:
    return isinstance(choice, dict) and choice.get("finish_reason") is not None


def error_text(error: Any, where: str) -> str:
    """The message of an error object of the upstream."""
    message = error.get("message") if isinstance(error, dict) else error
    return storable(f"the upstream failed {where}: {message or error}")
