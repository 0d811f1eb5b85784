"""The rules by which dispatchers grant slots: limits, order, pauses, pools, regions and shards of all services.

Rules are stored in the database with a version, so that all processes use the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from fairlead.domain.groups import GroupRules
from fairlead.domain.rates import UNITS, MemberRates, Rate, RateOf

MAIN_SHARD = "main"
"""The shard of every service that names none: the in-memory dispatcher, or the Redis of REDIS_URL."""

BANDS = (1, 2, 3)

LONGEST_REST = 10
"""The rest of a region that keeps failing grows to at most this multiple of the first rest."""

_AND = "+"
"""Separates the regions of a lane. No region name contains it."""

_ELSE = ">"
"""Separates the preferred region of a lane from the other allowed regions. If nothing follows, any region is
allowed."""


def lane_of(regions: Iterable[str] | None, prefers: str | None = None) -> str | None:
    """The lane of a step that may go to `regions` only, in any order. If `regions` is None, the step may go to any
    region, and without a preference its lane is None too. A step that `prefers` a region goes to other regions only
    while the preferred region accepts no calls."""
    lane = None if regions is None else _AND.join(sorted(set(regions)))
    return lane if prefers in (None, lane) else f"{prefers}{_ELSE}{lane or ''}"


def regions_of(lane: str) -> list[str]:
    """The regions of a lane. The lane must have no preferred region."""
    return lane.split(_AND)


def preference_of(lane: str) -> tuple[str | None, str | None]:
    """Split a lane into its preferred region (None: it has none) and the lane without the preference (None: any
    region)."""
    prefers, separator, others = lane.partition(_ELSE)
    return (prefers, others or None) if separator else (None, lane)


SECONDS = "seconds"
"""The unit of costs and charges, unless a service has another one."""


class Order(StrEnum):
    FAIR = "fair"
    FIFO = "fifo"


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one shard in a service that is split over several shards: the bands it serves, and its number of
    slots."""

    bands: frozenset[int]
    limit: int


