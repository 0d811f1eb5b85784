"""A circuit breaker: whoever failed often in a row is left alone for a while, and then tried with one question."""

from __future__ import annotations


class Breaker:
    def __init__(self, *, after: int, rest: float) -> None:
        self._after = after
        self._rest = rest
        self._failures = 0
        self._probe_at = 0.0

    def resting(self, now: float) -> bool:
        return self._failures >= self._after and now < self._probe_at

    def admits(self, now: float) -> bool:
        """May it be asked? After the rest the first who wants to is the probe; should nothing be heard of it, another
        one is let through a rest later."""
        if self._failures < self._after:
            return True
        if now < self._probe_at:
            return False
        self._probe_at = now + self._rest
        return True

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, now: float) -> None:
        self._failures += 1
        if self._failures >= self._after:
            self._probe_at = now + self._rest
