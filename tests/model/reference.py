"""The rules of the queue in their simplest form: lists that are scanned, and counts that are computed, not kept.

The optimised dispatchers must return the same results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from fairlead.dispatch.port import Lease, Offer, Release
from fairlead.domain.costs import ENOUGH, Ratio
from fairlead.domain.fair_share import DEFAULT_COST, SECOND, averaged, charge, micros, smoothed
from fairlead.domain.groups import UNDECLARED_GROUP, GroupRules, levels_of, parent_of
from fairlead.domain.job import RANK_RETRY, Hold
from fairlead.domain.rates import Rate
from fairlead.domain.rules import SECONDS, Order, ServiceRules

BANDS = (0, 1, 2, 3)
_arrivals = count(1)


def charge_of(used: int | None, weight: float) -> int:
    """What is charged for a call; None: nothing ran."""
    return 0 if used is None else charge(used, weight)


@dataclass
class Head:
    """The best step for a slot: heads of one service compare by `order`, those of a pool by band and turn."""

    order: tuple[int, int, tuple[Any, ...], int]
    offer: Offer
    region: str | None

    @property
    def band(self) -> int:
        return self.order[0]


@dataclass
class Turns:
    """Start-time fair queueing among the services of a pool."""

    virtual_time: int = 0
    tags: dict[str, int] = field(default_factory=dict)

    def tag(self, name: str) -> int:
        return self.tags.get(name, 0)

    def enter(self, name: str) -> None:
        self.tags[name] = max(self.tag(name), self.virtual_time)

    def grant(self, name: str, charged: int) -> None:
        self.virtual_time = max(self.virtual_time, self.tag(name))
        self.tags[name] = self.tag(name) + charged

    def settle(self, name: str, difference: int) -> None:
        if difference:
            self.tags[name] = self.tag(name) + difference


@dataclass
class Band(Turns):
    """Fair queueing among the users of a band. Users that enter without debt go first, until their first grant.

    The virtual time is the start tag of the last grant to a user that was not new, whether later or earlier than the
    one before.
    """

    newcomers: dict[str, int] = field(default_factory=dict)

    def standing(self, name: str) -> tuple[bool, int]:
        if name in self.newcomers:
            return (False, self.newcomers[name])
        return (True, self.tag(name))

    def enter(self, name: str) -> None:
        self.is_known(name)
        if name not in self.tags or self.tags[name] <= self.virtual_time:
            self.tags[name] = self.virtual_time
            self.newcomers[name] = next(_arrivals)

    def grant(self, name: str, charged: int) -> None:
        if name not in self.newcomers:
            self.virtual_time = self.tag(name)
        self.is_known(name)
        self.tags[name] = self.tag(name) + charged

    def settle(self, name: str, difference: int) -> None:
        super().settle(name, difference)
        if difference > 0:
            self.is_known(name)

    def is_known(self, name: str) -> None:
        self.newcomers.pop(name, None)


@dataclass
class ReferenceService:
    rules: ServiceRules
    epoch: int = 1
    open: bool = True
    waiting: list[Offer] = field(default_factory=list)
    leases: list[tuple[Lease, int]] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    bands: list[Band] = field(default_factory=lambda: [Band() for _ in BANDS])
    weights: dict[str, float] = field(default_factory=dict)
    means: dict[str, int] = field(default_factory=dict)
    mean: int | None = None
    measured: int = 0
    per_cost: dict[str | None, Ratio] = field(default_factory=lambda: defaultdict(Ratio))
    """µs per stated cost, by region; None: in all of them."""
    per_used: Ratio = field(default_factory=Ratio)
    stated: dict[str, float] = field(default_factory=dict)
    """The stated costs of the running steps, by lease."""
    group_rules: dict[str, GroupRules] = field(default_factory=dict)
    group_of: dict[str, str] = field(default_factory=dict)
    """The groups of the users that are remembered."""
    members: dict[str, list[Band]] = field(default_factory=dict)
    """By group, the fair queueing among its members."""

    @property
    def fifo(self) -> bool:
        return self.rules.order is Order.FIFO

    def in_use(self, region: str | None = None) -> int:
        taken = [lease.region for lease, _ in self.leases] + [hold.region for hold in self.holds]
        return len(taken) if region is None else taken.count(region)

    def in_pool(self) -> int:
        taken = [lease.region for lease, _ in self.leases] + [hold.region for hold in self.holds]
        return sum(map(self.rules.in_pool, taken))

    def load(self, region: str) -> float:
        """The load by which regions with weights are chosen."""
        weights = self.rules.region_weights
        return (self.in_use(region) + 1) / weights.get(region, 1.0) if weights else 0.0

    def running(self, user: str) -> int:
        return sum(lease.user_id == user for lease, _ in self.leases)

    def parked(self, user: str) -> bool:
        return self.rules.user_limit is not None and self.running(user) >= self.rules.user_limit

    # -- groups

    def levels(self, user: str) -> list[str]:
        """The groups that a user is in, from the outermost."""
        return [] if self.fifo or user not in self.group_of else levels_of(self.group_of[user])

    def beside(self, node: str) -> list[Band]:
        """The fair queueing among a user or group and those beside it. The ids of groups begin with a byte 1."""
        parent = parent_of(node[1:]) if node.startswith("\1") else (self.levels(node) or [None])[-1]
        return self.bands if parent is None else self.members[parent]

    def rules_of(self, group: str) -> GroupRules:
        return self.group_rules.get(group, UNDECLARED_GROUP)

    def set_aside(self, user: str) -> bool:
        """Whether the user or one of its groups is at its limit."""
        return self.parked(user) or any(map(self.full, self.levels(user)))

    def full(self, group: str) -> bool:
        limit = self.rules_of(group).limit
        return limit is not None and sum(group in self.levels(lease.user_id) for lease, _ in self.leases) >= limit

    def active(self) -> set[tuple[str, int]]:
        """The groups that compete in each band: with a waiting member that is not at its limit, itself not at its
        limit, and the same for the groups in between."""
        found = set()
        for offer in self.waiting:
            if not self.parked(offer.user_id):
                for group in reversed(self.levels(offer.user_id)):
                    if self.full(group):
                        break
                    found.add((group, self.band(offer)))
        return found

    def admit(self, before: set[tuple[str, int]]) -> None:
        """The groups that have become active enter their band."""
        for group, band in sorted(self.active() - before):
            self.beside("\1" + group)[band].enter("\1" + group)

    def place(self, user: str, group: str | None) -> None:
        if self.group_of.get(user) == group:
            return
        before = self.active()
        old = [band.virtual_time for band in self.beside(user)]
        queues = self.beside(user)
        if group is None:
            del self.group_of[user]
        else:
            self.group_of[user] = group
            for level in [] if self.fifo else levels_of(group):
                self.members.setdefault(level, [Band() for _ in BANDS])
        for number in BANDS:
            self._move(user, queues[number], self.beside(user)[number], old[number])
        # The groups that the user joins enter before those that it leaves and that are no longer at their limit.
        left = {(path, band) for path, band in self.active() - before if path not in self.levels(user)}
        self.admit(before | left)
        self.admit(self.active() - left)

    def _move(self, user: str, old: Band, new: Band, time: int) -> None:
        if old is not new and user in old.tags:
            new.tags[user] = new.virtual_time + max(0, old.tags.pop(user) - time)
            if user in old.newcomers:
                new.newcomers[user] = old.newcomers[user]
            old.is_known(user)

    def band(self, offer: Offer) -> int:
        if self.rules.retries_first and offer.rank == RANK_RETRY:
            return 0
        return 1 if self.fifo else offer.band

    def users(self) -> set[str]:
        return {offer.user_id for offer in self.waiting}

    # -- the queue

    def waits(self, user: str, band: int) -> bool:
        return any(offer.user_id == user and self.band(offer) == band for offer in self.waiting)

    def put(self, offer: Offer) -> None:
        """Queue a step, replacing an older one of the same job."""
        self.place(offer.user_id, offer.group)
        before = self.active()
        if not self.waits(offer.user_id, self.band(offer)):
            self.beside(offer.user_id)[self.band(offer)].enter(offer.user_id)
        self.waiting.append(offer)
        self.admit(before)
        self.waiting = [each for each in self.waiting if each is offer or each.job_id != offer.job_id]
        self.weights[offer.user_id] = offer.weight
        self.forget()

    def drop(self, job: str) -> None:
        self.waiting = [offer for offer in self.waiting if offer.job_id != job]

    def forget(self) -> None:
        """Drop the records of users with nothing waiting or running and no debt, and of groups without members."""
        levels = [self.bands, *self.members.values()]
        known = {user for level in levels for turns in level for user in turns.tags if not user.startswith("\1")}
        for user in known | set(self.means) | set(self.group_of):
            busy = user in self.users() or self.running(user)
            if not busy and self.is_square(user):
                self.means.pop(user, None)
                self.group_of.pop(user, None)
        for group in sorted(self.members, reverse=True):  # teams before their organisations
            teams = any(parent_of(other) == group for other in self.members)
            used = teams or any(group in self.levels(user) for user in self.group_of)
            if not used and self.is_square("\1" + group):
                del self.members[group]

    def is_square(self, node: str) -> bool:
        """Whether a node has no debt; if so, its virtual times are dropped."""
        turns_of_bands = self.beside(node)
        if not self.fifo and any(turns.tag(node) > turns.virtual_time for turns in turns_of_bands):
            return False
        for turns in turns_of_bands:
            turns.tags.pop(node, None)
            turns.is_known(node)
        return True

    # -- the next

    def head(self, bands: frozenset[int], regions: frozenset[str] | None = None, *, dry: bool = False) -> Head | None:
        """The step that gets the next free slot. `dry`: the pool is full."""
        if not self.open or self.rules.paused or self.in_use() >= self.rules.limit:
            return None
        if dry and self.rules.pooled_regions is None:
            return None
        free = {
            region: limit - self.in_use(region)
            for region, limit in sorted(self.rules.regions.items())
            if limit > self.in_use(region)
            and (regions is None or region in regions)
            and not (dry and self.rules.in_pool(region))
        }
        if self.rules.regions and not free:
            return None
        preferred = sorted(free, key=lambda region: (self.load(region), -free[region], region))
        heads = []
        for offer in self.waiting:
            lane = offer.region if self.rules.regions else None
            band = self.band(offer)
            region = next((name for name in preferred if lane is None or name in lane.split("+")), None)
            if self.set_aside(offer.user_id) or (lane is not None and region is None):
                continue
            if band and not self.fifo and band not in bands:
                continue
            heads.append(Head(self._order(offer, lane), offer, region))
        return min(heads, key=lambda head: head.order, default=None)

    def _order(self, offer: Offer, lane: str | None) -> tuple[int, int, tuple[Any, ...], int]:
        band = self.band(offer)
        later = 1 if band == 0 and lane is not None else 0
        if self.fifo:
            return (band, later, (True, offer.seq, offer.user_id), offer.seq)
        nodes = ["\1" + group for group in self.levels(offer.user_id)] + [offer.user_id]
        standings = [(*self.beside(node)[band].standing(node), node) for node in nodes]
        return (band, later, tuple(standings), offer.rank << 56 | offer.seq)

    def estimate(self, offer: Offer, region: str | None) -> int:
        if offer.cost is not None:
            ratio = self.per_cost[region if self.per_cost[region].count >= ENOUGH else None]
            if ratio.count or self.rules.cost_unit == SECONDS:
                return ratio.of(micros(offer.cost)) if ratio.count else micros(offer.cost)
        if offer.user_id in self.means:
            return self.means[offer.user_id]
        if self.mean is not None:
            return self.mean
        return DEFAULT_COST if self.rules.cost is None else micros(self.rules.cost)

    def grant(self, head: Head, lease: Lease) -> int:
        """Charge a grant; the estimate is kept for the settlement."""
        user, estimate = head.offer.user_id, self.estimate(head.offer, head.region)
        if head.offer.cost is not None:
            self.stated[lease.name] = head.offer.cost
        charged = 0 if self.fifo else charge(estimate, self.weights[user])
        self.drop(head.offer.job_id)
        if not self.fifo:
            self.beside(user)[head.band].grant(user, charged)
            for group in self.levels(user):
                node = "\1" + group
                self.beside(node)[head.band].grant(node, charge(estimate, self.rules_of(group).weight))
        self.leases.append((lease, estimate))
        self.forget()
        return charged

    def settled(self, lease: Lease, real: int, used: float | None) -> int:
        """Learn from a call, and return what it is charged, before the user's weight."""
        if (cost := self.stated.pop(lease.name, None)) is not None:
            for region in {None, lease.region}:
                self.per_cost[region].learn(real, micros(cost))
        if used is None:
            return real
        self.per_used.learn(real, micros(used))
        by_used = self.rules.charge != SECONDS and self.per_used.count
        return self.per_used.of(micros(used)) if by_used else real

    def release(
        self, name: str, now: float, *, refund: bool, used: float | None = None
    ) -> tuple[Lease, int, int | None]:
        """The lease, the estimate and the slot time actually used."""
        lease, estimate = next(entry for entry in self.leases if entry[0].name == name)
        was_parked, before = self.parked(lease.user_id), self.active()
        self.leases = [entry for entry in self.leases if entry[0].name != name]
        real = None if refund else micros(now - lease.granted_at)
        if real is not None:
            self.means[lease.user_id] = smoothed(self.means.get(lease.user_id), real)
            self.mean, self.measured = averaged(self.mean, real, self.measured)
        charged = None if real is None else self.settled(lease, real, used)
        if not self.fifo:
            self.beside(lease.user_id)[lease.band].settle(
                lease.user_id, charge_of(charged, lease.weight) - lease.charged
            )
            for group in self.levels(lease.user_id):
                weight, node = self.rules_of(group).weight, "\1" + group
                before_it = charge(estimate, weight) if estimate else 0
                self.beside(node)[lease.band].settle(node, charge_of(charged, weight) - before_it)
        if was_parked and not self.parked(lease.user_id):
            self.unpark(lease.user_id)
        self.admit(before)
        self.forget()
        return lease, estimate, real

    def unpark(self, user: str) -> None:
        for band in BANDS:
            if self.waits(user, band):
                self.beside(user)[band].enter(user)

    # -- rules and rebuilds

    def configure(self, rules: ServiceRules, groups: Mapping[str, GroupRules] | None = None) -> None:
        before = self.active()
        parked = {user for user in self.users() if self.parked(user)}
        self.rules = rules
        for user in sorted(parked):
            if not self.parked(user):
                self.unpark(user)
                theirs = {
                    (group, band)
                    for group, band in self.active() - before
                    if group in self.levels(user) and self.waits(user, band)
                }
                self.admit(self.active() - theirs)
                before |= theirs
        for group, changed in sorted((groups or {}).items()):
            before = self.active()
            self.group_rules[group] = changed
            self.admit(before)

    def rebuild(self, now: float) -> tuple[list[Lease], list[Hold], list[Offer]]:
        """Forget everything but the leases and holds, which are restored; returns the steps recorded in the
        database."""
        leases = [replace(lease, group=self.group_of.get(lease.user_id)) for lease, _ in self.leases]
        offers = self.waiting
        self.epoch += 1
        self.open = False
        self.bands = [Band() for _ in BANDS]
        self.means, self.mean, self.measured, self.weights, self.waiting = {}, None, 0, {}, []
        self.per_cost, self.per_used, self.stated = defaultdict(Ratio), Ratio(), {}
        expires_at = now + self.rules.lease_ttl
        self.leases = [(replace(lease, charged=0, expires_at=expires_at, group=None), 0) for lease in leases]
        self.group_of, self.members = {}, {}
        for lease in leases:
            self.weights[lease.user_id] = lease.weight
            self.place(lease.user_id, lease.group)
        return leases, self.holds, offers


