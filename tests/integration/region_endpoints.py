"""Real endpoints of a service with regions, each of which counts its own open calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from fairlead import Config, Fairlead


class Deployment:
    """How one region answers: `works`, `fails` (503), `refuses` (422), or `hangs` until the mode changes."""

    def __init__(self, name: str, endpoints: Endpoints) -> None:
        self.name = name
        self.endpoints = endpoints
        self.mode = "works"
        self.takes = 0.0
        self.open = self.most = 0
        self.calls: list[str] = []
        self.called = asyncio.Event()

    async def is_called(self) -> None:
        async with asyncio.timeout(20):
            await self.called.wait()

    async def reaches(self, calls: int) -> None:
        """Wait until this many calls are open at once."""
        async with asyncio.timeout(20):
            while self.open < calls:
                self.called.clear()
                await self.called.wait()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.open += 1
        self.most = max(self.most, self.open)
        self.endpoints.most = max(self.endpoints.most, self.endpoints.open)
        try:
            self.calls.append((await request.json())["payload"]["params"].get("name", ""))
            self.called.set()
            return await self._answer()
        finally:
            self.open -= 1

    async def _answer(self) -> web.StreamResponse:
        if self.mode in ("fails", "refuses"):
            return web.Response(status=503 if self.mode == "fails" else 422)
        while self.mode == "hangs":
            await self.endpoints.changed.wait()
        await asyncio.sleep(self.takes)
        return web.json_response({"data": {"region": self.name}})


class Endpoints:
    def __init__(self, *names: str) -> None:
        self.regions = {name: Deployment(name, self) for name in names}
        self.changed = asyncio.Event()
        self.together = names
        """Those whose open calls are counted together."""
        self.most = 0
        self.url = ""

    def __getitem__(self, name: str) -> Deployment:
        return self.regions[name]

    @property
    def open(self) -> int:
        return sum(self.regions[name].open for name in self.together)

    def switch(self, name: str, mode: str) -> None:
        self.regions[name].mode = mode
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def config(self, limit: int = 1, pool: int | None = None, **options: Any) -> dict[str, Any]:
        """Sections of a config: the service `gpu` with these regions."""
        service = {
            "limit": 9,
            "backoff": {"base": 0, "jitter": 0},
            "regions": {name: {"url": f"{self.url}/{name}", "limit": limit} for name in self.regions},
            **options,
        }
        if pool is None:
            return {"services": {"gpu": service}}
        return {"services": {"gpu": {**service, "pool": "modal"}}, "pools": {"modal": pool}}

    def app(self, engines: dict[str, str], **options: Any) -> Fairlead:
        return Fairlead(Config.model_validate(self.config(**options)), **engines)


@asynccontextmanager
async def open_endpoints(*names: str) -> AsyncIterator[Endpoints]:
    endpoints = Endpoints(*names)
    application = web.Application()
    for name, deployment in endpoints.regions.items():
        application.router.add_post(f"/{name}", deployment.handle)
    # A client that disconnects ends its call, as a real endpoint would notice.
    runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    endpoints.url = f"http://{host}:{port}"
    try:
        yield endpoints
    finally:
        for name in endpoints.regions:
            endpoints.switch(name, "works")
        await runner.cleanup()
