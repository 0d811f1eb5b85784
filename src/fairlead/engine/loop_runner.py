"""Runs loops. Each tick of a loop returns the time of its next tick; a wakeup can make the next tick earlier.

The time of the next tick is on the database's clock. The wait is also measured on the monotonic clock, so no loop
stalls when the database's clock is set back. When that clock is set forward, a loop ticks as soon as the clock has
reached the time of its next tick.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from fairlead.engine.clock import Clock
from fairlead.errors import AlreadyDispatching, Unavailable
from fairlead.outage import Outage
from fairlead.store.port import Busy

log = logging.getLogger("fairlead.loops")

BACKOFF = 1.0
LONGEST_WAIT = 5.0
"""Seconds after which a waiting loop compares its due time with the database's clock again."""


class Loop(Protocol):
    name: str

    async def tick(self, now: float) -> float:
        """Do a bounded piece of work, and return the time of the next tick on the database's clock. Durations must be
        measured with the event loop's time, because the database's clock may be adjusted."""
        ...


@runtime_checkable
class ClosingLoop(Protocol):
    """A loop that has something to close when the runner stops."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Due:
    """The next tick of a loop is due at `time` on the monotonic clock or at `moment` on the database's clock, whichever
    comes first."""

    time: float
    moment: float

    def or_sooner(self, other: _Due) -> _Due:
        return _Due(min(self.time, other.time), min(self.moment, other.moment))

    def wait(self, clock: Clock) -> float:
        return min(self.time - clock.monotonic(), self.moment - clock.now())


NEVER = _Due(float("inf"), float("inf"))


class LoopRunner:
    def __init__(self, loops: Sequence[Loop], clock: Clock) -> None:
        self._clock = clock
        self._loops = {loop.name: loop for loop in loops}
        self._wakeups = {name: asyncio.Event() for name in self._loops}
        self._due = dict.fromkeys(self._loops, NEVER)
        self._failed = dict.fromkeys(self._loops, 0)
        self._outages = {name: Outage(log, f"the {name} loop") for name in self._loops}
        self._failing_since: dict[str, float] = {}
        """For each loop that fails, the time on the monotonic clock since which every tick has failed. Failures of the
        dispatcher do not count."""

    async def run(self) -> None:
        self._failing_since.clear()
        try:
            async with asyncio.TaskGroup() as group:
                for loop in self._loops.values():
                    group.create_task(self._drive(loop), name=f"fairlead-{loop.name}")
        finally:
            for loop in self._loops.values():
                if isinstance(loop, ClosingLoop):
                    await loop.close()

    def counts(self) -> dict[str, dict[str, Any]]:
        """For each loop: how many items it scanned, how many of them it queued or otherwise moved, and how often it
        failed; and the histogram of its `latency` as JSON, if it has one."""
        return {
            name: {
                "scanned": getattr(loop, "scanned", 0),
                "queued": getattr(loop, "queued", 0),
                "failed": self._failed[name],
                **({"latency": loop.latency.as_dict()} if hasattr(loop, "latency") else {}),
            }
            for name, loop in self._loops.items()
        }

    def failing(self, seconds: float) -> list[str]:
        """The names of the loops that have failed at every tick for more than `seconds`, because of the database or
        their own errors. Failures of the dispatcher do not count: they would occur in another manager too, so giving up
        leadership would not help."""
        since = self._clock.monotonic() - seconds
        return sorted(name for name, moment in self._failing_since.items() if moment < since)

    def wake(self, name: str, moment: float) -> None:
        """Tick the loop at `moment`, if that is before the time of its next tick."""
        due = self._due.get(name)
        if due is not None and moment < due.moment:
            self._due[name] = due.or_sooner(self._at(moment))
            self._wakeups[name].set()

    def _at(self, moment: float) -> _Due:
        return _Due(self._clock.monotonic() + moment - self._clock.now(), moment)

    async def _drive(self, loop: Loop) -> None:
        while True:
            self._wakeups[loop.name].clear()
            # A wakeup during the tick always counts: the tick may have read before the row was written.
            self._due[loop.name] = NEVER
            began, now = self._clock.monotonic(), self._clock.now()
            try:
                following = await loop.tick(now)
                due = _Due(began + following - now, following)
                self._outages[loop.name].ended()
                self._failing_since.pop(loop.name, None)
            except Unavailable as error:
                self._outages[loop.name].began(error)
                due = self._at(self._clock.now() + BACKOFF)
                self._failed[loop.name] += 1
                if isinstance(error, Busy):
                    self._failing_since.setdefault(loop.name, self._clock.monotonic())
            except AlreadyDispatching:
                raise  # another process dispatches from memory: this one must exit
            except Exception:
                log.exception("the %s loop failed; trying again", loop.name)
                due = self._at(self._clock.now() + BACKOFF)
                self._failed[loop.name] += 1
                self._failing_since.setdefault(loop.name, self._clock.monotonic())
            self._due[loop.name] = self._due[loop.name].or_sooner(due)
            await self._wait_for(loop.name)

    async def _wait_for(self, name: str) -> None:
        wakeup = self._wakeups[name]
        wakeup.clear()
        while (rest := self._due[name].wait(self._clock)) > 0:
            try:
                async with asyncio.timeout(min(rest, LONGEST_WAIT)):
                    await wakeup.wait()
                    wakeup.clear()
            except TimeoutError:
                pass
