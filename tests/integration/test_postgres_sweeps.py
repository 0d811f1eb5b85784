"""Sweeps of several processes at once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import asyncpg
import pytest

from fairlead.domain import transitions
from fairlead.domain.budgets import Budget, Budgets
from fairlead.domain.job import Job, JobStatus, Priority
from fairlead.domain.rules import SECONDS
from fairlead.domain.transitions import Start, Submit, submit
from fairlead.store.budgets import ReleaseHeld
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import (
    Done,
    FireTimers,
    JobFilter,
    OutboxEntry,
    PromoteWaiting,
    Started,
    SweepResult,
    TurnedBack,
)
from fairlead.store.postgres import PostgresStore
from tests import servers

LATER = time.time() // 1 + 9000  # whole seconds, because stored times are rounded


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, clock=lambda: LATER)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def scheduled(n: int) -> Submit:
    return submit(Job(f"job-{n:05}", "f", "ann", ("draw",)), "{}", now=time.time(), due_at=LATER - n % 7, waits={})


def waiting(n: int) -> Submit:
    job = Job(f"job-{n:05}", "f", "ann", ("draw",), Priority.LOW if n % 2 else Priority.MEDIUM)
    return submit(job, "{}", now=time.time(), waits={})


def fire_timers(limit: int) -> FireTimers:
    return FireTimers(LATER, limit, {})


def promote(limit: int) -> PromoteWaiting:
    return PromoteWaiting(LATER, LATER, LATER, limit, {})


class Process:
    """A store and its group commit, as every process has them."""

    def __init__(self, store: PostgresStore) -> None:
        self.moved: Counter[str] = Counter()
        self.relayed: Counter[str] = Counter()
        self.group_commit = GroupCommit(store, self, writers=2)

    def committed(self, entries: Sequence[OutboxEntry]) -> None:
        self.relayed.update(entry.job_id for entry in entries)

    async def sweep(self, sweep: FireTimers | PromoteWaiting) -> None:
        """Sweep until nothing is left that the other process does not hold."""
        self.group_commit.start()
        found = sweep.limit
        while found:
            outcome = await self.group_commit.write(sweep)
            assert isinstance(outcome, Done)
            found = outcome.value.found
            assert len(outcome.value.moves) == found, "a job that is found is moved"
            self.moved.update(job.id for job, _ in outcome.value.moves)
        await self.group_commit.close()


async def test_two_processes_that_fire_10_000_timers_at_once_fire_each_once(emptied_database: str) -> None:
    async with opened(emptied_database) as one, opened(emptied_database) as other:
        for start in range(0, 10_000, 2_000):
            await one.commit([scheduled(n) for n in range(start, start + 2_000)])
        processes = Process(one), Process(other)
        await asyncio.gather(*(process.sweep(fire_timers(500)) for process in processes))
        moved = processes[0].moved + processes[1].moved
        assert len(moved) == 10_000
        assert set(moved.values()) == {1}
        # The process that moved a job relays it, and its outbox row exists once.
        assert [process.relayed for process in processes] == [process.moved for process in processes]
        assert len(await one.outbox(older_than=LATER + 1, limit=99_999)) == 10_000
        assert await one.count(JobFilter(statuses=(JobStatus.PENDING,))) == 10_000
        assert {job.run async for batch in one.waiting(1000) for job in batch} == {1}


async def test_two_processes_that_promote_10_000_jobs_at_once_promote_each_band_once(emptied_database: str) -> None:
    async with opened(emptied_database) as one, opened(emptied_database) as other:
        for start in range(0, 10_000, 2_000):
            await one.commit([waiting(n) for n in range(start, start + 2_000)])
        processes = Process(one), Process(other)
        await asyncio.gather(*(process.sweep(promote(500)) for process in processes))
        # All have waited long enough for both bands: a low job was promoted twice, a medium one once.
        moved = processes[0].moved + processes[1].moved
        assert {moved[f"job-{n:05}"] for n in range(1, 10_000, 2)} == {2}
        assert {moved[f"job-{n:05}"] for n in range(0, 10_000, 2)} == {1}
        jobs = [job async for batch in one.waiting(1000) for job in batch]
        assert {job.priority for job in jobs} == {Priority.HIGH}
        assert all(job.run == moved[job.id] for job in jobs)


@pytest.mark.parametrize("sweep", [fire_timers(10), promote(10)])
async def test_a_job_that_another_process_is_moving_is_skipped(
    emptied_database: str, sweep: FireTimers | PromoteWaiting
) -> None:
    """The sweep does not wait for it: the other transaction ends only after the sweep has returned."""
    make = scheduled if isinstance(sweep, FireTimers) else waiting
    async with opened(emptied_database) as store:
        await store.commit([make(n) for n in range(0, 6, 2)])
        connection = await asyncpg.connect(servers.direct(emptied_database))
        async with connection.transaction():
            await connection.execute("SELECT 1 FROM fairlead.job WHERE id = 'job-00002' FOR UPDATE")
            (outcome,) = (await store.commit([sweep])).outcomes
            assert isinstance(outcome, Done)
            assert {job.id for job, _ in outcome.value.moves} == {"job-00000", "job-00004"}
            assert outcome.value.found == 2
        await connection.close()
        (outcome,) = (await store.commit([sweep])).outcomes
        assert isinstance(outcome, Done)
        assert [job.id for job, _ in outcome.value.moves] == ["job-00002"]


async def test_a_job_that_was_moved_during_the_sweep_is_not_moved_again(emptied_database: str) -> None:
    """A sweep sees the newest version of the rows that it locks, whatever its snapshot."""
    async with opened(emptied_database) as store, opened(emptied_database) as other:
        await store.commit([scheduled(n) for n in range(200)])
        jobs = list((await store.get_jobs([f"job-{n:05}" for n in range(200)])).values())
        cancels = [transitions.cancel(job, now=time.time()) for job in jobs]
        swept, cancelled = await asyncio.gather(store.commit([fire_timers(200)]), other.commit(cancels))
        (outcome,) = swept.outcomes
        assert isinstance(outcome, Done)
        assert isinstance(outcome.value, SweepResult)
        by_sweep = {job.id for job, _ in outcome.value.moves}
        by_cancel = {job.id for job, one in zip(jobs, cancelled.outcomes, strict=True) if isinstance(one, Done)}
        assert not by_sweep & by_cancel
        assert by_sweep | by_cancel == {job.id for job in jobs}
        assert {job.run for job in (await store.get_jobs([job.id for job in jobs])).values()} == {1}


def charged(store: PostgresStore, amount: int) -> None:
    store._budgets = Budgets({"all": Budget("all", SECONDS, amount)})


async def until_one_waits(connection: asyncpg.Connection) -> None:
    """Wait until a commit waits for a lock that this connection has."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    while not await connection.fetchval(waiting):
        await asyncio.sleep(0.01)


