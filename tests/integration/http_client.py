"""Requests and WebSockets to the gateway in this process. A response is available as soon as it starts, so that endless
streams can be tested like other requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from fastapi import FastAPI
from starlette.types import Message, Scope

PATIENCE_S = 20.0
WEBSOCKET = "WS"


@dataclass
class Exchange:
    """The messages of the gateway so far. The `status` of an accepted WebSocket is 101."""

    messages: list[Message] = field(default_factory=list)
    began: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def record(self, message: Message) -> None:
        self.messages.append(message)
        self.began.set()

    @property
    def status(self) -> int:
        first = self.messages[0]
        if first["type"] == "websocket.accept":
            return 101
        return int(first["code"] if first["type"] == "websocket.close" else first["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.messages[0].get("headers", ())}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages[1:])

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def code(self) -> str | None:
        """The code of a problem, or of an error in the shape of OpenAI or fal."""
        if self.status < 400 or not self.body:
            return None
        error = self.json.get("error", self.json)
        return str(error["error_type"] if "error_type" in error else error["code"])

    @property
    def streams(self) -> bool:
        return self.status == 101 or self.headers.get("content-type", "").startswith("text/event-stream")


@asynccontextmanager
async def asking(
    gateway: FastAPI,
    method: str,
    path: str,
    key: str | None = None,
    *,
    query: str = "",
    json: Any = None,
    denial: bool = True,
    server: str = "127.0.0.1",
    client: str = "127.0.0.1",
    on_send: Callable[[Message], Awaitable[None]] | None = None,
    **headers: str,
) -> AsyncIterator[Exchange]:
    """`denial`: whether the server can answer a refused WebSocket with an HTTP status, as uvicorn can. `server`: the
    address that the connection came in on, `client`: that of the other end. `on_send`: awaited for each message, to
    imitate a slow client."""
    given = {"host": "localhost", "content-type": "application/json", **headers}
    if key is not None:
        given["authorization"] = f"Bearer {key}"
    scope: Scope = {
        "type": "websocket" if method == WEBSOCKET else "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "ws" if method == WEBSOCKET else "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "server": (server, 8000),
        "client": (client, 40000),
    }
    if method == WEBSOCKET:
        scope |= {"subprotocols": [], "extensions": {"websocket.http.response": {}} if denial else {}}
    else:
        scope["method"] = method
    body = orjson.dumps(json) if json is not None else b""
    first: Message = (
        {"type": "websocket.connect"}
        if method == WEBSOCKET
        else {"type": "http.request", "body": body, "more_body": False}
    )
    coming = [first]
    exchange = Exchange()

    async def receive() -> Message:
        if coming:
            return coming.pop()
        return await asyncio.get_running_loop().create_future()  # the client stays connected

    async def send(message: Message) -> None:
        exchange.record(message)
        if on_send is not None:
            await on_send(message)

    task = asyncio.create_task(gateway(scope, receive, send))
    task.add_done_callback(lambda _: exchange.ended.set())
    try:
        async with asyncio.timeout(PATIENCE_S):
            waiting = [asyncio.create_task(event.wait()) for event in (exchange.began, exchange.ended)]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in waiting:
                each.cancel()
            if not exchange.messages:
                task.result()  # raises its error
            if not exchange.streams:
                await exchange.ended.wait()
        yield exchange
    finally:
        task.cancel()
        await asyncio.wait({task})


async def ask(gateway: FastAPI, method: str, path: str, key: str | None = None, **options: Any) -> Exchange:
    async with asking(gateway, method, path, key, **options) as exchange:
        return exchange
