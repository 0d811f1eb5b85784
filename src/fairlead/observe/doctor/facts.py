"""The facts that the doctor checks, and how they are gathered. The checks read only these facts and do no I/O.

A fact that cannot be read is left out, or the error becomes a fact itself; `facts_of` never raises.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fairlead.config import Settings
from fairlead.dispatch.port import ServiceSnapshot
from fairlead.domain.access import Key
from fairlead.domain.config import Config
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.processes import ProcessRecord
from fairlead.domain.retry import TIMEOUT
from fairlead.domain.rules import BANDS, Lanes, Rules, ServiceRules
from fairlead.domain.schedules import Schedule
from fairlead.domain.stats import minute_of
from fairlead.domain.usage_report import UsageQuery, UsageTotal
from fairlead.domain.webhooks import Endpoint
from fairlead.engine.clock import Clock
from fairlead.engine.node import Node
from fairlead.engine.outbox_relay import offer_of
from fairlead.engine.shard_runtime import ShardRuntime
from fairlead.errors import FairleadError, Unavailable
from fairlead.observe.doctor import schedules, usage
from fairlead.observe.snapshot import Observer, ShardSnapshot, ask_dispatcher, read_shard
from fairlead.store.budgets import CounterRow
from fairlead.store.port import Epoch, JobFilter, Store

WORKER, MANAGER, API = "worker", "manager", "api"
ANSWERS_WITHIN = 3.0
"""Seconds for one query to a server that may be down."""
DATABASE_WITHIN = 15.0
"""Seconds for all queries to the database. Counting takes a while in a large database."""
HEARD_WITHIN = 2.0
SETTLED = 5.0
"""Seconds after which a job that waits in the database must be in the queue."""
SAMPLE = 500
TIMEOUTS_MINUTES = 10
FAILED = JobFilter(statuses=(JobStatus.FAILED,))
_COUNTED = (JobStatus.SCHEDULED, JobStatus.PENDING, JobStatus.RETRYING, JobStatus.RUNNING, JobStatus.FAILED)


@dataclass(frozen=True, slots=True)
class RedisNode:
    """What one Redis server reports. `clock` is its TIME, and `asked_at` is the time of this process's clock halfway
    through the request."""

    info: Mapping[str, str] = field(default_factory=dict)
    clock: float = 0.0
    asked_at: float = 0.0


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """The facts about a shard's Redis: one server, or every primary of a Cluster."""

    shown: str
    problem: str | None = None
    nodes: Sequence[RedisNode] = ()
    on_loopback: bool = True
    has_login: bool = False


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema version of the database (`found`; None if it has no Fairlead tables), and the schema version of this
    release (`known`)."""

    found: int | None
    known: int


@dataclass(frozen=True, slots=True)
class Echo:
    """How long a message from this process to itself took through Redis, or why it did not arrive."""

    seconds: float | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class CeleryFacts:
    """The names of the tasks that each Celery worker can run, for the workers that answered; or why no worker could be
    asked."""

    tasks: Mapping[str, frozenset[str]] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class BalancerFacts:
    """A load balancer of a Celery app: its queues, the number of its live workers, and for each queue that no live
    worker consumes, the number of pending tasks."""

    queues: str
    workers: int
    unconsumed: Mapping[str, int] = field(default_factory=dict)
    shown: str = ""


@dataclass(frozen=True)
class Facts:
    """Everything that the checks of the doctor may read. A fact that could not be read keeps its default, and the
    checks skip it.

    `now` is the time of the database's clock. `config` includes what code declares, and `config_problems` are its
    errors. `outside`: a command runs the checks, and its configuration may differ from the gateway's. `elsewhere`:
    another process has the queues in its memory, so they cannot be read from here.

    `missing` has, for each service, the jobs that wait in the database but not in the queue. `undeclared` has the
    number of waiting jobs of each service that no configuration declares. `waiting_in_database` has the number of
    waiting jobs by band, for each service whose queue is closed or cannot be read. `cut_off` has the processes that no
    longer renew their registration in the database but answer through Redis.
    """

    settings: Settings
    config: Config
    now: float = 0.0
    config_problems: Sequence[str] = ()
    elsewhere: bool = False
    outside: bool = False
    # Database
    store_problem: str | None = None
    schema: Schema | None = None
    store: Mapping[str, float | int | str] = field(default_factory=dict)
    disk_free: int | None = None
    disk_total: int | None = None
    objects_problem: str | None = None
    rules: Rules = field(default_factory=lambda: Rules({}))
    declared_limits: Mapping[str, int] = field(default_factory=dict)
    epochs: Mapping[str, Epoch] = field(default_factory=dict)
    jobs: Mapping[JobStatus, int] = field(default_factory=dict)
    next_timer: float | None = None
    next_promotion: float | None = None
    processes: Sequence[ProcessRecord] = ()
    failed_recently: Sequence[Job] = ()
    usage: Sequence[UsageTotal] = ()
    """The sums over the calls since yesterday, by service and outcome."""
    timeouts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """For each service: how many calls ended by their timeout in the last minutes, and how many calls ended in
    total."""
    missing: Mapping[str, Sequence[str]] = field(default_factory=dict)
    undeclared: Mapping[str, int] = field(default_factory=dict)
    waiting_in_database: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    keys: Sequence[Key] | None = None
    endpoints: Sequence[Endpoint] = ()
    schedules: Sequence[Schedule] = ()
    failing_schedules: Mapping[str, Sequence[str]] = field(default_factory=dict)
    budgets: Sequence[CounterRow] = ()
    # Queues
    shards: Mapping[str, ShardSnapshot] = field(default_factory=dict)
    redis: Mapping[str, RedisFacts] = field(default_factory=dict)
    echo: Echo | None = None
    cut_off: frozenset[str] = frozenset()
    # By service
    celery: Mapping[str, CeleryFacts] = field(default_factory=dict)
    balancers: Sequence[BalancerFacts] = ()
    # This process
    listens_on: Sequence[str] = ()
    priority_problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def database_is_known(self) -> bool:
        return bool(self.store) and self.store_problem is None

    @property
    def distributed(self) -> bool:
        return self.settings.redis_url is not None

    @property
    def alive(self) -> list[ProcessRecord]:
        return [process for process in self.processes if process.alive(self.now)]

    def having(self, role: str) -> list[ProcessRecord]:
        """The live processes with this role."""
        return [process for process in self.alive if role in process.roles]

    def waiting(self, service: str) -> dict[int, int]:
        """The number of waiting jobs of a service by band, summed over all shards."""
        if service in self.waiting_in_database:
            return dict(self.waiting_in_database[service])
        total: dict[int, int] = {}
        for shard in self.shards.values():
            snapshot = shard.services.get(service)
            for band, count in snapshot.waiting.items() if snapshot is not None else ():
                total[band] = total.get(band, 0) + count
        return total

    def starts(self, role: str, *services: str, options: str = "") -> str:
        """The command, in backticks, that starts a process with this role for these services, or for all services.

        The command includes a placeholder for the application's module if the process runs Python functions.
        """
        rules = [self.rules.services[name] for name in services or self.rules.services if name in self.rules.services]
        code = "" if role == MANAGER or all(each.remote for each in rules) else " MODULE:APP"
        return f"`fairlead {role}{code}{options}`"


@dataclass(frozen=True)
class Sources:
    """Where the facts are read from. `observer` is None unless the app is open; fewer facts are known then."""

    settings: Settings
    config: Config
    clock: Clock
    schema: Callable[[], Awaitable[Schema]]
    redis: Callable[[], Awaitable[Mapping[str, RedisFacts]]]
    disk: Callable[[], tuple[int, int] | None]
    problems: Sequence[str] = ()
    observer: Observer | None = None
    leaders: Callable[[], Awaitable[Mapping[str, ShardSnapshot]]] | None = None
    listens_on: Sequence[str] = ()
    priority_problems: Callable[[], Mapping[str, str]] = dict
    outside: bool = False
    celery: Callable[[], Awaitable[Mapping[str, CeleryFacts]]] | None = None
    balancers: Callable[[], Awaitable[Sequence[BalancerFacts]]] | None = None
    objects: Callable[[], Awaitable[str | None]] | None = None


async def facts_of(sources: Sources) -> Facts:
    found: dict[str, Any] = {"now": sources.clock.now(), "elsewhere": False}
    found["redis"] = await sources.redis()
    others = {"celery": sources.celery, "balancers": sources.balancers, "objects_problem": sources.objects}
    found |= {name: await ask() for name, ask in others.items() if ask is not None}
    found |= await _database(sources)
    if disk := sources.disk():
        found["disk_free"], found["disk_total"] = disk
    node = sources.observer.node if sources.observer is not None else None
    if sources.observer is not None and node is not None:
        found |= await _queues(sources.observer, node, found)
    elif sources.leaders is not None:
        found["shards"] = await sources.leaders()
    else:
        found["elsewhere"] = True
    return Facts(
        sources.settings,
        sources.config,
        config_problems=tuple(sources.problems),
        listens_on=tuple(sources.listens_on),
        priority_problems=sources.priority_problems(),
        outside=sources.outside,
        **found,
    )


# ---------------------------------------------------------------- database


async def _database(sources: Sources) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            found["schema"] = await sources.schema()
        if sources.observer is not None:
            async with asyncio.timeout(ANSWERS_WITHIN):
                await sources.observer.store.ping()  # a database that can be read may still refuse commits
            async with asyncio.timeout(DATABASE_WITHIN):
                found |= await _read_store(sources.observer.store, sources)
    except FairleadError as error:
        found["store_problem"] = str(error)
    except TimeoutError:
        found["store_problem"] = f"the database does not answer within {ANSWERS_WITHIN:g} s"
    return found


async def _timeouts(store: Store, now: float) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for each in await store.activity(minute_of(now) - TIMEOUTS_MINUTES):
        timeouts, calls = found.get(each.service, (0, 0))
        found[each.service] = timeouts + each.codes.get(TIMEOUT, 0), calls + each.finished + each.failed
    return {service: counts for service, counts in found.items() if counts[0]}


async def _read_store(store: Store, sources: Sources) -> dict[str, Any]:
    asked_at = sources.clock.now()
    facts = await store.facts()
    asked_at = (asked_at + sources.clock.now()) / 2
    promotion = sources.config.promotion
    rules, now = await store.rules(), float(facts["clock"])
    return {
        "store": {**facts, "asked_at": asked_at},
        "now": now,
        "rules": rules,
        "declared_limits": {each.service: each.limit for each in (await store.declared()).services},
        "epochs": await store.epochs(),
        "jobs": {status: await store.count(JobFilter(statuses=(status,))) for status in _COUNTED},
        "next_timer": await store.next_timer(),
        "next_promotion": await store.next_promotion(
            low_after=promotion.low_to_medium_after, medium_after=promotion.medium_to_high_after
        ),
        "processes": await store.processes(),
        "failed_recently": await store.list_jobs(FAILED, before_seq=None, limit=SAMPLE),
        "timeouts": await _timeouts(store, now),
        "usage": await store.usage(UsageQuery(now - 86400, now, "total", ("service", "outcome"))),
        "undeclared": await _undeclared(store, rules),
        "keys": await store.keys(),
        "endpoints": await store.endpoints(),
        "schedules": (declared := await store.schedules()),
        "failing_schedules": await schedules.failures(store, declared),
        "budgets": await usage.budget_rows(store, sources.config),
    }


async def _undeclared(store: Store, rules: Rules) -> dict[str, int]:
    declared = Lanes(frozenset((name, band) for name in rules.services for band in BANDS), others=True)
    waiting = await _first_waiting(store, declared) if await store.count_waiting(declared) else ()
    return dict(Counter(job.service for job in waiting))


async def _first_waiting(store: Store, lanes: Lanes) -> list[Job]:
    return await anext(aiter(store.waiting(SAMPLE, lanes)), [])


# ---------------------------------------------------------------- queues


async def _queues(observer: Observer, node: Node, found: Mapping[str, Any]) -> dict[str, Any]:
    redis: Mapping[str, RedisFacts] = found["redis"]
    down = {name for name, facts in redis.items() if facts.problem is not None}
    shards = {name: ShardSnapshot(redis[name].problem) for name in down if name in node.shards}
    missing: dict[str, list[str]] = {}
    for name, shard in node.shards.items():
        if name in down:
            continue
        shards[name] = await _shard(shard, observer.clock)
        if shards[name].services:
            with contextlib.suppress(FairleadError, TimeoutError):
                missing |= await _missing(observer.store, shard, shards[name], found.get("now", 0.0))
    return {
        "shards": shards,
        "missing": missing,
        "waiting_in_database": await _waiting_in_database(observer.store, found.get("rules"), shards),
        "echo": None if down else await _echo(node),
        "cut_off": frozenset() if down else await _cut_off(node, found),
    }


async def _shard(shard: ShardRuntime, clock: Clock) -> ShardSnapshot:
    """Read the facts about a shard. If the queue was built on another server, according to the database, only the
    states of the scopes can be read, which name the shard's server."""
    snapshot = await read_shard(shard, clock, within=ANSWERS_WITHIN)
    return replace(snapshot, parked=await _parked(shard, snapshot.services))


