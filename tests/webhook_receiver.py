"""A receiver of webhooks on a free port of loopback, which answers as a test tells it to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.loopback import loopback

PATIENCE_S = 30.0


@dataclass(frozen=True)
class Request:
    path: str
    headers: Mapping[str, str]
    text: str

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def body(self) -> Any:
        return json.loads(self.text)


@dataclass
class Receiver:
    url: str = ""
    got: list[Request] = field(default_factory=list)
    answer: Callable[[Request], web.Response] = lambda request: web.Response(status=204)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    """While it is not set, requests get no response."""
    _came: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def handle(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        came = Request(request.path_qs, headers, await request.text())
        self.got.append(came)
        async with self._came:
            self._came.notify_all()
        await self.open.wait()
        return self.answer(came)

    async def reaches(self, count: int) -> list[Request]:
        """The requests, once there are this many."""
        async with asyncio.timeout(PATIENCE_S), self._came:
            await self._came.wait_for(lambda: len(self.got) >= count)
        return self.got


@asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    this = Receiver()
    this.open.set()
    app = web.Application()
    app.router.add_post("/{path:.*}", this.handle)
    async with loopback(app) as this.url:
        try:
            yield this
        finally:
            this.open.set()