# -- rates

Key = tuple[str, ...]
"""Whose rate it is: the kind, the service or pool, and the region, user or path of the group."""


@dataclass
class RatedCall:
    """A grant, with the rates that count it. `counted_at` has the times by which the provider has counted it, in
    microseconds; empty as long as this is unknown."""

    lease: str
    service: str
    rates: Mapping[Key, Rate]
    units: int
    granted_at: int
    counted_at: dict[Key, int] = field(default_factory=dict)
    ended_at: int | None = None
    more: int = 0
    """Units beyond those reserved, which count from the end of the call on."""


@dataclass
class RateLog:
    """Every call ever granted, as a provider would log it. Nothing is summed up before it is asked for."""

    calls: list[RatedCall] = field(default_factory=list)
    means: dict[str, int] = field(default_factory=dict)
    """By service, the mean of what calls used."""

    def units_of(self, service: str, cost: float | None) -> int:
        return self.means.get(service, 0) if cost is None else micros(cost)

    def granted(self, lease: Lease, rates: Mapping[Key, Rate], units: int, now: int) -> None:
        self.calls.append(RatedCall(lease.name, lease.service, rates, units, now))

    def sent(self, lease: str, after: float, now: int) -> None:
        for call in self.calls:
            if call.lease == lease and not call.counted_at:
                self._count(call, min(now, call.granted_at + micros(after)), now)

    def _count(self, call: RatedCall, sent_at: int | None, now: int) -> None:
        for key, rate in call.rates.items():
            margin = min(SECOND, micros(rate.per) // 40)
            call.counted_at[key] = now if sent_at is None else sent_at + margin

    def ended(self, release: Release, now: int) -> RatedCall | None:
        """Returns the call, unless it was never made."""
        (call,) = (each for each in self.calls if each.lease == release.lease)
        used = None if release.used is None or release.refund else micros(release.used)
        if used is not None:
            self.means[release.service] = smoothed(self.means.get(release.service), used)
        if release.refund and not call.counted_at:
            self.calls.remove(call)
            return None
        if not call.counted_at:
            sent_at = None if release.sent is None else min(now, call.granted_at + micros(release.sent))
            self._count(call, sent_at, now)
            call.counted_at = {key: min(now, at) for key, at in call.counted_at.items()}
        call.ended_at = now
        if used is not None:
            call.more = max(0, used - call.units)
            call.units = min(call.units, used)
        return call

    def rebuilt(self, services: Collection[str]) -> None:
        """Only the database is left: it does not know when calls were sent, nor the means."""
        for call in self.calls:
            if call.service in services:
                call.counted_at = {} if call.ended_at is None else dict.fromkeys(call.rates, call.ended_at)
        self.means = {name: mean for name, mean in self.means.items() if name not in services}

    def counts(self, key: Key, rate: Rate, now: int, *, late: bool = False) -> tuple[int, int]:
        """The requests and units that a rate counts. `late`: each as long as a dispatcher may count it, which rounds
        ends up to a hundredth of `per`."""
        per = micros(rate.per)
        since = now - per - (per // 100 if late else 0)
        requests = units = 0
        for call in self.calls:
            if key in call.rates and (not call.counted_at or call.counted_at[key] > since):
                requests, units = requests + 1, units + call.units
            if key in call.rates and call.ended_at is not None and call.ended_at > since:
                # Dispatchers may have forgotten a call that ends more than `per` after it was counted, and then do not
                # count what it used beyond its reservation.
                remembered = call.counted_at[key] + per > call.ended_at
                units += call.more if late or remembered else 0
        return requests, units

    def fits(self, key: Key, rate: Rate, units: int, now: int, *, late: bool = False) -> bool:
        requests, used = self.counts(key, rate, now, late=late)
        most = None if rate.units is None else micros(rate.units)
        within = most is None or used == 0 or (used < most and used + units <= most)  # a full one takes not even 0
        return within and (rate.requests is None or requests < rate.requests)
