"""Apps with turns, for the tests of turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fairlead import Config, Fairlead

ENOUGH = 20.0


def config_of(**services: dict[str, Any]) -> Config:
    """Services for turns; FIFO with one slot unless they say otherwise."""
    said = {name: {"limit": 1, "order": "fifo", **service} for name, service in services.items()}
    return Config.model_validate({"services": said})


MODELS = config_of(flux={}, sdxl={})


@asynccontextmanager
async def line_of(config: Config, engines: dict[str, str]) -> AsyncIterator[Fairlead]:
    """One app that runs all of the line, when the line stands."""
    app = Fairlead(config, **engines)
    async with app.running():
        await stands(app)
        yield app


async def stands(app: Fairlead) -> None:
    """Until slots are granted, and this process has heard of it."""
    async with asyncio.timeout(ENOUGH):
        while set((await app.readiness())["checks"].values()) != {"ok"}:
            await asyncio.sleep(0.02)
    assert app._process is not None
    for line in app._process.lines.values():
        await line.dispatcher.snapshot()


async def until(seen: Callable[[], object]) -> None:
    async with asyncio.timeout(ENOUGH):
        while not seen():
            await asyncio.sleep(0.005)


async def position_is(app: Fairlead, turn_id: str, position: int | None) -> None:
    async with asyncio.timeout(ENOUGH):
        while await app.turns.position(turn_id) != position:
            await asyncio.sleep(0.01)
