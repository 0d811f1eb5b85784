"""The real app behind the real gateway on a real port, with an example of everything that a page shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fairlead.app.fairlead import Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.errors import Permanent, Retry
from fairlead.executors.port import Call
from fairlead.gateway.app import create_gateway
from tests.integration.gateway_site import Gate, declare_services, served

PATIENCE_S = 15.0

# Nothing listens there: its calls fail, and the first retry is an hour away.
UNREACHABLE = {
    "limit": 2,
    "backoff": [3600],
    "regions": {name: {"url": f"http://127.0.0.1:9/{name}", "limit": 1} for name in ("eu", "us")},
}


@dataclass
class Stage:
    app: Fairlead
    gate: Gate
    port: int
    _server: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start the gateway on the stage's port; again, after a test has stopped it."""
        self.port = await self._server.enter_async_context(served(create_gateway(self.app), self.port))

    async def stop(self) -> None:
        self.app.hub.dismiss()
        await self._server.aclose()

    async def submit(self, feature: str, user_id: str = "ada", **fields: Any) -> str:
        """Submit a job of this feature and return its id; other arguments as in `POST /api/v1/jobs`."""
        params = fields.pop("input_data", {"prompt": "a lighthouse at dawn"})
        return (await self.app.submit(feature, params, user_id=user_id, **fields)).id

    async def ended(self, *job_ids: str) -> None:
        for job_id in job_ids:
            await self.app.wait(job_id, timeout=PATIENCE_S)

    async def reaches(self, job_id: str, status: str) -> None:
        async def reached() -> bool:
            return (await self.app.get(job_id)).status == status

        await until(reached)

    async def running(self, job_id: str) -> None:
        await self.reaches(job_id, "RUNNING")

    async def actions(self) -> list[tuple[str, str]]:
        """(action, target) of the audit rows, newest first."""
        return [(row.action, row.target) for row in (await self.app.audit()).data]


async def until(reached: Callable[[], Awaitable[Any]]) -> Any:
    """Poll `reached` until it returns something true, and return that."""
    async with asyncio.timeout(PATIENCE_S):
        while not (value := await reached()):
            await asyncio.sleep(0.02)
    return value


def declare_echoes(app: Fairlead, gate: Gate) -> None:
    """Services that repeat their input where a page shows it, and a pipeline that fails at its second step."""
    app.pipeline("echo_then_break", ["echo", "broken", "shout"])

    @app.service("complaining", limit=10)
    async def complaining(call: Call) -> None:
        raise Permanent(call.params["text"])

    @app.service("confiding", limit=1, backoff=[0])
    async def confiding(call: Call) -> dict[str, Any]:
        call.progress(0.5, call.params["text"])
        call.emit(call.params["text"])
        if call.attempt <= call.params.get("failures", 0):
            raise Retry("again")
        await gate.opened.wait()
        call.emit(" and the rest")
        return {"text": call.params["text"]}


@asynccontextmanager
async def raised(
    engines: dict[str, str],
    *,
    admin_key: str | None = None,
    pools: dict[str, int] | None = None,
    sections: dict[str, Any] | None = None,
    **services: dict[str, Any],
) -> AsyncIterator[Stage]:
    """`services` configures some of them further, as a config file would: `gated={"lease_ttl": 1}`. `sections` are the
    other sections of the file."""
    config = {"services": {"gpu": UNREACHABLE, **services}, "pools": pools or {}, **(sections or {})}
    settings = Settings(Config.model_validate(config), admin_key=admin_key)
    app = Fairlead(settings, **engines)
    gate = Gate()
    declare_services(app, gate)
    declare_echoes(app, gate)
    async with app.running():
        stage = Stage(app, gate, 0)
        await stage.start()
        try:
            yield stage
        finally:
            gate.opened.set()
            await stage.stop()
