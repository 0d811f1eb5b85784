"""The choice of the step that gets a free slot of a service with regions, and of the region that it runs in."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from fairlead.dispatch.memory.rated_service import fits, fitting_regions, rated_head
from fairlead.dispatch.port import Unserved

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
