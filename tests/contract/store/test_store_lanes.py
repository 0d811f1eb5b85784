"""What each shard of the dispatcher asks for: the outbox rows, the waiting and the running jobs of its own lanes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.domain import transitions
from fairlead.domain.job import Job, JobStatus, Priority
from fairlead.domain.limits import EVERYTHING, Lanes
from fairlead.domain.transitions import Delete
from tests.contract.stores import Line


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
    lanes(("nobody's", 1)),
    EVERYTHING,
]


async def population(line: Line) -> list[Job]:
    """Jobs of four services in all bands: each waits for its first step or, if it has two, for its second."""
    jobs = []
    for steps in (("draw",), ("scale",), (ODD,), (BRACKETS,), ("draw", "scale"), (BRACKETS, ODD), ("a", BRACKETS)):
        for priority in Priority:
            job = await line.submitted(steps=steps, priority=priority)
            if len(steps) == 2:
                await line.one(line.done(await line.started(job)))
                job = await line.job(job.id)
            jobs.append(job)
    return jobs


def of(jobs: list[Job], these: Lanes) -> list[Job]:
    return [job for job in jobs if these.has(job.service, job.priority.band)]


@pytest.mark.parametrize("these", CASES)
async def test_waiting_are_those_of_the_lanes_and_so_are_the_counted(line: Line, these: Lanes) -> None:
    jobs = await population(line)
    await line.running()
    assert [job async for batch in line.store.waiting(4, these) for job in batch] == of(jobs, these)
    assert await line.store.count_waiting(these) == len(of(jobs, these))


@pytest.mark.parametrize("these", CASES)
async def test_running_are_those_of_the_lanes(line: Line, these: Lanes) -> None:
    jobs = [await line.started(job, scope="s") for job in await population(line)]
    await line.submitted()
    running = await line.store.running(these)
    assert sorted(running, key=lambda job: job.seq) == of(jobs, these)
    assert await line.store.count_waiting() == 1


@pytest.mark.parametrize("these", CASES)
async def test_outbox_rows_are_of_the_lane_that_their_job_is_put_in(line: Line, these: Lanes) -> None:
    jobs = [await line.submitted(steps=(name,), priority=band) for name in ("draw", ODD, BRACKETS) for band in Priority]
    rows = await line.store.outbox(older_than=line.clock.now + 1, limit=99, lanes=these)
    assert [row.job for row in rows] == of(jobs, these)


async def test_outbox_rows_of_other_lanes_do_not_use_up_the_limit(line: Line) -> None:
    await line.commit(*(line.submit(steps=("down",)) for _ in range(50)))
    up = await line.submitted(steps=("up",))
    rows = await line.store.outbox(older_than=line.clock.now + 1, limit=1, lanes=lanes(("up", 2)))
    assert [row.job for row in rows] == [up]
    rows = await line.store.outbox(older_than=line.clock.now + 1, limit=1, lanes=lanes(("down", 2), others=True))
    assert [row.job for row in rows] == [up]


async def test_the_next_step_is_told_to_its_own_lane(line: Line) -> None:
    job = await line.started(await line.submitted(steps=("draw", "scale"), priority=Priority.LOW))
    await line.one(line.done(job))
    (told,) = line.changes
    later = line.clock.now + 1
    assert told in await line.store.outbox(older_than=later, limit=9, lanes=lanes(("scale", 3)))
    assert told not in await line.store.outbox(older_than=later, limit=9, lanes=lanes(("draw", 3)))


async def test_a_promotion_is_told_to_the_new_band(line: Line) -> None:
    job = await line.submitted(priority=Priority.LOW)
    await line.one(transitions.promote(job, now=line.clock.now, waits={}))
    (told,) = line.changes
    later = line.clock.now + 1
    assert told in await line.store.outbox(older_than=later, limit=9, lanes=lanes(("draw", 2)))
    assert told not in await line.store.outbox(older_than=later, limit=9, lanes=lanes(("draw", 3)))


async def test_a_cancel_is_told_to_the_lane_that_the_job_leaves(line: Line) -> None:
    job = await line.started(await line.submitted(steps=("draw", "scale"), priority=Priority.HIGH))
    await line.one(line.done(job))
    await line.one(transitions.cancel(await line.job(job.id), now=line.clock.now))
    (told,) = line.changes
    assert told in await line.store.outbox(older_than=line.clock.now + 1, limit=9, lanes=lanes(("scale", 1)))


async def test_a_job_that_is_past_its_last_step_is_of_that_ones_lane(line: Line) -> None:
    """No move of today tells the line so late; the row must not be nobody's."""
    job = await line.running(steps=("draw", "scale"))
    move = replace(line.done(job), step=2, status=JobStatus.COMPLETED, finished_at=line.clock.now)
    await line.one(move)
    (told,) = line.changes
    assert told in await line.store.outbox(older_than=line.clock.now + 1, limit=9, lanes=lanes(("scale", 2)))


async def test_a_row_whose_job_is_gone_is_still_found_by_its_lane(line: Line) -> None:
    job = await line.cancelled()
    await line.one(Delete(job.id))
    rows = await line.store.outbox(older_than=line.clock.now + 1, limit=9, lanes=lanes(("draw", 2)))
    assert [(row.job_id, row.job) for row in rows] == [(job.id, None)] * 2
