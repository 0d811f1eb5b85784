"""Polling with a timeout, for conditions in other processes, which send no signal to wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0


async def until(what: str, look: Callable[[], Awaitable[T]], *, patience: float = PATIENCE, every: float = 0.05) -> T:
    """Poll until the result is true, and return it."""
    deadline = time.monotonic() + patience
    while True:
        result = await look()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {patience:g} s: {what}; the last result was {result!r}")
        await asyncio.sleep(every)


async def until_true(what: str, look: Callable[[], bool], *, patience: float = PATIENCE, every: float = 0.05) -> None:
    async def looked() -> bool:
        return look()

    await until(what, looked, patience=patience, every=every)
