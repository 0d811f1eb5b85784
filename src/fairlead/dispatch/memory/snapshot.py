"""What operators see of a service."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fairlead.dispatch.memory.health import Health
from fairlead.dispatch.memory.lines import FairBand
from fairlead.dispatch.memory.service import FIFO_LINE, RETRIES, Service, User
from fairlead.dispatch.port import RegionSnapshot, ServiceSnapshot, UserLine
from fairlead.domain.job import Priority
from fairlead.domain.limits import regions_of
from fairlead.domain.order import SECOND

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
        leases=tuple(lease for lease, _ in service.leases.values()),
        holds=tuple(service.holds.values()),
        virtual_time=_virtual_times(service),
        mean_duration=None if service.mean is None else service.mean / SECOND,
        users=tuple(sorted(_user_lines(service), key=lambda line: (line.band, line.tag, line.user_id)))
        if users
        else (),
        regions=tuple(_region(service, region) for region in sorted(rules.regions)),
        unbound=_waiting(service, lambda lane: lane is None) if rules.regions else (0, 0),
    )


def _region(service: Service, region: str) -> RegionSnapshot:
    health = service.health.get(region) or Health()
    waiting, retrying = _waiting(service, lambda lane: lane is not None and region in regions_of(lane))
    return RegionSnapshot(
        region=region,
        limit=service.rules.regions[region],
        in_use=len(service.region_slots.get(region, ())),
        waiting=waiting,
        retrying=retrying,
        failures=health.failures,
        resting_until=health.until / SECOND if health.resting else None,
        probing=bool(health.until) and not health.resting,
        latency=None if health.latency is None else health.latency / SECOND,
    )


def _waiting(service: Service, fits: Callable[[str | None], bool]) -> tuple[int, int]:
    """How many wait in the lanes that fit, and how many of the retries that go first."""
    counts = [
        sum(len(line) for name, lane in band.lanes.items() if fits(name) for line in lane.lines.values())
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


def _user_lines(service: Service) -> Iterator[UserLine]:
    """One per user and band in which it waits or has a virtual time; a user without either is shown once."""
    for user in service.users.values():
        shown = False
        for number, band in enumerate(service.bands):
            tag = band.tags.get(user.user_id) if isinstance(band, FairBand) else None
            waiting = sum(len(lane.lines.get(user.user_id, ())) for lane in band.lanes.values())
            if waiting or tag is not None:
                shown = True
                arrival = band.arrival(user.user_id) if isinstance(band, FairBand) else 0
                yield _user_line(service, user, number, waiting, tag or 0, arrival)
        if not shown:
            yield _user_line(service, user, FIFO_LINE, 0, 0)


def _user_line(service: Service, user: User, band: int, waiting: int, tag: int, arrival: int = 0) -> UserLine:
    parked = user.user_id in service.parked
    return UserLine(user.user_id, band, waiting, user.running, tag, user.weight, parked, arrival)
