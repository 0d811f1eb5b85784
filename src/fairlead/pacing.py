"""Limits how often recurring work runs, and how long its last result may be used."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

from fairlead.errors import FairleadError, Unavailable

log = logging.getLogger("fairlead.pacing")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DutyCycle:
    """Computes the pauses of recurring work, so that the work takes at most the fraction `share` of the time. At least
    `every` seconds pass between two runs.

    `longest` limits the pause: a run that was slow because a server was down must not delay the next run by minutes.
    """

    share: float
    every: float = 0.0
    longest: float = inf

    def pause(self, took: float) -> float:
        """The seconds to wait after a run that took this long."""
        return max(self.every, min(self.longest, took * (1 / self.share - 1)))


class Interval:
    """Limits an action to once every `seconds`: `due` returns True if this time has passed since it last returned True.
    The caller passes the time of its monotonic clock."""

    __slots__ = ("_next", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = -inf

    def due(self, now: float) -> bool:
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True


class CachedQuery(Generic[T]):
    """Runs a query, shares its answer among all callers, and reuses the answer for the time that `pace` computes. Only
    one query runs at a time.

    A caller that is cancelled or times out does not cancel the query: other callers still need the answer, and a
    database driver may block until its server confirms a cancellation. While a query hangs, no second one is sent, and
    callers get Unavailable after `timeout` seconds.
    """

    def __init__(self, query: Callable[[], Awaitable[T]], pace: DutyCycle, timeout: float | None = None) -> None:
        self._query = query
        self._timeout = timeout
        self._pace = pace
        self._answer: T | None = None
        self._expires = -inf
        self._running: asyncio.Task[T] | None = None
        self._has_begun = False
        self.pause = pace.every
        """Seconds for which the last answer may be used."""
        self.began = -inf
        """When the query that gave the last answer began, on the event loop's clock."""

    @property
    def running(self) -> bool:
        return self._running is not None

    async def recent(self) -> T:
        """The last answer; if it has expired, the answer to a new query."""
        if self._answer is not None and asyncio.get_running_loop().time() < self._expires:
            return self._answer
        async with self._time_limit():
            return await asyncio.shield(self._running or self._start())

    def last(self) -> T | None:
        """The last answer, even if it has expired, without waiting; None if there is none. Starts a new query in the
        background if the last answer has expired."""
        if self._running is None and asyncio.get_running_loop().time() >= self._expires:
            self._start()
        return self._answer

    async def fresh(self) -> T:
        """The answer to a query that begins after this call, so the answer includes everything that the caller has just
        written."""
        async with self._time_limit():
            if self._running is not None and self._has_begun:
                await asyncio.wait({self._running})
            return await asyncio.shield(self._running or self._start())

    async def since(self, moment: float) -> T:
        """The answer to a query that began at `moment` or later, on the event loop's clock."""
        async with self._time_limit():
            while self._answer is None or self.began < moment:
                query = self._running or self._start()
                await asyncio.wait({query})
                query.result()  # raises what the query raised
        return self._answer

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._running

    @contextlib.asynccontextmanager
    async def _time_limit(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout) as limit:
                yield
        except TimeoutError:
            if limit.expired():
                raise Unavailable(f"no answer within {self._timeout:g} s") from None
            raise

    def _start(self) -> asyncio.Task[T]:
        self._has_begun = False
        self._running = asyncio.create_task(self._run())
        self._running.add_done_callback(_log_failure)
        return self._running

    async def _run(self) -> T:
        clock = asyncio.get_running_loop().time
        began, self._has_begun = clock(), True
        try:
            answer = self._answer = await self._query()
            self.began = began
            return answer
        finally:
            self._running = None
            self.pause = self._pace.pause(clock() - began)
            self._expires = clock() + self.pause


def _log_failure(query: asyncio.Task[T]) -> None:
    """Log an unexpected error of a query. Reading the exception here also keeps asyncio from logging that it was never
    retrieved if all callers have left."""
    if not query.cancelled() and (error := query.exception()) is not None and not isinstance(error, FairleadError):
        log.warning("a cached query failed", exc_info=error)
