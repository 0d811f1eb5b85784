"""The clock and the source of randomness, injected so that tests and simulations can replace them; and ids that sort by
time."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol
from uuid import UUID

from fairlead.errors import Unavailable

log = logging.getLogger("fairlead.clock")

READ_EVERY = 1.0
READ_WITHIN = 5.0
"""Seconds after which a reading of the database's clock is given up, because the server may hang."""
FIRST_READINGS = 3
"""How many times the clock is read at the start. The first reply may be slow; the fastest one gives the best
reading."""
NOTEWORTHY = 1.0
"""A correction of the clock by more than this many seconds is logged."""
TICKS = 4096
"""Ids per millisecond: the range of the 12 bits after the timestamp."""

_last = 0


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since 1970, for times that are stored or shown."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that is never adjusted, for measuring durations."""
        ...

    def steady(self) -> float:
        """The time at which the process started, in seconds since 1970, plus the monotonic time since then. Leases use
        it, because a lease must not expire when the system's clock is set forward."""
        ...

    def randomness(self) -> float:
        """A number in [0, 1), for the jitter of a backoff."""
        ...


_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    """The clocks of this machine. Where the platform supports it, `monotonic` includes the time for which the machine
    was suspended. `steady` does not include it: workers were suspended too, and must be able to renew their leases
    before these expire."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    # Read several times by every job: the functions themselves cost less than methods that call them.
    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME))

    def steady(self) -> float:
        return self._offset + time.monotonic()

    def randomness(self) -> float:
        return random.random()


class DatabaseClock:
    """The clock of an application: `now()` is the database's time, advanced by the machine's monotonic clock between
    two readings. Before `follow` is called, and always with SQLite, it is the machine's own clock. See ADR 18."""

    def __init__(self, machine: Clock) -> None:
        self._machine = machine
        self._offset: float | None = None  # the database's time minus the monotonic clock
        self.monotonic = machine.monotonic
        self.steady = machine.steady
        self.randomness = machine.randomness
        self.machine = machine.now
        """The machine's own clock. It is stored in the registration for the doctor, and used for nothing else."""

    def now(self) -> float:
        return self._machine.now() if self._offset is None else self._offset + self.monotonic()

    async def follow(self, read: Callable[[], Awaitable[float]]) -> None:
        """From now on, follow the clock whose time `read` returns (`Store.now`). Raises Unavailable if that clock
        cannot be read."""
        self._offset = None
        for _ in range(FIRST_READINGS):
            await self._read(read)

    async def keep_following(self, read: Callable[[], Awaitable[float]]) -> None:
        """Read the followed clock regularly, forever. While it cannot be read, `now()` advances with the monotonic
        clock."""
        while True:
            await asyncio.sleep(READ_EVERY)
            try:
                async with asyncio.timeout(READ_WITHIN):
                    await self._read(read)
            except (Unavailable, TimeoutError) as error:
                log.debug("the database's clock cannot be read: %r", error)
            except Exception:
                log.exception("reading the database's clock failed")

    async def _read(self, read: Callable[[], Awaitable[float]]) -> None:
        asked = self.monotonic()
        reading = await read()
        self._bound(reading - self.monotonic(), reading - asked)

    def _bound(self, least: float, most: float) -> None:
        """Correct the offset after a reading, which shows that the true offset lies between `least` and `most`. If the
        current offset lies between them, keep it: moving it to the middle after every reading would follow the noise of
        slow replies."""
        before = self._offset
        self._offset = least if before is None else min(max(before, least), most)
        if before is not None and abs(self._offset - before) > NOTEWORTHY:
            log.warning("the database's clock was set %+.1f s; following it", self._offset - before)


def id_at(now: float) -> str:
    """Make a version 7 UUID for this time of the database's clock. The ids of one process are strictly increasing, even
    within a millisecond or after the clock was set back. The order of jobs does not depend on that: jobs are listed by
    their sequence number."""
    global _last
    _last = max(_last + 1, int(now * 1000 * TICKS))
    milliseconds, ticks = divmod(_last, TICKS)
    return str(UUID(int=milliseconds << 80 | 7 << 76 | ticks << 64 | 2 << 62 | secrets.randbits(62)))