async def spend(store: PostgresStore, user_id: str) -> None:
    """Use more than the budget of `charged`."""
    first = await running(store, Job("job-1", "f", user_id, ("draw",)))
    await store.commit([transitions.cancel(replace(first, call_started_at=LATER - 9), now=LATER)])


async def running(store: PostgresStore, job: Job) -> Job:
    await store.commit([submit(job, "{}", now=LATER, waits={})])
    (outcome,) = (await store.commit([Start(job.id, 0, 0, "0:1", "service:draw", "w", 30.0)])).outcomes
    assert isinstance(outcome, Started)
    return outcome.job


async def test_a_sweep_that_ends_a_call_does_not_deadlock_with_the_commit_that_completes_it(
    emptied_database: str,
) -> None:
    """Both lock the counters of budgets before the rows of jobs."""
    async with opened(emptied_database) as store:
        charged(store, 1000)
        job = await running(store, Job("job-1", "f", "ann", ("draw",), deadline_at=LATER))
        connection = await asyncpg.connect(servers.direct(emptied_database))
        async with connection.transaction(), asyncio.timeout(30):
            await connection.execute("SELECT 1 FROM fairlead.budget_counter FOR UPDATE")
            sweep = asyncio.create_task(store.commit([fire_timers(10)]))
            await until_one_waits(connection)
            await connection.execute("SELECT 1 FROM fairlead.job WHERE id = $1 FOR UPDATE NOWAIT", job.id)
        await connection.close()
        (outcome,) = (await sweep).outcomes
        assert isinstance(outcome, Done)
        assert [found.id for found, _ in outcome.value.moves] == [job.id]


async def test_a_held_job_that_another_process_changes_stays_held(emptied_database: str) -> None:
    """Its hold is not forgotten: the job is released when the other process has ended."""
    async with opened(emptied_database) as store:
        charged(store, 1)
        await spend(store, "ann")
        await store.commit([submit(Job("job-2", "f", "ann", ("draw",)), "{}", now=LATER, waits={})])
        (outcome,) = (await store.commit([Start("job-2", 0, 0, "0:1", "service:draw", "w", 30.0)])).outcomes
        assert isinstance(outcome, TurnedBack)
        connection = await asyncpg.connect(servers.direct(emptied_database))
        async with connection.transaction():
            await connection.execute("SELECT 1 FROM fairlead.job WHERE id = 'job-2' FOR UPDATE")
            assert (await store.commit([ReleaseHeld("all", "", 10)])).outcomes == [Done(0)]
        await connection.close()
        assert (await store.commit([ReleaseHeld("all", "", 10)])).outcomes == [Done(1)]
        assert (await store.get_jobs(["job-2"]))["job-2"].timer_at == LATER


async def test_a_start_that_is_held_does_not_deadlock_with_a_cancel_of_many_jobs(emptied_database: str) -> None:
    """A cancel of many jobs locks them in the order of their ids. A start whose budget is spent therefore waits for its
    own job before it takes the other jobs of the user along."""
    ids = ["job-2", "job-3", "job-4", "job-5"]
    async with opened(emptied_database) as store:
        charged(store, 1)
        await spend(store, "ann")
        await store.commit([submit(Job(one, "f", "ann", ("draw",)), "{}", now=LATER, waits={}) for one in ids])
        connection = await asyncpg.connect(servers.direct(emptied_database))
        async with connection.transaction(), asyncio.timeout(30):
            await connection.execute("SELECT 1 FROM fairlead.job WHERE id = 'job-3' FOR UPDATE")
            starts = [Start(one, 0, 0, f"0:{one[-1]}", "service:draw", "w", 30.0) for one in ("job-5", "job-3")]
            commit = asyncio.create_task(store.commit(starts))
            await until_one_waits(connection)
            for other in ("job-4", "job-5"):
                await connection.execute(f"SELECT 1 FROM fairlead.job WHERE id = '{other}' FOR UPDATE NOWAIT")
        await connection.close()
        turned_back = [one for one in (await commit).outcomes if isinstance(one, TurnedBack)]
        assert sorted(job.id for one in turned_back for job, _ in one.moves) == ids
