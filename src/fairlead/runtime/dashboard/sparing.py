"""Questions that cost more than they are worth every second: the last answer is good for a while, the longer the
more it cost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from fairlead.errors import FairleadError

log = logging.getLogger(__name__)

T = TypeVar("T")

SHARE = 0.02
"""Of the time, a question may be under way at most this much."""
KEPT_S = 30.0
"""An answer is never kept longer for what it cost: one that took long because a server was away would be shown for
minutes after it is back."""


class Sparing(Generic[T]):
    """`every` is in seconds; an answer that cost more is kept longer."""

    def __init__(self, ask: Callable[[], Awaitable[T]], every: float) -> None:
        self._ask = ask
        self._every = every
        self._answer: T | None = None
        self._due = float("-inf")
        self._asking: asyncio.Task[T] | None = None

    async def now(self) -> T:
        """Waits for the answer if a new one is due; whoever asks at the same time waits for the same."""
        clock = asyncio.get_running_loop().time
        if self._answer is not None and clock() < self._due:
            return self._answer
        if self._asking is None:
            self._asking = asyncio.create_task(self._keep())
            self._asking.add_done_callback(_heard)
        # One asker that goes away must not take the others' answer with it.
        return await asyncio.shield(self._asking)

    def lately(self) -> T | None:
        """The last answer, at once; a new one is asked for meanwhile if it is due."""
        if self._asking is None and asyncio.get_running_loop().time() >= self._due:
            self._asking = asyncio.create_task(self._keep())
            self._asking.add_done_callback(_heard)
        return self._answer

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._asking

    async def _keep(self) -> T:
        clock = asyncio.get_running_loop().time
        begun = clock()
        try:
            self._answer = await self._ask()
            return self._answer
        finally:
            self._asking = None
            self._due = clock() + max(self._every, min(KEPT_S, (clock() - begun) / SHARE))


def _heard(asked: asyncio.Task[T]) -> None:
    """Whoever waits for it hears of a failure; if nobody does any more, the next one asks again."""
    if not asked.cancelled() and (error := asked.exception()) is not None and not isinstance(error, FairleadError):
        log.warning("a question of the dashboard failed", exc_info=error)
