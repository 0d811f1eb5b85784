"""Every setting with its default and its valid range. `fairlead.config` reads files and the environment."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, StringConstraints, field_validator, model_validator

from fairlead.domain import cost_expression
from fairlead.domain.config_budgets import BudgetConfig, budget_problems
from fairlead.domain.config_checks import (
    WAYS,
    contradictions,
    front_problem,
    too_many_ways,
    total_limit,
    unknown_in_worker_pools,
    unknown_plans,
    unknown_services,
    unscheduled_features,
)
from fairlead.domain.config_fronts import FrontsConfig, unknown_features
from fairlead.domain.config_prices import PriceConfig
from fairlead.domain.config_schedules import ScheduleConfig
from fairlead.domain.config_sections import ArtifactsConfig as ArtifactsConfig
from fairlead.domain.config_sections import CeleryConfig as CeleryConfig
from fairlead.domain.config_sections import ManagerConfig as ManagerConfig
from fairlead.domain.config_sections import OpenAIConfig as OpenAIConfig
from fairlead.domain.config_sections import PriorityConfig as PriorityConfig
from fairlead.domain.config_sections import Section as Section
from fairlead.domain.config_sections import ServerConfig as ServerConfig
from fairlead.domain.config_sections import TurnsConfig as TurnsConfig
from fairlead.domain.config_sections import WorkerConfig as WorkerConfig
from fairlead.domain.config_sections import WorkerPoolConfig as WorkerPoolConfig
from fairlead.domain.config_types import AUTO as AUTO
from fairlead.domain.config_types import AUTO_KEYS as AUTO_KEYS
from fairlead.domain.config_types import BRANCHES as BRANCHES
from fairlead.domain.config_types import FUNCTION as FUNCTION
from fairlead.domain.config_types import MEANING as MEANING
from fairlead.domain.config_types import TASK as TASK
from fairlead.domain.config_types import (
    GroupName,
    Headers,
    Limit,
    ModelName,
    Name,
    Number,
    RegionName,
    Seconds,
    Slots,
    Url,
    UserId,
    Weight,
    Whole,
)
from fairlead.domain.config_users import GroupConfig as GroupConfig
from fairlead.domain.config_users import PlanConfig as PlanConfig
from fairlead.domain.config_users import UserConfig as UserConfig
from fairlead.domain.config_users import uncountable_rates
from fairlead.domain.config_webhooks import WebhooksConfig
from fairlead.domain.cost_config import CostReaders, CostReading
from fairlead.domain.costs import CostHook
from fairlead.domain.groups import GroupRules, group_problems, paths_of
from fairlead.domain.job import Priority
from fairlead.domain.rate_config import Pool, PoolConfig, RateConfig, rate_of, rate_problem
from fairlead.domain.rates import Rate
from fairlead.domain.retry import Backoff, RetryPolicy
from fairlead.domain.rules import MAIN_SHARD, SECONDS, Auto, Order, ServiceRules, Share
from fairlead.domain.user_priority import UNKNOWN, UserPriority

OPENAI_HOLD_S = 5.0


class BackoffConfig(Section):
    base: Annotated[Number, Field(ge=0, le=86400)] = 2.0
    factor: Annotated[Number, Field(ge=1, le=100)] = 2.0
    max: Annotated[Number, Field(ge=0, le=604800)] = 60.0
    jitter: Annotated[Number, Field(ge=0, le=1)] = 0.2


class RegionConfig(Section):
    """One region of a service. Steps that may run in several regions are spread by `weight`, if the weights differ.
    With `pool`, the calls in this region take a slot of that pool."""

    url: Url
    limit: Annotated[Whole, Field(ge=1, le=1_000_000)]
    weight: Weight = 1.0
    pool: Name | None = None
    rate: RateConfig | None = None


class BreakerConfig(Section):
    """The circuit breaker: a region rests for `rest` seconds after `failures` failures in a row (0: it never rests)."""

    failures: Annotated[Whole, Field(ge=0, le=1000)] = 5
    rest: Annotated[Number, Field(gt=0, le=86400)] = 30.0


class ShareConfig(Section):
    """The share of one shard in a service that is split over several shards: its bands and its slots."""

    bands: Annotated[list[Literal["high", "medium", "low"]], Field(min_length=1)]
    limit: Annotated[Whole, Field(ge=1, le=1_000_000)]


class ServiceConfig(CostReading, Section):
    """One service: a Python function, an HTTP endpoint, an endpoint in several regions, a Celery task, or a server that
    speaks OpenAI's protocol."""

    limit: Limit
    min: Slots | None = None
    max: Slots | None = None
    latency_target: Seconds | None = None
    url: Url | None = None
    function: Annotated[str, StringConstraints(pattern=FUNCTION)] | None = None
    regions: dict[RegionName, RegionConfig] = {}
    celery: Annotated[str, StringConstraints(pattern=TASK, max_length=255)] | None = None
    celery_queue: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    openai: Url | None = None
    models: list[ModelName] = []
    aliases: dict[ModelName, ModelName] = {}
    retry_streams: bool = False
    responses: Literal["auto", "pass", "translate"] = "auto"
    timeout: Seconds = 600.0
    lease_ttl: Annotated[Number, Field(ge=1, le=3600)] = 15.0
    hold_after_crash: Annotated[Number, Field(ge=0, le=86400)] | None = None
    max_attempts: Annotated[Whole, Field(ge=1, le=1000)] = 3
    backoff: BackoffConfig | list[Annotated[Number, Field(ge=0, le=604800)]] = BackoffConfig()
    retry: Literal["auto", "manual"] = "auto"
    resume: Literal["auto", "manual"] = "manual"
    order: Literal["fair", "fifo"] = "fair"
    wait_timeout: Seconds | None = None
    spill_after: Seconds | None = None
    breaker: BreakerConfig = BreakerConfig()
    user_limit: Annotated[Whole, Field(ge=1)] | None = None
    rate: RateConfig | None = None
    user_rate: RateConfig | None = None
    pool: Name | None = None
    shard: Name | None = None
    shards: dict[Name, ShareConfig] = {}
    cost: Seconds | str | None = None
    cost_unit: Name | None = None
    charge: Literal["seconds", "tokens"] = "seconds"
    headers: Headers = {}
    format: Literal["envelope", "raw", "openai"] | None = None
    body: dict[str, Any] | None = None
    stream: Literal["sse", "text"] | None = None
    extract: Annotated[Whole, Field(ge=0, le=1 << 30)] = 1048576
    run_in: Literal["thread", "process"] = "thread"
    _handled: bool = PrivateAttr(default=False)
    _reads_cost: CostHook | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _sum_limits_of_shards(cls, table: Any) -> Any:
        if isinstance(table, dict) and "limit" not in table and table.get("shards"):
            shares = table["shards"]
            if isinstance(shares, dict):
                shares = {name: dict(each) if isinstance(each, ShareConfig) else each for name, each in shares.items()}
            # Invalid shares have no sum and are reported as such; the 1 prevents a misleading "limit is required".
            return {**table, "limit": total_limit(shares) or 1}
        return table

    @field_validator("backoff")
    @classmethod
    def _backoff_is_not_empty(cls, value: BackoffConfig | list[float]) -> BackoffConfig | list[float]:
        if value == []:
            raise ValueError("a list of delays needs at least one entry, for example [60, 120, 180]")
        return value

    @model_validator(mode="after")
    def _one_way_to_execute(self) -> ServiceConfig:
        table = {way: getattr(self, way) for way in WAYS}
        if problem := too_many_ways(table) or front_problem(self.model_dump(exclude_unset=True)) or rate_problem(self):
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _only_remote_calls_are_held(self) -> ServiceConfig:
        if self.hold_after_crash is not None and not self.remote:
            raise ValueError("hold_after_crash: the calls of a function end with their worker; no slot is held")
        return self

    @model_validator(mode="after")
    def _costs_have_a_unit(self) -> ServiceConfig:
        self._reads_cost = cost_expression.reader_of(self.cost) or self._reads_cost
        if self.charge != SECONDS and self.unit != self.charge:
            raise ValueError(f'charge = "{self.charge}" needs cost_unit = "{self.charge}", but it is "{self.unit}"')
        return self

    @model_validator(mode="after")
    def _only_waits_that_end_are_resumed(self) -> ServiceConfig:
        if self.resume == "auto" and self.wait_timeout is None:
            raise ValueError('resume = "auto" needs a wait_timeout: without one, no job stops waiting')
        return self

    @model_validator(mode="after")
    def _auto_has_its_bounds(self) -> ServiceConfig:
        keys = [key for key in AUTO_KEYS if getattr(self, key) is not None]
        if self.limit != AUTO:
            if keys:
                raise ValueError(f'{" and ".join(keys)}: only with limit = "auto", but the limit is {self.limit}')
            return self
        if self.shards:
            raise ValueError(
                'limit = "auto" cannot be split over shards, because one Redis must count it; use one shard'
            )
        if self.max is None:
            raise ValueError('limit = "auto" needs a max, the upper bound of concurrent calls')
        if self.max < self.lowest:
            raise ValueError(f"max is {self.max}, but min is {self.lowest}")
        return self

    @property
    def lowest(self) -> int:
        """The `limit` of the service. If the limit is automatic, its lower bound, which is also its initial value."""
        return (self.min or 1) if self.limit == AUTO else self.limit

    @property
    def auto(self) -> Auto | None:
        return None if self.max is None else Auto(self.lowest, self.max, self.latency_target)

    @property
    def remote(self) -> bool:
        """Whether a call may keep running after its worker has died. The slot of such a call is then held for a
        while."""
        return bool(self.url or self.regions or self.celery or self.openai)

    @property
    def hold(self) -> float | None:
        """Seconds for which the slot of a call whose worker is gone is held; None: until the deadline of the call. A
        server with OpenAI's protocol ends a call when its connection closes."""
        if self.hold_after_crash is None and self.speaks_openai:
            return OPENAI_HOLD_S
        return self.hold_after_crash

    @property
    def speaks_openai(self) -> bool:
        """Whether calls go to a server that speaks OpenAI's protocol."""
        return self.openai is not None or self.format == "openai"

    @property
    def translates_responses(self) -> bool:
        """Whether requests to `/responses` are certainly answered by chat completions."""
        return not self.speaks_openai or self.responses == "translate"

    @property
    def behind_front(self) -> bool:
        """Whether the jobs of this service are requests of the OpenAI front."""
        return self.speaks_openai or bool(self.models)

    @property
    def raw(self) -> bool:
        """Whether calls send only the params and take the whole response as data, the default for Celery tasks."""
        return self.celery is not None if self.format is None else self.format == "raw"

    @property
    def turns_only(self) -> bool:
        """Whether the service has no executor: callers take its slots and do the work themselves."""
        return not (self._handled or any(getattr(self, way) for way in WAYS))

    def handled(self) -> ServiceConfig:
        """Mark this service as executed by a Python function that the application registered, and return it."""
        self._handled = True
        return self

    @property
    def retry_policy(self) -> RetryPolicy:
        if isinstance(self.backoff, list):
            backoff = Backoff(explicit=tuple(self.backoff))
        else:
            backoff = Backoff(**self.backoff.model_dump())
        return RetryPolicy(self.max_attempts, backoff, manual=self.retry == "manual")

    def _region_weights(self) -> dict[str, float]:
        """The weights of the regions by name. Empty if all regions have the same weight."""
        weights = {region: config.weight for region, config in self.regions.items()}
        return weights if len(set(weights.values())) > 1 else {}

    def _pool(self) -> tuple[str | None, tuple[str, ...] | None]:
        """The pool of the service, and the regions whose calls take a slot of that pool (None: all regions)."""
        pooled = {region: config.pool for region, config in self.regions.items() if config.pool is not None}
        pool = self.pool or next(iter(pooled.values()), None)
        return pool, None if self.pool or len(pooled) == len(self.regions) else tuple(sorted(pooled))

    def rules(self, name: str, unit: str | None = None) -> ServiceRules:
        pool, pooled_regions = self._pool()
        return ServiceRules(
            service=name,
            limit=self.lowest,
            order=Order(self.order),
            pool=pool,
            user_limit=self.user_limit,
            lease_ttl=self.lease_ttl,
            cost=None if isinstance(self.cost, str) else self.cost,
            cost_unit=unit or self.unit,
            charge=self.charge,
            retries_first=bool(self.regions),
            regions={region: config.limit for region, config in self.regions.items()},
            region_weights=self._region_weights(),
            pooled_regions=pooled_regions,
            remote=self.remote,
            hold=self.hold,
            max_attempts=self.max_attempts,
            wait_timeout=self.wait_timeout,
            resume_after=self.retry_policy.backoff.delay(1, 0.5) if self.resume == "auto" else None,
            breaker_failures=self.breaker.failures if self.regions else 0,
            breaker_rest=self.breaker.rest,
            shard=self.shard or MAIN_SHARD,
            shares={
                shard: Share(frozenset(Priority(band).band for band in share.bands), share.limit)
                for shard, share in self.shards.items()
            },
            auto=self.auto,
            turns_only=self.turns_only,
            rate=rate_of(self.rate),
            user_rate=rate_of(self.user_rate),
            region_rates={name: region.rate.rate for name, region in self.regions.items() if region.rate is not None},
        )


