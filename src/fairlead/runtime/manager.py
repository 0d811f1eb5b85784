"""Runs the loops: each ticks when it asked to, or earlier when told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from fairlead.errors import AlreadyDispatching, Unavailable
from fairlead.runtime.clock import Clock
from fairlead.runtime.outage import Outage

log = logging.getLogger(__name__)

BACKOFF = 1.0


class Loop(Protocol):
    name: str

    async def tick(self, now: float) -> float:
        """Do a bounded piece of work; return when to be called again."""
        ...


class Manager:
    def __init__(self, loops: Sequence[Loop], clock: Clock) -> None:
        self._clock = clock
        self._loops = {loop.name: loop for loop in loops}
        self._bells = {name: asyncio.Event() for name in self._loops}
        self._due = dict.fromkeys(self._loops, 0.0)
        self._failed = dict.fromkeys(self._loops, 0)
        self._outages = {name: Outage(log, f"the {name} loop") for name in self._loops}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for loop in self._loops.values():
                group.create_task(self._drive(loop), name=f"fairlead-{loop.name}")

    def counts(self) -> dict[str, dict[str, int]]:
        """Per loop: how much it looked at, how much of that it queued (or otherwise moved), how often it failed."""
        return {
            name: {
                "scanned": getattr(loop, "scanned", 0),
                "queued": getattr(loop, "queued", 0),
                "failed": self._failed[name],
            }
            for name, loop in self._loops.items()
        }

    def wake(self, name: str, moment: float) -> None:
        """Something will be due at `moment`; earlier than the loop knows, perhaps."""
        if moment < self._due.get(name, 0.0):
            self._due[name] = moment
            self._bells[name].set()

    async def _drive(self, loop: Loop) -> None:
        bell = self._bells[loop.name]
        while True:
            bell.clear()
            # While it ticks, any hint is news: the tick may have looked before the hint's row was there.
            self._due[loop.name] = float("inf")
            try:
                following = await loop.tick(self._clock.now())
                self._outages[loop.name].ended()
            except Unavailable as error:
                self._outages[loop.name].began(error)
                following = self._clock.now() + BACKOFF
                self._failed[loop.name] += 1
            except AlreadyDispatching:
                raise  # somebody else dispatches from memory: this process is to end
            except Exception:
                log.exception("the %s loop failed; trying again", loop.name)
                following = self._clock.now() + BACKOFF
                self._failed[loop.name] += 1
            self._due[loop.name] = min(following, self._due[loop.name])
            bell.clear()
            while (rest := self._due[loop.name] - self._clock.now()) > 0:
                try:
                    async with asyncio.timeout(rest):
                        await bell.wait()
                        bell.clear()
                except TimeoutError:
                    pass
