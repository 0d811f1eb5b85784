"""An event loop in virtual time: when it is idle, its clock jumps to the next timer.

Everything that sleeps or waits by the loop's clock follows, so a whole application can run hours in a second. The clock
does not advance while a thread works for the loop, such as SQLite's writer.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from fairlead.app import event_stream
from fairlead.engine import clock, estimate_accuracy, outbox_relay, rebuild, registry
from fairlead.engine.heartbeat import Heartbeat
from fairlead.engine.loops import orphaned_turns, schedules, sync_rules, timers

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

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        self._jumping.working += 1
        done = super().run_in_executor(executor, func, *args)
        done.add_done_callback(self._worked)
        return done

    def _worked(self, _: asyncio.Future[Any]) -> None:
        self._jumping.working -= 1

    async def shutdown_default_executor(self, *timeout: Any) -> None:
        """Wait for the threads of the executor, which a thread of its own does."""
        self._jumping.working += 1
        try:
            await super().shutdown_default_executor(*timeout)
        finally:
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


# Loops that look, every second or so, for work that other processes left. In virtual time there are none, and an hour
# of looking would take long.
_LOOKS = (
    *((module, "EVERY") for module in (outbox_relay, sync_rules, rebuild, estimate_accuracy, orphaned_turns)),
    *((module, "LOOK_EVERY") for module in (schedules, timers)),
    (event_stream, "POLL_EVERY"),
    (registry, "NEIGHBOURS_EVERY"),
    (clock, "READ_EVERY"),
)
SELDOM = 60.0


@contextmanager
def seldom_looks() -> Iterator[None]:
    """Make the loops that look for other processes' work look once a minute, until the block ends."""
    before = [(module, name, getattr(module, name)) for module, name in _LOOKS]
    for module, name, _ in before:
        setattr(module, name, SELDOM)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a new virtual loop, whose time starts at 0."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run
