"""The rates of one service and of its pool: what their windows count, which users are parked because of their own rate,
and the rests that the upstream asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Final, NamedTuple

from fairlead.dispatch.port import Lease, Release
from fairlead.dispatch.rates import RateUse, Rest, Spent
from fairlead.domain.fair_share import SECOND, micros, smoothed
from fairlead.domain.rates import UNLIMITED, MemberRates, Rate, Window
from fairlead.domain.rules import Rules, ServiceRules

MARK: Final = "\x01"
"""The first character of the id of a group. No user id contains it."""
NO_MEMBER_RATES = MemberRates()


class Reservation(NamedTuple):
    """What a grant counts in: its windows, its estimated units, when it was sent (None: not known), and the ids of its
    user's groups that have a rate."""

    windows: tuple[Window, ...]
    units: int
    sent_at: int | None
    groups: tuple[str, ...]


class ServiceRates:
    """Exists only for a service with a rate, in a pool with a rate, that rests or has rested, or if plans or groups
    have rates. Without one, a claim pays a comparison with None.

    A *member* is a user or a group, named by its id (`memory.groups.MARK`). `windows` has the windows of members.
    `parked` has those that are parked because of their own rate, with the time of their next chance. `dues` are the
    times at which a member's window has to be looked at: that time, or the end of its last entry.
    """

    __slots__ = (
        "dues",
        "heap",
        "mean_units",
        "members",
        "own",
        "parked",
        "pool",
        "pool_rate",
        "regions",
        "reservations",
        "rules",
        "windows",
    )

    def __init__(self, rules: ServiceRules, members: MemberRates = NO_MEMBER_RATES) -> None:
        self.rules = rules
        self.members = members
        self.own = Window()
        self.regions: dict[str, Window] = {}
        self.pool: Window | None = None
        self.pool_rate: Rate | None = None
        self.windows: dict[str, Window] = {}
        self.reservations: dict[str, Reservation] = {}
        self.mean_units: int | None = None
        self.parked: dict[str, int] = {}
        self.dues: dict[str, int] = {}
        self.heap: list[tuple[int, str]] = []
        self.take_rules(rules, members)

    def take_rules(self, rules: ServiceRules, members: MemberRates) -> None:
        """Apply the rates of the rules. Members that are parked because of their rate get another chance if such a rate
        has changed."""
        was, was_members = self.rules.user_rate, self.members
        self.rules, self.members = rules, members
        self.own.take_rate(rules.rate)
        for region in self.regions.keys() | rules.region_rates.keys():
            self.regions.setdefault(region, Window()).take_rate(rules.region_rates.get(region))
        if (rules.user_rate, members) != (was, was_members):
            self.parked.clear()
            self._change_members(was, was_members.plans)

    def _change_members(self, was: Rate | None, was_plans: Mapping[str, Rate]) -> None:
        """Apply changed rates to the windows of members. Which plan a user has is not stored: a window that has the old
        rate of a plan gets the new one."""
        pairs = [
            (was, self.rules.user_rate),
            *((was_plans[name], self.members.plans.get(name, self.rules.user_rate)) for name in sorted(was_plans)),
        ]
        for member, window in list(self.windows.items()):
            if member.startswith(MARK):
                rate = self.members.groups.get(member[1:])
            else:
                same = [new for old, new in pairs if old is not None and window.has_rate(old)]
                if not same:
                    self._due(member)
                    continue
                rate = same[0]
            if rate is None:
                del self.windows[member]
                self.dues.pop(member, None)
            else:
                window.take_rate(rate)
                self._due(member)

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

    def parks(self, member: str, cost: int | None) -> bool:
        """Whether the member's own rate keeps this step from being granted. If so, the member is parked until the
        window has changed."""
        window = self.windows.get(member)
        if window is None or window.fits(units := self.units_of(cost)):
            return False
        self.parked[member] = window.due(units) or UNLIMITED
        self._due(member)
        return True

    def granted(self, lease: Lease, cost: int | None, plan: str | None, groups: tuple[str, ...]) -> None:
        windows = self._windows(lease, plan, groups)
        units = self.units_of(cost)
        for window in windows:
            window.take(units)
        if windows:
            self.reservations[lease.name] = Reservation(windows, units, None, groups)
            for member in (lease.user_id, *groups):
                self._due(member)

    def _windows(self, what: Lease | Spent, plan: str | None, groups: Iterable[str]) -> tuple[Window, ...]:
        windows = [self.own, self.regions.get(what.region or "")]
        if self.rules.in_pool(what.region):
            windows.append(self.pool)
        if self.rules.user_rate is not None or self.members.plans:
            windows.append(self._window_of(what.user_id, self.members.plans.get(plan or "", self.rules.user_rate)))
        windows += [self._window_of(group, self.members.groups[group[1:]]) for group in groups]
        return tuple(each for each in windows if each is not None and _counts(each))

    def _window_of(self, member: str, rate: Rate | None) -> Window | None:
        """The window of a member, with this rate."""
        window = self.windows.get(member)
        if window is None:
            return None if rate is None else self.windows.setdefault(member, Window(rate))
        if rate is None or not window.has_rate(rate):
            window.take_rate(rate)  # the user has another plan now
            self._due(member)
        return window

    # -- what became of a grant -----------------------------------------------------------------------------------

    def sent(self, lease: Lease, after: float, now: int) -> tuple[str, ...]:
        """Returns the groups whose windows have changed."""
        held = self.reservations.get(lease.name)
        if held is None or held.sent_at is not None:
            return ()
        sent_at = _sent_at(lease, after, now)
        for window in held.windows:
            window.sent(held.units, sent_at)
        self.reservations[lease.name] = held._replace(sent_at=sent_at)
        self._changed(lease.user_id, held.groups)
        return held.groups

    def ended(self, lease: Lease, release: Release, now: int) -> tuple[str, ...]:
        """Returns the groups whose windows have changed."""
        used = None if release.used is None or release.refund else micros(release.used)
        if used is not None:
            self.mean_units = smoothed(self.mean_units, used)
        held = self.reservations.pop(lease.name, None)
        if held is None:
            return ()
        reported, sent_at = held.sent_at is not None, held.sent_at
        if sent_at is None and release.sent is not None:
            sent_at = _sent_at(lease, release.sent, now)
        for window in held.windows:
            if release.refund and not reported:
                window.refund(held.units)
            else:
                window.ended(held.units, used, sent_at, now, reported=reported)
        self._changed(lease.user_id, held.groups)
        return held.groups

    def spent(self, call: Spent, ended_at: int, groups: tuple[str, ...]) -> None:
        """Count a call that ended before the queue was rebuilt."""
        for window in self._windows(call, call.plan, groups):
            window.add(ended_at, 1, micros(call.units))
        for member in (call.user_id, *groups):
            self._due(member)

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
        """Drop what is over. Returns whether a window has changed, and the members that are no longer parked, in the
        order in which they enter the queue again."""
        changed = [window.advance(now) for window in self._shared()]
        unparked = []
        while self.heap and self.heap[0][0] <= now:
            due, member = heappop(self.heap)
            if self.dues.get(member) != due:
                continue
            window = self.windows[member]
            window.advance(now)
            if self.parked.get(member, UNLIMITED) <= now:
                del self.parked[member]
                unparked.append(member)
            self._due(member)
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
        self.windows, self.reservations, self.parked, self.dues, self.heap = {}, {}, {}, {}, []
        self.mean_units = None

    def _shared(self) -> Iterator[Window]:
        yield self.own
        yield from self.regions.values()
        if self.pool is not None:
            yield self.pool

    def _changed(self, user_id: str, groups: Iterable[str]) -> None:
        """Give parked members another chance, because their windows have changed."""
        for member in (user_id, *groups):
            self.parked.pop(member, None)
            self._due(member)

    def forget_groups(self) -> None:
        for member in [each for each in self.parked if each.startswith(MARK)]:
            self.forget(member)

    def forget(self, group_id: str) -> None:
        """A group has no members left. Its window is kept until it is empty."""
        if self.parked.pop(group_id, None) is not None:
            self._due(group_id)

    def _due(self, member: str) -> None:
        window = self.windows.get(member)
        if window is None:
            return
        if window.is_empty:
            del self.windows[member]
            self.dues.pop(member, None)
            return
        if member in self.parked:
            due = self.parked[member]
        else:
            due = window.entries[-1][0] if window.entries and not window.open_requests else UNLIMITED
        if self.dues.get(member) != due:
            self.dues[member] = due
            if due < UNLIMITED:
                heappush(self.heap, (due, member))

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
        found += [
            use_of("group", path, rate, self.windows[MARK + path])
            for path, rate in sorted(self.members.groups.items())
            if MARK + path in self.windows
        ]
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


def needs_rates(rules: ServiceRules, pool: Window | None, members: MemberRates) -> bool:
    return bool(pool is not None or rules.rate or rules.user_rate or rules.region_rates or any(members))


def _counts(window: Window) -> bool:
    return window.most_requests < UNLIMITED or window.most_units < UNLIMITED


def _ends(window: Window) -> Iterator[int]:
    if window.rest:
        yield window.rest
    if window.entries:
        yield window.entries[0][0]


def _sent_at(lease: Lease, after: float, now: int) -> int:
    return min(now, micros(lease.granted_at) + micros(after))
