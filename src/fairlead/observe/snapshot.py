"""Reads the state of the queues, the processes and the database, for status, why, metrics, stats, the doctor and the
dashboard.

Every query has a time limit, so that a shard or a database that hangs cannot block a response. Concurrent callers share
one query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from fairlead.dispatch.port import Leadership, ScopeState, ServiceSnapshot
from fairlead.domain.job import JobStatus
from fairlead.domain.model_stats import ModelStats
from fairlead.domain.processes import LOOPS, ProcessRecord
from fairlead.domain.rules import Rules
from fairlead.domain.stats import MINUTE, minute_of
from fairlead.engine.clock import Clock
from fairlead.engine.node import Node
from fairlead.engine.shard_runtime import ShardRuntime
from fairlead.errors import Unavailable, shown
from fairlead.pacing import CachedQuery, DutyCycle
from fairlead.store.port import Facts, JobFilter, Store

T = TypeVar("T")

DISPATCHER_TIMEOUT = 1.5
DATABASE_TIMEOUT = 5.0
ELSEWHERE = "another process holds the queues in its memory"
MODEL_MINUTES = 5
"""The number of minutes from which the figures of models are computed."""
RECENT = DutyCycle(share=0.02, every=2.0, longest=30.0)


@dataclass(frozen=True, slots=True)
class ShardSnapshot:
    """The state of one shard's dispatcher at `taken_at`, on the database's clock.

    `problem` is the reason why the leader or the scopes could not be read, `unseen` the reason why the services could
    not be read. A shard in memory belongs to one process and has no leader. `parked` has, for each service, the number
    of waiting steps of users at their limit.
    """

    problem: str | None = None
    in_memory: bool = False
    leader: str | None = None
    term: int | None = None
    services: Mapping[str, ServiceSnapshot] = field(default_factory=dict)
    states: Mapping[str, ScopeState] = field(default_factory=dict)
    parked: Mapping[str, int] = field(default_factory=dict)
    taken_at: float = 0.0
    unseen: str | None = None

    def as_leader(self) -> dict[str, Any]:
        problem = None if self.leader else self.problem or "no manager leads"
        return {"leader": self.leader, "term": self.term, "problem": problem}


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The state of all shards as this process sees them, arranged by service.

    `seen` has the shards that answered, and `unknown` is the reason why other shards did not. `leaders` is empty if the
    queues are in this process's memory.
    """

    rules: Rules
    services: Mapping[str, Sequence[ServiceSnapshot]] = field(default_factory=dict)
    seen: frozenset[str] = frozenset()
    states: Mapping[str, ScopeState] = field(default_factory=dict)
    leaders: Mapping[str, Any] = field(default_factory=dict)
    unknown: str | None = None

    @classmethod
    def of(cls, rules: Rules, shards: Mapping[str, ShardSnapshot]) -> QueueSnapshot:
        services: dict[str, list[ServiceSnapshot]] = {}
        for shard in shards.values():
            for name, service in shard.services.items():
                services.setdefault(name, []).append(service)
        return cls(
            rules,
            services,
            frozenset(name for name, shard in shards.items() if shard.unseen is None),
            {scope: state for shard in shards.values() for scope, state in shard.states.items()},
            {name: shard.as_leader() for name, shard in shards.items() if not shard.in_memory},
            "; ".join(f"{name}: {shard.unseen}" for name, shard in shards.items() if shard.unseen) or None,
        )

    def knows(self, service: str) -> bool:
        """Whether every shard of this service answered. If not, the numbers of the service are unknown, not zero."""
        rules = self.rules.services[service]
        return self.seen.issuperset([*rules.shares] or [rules.shard])


class Processes(NamedTuple):
    """Every registered process, and the time of the database's clock when the registrations were read."""

    records: Sequence[ProcessRecord]
    now: float

    @property
    def alive(self) -> list[ProcessRecord]:
        return [record for record in self.records if record.alive(self.now)]


