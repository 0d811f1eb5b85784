"""The settings of rates: `rate = { requests = 60, tokens = 100000, per = 60 }`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from fairlead.domain.config_types import Number, Whole
from fairlead.domain.costs import MAX_UNITS, TOKENS
from fairlead.domain.rates import Rate

MAX_REQUESTS = 1_000_000
LONGEST_PER = 86400.0
SHORTEST_PER = 1.0

Units = Annotated[Number, Field(gt=0, le=MAX_UNITS)]


class RateConfig(BaseModel):
    """At most `requests` calls and `tokens` tokens in any `per` seconds. For services that count in something else than
    tokens, `units` is the same in their `cost_unit`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests: Annotated[Whole, Field(ge=1, le=MAX_REQUESTS)] | None = None
    tokens: Units | None = None
    units: Units | None = None
    per: Annotated[Number, Field(ge=SHORTEST_PER, le=LONGEST_PER)] = 60.0

    @model_validator(mode="after")
    def _limits_something(self) -> RateConfig:
        if self.requests is None and self.tokens is None and self.units is None:
            raise ValueError("needs requests, tokens or units: without one of them it limits nothing")
        if self.tokens is not None and self.units is not None:
            raise ValueError("tokens and units are both set; they are the same number, so set one")
        return self

    @property
    def rate(self) -> Rate:
        return Rate(self.requests, self.units if self.tokens is None else self.tokens, self.per)


class PoolConfig(BaseModel):
    """A pool with a rate. A pool without one is just its limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: Annotated[Whole, Field(ge=1, le=1_000_000)]
    rate: RateConfig | None = None


POOL_BRANCHES = ("a limit", "a table")
Pool = Annotated[
    Annotated[Whole, Field(ge=1, le=1_000_000), Tag(POOL_BRANCHES[0])] | Annotated[PoolConfig, Tag(POOL_BRANCHES[1])],
    Discriminator(lambda value: POOL_BRANCHES[isinstance(value, dict | PoolConfig)]),
]


def rate_of(config: RateConfig | None) -> Rate | None:
    return None if config is None else config.rate


def rate_problem(service: Any) -> str | None:
    """What is wrong with the rates of a service, or None."""
    if service.shards and (service.rate is not None or service.user_rate is not None):
        return "a service that is split over shards cannot have a rate, because one Redis must count it; use one shard"
    regions = {f"regions.{name}.rate": region.rate for name, region in service.regions.items()}
    rates = {"rate": service.rate, "user_rate": service.user_rate, **regions}
    if service.cost_unit not in (None, TOKENS):
        for name, rate in rates.items():
            if rate is not None and rate.tokens is not None:
                return f"{name} is in tokens, but cost_unit is {service.cost_unit!r}; set units instead of tokens"
    return None
