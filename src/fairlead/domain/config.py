"""Every setting, with its default and what is allowed. Reading files and the environment is `fairlead.config`'s
part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from fairlead.domain import sharding
from fairlead.domain.job import Priority
from fairlead.domain.limits import MAIN_SHARD, Order, ServiceRules, Share
from fairlead.domain.retry import Backoff, RetryPolicy

NAME = r"^[a-z_][a-z0-9_]{0,62}$"
URL = r"^https?://[^\s/]+\S*$"
FUNCTION = r"^[\w.]+:[\w.]+$"
# What to say to whoever did not match them.
MEANING = {
    NAME: "must be lower-case letters, digits and _, not begin with a digit, and have at most 63 characters",
    URL: "must begin with http:// or https:// and a host name",
    FUNCTION: "must be module:name, for example myapp.tasks:thumbnail",
}

Name = Annotated[str, StringConstraints(pattern=NAME)]
Seconds = Annotated[float, Field(gt=0, le=10 * 365 * 86400, allow_inf_nan=False)]
MAX_STEPS = 100
Url = Annotated[str, StringConstraints(pattern=URL, max_length=2000)]
WAYS = ("url", "function", "regions")


class Section(BaseModel):
    """Unknown keys are mistakes: a misspelt limit must not be a missing one."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class BackoffConfig(Section):
    base: Annotated[float, Field(ge=0, le=86400)] = 2.0
    factor: Annotated[float, Field(ge=1, le=100)] = 2.0
    max: Annotated[float, Field(ge=0, le=604800)] = 60.0
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.2


class RegionConfig(Section):
    url: Url
    limit: Annotated[int, Field(ge=1, le=1_000_000)]


class ShareConfig(Section):
    """What a split service has on one shard."""

    bands: Annotated[list[Literal["high", "medium", "low"]], Field(min_length=1)]
    limit: Annotated[int, Field(ge=1, le=1_000_000)]


