"""What each shard of the dispatcher reads: the outbox rows and the waiting and running jobs of its own lanes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from fairlead.domain import transitions
from fairlead.domain.job import Job, JobStatus, Priority
from fairlead.domain.rules import EVERYTHING, Lanes
from fairlead.domain.transitions import Delete
from tests.contract.stores import StoreHarness


def lanes(*pairs: tuple[str, int], others: bool = False) -> Lanes:
    return Lanes(frozenset(pairs), others)


ODD = 'the "odd" $1 \\ {service} 雪'
BRACKETS = "x],[[y],"
CASES = [
    lanes(("draw", 2)),
    lanes(("draw", 1), ("draw", 3), (ODD, 2)),
    lanes(("draw", 2), ("scale", 1), others=True),
    lanes((ODD, 2), others=True),
    lanes((BRACKETS, 1), (BRACKETS, 2)),
    lanes(),
    lanes(("unknown", 1)),
    EVERYTHING,
]


async def population(harness: StoreHarness) -> list[Job]:
    """Jobs of four services in all bands: each waits for its first step or, if it has two, for its second."""
    jobs = []
    for steps in (("draw",), ("scale",), (ODD,), (BRACKETS,), ("draw", "scale"), (BRACKETS, ODD), ("a", BRACKETS)):
        for priority in Priority:
            job = await harness.submitted(steps=steps, priority=priority)
            if len(steps) == 2:
                await harness.one(harness.done(await harness.started(job)))
                job = await harness.job(job.id)
            jobs.append(job)
    return jobs


def of(jobs: list[Job], these: Lanes) -> list[Job]:
    return [job for job in jobs if these.has(job.service, job.priority.band)]


@pytest.mark.parametrize("these", CASES)
async def test_waiting_returns_and_counts_the_jobs_of_the_lanes(harness: StoreHarness, these: Lanes) -> None:
    jobs = await population(harness)
    await harness.running()
    assert [job async for batch in harness.store.waiting(4, these) for job in batch] == of(jobs, these)
    assert await harness.store.count_waiting(these) == len(of(jobs, these))
    assert await harness.store.count_waiting_by_service(these) == Counter(job.service for job in of(jobs, these))


@pytest.mark.parametrize("these", CASES)
async def test_running_returns_the_jobs_of_the_lanes(harness: StoreHarness, these: Lanes) -> None:
    jobs = [await harness.started(job, scope="s") for job in await population(harness)]
    await harness.submitted()
    running = await harness.store.running(these)
    assert sorted(running, key=lambda job: job.seq) == of(jobs, these)
    assert await harness.store.count_waiting() == 1


@pytest.mark.parametrize("these", CASES)
async def test_outbox_rows_belong_to_the_lane_their_job_enters(harness: StoreHarness, these: Lanes) -> None:
    jobs = [
        await harness.submitted(steps=(name,), priority=band) for name in ("draw", ODD, BRACKETS) for band in Priority
    ]
    rows = await harness.store.outbox(older_than=harness.clock.now + 1, limit=99, lanes=these)
    assert [row.job for row in rows] == of(jobs, these)


async def test_outbox_rows_of_other_lanes_do_not_use_up_the_limit(harness: StoreHarness) -> None:
    await harness.commit(*(harness.submit(steps=("down",)) for _ in range(50)))
    up = await harness.submitted(steps=("up",))
    rows = await harness.store.outbox(older_than=harness.clock.now + 1, limit=1, lanes=lanes(("up", 2)))
    assert [row.job for row in rows] == [up]
    rows = await harness.store.outbox(older_than=harness.clock.now + 1, limit=1, lanes=lanes(("down", 2), others=True))
    assert [row.job for row in rows] == [up]


async def test_the_outbox_row_of_the_next_step_is_in_its_own_lane(harness: StoreHarness) -> None:
    job = await harness.started(await harness.submitted(steps=("draw", "scale"), priority=Priority.LOW))
    await harness.one(harness.done(job))
    (relayed,) = harness.changes
    later = harness.clock.now + 1
    assert relayed in await harness.store.outbox(older_than=later, limit=9, lanes=lanes(("scale", 3)))
    assert relayed not in await harness.store.outbox(older_than=later, limit=9, lanes=lanes(("draw", 3)))


async def test_the_outbox_row_of_a_promotion_is_in_the_new_band(harness: StoreHarness) -> None:
    job = await harness.submitted(priority=Priority.LOW)
    await harness.one(transitions.promote(job, now=harness.clock.now, waits={}))
    (relayed,) = harness.changes
    later = harness.clock.now + 1
    assert relayed in await harness.store.outbox(older_than=later, limit=9, lanes=lanes(("draw", 2)))
    assert relayed not in await harness.store.outbox(older_than=later, limit=9, lanes=lanes(("draw", 3)))


async def test_the_outbox_row_of_a_cancel_is_in_the_lane_that_the_job_leaves(harness: StoreHarness) -> None:
    job = await harness.started(await harness.submitted(steps=("draw", "scale"), priority=Priority.HIGH))
    await harness.one(harness.done(job))
    await harness.one(transitions.cancel(await harness.job(job.id), now=harness.clock.now))
    (relayed,) = harness.changes
    assert relayed in await harness.store.outbox(older_than=harness.clock.now + 1, limit=9, lanes=lanes(("scale", 1)))


async def test_a_job_past_its_last_step_belongs_to_the_lane_of_that_step(harness: StoreHarness) -> None:
    """No current move writes such a row; it must still be returned for one lane."""
    job = await harness.running(steps=("draw", "scale"))
    move = replace(harness.done(job), step=2, status=JobStatus.COMPLETED, finished_at=harness.clock.now)
    await harness.one(move)
    (relayed,) = harness.changes
    assert relayed in await harness.store.outbox(older_than=harness.clock.now + 1, limit=9, lanes=lanes(("scale", 2)))


async def test_an_outbox_row_of_a_deleted_job_is_still_found_by_its_lane(harness: StoreHarness) -> None:
    job = await harness.cancelled()
    await harness.one(Delete(job.id))
    rows = await harness.store.outbox(older_than=harness.clock.now + 1, limit=9, lanes=lanes(("draw", 2)))
    assert [(row.job_id, row.job) for row in rows] == [(job.id, None)] * 2
