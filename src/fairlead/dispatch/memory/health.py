"""How a region does: its breaker, and how fast it is.

After a failure, work that may go elsewhere avoids a region for as long as its first rest would be. Repeated failures
rest it: nothing is granted there until the rest is over. Then it is *probed*: one call, and no other, goes there. If
that succeeds the region works as before; if not it rests again, for twice as long.
"""

from __future__ import annotations

import math

from fairlead.domain.limits import LONGEST_REST, ServiceRules
from fairlead.domain.order import micros, smoothed


class Health:
    """Times are microseconds. `until` is when the present rest ends, 0 of a region that works; `resting` until somebody
    notices that it is over; `probe` is the lease of the call that is to show whether the region works again.
    `avoided`, of one that works, until somebody notices that `avoided_until` has passed."""

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
        """Whether the next call there is to show if it works again."""
        return bool(self.until) and not self.resting and self.probe is None

    def most(self, free: int) -> int:
        """How many of the free slots may be granted."""
        if not self.until:
            return free
        return min(1, free) if self.to_probe else 0

    def granted(self, lease: str) -> None:
        if self.until:
            self.probe = lease

    def work(self) -> None:
        """There is no breaker any more."""
        self.rest = self.until = 0
        self.resting, self.probe, self.avoided = False, None, False

    def pass_time(self, now: int) -> float:
        """When there is something more to notice."""
        self.resting, self.avoided = self.resting and now < self.until, self.avoided and now < self.avoided_until
        return self.until if self.resting else self.avoided_until if self.avoided else math.inf

    def ended(self, lease: str, failed: bool | None, took: int, now: int, rules: ServiceRules) -> None:
        """A call is over: it failed, or not, or nobody can tell. Of a region that rests, or is to be probed, only the
        probe says anything new: other calls that end there began before."""
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
