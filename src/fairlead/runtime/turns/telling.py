"""Where a waiter stands, told to it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

TELL_EVERY = 1.0

OnPosition = Callable[[int], object]
"""May be a coroutine function."""


class Teller:
    """Tells a waiter where it stands: what is new, at most once a second."""

    def __init__(self, on_position: OnPosition | None) -> None:
        self._on_position = on_position
        self._told: int | None = None
        self._told_at = float("-inf")
        self.position: int | None = None

    def due_in(self) -> float | None:
        """Seconds until there is something to tell; None: nothing is new."""
        if self._on_position is None or self.position in (None, self._told):
            return None
        return max(0.0, self._told_at + TELL_EVERY - asyncio.get_running_loop().time())

    async def tell_if_due(self) -> None:
        if self.position is not None and self.due_in() == 0.0:
            await self.tell(self.position)

    async def tell(self, position: int) -> None:
        if self._on_position is None or position == self._told:
            return
        self.position = self._told = position
        self._told_at = asyncio.get_running_loop().time()
        said = self._on_position(position)
        if inspect.isawaitable(said):
            await said