class Observer:
    """Reads the state of the system from the shards of this process, if it has any, and from the database."""

    def __init__(self, store: Store, node: Callable[[], Node | None], clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self._node = node
        self._queues = CachedQuery(self._read_queues, RECENT, DATABASE_TIMEOUT)
        self.processes = CachedQuery(self._read_processes, RECENT, DATABASE_TIMEOUT)
        self.facts = CachedQuery(self._read_facts, RECENT, DATABASE_TIMEOUT)
        self.job_counts = CachedQuery(self._count_jobs, RECENT, DATABASE_TIMEOUT)
        self.models = CachedQuery(self._read_models, RECENT, DATABASE_TIMEOUT)

    @property
    def node(self) -> Node | None:
        return self._node()

    async def close(self) -> None:
        first: tuple[CachedQuery[Any], ...] = (self._queues, self.processes, self.facts)
        for query in (*first, self.job_counts, self.models):
            await query.close()

    async def queues(self, services: Sequence[str] | None = None, *, users: bool = False) -> QueueSnapshot:
        """The state of the queues of these services, or of all services. With `users`, it includes the queue of each
        user, which costs the dispatcher a pass over all users."""
        if services is None and not users:
            return await self._queues.fresh()
        return await self._read_queues(services, users)

    async def rules(self) -> Rules:
        node = self.node
        return node.rules if node is not None else await self.store.rules()

    async def loops(self) -> dict[str, Any]:
        """For each shard and loop of its leader: what the loop has counted. The counts come from this process if it
        leads the shard; otherwise from the registration of the leader, which is renewed every two seconds."""
        node, processes = self.node, await self.processes.recent()
        loops = {} if node is None else node.counts()
        leads = set() if node is None else node.leads()
        for record in sorted(processes.alive, key=attrgetter("seen_at")):
            announced = record.details.get(LOOPS, {})
            loops |= {shard: counts for shard, counts in announced.items() if shard not in leads}
        return loops

    async def _read_queues(self, services: Sequence[str] | None = None, users: bool = False) -> QueueSnapshot:
        node = self.node
        if node is None:
            return QueueSnapshot(await self.store.rules(), unknown=ELSEWHERE)
        rules = node.rules
        found = await asyncio.gather(
            *(read_shard(shard, self.clock, services, users=users) for shard in node.shards.values())
        )
        return QueueSnapshot.of(rules, dict(zip(node.shards, found, strict=True)))

    async def _read_processes(self) -> Processes:
        return Processes(await self.store.processes(), await self.store.now())

    async def _read_facts(self) -> Facts:
        return await self.store.facts()

    async def _read_models(self) -> dict[str, dict[str, Any]]:
        """For each service, what its models did in the last minutes, in all processes."""
        now = await self.store.now()
        found: dict[str, dict[str, ModelStats]] = {}
        for each in await self.store.activity(minute_of(now) - MODEL_MINUTES + 1):
            for model, stats in each.models.items():
                found.setdefault(each.service, {}).setdefault(model, ModelStats()).add(stats)
        window = (MODEL_MINUTES - 1) * MINUTE + now % MINUTE
        return {
            service: {model: stats.shown(window) for model, stats in sorted(models.items())}
            for service, models in found.items()
        }

    async def _count_jobs(self) -> dict[str, int]:
        return {each.value: await self.store.count(JobFilter(statuses=(each,))) for each in JobStatus}


async def read_shard(
    shard: ShardRuntime,
    clock: Clock,
    services: Sequence[str] | None = None,
    *,
    users: bool = False,
    within: float = DISPATCHER_TIMEOUT,
) -> ShardSnapshot:
    names = None if services is None else [name for name in services if name in shard.rules.services]
    taken_at = clock.now()
    led, (states, problem), (snapshots, unseen) = await asyncio.gather(
        read_leader(shard.leadership, within),
        _attempt(lambda: shard.dispatcher.states(shard.rules.scopes), within),
        _attempt(lambda: shard.dispatcher.snapshot(names, users=users), within),
    )
    return replace(
        led,
        problem=led.problem or problem,
        services={each.service: each for each in snapshots or ()},
        states=states or {},
        taken_at=taken_at,
        unseen=unseen,
    )


async def read_leader(leadership: Leadership | None, within: float = DISPATCHER_TIMEOUT) -> ShardSnapshot:
    """A snapshot of the shard that contains only its leader."""
    if leadership is None:
        return ShardSnapshot(in_memory=True)
    leader, problem = await _attempt(leadership.leader, within)
    holder, term = leader or (None, None)
    return ShardSnapshot(problem, leader=holder, term=term)


async def ask_dispatcher(question: Callable[[], Awaitable[T]], within: float = DISPATCHER_TIMEOUT) -> T:
    """Await the dispatcher's answer to `question`, or raise Unavailable after `within` seconds. `question` is a
    function and not a coroutine: if the caller were cancelled first, the coroutine would never be awaited."""
    try:
        async with asyncio.timeout(within):
            return await question()
    except TimeoutError:
        raise Unavailable(f"the dispatcher did not answer within {within:g} s") from None


async def _attempt(question: Callable[[], Awaitable[T]], within: float) -> tuple[T | None, str | None]:
    try:
        return await ask_dispatcher(question, within), None
    except Unavailable as error:
        return None, shown(error)
