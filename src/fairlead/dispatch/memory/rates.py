"""The rates of one service and of its pool: what their windows count, which users are parked because of their own rate,
and the rests that the upstream asked for."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, TypeAlias

from fairlead.dispatch.port import Lease, Release
from fairlead.dispatch.rates import Rest, Spent
from fairlead.domain.fair_share import SECOND, micros, smoothed
from fairlead.domain.rates import UNLIMITED, MemberRates, Rate, Window
from fairlead.domain.rules import Rules, ServiceRules

if TYPE_CHECKING:
    from fairlead.dispatch.memory.fair_queue import User
    from fairlead.dispatch.memory.topology import RateTimer

MARK: Final = "\x01"
"""The first character of the id of a group. No user id contains it."""
NO_MEMBER_RATES = MemberRates()


Reservation: TypeAlias = tuple[tuple[Window, ...], int, int | None]
"""What a grant counts in: its windows, its estimated units, and when it was sent (None: not known). A plain tuple,
because one is made per grant."""


class ServiceRates:
    """Exists only for a service with a rate, in a pool with a rate, that rests or has rested, or if plans or groups
    have rates. Without one, a claim pays a comparison with None.

    A *member* is a user or a group, named by its id (`memory.groups.MARK`). `windows` has the windows of members.
    `parked` has those that are parked because of their own rate, with the time of their next chance. A member's window
    has to be looked at at that time, or at the end of its last entry; `heap` has these times, or earlier ones, and
    `Window.look_at` the one that counts, or UNLIMITED.

    No waiting step reserves more than `largest` units. `tight` has the windows in which such a step may not fit: its
    own and those of members that are nearly full, and always that of the pool, which other services fill too. As long
    as it is empty, which it is far from all rates, a claim chooses its step as if there were none. A window is added
    when it is filled, and removed when it turns out to have room (`allows`).
    """

    __slots__ = (
        "by_user", "counting", "group_rates", "heap", "is_plain", "largest", "mean_units", "members", "own", "parked",
        "pool", "pool_rate", "regions", "rules", "shared", "tight", "timer", "together", "users", "windows",
    )  # fmt: skip

    def __init__(self, rules: ServiceRules, members: MemberRates, users: Mapping[str, User], timer: RateTimer) -> None:
        self.users = users
        self.timer = timer
        self.rules = rules
        self.members = members
        self.own = Window()
        self.regions: dict[str, Window] = {}
        self.pool: Window | None = None
        self.pool_rate: Rate | None = None
        self.windows: dict[str, Window] = {}
        self.mean_units: int | None = None
        self.largest = 0
        self.parked: dict[str, int] = {}
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
        self.by_user = rules.user_rate is not None or bool(members.plans)
        self.group_rates = {MARK + path: rate for path, rate in members.groups.items()}
        self.take_pool(self.pool, self.pool_rate)
        if (rules.user_rate, members) != (was, was_members):
            self.parked.clear()
            self._change_members(was, was_members.plans)

    def take_pool(self, window: Window | None, rate: Rate | None) -> None:
        self.pool, self.pool_rate = window, rate
        self.counting: dict[str | None, tuple[Window, ...]] = {}
        """By region, those windows of the service, the region and the pool that count a call there."""
        self.together: dict[tuple[Window, ...], tuple[Window, ...]] = {}
        """The windows that count the calls of a group: one tuple for all its users."""
        self.is_plain = window is None and self.own.most_units == UNLIMITED
        """Whether every step fits as long as the service's own window has room."""
        self.timer.changed = True
        self._find_shared()
        self._watch_all()

    def _find_shared(self) -> None:
        pool = () if self.pool is None else (self.pool,)
        self.shared: tuple[Window, ...] = (self.own, *self.regions.values(), *pool)

    def _change_members(self, was: Rate | None, was_plans: Mapping[str, Rate]) -> None:
        """Apply changed rates to the windows of members. Which plan a user has is not stored: a window that has the old
        rate of a plan gets the new one."""
        pairs = [
            (was, self.rules.user_rate),
            *((was_plans[name], self.members.plans.get(name, self.rules.user_rate)) for name in sorted(was_plans)),
        ]
        for member, window in list(self.windows.items()):
            if member.startswith(MARK):
                rate = self.group_rates.get(member)
            else:
                same = [new for old, new in pairs if old is not None and window.has_rate(old)]
                if not same:
                    self._due(member)
                    continue
                rate = same[0]
            if rate is None:
                window.take_rate(None)
                self._drop(member)
            else:
                window.take_rate(rate)
                self._due(member)

    # -- granting -------------------------------------------------------------------------------------------------

    def expect(self, units: int) -> None:
        """A step may reserve this many units."""
        if units > self.largest:
            self.largest = 1 << units.bit_length()  # rounded up, so that it seldom changes
            self._watch_all()

    def _watch_all(self) -> None:
        self.tight = {self.own, *self.windows.values()}
        if self.pool is not None:
            self.tight.add(self.pool)

    def _watch(self, window: Window) -> None:
        """A window may have been filled."""
        if not window.fits_any(self.largest):
            self.tight.add(window)

    def allows(self, window: Window | None, units: int) -> bool:
        """Whether a step of this many units fits in the window of the service or of a member."""
        if window is None or window not in self.tight:
            return True
        if window.fits_any(self.largest):
            self.tight.discard(window)
            return True
        return window.fits(units)

    def is_full(self) -> bool:
        """Whether no step fits in the service's own window."""
        return not self.allows(self.own, 0) or self.own.is_full

    def units_of(self, cost: int | None) -> int:
        """The units that a step reserves: its stated cost, else what calls of the service took on average."""
        return cost if cost is not None else self.mean_units or 0

    def region_room(self, region: str) -> int:
        window = self.regions.get(region)
        return UNLIMITED if window is None else window.room()

    def region_fits(self, region: str, cost: int | None) -> bool:
        window = self.regions.get(region)
        return window is None or window.fits(self.units_of(cost))

    def park(self, member: str, cost: int | None) -> None:
        """Park a member whose own rate keeps this step from being granted, until the window has changed."""
        self.parked[member] = self.windows[member].due(self.units_of(cost)) or UNLIMITED
        self._due(member)

    def rated_groups(self, user: User) -> tuple[str, ...]:
        """The ids of the user's groups that have a rate, from the innermost."""
        levels = user.levels
        if not levels:
            return ()
        rated = levels[0].rated
        if rated is None:
            rated = levels[0].rated = tuple(group.id for group in levels if group.id in self.group_rates)
        return rated

    def granted(self, user: User, region: str | None, cost: int | None, plan: str | None) -> Reservation | None:
        """Count a grant. Returns None if no window counts it."""
        windows = user.windows
        if windows is None or region is not None or plan != user.plan:
            user.window, windows = self._windows(region, user.user_id, user.window, plan)
            windows += self._of_groups(self.rated_groups(user))
            if not self.by_user:
                windows = self.together.setdefault(windows, windows)
            user.windows, user.plan = None if region is not None else windows, plan
        if not windows:
            return None
        units, largest = cost if cost is not None else self.mean_units or 0, self.largest
        for window in windows:
            window.requests = requests = window.requests + 1
            window.units = reserved = window.units + units
            if requests >= window.most_requests or reserved + largest >= window.most_units:
                self.tight.add(window)
        return (windows, units, None)

    def _windows(
        self, region: str | None, user_id: str, own: Window | None, plan: str | None
    ) -> tuple[Window | None, tuple[Window, ...]]:
        """The window of the user, which is `own` or another one, and those of the service, the region, the pool and the
        user that count a call."""
        windows = self.counting.get(region)
        if windows is None:
            shared = (self.own, self.regions.get(region or ""), self.pool if self.rules.in_pool(region) else None)
            windows = self.counting[region] = tuple(each for each in shared if each is not None and each.counts)
        if self.by_user:
            rate, plans = self.rules.user_rate, self.members.plans
            if plans:
                rate = plans.get(plan or "", rate)
            if own is None or own.rate is not rate:
                own = self._window_of(user_id, rate)
            if own is not None and own.counts:
                windows += (own,)
        return own, windows

    def _of_groups(self, groups: tuple[str, ...]) -> tuple[Window, ...]:
        """The windows of groups that have a rate."""
        windows: tuple[Window, ...] = ()
        for group in groups:
            rate, window = self.group_rates[group], self.windows.get(group)
            if window is None or window.rate is not rate:
                window = self._window_of(group, rate)
            if window is not None and window.counts:
                windows += (window,)
        return windows

    def _window_of(self, member: str, rate: Rate | None) -> Window | None:
        """The window of a member, with this rate."""
        window = self.windows.get(member)
        if window is None:
            if rate is None:
                return None
            window = self.windows[member] = Window(rate, member)
            self._watch(window)
        elif rate is None or not window.has_rate(rate):
            window.take_rate(rate)  # the user has another plan now
            self._watch(window)
            self._due(member)
        return window

    # -- what became of a grant -----------------------------------------------------------------------------------

    def sent(self, lease: Lease, held: Reservation, after: float, now: int) -> tuple[Reservation, tuple[str, ...]]:
        """Returns the reservation as it is now, and the groups whose windows have changed."""
        windows, units, sent_at = held
        if sent_at is not None:
            return held, ()
        sent_at = _sent_at(lease, after, now)
        for window in windows:
            window.sent(units, sent_at)
            self._watch(window)
        self.timer.changed = True
        return (windows, units, sent_at), self._changed(lease.user_id, windows)

    def ended(self, lease: Lease, held: Reservation | None, release: Release, now: float) -> tuple[str, ...]:
        """Returns the groups whose windows have changed, if members are parked because of their rate."""
        used = None
        if release.used is not None and not release.refund:
            used = micros(release.used)
            self.mean_units = smoothed(self.mean_units, used)
            self.expect(self.mean_units)
        if held is None:
            return ()
        at = round(now * SECOND)  # `micros`, inlined: no clock is negative
        windows, units, sent_at = held
        if used is not None or sent_at is not None or release.sent is not None or release.refund:
            windows = self._settle(lease, held, release, used, at)
        else:
            for window in windows:
                if at <= window.until:  # most calls end in the same part of `per` as another one
                    window.counted += 1
                    window.counted_units += units
                else:
                    window.close(units, at)
                    if not window.member:
                        self._counted(window, at)
                # A window that will be looked at needs no other time: the end of its last entry is never earlier.
                if window.look_at == UNLIMITED and window.requests == window.counted:
                    self._due(window.member)
        return self._changed(lease.user_id, windows) if self.parked else ()

    def _counted(self, window: Window, now: int) -> None:
        """A call has ended, and `window` has dropped what is over and has perhaps another entry."""
        timer = self.timer
        if timer.due <= now or (not window.member and window.entries and window.entries[0] < timer.due):
            timer.changed = True
        if window.lacks_grants:
            self._watch(window)

    def _settle(
        self, lease: Lease, held: Reservation, release: Release, used: int | None, now: int
    ) -> tuple[Window, ...]:
        """The call of a grant has ended that was never made, that took other units than it reserved, or that was sent
        at a known time. Returns the windows that have changed."""
        windows, units, sent_at = held
        reported = sent_at is not None
        if reported:  # a window that was dropped because it was empty may have a successor
            present = [self.windows.get(each.member) if each.member else each for each in windows]
            # The window of a group is kept when it is empty, but counts no more than one that was dropped.
            windows = tuple(each for each in present if each is not None and not (each.member and each.is_empty))
        elif release.sent is not None:
            sent_at = _sent_at(lease, release.sent, now)
        known = reported or release.refund
        if known:
            self.timer.changed = True
        for window in windows:
            if release.refund and not reported:
                window.refund(units)
            else:
                window.ended(units, used, sent_at, now, reported=reported)
                self._counted(window, now)
                if reported or (used is not None and used > units):
                    self._watch(window)
            if known or window.look_at == UNLIMITED:
                self._due(window.member)
        return windows

    def spent(self, call: Spent, ended_at: int, groups: tuple[str, ...]) -> Window | None:
        """Count a call that ended before the queue was rebuilt. Returns the window of its user."""
        own, windows = self._windows(call.region, call.user_id, self.windows.get(call.user_id), call.plan)
        for window in windows + self._of_groups(groups):
            window.add(ended_at, 1, micros(call.units))
            self._watch(window)
        self.timer.changed = True
        for member in (call.user_id, *groups):
            self._due(member)
        return own

    def rest(self, rest: Rest, now: int) -> None:
        """Take over what the upstream said about its own limits."""
        window = self.own if rest.region is None else self.regions.setdefault(rest.region, Window())
        self._find_shared()
        self.timer.changed, until = True, now + micros(rest.seconds)
        if rest.requests is None and rest.units is None:
            window.rest = max(window.rest, until)
        else:
            window.correct(rest.requests, None if rest.units is None else micros(rest.units), until)
        self._watch(self.own)

    # -- time -----------------------------------------------------------------------------------------------------

    def advance(self, now: int) -> tuple[bool, list[str]]:
        """Drop what is over. Returns whether a window has changed, and the members that are no longer parked, in the
        order in which they enter the queue again."""
        changed = [window.advance(now) for window in self.shared]
        unparked = []
        while self.heap and self.heap[0][0] <= now:
            due, member = heappop(self.heap)
            window = self.windows.get(member)
            if window is None or window.look_at != due:
                continue
            window.look_at = UNLIMITED
            if self._due_of(member, window) == due:
                window.advance(now)
                self.allows(window, 0)
                if self.parked.get(member, UNLIMITED) <= now:
                    del self.parked[member]
                    unparked.append(member)
            self._due(member)
        return any(changed), unparked

    def next_due(self) -> int:
        """The time at which `advance` may have something to do, or UNLIMITED."""
        due = self.heap[0][0] if self.heap else UNLIMITED
        for window in self.shared:
            entries, rest = window.entries, window.rest
            if entries and entries[0] < due:
                due = entries[0]
            if rest and rest < due:
                due = rest
        return due

    def clear(self, users: Mapping[str, User]) -> None:
        """Forget everything, because the queue is rebuilt, with these users."""
        for window in self.shared:
            window.clear()
        self.users, self.windows, self.parked, self.heap = users, {}, {}, []
        self.timer.changed = True
        self.mean_units = None
        self._watch_all()

    def _changed(self, user_id: str, windows: tuple[Window, ...]) -> tuple[str, ...]:
        """Give a user and the groups of these windows another chance if they are parked, because the windows have
        changed. Returns the groups."""
        groups = tuple(window.member for window in windows if window.member.startswith(MARK))
        for member in (user_id, *groups):
            self.parked.pop(member, None)
            self._due(member)
        return groups

    def forget_groups(self) -> None:
        for member in [each for each in self.parked if each.startswith(MARK)]:
            self.forget(member)

    def forget(self, group_id: str) -> None:
        """A group has no members left. Its window is kept until it is empty."""
        if self.parked.pop(group_id, None) is not None:
            self._due(group_id)

    def _due(self, member: str) -> None:
        """Look at the window of a member in time, and drop it if it is empty."""
        window = self.windows.get(member)
        if window is None:
            return
        if window.is_empty:
            if not member.startswith(MARK):  # only so many groups have a rate
                self._drop(member)
            return
        due = self._due_of(member, window)
        if due < window.look_at:
            window.look_at = due
            heappush(self.heap, (due, member))
            if due < self.timer.due:
                self.timer.changed = True

    def _drop(self, member: str) -> None:
        """Forget the window of a member, which is never tight then."""
        window = self.windows.pop(member)
        window.look_at = UNLIMITED
        self.tight.discard(window)
        if (user := self.users.get(member)) is not None:
            user.window = user.windows = None

    def _due_of(self, member: str, window: Window) -> int:
        if member in self.parked:
            return self.parked[member]
        return window.entries[-3] if window.entries and window.requests == window.counted else UNLIMITED


def pool_windows(rules: Rules, windows: dict[str, Window]) -> Mapping[str, Window]:
    """The windows of the pools that have a rate, by scope."""
    for name in [scope for scope in windows if scope.removeprefix("pool:") not in rules.pool_rates]:
        del windows[name]
    for pool, rate in rules.pool_rates.items():
        windows.setdefault(f"pool:{pool}", Window()).take_rate(rate)
    return windows


def needs_rates(rules: ServiceRules, pool: Window | None, members: MemberRates) -> bool:
    return bool(pool is not None or rules.rate or rules.user_rate or rules.region_rates or any(members))


def _sent_at(lease: Lease, after: float, now: int) -> int:
    return min(now, micros(lease.granted_at) + micros(after))
