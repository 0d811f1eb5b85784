"""The gateway with the fal front, over TLS on a port of its own, and unmodified clients in front of it.

`fal_client` reads its hosts when it is imported, so all gateways of one test process use the same port, one after the
other.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from fairlead import Call, Config, Fairlead, Permanent
from fairlead.config import Settings
from fairlead.gateway.app import Gateway, create_gateway
from fairlead.gateway.fronts.fal.polls import Polls
from tests.integration.gateway_site import served


def _free_port() -> int:
    """A port below those that the system gives to connections."""
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


PORT = _free_port()
HOST = f"127.0.0.1:{PORT}"
os.environ["FAL_RUN_HOST"] = f"{HOST}/fal/run"
os.environ["FAL_QUEUE_RUN_HOST"] = f"{HOST}/fal"

import fal_client  # noqa: E402
from fal_client import Completed as Completed  # noqa: E402
from fal_client import FalClientHTTPError as FalClientHTTPError  # noqa: E402
from fal_client import InProgress as InProgress  # noqa: E402
from fal_client import Queued as Queued  # noqa: E402

ADMIN = "the admin key of the environment"
PATIENCE_S = 30.0


@dataclass
class Endpoint:
    """What the services of the site do: `flux` waits for the gate."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    open: int = 0
    most: int = 0
    calls: list[Call] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def work(self, call: Call) -> dict[str, Any]:
        self.calls.append(call)
        self.open += 1
        self.most = max(self.most, self.open)
        await self._tell()
        try:
            call.progress(0.5, "half of it")
            await self.gate.wait()
            call.progress(0.9, "nearly all of it")
        finally:
            self.open -= 1
            await self._tell()
        return {"prompt": call.params.get("prompt"), "user": call.user_id}

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def reaches(self, open: int) -> None:
        async with asyncio.timeout(PATIENCE_S), self.changed:
            await self.changed.wait_for(lambda: self.open >= open)


@dataclass
class FalSite:
    app: Fairlead
    gateway: Gateway
    endpoint: Endpoint
    authority: Path
    clients: list[Any] = field(default_factory=list)

    @property
    def polls(self) -> Polls:
        return self.gateway.state.fal_polls

    @property
    def url(self) -> str:
        return f"https://{HOST}"

    def client(self, key: str = "any") -> fal_client.AsyncClient:
        self.clients.append(fal_client.AsyncClient(key=key))
        return self.clients[-1]

    def sync_client(self, key: str = "any") -> fal_client.SyncClient:
        self.clients.append(fal_client.SyncClient(key=key))
        return self.clients[-1]

    async def close(self) -> None:
        """Close the connections of all clients, which have no method for it."""
        for client in self.clients:
            if isinstance(client, fal_client.SyncClient):
                client._client.close()
            else:
                await (await client._client).aclose()

    def http(self, **options: Any) -> httpx2.AsyncClient:
        context = ssl.create_default_context(cafile=str(self.authority / "ca.pem"))
        return httpx2.AsyncClient(base_url=self.url, verify=context, timeout=PATIENCE_S, **options)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                await asyncio.sleep(0.01)


def declare(app: Fairlead, endpoint: Endpoint, limit: int) -> None:
    @app.service("flux", limit=limit, backoff=[0.01])
    async def flux(call: Call) -> dict[str, Any]:
        return await endpoint.work(call)

    @app.service("echo", limit=10)
    async def echo(call: Call) -> dict[str, Any]:
        return {"echo": call.params}

    @app.service("draw", limit=10)
    async def draw(call: Call) -> dict[str, Any]:
        return {"images": [await call.save("a.png", b"\x89PNG", "image/png")], "seed": 1}

    @app.service("talk", limit=10)
    async def talk(call: Call) -> AsyncIterator[Any]:
        for word in call.params["words"]:
            yield word

    @app.service("parrot", limit=10)
    async def parrot(call: Call) -> AsyncIterator[Any]:
        """Emits the JSON in its words."""
        for word in call.params["words"]:
            yield json.loads(word)

    @app.service("improve", limit=10)
    async def improve(call: Call) -> dict[str, Any]:
        for step in range(2):
            call.emit({"step": step})
        return {"done": True}

    @app.service("picky", limit=10)
    async def picky(call: Call) -> None:
        raise Permanent("no such size")

    @app.service("broken", limit=10, max_attempts=1)
    async def broken(call: Call) -> None:
        raise RuntimeError("out of memory")


@asynccontextmanager
async def open_fal(
    folder: Path,
    authority: Path,
    *,
    limit: int = 1,
    admin_key: str | None = None,
    engines: dict[str, str] | None = None,
    **sections: Any,
) -> AsyncIterator[FalSite]:
    async with AsyncExitStack() as stack:
        fronts = {"fal": {"apps": {"acme/flux/dev": "flux"}, "hold": 60, **sections.pop("fal", {})}}
        config = Config.model_validate({"fronts": fronts, **sections})
        urls = engines or {"database_url": f"sqlite:///{folder}/fairlead.db"}
        app = Fairlead(Settings(config, admin_key=admin_key, **urls))
        endpoint = Endpoint()
        declare(app, endpoint, limit)
        await stack.enter_async_context(app.running())
        gateway = create_gateway(app)
        assert isinstance(gateway, Gateway)
        files = {"ssl_certfile": str(authority / "cert.pem"), "ssl_keyfile": str(authority / "key.pem")}
        await stack.enter_async_context(served(gateway, PORT, **files))
        stack.callback(endpoint.gate.set)  # calls that a failed test leaves behind
        site = FalSite(app, gateway, endpoint, authority)
        stack.push_async_callback(site.close)
        yield site
