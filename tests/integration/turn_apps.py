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
