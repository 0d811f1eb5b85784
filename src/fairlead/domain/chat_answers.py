"""Answers of `/chat/completions`, whole or streamed, as responses and their events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairlead.domain.openai import FrontRequest
from fairlead.domain.openai_responses import COMPLETED, IN_PROGRESS, INCOMPLETE, first_number, skeleton

Event = dict[str, Any]

_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why an answer is incomplete, by `finish_reason`."""
_PARTS = {"text": ("output_text", "text"), "refusal": ("refusal", "refusal"), "reasoning": ("reasoning_text", "text")}
"""For each kind of text: the type of its part, and the field with the text."""


class ResponseEvents:
    """Translates the chunks of one chat completion. `response` is the response so far; at the end, the whole one.

    `number` is that of the first event. Without `announces`, there is no `response.created`: the gateway has sent it.
    """

    def __init__(self, response: dict[str, Any], *, number: int = 0, announces: bool = True) -> None:
        self.response = {**response, "status": IN_PROGRESS, "output": []}
        self._number = number
        self._announces = announces
        self._begun = self._ended = False
        self._item: dict[str, Any] | None = None
        self._kind = ""
        self._call: Any = None
        self._reason: str | None = None

    def feed(self, chunk: Mapping[str, Any]) -> Iterator[Event]:
        """The events for a chunk, or for a whole completion."""
        yield from self._begin()
        if isinstance(chunk.get("model"), str) and chunk["model"]:
            self.response["model"] = chunk["model"]
        if chunk.get("service_tier"):
            self.response["service_tier"] = chunk["service_tier"]
        if isinstance(chunk.get("usage"), dict):
            self.response["usage"] = _usage(chunk["usage"])
        choices = chunk.get("choices")
        listed = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
        for choice in listed:
            if not choice.get("index"):
                delta = choice.get("delta") or choice.get("message")
                yield from self._delta(delta if isinstance(delta, dict) else {})
                self._reason = choice.get("finish_reason") or self._reason

    def end(self, completed_at: float) -> Iterator[Event]:
        """The events after the last chunk."""
        if self._ended:
            return
        yield from self._begin()
        yield from self._close()
        self._ended = True
        why = _REASONS.get(self._reason or "")
        self.response["status"] = INCOMPLETE if why else COMPLETED
        self.response["incomplete_details"] = {"reason": why} if why else None
        self.response["completed_at"] = None if why else int(completed_at)
        yield self._event(f"response.{self.response['status']}", response=self.response)

    def whole(self, completion: Mapping[str, Any], completed_at: float) -> dict[str, Any]:
        """The response for a whole chat completion."""
        for _ in (*self.feed(completion), *self.end(completed_at)):
            pass
        return self.response

    def _begin(self) -> Iterator[Event]:
        if not self._begun:
            self._begun = True
            if self._announces:
                yield self._event("response.created", response=dict(self.response))
            yield self._event("response.in_progress", response=dict(self.response))

    def _delta(self, delta: Mapping[str, Any]) -> Iterator[Event]:
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        for kind, text in (("reasoning", reasoning), ("text", delta.get("content")), ("refusal", delta.get("refusal"))):
            if isinstance(text, str) and text:
                yield from self._add_text(kind, text)
        calls = delta.get("tool_calls")
        for index, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, dict):
                yield from self._add_call(call.get("index", index), call)

    # ------------------------------------------------------------ text

    def _add_text(self, kind: str, text: str) -> Iterator[Event]:
        type_, field = _PARTS[kind]
        if self._kind != kind:
            yield from self._open_text(kind, type_, field)
        assert self._item is not None
        part = self._item["content"][-1]
        part[field] += text
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "text" else {}
        yield self._event(f"response.{type_}.delta", **self._part_place, delta=text, **logprobs)

    def _open_text(self, kind: str, type_: str, field: str) -> Iterator[Event]:
        """Begin a part; a text and a refusal are parts of one message."""
        is_message = self._item is not None and self._item["type"] == "message"
        if kind == "reasoning" or not is_message:
            head: dict[str, Any] = {"type": "reasoning", "summary": []}
            if kind != "reasoning":
                head = {"type": "message", "role": "assistant"}
            prefix = "rs" if kind == "reasoning" else "msg"
            yield from self._open(prefix, {**head, "status": IN_PROGRESS, "content": []})
        else:
            yield from self._close_part()
        self._kind = kind
        assert self._item is not None
        annotations: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "text" else {}
        self._item["content"].append({"type": type_, field: "", **annotations})
        part = dict(self._item["content"][-1])
        yield self._event("response.content_part.added", **self._part_place, part=part)

    def _close_part(self) -> Iterator[Event]:
        assert self._item is not None
        type_, field = _PARTS[self._kind]
        part = self._item["content"][-1]
        logprobs: dict[str, Any] = {"logprobs": []} if self._kind == "text" else {}
        yield self._event(f"response.{type_}.done", **self._part_place, **{field: part[field]}, **logprobs)
        yield self._event("response.content_part.done", **self._part_place, part=part)

    @property
    def _part_place(self) -> dict[str, Any]:
        assert self._item is not None
        return {**self._place, "content_index": len(self._item["content"]) - 1}

    # ------------------------------------------------------------ calls

    def _add_call(self, index: Any, call: Mapping[str, Any]) -> Iterator[Event]:
        given = call.get("function")
        function: Mapping[str, Any] = given if isinstance(given, dict) else {}
        if self._kind != "call" or index != self._call:
            id_ = call.get("id") or f"call_{len(self.response['output'])}"
            item = {"type": "function_call", "status": IN_PROGRESS, "call_id": id_}
            yield from self._open("fc", {**item, "name": function.get("name") or "", "arguments": ""})
            self._kind, self._call = "call", index
        assert self._item is not None
        arguments = function.get("arguments")
        if isinstance(arguments, str) and arguments:
            self._item["arguments"] += arguments
            yield self._event("response.function_call_arguments.delta", **self._place, delta=arguments)

    # ------------------------------------------------------------ items

    def _open(self, prefix: str, item: dict[str, Any]) -> Iterator[Event]:
        yield from self._close()
        output = self.response["output"]
        id_ = str(self.response["id"]).removeprefix("resp_")
        self._item = {"id": f"{prefix}_{id_}{len(output):02x}", **item}
        output.append(self._item)
        index = len(output) - 1
        added = {**self._item, "content": []} if "content" in self._item else dict(self._item)
        yield self._event("response.output_item.added", output_index=index, item=added)

    def _close(self) -> Iterator[Event]:
        if self._item is None:
            return
        if self._kind == "call":
            done = {"name": self._item["name"], "arguments": self._item["arguments"]}
            yield self._event("response.function_call_arguments.done", **self._place, **done)
        else:
            yield from self._close_part()
        self._item["status"] = INCOMPLETE if self._reason in _REASONS else COMPLETED
        index = len(self.response["output"]) - 1
        yield self._event("response.output_item.done", output_index=index, item=self._item)
        self._item, self._kind, self._call = None, "", None

    @property
    def _place(self) -> dict[str, Any]:
        assert self._item is not None
        return {"item_id": self._item["id"], "output_index": len(self.response["output"]) - 1}

    def _event(self, type_: str, **fields: Any) -> Event:
        number, self._number = self._number, self._number + 1
        return {"type": type_, "sequence_number": number, **fields}


