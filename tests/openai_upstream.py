"""A real HTTP server that speaks OpenAI's protocol, for the tests of the OpenAI front. It counts its open calls itself,
and answers as its script says; without a script, correctly."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

PATIENCE_S = 20.0
WORDS = ("Hello", " there", ",", " how", " are", " you", "?")
USAGE = {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16}

Reply = Callable[["Upstream", web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes
    query: str = ""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Upstream:
    """`script` has the replies to the next calls. While `gate` is closed, correct answers wait after their first
    words. `chat_only`: `/responses` is an unknown path."""

    def __init__(self, *models: str) -> None:
        self.models = list(models) or ["llama"]
        self.script: deque[Reply] = deque()
        self.chat_only = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.open = self.most = 0
        self.calls: list[Received] = []
        self.changed = asyncio.Condition()
        self.url = ""

    async def reaches(self, open: int | None = None, calls: int | None = None) -> None:
        """Wait until exactly this many calls are open, or this many have arrived."""
        async with asyncio.timeout(PATIENCE_S), self.changed:
            await self.changed.wait_for(
                lambda: (open is None or self.open == open) and (calls is None or len(self.calls) >= calls)
            )

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.calls.append(
            Received(request.path.removeprefix("/v1/"), dict(request.headers), body, request.query_string)
        )
        await self._count(1)
        try:
            fields = json.loads(body) if request.content_type == "application/json" else {}
            reply = self.script.popleft() if self.script else correct
            return await reply(self, request, fields)
        finally:
            await asyncio.shield(self._count(-1))

    async def list(self, request: web.Request) -> web.Response:
        data = [{"id": name, "object": "model", "created": 1700000000, "owned_by": "tests"} for name in self.models]
        return web.json_response({"object": "list", "data": data})

    async def _count(self, change: int) -> None:
        self.open += change
        self.most = max(self.most, self.open)
        async with self.changed:
            self.changed.notify_all()


@asynccontextmanager
async def running_upstream(*models: str, port: int = 0) -> AsyncIterator[Upstream]:
    upstream = Upstream(*models)
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_get("/v1/models", upstream.list)
    app.router.add_post("/v1/{path:.*}", upstream.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    upstream.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield upstream
    finally:
        upstream.gate.set()
        await runner.cleanup()


# ---------------------------------------------------------------- correct answers


async def correct(upstream: Upstream, request: web.Request, fields: dict[str, Any]) -> web.StreamResponse:
    path = request.path.removeprefix("/v1/")
    if path == "responses" and upstream.chat_only:
        return web.json_response({"detail": "Not Found"}, status=404)
    if fields.get("stream"):
        return await (_response_stream if path == "responses" else _stream)(upstream, request, fields)
    await upstream.gate.wait()
    match path:
        case "chat/completions":
            return web.json_response(chat(fields))
        case "completions":
            choice = {"index": 0, "text": "".join(WORDS), "finish_reason": "stop", "logprobs": None}
            return web.json_response(_envelope("text_completion", fields) | {"choices": [choice], "usage": USAGE})
        case "embeddings":
            vector = b64encode(b"\0\0\x80?\0\0\0@").decode()
            data = [{"object": "embedding", "index": 0, "embedding": vector}]
            return web.json_response(
                {"object": "list", "data": data, "model": fields["model"], "usage": {"prompt_tokens": 2}}
            )
        case "images/generations":
            return web.json_response({"created": 1700000000, "data": [{"b64_json": b64encode(b"png").decode()}]})
        case "responses":
            return web.json_response(_response(fields))
        case "moderations":
            return web.json_response({"id": "modr-1", "model": fields["model"], "results": [{"flagged": False}]})
        case "audio/speech":
            return web.Response(body=b"\xff\xf3\0\0mp3", content_type="audio/mpeg")
        case "audio/transcriptions":
            return web.json_response({"text": "hello"})
        case _:
            return error(404, f"Unknown path {path}")


def chat(fields: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": "".join(WORDS), "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    answer = _envelope("chat.completion", fields) | {"choices": [choice], "usage": USAGE}
    return answer | ({"service_tier": "default"} if "service_tier" in fields else {})


def _envelope(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1700000000, "model": fields.get("model", "?")}


def _response(fields: dict[str, Any]) -> dict[str, Any]:
    text = {"type": "output_text", "text": "".join(WORDS), "annotations": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1700000000,
        "model": fields["model"],
        "status": "completed",
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {"input_tokens": 9, "output_tokens": 7, "total_tokens": 16},
    }


def chunks(fields: dict[str, Any]) -> list[bytes]:
    """The events of a chat stream, without `[DONE]`."""
    usage = bool((fields.get("stream_options") or {}).get("include_usage"))
    head = _envelope("chat.completion.chunk", fields) | ({"usage": None} if usage else {})
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": word} for word in WORDS)]
    events = [head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas] + [
        head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    ]
    if usage:
        events.append(head | {"choices": [], "usage": USAGE})
    return [event(each) for each in events]


def event(value: Any, name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value)}\n\n".encode()


async def begin_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    return response


async def _stream(upstream: Upstream, request: web.Request, fields: dict[str, Any]) -> web.StreamResponse:
    response = await begin_stream(request)
    for number, each in enumerate(chunks(fields)):
        if number == 3:
            await upstream.gate.wait()
        await response.write(each)
    await response.write(b"data: [DONE]\n\n")
    return response


async def _response_stream(upstream: Upstream, request: web.Request, fields: dict[str, Any]) -> web.StreamResponse:
    response = await begin_stream(request)
    whole = _response(fields)
    events: list[dict[str, Any]] = [{"type": "response.created", "response": {**whole, "status": "in_progress"}}]
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    events += [{"type": "response.output_text.delta", **place, "delta": word, "logprobs": []} for word in WORDS]
    events.append({"type": "response.completed", "response": whole})
    for number, each in enumerate(events):
        if number == 3:
            await upstream.gate.wait()
        await response.write(event({**each, "sequence_number": number}, each["type"]))
    return response


# ---------------------------------------------------------------- faults


def error(status: int, message: str, **headers: str) -> web.Response:
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": "of_the_upstream"}}
    return web.json_response(
        body, status=status, headers={name.replace("_", "-"): text for name, text in headers.items()}
    )


def refusing(status: int, message: str = "no", **headers: str) -> Reply:
    async def reply(upstream: Upstream, request: web.Request, fields: dict[str, Any]) -> web.StreamResponse:
        return error(status, message, **headers)

    return reply


def sending(body: bytes, content_type: str = "application/json") -> Reply:
    async def reply(upstream: Upstream, request: web.Request, fields: dict[str, Any]) -> web.StreamResponse:
        return web.Response(body=body, content_type=content_type)

    return reply


def streaming(*pieces: bytes | Exception | None) -> Reply:
    """A stream of these pieces. None waits for the gate; an exception closes the connection in the middle."""

    async def reply(upstream: Upstream, request: web.Request, fields: dict[str, Any]) -> web.StreamResponse:
        response = await begin_stream(request)
        for piece in pieces:
            if piece is None:
                await upstream.gate.wait()
            elif isinstance(piece, Exception):
                assert request.transport is not None
                request.transport.abort()
                return response
            else:
                await response.write(piece)
        return response

    return reply


async def closing(upstream: Upstream, request: web.Request, fields: dict[str, Any]) -> web.StreamResponse:
    """Close the connection before the first byte."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def hanging(upstream: Upstream, request: web.Request, fields: dict[str, Any]) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError
