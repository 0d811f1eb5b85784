"""The rates of one service and of its pool: what their windows count, which users are parked because of their own rate,
and the rests that the upstream asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.dispatch.memory.fair_queue import COST, USER, Entry, FairBand, FifoBand, Lane
from fairlead.dispatch.port import Lease, Release
from fairlead.dispatch.rates import RateUse, Rest, Spent
from fairlead.domain.fair_share import SECOND, micros, smoothed
from fairlead.domain.rates import UNLIMITED, Rate, Window
from fairlead.domain.rules import Rules, ServiceRules

if TYPE_CHECKING:
    from fairlead.dispatch.memory.service import Pick, Service


class Reservation(NamedTuple):
    """What a grant counts in: its windows, its estimated units, and when it was sent (None: not known)."""

    windows: tuple[Window, ...]
    units: int
    sent_at: int | None


class ServiceRates:
    """Exists only for a service with a rate, in a pool with a rate, or that rests or has rested. Without one, a claim
    pays a comparison with None.

    `parked` has the users that are parked because of their own rate, with the time of their next chance. `dues` are
    the times at which a user's window has to be looked at: that time, or the end of its last entry.
    """

    __slots__ = (
        "dues",
        "heap",
        "mean_units",
        "own",
        "parked",
        "pool",
        "pool_rate",
        "regions",
        "reservations",
        "rules",
        "users",
    )

    def __init__(self, rules: ServiceRules) -> None:
        self.rules = rules
        self.own = Window()
        self.regions: dict[str, Window] = {}
        self.pool: Window | None = None
        self.pool_rate: Rate | None = None
        self.users: dict[str, Window] = {}
        self.reservations: dict[str, Reservation] = {}
        self.mean_units: int | None = None
        self.parked: dict[str, int] = {}
        self.dues: dict[str, int] = {}
        self.heap: list[tuple[int, str]] = []
        self.take_rules(rules)

    def take_rules(self, rules: ServiceRules) -> None:
        """Apply the rates of the rules. Users that are parked because of their rate get another chance if that rate has
        changed."""
        before, self.rules = self.rules.user_rate, rules
        self.own.take_rate(rules.rate)
        for region in self.regions.keys() | rules.region_rates.keys():
            self.regions.setdefault(region, Window()).take_rate(rules.region_rates.get(region))
        if rules.user_rate != before:
            self.parked.clear()
            for user_id, window in self.users.items():
                window.take_rate(rules.user_rate)
                self._due(user_id)
            if rules.user_rate is None:
                self.users.clear()
                self.dues.clear()

    # -- granting -------------------------------------------------------------------------------------------------

    def units_of(self, cost: int | None) -> int:
        """The units that a step reserves: its stated cost, else what calls of the service took on average."""
        return cost if cost is not None else self.mean_units or 0

    def fits(self, cost: int | None, *, pooled: bool) -> bool:
        units = self.units_of(cost)
        return self.own.fits(units) and (not pooled or self.pool is None or self.pool.fits(units))

    def region_room(self, region: str) -> int:
        window = self.regions.get(region)
        return UNLIMITED if window is None else window.room()

    def region_fits(self, region: str, cost: int | None) -> bool:
        window = self.regions.get(region)
        return window is None or window.fits(self.units_of(cost))

    def parks(self, user_id: str, cost: int | None) -> bool:
        """Whether the user's own rate keeps this step from being granted. If so, the user is parked until the window
        has changed."""
        window = self.users.get(user_id)
        if window is None or window.fits(units := self.units_of(cost)):
            return False
        self.parked[user_id] = window.due(units) or UNLIMITED
        self._due(user_id)
        return True

    def granted(self, lease: Lease, cost: int | None, *, pooled: bool) -> None:
        windows = self._windows(lease, pooled=pooled)
        units = self.units_of(cost)
        for window in windows:
            window.take(units)
        if windows:
            self.reservations[lease.name] = Reservation(windows, units, None)
            self._due(lease.user_id)

    def restored(self, lease: Lease) -> None:
        """Count a call that was running when the queue was rebuilt."""
        cost = None if lease.cost is None else micros(lease.cost)
        self.granted(lease, cost, pooled=self.rules.in_pool(lease.region))

    def _windows(self, what: Lease | Spent, *, pooled: bool) -> tuple[Window, ...]:
        windows = [self.own, self.regions.get(what.region or "")]
        if pooled:
            windows.append(self.pool)
        if self.rules.user_rate is not None:
            windows.append(self.users.setdefault(what.user_id, Window(self.rules.user_rate)))
        return tuple(each for each in windows if each is not None and _counts(each))

    # -- what became of a grant -----------------------------------------------------------------------------------

    def sent(self, lease: Lease, after: float, now: int) -> None:
        held = self.reservations.get(lease.name)
        if held is None or held.sent_at is not None:
            return
        sent_at = _sent_at(lease, after, now)
        for window in held.windows:
            window.sent(held.units, sent_at)
        self.reservations[lease.name] = held._replace(sent_at=sent_at)
        self._changed(lease.user_id)

    def ended(self, lease: Lease, release: Release, now: int) -> None:
        used = None if release.used is None or release.refund else micros(release.used)
        if used is not None:
            self.mean_units = smoothed(self.mean_units, used)
        held = self.reservations.pop(lease.name, None)
        if held is None:
            return
        reported, sent_at = held.sent_at is not None, held.sent_at
        if sent_at is None and release.sent is not None:
            sent_at = _sent_at(lease, release.sent, now)
        for window in held.windows:
            if release.refund and not reported:
                window.refund(held.units)
            else:
                window.ended(held.units, used, sent_at, now, reported=reported)
        self._changed(lease.user_id)

    def spent(self, call: Spent, ended_at: int, *, pooled: bool) -> None:
        """Count a call that ended before the queue was rebuilt."""
        for window in self._windows(call, pooled=pooled):
            window.add(ended_at, 1, micros(call.units))
        self._due(call.user_id)

    def rest(self, rest: Rest, now: int) -> None:
        """Take over what the upstream said about its own limits."""
        window = self.own if rest.region is None else self.regions.setdefault(rest.region, Window())
        until = now + micros(rest.seconds)
        if rest.requests is None and rest.units is None:
            window.rest = max(window.rest, until)
        else:
            window.correct(rest.requests, None if rest.units is None else micros(rest.units), until)

    # -- time -----------------------------------------------------------------------------------------------------

    def advance(self, now: int) -> tuple[bool, list[str]]:
        """Drop what is over. Returns whether a window has changed, and the users that are no longer parked, in the
        order in which they enter the queue again."""
        changed = [window.advance(now) for window in self._shared()]
        unparked = []
        while self.heap and self.heap[0][0] <= now:
            due, user_id = heappop(self.heap)
            if self.dues.get(user_id) != due:
                continue
            window = self.users[user_id]
            window.advance(now)
            if self.parked.get(user_id, UNLIMITED) <= now:
                del self.parked[user_id]
                unparked.append(user_id)
            self._due(user_id)
        return any(changed), unparked

    def next_due(self) -> float:
        """The time at which `advance` has something to do, or infinity."""
        while self.heap and self.dues.get(self.heap[0][1]) != self.heap[0][0]:
            heappop(self.heap)
        ends = [end for window in self._shared() for end in _ends(window)]
        return min([*ends, *(due for due, _ in self.heap[:1])], default=math.inf)

    def clear(self) -> None:
        """Forget everything, because the queue is rebuilt."""
        for window in self._shared():
            window.clear()
        self.users, self.reservations, self.parked, self.dues, self.heap = {}, {}, {}, {}, []
        self.mean_units = None

    def _shared(self) -> Iterator[Window]:
        yield self.own
        yield from self.regions.values()
        if self.pool is not None:
            yield self.pool

    def _changed(self, user_id: str) -> None:
        """Give a parked user another chance, because the user's window has changed."""
        self.parked.pop(user_id, None)
        self._due(user_id)

    def _due(self, user_id: str) -> None:
        window = self.users.get(user_id)
        if window is None:
            return
        if window.is_empty:
            del self.users[user_id]
            self.dues.pop(user_id, None)
            return
        if user_id in self.parked:
            due = self.parked[user_id]
        else:
            due = window.entries[-1][0] if window.entries and not window.open_requests else UNLIMITED
        if self.dues.get(user_id) != due:
            self.dues[user_id] = due
            if due < UNLIMITED:
                heappush(self.heap, (due, user_id))

    # -- queries --------------------------------------------------------------------------------------------------

    def uses(self) -> tuple[RateUse, ...]:
        rules = self.rules
        found = [use_of("service", rules.service, rules.rate, self.own)]
        found += [
            use_of("region", region, rules.region_rates.get(region), window)
            for region, window in sorted(self.regions.items())
        ]
        if self.pool is not None and rules.pool is not None:
            found.append(use_of("pool", rules.pool, self.pool_rate, self.pool))
        return tuple(use for use in found if use is not None)


def use_of(kind: str, name: str, rate: Rate | None, window: Window) -> RateUse | None:
    """How much of a rate is used; None if there is neither a rate nor a rest."""
    if rate is None and not window.rest:
        return None
    until, rest = window.due(0), window.rest / SECOND if window.rest else None
    due = None if until is None else until / SECOND
    return RateUse(kind, name, rate, window.requests, window.units / SECOND, due, rest)


def pool_windows(rules: Rules, windows: dict[str, Window]) -> Mapping[str, Window]:
    """The windows of the pools that have a rate, by scope."""
    for name in [scope for scope in windows if scope.removeprefix("pool:") not in rules.pool_rates]:
        del windows[name]
    for pool, rate in rules.pool_rates.items():
        windows.setdefault(f"pool:{pool}", Window()).take_rate(rate)
    return windows


def needs_rates(rules: ServiceRules, pool: Window | None) -> bool:
    return bool(pool is not None or rules.rate or rules.user_rate or rules.region_rates)


def if_it_fits(service: Service, pick: Pick) -> Pick | None:
    """The pick, unless the rate of the service or its pool does not allow it now. Then no other step goes before it,
    because a large one would never get its turn."""
    number, lane, user_id, region = pick
    if service.rates is None:
        return pick
    cost = service.bands[number].lanes[lane].queues[user_id][0][COST]
    return pick if service.rates.fits(cost, pooled=service.rules.in_pool(region)) else None


def rated_head(service: Service, band: FairBand | FifoBand, lane: str | None) -> tuple[Any, ...] | None:
    """The user that is next in a lane. Parks users at their own rate."""
    while (head := band.head(lane, service.parked)) is not None and service.rates is not None:
        user_id = head[-1]
        if not service.rates.parks(user_id, band.lanes[lane].queues[user_id][0][COST]):
            break
        if service.groups is not None:
            service.groups.park(user_id)
        service.parked.add(user_id)
    return head


def fitting_regions(service: Service, lane: Lane, head: tuple[Any, ...], regions: list[str]) -> list[str]:
    """Those of the regions whose rate allows the first step of this user."""
    rates = service.rates
    if rates is None or not rates.regions:
        return regions
    cost = lane.queues[head[-1]][0][COST]
    return [region for region in regions if rates.region_fits(region, cost)]


def advance_service(service: Service, now: int) -> bool:
    """Drop what is over from the windows of a service, and unpark users. Returns whether anything has changed."""
    assert service.rates is not None
    changed, unparked = service.rates.advance(now)
    for user_id in unparked:
        if user_id in service.users:
            service.park_or_unpark(service.users[user_id])
    return changed or bool(unparked)


def rate_waits(
    service: Service, entry: Entry, position: int, own: int, regions: list[str], now: float
) -> tuple[float, float]:
    """Seconds until the rates of the service, its pool and the first of the regions allow a step at this position; and
    until the rate of its user does, for the `own`-th step of the user."""
    rates = service.rates
    if rates is None:
        return 0.0, 0.0
    units, at = rates.units_of(entry[COST]), micros(now)
    mean = units if rates.mean_units is None else rates.mean_units
    waits = [rates.own.wait(position, units, mean, at)]
    if rates.pool is not None and service.rules.pooled_regions is None:
        waits.append(rates.pool.wait(position, units, mean, at))
    if regions and rates.regions:
        windows = [rates.regions.get(name) for name in regions]
        waits.append(min(0 if window is None else window.wait(position, units, mean, at) for window in windows))
    user = rates.users.get(entry[USER])
    return max(waits) / SECOND, 0.0 if user is None else user.wait(own, units, mean, at) / SECOND


def _counts(window: Window) -> bool:
    return window.most_requests < UNLIMITED or window.most_units < UNLIMITED


def _ends(window: Window) -> Iterator[int]:
    if window.rest:
        yield window.rest
    if window.entries:
        yield window.entries[0][0]


def _sent_at(lease: Lease, after: float, now: int) -> int:
    return min(now, micros(lease.granted_at) + micros(after))
