"""The section `[prices]`: what calls cost, by service and model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fairlead.domain.config_types import ModelName, Number
from fairlead.domain.prices import Price, Prices, ServicePrices

Amount = Annotated[Number, Field(ge=0, le=1_000_000)]


class ModelPriceConfig(BaseModel):
    """The price of the calls of one model, in place of the price of its service."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    per_call: Amount = 0.0
    per_second: Amount = 0.0
    per_unit: Amount = 0.0
    per_million_tokens_in: Amount = 0.0
    per_million_tokens_out: Amount = 0.0
    per_million_tokens_cached: Amount | None = None

    @property
    def price(self) -> Price:
        return Price(
            self.per_call,
            self.per_second,
            self.per_unit,
            self.per_million_tokens_in,
            self.per_million_tokens_out,
            self.per_million_tokens_cached,
        )


class PriceConfig(ModelPriceConfig):
    """The price of the calls of one service, and of its models."""

    models: dict[ModelName, ModelPriceConfig] = {}


def prices_of(config: Mapping[str, PriceConfig], plans: Mapping[str, str]) -> Prices:
    """`plans` has the plan of each user that has one."""
    services = {
        service: ServicePrices(table.price, {model: each.price for model, each in table.models.items()})
        for service, table in config.items()
    }
    return Prices(services, plans)
