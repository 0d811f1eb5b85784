"""Other processes give no signal that a test could wait on; it looks again until its patience ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0


async def until(what: str, look: Callable[[], Awaitable[T]], *, patience: float = PATIENCE, every: float = 0.05) -> T:
    """The first answer that is true; what could not be asked just now is asked again."""
    deadline = time.monotonic() + patience
    while True:
        found = await look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {patience:g} s in vain: {what}; the last look found {found!r}")
        await asyncio.sleep(every)


async def until_true(what: str, look: Callable[[], bool], *, patience: float = PATIENCE, every: float = 0.05) -> None:
    async def looked() -> bool:
        return look()

    await until(what, looked, patience=patience, every=every)
