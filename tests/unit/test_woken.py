"""A worker asks for work where it was told of some, and everywhere when it may not have been told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from fairlead.dispatch.port import Claim, Lease, Release
from fairlead.domain.config import Config
from fairlead.domain.limits import Rules, ServiceRules
from fairlead.errors import Unavailable
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.events import Hub
from fairlead.runtime.pools import WorkerPool
from fairlead.runtime.record import Recorder
from fairlead.runtime.room import Room
from fairlead.runtime.woken import Woken
from fairlead.runtime.worker import Worker
from fairlead.store.journal import Journal

SERVED = frozenset("abc")
PLAIN = Rules({name: ServiceRules(name, limit=1) for name in "abc"})
POOLED = Rules({**PLAIN.services, "c": ServiceRules("c", limit=1, pool="gpu")}, {"gpu": 1})


def settled() -> Woken:
    woken = Woken()
    assert woken.to_ask(SERVED, PLAIN) == SERVED, "the first time nobody could have been told"
    return woken


def test_only_what_was_told_is_asked_for() -> None:
    woken = settled()
    woken.by("a")
    assert woken.to_ask(SERVED, PLAIN) == {"a"}


def test_it_is_asked_for_once() -> None:
    woken = settled()
    woken.by("a")
    woken.to_ask(SERVED, PLAIN)
    woken.by("b")
    assert woken.to_ask(SERVED, PLAIN) == {"b"}


def test_everything_is_asked_for_when_anything_may_have_happened() -> None:
    woken = settled()
    woken.by("a")
    woken.for_all()
    assert woken.to_ask(SERVED, PLAIN) == SERVED


def test_whoever_was_told_nothing_of_use_asks_for_everything() -> None:
    woken = settled()
    woken.by("x")
    assert woken.to_ask(SERVED, PLAIN) == SERVED


def test_services_of_a_pool_are_always_asked_for() -> None:
    woken = settled()
    woken.by("a")
    assert woken.to_ask(SERVED, POOLED) == {"a", "c"}


# -- as a worker does it -------------------------------------------------------------------------------------------


class Asked:
    """A dispatcher that has nothing to give, or too much, and notes what it is asked for."""

    def __init__(self) -> None:
        self.claims: asyncio.Queue[Claim] = asyncio.Queue()
        self.gives: list[Lease] = []
        self.away = False

    async def exchange(self, claim: Claim, releases: Sequence[Release] = ()) -> list[Lease]:
        self.claims.put_nowait(claim)
        if self.away:
            self.away = False
            raise Unavailable("away")
        given, self.gives = self.gives[: claim.room], []
        return given

    async def services(self) -> frozenset[str]:
        async with asyncio.timeout(5):
            return (await self.claims.get()).services


class Unread:
    """A store in which every commit takes forever."""

    async def commit(self, batch: object, *, all_or_nothing: bool = False) -> None:
        await asyncio.Event().wait()


def worker_on(asked: Asked, *, concurrency: int = 1, bands: frozenset[int] = frozenset({1, 2, 3})) -> Worker:
    config = Config.model_validate({"services": {name: {"function": "m:f", "limit": 1} for name in "abc"}})
    journal = Journal(Unread(), on_commit=lambda changes: None)  # type: ignore[arg-type]
    journal.start()
    hub = Hub()
    return Worker(
        "p",
        WorkerPool("", concurrency, bands),
        config,
        dispatcher=asked,  # type: ignore[arg-type]
        journal=journal,
        recorder=Recorder(journal, hub),
        executors={},
        hub=hub,
        clock=SystemClock(),
        room=Room(concurrency),
        services=lambda: SERVED,
        rules=lambda: PLAIN,
        hand_over=lambda lease: None,
    )


@pytest.fixture
async def running() -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks: list[asyncio.Task[None]] = []
    yield tasks
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def begun(worker: Worker, asked: Asked, running: list[asyncio.Task[None]]) -> None:
    running.append(asyncio.create_task(worker.run()))
    assert await asked.services() == SERVED


async def test_a_worker_asks_where_a_lane_has_turned_runnable(running: list[asyncio.Task[None]]) -> None:
    asked = Asked()
    worker = worker_on(asked)
    await begun(worker, asked, running)
    worker.wake(frozenset("b"))
    assert await asked.services() == {"b"}
    worker.ring()
    assert await asked.services() == SERVED


async def test_a_worker_that_was_full_asks_everywhere(running: list[asyncio.Task[None]]) -> None:
    asked = Asked()
    worker = worker_on(asked, concurrency=2)
    await begun(worker, asked, running)
    asked.gives = [Lease(f"1:{n}", f"job-{n}", 0, 1, "b", "ann", "p", 0.0, 15.0) for n in (1, 2)]
    worker.wake(frozenset("b"))
    assert await asked.services() == {"b"}
    assert await asked.services() == SERVED, "it says everywhere that nobody is to count on it"
    worker.wake(frozenset("b"))
    assert await asked.services() == SERVED, "it still has no room"
    await worker.close()


async def test_a_worker_that_was_not_answered_asks_everywhere(running: list[asyncio.Task[None]]) -> None:
    asked = Asked()
    worker = worker_on(asked)
    await begun(worker, asked, running)
    asked.away = True
    worker.wake(frozenset("b"))
    assert await asked.services() == {"b"}
    worker.wake(frozenset("c"))
    worker.retry()
    assert await asked.services() == SERVED


async def test_a_worker_bound_to_bands_always_asks_everywhere(running: list[asyncio.Task[None]]) -> None:
    asked = Asked()
    worker = worker_on(asked, bands=frozenset({1}))
    await begun(worker, asked, running)
    worker.wake(frozenset("b"))
    assert await asked.services() == SERVED, "a lane that is runnable for others' work wakes nobody again"