def events_for(request: FrontRequest, job_id: str, run: int) -> ResponseEvents:
    """Translates the answer to a request to `/responses`, for one run of its job. Of a background response, the gateway
    has sent the first events."""
    number = first_number(run) if request.background else 0
    return ResponseEvents(skeleton(request, job_id), number=number, announces=not request.background)


def add_delta(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add a delta of a stream to a message, as clients do: texts are concatenated, and so are the arguments of calls
    with the same index."""
    for name, value in delta.items():
        known = message.get(name)
        if name == "tool_calls" and isinstance(value, list):
            message[name] = _with_calls(known or [], value)
        elif name != "role" and type(known) is type(value) and isinstance(value, str | list):
            message[name] = message[name] + value
        elif value is not None or known is None:
            message[name] = value


def _with_calls(known: Sequence[Any], added: Sequence[Any]) -> list[Any]:
    calls = list(known)
    for call in added:
        index = call.get("index") if isinstance(call, dict) else None
        found = next((at for at, each in enumerate(calls) if index is not None and each.get("index") == index), None)
        if found is None:
            calls.append(call)
            continue
        function = dict(calls[found].get("function") or {})
        add_delta(function, call.get("function") or {})
        calls[found] = {**calls[found], **call, "function": function}
    return calls


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    read, written = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    details, more = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    reasoning = more.get("reasoning_tokens") if isinstance(more, dict) else 0
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": _count(cached), "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": _count(reasoning)},
        "total_tokens": _count(usage.get("total_tokens")) or read + written,
    }


def _count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0
