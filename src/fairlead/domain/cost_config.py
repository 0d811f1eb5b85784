"""The unit of a service's costs, and how the cost of a step is computed from the input of its job."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from fairlead.domain.costs import TOKENS, CostHook
from fairlead.domain.openai import estimated_tokens
from fairlead.domain.rate_config import PoolConfig, RateConfig
from fairlead.domain.rules import SECONDS


class CostReading:
    """The part of `ServiceConfig` that concerns costs."""

    if TYPE_CHECKING:
        cost_unit: Any
        models: Any
        rate: Any
        regions: Any
        user_rate: Any
        speaks_openai: Any
        _reads_cost: Any

    @property
    def unit(self) -> str:
        """The unit in which costs are stated and use is counted: by default tokens, if a rate of the service is in
        tokens. Rates that services share are not known here: see `CostReaders.units`."""
        rates = (self.rate, self.user_rate, *(region.rate for region in (self.regions or {}).values()))
        in_tokens = any(map(_in_tokens, rates))
        return self.cost_unit or (TOKENS if in_tokens or self.speaks_openai or self.models else SECONDS)

    @property
    def reads_cost(self) -> CostHook | None:
        """Computes the cost of a step from the input of its job; None if only jobs state costs."""
        in_tokens = self.unit == TOKENS and (self.speaks_openai or self.models)
        return self._reads_cost or (estimated_tokens if in_tokens else None)

    def reading_cost(self, hook: CostHook) -> Self:
        """Compute costs with this function, and return the service."""
        self._reads_cost = hook
        return self


def _in_tokens(rate: RateConfig | None) -> bool:
    return rate is not None and rate.tokens is not None


class CostReaders:
    """The part of `Config` that concerns costs."""

    if TYPE_CHECKING:
        services: Any
        pools: Any
        plans: Any
        groups: Any

    @cached_property
    def units(self) -> dict[str, str]:
        """The unit of the costs of each service. A rate in tokens that several services share makes tokens the default
        too: that of a pool, of a plan, or of a group, which FIFO services ignore."""
        pools = {name for name, pool in self.pools.items() if isinstance(pool, PoolConfig) and _in_tokens(pool.rate)}
        plans, groups = (any(_in_tokens(each.rate) for each in table.values()) for table in (self.plans, self.groups))

        def unit(service: Any) -> str:
            own_pools = {service.pool, *(region.pool for region in service.regions.values())}
            counted = plans or (groups and service.order == "fair") or not pools.isdisjoint(own_pools)
            return TOKENS if counted and service.cost_unit is None else str(service.unit)

        return {name: unit(service) for name, service in self.services.items()}

    @cached_property  # read by every submit
    def cost_readers(self) -> dict[str, CostHook]:
        """The functions that compute the costs of steps from the inputs of their jobs, by service."""
        readers = ((name, service.reads_cost) for name, service in self.services.items())
        return {name: reader for name, reader in readers if reader is not None}