async def _parked(shard: ShardRuntime, services: Mapping[str, ServiceSnapshot]) -> dict[str, int]:
    """For each service, the number of waiting steps whose users are at their own limit. Read only for services with a
    limit per user, because the query returns a row per user."""
    limited = [name for name, each in shard.rules.services.items() if each.user_limit is not None and name in services]
    if not limited:
        return {}
    with contextlib.suppress(Unavailable):
        with_users = await ask_dispatcher(lambda: shard.dispatcher.snapshot(limited, users=True), ANSWERS_WITHIN)
        return {each.service: sum(user.waiting for user in each.users if user.parked) for each in with_users}
    return {}


async def _waiting_in_database(
    store: Store, rules: Rules | None, shards: Mapping[str, ShardSnapshot]
) -> dict[str, dict[int, int]]:
    """For each service whose queue is closed or cannot be read, the number of jobs that wait according to the database,
    by band."""
    if rules is None:
        return {}
    unseen = [name for name, service in rules.services.items() if not _is_open(service, shards)]
    with contextlib.suppress(FairleadError):
        return {
            name: {band: await store.count_waiting(Lanes(frozenset({(name, band)}))) for band in BANDS}
            for name in unseen
        }
    return {}


def _is_open(service: ServiceRules, shards: Mapping[str, ShardSnapshot]) -> bool:
    parts = [(shard, service.on(shard)) for shard in [*service.shares] or [service.shard]]
    return all(
        shard in shards
        and service.service in shards[shard].services
        and part is not None
        and part.scope in shards[shard].states
        and shards[shard].states[part.scope].open
        for shard, part in parts
    )


