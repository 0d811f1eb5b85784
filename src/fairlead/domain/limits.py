"""What a service may hold: the rules that the dispatcher grants by. Versioned rows of the truth, the same in every
process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Order(StrEnum):
    FAIR = "fair"
    FIFO = "fifo"


@dataclass(frozen=True, slots=True)
class ServiceRules:
    """How a service's slots are granted. Limits nest: region within service within pool, and per user."""

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

    @property
    def scope(self) -> str:
        """What shares one epoch and one set of keys: the pool with all its services, or the service alone."""
        return f"pool:{self.pool}" if self.pool else f"service:{self.service}"


@dataclass(frozen=True, slots=True)
class Rules:
    """All services and pools, as one version of the truth says."""

    services: Mapping[str, ServiceRules]
    pools: Mapping[str, int] = field(default_factory=dict)
    version: int = 0

    @property
    def scopes(self) -> frozenset[str]:
        return frozenset(rules.scope for rules in self.services.values())
