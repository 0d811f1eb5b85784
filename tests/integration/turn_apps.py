"""Apps with turns, for the tests of turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fairlead import Config, Fairlead

ENOUGH = 20.0


def config_of(**services: dict[str, Any]) -> Config:
    """Services for turns; by default FIFO with one slot."""
    defaults = {"limit": 1, "order": "fifo"}
    return Config.model_validate({"services": {name: {**defaults, **service} for name, service in services.items()}})


MODELS = config_of(flux={}, sdxl={})


@asynccontextmanager
async def running_app(config: Config, engines: dict[str, str]) -> AsyncIterator[Fairlead]:
    """An app that runs the whole queue, once it is ready."""
    app = Fairlead(config, **engines)
    async with app.running():
        await until_ready(app)
        yield app


async def until_ready(app: Fairlead) -> None:
    """Wait until slots are granted, and this process has been notified."""
    async with asyncio.timeout(ENOUGH):
        while set((await app.readiness())["checks"].values()) != {"ok"}:
            await asyncio.sleep(0.02)
    node = app._runtime.node
    assert node is not None
    for shard in node.shards.values():
        await shard.dispatcher.snapshot()


async def until(seen: Callable[[], object]) -> None:
    async with asyncio.timeout(ENOUGH):
        while not seen():
            await asyncio.sleep(0.005)


async def position_is(app: Fairlead, turn_id: str, position: int | None) -> None:
    async with asyncio.timeout(ENOUGH):
        while await app.turns.position(turn_id) != position:
            await asyncio.sleep(0.01)


class Waiters:
    """Callers in separate tasks; each holds its slot until the test releases it."""

    def __init__(self, app: Fairlead, service: str = "flux") -> None:
        self.app = app
        self.service = service
        self.order: list[str] = []
        self.positions: dict[str, list[int]] = {}
        self._go: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def join(self, name: str, **options: Any) -> None:
        """Join the queue; returns when the turn is accepted."""
        self._go[name], self.positions[name] = asyncio.Event(), []
        before = await self._count()
        self.tasks[name] = asyncio.create_task(self._turn(name, options))
        async with asyncio.timeout(20):
            while await self._count() == before:
                await asyncio.sleep(0.005)

    async def _count(self) -> int:
        return len((await self.app.list_jobs(limit=500)).data)

    async def _turn(self, name: str, options: dict[str, Any]) -> None:
        user = options.pop("user_id", name)
        async with self.app.turn(self.service, user, on_position=self.positions[name].append, **options) as turn:
            self.order.append(name)
            await self._go[name].wait()
            turn.result = {"by": name}

    async def has(self, name: str) -> None:
        await until(lambda: name in self.order)

    async def go(self, *names: str) -> None:
        """Each in order holds its slot, and leaves."""
        for name in names:
            await self.has(name)
            self._go[name].set()
            await self.tasks[name]


async def turns_of(app: Fairlead, service: str = "flux") -> list[Any]:
    """Oldest first, with all stored fields."""
    page = await app.list_jobs(feature_name=service)
    return [await app.get(job.job_id) for job in reversed(page.data)]
