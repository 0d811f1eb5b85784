"""Prices of calls. An amount is an integer in billionths of the currency, so that sums are exact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.domain.calls import CallEnd

NANO = 1_000_000_000
"""Amounts per unit of the currency."""
MAX_AMOUNT = 10**15
"""The largest amount of one call: a million of the currency."""


@dataclass(frozen=True, slots=True)
class Price:
    """What one call costs: the sum of all parts. Tokens from a cache cost `per_million_tokens_cached`, or as much as
    other tokens in if that is None."""

    per_call: float = 0.0
    per_second: float = 0.0
    per_unit: float = 0.0
    per_million_tokens_in: float = 0.0
    per_million_tokens_out: float = 0.0
    per_million_tokens_cached: float | None = None

    def amount(self, call: CallEnd) -> int:
        """The price of this call, as far as its usage was reported."""
        total = self.per_call + self.per_second * call.seconds
        if (usage := call.usage) is not None:
            cached = 0 if self.per_million_tokens_cached is None else usage.tokens_cached or 0
            total += self.per_unit * (usage.units or 0.0)
            total += self.per_million_tokens_in * max(0, (usage.tokens_in or 0) - cached) / 1e6
            total += self.per_million_tokens_out * (usage.tokens_out or 0) / 1e6
            total += (self.per_million_tokens_cached or 0.0) * cached / 1e6
        return min(MAX_AMOUNT, round(total * NANO))


@dataclass(frozen=True, slots=True)
class ServicePrices:
    """The price of a service, and the prices of those of its models that have their own."""

    price: Price
    models: Mapping[str, Price] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prices:
    """What the process that ends a call knows about it from its configuration: the prices by service, and the plans of
    users, for jobs that were submitted before jobs had a plan."""

    services: Mapping[str, ServicePrices] = field(default_factory=dict)
    plans: Mapping[str, str] = field(default_factory=dict)

    def amount(self, call: CallEnd) -> int | None:
        """The price of a call; None if its service has none."""
        service = self.services.get(call.job.service) if self.services else None
        if service is None:
            return None
        model = None if call.usage is None else call.usage.model
        return (service.price if model is None else service.models.get(model, service.price)).amount(call)


NO_PRICES = Prices()
