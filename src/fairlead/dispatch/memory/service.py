"""One service: its users, its lines, its leases and holds, and which step its next free slot goes to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from fairlead.dispatch.memory.health import Health
from fairlead.dispatch.memory.lines import BAND, COST, JOB, RANK, REGION, USER, Entry, FairBand, FifoBand, rekeyed
from fairlead.dispatch.port import Lease
from fairlead.domain.job import RANK_RETRY, Hold
from fairlead.domain.limits import Order, ServiceRules, regions_of
from fairlead.domain.order import DEFAULT_COST, averaged, charge, micros, smoothed

if TYPE_CHECKING:
    from fairlead.dispatch.memory.pool import Pool

RETRIES = 0
"""The band of retries that go first, before any priority."""
FIFO_LINE = 1
"""The one band that a FIFO service uses besides: it knows no priority."""
ALL_BANDS = (0, 1, 2, 3)
FIFO_BANDS = (RETRIES, FIFO_LINE)


class Scope:
    """What is rebuilt together, under one epoch. Nothing is granted from a scope that is not open."""

    __slots__ = ("epoch", "name", "open")

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch: int | None = None
        self.open = False


class User:
    """What a service knows of one user, over all bands and lanes."""

    __slots__ = ("mean", "running", "user_id", "waiting", "weight")

    def __init__(self, user_id: str) -> None:
        self.user_id = user_id
        self.weight = 1.0
        self.waiting = 0
        self.running = 0
        self.mean: int | None = None


Pick: TypeAlias = tuple[int, str | None, str, str | None]
"""Whose step is next, where it waits, and whose slot it gets: band, lane, user id, region.

