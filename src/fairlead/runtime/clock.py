"""Time and chance, injected: tests and simulations bring their own."""

from __future__ import annotations

import random
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch: what is stored and shown."""
        ...

    def monotonic(self) -> float:
        """Seconds that never jump: what durations and leases are measured by."""
        ...

    def steady(self) -> float:
        """Seconds since the epoch as of the start, then monotonic: what leases live by, so that a clock that is set
        forward an hour expires none."""
        ...

    def randomness(self) -> float:
        """A number in [0, 1): the jitter of a backoff."""
        ...


class SystemClock:
    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def steady(self) -> float:
        return self._offset + time.monotonic()

    def randomness(self) -> float:
        return random.random()
