"""A worker claims for the services that it was woken for, and for all of them when it may have missed a wakeup."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from fairlead.dispatch.port import Claim, Lease, Release
from fairlead.domain.config import Config
from fairlead.domain.rules import Rules, ServiceRules
from fairlead.engine.claim_loop import ClaimTargets, ConcurrencyBudget
from fairlead.engine.clock import DatabaseClock, SystemClock
from fairlead.engine.events import Hub
from fairlead.engine.parts import EngineParts, RulesRef, RunningNode
from fairlead.engine.roles import Roles, WorkerPool
from fairlead.engine.transition_writer import TransitionWriter
from fairlead.engine.turns.waiters import Waiters
from fairlead.engine.worker import Worker
from fairlead.errors import Unavailable
from fairlead.store.group_commit import GroupCommit

SERVED = frozenset("abc")
PLAIN = Rules({name: ServiceRules(name, limit=1) for name in "abc"})
POOLED = Rules({**PLAIN.services, "c": ServiceRules("c", limit=1, pool="gpu")}, {"gpu": 1})


def settled() -> ClaimTargets:
    claim_targets = ClaimTargets()
    assert claim_targets.to_claim(SERVED, PLAIN) == SERVED, "no wakeup can have come before the first claim"
    return claim_targets


def test_only_services_with_a_wakeup_are_claimed() -> None:
    claim_targets = settled()
    claim_targets.by("a")
    assert claim_targets.to_claim(SERVED, PLAIN) == {"a"}


def test_a_wakeup_counts_for_one_claim() -> None:
    claim_targets = settled()
    claim_targets.by("a")
    claim_targets.to_claim(SERVED, PLAIN)
    claim_targets.by("b")
    assert claim_targets.to_claim(SERVED, PLAIN) == {"b"}


def test_all_services_are_claimed_when_a_wakeup_may_have_been_missed() -> None:
    claim_targets = settled()
    claim_targets.by("a")
    claim_targets.for_all()
    assert claim_targets.to_claim(SERVED, PLAIN) == SERVED


def test_a_wakeup_for_other_services_claims_all_services() -> None:
    claim_targets = settled()
    claim_targets.by("x")
    assert claim_targets.to_claim(SERVED, PLAIN) == SERVED


def test_services_of_a_pool_are_always_claimed() -> None:
    claim_targets = settled()
    claim_targets.by("a")
    assert claim_targets.to_claim(SERVED, POOLED) == {"a", "c"}


# -- in a worker -----------------------------------------------------------------------------------------------------


class FakeDispatcher:
    """Grants the leases in `grants`, and records the claims."""

    def __init__(self) -> None:
        self.claims: asyncio.Queue[Claim] = asyncio.Queue()
        self.grants: list[Lease] = []
        self.away = False

    async def exchange(self, claim: Claim, releases: Sequence[Release] = ()) -> list[Lease]:
        self.claims.put_nowait(claim)
        if self.away:
            self.away = False
            raise Unavailable("away")
        granted, self.grants = self.grants[: claim.budget], []
        return granted

    async def services(self) -> frozenset[str]:
        """The services of the next claim."""
        async with asyncio.timeout(5):
            return (await self.claims.get()).services


class HangingStore:
    """A store in which every commit takes forever."""

    async def commit(self, batch: object, *, all_or_nothing: bool = False) -> None:
        await asyncio.Event().wait()


def worker_on(dispatcher: Any, *, concurrency: int = 1, bands: frozenset[int] = frozenset({1, 2, 3})) -> Worker:
    config = Config.model_validate({"services": {name: {"function": "m:f", "limit": 1} for name in "abc"}})
    store: Any = HangingStore()
    group_commit = GroupCommit(store)
    group_commit.start()
    hub, signals, clock = Hub(), RunningNode(), DatabaseClock(SystemClock())
    recorder = TransitionWriter(group_commit, hub, signals)
    executors: Any = dict.fromkeys("abc")
    parts = EngineParts("p", config, Roles(), store, group_commit, recorder, executors, hub, clock, Waiters(signals))
    rules = RulesRef(PLAIN)
    rules.executed = SERVED
    shard: Any = None
    pool = WorkerPool("", concurrency, bands)
    return Worker(parts, pool, ConcurrencyBudget(concurrency), dispatcher=dispatcher, rules=rules, shard=shard)


@pytest.fixture
async def running() -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks: list[asyncio.Task[None]] = []
    yield tasks
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def started(worker: Worker, dispatcher: FakeDispatcher, running: list[asyncio.Task[None]]) -> None:
    running.append(asyncio.create_task(worker.claims.run()))
    assert await dispatcher.services() == SERVED


async def test_a_worker_claims_where_a_lane_has_become_runnable(running: list[asyncio.Task[None]]) -> None:
    dispatcher = FakeDispatcher()
    worker = worker_on(dispatcher)
    await started(worker, dispatcher, running)
    worker.wake(frozenset("b"))
    assert await dispatcher.services() == {"b"}
    worker.wake_all()
    assert await dispatcher.services() == SERVED


async def test_a_worker_that_was_full_claims_everywhere(running: list[asyncio.Task[None]]) -> None:
    dispatcher = FakeDispatcher()
    worker = worker_on(dispatcher, concurrency=2)
    await started(worker, dispatcher, running)
    dispatcher.grants = [Lease(f"1:{n}", f"job-{n}", 0, 1, "b", "ann", "p", 0.0, 15.0) for n in (1, 2)]
    worker.wake(frozenset("b"))
    assert await dispatcher.services() == {"b"}
    assert await dispatcher.services() == SERVED, "it announces everywhere that it has no budget"
    worker.wake(frozenset("b"))
    assert await dispatcher.services() == SERVED, "it still has no budget"
    await worker.close()


async def test_a_worker_without_a_reply_claims_everywhere(running: list[asyncio.Task[None]]) -> None:
    dispatcher = FakeDispatcher()
    worker = worker_on(dispatcher)
    await started(worker, dispatcher, running)
    dispatcher.away = True
    worker.wake(frozenset("b"))
    assert await dispatcher.services() == {"b"}
    worker.wake(frozenset("c"))
    worker.claims.retry()
    assert await dispatcher.services() == SERVED


async def test_a_worker_bound_to_bands_always_claims_everywhere(running: list[asyncio.Task[None]]) -> None:
    dispatcher = FakeDispatcher()
    worker = worker_on(dispatcher, bands=frozenset({1}))
    await started(worker, dispatcher, running)
    worker.wake(frozenset("b"))
    assert await dispatcher.services() == SERVED, "a lane that is runnable because of other work sends no second wakeup"
