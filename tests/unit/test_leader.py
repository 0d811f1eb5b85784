"""One manager leads and the others stand by; a leader that is no longer sure of its lease stops."""

import asyncio
from typing import Any

import pytest

from fairlead.engine import leader as module
from fairlead.engine.clock import SystemClock
from fairlead.engine.leader import Leader
from fairlead.errors import Unavailable
from fairlead.store.port import Done


class Lease:
    """The lease that all managers compete for."""

    def __init__(self) -> None:
        self.holder: str | None = None
        self.term = 0


class Mine:
    ttl = 0.6

    def __init__(self, lease: Lease, name: str) -> None:
        self.lease = lease
        self.name = name
        self.away = False
        self.back: asyncio.Event | None = None
        """If set, a failed call is repeated at this event, and not after a time."""
        self.renewed, self.failed = asyncio.Event(), asyncio.Event()

    def _reach(self) -> None:
        if self.away:
            self.failed.set()
            raise Unavailable("Redis is away")

    async def acquire(self, term: int) -> bool:
        self._reach()
        if self.lease.holder in (None, self.name):
            self.lease.holder, self.lease.term = self.name, term
        return self.lease.holder == self.name

    async def renew(self) -> bool:
        self._reach()
        self.renewed.set()
        return self.lease.holder == self.name

    async def resign(self) -> None:
        if self.lease.holder == self.name:
            self.lease.holder = None

    async def leader(self) -> tuple[str, int] | None:
        self._reach()
        return None if self.lease.holder is None else (self.lease.holder, self.lease.term)

    async def wait_to_retry(self, seconds: float) -> None:
        await (asyncio.sleep(seconds) if self.back is None else self.back.wait())

    async def close(self) -> None: ...


class Managing:
    """In place of the loops: records when they run."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.stopped = asyncio.Event()
        self.built = True
        self.stuck: list[str] = []

    def failing(self, seconds: float) -> list[str]:
        return self.stuck

    async def run(self) -> None:
        self.stopped.clear()
        self.running.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.running.clear()
            self.stopped.set()


class FakeGroupCommit:
    """The group commit: terms only grow."""

    def __init__(self) -> None:
        self.term = 0
        self.fault = ""

    async def ping(self) -> None:
        if self.fault == "fails":
            raise Unavailable("the database is away")
        if self.fault == "hangs":
            await asyncio.Event().wait()

    async def write(self, transition: Any) -> Done:
        await self.ping()
        assert transition.scope == "leader:main"
        self.term += 1
        return Done(self.term)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY", 0.01)


def made(lease: Mine | None, group_commit: Any) -> tuple[Leader, Managing]:
    managing: Any = Managing()
    clock = SystemClock()
    return Leader("main", lease, scopes=managing, manager=managing, group_commit=group_commit, clock=clock), managing


async def soon(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), 20)


async def test_a_standby_takes_over_when_the_leader_resigns_and_the_term_grows() -> None:
    lease, group_commit = Lease(), FakeGroupCommit()
    (first, first_runs), (second, second_runs) = (made(Mine(lease, name), group_commit) for name in "ab")
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


async def test_a_leader_that_is_stopped_while_it_loses_its_lease_ends() -> None:
    class Stopping(Managing):
        async def run(self) -> None:
            try:
                await super().run()
            finally:
                task.cancel()

    lease, managing = Lease(), Stopping()
    parts: Any = {"scopes": managing, "manager": managing, "group_commit": FakeGroupCommit()}
    leader = Leader("main", Mine(lease, "a"), clock=SystemClock(), **parts)
    task = asyncio.create_task(leader.run())
    await soon(managing.running)
    lease.holder = "b"
    done, _ = await asyncio.wait([task], timeout=20)
    assert done


async def test_a_leader_that_lost_its_lease_stops_and_stands_by() -> None:
    lease, group_commit = Lease(), FakeGroupCommit()
    leader, runs = made(Mine(lease, "a"), group_commit)
    task = asyncio.create_task(leader.run())
    await soon(runs.running)
    lease.holder = "b"
    await soon(runs.stopped)
    lease.holder = None
    await soon(runs.running)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_leader_that_cannot_renew_stops_after_the_ttl_and_leads_again_later() -> None:
    lease = Lease()
    mine = Mine(lease, "a")
    leader, runs = made(mine, FakeGroupCommit())
    task = asyncio.create_task(leader.run())
    await soon(runs.running)
    mine.away = True
    await soon(runs.stopped)
    lease.holder = None  # its lease has expired
    mine.away = False
    await soon(runs.running)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_leader_renews_as_soon_as_the_server_is_back() -> None:
    """Not after another third of the TTL."""
    mine = Mine(Lease(), "a")
    leader, runs = made(mine, FakeGroupCommit())
    task = asyncio.create_task(leader.run())
    await soon(runs.running)
    mine.away, mine.back, mine.ttl = True, asyncio.Event(), 3600.0
    mine.renewed.clear()
    await soon(mine.failed)
    mine.away = False
    mine.back.set()
    await soon(mine.renewed)
    assert leader.leading
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("fault", ["fails", "hangs"])
async def test_a_leader_whose_database_does_not_answer_resigns_and_another_leads(fault: str) -> None:
    lease, cut_off, well = Lease(), FakeGroupCommit(), FakeGroupCommit()
    first, first_runs = made(Mine(lease, "a"), cut_off)
    second, second_runs = made(Mine(lease, "b"), well)
    one = asyncio.create_task(first.run())
    await soon(first_runs.running)
    two = asyncio.create_task(second.run())
    cut_off.fault = fault
    await soon(second_runs.running)
    assert lease.holder == "b"
    assert not first.leading
    for task in (one, two):
        task.cancel()
    await asyncio.gather(one, two, return_exceptions=True)


async def test_a_leader_whose_loops_keep_failing_resigns() -> None:
    lease, group_commit = Lease(), FakeGroupCommit()
    leader, runs = made(Mine(lease, "a"), group_commit)
    task = asyncio.create_task(leader.run())
    await soon(runs.running)
    runs.stuck = ["recover"]
    await soon(runs.stopped)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_single_process_needs_no_election() -> None:
    leader, runs = made(None, None)
    task = asyncio.create_task(leader.run())
    await soon(runs.running)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
