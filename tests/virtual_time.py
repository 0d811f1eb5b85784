"""An event loop in virtual time: when it is idle, its clock jumps to the next timer.

Everything that sleeps or waits by the loop's clock follows, so a whole application can run hours in a second. The clock
does not advance while a thread works for the loop, such as SQLite's writer.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from fairlead.engine.heartbeat import Heartbeat

EPOCH = 1_750_000_000.0
"""The time at the start: a round number, so that stored times are exact."""
REAL_PATIENCE = 60.0


class Stuck(Exception):
    """The loop is idle and no timer is set: it would wait forever."""


class _Jumping(selectors.DefaultSelector):
    """A selector that advances the clock to the next timer instead of sleeping."""

    now = 0.0
    working = 0
    """The number of threads that work for the loop; each wakes it when done."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.working and timeout != 0:
            return super().select(REAL_PATIENCE)
        if ready := super().select(0):
            return ready
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
    """The application's clock, on the running loop's time. Randomness is always 0.5: no jitter."""

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
    """A heartbeat as a task instead of a thread."""

    _task: asyncio.Task[None]

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._beat())

    async def stop(self) -> None:
        self._task.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.interval)
            for holder in self._holders:
                self._renew(holder)


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a new virtual loop, whose time starts at 0."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run
