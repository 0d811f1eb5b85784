"""The regions of a service: the choice of the step that gets a free slot and of the region that it runs in, and the
circuit breaker and latency of each region.

After a single failure, steps that may run elsewhere avoid the region for a while, as long as a first rest would last.
After several failures in a row the region rests: no step is granted there until the rest is over. Then a single call
*probes* the region. If the probe succeeds, the region works as before; if it fails, the region rests again for twice as
long.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from fairlead.dispatch.memory.rated_service import fits, fitting_regions, rated_head
from fairlead.dispatch.port import Unserved
from fairlead.domain.fair_share import micros, smoothed
from fairlead.domain.rules import LONGEST_REST, ServiceRules

if TYPE_CHECKING:
    from fairlead.dispatch.memory.service import Service

RETRIES = 0
"""The band of retries that go before every priority."""
ALL_BANDS = (0, 1, 2, 3)

Pick: TypeAlias = tuple[int, str | None, str, str | None]
"""The step to grant next, as (band, lane, user id, region of the slot).

A plain tuple, because one is made per grant and a named tuple takes five times as long to create.
"""


def pick_of_regions(
    service: Service, bands: tuple[int, ...], regions: frozenset[str] | None, *, pool_full: bool, unserved: Unserved
) -> Pick | None:
    """Implements `Service.pick` for a service with regions. A step that only other workers take holds all others back
    too, if a rate of the service or its pool does not allow it yet."""
    may_hold_back = service.rates is not None and not service.rates.is_plain
    if may_hold_back and (regions is not None or not (service.fifo or bands == ALL_BANDS)):
        first = _first(service, ALL_BANDS, None, pool_full=pool_full, unserved=frozenset())
        if first is not None and not fits(service, first):
            return None
    pick = _first(service, bands, regions, pool_full=pool_full, unserved=unserved)
    return None if may_hold_back and pick is not None and not fits(service, pick) else pick


def _first(
    service: Service, bands: tuple[int, ...], regions: frozenset[str] | None, *, pool_full: bool, unserved: Unserved
) -> Pick | None:
    """The step that is next, if the rates of the service and its pool allow it. Steps of the unbound lane compete with
    the steps bound to any region that has a free slot. Retries that go first precede all of them."""
    if regions is None:
        unserved = frozenset()  # a worker that claims for any region serves all regions
    free = {
        region: slots
        for region in sorted(service.rules.regions)
        if (regions is None or region in regions)
        and not (pool_full and service.rules.in_pool(region))
        and (slots := service.region_free(region)) > 0
    }
    if not free:
        return None
    preferred = sorted(free, key=lambda region: (*_preference(service, region), -free[region], region))
    by_health = _probes_first(service, preferred) if service.breakers else preferred
    for number in bands:
        # Use a retry to probe a region only if no other region is left.
        regions_in_turn = preferred if number == RETRIES else by_health
        band = service.bands[number]
        if not band.waiting:
            continue
        heads = [
            # A user may be first in two lanes, with the same tag. The order of the user's own steps then decides.
            (head, lane.queues[head[-1]][0], name, region)
            for name, lane in band.lanes.items()
            if lane.queues
            and (head := rated_head(service, band, name)) is not None
            and (fitting := fitting_regions(service, lane, head, regions_in_turn))
            and (region := _best_region(service, name, fitting, unserved)) is not None
        ]
        if heads:
            is_global = number == RETRIES and heads[0][2] is None
            first = heads[0] if is_global else min(heads)
            return number, first[2], first[0][-1], first[3]
    return None


def _best_region(service: Service, lane: str | None, regions: list[str], unserved: Unserved) -> str | None:
    """The first of `regions`, which are in order of preference, in which steps of the lane may run; or None."""
    within = service.allowed_regions(lane, unserved)
    return next((region for region in regions if within is None or region in within), None)


def _preference(service: Service, region: str) -> tuple[bool, float, int]:
    """The sort key of a region, best first: healthy regions, then those with the least load relative to their weight
    (if weights differ), then the fastest.

    A region that failed is avoided only for a while. Otherwise no call would ever show that it works again.
    """
    breaker, weights = service.breakers.get(region), service.rules.region_weights
    load = (len(service.region_slots.get(region, ())) + 1) / weights.get(region, 1.0) if weights else 0.0
    return (False, load, 0) if breaker is None else (breaker.avoided or breaker.to_probe, load, breaker.latency or 0)


def _probes_first(service: Service, preferred: list[str]) -> list[str]:
    """Move the regions that are to be probed to the front. Otherwise they would get no call until all other regions are
    full."""
    return sorted(preferred, key=lambda region: not ((breaker := service.breakers.get(region)) and breaker.to_probe))


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
