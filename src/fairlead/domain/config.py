"""Every setting, with its default and what is allowed. Reading files and the environment is `fairlead.config`'s
part."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)

from fairlead.domain import sharding
from fairlead.domain.job import Priority
from fairlead.domain.limits import MAIN_SHARD, Auto, Order, ServiceRules, Share
from fairlead.domain.retry import Backoff, RetryPolicy
from fairlead.domain.standing import MAX_WEIGHT, UNKNOWN, Standing

NAME = r"^[a-z_][a-z0-9_]{0,62}$"
URL = r"^https?://[^\s/]+\S*$"
FUNCTION = r"^[\w.]+:[\w.]+$"
TASK = r"^[^\s:]+$"
# What to say to whoever did not match them.
MEANING = {
    NAME: "must be lower-case letters, digits and _, not begin with a digit, and have at most 63 characters",
    URL: "must begin with http:// or https:// and a host name",
    FUNCTION: "must be module:name, for example myapp.tasks:thumbnail",
    TASK: "must be the name that Celery knows the task by, for example myapp.tasks.generate",
}

Name = Annotated[str, StringConstraints(pattern=NAME)]
Seconds = Annotated[float, Field(gt=0, le=10 * 365 * 86400, allow_inf_nan=False)]
MAX_STEPS = 100
Url = Annotated[str, StringConstraints(pattern=URL, max_length=2000)]
WAYS = ("url", "function", "regions", "celery")
AUTO_KEYS = ("min", "max", "latency_target")
USER_ID = "{user_id}"
AUTO: Final = "auto"
Slots = Annotated[int, Field(ge=1, le=1_000_000)]
BRANCHES = ("a number", "a word")
# Told apart before they are checked, so that a wrong number is told of as a number.
Limit = Annotated[
    Annotated[Slots, Tag(BRANCHES[0])] | Annotated[Literal["auto"], Tag(BRANCHES[1])],
    Discriminator(lambda said: BRANCHES[said == AUTO]),
]
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
Weight = Annotated[float, Field(gt=0, le=MAX_WEIGHT, allow_inf_nan=False)]
UserId = Annotated[str, StringConstraints(min_length=1, max_length=255)]


def _headers(said: dict[str, str]) -> dict[str, str]:
    for name, text in said.items():
        if not name or any(c in name + text for c in "\r\n\0") or not name.isascii():
            raise ValueError(f"{name!r} is not a valid header")
    return said


Headers = Annotated[dict[str, str], AfterValidator(_headers)]


class Section(BaseModel):
    """Unknown keys are mistakes: a misspelt limit must not be a missing one."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class BackoffConfig(Section):
    base: Annotated[float, Field(ge=0, le=86400)] = 2.0
    factor: Annotated[float, Field(ge=1, le=100)] = 2.0
    max: Annotated[float, Field(ge=0, le=604800)] = 60.0
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.2


class RegionConfig(Section):
    """`weight`: where those of a service's regions differ, work that may go to several is spread by it. `pool`: calls
    here take a slot of it, and those in the service's other regions do not, unless they say so as well."""

    url: Url
    limit: Annotated[int, Field(ge=1, le=1_000_000)]
    weight: Weight = 1.0
    pool: Name | None = None


class BreakerConfig(Section):
    """A region that fails so often in a row rests for so long; `failures = 0`: never."""

    failures: Annotated[int, Field(ge=0, le=1000)] = 5
    rest: Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)] = 30.0


class ShareConfig(Section):
    """What a split service has on one shard."""

    bands: Annotated[list[Literal["high", "medium", "low"]], Field(min_length=1)]
    limit: Annotated[int, Field(ge=1, le=1_000_000)]


