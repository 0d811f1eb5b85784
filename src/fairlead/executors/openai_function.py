"""Makes a Python function a model of the OpenAI front (`@app.model`): the function gets messages and returns or yields
text, and clients get chat completions."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from fairlead.domain import openai
from fairlead.domain.chat_answers import add_delta, events_for
from fairlead.domain.chat_requests import Untranslatable, chat_request
from fairlead.domain.openai import FrontAnswer, FrontRequest
from fairlead.domain.openai_responses import event_text
from fairlead.errors import Permanent
from fairlead.executors.function import Handler
from fairlead.executors.port import Call

ANSWERED = frozenset({openai.CHAT, openai.COMPLETIONS, openai.RESPONSES})
NOT_FOUND = {"message": "this model answers chat/completions, completions and responses only", "code": "unknown_path"}
NO_MESSAGES = {"message": "messages must be a list of objects", "param": "messages", "code": "invalid_input"}
NO_PROMPT = {"message": "this model takes one prompt, which is text", "param": "prompt", "code": "invalid_input"}


def model_handler(function: Callable[..., Any], model: str) -> Handler:
    """The handler of a service that serves this model. `function` takes the messages, and the `Call` if it has a second
    parameter. It returns text, or yields pieces of text; a piece may also be a delta, such as
    `{"tool_calls": [...]}`."""
    takes_call = len(inspect.signature(function).parameters) > 1

    def arguments(chat: Chat, call: Call) -> tuple[Any, ...]:
        return (chat.messages, call) if takes_call else (chat.messages,)

    if inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function):

        async def handle_async(call: Call) -> Any:
            chat = Chat.of(call, model)
            if chat.refusal is not None:
                return chat.refusal
            made = function(*arguments(chat, call))
            if inspect.isasyncgen(made):
                async for piece in made:
                    chat.add(piece)
            else:
                chat.add_all(await made)
            return chat.end()

        return _named(handle_async, function)

    def handle(call: Call) -> Any:
        chat = Chat.of(call, model)
        if chat.refusal is not None:
            return chat.refusal
        chat.add_all(function(*arguments(chat, call)))
        return chat.end()

    return _named(handle, function)


def _named(handler: Any, function: Callable[..., Any]) -> Handler:
    handler.__name__, handler.__module__ = function.__name__, function.__module__
    return handler  # type: ignore[no-any-return]


class Chat:
    """One request to a model: collects the pieces of the answer, and emits them if the client wants a stream."""

    def __init__(self, call: Call, request: FrontRequest, model: str, messages: Any) -> None:
        self.messages = messages
        self._call = call
        self._stream = request.stream
        self._chat = request.path != openai.COMPLETIONS
        self._response = events_for(request, call.job_id, call.run) if request.path == openai.RESPONSES else None
        self._delta: dict[str, Any] = {"role": "assistant", "content": ""}
        kind = "chat.completion" if self._chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{call.job_id}",
            "object": f"{kind}.chunk" if self._stream and self._chat else kind,
            "created": int(time.time()),
            "model": model,
        }
        self._begun = self._has_calls = False
        self.refusal: dict[str, Any] | None = None
        if request.path not in ANSWERED:
            self.refusal = _refusal(404, NOT_FOUND)
        elif not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            self.refusal = _refusal(400, NO_MESSAGES if self._chat else NO_PROMPT)

    @classmethod
    def of(cls, call: Call, model: str) -> Chat:
        try:
            request = FrontRequest.of_input(call.params)
            if call.trace is not None:
                call.annotate(openai.span_attributes(request, {}))
        except ValueError as error:
            raise Permanent(str(error)) from None
        fields = openai.json_object(request.body) or {}
        messages = fields.get("messages")
        if request.path == openai.COMPLETIONS:
            prompt = fields.get("prompt", "")
            prompt = prompt[0] if isinstance(prompt, list) and len(prompt) == 1 else prompt
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else None
        if request.path == openai.RESPONSES:
            try:
                messages = chat_request(fields)["messages"]
            except Untranslatable as error:
                chat = cls(call, request, model, [])
                chat.refusal = error.answer().as_result()
                return chat
        return cls(call, request, model, messages)

    def add_all(self, made: Any) -> None:
        if made is None:
            return
        pieces = [made] if isinstance(made, str | Mapping) else made
        for piece in pieces if isinstance(pieces, Iterable) else [made]:
            if self._call.output is not None and self._call.output.closed:
                break  # nothing waits for this call any more; the generator is closed when it is no longer referred to
            self.add(piece)

    def add(self, piece: Any) -> None:
        """Add a piece of the answer: text, or a delta."""
        delta = {"content": piece} if isinstance(piece, str) else piece
        if not isinstance(delta, Mapping):
            raise TypeError(f"a model returns or yields text or deltas, not {type(piece).__name__}")
        self._has_calls = self._has_calls or bool(delta.get("tool_calls"))
        if self._stream:
            self._emit(delta)
        else:
            add_delta(self._delta, delta)

    def end(self) -> Any:
        """The result of the job. The result of a stream is the text of its events."""
        reason = "tool_calls" if self._has_calls else "stop"
        if self._stream:
            self._emit({}, reason)
            self._call.emit(self._last_text())
            return None
        part = {"message": self._delta} if self._chat else {"text": self._delta["content"]}
        answer = {**self._head, "choices": [{"index": 0, **part, "finish_reason": reason, "logprobs": None}]}
        if self._response is not None:
            answer = self._response.whole(answer, time.time())
        return FrontAnswer(200, {"content-type": "application/json"}, orjson.dumps(answer)).as_result()

    def _last_text(self) -> str:
        if self._response is None:
            return "data: [DONE]\n\n"
        return "".join(map(event_text, self._response.end(time.time())))

    def _emit(self, delta: Mapping[str, Any], reason: str | None = None) -> None:
        if not self._begun:
            # Not before the first piece: an exception of the function is retried as long as clients have seen nothing.
            self._begun = True
            if self._chat:
                self._emit({"role": "assistant", "content": ""})
        part = {"delta": dict(delta)} if self._chat else {"text": delta.get("content", "")}
        event = {**self._head, "choices": [{"index": 0, **part, "finish_reason": reason}]}
        if self._response is not None:
            self._call.emit("".join(map(event_text, self._response.feed(event))))
            return
        self._call.emit(f"data: {orjson.dumps(event).decode()}\n\n")


def _refusal(status: int, error: Mapping[str, Any]) -> dict[str, Any]:
    body = {"error": {"type": "invalid_request_error", "param": None, **error}}
    return FrontAnswer(status, {"content-type": "application/json"}, orjson.dumps(body)).as_result()
