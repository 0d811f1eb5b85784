"""Calls of `/responses`: passed on to upstreams that know it, and translated for those that only know chat completions.

Events of a background response get their final ids and numbers here, so that every gateway can replay them from the
output of the job.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import orjson

from fairlead.domain import openai
from fairlead.domain.chat_answers import ResponseEvents, events_for
from fairlead.domain.chat_requests import Untranslatable, chat_request
from fairlead.domain.fast_dataclass import fast_dataclass
from fairlead.domain.openai import FrontAnswer, FrontRequest
from fairlead.domain.openai_responses import created_at, event_text, first_number, response_id
from fairlead.executors.call_outcome import storable
from fairlead.executors.http_stream import BrokenStream
from fairlead.executors.openai_stream import ChatStream, UpstreamError
from fairlead.executors.port import Call, Success

ASK_AGAIN_S = 600.0
"""How long an upstream that does not know `/responses` is not asked for it again."""
_UNKNOWN = re.compile(r'\{"status":40[45],')
_NOT_FORWARDED = frozenset({"response.created", "response.queued"})
_LAST = frozenset({"response.completed", "response.failed", "response.incomplete"})


@fast_dataclass
class Exchange:
    """One request to the upstream. `stream` reads a streamed answer; `convert` gets another one, and its JSON or None,
    and returns both as the client receives them. `restartable`: readers of the stream can handle a new attempt, so a
    stream that breaks off is retried. `adds_usage`: the usage of a stream is requested, whether the client asks or
    not."""

    request: FrontRequest
    stream: ChatStream | None = None
    convert: Callable[[FrontAnswer, Any], Awaitable[tuple[FrontAnswer, Any]]] | None = None
    restartable: bool = False
    adds_usage: bool = True

    def without_usage(self) -> Exchange:
        """The exchange for an upstream that refuses the request for the usage. A client's own request for it stays."""
        request = self.request
        if isinstance(self.stream, TranslatedStream):
            request = replace(request, body=openai.without(request.body, "stream_options"))
        return replace(self, request=request, adds_usage=False)


class KnownUpstreams:
    """Which regions of an upstream do not know `/responses`."""

    def __init__(self) -> None:
        self._chat_only: dict[str | None, float] = {}

    def is_chat_only(self, region: str | None) -> bool:
        return asyncio.get_running_loop().time() < self._chat_only.get(region, 0.0)

    def note(self, region: str | None) -> None:
        self._chat_only[region] = asyncio.get_running_loop().time() + ASK_AGAIN_S


def is_unknown_path(outcome: object) -> bool:
    """Whether the upstream answered that it does not know the path, or the model."""
    return isinstance(outcome, Success) and _UNKNOWN.match(outcome.data_json) is not None


def passed_on(call: Call, request: FrontRequest) -> Exchange:
    """The request as the client sent it. The upstream never runs it in the background: the queue does."""
    if not request.background:
        return Exchange(request)
    sent = replace(request, body=openai.without(request.body, "background"))
    return Exchange(sent, BackgroundStream(call, sent) if request.stream else None, restartable=True)


def translated(call: Call, request: FrontRequest) -> Exchange:
    """The request as a chat completion. Raises Untranslatable."""
    fields = openai.json_object(request.body)
    if fields is None:
        raise Untranslatable("the body is not a JSON object", "body")
    body = orjson.dumps(chat_request(fields))
    sent = FrontRequest(openai.CHAT, "application/json", body, request.stream, request.query)
    events = events_for(request, call.job_id, call.run)
    if request.stream:
        return Exchange(sent, TranslatedStream(sent, events), restartable=request.background)

    async def convert(answer: FrontAnswer, completion: Any) -> tuple[FrontAnswer, Any]:
        if completion is None:
            return answer, None
        response = events.whole(completion, time.time())
        return replace(answer, body=orjson.dumps(response)), response

    return Exchange(sent, None, convert)


class BackgroundStream(ChatStream):
    """The stream of an upstream that knows `/responses`, with the id and the numbers of a background response. The
    gateway has sent the first events."""

    def __init__(self, call: Call, request: FrontRequest) -> None:
        super().__init__(request, hides_usage=False)
        self.complete = self._has_last = False
        self._head = {
            "id": response_id(call.job_id),
            "created_at": created_at(call.job_id),
            "background": True,
            "previous_response_id": request.previous,
        }
        self._number = first_number(call.run)

    def text_of(self, event: bytes) -> str:
        super().text_of(event)
        value = self.value
        if value is None or "type" not in value or value["type"] in _NOT_FORWARDED:
            return ""
        kind = str(value["type"])
        if kind == "error":
            raise UpstreamError(storable(f"the upstream failed within the stream: {value.get('message')}"))
        if isinstance(value.get("response"), dict):
            value["response"] |= self._head
        value["sequence_number"] = self._number
        self._number += 1
        self.complete = self._has_last = self._has_last or kind in _LAST
        return event_text(value)

    def closing_text(self) -> str:
        if not self._has_last:
            raise BrokenStream("the upstream closed the stream before its end")
        return ""


class TranslatedStream(ChatStream):
    """The stream of a chat completion as the events of a response."""

    def __init__(self, request: FrontRequest, events: ResponseEvents) -> None:
        super().__init__(request, hides_usage=False)
        self._events = events

    def text_of(self, event: bytes) -> str:
        super().text_of(event)
        return "" if self.value is None else "".join(map(event_text, self._events.feed(self.value)))

    def closing_text(self) -> str:
        return "".join(map(event_text, self._events.end(time.time())))