class ServiceConfig(Section):
    """One service: a Python function, an HTTP endpoint, an endpoint in several regions, or a Celery task."""

    limit: Limit
    min: Slots | None = None
    max: Slots | None = None
    latency_target: Seconds | None = None
    url: Url | None = None
    function: Annotated[str, StringConstraints(pattern=FUNCTION)] | None = None
    regions: dict[Name, RegionConfig] = {}
    celery: Annotated[str, StringConstraints(pattern=TASK, max_length=255)] | None = None
    celery_queue: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    timeout: Seconds = 300.0
    lease_ttl: Annotated[float, Field(ge=1, le=3600)] = 15.0
    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 3
    backoff: BackoffConfig | list[Annotated[float, Field(ge=0, le=604800)]] = BackoffConfig()
    retry: Literal["auto", "manual"] = "auto"
    order: Literal["fair", "fifo"] = "fair"
    wait_timeout: Seconds | None = None
    spill_after: Seconds | None = None
    breaker: BreakerConfig = BreakerConfig()
    user_limit: Annotated[int, Field(ge=1)] | None = None
    pool: Name | None = None
    shard: Name | None = None
    shards: dict[Name, ShareConfig] = {}
    cost: Seconds | None = None
    headers: Headers = {}
    format: Literal["envelope", "raw"] | None = None
    run_in: Literal["thread", "process"] = "thread"
    _handled: bool = PrivateAttr(default=False)

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

    @model_validator(mode="after")
    def _one_way_to_execute(self) -> ServiceConfig:
        if problem := too_many_ways({way: getattr(self, way) for way in WAYS}):
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _auto_has_its_bounds(self) -> ServiceConfig:
        given = [key for key in AUTO_KEYS if getattr(self, key) is not None]
        if self.limit != AUTO:
            if given:
                raise ValueError(f'{" and ".join(given)}: only with limit = "auto", but the limit is {self.limit}')
            return self
        if self.shards:
            raise ValueError('limit = "auto" cannot be split over shards: one Redis counts it; use one shard')
        if self.max is None:
            raise ValueError('limit = "auto" needs a max: the most calls at once, however well they go')
        if self.max < self.lowest:
            raise ValueError(f"max is {self.max}, but min is {self.lowest}")
        return self

    @property
    def lowest(self) -> int:
        """Of the limit: what is given, or where one that is found by itself begins."""
        return (self.min or 1) if self.limit == AUTO else self.limit

    @property
    def auto(self) -> Auto | None:
        return None if self.max is None else Auto(self.lowest, self.max, self.latency_target)

    @property
    def remote(self) -> bool:
        """A call that goes on computing when its worker dies: its slot is then held until the call's deadline."""
        return bool(self.url or self.regions or self.celery)

    @property
    def raw(self) -> bool:
        """The params alone are sent, and the whole answer is the data. A Celery task has its own arguments already."""
        return self.celery is not None if self.format is None else self.format == "raw"

    @property
    def turns_only(self) -> bool:
        """Nothing executes it: its slots are for callers that do the work themselves."""
        return not (self._handled or any(getattr(self, way) for way in WAYS))

    def handled(self) -> ServiceConfig:
        """The same, executed by a handler in code."""
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
        """None where they are all the same: that says no more than to give none."""
        weights = {region: config.weight for region, config in self.regions.items()}
        return weights if len(set(weights.values())) > 1 else {}

    def _pool(self) -> tuple[str | None, tuple[str, ...] | None]:
        """The pool that its calls count in, and of which regions they do; None: all of them."""
        pooled = {region: config.pool for region, config in self.regions.items() if config.pool is not None}
        pool = self.pool or next(iter(pooled.values()), None)
        return pool, None if self.pool or len(pooled) == len(self.regions) else tuple(sorted(pooled))

    def rules(self, name: str) -> ServiceRules:
        pool, pooled_regions = self._pool()
        return ServiceRules(
            service=name,
            limit=self.lowest,
            order=Order(self.order),
            pool=pool,
            user_limit=self.user_limit,
            lease_ttl=self.lease_ttl,
            cost=self.cost,
            retries_first=bool(self.regions),
            regions={region: config.limit for region, config in self.regions.items()},
            region_weights=self._region_weights(),
            pooled_regions=pooled_regions,
            remote=self.remote,
            max_attempts=self.max_attempts,
            wait_timeout=self.wait_timeout,
            breaker_failures=self.breaker.failures if self.regions else 0,
            breaker_rest=self.breaker.rest,
            shard=self.shard or MAIN_SHARD,
            shares={
                shard: Share(frozenset(Priority(band).band for band in share.bands), share.limit)
                for shard, share in self.shards.items()
            },
            auto=self.auto,
            turns_only=self.turns_only,
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
    max_batch_body: Annotated[int, Field(ge=1024, le=1 << 30)] = 33554432
    max_waiting_per_user: Annotated[int, Field(ge=0)] = 0
    submits_per_minute: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    max_bulk: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    allowed_origins: list[str] = []


class WorkerConfig(Section):
    """The worker of this process. `drain_timeout`: how long a stopping worker lets its calls finish."""

    concurrency: Annotated[int, Field(ge=1, le=100_000)] = 1000
    drain_timeout: Annotated[float, Field(ge=0, le=86400)] = 30.0
    max_result: Annotated[int, Field(ge=1024, le=1 << 30)] = 1048576


class WorkerPoolConfig(Section):
    """One of several workers that a process starts. What is not given is not bound: all bands, services and regions."""

    bands: Annotated[list[Literal["high", "medium", "low"]], Field(min_length=1)] | None = None
    services: Annotated[list[Name], Field(min_length=1)] | None = None
    regions: Annotated[list[Name], Field(min_length=1)] | None = None
    concurrency: Annotated[int, Field(ge=1, le=100_000)] | None = None


class ManagerConfig(Section):
    """`leader_ttl`: a standby takes over this long after the leader was heard last."""

    leader_ttl: Annotated[float, Field(ge=2, le=300)] = 10.0


class PriorityConfig(Section):
    """The service that says who goes first. `url` is where it is (`/users/{user_id}/priority` is added), or a whole URL
    with `{user_id}` in it."""

    url: Url | None = None
    headers: Headers = {}
    timeout: Annotated[float, Field(gt=0, le=30)] = 0.5
    cache: Annotated[float, Field(ge=0, le=86400)] = 60.0
    breaker_after: Annotated[int, Field(ge=1, le=1000)] = 5
    breaker_rest: Annotated[float, Field(gt=0, le=3600)] = 10.0

    @field_validator("url")
    @classmethod
    def _only_path_or_query_name_the_user(cls, value: str | None) -> str | None:
        if value is not None and (problem := _priority_url_problem(value)):
            raise ValueError(problem)
        return value

    @property
    def template(self) -> str | None:
        """The whole URL, with `{user_id}` in it."""
        if self.url is None or USER_ID in self.url:
            return self.url
        return f"{self.url.rstrip('/')}/users/{USER_ID}/priority"


class CeleryConfig(Section):
    """Where Celery is, for services that are Celery tasks: the team's own app, or its broker and result backend."""

    app: Annotated[str, StringConstraints(pattern=FUNCTION)] | None = None
    broker_url: Annotated[str, StringConstraints(min_length=1, max_length=2000)] | None = None
    result_backend: Annotated[str, StringConstraints(min_length=1, max_length=2000)] | None = None
    lost_after: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = 30.0


class PlanConfig(Section):
    """What users have in common who pay the same."""

    priority: Priority | None = None
    weight: Weight | None = None


class UserConfig(PlanConfig):
    """One user. What is said here wins over the plan."""

    plan: Name | None = None


class Config(Section):
    services: dict[Name, ServiceConfig] = {}
    pipelines: dict[Name, list[Name]] = {}
    pools: dict[Name, Annotated[int, Field(ge=1, le=1_000_000)]] = {}
    shards: dict[Name, Annotated[str, StringConstraints(min_length=1, max_length=2000)]] = {}
    priority: PriorityConfig = PriorityConfig()
    plans: dict[Name, PlanConfig] = {}
    users: dict[UserId, UserConfig] = {}
    promotion: PromotionConfig = PromotionConfig()
    retention: RetentionConfig = RetentionConfig()
    server: ServerConfig = ServerConfig()
    worker: WorkerConfig = WorkerConfig()
    worker_pools: dict[Name, WorkerPoolConfig] = {}
    manager: ManagerConfig = ManagerConfig()
    celery: CeleryConfig = CeleryConfig()

    def steps_of(self, feature: str) -> tuple[str, ...] | None:
        """The services that a pipeline runs through; a service's own name is a pipeline of one."""
        if feature in self.pipelines:
            return tuple(self.pipelines[feature])
        return (feature,) if feature in self.services else None

    @cached_property  # every submit asks
    def turns_only(self) -> frozenset[str]:
        return frozenset(name for name, service in self.services.items() if service.turns_only)

    @cached_property
    def wait_timeouts(self) -> dict[str, float]:
        return {
            name: service.wait_timeout for name, service in self.services.items() if service.wait_timeout is not None
        }

    @cached_property
    def plan_standings(self) -> dict[str, Standing]:
        return {name: Standing(plan.priority, plan.weight) for name, plan in self.plans.items()}

    @cached_property
    def user_standings(self) -> dict[str, Standing]:
        """By user, the plan included."""
        return {
            user_id: Standing(user.priority, user.weight).or_else(self.plan_standings.get(user.plan or "", UNKNOWN))
            for user_id, user in self.users.items()
        }

    def contradictions(self) -> Iterator[tuple[str, str]]:
        services = {name: service.model_dump() for name, service in self.services.items()}
        users = {user_id: user.model_dump() for user_id, user in self.users.items()}
        yield from contradictions(services, self.pipelines, self.pools, self.shards)
        yield from unknown_plans(users, self.plans)
        yield from unknown_in_worker_pools(
            {name: pool.model_dump() for name, pool in self.worker_pools.items()}, services
        )


def contradictions(
    services: Mapping[str, Any], pipelines: Mapping[str, Any], pools: Mapping[str, Any], shards: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """(key, what is wrong) for what no single section can see. Given are the sections as they are written."""
    for name, steps in pipelines.items():
        if not isinstance(steps, list):
            continue
        if not steps:
            yield f"pipelines.{name}", "a pipeline needs at least one service"
        if len(steps) > MAX_STEPS:
            yield f"pipelines.{name}", f"a pipeline has at most {MAX_STEPS} steps"
        for step in dict.fromkeys(steps):
            if step not in services:
                yield f"pipelines.{name}", f"no service is called {step!r}; {known(services)}"
        if name in services:
            yield f"pipelines.{name}", "a service has the same name; a pipeline needs one of its own"
    for name, said in services.items():
        if isinstance(said, dict):
            yield from ((f"services.{name}{key}", text) for key, text in _wrong_pools(said, pools))
    yield from sharding.contradictions(services, shards)


def _wrong_pools(service: Mapping[str, Any], pools: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    named = sharding.pools_of(service)
    for key, pool in named.items():
        if pool not in pools:
            yield key, f"no pool is called {pool!r}; {known(pools)}"
    if len(named) > 1 and ".pool" in named:
        yield ".pool", "the service as a whole is in a pool, so its regions are: say it once, here or of regions"
    elif len(set(named.values())) > 1:
        spread = ", ".join(sorted(set(map(str, named.values()))))
        yield (
            ".regions",
            f"its regions are in several pools ({spread}); all calls of a service count in one pool, or none",
        )


def unknown_plans(users: Mapping[str, Any], plans: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, what is wrong), as `contradictions`."""
    for user_id, said in users.items():
        plan = said.get("plan") if isinstance(said, dict) else None
        if plan is not None and plan not in plans:
            yield f"users.{user_id}.plan", f"no plan is called {plan!r}; {known(plans)}"


def unknown_in_worker_pools(worker_pools: Mapping[str, Any], services: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, what is wrong), as `contradictions`."""
    regions = regions_of(services)
    for name, said in worker_pools.items():
        for key, what, there in (("services", "service", services), ("regions", "region", regions)):
            named = said.get(key) if isinstance(said, dict) else None
            for each in dict.fromkeys(named) if isinstance(named, list) else ():
                if each not in there:
                    yield f"worker_pools.{name}.{key}", f"no {what} is called {each!r}; {known(there)}"


def regions_of(services: Mapping[str, Any]) -> dict[str, None]:
    """The names of the regions that any service has, as the sections are written."""
    sections = (said.get("regions") for said in services.values() if isinstance(said, dict))
    return {region: None for section in sections if isinstance(section, dict) for region in section}


def _priority_url_problem(url: str) -> str | None:
    """Whoever a user is, the host is the operator's choice."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if it is no port
    except ValueError:
        return "this is no URL; for example http://priorities:8000"
    if unknown := set(_PLACEHOLDER.findall(url)) - {USER_ID}:
        return f"{', '.join(sorted(unknown))} stands for nothing; {USER_ID} is the only placeholder"
    if USER_ID not in url:
        if "?" in url or "#" in url:
            return f"with a query, write the whole URL, with {USER_ID} where the user's id goes"
        return None
    if USER_ID in parts.netloc:
        return f"{USER_ID} may stand in the path or the query, not in the host"
    if USER_ID not in parts.path + parts.query:
        return f"{USER_ID} must stand in the path or the query: what follows # is never sent"
    return None


def too_many_ways(service: Mapping[str, Any]) -> str | None:
    ways = [way for way in WAYS if service.get(way)]
    return f"{' and '.join(ways)} are given; a service has exactly one of {', '.join(WAYS)}" if len(ways) > 1 else None


def known(names: Mapping[str, Any]) -> str:
    return f"known are: {', '.join(sorted(names))}" if names else "none is declared"