Like everything that is made for each grant, a plain tuple: a named one takes five times as long to make.
"""

Granted: TypeAlias = tuple[Lease, int]
"""A lease, and how long its step was thought to take when it was granted."""


def _shape(rules: ServiceRules) -> tuple[Order, bool, bool]:
    """What decides where a step waits."""
    return rules.order, rules.retries_first, bool(rules.regions)


def _best(lane: str | None, preferred: list[str]) -> str | None:
    """The first of these regions that may serve the lane."""
    if lane is None:
        return preferred[0]
    allowed = regions_of(lane)
    return next((region for region in preferred if region in allowed), None)


class Service:
    """A lane with its regions. Slots in use are the leases and holds it has, counted, never a counter."""

    __slots__ = (
        "bands", "default_cost", "fifo", "health", "holds", "leases", "mean", "measured", "name", "parked", "pool",
        "ready", "region_slots", "rules", "runnable", "scope", "users", "waiting",
    )  # fmt: skip

    def __init__(self, rules: ServiceRules, scope: Scope) -> None:
        self.name = rules.service
        self.rules = rules
        self.scope = scope
        self.pool: Pool | None = None
        self.ready = False
        """Kept by the dispatcher: whether something could be granted as far as this service alone knows."""
        self.runnable = False
        """Kept by the dispatcher: ready, and the pool has a slot too. Workers have been told."""
        self.clear()
        self.take_rules(rules)

    def clear(self) -> None:
        """Forget everything but the rules."""
        self.users: dict[str, User] = {}
        self.parked: set[str] = set()
        self.mean: int | None = None
        self.measured = 0
        """How many calls the mean is of, up to as many as it remembers."""
        self.leases: dict[str, Granted] = {}
        self.holds: dict[str, Hold] = {}
        self.region_slots: dict[str | None, set[str]] = {}
        self.health: dict[str, Health] = {}
        self.waiting = [0, 0, 0, 0]
        """By the band that was offered, which is not always the one that it waits in."""
        self.bands: list[FairBand] | list[FifoBand] = []
        """None until `take_rules` has made them."""

    # -- rules ---------------------------------------------------------------------------------------------------

    def take_rules(self, rules: ServiceRules) -> list[Entry]:
        """Users are set aside or let back by the new limit. Lines stay; steps that were sorted anew are returned."""
        same = bool(self.bands) and _shape(rules) == _shape(self.rules)
        self.rules = rules
        self.fifo = rules.order is Order.FIFO
        self.default_cost = DEFAULT_COST if rules.cost is None else micros(rules.cost)
        if not rules.regions:
            self.health.clear()
        if not rules.breaker_failures:
            for health in self.health.values():
                health.work()
        moved = [] if same else self._sort_anew()
        for user_id in sorted(self.parked):  # in an order that every engine knows: they enter one after the other
            self._park_or_unpark(self.users[user_id])
        for user in self.users.values():
            self._park_or_unpark(user)
        return moved

    def _sort_anew(self) -> list[Entry]:
        """Lines for another order, or other lanes. Fair shares begin anew."""
        waiting = [rekeyed(entry, fifo=self.fifo) for entry in self.entries()]
        self.bands = [FifoBand() for _ in ALL_BANDS] if self.fifo else [FairBand() for _ in ALL_BANDS]
        for entry in waiting:
            band, lane = self.where(entry)
            self.bands[band].join(entry, lane)
        for line in self.bands:
            line.begin_anew()
        return waiting

    def entries(self) -> Iterator[Entry]:
        for band in self.bands:
            for lane in band.lanes.values():
                for line in lane.lines.values():
                    yield from line

    # -- limits --------------------------------------------------------------------------------------------------

    @property
    def in_use(self) -> int:
        return len(self.leases) + len(self.holds)

    @property
    def free(self) -> int:
        return self.rules.limit - len(self.leases) - len(self.holds)

    @property
    def in_pool(self) -> int:
        """How many of the pool's slots it has."""
        pooled = self.rules.pooled_regions
        if pooled is None:
            return self.in_use
        return sum(len(self.region_slots.get(region, ())) for region in pooled)

    def region_free(self, region: str, more: int = 0) -> int:
        """`more` are free though they are counted as taken."""
        free = self.rules.regions[region] - len(self.region_slots.get(region, ())) + more
        health = self.health.get(region)
        return free if health is None else health.most(free)

    def end_rests(self, now: int) -> float:
        """Those that are over; when the next one is."""
        return min((health.pass_time(now) for health in self.health.values()), default=math.inf)

    def keep(self, lease: Lease, estimate: int) -> None:
        self.leases[lease.name] = (lease, estimate)
        self._occupy(lease.name, lease.region)
        if self.health and (health := self.health.get(lease.region or "")) is not None:
            health.granted(lease.name)

    def hold(self, key: str, hold: Hold) -> None:
        self.holds[key] = hold
        self._occupy(key, hold.region)

    def end_hold(self, key: str) -> None:
        self._vacate(key, self.holds.pop(key).region)

    def _occupy(self, slot: str, region: str | None) -> None:
        if region is not None:
            self.region_slots.setdefault(region, set()).add(slot)

    def _vacate(self, slot: str, region: str | None) -> None:
        if region is not None:
            self.region_slots[region].discard(slot)

    # -- waiting -------------------------------------------------------------------------------------------------

    def where(self, entry: Entry) -> tuple[int, str | None]:
        """The band and lane in which a step waits."""
        rules = self.rules
        lane = entry[REGION] if rules.regions else None
        if rules.retries_first and entry[RANK] == RANK_RETRY:
            return RETRIES, lane
        return FIFO_LINE if self.fifo else entry[BAND], lane

    def user(self, user_id: str, weight: float) -> User:
        """This user, at this weight from now on. One that is no weight counts as 1: it must not stop the line."""
        user = self.users.get(user_id)
        if user is None:
            user = self.users[user_id] = User(user_id)
        user.weight = weight if weight > 0 else 1.0
        return user

    def join(self, entry: Entry, user: User) -> None:
        band, lane = self.where(entry)
        self.bands[band].join(entry, lane)
        self.waiting[entry[BAND]] += 1
        user.waiting += 1

    def leave(self, entry: Entry) -> None:
        """Take out of line. The caller forgets the user, if it is idle, when the move is complete."""
        band, lane = self.where(entry)
        self.bands[band].leave(entry, lane)
        self.waiting[entry[BAND]] -= 1
        self.users[entry[USER]].waiting -= 1

    # -- granting ------------------------------------------------------------------------------------------------

    def pick(
        self, bands: tuple[int, ...] = ALL_BANDS, regions: frozenset[str] | None = None, *, dry: bool = False
    ) -> Pick | None:
        """Whose step the next free slot goes to, if there is both. `dry`: the pool has none, so only regions that do
        not count in it may have one."""
        if not self.scope.open or self.rules.paused or self.free <= 0:
            return None
        if dry and self.rules.pooled_regions is None:
            return None
        if self.fifo:
            bands = FIFO_BANDS
        if self.rules.regions:
            return self._pick_of_regions(bands, regions, dry=dry)
        for number in bands:
            band = self.bands[number]
            if band.waiting:
                head = band.head(None, self.parked)
                if head is not None:
                    return (number, None, head[1], None)
        return None

    def _pick_of_regions(self, bands: tuple[int, ...], regions: frozenset[str] | None, *, dry: bool) -> Pick | None:
        """The unbound lane competes with all lanes that have a region with a slot; global retries come before all."""
        free = {
            region: slots
            for region in sorted(self.rules.regions)
            if (regions is None or region in regions)
            and not (dry and self.rules.in_pool(region))
            and (slots := self.region_free(region)) > 0
        }
        if not free:
            return None
        preferred = sorted(free, key=lambda region: (*self._preference(region), -free[region], region))
        by_health = self._probes_first(preferred) if self.health else preferred
        for number in bands:
            # A call that failed once is not what a region is tried with, as long as there is another place for it.
            regions_in_turn = preferred if number == RETRIES else by_health
            band = self.bands[number]
            if not band.waiting:
                continue
            heads = [
                # One user may be the head of two lanes, with the same tag: then its own order decides.
                (head, lane.lines[head[1]][0], name, region)
                for name, lane in band.lanes.items()
                if lane.lines
                and (region := _best(name, regions_in_turn)) is not None
                and (head := band.head(name, self.parked)) is not None
            ]
            if heads:
                is_global = number == RETRIES and heads[0][2] is None
                first = heads[0] if is_global else min(heads)
                return (number, first[2], first[0][1], first[3])
        return None

    def _preference(self, region: str) -> tuple[bool, float, int]:
        """Lowest first: healthy, then with the least to do for its weight, if they differ, then fast.

        One that failed is not avoided for ever: nothing would show that it works again."""
        health, weights = self.health.get(region), self.rules.region_weights
        load = (len(self.region_slots.get(region, ())) + 1) / weights.get(region, 1.0) if weights else 0.0
        return (False, load, 0) if health is None else (health.avoided or health.to_probe, load, health.latency or 0)

    def _probes_first(self, preferred: list[str]) -> list[str]:
        """A region that has rested is tried with the next call that may go there, or it would stay unused until all
        others are full."""
        return sorted(preferred, key=lambda region: not ((health := self.health.get(region)) and health.to_probe))

    def take(self, pick: Pick) -> tuple[Entry, User, int, int]:
        """The step leaves the line and its user is charged: the step, its user, the estimated cost, the charge."""
        number, lane, user_id, _ = pick
        user = self.users[user_id]
        band = self.bands[number]
        entry = band.take(lane, user_id)
        estimate = self.estimate(user, entry[COST])
        charged = band.charge(user_id, estimate, user.weight)
        self.waiting[entry[BAND]] -= 1
        user.waiting -= 1
        user.running += 1
        if self.rules.user_limit is not None:
            self._park_or_unpark(user)
        for idle in band.overtaken():
            self.forget_if_idle(idle)
        return entry, user, estimate, charged

    def estimate(self, user: User, cost: int | None) -> int:
        """How long a step is thought to take, in microseconds."""
        if user.mean is not None:
            return user.mean
        if self.mean is not None:
            return self.mean
        return self.default_cost if cost is None else cost

    def estimate_at(self, pick: Pick) -> int:
        """The estimate for the step that would be taken."""
        band, lane, user_id, _ = pick
        return self.estimate(self.users[user_id], self.bands[band].lanes[lane].lines[user_id][0][COST])

    def job_at(self, pick: Pick) -> str:
        """The job whose step would be taken."""
        band, lane, user_id, _ = pick
        return self.bands[band].lanes[lane].lines[user_id][0][JOB]

    def give_back(self, name: str, now: float, *, refund: bool, failed: bool | None = None) -> Lease | None:
        """End a lease, if it is there: its charge is settled to the slot time really used, or goes back whole."""
        granted = self.leases.pop(name, None)
        if granted is None:
            return None
        lease, estimate = granted
        self._vacate(name, lease.region)
        if lease.region is not None and self.rules.regions:
            if failed is not None:
                self.health.setdefault(lease.region, Health())
            if (health := self.health.get(lease.region)) is not None:
                verdict = None if refund else failed
                health.ended(name, verdict, micros(now - lease.granted_at), micros(now), self.rules)
        user = self.users[lease.user_id]
        user.running -= 1
        real = None if refund else micros(now - lease.granted_at)
        used = 0
        if real is not None:
            used = charge(real, lease.weight)
            user.mean = smoothed(user.mean, real)
            self.mean, self.measured = averaged(self.mean, real, self.measured)
        self.bands[lease.band].settle(lease.user_id, used - lease.charged)
        if self.pool is not None and self.rules.in_pool(lease.region):
            self.pool.settle(lease.band, self.name, estimate, real)
        if self.parked:
            self._park_or_unpark(user)
        self.forget_if_idle(lease.user_id)
        return lease

    # -- users ---------------------------------------------------------------------------------------------------

    def _park_or_unpark(self, user: User) -> None:
        """A user at its limit is set aside, and let back in when below it."""
        limit = self.rules.user_limit
        if limit is not None and user.running >= limit:
            self.parked.add(user.user_id)
        elif user.user_id in self.parked:
            self.parked.discard(user.user_id)
            for band in self.bands:
                band.unpark(user.user_id)

    def resume(self, lease: Lease) -> None:
        """Put back a lease after a rebuild."""
        user = self.user(lease.user_id, lease.weight)
        user.running += 1
        self._park_or_unpark(user)
        self.keep(lease, estimate=0)

    def forget_if_idle(self, user_id: str) -> None:
        """Drop the record of a user with nothing waiting or running, and no debt in any band."""
        user = self.users.get(user_id)
        if user is None or user.waiting or user.running:
            return
        if any(band.lingers(user_id) for band in self.bands):
            return
        for band in self.bands:
            band.forget(user_id)
        del self.users[user_id]
        self.parked.discard(user_id)
