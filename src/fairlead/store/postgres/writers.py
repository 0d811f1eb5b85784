"""The connections for commits.

asyncpg's own pool makes a proxy for every use, and a task to give the connection back: as much work for the event loop
as a whole statement, and on an idle system a job waits for it twice on its way to its start.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

IDLE_LIFETIME = 300.0
CLOSE_TIMEOUT = 5.0


class Closable(Protocol):
    def is_closed(self) -> bool: ...

    def is_in_transaction(self) -> bool: ...

    def terminate(self) -> None: ...

    async def close(self, *, timeout: float) -> None: ...


C = TypeVar("C", bound=Closable)


class Writers(Generic[C]):
    """At most so many, each made by `connect` when it is needed, and closed when it was not for a while."""

    def __init__(self, connect: Callable[[], Awaitable[C]], most: int, idle_lifetime: float = IDLE_LIFETIME) -> None:
        self._connect = connect
        self._places = asyncio.Semaphore(most)
        self._idle: list[tuple[C, float]] = []
        """With the moment since when, the newest last: that one is used next, so that the others may grow old."""
        self._idle_lifetime = idle_lifetime
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[C]:
        async with self._places:
            connection = await self._take()
            try:
                yield connection
            except (asyncio.CancelledError, TimeoutError):
                connection.terminate()  # a statement may still be under way on it
                raise
            finally:
                self._give_back(connection)

    async def close(self) -> None:
        """Those that are in use end with their use."""
        self._closed = True
        self._cancel_timer()
        while self._idle:
            connection, _ = self._idle.pop()
            await connection.close(timeout=CLOSE_TIMEOUT)

    def terminate(self) -> None:
        """At once, without a goodbye."""
        self._closed = True
        self._cancel_timer()
        while self._idle:
            self._idle.pop()[0].terminate()

    async def _take(self) -> C:
        while self._idle:
            connection, _ = self._idle.pop()
            if not connection.is_closed():  # by the server, while nobody used it
                return connection
        return await self._connect()

    def _give_back(self, connection: C) -> None:
        """What is left in the middle of something is of no use to the next."""
        if self._closed or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
            return
        loop = asyncio.get_running_loop()
        self._idle.append((connection, loop.time()))
        if self._timer is None:
            self._timer = loop.call_later(self._idle_lifetime, self._end_idle)

    def _end_idle(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._idle_lifetime
        while self._idle and self._idle[0][1] <= oldest:
            self._idle.pop(0)[0].terminate()
        self._timer = None
        if self._idle:
            self._timer = loop.call_at(self._idle[0][1] + self._idle_lifetime, self._end_idle)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