class ServiceConfig(Section):
    """One service: a Python function, an HTTP endpoint, or an endpoint in several regions."""

    limit: Annotated[int, Field(ge=1, le=1_000_000)]
    url: Url | None = None
    function: Annotated[str, StringConstraints(pattern=FUNCTION)] | None = None
    regions: dict[Name, RegionConfig] = {}
    timeout: Seconds = 300.0
    lease_ttl: Annotated[float, Field(ge=1, le=3600)] = 15.0
    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 3
    backoff: BackoffConfig | list[Annotated[float, Field(ge=0, le=604800)]] = BackoffConfig()
    retry: Literal["auto", "manual"] = "auto"
    order: Literal["fair", "fifo"] = "fair"
    wait_timeout: Seconds | None = None
    user_limit: Annotated[int, Field(ge=1)] | None = None
    pool: Name | None = None
    shard: Name | None = None
    shards: dict[Name, ShareConfig] = {}
    cost: Seconds | None = None
    headers: dict[str, str] = {}
    format: Literal["envelope", "raw"] = "envelope"
    run_in: Literal["thread", "process"] = "thread"

    @model_validator(mode="before")
    @classmethod
    def _the_shards_limits_are_the_limit(cls, said: Any) -> Any:
        if isinstance(said, dict) and "limit" not in said and said.get("shards"):
            shares = said["shards"]
            if isinstance(shares, dict):
                shares = {name: dict(each) if isinstance(each, ShareConfig) else each for name, each in shares.items()}
            # Without a sum there is a mistake in the shards; "limit is required" would not help to find it.
            return {**said, "limit": sharding.total(shares) or 1}
        return said

    @field_validator("backoff")
    @classmethod
    def _backoff_is_not_empty(cls, value: BackoffConfig | list[float]) -> BackoffConfig | list[float]:
        if value == []:
            raise ValueError("a list of delays needs at least one entry, for example [60, 120, 180]")
        return value

    @field_validator("headers")
    @classmethod
    def _headers_are_headers(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not name or any(c in name + text for c in "\r\n\0") or not name.isascii():
                raise ValueError(f"{name!r} is not a valid header")
        return value

    @model_validator(mode="after")
    def _one_way_to_execute(self) -> ServiceConfig:
        if problem := too_many_ways({way: getattr(self, way) for way in WAYS}):
            raise ValueError(problem)
        return self

    @property
    def remote(self) -> bool:
        """A call that goes on computing when its worker dies: its slot is then held until the call's deadline."""
        return bool(self.url or self.regions)

    @property
    def retry_policy(self) -> RetryPolicy:
        if isinstance(self.backoff, list):
            backoff = Backoff(explicit=tuple(self.backoff))
        else:
            backoff = Backoff(**self.backoff.model_dump())
        return RetryPolicy(self.max_attempts, backoff, manual=self.retry == "manual")

    def rules(self, name: str) -> ServiceRules:
        return ServiceRules(
            service=name,
            limit=self.limit,
            order=Order(self.order),
            pool=self.pool,
            user_limit=self.user_limit,
            lease_ttl=self.lease_ttl,
            cost=self.cost,
            retries_first=bool(self.regions),
            regions={region: config.limit for region, config in self.regions.items()},
            remote=self.remote,
            max_attempts=self.max_attempts,
            wait_timeout=self.wait_timeout,
            shard=self.shard or MAIN_SHARD,
            shares={
                shard: Share(frozenset(Priority(band).band for band in share.bands), share.limit)
                for shard, share in self.shards.items()
            },
        )


class PromotionConfig(Section):
    low_to_medium_after: Seconds = 1800.0
    medium_to_high_after: Seconds = 3600.0


class RetentionConfig(Section):
    keep_finished: Seconds = 604800.0
    keep_failed: Seconds = 2592000.0
    keep_audit: Seconds = 7776000.0


class ServerConfig(Section):
    host: Annotated[str, StringConstraints(min_length=1, max_length=253)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    max_body: Annotated[int, Field(ge=1024, le=1 << 30)] = 1048576
    max_waiting_per_user: Annotated[int, Field(ge=0)] = 0
    max_bulk: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    allowed_origins: list[str] = []


class WorkerConfig(Section):
    """The worker of this process. `drain_timeout`: how long a stopping worker lets its calls finish."""

    concurrency: Annotated[int, Field(ge=1, le=100_000)] = 1000
    drain_timeout: Annotated[float, Field(ge=0, le=86400)] = 30.0
    max_result: Annotated[int, Field(ge=1024, le=1 << 30)] = 1048576


class ManagerConfig(Section):
    """`leader_ttl`: a standby takes over this long after the leader was heard last."""

    leader_ttl: Annotated[float, Field(ge=2, le=300)] = 10.0


class Config(Section):
    services: dict[Name, ServiceConfig] = {}
    pipelines: dict[Name, list[Name]] = {}
    pools: dict[Name, Annotated[int, Field(ge=1, le=1_000_000)]] = {}
    shards: dict[Name, Annotated[str, StringConstraints(min_length=1, max_length=2000)]] = {}
    promotion: PromotionConfig = PromotionConfig()
    retention: RetentionConfig = RetentionConfig()
    server: ServerConfig = ServerConfig()
    worker: WorkerConfig = WorkerConfig()
    manager: ManagerConfig = ManagerConfig()

    def steps_of(self, feature: str) -> tuple[str, ...] | None:
        """The services that a pipeline runs through; a service's own name is a pipeline of one."""
        if feature in self.pipelines:
            return tuple(self.pipelines[feature])
        return (feature,) if feature in self.services else None

    @cached_property  # every submit asks
    def wait_timeouts(self) -> dict[str, float]:
        return {
            name: service.wait_timeout for name, service in self.services.items() if service.wait_timeout is not None
        }

    def contradictions(self) -> Iterator[tuple[str, str]]:
        services = {name: service.model_dump() for name, service in self.services.items()}
        return contradictions(services, self.pipelines, self.pools, self.shards)


def contradictions(
    services: Mapping[str, Any], pipelines: Mapping[str, Any], pools: Mapping[str, Any], shards: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """(key, what is wrong) for what no single section can see. Given are the sections as they are written."""
    pool_of = {name: said.get("pool") if isinstance(said, dict) else None for name, said in services.items()}
    for name, steps in pipelines.items():
        if not isinstance(steps, list):
            continue
        if not steps:
            yield f"pipelines.{name}", "a pipeline needs at least one service"
        if len(steps) > MAX_STEPS:
            yield f"pipelines.{name}", f"a pipeline has at most {MAX_STEPS} steps"
        for step in dict.fromkeys(steps):
            if step not in pool_of:
                yield f"pipelines.{name}", f"no service is called {step!r}; {known(pool_of)}"
        if name in pool_of:
            yield f"pipelines.{name}", "a service has the same name; a pipeline needs one of its own"
    for name, pool in pool_of.items():
        if pool is not None and pool not in pools:
            yield f"services.{name}.pool", f"no pool is called {pool!r}; {known(pools)}"
    yield from sharding.contradictions(services, shards)


def too_many_ways(service: Mapping[str, Any]) -> str | None:
    ways = [way for way in WAYS if service.get(way)]
    return f"{' and '.join(ways)} are given; a service has exactly one of {', '.join(WAYS)}" if len(ways) > 1 else None


def known(names: Mapping[str, Any]) -> str:
    return f"known are: {', '.join(sorted(names))}" if names else "none is declared"
