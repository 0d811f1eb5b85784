"""The rules of the queue in their simplest form: lists that are scanned, and counts that are computed, not kept.

The optimised dispatchers must return the same results.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from fairlead.dispatch.port import Lease, Offer
from fairlead.domain.costs import ENOUGH, Ratio
from fairlead.domain.fair_share import DEFAULT_COST, averaged, charge, micros, smoothed
from fairlead.domain.job import RANK_RETRY, Hold
from fairlead.domain.rules import SECONDS, Order, ServiceRules

BANDS = (0, 1, 2, 3)


@dataclass
class Head:
    """The best step for a slot: heads of one service compare by `order`, those of a pool by band and turn."""

    order: tuple[int, int, tuple[bool, int], str, int]
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

    newcomers: list[str] = field(default_factory=list)

    def standing(self, name: str) -> tuple[bool, int]:
        if name in self.newcomers:
            return (False, self.newcomers.index(name))
        return (True, self.tag(name))

    def enter(self, name: str) -> None:
        self.is_known(name)
        if name not in self.tags or self.tags[name] <= self.virtual_time:
            self.tags[name] = self.virtual_time
            self.newcomers.append(name)

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
        self.newcomers = [other for other in self.newcomers if other != name]


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
        if not self.waits(offer.user_id, self.band(offer)):
            self.bands[self.band(offer)].enter(offer.user_id)
        self.drop(offer.job_id)
        self.waiting.append(offer)
        self.weights[offer.user_id] = offer.weight
        self.forget()

    def drop(self, job: str) -> None:
        self.waiting = [offer for offer in self.waiting if offer.job_id != job]

    def forget(self) -> None:
        """Drop the records of users with nothing waiting or running and no debt."""
        for user in {user for turns in self.bands for user in turns.tags} | set(self.means):
            busy = user in self.users() or self.running(user)
            if not busy and (self.fifo or all(turns.tag(user) <= turns.virtual_time for turns in self.bands)):
                self.means.pop(user, None)
                for turns in self.bands:
                    turns.tags.pop(user, None)
                    turns.is_known(user)

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
            if self.parked(offer.user_id) or (lane is not None and region is None):
                continue
            if band and not self.fifo and band not in bands:
                continue
            heads.append(Head(self._order(offer, lane), offer, region))
        return min(heads, key=lambda head: head.order, default=None)

    def _order(self, offer: Offer, lane: str | None) -> tuple[int, int, tuple[bool, int], str, int]:
        band = self.band(offer)
        later = 1 if band == 0 and lane is not None else 0
        if self.fifo:
            return (band, later, (True, offer.seq), offer.user_id, offer.seq)
        return (band, later, self.bands[band].standing(offer.user_id), offer.user_id, offer.rank << 56 | offer.seq)

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
            self.bands[head.band].grant(user, charged)
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
        was_parked = self.parked(lease.user_id)
        self.leases = [entry for entry in self.leases if entry[0].name != name]
        real = None if refund else micros(now - lease.granted_at)
        if real is not None:
            self.means[lease.user_id] = smoothed(self.means.get(lease.user_id), real)
            self.mean, self.measured = averaged(self.mean, real, self.measured)
        charged = 0 if real is None else charge(self.settled(lease, real, used), lease.weight)
        if not self.fifo:
            self.bands[lease.band].settle(lease.user_id, charged - lease.charged)
        if was_parked and not self.parked(lease.user_id):
            self.unpark(lease.user_id)
        self.forget()
        return lease, estimate, real

    def unpark(self, user: str) -> None:
        for band in BANDS:
            if self.waits(user, band):
                self.bands[band].enter(user)

    # -- rules and rebuilds

    def configure(self, rules: ServiceRules) -> None:
        parked = {user for user in self.users() if self.parked(user)}
        self.rules = rules
        for user in sorted(parked):
            if not self.parked(user):
                self.unpark(user)

    def rebuild(self, now: float) -> tuple[list[Lease], list[Hold], list[Offer]]:
        """Forget everything but the leases and holds, which are restored; returns the steps recorded in the
        database."""
        leases = [lease for lease, _ in self.leases]
        offers = self.waiting
        self.epoch += 1
        self.open = False
        self.bands = [Band() for _ in BANDS]
        self.means, self.mean, self.measured, self.weights, self.waiting = {}, None, 0, {}, []
        self.per_cost, self.per_used, self.stated = defaultdict(Ratio), Ratio(), {}
        expires_at = now + self.rules.lease_ttl
        self.leases = [(replace(lease, charged=0, expires_at=expires_at), 0) for lease in leases]
        for lease in leases:
            self.weights[lease.user_id] = lease.weight
        return leases, self.holds, offers
