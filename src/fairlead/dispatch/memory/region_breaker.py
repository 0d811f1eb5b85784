"""The circuit breaker and latency of one region.

After a single failure, steps that may run elsewhere avoid the region for a while, as long as a first rest would last.
After several failures in a row the region rests: no step is granted there until the rest is over. Then a single call
*probes* the region. If the probe succeeds, the region works as before; if it fails, the region rests again for twice as
long.
"""

from __future__ import annotations

import math

from fairlead.domain.fair_share import micros, smoothed
from fairlead.domain.rules import LONGEST_REST, ServiceRules


class RegionBreaker:
    """The state of one region. Times are in microseconds. `until` is the end of the last rest, and 0 while the region
    works: it stays set until a probe succeeds. `update` clears the flag `resting` once `until` has passed, and
    `avoided` once `avoided_until` has passed. `probe` is the lease of the call that probes the region."""

    __slots__ = ("avoided", "avoided_until", "failures", "latency", "probe", "rest", "resting", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.latency: int | None = None
        self.rest = 0
        self.until = 0
        self.resting = False
        self.probe: str | None = None
        self.avoided_until = 0
        self.avoided = False

    @property
    def to_probe(self) -> bool:
        """Whether the next call to the region is its probe."""
        return bool(self.until) and not self.resting and self.probe is None

    def grantable(self, free: int) -> int:
        """How many of the region's `free` slots may be granted: none during a rest or while the probe runs, one if the
        next call is the probe, otherwise all."""
        if not self.until:
            return free
        return min(1, free) if self.to_probe else 0

    def granted(self, lease: str) -> None:
        if self.until:
            self.probe = lease

    def reset(self) -> None:
        """Return the region to the working state, because the rules no longer configure a breaker."""
        self.rest = self.until = 0
        self.resting, self.probe, self.avoided = False, None, False

    def update(self, now: int) -> float:
        """Clear `resting` and `avoided` if their time has passed. Returns the time at which the next of them is to be
        cleared, or infinity."""
        self.resting, self.avoided = self.resting and now < self.until, self.avoided and now < self.avoided_until
        return self.until if self.resting else self.avoided_until if self.avoided else math.inf

    def ended(self, lease: str, failed: bool | None, took: int, now: int, rules: ServiceRules) -> None:
        """Record the end of a call. `failed` is None if the outcome of the call is unknown. While the region rests or
        is probed, only the probe counts, because all other calls started before the rest."""
        is_probe, self.probe = lease == self.probe, None if lease == self.probe else self.probe
        if failed is None:
            return
        if not failed:
            self.latency = smoothed(self.latency, took)
        if self.until and not is_probe:
            return
        if not failed:
            self.failures = self.rest = self.until = 0
            self.avoided = False
            return
        self.failures += 1
        base = micros(rules.breaker_rest)
        if is_probe:
            self._rest(min(2 * self.rest, LONGEST_REST * base), now)
        elif 0 < rules.breaker_failures <= self.failures:
            self._rest(base, now)
        else:
            self.avoided_until, self.avoided = now + base, True

    def _rest(self, rest: int, now: int) -> None:
        self.rest, self.until, self.resting, self.avoided = rest, now + rest, True, False