@dataclass(frozen=True, slots=True)
class Auto:
    """The settings of an automatic limit: its bounds, and the latency in seconds up to which the limit grows. Without a
    `latency_target`, the limit grows while the latency is close to the lowest latency measured."""

    min: int
    max: int
    latency_target: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One change of an automatic limit."""

    at: float
    limit: int
    why: str


@dataclass(frozen=True, slots=True)
class Adapted:
    """The stored value of an automatic limit. Readers clamp it to the configured bounds. `best` is the lowest latency
    measured, in seconds. `history` holds the last changes, newest last."""

    limit: int
    best: float | None = None
    history: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class Lanes:
    """Selects the waiting steps that belong to one dispatcher, by service and band: the steps of the listed (service,
    band) pairs or, with `others`, all steps except those of the listed pairs."""

    pairs: frozenset[tuple[str, int]] = frozenset()
    others: bool = False

    def has(self, service: str, band: int) -> bool:
        return ((service, band) in self.pairs) != self.others


EVERYTHING = Lanes(others=True)


@dataclass(frozen=True, slots=True)
class ServiceRules:
    """The rules of one service. A call needs a slot of its region, of the service and of the pool, within the limit per
    user, and the rates of all of these. With `auto`, `limit` is the initial limit in a declaration, and the current
    limit in the rules that apply.

    A service lives on one `shard`, or is split by band over several shards. `shares` then gives each of these shards
    its bands and its own limit. In the rules for the dispatcher of one of these shards, `part_on` names that shard.
    """

    service: str
    limit: int
    order: Order = Order.FAIR
    pool: str | None = None
    user_limit: int | None = None
    lease_ttl: float = 15.0
    cost: float | None = None
    cost_unit: str = SECONDS
    charge: str = SECONDS
    retries_first: bool = False
    paused: bool = False
    regions: Mapping[str, int] = field(default_factory=dict)
    # The weights by which steps that may run in any region are spread. Empty: the fastest regions take them.
    region_weights: Mapping[str, float] = field(default_factory=dict)
    # The regions whose calls take a slot of the pool; None: all calls do.
    pooled_regions: tuple[str, ...] | None = None
    shard: str = MAIN_SHARD
    shares: Mapping[str, Share] = field(default_factory=dict)
    part_on: str | None = None
    # Stored for managers, whose own config may lack the service:
    remote: bool = False
    # Seconds for which the slot of a remote call is held when its worker is gone; None: until the call's deadline.
    hold: float | None = None
    max_attempts: int = 3
    wait_timeout: float | None = None
    # With `resume = "auto"`: a job that waited too long is queued again after this many seconds.
    resume_after: float | None = None
    # A region rests for `breaker_rest` seconds after this many failures in a row; 0: never.
    breaker_failures: int = 0
    breaker_rest: float = 30.0
    auto: Auto | None = None
    # No executor: callers take its slots and do the work themselves.
    turns_only: bool = False
    rate: Rate | None = None
    user_rate: Rate | None = None
    region_rates: Mapping[str, Rate] = field(default_factory=dict)

    @property
    def scope(self) -> str:
        """The scope of the service: the unit that has one epoch and one set of Redis keys. A scope is a pool with its
        services, a single service, or the share of one shard in a split service."""
        if self.part_on is not None:
            return f"service:{self.service}@{self.part_on}"
        return f"pool:{self.pool}" if self.pool else f"service:{self.service}"

    def in_pool(self, region: str | None) -> bool:
        """Whether a call in this region takes a slot of the pool."""
        return self.pool is not None and (self.pooled_regions is None or region in self.pooled_regions)

    def on(self, shard: str) -> ServiceRules | None:
        """The rules of the service for the dispatcher of this shard, or None if the service does not use the shard."""
        if not self.shares:
            return self if self.shard == shard else None
        share = self.shares.get(shard)
        return None if share is None else replace(self, limit=share.limit, shard=shard, shares={}, part_on=shard)

    def shard_of(self, band: int) -> str:
        return next((shard for shard, share in self.shares.items() if band in share.bands), self.shard)


@dataclass(frozen=True, slots=True)
class Overridden:
    """The changes that operators made to a service at run time. None means that the declared value applies."""

    limit: int | None = None
    paused: bool | None = None


@dataclass(frozen=True)
class Rules:
    """One version of the rules of all services and pools. The other values already include the `overrides` and
    `rate_overrides`, which are kept to explain why the rules differ from the config."""

    services: Mapping[str, ServiceRules]
    pools: Mapping[str, int] = field(default_factory=dict)
    version: int = 0
    overrides: Mapping[str, Overridden] = field(default_factory=dict)
    adapted: Mapping[str, Adapted] = field(default_factory=dict)
    """The automatic limits that differ from their initial values. The limits in `services` include them, unless
    overridden."""
    elsewhere: frozenset[str] = frozenset()
    """Set in the rules of one shard: the declared services that use other shards only."""
    groups: Mapping[str, GroupRules] = field(default_factory=dict)
    """The declared groups of users, by path."""
    has_undeclared: bool = True
    """Whether the steps of services that are not declared wait on this shard. True for the main shard only."""
    pool_rates: Mapping[str, Rate] = field(default_factory=dict)
    plan_rates: Mapping[str, Rate] = field(default_factory=dict)
    """The rates that each user of a plan has in each service, by plan."""
    rate_overrides: Mapping[RateOf, Rate] = field(default_factory=dict)
    """The rates that operators set at run time."""

    @property
    def scopes(self) -> frozenset[str]:
        return frozenset(rules.scope for rules in self.services.values())

    def scope_of(self, service: str) -> str:
        """The scope of a service. A service that is not declared has a scope of its own on the main shard."""
        return (self.services.get(service) or ServiceRules(service, limit=0)).scope

    def is_undeclared(self, scope: str) -> bool:
        """Whether this is the scope of a service that is not declared and whose steps wait on this shard."""
        kind, _, service = scope.partition(":")
        declared = "@" in service or service in self.services or service in self.elsewhere
        return self.has_undeclared and kind == "service" and not declared

    @cached_property
    def pooled(self) -> frozenset[str]:
        """The names of the services that are in a pool."""
        return frozenset(name for name, rules in self.services.items() if rules.pool is not None)

    @cached_property
    def rated(self) -> frozenset[str]:
        """The services whose calls a rate counts."""
        return frozenset(
            name
            for name, rules in self.services.items()
            if rules.rate
            or rules.user_rate
            or rules.region_rates
            or rules.pool in self.pool_rates
            or any(self.member_rates)
        )

    @cached_property
    def member_rates(self) -> MemberRates:
        """The rates that count in every service."""
        groups = {path: group.rate for path, group in self.groups.items() if group.rate is not None}
        return MemberRates(self.plan_rates, groups)

    def windows_of(self, service: str) -> dict[RateOf, Rate]:
        """The rates that count the calls of a service, each in a window of its own."""
        rules = self.services[service]
        found = {
            RateOf("service", service): rules.rate,
            RateOf("user", service): rules.user_rate,
            RateOf("pool", rules.pool or ""): self.pool_rates.get(rules.pool or ""),
        }
        found |= {RateOf("region", service, region): rate for region, rate in rules.region_rates.items()}
        found |= {RateOf("plan", plan): rate for plan, rate in self.plan_rates.items()}
        if rules.order is Order.FAIR:
            found |= {RateOf("group", path): rate for path, rate in self.member_rates.groups.items()}
        return {of: rate for of, rate in found.items() if rate is not None}

    def rate_of(self, of: RateOf) -> Rate | None:
        if of.kind in ("plan", "pool", "group"):
            rates = {"plan": self.plan_rates, "pool": self.pool_rates, "group": self.member_rates.groups}[of.kind]
            return rates.get(of.name)
        service = self.services[of.name]
        if of.kind == "region":
            return service.region_rates.get(of.region)
        return service.rate if of.kind == "service" else service.user_rate

    def unit_of(self, of: RateOf) -> str:
        """The unit in which a rate counts: that of its service, or `units` if it counts several with different ones."""
        units = self.units_of(of)
        return units.pop() if len(units) == 1 else UNITS

    def units_of(self, of: RateOf) -> set[str]:
        """The units of the services whose calls a rate counts. FIFO services ignore the rates of groups."""
        if of.kind in ("plan", "group"):
            fifo = of.kind == "plan"
            counted = [service for service in self.services.values() if fifo or service.order is Order.FAIR]
        elif of.kind == "pool":  # it may have no service
            counted = [service for service in self.services.values() if service.pool == of.name]
        else:
            counted = [self.services[of.name]]
        return {service.cost_unit for service in counted}

    @cached_property
    def wait_timeouts(self) -> dict[str, float]:
        return {name: rules.wait_timeout for name, rules in self.services.items() if rules.wait_timeout is not None}

    @cached_property
    def auto_resumes(self) -> dict[str, float]:
        return {name: rules.resume_after for name, rules in self.services.items() if rules.resume_after is not None}

    def on(self, shard: str) -> Rules:
        """The rules for the dispatcher of one shard."""
        parts = {name: part for name, rules in self.services.items() if (part := rules.on(shard)) is not None}
        elsewhere = frozenset(self.services.keys() - parts.keys())
        main = shard == MAIN_SHARD
        return Rules(
            parts, self.pools, self.version, elsewhere=elsewhere, groups=self.groups, has_undeclared=main,
            pool_rates=self.pool_rates, plan_rates=self.plan_rates, rate_overrides=self.rate_overrides,
        )  # fmt: skip

    def shard_of(self, service: str, band: int) -> str:
        rules = self.services.get(service)
        return MAIN_SHARD if rules is None else rules.shard_of(band)

    def lanes_of(self, shard: str) -> Lanes:
        """The waiting steps that belong to this shard. Steps of services that are not declared belong to the main
        shard."""
        elsewhere = shard == MAIN_SHARD
        pairs = (
            (name, band)
            for name, rules in self.services.items()
            for band in BANDS
            if (rules.shard_of(band) == shard) != elsewhere
        )
        return Lanes(frozenset(pairs), others=elsewhere)


def with_rates(rules: Rules, rates: Mapping[RateOf, Rate]) -> Rules:
    """Declared rules with the rates that operators set at run time. Rates of services, regions, pools and groups that
    are not declared have no effect."""
    services, groups = dict(rules.services), dict(rules.groups)
    pool_rates, plan_rates = dict(rules.pool_rates), dict(rules.plan_rates)
    for (kind, name, region), rate in rates.items():
        if kind == "plan":
            plan_rates[name] = rate
        elif kind == "pool" and name in rules.pools:
            pool_rates[name] = rate
        elif kind == "group" and name in groups:
            groups[name] = replace(groups[name], rate=rate)
        elif kind == "service" and name in services:
            services[name] = replace(services[name], rate=rate)
        elif kind == "user" and name in services:
            services[name] = replace(services[name], user_rate=rate)
        elif kind == "region" and name in services and region in services[name].regions:
            region_rates = {**services[name].region_rates, region: rate}
            services[name] = replace(services[name], region_rates=region_rates)
    return replace(
        rules, services=services, groups=groups, pool_rates=pool_rates, plan_rates=plan_rates, rate_overrides=rates
    )


def moved_scopes(before: Rules, after: Rules) -> frozenset[str]:
    """The scopes, on any shard, that waiting steps leave or enter when the rules `after` replace the rules `before`,
    and those in which a rate counts a longer time than before, so that its window lacks the calls that ended earlier.
    These scopes grant nothing until they have been rebuilt."""
    changed: set[tuple[str, str, frozenset[int]]] = set()
    for name in before.services.keys() | after.services.keys():
        changed |= _homes(name, before) ^ _homes(name, after)
    both = before.services.keys() & after.services.keys()
    longer = {after.scope_of(name) for name in both if _is_longer(name, before, after)}
    return frozenset(longer.union(scope for scope, _, _ in changed))


def _is_longer(service: str, before: Rules, after: Rules) -> bool:
    """Whether a rate that counts calls of the service has a longer window after the change, or no window before."""
    old, new = before.windows_of(service), after.windows_of(service)
    everyone = RateOf("user", service)
    for of in old.keys() | new.keys():
        # A plan without a rate has that of each user.
        was, now = (rates.get(of) or (rates.get(everyone) if of.kind == "plan" else None) for rates in (old, new))
        if now is not None and (was is None or now.per > was.per):
            return True
    return False


def _homes(service: str, rules: Rules) -> set[tuple[str, str, frozenset[int]]]:
    """Where steps of the service wait, as a set of (scope, shard, bands)."""
    declared = rules.services.get(service) or ServiceRules(service, limit=0)
    if not declared.shares:
        return {(declared.scope, declared.shard, frozenset(BANDS))}
    parts = {shard: declared.on(shard) for shard in declared.shares}
    return {(part.scope, shard, declared.shares[shard].bands) for shard, part in parts.items() if part is not None}