class PromotionConfig(Section):
    low_to_medium_after: Seconds = 1800.0
    medium_to_high_after: Seconds = 3600.0


class RetentionConfig(Section):
    keep_finished: Seconds = 604800.0
    keep_failed: Seconds = 2592000.0
    keep_audit: Seconds = 7776000.0
    keep_usage: Seconds = 2592000.0
    keep_usage_hours: Seconds = 7776000.0
    keep_usage_days: Seconds = 157680000.0


class Config(CostReaders, Section):
    services: dict[Name, ServiceConfig] = {}
    pipelines: dict[Name, list[Name]] = {}
    pools: dict[Name, Pool] = {}
    shards: dict[Name, Annotated[str, StringConstraints(min_length=1, max_length=2000)]] = {}
    priority: PriorityConfig = PriorityConfig()
    plans: dict[Name, PlanConfig] = {}
    prices: dict[Name, PriceConfig] = {}
    budgets: dict[Name, BudgetConfig] = {}
    groups: dict[GroupName, GroupConfig] = {}
    users: dict[UserId, UserConfig] = {}
    promotion: PromotionConfig = PromotionConfig()
    retention: RetentionConfig = RetentionConfig()
    server: ServerConfig = ServerConfig()
    worker: WorkerConfig = WorkerConfig()
    worker_pools: dict[Name, WorkerPoolConfig] = {}
    manager: ManagerConfig = ManagerConfig()
    turns: TurnsConfig = TurnsConfig()
    celery: CeleryConfig = CeleryConfig()
    openai: OpenAIConfig = OpenAIConfig()
    artifacts: ArtifactsConfig = ArtifactsConfig()
    webhooks: WebhooksConfig = WebhooksConfig()
    fronts: FrontsConfig = FrontsConfig()
    schedules: dict[Name, ScheduleConfig] = {}

    def steps_of(self, feature: str) -> tuple[str, ...] | None:
        """The services that a pipeline calls, in order. A service's name is also a pipeline: that service alone."""
        if feature in self.pipelines:
            return tuple(self.pipelines[feature])
        return (feature,) if feature in self.services else None

    @property
    def pool_limits(self) -> dict[str, int]:
        return {name: pool.limit if isinstance(pool, PoolConfig) else pool for name, pool in self.pools.items()}

    @property
    def pool_rates(self) -> dict[str, Rate]:
        tables = {name: pool.rate for name, pool in self.pools.items() if isinstance(pool, PoolConfig)}
        return {name: rate.rate for name, rate in tables.items() if rate is not None}

    @cached_property  # read by every submit
    def turns_only(self) -> frozenset[str]:
        return frozenset(name for name, service in self.services.items() if service.turns_only)

    @cached_property  # read by every submit
    def front_services(self) -> frozenset[str]:
        """The services whose jobs are requests of the OpenAI front."""
        return frozenset(name for name, service in self.services.items() if service.behind_front)

    @cached_property
    def private_services(self) -> frozenset[str]:
        """The services whose requests and answers are not kept."""
        if self.openai.keep == "results":
            return frozenset()
        return self.front_services

    @cached_property
    def wait_timeouts(self) -> dict[str, float]:
        return {
            name: service.wait_timeout for name, service in self.services.items() if service.wait_timeout is not None
        }

    @cached_property
    def plan_standings(self) -> dict[str, UserPriority]:
        return {name: UserPriority(plan.priority, plan.weight, plan=name) for name, plan in self.plans.items()}

    @cached_property
    def plan_rates(self) -> dict[str, Rate]:
        return {name: plan.rate.rate for name, plan in self.plans.items() if plan.rate is not None}

    @cached_property
    def group_paths(self) -> dict[str, str]:
        return paths_of({name: group.parent for name, group in self.groups.items()})

    @cached_property
    def group_rules(self) -> dict[str, GroupRules]:
        """The rules of the declared groups by their paths."""
        return {
            path: GroupRules(group.weight, group.limit, rate_of(group.rate))
            for name, path in self.group_paths.items()
            for group in (self.groups[name],)
        }

    @cached_property
    def user_standings(self) -> dict[str, UserPriority]:
        """The priority, weight, group and plan of each configured user, with the plan applied."""
        return {
            user_id: UserPriority(user.priority, user.weight, self.group_paths.get(user.group or "")).or_else(
                self.plan_standings.get(user.plan or "", UNKNOWN)
            )
            for user_id, user in self.users.items()
        }

    def contradictions(self) -> Iterator[tuple[str, str]]:
        services = {name: service.model_dump() for name, service in self.services.items()}
        users = {user_id: user.model_dump() for user_id, user in self.users.items()}
        yield from contradictions(services, self.pipelines, self.pools, self.shards)
        yield from unknown_plans(users, self.plans)
        yield from uncountable_rates(self.plans, self.groups, services)
        yield from unknown_services(self.prices, services)
        yield from unknown_features(self.fronts, [*self.pipelines, *self.services])
        features = {name: schedule.feature_name or name for name, schedule in self.schedules.items()}
        yield from unscheduled_features(features, {**self.pipelines, **services})
        budgets = {name: budget.model_dump() for name, budget in self.budgets.items()}
        yield from budget_problems(budgets, services, self.plans, self.prices, self.group_paths)
        yield from group_problems({name: group.model_dump() for name, group in self.groups.items()}, users)
        worker_pools = {name: pool.model_dump() for name, pool in self.worker_pools.items()}
        yield from unknown_in_worker_pools(worker_pools, services)
