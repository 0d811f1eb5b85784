"""The application on a temporary SQLite file, behind the real gateway."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from fastapi import FastAPI

from fairlead.app.fairlead import Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config, ServerConfig
from fairlead.errors import Permanent
from fairlead.executors.port import Call
from fairlead.gateway.app import Gateway, create_gateway
from fairlead.gateway.serving import uvicorn_options

TURNS = {
    "slot": {"limit": 1, "order": "fifo"},
    "short": {"limit": 1, "order": "fifo", "lease_ttl": 2},
}
"""Services whose slots their callers use themselves."""


@dataclass
class Gate:
    """Holds the calls of `gated` until a test releases them."""

    opened: asyncio.Event = field(default_factory=asyncio.Event)
    entered: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Site:
    """An app, its gateway, and a client in the same process."""

    app: Fairlead
    gateway: FastAPI
    client: httpx2.AsyncClient
    gate: Gate

    async def submit(self, **fields: Any) -> str:
        body = {"user_id": "ada", "feature_name": "echo", "input_data": {"n": 1}, **fields}
        response = await self.client.post("/api/v1/jobs", json=body)
        assert response.status_code == 202, response.text
        return str(response.json()["job_id"])

    async def job_ids(self) -> list[str]:
        response = await self.client.get("/api/v1/jobs", params={"limit": 500})
        return [job["job_id"] for job in response.json()["data"]]


def declare_services(app: Fairlead, gate: Gate) -> None:
    @app.service("echo", limit=10, models=["echo"])
    async def echo(call: Call) -> dict[str, Any]:
        return {"echo": call.params}

    @app.service("shout", limit=10)
    async def shout(call: Call) -> dict[str, Any]:
        return {"shout": call.result_of("echo")["echo"]}

    @app.service("gated", limit=1, models=["gated"])
    async def gated(call: Call) -> dict[str, Any]:
        gate.entered.set()
        await gate.opened.wait()
        return {"through": True}

    @app.service("broken", limit=10)
    async def broken(call: Call) -> None:
        raise Permanent("this input will never work")

    @app.service("flaky", limit=10, retry="manual")
    async def flaky(call: Call) -> dict[str, Any]:
        if not gate.opened.is_set():
            raise RuntimeError("not yet")
        return {"worked": True}

    @app.service("unspeakable", limit=10)
    async def unspeakable(call: Call) -> Any:
        return {"not json": object()}

    @app.service("whisper", limit=10)
    async def whisper(call: Call) -> dict[str, Any]:
        call.progress(0.5, "half of it")
        return {"after": list(call.context)}

    app.pipeline("echo_then_shout", ["echo", "shout"])
    app.pipeline("gated_then_whisper", ["gated", "whisper"])


@asynccontextmanager
async def open_site(
    database: Path,
    *,
    admin_key: str | None = None,
    running: bool = True,
    sections: dict[str, Any] | None = None,
    **server: Any,
) -> AsyncIterator[Site]:
    config = Config.model_validate({"server": server, "services": TURNS, **(sections or {})})
    app = Fairlead(Settings(config, f"sqlite:///{database}", admin_key))
    gate = Gate()
    declare_services(app, gate)
    async with app.running() if running else app:
        gateway = create_gateway(app)
        async with client_of(gateway) as client:
            yield Site(app, gateway, client, gate)


def client_of(gateway: FastAPI, host: str = "localhost") -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=gateway, raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url=f"http://{host}")


class _Server(uvicorn.Server):
    """Sets an event when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


@asynccontextmanager
async def served(gateway: FastAPI, port: int = 0, **options: Any) -> AsyncIterator[int]:
    """Serve `gateway` (or any ASGI app) with a real server on a loopback port, a free one by default."""
    async with serving(gateway, port, **options) as (port, _):
        yield port


def _server_config(gateway: FastAPI) -> ServerConfig:
    """Return the gateway's own settings, or the defaults for an app that replaces an endpoint."""
    return gateway.state.fairlead.config.server if isinstance(gateway, Gateway) else ServerConfig()


@asynccontextmanager
async def serving(gateway: FastAPI, port: int = 0, **options: Any) -> AsyncIterator[tuple[int, uvicorn.Server]]:
    with socket.create_server(("127.0.0.1", port)) as listener:
        # Otherwise a response of two packets waits 40 ms for the client to acknowledge the first.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(
            gateway,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            **uvicorn_options(_server_config(gateway)),
            **options,
        )
        server = _Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await server.listening.wait()
        try:
            yield listener.getsockname()[1], server
        finally:
            server.should_exit = True
            await task
