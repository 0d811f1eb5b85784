"""An hour in a second: an event loop whose time jumps to the next timer as soon as nobody has anything to do.

Whatever sleeps or waits by the loop's clock is driven along, so a whole application can run on it. Time stands still
while a thread works for the loop (SQLite's, for one): what takes no time by the story takes none by the clock.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from fairlead.runtime.heartbeat import Heartbeat

EPOCH = 1_750_000_000.0
"""When time begins: a round number, so that stored moments are exact."""
REAL_PATIENCE = 60.0


class Stuck(Exception):
    """Nobody has anything to do, now or ever."""


class _Jumping(selectors.DefaultSelector):
    """Where the loop would sleep until its next timer, the time is set to that timer."""

    now = 0.0
    working = 0
    """How many threads work for the loop; each wakes it when it is done."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.working and timeout != 0:
            return super().select(REAL_PATIENCE)
        if found := super().select(0):
            return found
        if timeout is None:
            raise Stuck("no timer is set, and no thread is at work")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        self._jumping.working += 1
        done = super().run_in_executor(executor, func, *args)
        done.add_done_callback(self._worked)
        return done

    def _worked(self, _: asyncio.Future[Any]) -> None:
        self._jumping.working -= 1


class VirtualClock:
    """The application's clock, on the running loop's time. Chance always takes the middle: a backoff has no jitter."""

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time

    def now(self) -> float:
        return EPOCH + self._time()

    def monotonic(self) -> float:
        return self._time()

    def steady(self) -> float:
        return EPOCH + self._time()

    def randomness(self) -> float:
        return 0.5


class VirtualHeartbeat(Heartbeat):
    """The same pulse without its thread, whose seconds would be real ones."""

    _pulse: asyncio.Task[None]

    def start(self) -> None:
        self._pulse = asyncio.get_running_loop().create_task(self._beat())

    async def stop(self) -> None:
        self._pulse.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._interval())
            for worker in self._workers:
                self._renew(worker)


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test on a loop of its own, whose time begins at 0."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run
