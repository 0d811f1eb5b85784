"""What time alone does: found and moved within one commit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlead.domain import transitions
from fairlead.domain.job import Job, JobStatus, Priority
from fairlead.domain.transitions import Move, Progress
from fairlead.store.port import Done, PromoteWaiting, Refused, RingTimers, Rung
from tests.contract.stores import Line

WAITS = {"draw": 40.0}


def ring(line: Line, limit: int = 99) -> RingTimers:
    return RingTimers(line.clock.now, limit, WAITS)


def promote(line: Line, low_before: float, medium_before: float, limit: int = 99) -> PromoteWaiting:
    return PromoteWaiting(line.clock.now, low_before, medium_before, limit, WAITS)


async def rung(line: Line, sweep: RingTimers | PromoteWaiting) -> Rung:
    outcome = await line.one(sweep)
    assert isinstance(outcome, Done)
    assert isinstance(outcome.value, Rung)
    return outcome.value


def ids(rung: Rung) -> list[str]:
    return [job.id for job, _ in rung.moves]


# ---------------------------------------------------------------- timers


async def test_what_is_due_enters_the_line_and_the_line_is_told(line: Line) -> None:
    job = await line.submitted(due_at=line.clock.now + 10)
    line.clock.forward(9.9)
    assert await rung(line, ring(line)) == Rung(0, [])
    line.clock.forward(0.1)
    expected = transitions.timer_rang(job, now=line.clock.now, waits=WAITS)
    assert await rung(line, ring(line)) == Rung(1, [(job, expected)])
    after = await line.job(job.id)
    assert (after.status, after.run, after.timer_at) == (JobStatus.PENDING, job.run + 1, line.clock.now + 40)
    assert [change.job for change in line.changes] == [after]
    assert line.changes == await line.store.outbox(older_than=line.clock.now + 1, limit=9)
    assert await rung(line, ring(line)) == Rung(0, [])


async def test_timers_ring_earliest_first_and_at_most_so_many(line: Line) -> None:
    start = line.clock.now
    late = await line.submitted(due_at=start + 20)
    soon = await line.submitted(due_at=start + 10)
    waits = await line.submitted(waits={"draw": 15})
    line.clock.forward(99)
    first = await rung(line, ring(line, limit=2))
    assert (first.found, set(ids(first))) == (2, {soon.id, waits.id})
    assert ids(await rung(line, ring(line, limit=2))) == [late.id]


async def test_each_job_is_moved_as_its_state_asks_for(line: Line) -> None:
    waited = await line.submitted(waits=WAITS)
    expired = await line.running(deadline_at=line.clock.now + 30)
    retrying = await line.running()
    move = Move(retrying.id, retrying.run, "retry", JobStatus.RETRYING, 0, 1, 0, False, timer_at=line.clock.now + 5)
    await line.one(move)
    line.clock.forward(50)
    swept = await rung(line, ring(line))
    assert {job.id: move.verb for job, move in swept.moves} == {
        waited.id: "time_out",
        expired.id: "expire",
        retrying.id: "due",
    }
    after = await line.store.get_jobs([waited.id, expired.id, retrying.id])
    assert [(job.status, job.retryable) for job in after.values()] == [
        (JobStatus.FAILED, True),
        (JobStatus.FAILED, False),
        (JobStatus.PENDING, None),
    ]
    # A worker of another process may have to stop the call.
    assert {change.job_id: change.job for change in line.changes} == after


async def test_a_timer_rings_at_its_moment_and_not_a_fraction_of_a_microsecond_before(line: Line) -> None:
    """Moments are stored to the microsecond, and a clock is finer."""
    moments = [line.clock.now + n / 3e6 for n in range(1, 12)]
    jobs = [await line.submitted(due_at=moment) for moment in moments]
    stored = {job.timer_at for job in jobs}
    for moment in sorted({*moments, *stored}):  # type: ignore[type-var]
        line.clock.now = moment  # type: ignore[assignment]
        swept = await rung(line, ring(line))
        assert [job.timer_at for job, _ in swept.moves] == [job.timer_at for job in jobs if job.timer_at <= moment]  # type: ignore[operator]
        assert swept.found == len(swept.moves)
        jobs = jobs[len(swept.moves) :]
    assert jobs == []


async def test_a_job_that_there_is_nothing_to_do_for_is_found_and_not_moved(line: Line) -> None:
    job = await line.running()
    stale = Move(job.id, job.run, "fail", JobStatus.FAILED, 0, 1, 0, False, timer_at=line.clock.now, finished_at=1.0)
    await line.one(stale)
    due = await line.submitted(due_at=line.clock.now + 1)
    line.clock.forward(2)
    before = await line.job(job.id)
    swept = await rung(line, ring(line))
    assert (swept.found, ids(swept)) == (2, [due.id])
    assert await line.job(job.id) == before


async def test_a_job_that_the_batch_moves_already_is_left_to_it(line: Line) -> None:
    jobs = [await line.submitted(waits={"draw": 5}) for _ in range(4)]
    reporting = await line.running(deadline_at=line.clock.now + 5)
    line.clock.forward(10)
    outcomes = await line.commit(
        ring(line),
        line.start(jobs[0]),
        transitions.cancel(jobs[1], now=line.clock.now),
        replace(transitions.cancel(jobs[2], now=line.clock.now), run=99),
        Progress(reporting.id, reporting.run, {"percent": 5}),
        line.submit("new", due_at=line.clock.now + 1),
    )
    assert ids(outcomes[0].value) == [jobs[3].id]  # type: ignore[union-attr]
    statuses = [(await line.job(job.id)).status for job in (*jobs, reporting)]
    assert statuses == [
        JobStatus.RUNNING,
        JobStatus.CANCELLED,
        JobStatus.PENDING,  # its move was refused, and its timer rings in the next batch
        JobStatus.FAILED,
        JobStatus.RUNNING,
    ]
    assert isinstance(outcomes[2], Done)
    assert isinstance(outcomes[3], Refused)
    assert set(ids(await rung(line, ring(line)))) == {jobs[2].id, reporting.id}


async def test_the_moves_of_a_batch_and_of_its_sweep_do_not_take_each_others_answers(line: Line) -> None:
    due = [await line.submitted(due_at=line.clock.now + 1) for _ in range(3)]
    running = [await line.running(steps=("draw", "scale")) for _ in range(3)]
    line.clock.forward(2)
    moves = [line.done(job, f'"{job.id}"') for job in running]
    moves[1] = replace(moves[1], run=99)
    outcomes = await line.commit(moves[0], ring(line), moves[1], moves[2])
    assert [type(outcome) for outcome in outcomes] == [Done, Done, Refused, Done]
    assert set(ids(outcomes[1].value)) == {job.id for job in due}  # type: ignore[union-attr]
    told = [change.job_id for change in line.changes]
    assert sorted(told) == sorted([running[0].id, running[2].id, *(job.id for job in due)])
    for job, stored in zip(running, (1, 0, 1), strict=True):
        record = await line.store.get(job.id)
        assert record is not None
        assert [result.data for result in record.results] == [job.id] * stored


async def test_several_sweeps_of_one_batch_take_a_job_once(line: Line) -> None:
    both = await line.submitted(priority=Priority.LOW, waits={"draw": 5})
    waiting = await line.submitted(priority=Priority.LOW)
    now = line.clock.forward(10)
    first, second, third = await line.commit(ring(line), promote(line, now, now), ring(line))
    assert ids(first.value) == [both.id]  # type: ignore[union-attr]
    assert ids(second.value) == [waiting.id]  # type: ignore[union-attr]
    assert third == Done(Rung(0, []))
    assert [(await line.job(job.id)).run for job in (both, waiting)] == [1, 1]


async def test_what_another_process_swept_is_not_found_again(line: Line) -> None:
    jobs = [await line.submitted(due_at=line.clock.now + 1) for _ in range(4)]
    line.clock.forward(2)
    async with line.another() as other:
        (outcome,) = (await other.commit([ring(line, limit=3)])).outcomes
        theirs = ids(outcome.value)
        ours = ids(await rung(line, ring(line)))
    assert sorted(theirs + ours) == sorted(job.id for job in jobs)
    assert len(theirs) == 3


async def test_a_sweep_that_fails_leaves_nothing_behind(line: Line) -> None:
    job = await line.submitted("j1", due_at=line.clock.now + 1)
    line.clock.forward(2)
    with pytest.raises(Exception, match=r"(?i)unique"):
        await line.commit(ring(line), line.submit("j1"))
    assert await line.job(job.id) == job
    assert await line.store.outbox(older_than=line.clock.now + 1, limit=9) == []
    assert ids(await rung(line, ring(line))) == [job.id]


# ---------------------------------------------------------------- promotion


async def waiting_in_all_bands(line: Line) -> tuple[Job, Job]:
    low, medium = await line.submitted(priority=Priority.LOW), await line.submitted()
    await line.submitted(priority=Priority.HIGH)
    await line.running(priority=Priority.LOW)
    await line.submitted(priority=Priority.LOW, due_at=line.clock.now + 5)
    await line.cancelled(priority=Priority.LOW)
    return low, medium


@pytest.mark.parametrize("waited", [(0, -1), (-1, 0), (0, 0), (-1, -1)])
async def test_promoted_are_the_pending_ones_that_waited_long_enough_in_their_band(
    line: Line, waited: tuple[float, float]
) -> None:
    low, medium = await waiting_in_all_bands(line)
    now = line.clock.now
    expected = [job.id for job, moment in zip((low, medium), waited, strict=True) if moment == 0]
    swept = await rung(line, promote(line, now + waited[0], now + waited[1]))
    assert (swept.found, sorted(ids(swept))) == (len(expected), sorted(expected))


async def test_a_promoted_job_is_one_band_up_at_its_old_place_and_the_line_is_told(line: Line) -> None:
    low, medium = await waiting_in_all_bands(line)
    start = line.clock.now
    now = line.clock.forward(1800)
    swept = await rung(line, promote(line, start, start))
    expected: dict[str, Any] = {
        low.id: replace(low, priority=Priority.MEDIUM, promoted_at=now, run=1, timer_at=start + 40),
        medium.id: replace(medium, priority=Priority.HIGH, promoted_at=now, run=1, timer_at=start + 40),
    }
    assert await line.store.get_jobs([low.id, medium.id]) == expected
    assert {change.job_id: change.job for change in line.changes} == expected
    assert {job.id: job for job, _ in swept.moves} == {low.id: low, medium.id: medium}


async def test_a_promotion_stops_at_its_limit_and_goes_on_from_there(line: Line) -> None:
    jobs = [await line.submitted(priority=priority) for priority in (Priority.LOW, Priority.MEDIUM) for _ in range(3)]
    now = line.clock.now
    sweeps = [await rung(line, promote(line, now, now, limit=4)) for _ in range(3)]
    assert [swept.found for swept in sweeps] == [4, 4, 1]
    # The low ones were promoted twice, as their time was up for both bands.
    assert {(await line.job(job.id)).priority for job in jobs} == {Priority.HIGH}