async def _missing(store: Store, shard: ShardRuntime, snapshot: ShardSnapshot, now: float) -> dict[str, list[str]]:
    """For each service, the jobs that wait according to the database, but that the dispatcher has neither in the queue
    nor claimed.

    If a service has few waiting jobs, each of them is looked up. Otherwise jobs are looked up only if the queue has
    fewer jobs than the database.
    """
    missing: dict[str, list[str]] = {}
    for service, count in (await store.count_waiting_by_service(shard.lanes)).items():
        rules, seen = shard.rules.services.get(service), snapshot.services.get(service)
        state = None if rules is None else snapshot.states.get(rules.scope)
        if rules is None or seen is None or state is None or not state.open:
            continue
        if count > SAMPLE and count <= sum(seen.waiting.values()):
            continue
        pairs = frozenset((service, band) for band in BANDS if shard.lanes.has(service, band))
        waiting = {
            job.id: job
            for job in await _first_waiting(store, Lanes(pairs))
            if job.service == service and now - (job.waiting_since or now) >= SETTLED
        }
        offers = [offer_of(job, shard.rules.services) for job in waiting.values()]
        async with asyncio.timeout(ANSWERS_WITHIN):
            absent = [offer.job_id for offer in await shard.dispatcher.missing(offers)]
        still = await store.get_jobs(absent) if absent else {}
        lost = [job.id for job in still.values() if job.status is JobStatus.PENDING and job.run == waiting[job.id].run]
        if lost:
            missing[service] = lost
    return missing


async def _cut_off(node: Node, found: Mapping[str, Any]) -> frozenset[str]:
    """The processes that no longer renew their registration in the database, but answer through Redis."""
    now = found.get("now", 0.0)
    silent = [each.name for each in found.get("processes", ()) if not each.gone and not each.alive(now)]
    if not silent:
        return frozenset()
    with contextlib.suppress(FairleadError, TimeoutError):
        async with asyncio.timeout(ANSWERS_WITHIN):
            return await node.answering(silent, HEARD_WITHIN)
    return frozenset()


async def _echo(node: Node) -> Echo | None:
    try:
        async with asyncio.timeout(HEARD_WITHIN):
            seconds = await node.echo()
    except Unavailable as error:
        return Echo(problem=str(error))
    except TimeoutError:
        return Echo(problem=f"it did not arrive within {HEARD_WITHIN:g} s")
    return None if seconds is None else Echo(seconds)
