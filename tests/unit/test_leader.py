"""One leads, others stand by; who can no longer be sure of the lease stops."""

import asyncio
from typing import Any

import pytest

from fairlead.errors import Unavailable
from fairlead.runtime import leader as module
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.leader import Leader
from fairlead.store.port import Done


class Lease:
    """What all managers share: who leads, until told otherwise."""

    def __init__(self) -> None:
        self.holder: str | None = None
        self.term = 0


class Mine:
    ttl = 0.06

    def __init__(self, lease: Lease, name: str) -> None:
        self.lease = lease
        self.name = name
        self.away = False

    def _reach(self) -> None:
        if self.away:
            raise Unavailable("Redis is away")

    async def acquire(self, term: int) -> bool:
        self._reach()
        if self.lease.holder in (None, self.name):
            self.lease.holder, self.lease.term = self.name, term
        return self.lease.holder == self.name

    async def renew(self) -> bool:
        self._reach()
        return self.lease.holder == self.name

    async def resign(self) -> None:
        if self.lease.holder == self.name:
            self.lease.holder = None

    async def leader(self) -> tuple[str, int] | None:
        self._reach()
        return None if self.lease.holder is None else (self.lease.holder, self.lease.term)

    async def close(self) -> None: ...


class Managing:
    """Stands for the loops: notes when they run."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.stopped = asyncio.Event()
        self.built = True

    async def run(self) -> None:
        self.stopped.clear()
        self.running.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.running.clear()
            self.stopped.set()


class Truth:
    """The journal: terms only grow."""

    def __init__(self) -> None:
        self.term = 0

    async def write(self, transition: Any) -> Done:
        assert transition.scope == "leader:main"
        self.term += 1
        return Done(self.term)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY", 0.01)


def made(lease: Mine | None, truth: Any) -> tuple[Leader, Managing]:
    managing: Any = Managing()
    clock = SystemClock()
    return Leader("main", lease, scopes=managing, manager=managing, journal=truth, clock=clock), managing


async def soon(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), 20)


async def test_a_standby_takes_over_when_the_leader_resigns_and_the_term_grows() -> None:
    lease, truth = Lease(), Truth()
    (first, first_runs), (second, second_runs) = (made(Mine(lease, name), truth) for name in "ab")
    one = asyncio.create_task(first.run())
    await soon(first_runs.running)
    term = lease.term
    two = asyncio.create_task(second.run())
    await asyncio.sleep(0.1)
    assert not second_runs.running.is_set()
    one.cancel()
    await asyncio.gather(one, return_exceptions=True)
    await first.resign()
    await soon(second_runs.running)
    assert lease.holder == "b"
    assert lease.term > term
    two.cancel()
    await asyncio.gather(two, return_exceptions=True)


async def test_who_lost_the_lease_stops_and_stands_by() -> None:
    lease, truth = Lease(), Truth()
    leader, runs = made(Mine(lease, "a"), truth)
    task = asyncio.create_task(leader.run())
    await soon(runs.running)
    lease.holder = "b"
    await soon(runs.stopped)
    lease.holder = None
    await soon(runs.running)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_who_cannot_renew_stops_after_the_ttl_and_leads_again_when_it_can() -> None:
    lease = Lease()
    mine = Mine(lease, "a")
    leader, runs = made(mine, Truth())
    task = asyncio.create_task(leader.run())
    await soon(runs.running)
    mine.away = True
    await soon(runs.stopped)
    lease.holder = None  # its time is over
    mine.away = False
    await soon(runs.running)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_without_others_there_is_no_election() -> None:
    leader, runs = made(None, None)
    task = asyncio.create_task(leader.run())
    await soon(runs.running)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
