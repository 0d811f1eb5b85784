"""One service: its users, queues, leases and holds, and the choice of the step that gets the next free slot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from fairlead.dispatch.memory.costs import ONE_STEP, ServiceCosts
from fairlead.dispatch.memory.fair_queue import (
    BAND,
    COST,
    JOB,
    RANK,
    REGION,
    USER,
    Entry,
    FairBand,
    FifoBand,
    User,
    rekeyed,
)
from fairlead.dispatch.memory.groups import Groups
from fairlead.dispatch.memory.rated_service import rated_pick
from fairlead.dispatch.memory.rates import NO_MEMBER_RATES, Reservation, ServiceRates
from fairlead.dispatch.memory.regions import ALL_BANDS as ALL_BANDS
from fairlead.dispatch.memory.regions import RETRIES as RETRIES
from fairlead.dispatch.memory.regions import Pick as Pick
from fairlead.dispatch.memory.regions import RegionBreaker, pick_of_regions
from fairlead.dispatch.port import Lease, Release, Unserved
from fairlead.domain.fair_share import charge, micros
from fairlead.domain.groups import GroupRules
from fairlead.domain.job import RANK_RETRY, Hold
from fairlead.domain.rules import Order, ServiceRules, preference_of, regions_of

if TYPE_CHECKING:
    from fairlead.dispatch.memory.claim_sources import Pool
    from fairlead.dispatch.memory.topology import Scope

FIFO_BAND = 1
"""The band of all steps of a FIFO service, which ignores priorities. Only retries that go first have their own band."""
FIFO_BANDS = (RETRIES, FIFO_BAND)
MOST_IDLE = 10_000
"""The maximum number of idle users per service remembered because of a debt, as in scripts/include/queues.lua."""


Granted: TypeAlias = tuple[Lease, int, int | None, Reservation | None]
"""A lease, the estimated duration of its step in microseconds, the cost of the step as in an `Entry`, and what rates
count of it."""


def _shape(rules: ServiceRules) -> tuple[Order, bool, bool]:
    """The rules that decide in which band and lane a step waits. If they change, all queues are rebuilt."""
    return rules.order, rules.retries_first, bool(rules.regions)


class Service:
    """One service with its lanes and regions. Slots in use are counted from the leases and holds, not stored."""

    __slots__ = (
        "bands", "breakers", "costs", "fifo", "group_rules", "groups", "holds", "leases", "member_rates", "name",
        "next", "parked", "pool", "rates", "ready", "region_slots", "rules", "runnable", "scope", "users", "waiting",
    )  # fmt: skip

    def __init__(self, rules: ServiceRules, scope: Scope) -> None:
        self.name = rules.service
        self.rules = rules
        self.scope = scope
        self.pool: Pool | None = None
        self.rates: ServiceRates | None = None
        self.group_rules: Mapping[str, GroupRules] = {}
        self.member_rates = NO_MEMBER_RATES
        self.ready = False
        """Maintained by `Wakeups`: whether the service could grant a step, ignoring its pool."""
        self.runnable = False
        """Maintained by `Wakeups`: whether it is ready and its pool has a slot too. If so, workers have been woken."""
        self.next: Pick | None = None
        """Set by `Wakeups` when an operation ends: what `pick` returns as long as nothing has changed that; None if it
        is not known. A claim that follows need not find it again."""
        self.costs = ServiceCosts()
        self.clear()
        self.take_rules(rules)

    def clear(self) -> None:
        """Delete the queues, leases, holds and measurements. The rules are kept."""
        self.users: dict[str, User] = {}
        self.parked: set[str] = set()
        self.costs.clear()
        self.leases: dict[str, Granted] = {}
        self.holds: dict[str, tuple[Hold, float]] = {}
        """The holds by key, each with its end by the dispatcher's clock."""
        self.region_slots: dict[str | None, set[str]] = {}
        self.breakers: dict[str, RegionBreaker] = {}
        self.waiting = [0, 0, 0, 0]
        """The number of waiting steps by priority. Retries that go first, and FIFO services, use other bands."""
        self.bands: list[FairBand] | list[FifoBand] = []
        """The bands with their queues. Empty until `take_rules` creates them."""
        self.groups: Groups | None = None
        """None as long as no user is in a group."""
        if self.rates is not None:
            self.rates.clear(self.users)

    # -- rules ---------------------------------------------------------------------------------------------------

    def take_rules(self, rules: ServiceRules) -> list[Entry]:
        """Apply the rules, and park or unpark users by the new limit per user. If the queues had to be rebuilt, returns
        all waiting steps, with their new sort keys; otherwise an empty list."""
        same = bool(self.bands) and _shape(rules) == _shape(self.rules)
        self.rules = rules
        self.fifo = rules.order is Order.FIFO
        self.costs.take_rules(rules)
        if not rules.regions:
            self.breakers.clear()
        if not rules.breaker_failures:
            for breaker in self.breakers.values():
                breaker.reset()
        moved = [] if same else self._requeue_all()
        if self.rates is not None:
            self.rates.take_rules(rules, self.member_rates)
        # Sorted, because the order in which users re-enter a band matters.
        for user_id in sorted(self.parked & self.users.keys()):
            self.park_or_unpark(self.users[user_id])
        for user in self.users.values():
            self.park_or_unpark(user)
        if self.groups is not None:
            self.groups.take_rules(self.group_rules)
        return moved

    def _requeue_all(self) -> list[Entry]:
        """Rebuild the queues, because the order or the lanes have changed. All virtual times start from zero."""
        waiting = [rekeyed(entry, fifo=self.fifo) for entry in self.entries()]
        self.bands = [FifoBand() for _ in ALL_BANDS] if self.fifo else [FairBand() for _ in ALL_BANDS]
        self.groups, self.parked = None, self.parked & self.users.keys()
        if self.rates is not None:
            self.rates.forget_groups()
        for user in self.users.values():
            user.levels, user.windows = (), None
            self.place(user, user.group)
        for entry in waiting:
            self._enqueue(entry)
        for queue in self.bands:
            queue.drop_newcomers()
        return waiting

    def entries(self) -> Iterator[Entry]:
        for band in self.bands:
            for lane in band.lanes.values():
                for queue in lane.queues.values():
                    yield from queue

    # -- limits --------------------------------------------------------------------------------------------------

    @property
    def in_use(self) -> int:
        return len(self.leases) + len(self.holds)

    @property
    def free(self) -> int:
        """How many more steps may be granted by the limit and the rate."""
        free = self.rules.limit - len(self.leases) - len(self.holds)
        return free if self.rates is None else min(free, self.rates.own.room())

    @property
    def in_pool(self) -> int:
        """How many of the pool's slots the service uses."""
        pooled = self.rules.pooled_regions
        if pooled is None:
            return self.in_use
        return sum(len(self.region_slots.get(region, ())) for region in pooled)

    def region_free(self, region: str, more: int = 0) -> int:
        """How many slots of a region could be granted if `more` of its used slots became free."""
        free = self.rules.regions[region] - len(self.region_slots.get(region, ())) + more
        if self.rates is not None:
            free = min(free, self.rates.region_room(region))
        breaker = self.breakers.get(region)
        return free if breaker is None else breaker.grantable(free)

    def allowed_regions(self, lane: str | None, unserved: Unserved = frozenset()) -> list[str] | None:
        """The regions that steps of this lane may run in now; None means any. If the lane has a preferred region, this
        is the only one, unless it rests or is being probed, no worker serves it, or it no longer exists: then all
        regions of the lane are allowed."""
        if lane is None:
            return None
        prefers, others = preference_of(lane)
        if prefers is not None and self._takes_calls(prefers) and (self.name, prefers) not in unserved:
            return [prefers]
        return None if others is None else regions_of(others)

    def _takes_calls(self, region: str) -> bool:
        breaker = self.breakers.get(region)
        return region in self.rules.regions and (breaker is None or not breaker.until)

    def end_rests(self, now: int) -> float:
        """End the rests that are over, and the times for which a region is avoided. Returns the time at which the next
        one ends, or infinity."""
        return min((breaker.update(now) for breaker in self.breakers.values()), default=math.inf)

    def keep(self, lease: Lease, estimate: int, cost: int | None, held: Reservation | None) -> None:
        self.leases[lease.name] = (lease, estimate, cost, held)
        if lease.region is not None:
            self._occupy(lease.name, lease.region)
            if (breaker := self.breakers.get(lease.region)) is not None:
                breaker.granted(lease.name)

    def hold(self, key: str, hold: Hold, ends_at: float) -> None:
        self.holds[key] = hold, ends_at
        self._occupy(key, hold.region)

    def end_hold(self, key: str) -> None:
        hold, _ = self.holds.pop(key)
        self._vacate(key, hold.region)

    def _occupy(self, slot: str, region: str | None) -> None:
        if region is not None:
            self.region_slots.setdefault(region, set()).add(slot)

    def _vacate(self, slot: str, region: str | None) -> None:
        if region is not None:
            self.region_slots[region].discard(slot)

    # -- waiting -------------------------------------------------------------------------------------------------

    def band_and_lane(self, entry: Entry) -> tuple[int, str | None]:
        """The band and lane in which a step waits."""
        rules = self.rules
        lane = entry[REGION] if rules.regions else None
        if rules.retries_first and entry[RANK] == RANK_RETRY:
            return RETRIES, lane
        return FIFO_BAND if self.fifo else entry[BAND], lane

    def user(self, user_id: str, weight: float) -> User:
        """The record of the user, with this weight. An invalid weight counts as 1, so it cannot block the queue."""
        user = self.users.get(user_id)
        if user is None:
            window = None if self.rates is None else self.rates.windows.get(user_id)
            user = self.users[user_id] = User(user_id, window)
        user.weight = weight if weight > 0 else 1.0
        return user

    def place(self, user: User, group: str | None) -> None:
        """Put a user, with everything that it has waiting and running, into a group."""
        user.group = group
        if not self.fifo and (group is not None or self.groups is not None):
            if self.groups is None:
                self.groups = Groups(self)
                self.bands = list[FairBand](self.groups.bands)
            self.groups.place(user)

    def _enqueue(self, entry: Entry) -> None:
        band, lane = self.band_and_lane(entry)
        self.bands[band].join(entry, lane)
        if (cost := entry[COST]) is not None:
            self.bands[band].lanes[lane].costs.add(entry[USER], ONE_STEP + cost)
            if self.rates is not None and cost > self.rates.largest:
                self.rates.expect(cost)

    def join(self, entry: Entry, user: User) -> None:
        self._enqueue(entry)
        self.next = None
        self.waiting[entry[BAND]] += 1
        user.waiting += 1

    def leave(self, entry: Entry) -> None:
        """Remove a step from its queue. The caller must call `forget_if_idle` once it is done with the step."""
        band, lane = self.band_and_lane(entry)
        self.next = None
        self.bands[band].leave(entry, lane)
        if (cost := entry[COST]) is not None:
            self.bands[band].lanes[lane].costs.add(entry[USER], -ONE_STEP - cost)
        self.waiting[entry[BAND]] -= 1
        self.users[entry[USER]].waiting -= 1

    # -- granting ------------------------------------------------------------------------------------------------

    def pick(
        self,
        bands: tuple[int, ...] = ALL_BANDS,
        regions: frozenset[str] | None = None,
        *,
        pool_full: bool = False,
        unserved: Unserved = frozenset(),
    ) -> Pick | None:
        """The step that gets the next free slot, or None. With `pool_full`, only regions whose calls take no slot of
        the pool are considered."""
        rules, rates = self.rules, self.rates
        if not self.scope.open or rules.paused or len(self.leases) + len(self.holds) >= rules.limit:
            return None
        if rates is not None and rates.own in rates.tight and rates.is_full():
            return None
        if pool_full and rules.pooled_regions is None:
            return None
        if self.fifo:
            bands = FIFO_BANDS
        if rules.regions:
            return pick_of_regions(self, bands, regions, pool_full=pool_full, unserved=unserved)
        if rates is not None and rates.tight:
            # A step that only other workers take holds all others back too, if a rate does not allow it yet.
            first = rated_pick(self, rates, bands if rates.is_plain else ALL_BANDS)
            return first if first is None or first[0] in bands else rated_pick(self, rates, bands)
        for number in bands:
            band = self.bands[number]
            if band.waiting:
                head = band.head(None, self.parked)
                if head is not None:
                    return number, None, head[-1], None
        return None

    def take(self, pick: Pick) -> tuple[Entry, User, int, int]:
        """Remove the picked step from its queue and charge its user. Returns (entry, user, estimate, charge)."""
        number, lane, user_id, region = pick
        self.next = None
        user = self.users[user_id]
        band = self.bands[number]
        entry = band.take(lane, user_id)
        if (cost := entry[COST]) is not None:
            band.lanes[lane].costs.add(user_id, -ONE_STEP - cost)
        estimate = self.costs.estimate(user, cost, region)
        charged = band.charge(user, estimate)
        self.waiting[entry[BAND]] -= 1
        user.waiting -= 1
        user.running += 1
        if self.rules.user_limit is not None:
            self.park_or_unpark(user)
        if self.groups is not None and self.groups.limited:
            self.groups.granted(user)
        for idle in band.overtaken():
            self.forget_if_idle(idle)
        return entry, user, estimate, charged

    def estimate_at(self, pick: Pick) -> int:
        """The estimated duration of the picked step, in microseconds."""
        band, lane, user_id, region = pick
        cost = self.bands[band].lanes[lane].queues[user_id][0][COST]
        return self.costs.estimate(self.users[user_id], cost, region)

    def job_at(self, pick: Pick) -> str:
        """The job of the picked step."""
        band, lane, user_id, _ = pick
        return self.bands[band].lanes[lane].queues[user_id][0][JOB]

    def release(self, release: Release, now: float) -> Lease | None:
        """End a lease and return it; returns None if it does not exist. The user's charge is corrected to what the call
        actually used, or to nothing with `refund`."""
        granted = self.leases.pop(release.lease, None)
        if granted is None:
            return None
        lease, estimate, cost, held = granted
        rated = () if self.rates is None else self.rates.ended(lease, held, release, now)
        if lease.region is not None:
            self._vacate(lease.name, lease.region)
            if release.failed is not None and self.rules.regions:
                self.breakers.setdefault(lease.region, RegionBreaker())
            if self.rules.regions and (breaker := self.breakers.get(lease.region)) is not None:
                verdict = None if release.refund else release.failed
                breaker.ended(lease.name, verdict, micros(now - lease.granted_at), micros(now), self.rules)
        user = self.users[lease.user_id]
        user.running -= 1
        real = None if release.refund else micros(now - lease.granted_at)
        used = None if real is None else self.costs.ended(user, real, cost, release.used, lease.region)
        charged = 0 if used is None else charge(used, lease.weight)
        self.bands[lease.band].settle(lease.user_id, charged - lease.charged)
        if user.levels and self.groups is not None:
            self.groups.bands[lease.band].settle_groups(user.levels, lease, estimate, used, charged - lease.charged)
            if self.groups.limited:
                self.groups.ended(user)
        if self.pool is not None and self.rules.in_pool(lease.region):
            self.pool.settle(lease.band, self.name, estimate, real)
        first, band = self.next, self.bands[lease.band]
        if first is not None and (
            self.parked
            or release.used is not None  # it changes the units that steps without a cost are taken to need
            or (first[0] == lease.band and not band.stays_first(self.users[first[2]], user))
        ):
            self.next = None
        if self.parked:
            self.park_or_unpark(user)
            if self.groups is not None:
                self.groups.park_or_unpark(user)
                self.groups.reconsider(rated)  # the user may be in another group now
        if not (user.waiting or user.running):
            self.forget_if_idle(lease.user_id)
        return lease

    # -- users ---------------------------------------------------------------------------------------------------

    def park_or_unpark(self, user: User) -> None:
        """Park the user if the user's limit or rate is reached, and unpark the user otherwise."""
        limit = self.rules.user_limit
        at_rate = self.rates is not None and user.user_id in self.rates.parked
        if at_rate or (limit is not None and user.running >= limit):
            if self.groups is not None:
                self.groups.park(user.user_id)
            self.parked.add(user.user_id)
        elif user.user_id in self.parked:
            self.parked.discard(user.user_id)
            for band in self.bands:
                band.unpark(user.user_id)

    def resume(self, lease: Lease, group: str | None, plan: str | None) -> None:
        """Add a lease during a rebuild, and count it as a running step of its user."""
        user = self.user(lease.user_id, lease.weight)
        self.place(user, group)
        user.running += 1
        self.park_or_unpark(user)
        if self.groups is not None and self.groups.limited:
            self.groups.granted(user)
        cost = None if lease.cost is None else micros(lease.cost)
        held = None if self.rates is None else self.rates.granted(user, lease.region, cost, plan)
        self.keep(lease, 0, None, held)

    def forget_if_idle(self, user_id: str) -> None:
        """Drop the record of a user that has nothing waiting or running and no debt in any band."""
        user = self.users.get(user_id)
        if user is None and self.groups is not None:
            self.groups.forget_if_idle(user_id)
        if user is None or user.waiting or user.running:
            return
        for band in self.bands:
            if user_id in band.nodes and band.has_debt(user_id):
                self._forget_beyond(band, user_id)
                return
        self._forget(user_id)

    def _forget_beyond(self, band: FairBand | FifoBand, user_id: str) -> None:
        """Forget the idle user with the least debt in this band, if too many idle users are remembered because of their
        debt. Normally the virtual time overtakes all debts, but it does not advance if every user submits only once."""
        if sum(each.idle_count() for each in self.bands) <= MOST_IDLE:
            return
        user = self.users.get(band.pop_idle(user_id))
        if user is not None and not user.waiting and not user.running:
            self._forget(user.user_id)

    def _forget(self, user_id: str) -> None:
        for band in self.bands:
            band.forget(user_id)
        del self.users[user_id]
        self.parked.discard(user_id)
        if self.groups is not None:
            self.groups.forget_user(user_id)
