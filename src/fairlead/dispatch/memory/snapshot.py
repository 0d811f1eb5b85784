"""Builds the snapshots of services that operators see."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fairlead.dispatch.memory.fair_queue import FairBand, User
from fairlead.dispatch.memory.rates import MARK, ServiceRates
from fairlead.dispatch.memory.regions import RegionBreaker
from fairlead.dispatch.memory.service import FIFO_BAND, RETRIES, Service
from fairlead.dispatch.port import RegionSnapshot, ServiceSnapshot, UserQueue
from fairlead.dispatch.rates import RateUse
from fairlead.domain.fair_share import SECOND
from fairlead.domain.groups import GroupQueue
from fairlead.domain.job import Priority
from fairlead.domain.rates import Rate, Window

_PRIORITIES = [priority.band for priority in Priority]


def snapshot(service: Service, *, users: bool) -> ServiceSnapshot:
    rules = service.rules
    return ServiceSnapshot(
        service=service.name,
        limit=rules.limit,
        in_use=service.in_use,
        held=len(service.holds),
        paused=rules.paused,
        waiting={band: service.waiting[band] for band in _PRIORITIES},
        leases=tuple(lease for lease, *_ in service.leases.values()),
        holds=tuple(hold for hold, _ in service.holds.values()),
        virtual_time=_virtual_times(service),
        mean_duration=None if service.costs.mean is None else service.costs.mean / SECOND,
        seconds_per_unit=service.costs.per_cost.value,
        used_per_unit=service.costs.used_per_cost.value,
        users=tuple(sorted(_user_queues(service), key=lambda queue: (queue.band, queue.tag, queue.user_id)))
        if users
        else (),
        groups=tuple(
            sorted(_group_queues(service, undeclared=users), key=lambda queue: (queue.band, queue.tag, queue.path))
        ),
        regions=tuple(_region(service, region) for region in sorted(rules.regions)),
        unbound=_waiting(service, lambda lane: service.allowed_regions(lane) is None) if rules.regions else (0, 0),
        rates=() if service.rates is None else _rate_uses(service.rates),
    )


def _region(service: Service, region: str) -> RegionSnapshot:
    breaker = service.breakers.get(region) or RegionBreaker()
    waiting, retrying = _waiting(service, lambda lane: region in (service.allowed_regions(lane) or ()))
    return RegionSnapshot(
        region=region,
        limit=service.rules.regions[region],
        in_use=len(service.region_slots.get(region, ())),
        waiting=waiting,
        retrying=retrying,
        failures=breaker.failures,
        resting_until=breaker.until / SECOND if breaker.resting else None,
        probing=bool(breaker.until) and not breaker.resting,
        latency=None if breaker.latency is None else breaker.latency / SECOND,
    )


def _waiting(service: Service, matches: Callable[[str | None], bool]) -> tuple[int, int]:
    """Count the waiting steps in the lanes that match. Returns two numbers: the retries in the band that goes before
    all others are the second, all other steps the first."""
    counts = [
        sum(len(queue) for name, lane in band.lanes.items() if matches(name) for queue in lane.queues.values())
        for band in service.bands
    ]
    return sum(counts) - counts[RETRIES], counts[RETRIES]


def _virtual_times(service: Service) -> dict[int, int]:
    bands = [*_PRIORITIES, RETRIES] if service.rules.retries_first else _PRIORITIES
    return {
        number: band.virtual_time
        for number, band in enumerate(service.bands)
        if number in bands and isinstance(band, FairBand)
    }


def _user_queues(service: Service) -> Iterator[UserQueue]:
    """One row per user and band in which the user waits or has a virtual time. A user who has neither in any band still
    gets one row."""
    for user in service.users.values():
        shown = False
        for number, band in enumerate(service.bands):
            node = band.nodes.get(user.user_id)
            waiting = sum(len(lane.queues.get(user.user_id, ())) for lane in band.lanes.values())
            if waiting or node is not None:
                shown = True
                arrival = band.arrival(user.user_id) if isinstance(band, FairBand) else 0
                yield _user_queue(service, user, number, waiting, 0 if node is None else node.tag, arrival)
        if not shown:
            yield _user_queue(service, user, FIFO_BAND, 0, 0)


def _user_queue(service: Service, user: User, band: int, waiting: int, tag: int, arrival: int = 0) -> UserQueue:
    parked = user.user_id in service.parked
    return UserQueue(user.user_id, band, waiting, user.running, tag, user.weight, parked, arrival, user.group)


def _group_queues(service: Service, *, undeclared: bool) -> Iterator[GroupQueue]:
    """One row per group and band in which the group has a virtual time."""
    if service.groups is None:
        return
    if not service.groups.limited:
        service.groups.count_running()
    for group in service.groups.by_id.values():
        if not undeclared and group.path not in service.group_rules:
            continue
        for number, band in enumerate(service.groups.bands):
            if group.id in band.nodes:
                yield GroupQueue(
                    group.path, number, group.members, group.running, band.tag_of(group.id),
                    band.time(group.id), group.weight, group.limit, group.id in service.parked, band.arrival(group.id),
                )  # fmt: skip


def _rate_uses(rates: ServiceRates) -> tuple[RateUse, ...]:
    rules = rates.rules
    found = [_use_of("service", rules.service, rules.rate, rates.own)]
    found += [
        _use_of("region", region, rules.region_rates.get(region), window)
        for region, window in sorted(rates.regions.items())
    ]
    if rates.pool is not None and rules.pool is not None:
        found.append(_use_of("pool", rules.pool, rates.pool_rate, rates.pool))
    found += [
        _use_of("group", path, rate, window)
        for path, rate in sorted(rates.members.groups.items())
        if (window := rates.windows.get(MARK + path)) is not None and not window.is_empty
    ]
    return tuple(use for use in found if use is not None)


def _use_of(kind: str, name: str, rate: Rate | None, window: Window) -> RateUse | None:
    """How much of a rate is used; None if there is neither a rate nor a rest."""
    if rate is None and not window.rest:
        return None
    until, rest = window.due(0), window.rest / SECOND if window.rest else None
    due = None if until is None else until / SECOND
    return RateUse(kind, name, rate, window.requests, window.units / SECOND, due, rest)
