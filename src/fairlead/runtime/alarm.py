"""One timer for all calls that began together and may take equally long. A timer for each costs more than most of what
a worker does for a call, and nearly none ever rings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Alarm(Generic[T]):
    """Rings for those that are still `on` after so many seconds."""

    __slots__ = ("_calls", "_ring", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, ring: Callable[[T], None]) -> None:
        self._calls: set[T] = set()
        self._ring = ring
        self._timer = loop.call_later(seconds, self._rings)

    def on(self, call: T) -> None:
        self._calls.add(call)

    def off(self, call: T) -> None:
        self._calls.discard(call)
        if not self._calls:
            self._timer.cancel()

    def _rings(self) -> None:
        for call in list(self._calls):
            self._ring(call)
