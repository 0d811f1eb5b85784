"""Sweeps of several processes at once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from fairlead.domain import transitions
from fairlead.domain.job import Job, JobStatus, Priority
from fairlead.domain.transitions import Submit, submit
from fairlead.store.journal import Journal
from fairlead.store.port import Done, JobFilter, PromoteWaiting, RingTimers, Rung
from fairlead.store.postgres import PostgresStore

LATER = time.time() // 1 + 9000  # whole seconds: what is stored is rounded


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
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


def ring(limit: int) -> RingTimers:
    return RingTimers(LATER, limit, {})


def promote(limit: int) -> PromoteWaiting:
    return PromoteWaiting(LATER, LATER, LATER, limit, {})


class Process:
    """A store and its journal, as every process has them."""

    def __init__(self, store: PostgresStore) -> None:
        self.moved: Counter[str] = Counter()
        self.told: Counter[str] = Counter()
        self.journal = Journal(store, on_commit=lambda rows: self.told.update(row.job_id for row in rows), writers=2)

    async def sweep(self, sweep: RingTimers | PromoteWaiting) -> None:
        """Until it finds nothing any more that is not in the hands of the other."""
        self.journal.start()
        found = sweep.limit
        while found:
            outcome = await self.journal.write(sweep)
            assert isinstance(outcome, Done)
            found = outcome.value.found
            assert len(outcome.value.moves) == found, "whoever finds a job moves it"
            self.moved.update(job.id for job, _ in outcome.value.moves)
        await self.journal.close()


async def test_two_processes_that_ring_10_000_timers_at_once_ring_each_once(emptied_database: str) -> None:
    async with opened(emptied_database) as one, opened(emptied_database) as other:
        for start in range(0, 10_000, 2_000):
            await one.commit([scheduled(n) for n in range(start, start + 2_000)])
        processes = Process(one), Process(other)
        await asyncio.gather(*(process.sweep(ring(500)) for process in processes))
        moved = processes[0].moved + processes[1].moved
        assert len(moved) == 10_000
        assert set(moved.values()) == {1}
        # The line hears of each from the process that moved it, and finds it in the outbox once.
        assert [process.told for process in processes] == [process.moved for process in processes]
        assert len(await one.outbox(older_than=LATER + 1, limit=99_999)) == 10_000
        assert await one.count(JobFilter(statuses=(JobStatus.PENDING,))) == 10_000
        assert {job.run async for batch in one.waiting(1000) for job in batch} == {1}


async def test_two_processes_that_promote_10_000_jobs_at_once_promote_each_band_once(emptied_database: str) -> None:
    async with opened(emptied_database) as one, opened(emptied_database) as other:
        for start in range(0, 10_000, 2_000):
            await one.commit([waiting(n) for n in range(start, start + 2_000)])
        processes = Process(one), Process(other)
        await asyncio.gather(*(process.sweep(promote(500)) for process in processes))
        # All waited long enough for both bands: a low one has been promoted twice, a medium one once.
        moved = processes[0].moved + processes[1].moved
        assert {moved[f"job-{n:05}"] for n in range(1, 10_000, 2)} == {2}
        assert {moved[f"job-{n:05}"] for n in range(0, 10_000, 2)} == {1}
        jobs = [job async for batch in one.waiting(1000) for job in batch]
        assert {job.priority for job in jobs} == {Priority.HIGH}
        assert all(job.run == moved[job.id] for job in jobs)


@pytest.mark.parametrize("sweep", [ring(10), promote(10)])
async def test_a_job_that_another_process_is_moving_is_passed_over(
    emptied_database: str, sweep: RingTimers | PromoteWaiting
) -> None:
    """It is not waited for: the other transaction does not end before the sweep has answered."""
    make = scheduled if isinstance(sweep, RingTimers) else waiting
    async with opened(emptied_database) as store:
        await store.commit([make(n) for n in range(0, 6, 2)])
        connection = await asyncpg.connect(emptied_database)
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


async def test_a_job_that_was_moved_while_the_sweep_looked_is_not_moved_again(emptied_database: str) -> None:
    """A sweep sees the newest version of what it locks, whatever its snapshot was."""
    async with opened(emptied_database) as store, opened(emptied_database) as other:
        await store.commit([scheduled(n) for n in range(200)])
        jobs = list((await store.get_jobs([f"job-{n:05}" for n in range(200)])).values())
        cancels = [transitions.cancel(job, now=time.time()) for job in jobs]
        swept, cancelled = await asyncio.gather(store.commit([ring(200)]), other.commit(cancels))
        (outcome,) = swept.outcomes
        assert isinstance(outcome, Done)
        assert isinstance(outcome.value, Rung)
        by_sweep = {job.id for job, _ in outcome.value.moves}
        by_cancel = {job.id for job, one in zip(jobs, cancelled.outcomes, strict=True) if isinstance(one, Done)}
        assert not by_sweep & by_cancel
        assert by_sweep | by_cancel == {job.id for job in jobs}
        assert {job.run for job in (await store.get_jobs([job.id for job in jobs])).values()} == {1}
