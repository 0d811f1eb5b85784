"""What a service may hold: the rules that the dispatcher grants by. Versioned rows of the truth, the same in every
process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

MAIN_SHARD = "main"
"""The dispatcher of everything that does not name a shard: the one in memory, or the Redis of REDIS_URL."""

BANDS = (1, 2, 3)

LONGEST_REST = 10
"""A region that goes on failing rests at most so many times as long as at first."""

_AND = "+"
"""Between the regions of one lane: no region's name has it."""


def lane_of(regions: Iterable[str] | None) -> str | None:
    """Where a step waits that may go to these regions only, whatever their order; None: to any."""
    return None if regions is None else _AND.join(sorted(set(regions)))


def regions_of(lane: str) -> list[str]:
    """The other way."""
    return lane.split(_AND)


class Order(StrEnum):
    FAIR = "fair"
    FIFO = "fifo"


@dataclass(frozen=True, slots=True)
class Share:
    """What a service has on one of its shards: the bands that wait there, and its slots there."""

    bands: frozenset[int]
    limit: int


@dataclass(frozen=True, slots=True)
class Auto:
    """Between what a limit is found by itself, and the seconds that its calls may take meanwhile: `latency_target`, or
    by comparison with the best that was seen."""

    min: int
    max: int
    latency_target: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """Of a limit that is found by itself: when, to what, and why."""

    at: float
    limit: int
    why: str


@dataclass(frozen=True, slots=True)
class Adapted:
    """Where a limit that is found by itself was put last; it is in force as far as the bounds of today allow. `best`:
    the lowest latency seen, in seconds. `history` is of its last changes, the newest last."""

    limit: int
    best: float | None = None
    history: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class Lanes:
    """Which waiting steps a dispatcher has: those of these services and bands, or (`others`) all but these."""

    pairs: frozenset[tuple[str, int]] = frozenset()
    others: bool = False

    def has(self, service: str, band: int) -> bool:
        return ((service, band) in self.pairs) != self.others


EVERYTHING = Lanes(others=True)


@dataclass(frozen=True, slots=True)
class ServiceRules:
    """How a service's slots are granted. Limits nest: region within service within pool, and per user. With `auto`, the
    `limit` is the one to begin with, and in the rules in force the present one.

    A service lives on one `shard`, or has `shares` on several, split by band, each with its own limit; then `part_on`
    names the shard in the rules which that shard's dispatcher is given."""

    service: str
    limit: int
    order: Order = Order.FAIR
    pool: str | None = None
    user_limit: int | None = None
    lease_ttl: float = 15.0
    cost: float | None = None
    retries_first: bool = False
    paused: bool = False
    regions: Mapping[str, int] = field(default_factory=dict)
    # By what unbound work is spread over the regions; empty: it is not, the faster ones have it.
    region_weights: Mapping[str, float] = field(default_factory=dict)
    # Of a service that has a pool: the regions whose calls count there; None: all calls do.
    pooled_regions: tuple[str, ...] | None = None
    shard: str = MAIN_SHARD
    shares: Mapping[str, Share] = field(default_factory=dict)
    part_on: str | None = None
    # What a manager must know of a service, whatever its own config says:
    remote: bool = False
    max_attempts: int = 3
    wait_timeout: float | None = None
    # A region rests for so many seconds after so many failures in a row; 0: never.
    breaker_failures: int = 0
    breaker_rest: float = 30.0
    auto: Auto | None = None
    # Nothing executes it: its slots are taken by callers that do the work themselves.
    turns_only: bool = False

    @property
    def scope(self) -> str:
        """What shares one epoch and one set of keys: the pool with all its services, or the service alone, or what a
        split service has on one shard."""
        if self.part_on is not None:
            return f"service:{self.service}@{self.part_on}"
        return f"pool:{self.pool}" if self.pool else f"service:{self.service}"

    def in_pool(self, region: str | None) -> bool:
        """Whether a call there takes a slot of the pool."""
        return self.pool is not None and (self.pooled_regions is None or region in self.pooled_regions)

    def on(self, shard: str) -> ServiceRules | None:
        """The rules that this shard's dispatcher grants by; None if the service does not live there."""
        if not self.shares:
            return self if self.shard == shard else None
        share = self.shares.get(shard)
        return None if share is None else replace(self, limit=share.limit, shard=shard, shares={}, part_on=shard)

    def shard_of(self, band: int) -> str:
        return next((shard for shard, share in self.shares.items() if band in share.bands), self.shard)


@dataclass(frozen=True, slots=True)
class Overridden:
    """What operators changed of a service while it ran; None: it is as declared."""

    limit: int | None = None
    paused: bool | None = None


@dataclass(frozen=True)
class Rules:
    """All services and pools, as one version of the truth says. What is in `overrides` is in `services` already, and
    named there for those who wonder why it is not what the config says."""

    services: Mapping[str, ServiceRules]
    pools: Mapping[str, int] = field(default_factory=dict)
    version: int = 0
    overrides: Mapping[str, Overridden] = field(default_factory=dict)
    adapted: Mapping[str, Adapted] = field(default_factory=dict)
    """Of the services with `auto` whose limit has moved. Unless it is overridden, it is in `services` already."""

    @property
    def scopes(self) -> frozenset[str]:
        return frozenset(rules.scope for rules in self.services.values())

    @cached_property
    def pooled(self) -> frozenset[str]:
        """The services that share a pool's slots."""
        return frozenset(name for name, rules in self.services.items() if rules.pool is not None)

    @cached_property
    def wait_timeouts(self) -> dict[str, float]:
        return {name: rules.wait_timeout for name, rules in self.services.items() if rules.wait_timeout is not None}

    def on(self, shard: str) -> Rules:
        """What one shard's dispatcher grants by."""
        parts = {name: part for name, rules in self.services.items() if (part := rules.on(shard)) is not None}
        return Rules(parts, self.pools, self.version)

    def shard_of(self, service: str, band: int) -> str:
        rules = self.services.get(service)
        return MAIN_SHARD if rules is None else rules.shard_of(band)

    def lanes_of(self, shard: str) -> Lanes:
        """What waits on this shard. The main one has what is declared nowhere, too."""
        elsewhere = shard == MAIN_SHARD
        pairs = (
            (name, band)
            for name, rules in self.services.items()
            for band in BANDS
            if (rules.shard_of(band) == shard) != elsewhere
        )
        return Lanes(frozenset(pairs), others=elsewhere)
