"""Timers and promotions: due jobs are found and moved within one commit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlead.domain import transitions
from fairlead.domain.job import Job, JobStatus, Priority
from fairlead.domain.transitions import Move, Progress
from fairlead.store.port import Done, FireTimers, PromoteWaiting, Refused, SweepResult
from tests.contract.stores import StoreHarness

WAITS = {"draw": 40.0}


def fire_timers(harness: StoreHarness, limit: int = 99) -> FireTimers:
    return FireTimers(harness.clock.now, limit, WAITS)


def promote(harness: StoreHarness, low_before: float, medium_before: float, limit: int = 99) -> PromoteWaiting:
    return PromoteWaiting(harness.clock.now, low_before, medium_before, limit, WAITS)


async def sweep_once(harness: StoreHarness, sweep: FireTimers | PromoteWaiting) -> SweepResult:
    outcome = await harness.one(sweep)
    assert isinstance(outcome, Done)
    assert isinstance(outcome.value, SweepResult)
    return outcome.value


def ids(result: SweepResult) -> list[str]:
    return [job.id for job, _ in result.moves]


# ---------------------------------------------------------------- timers


async def test_a_process_whose_clock_is_ahead_fires_no_timer_early(harness: StoreHarness) -> None:
    job = await harness.submitted(deadline_at=harness.clock.now + 10)
    assert await sweep_once(harness, FireTimers(harness.clock.now + 3600, 9, WAITS)) == SweepResult(0, [])
    assert await harness.job(job.id) == job
    harness.clock.forward(10)
    assert ids(await sweep_once(harness, FireTimers(harness.clock.now + 3600, 9, WAITS))) == [job.id]


async def test_a_due_job_is_queued_and_writes_an_outbox_row(harness: StoreHarness) -> None:
    job = await harness.submitted(due_at=harness.clock.now + 10)
    harness.clock.forward(9.9)
    assert await sweep_once(harness, fire_timers(harness)) == SweepResult(0, [])
    harness.clock.forward(0.1)
    expected = transitions.timer_rang(job, now=harness.clock.now, waits=WAITS)
    assert await sweep_once(harness, fire_timers(harness)) == SweepResult(1, [(job, expected)])
    after = await harness.job(job.id)
    assert (after.status, after.run, after.timer_at) == (JobStatus.PENDING, job.run + 1, harness.clock.now + 40)
    assert [change.job for change in harness.changes] == [after]
    assert harness.changes == await harness.store.outbox(older_than=harness.clock.now + 1, limit=9)
    assert await sweep_once(harness, fire_timers(harness)) == SweepResult(0, [])


async def test_timers_fire_earliest_first_up_to_the_limit(harness: StoreHarness) -> None:
    start = harness.clock.now
    late = await harness.submitted(due_at=start + 20)
    soon = await harness.submitted(due_at=start + 10)
    waits = await harness.submitted(waits={"draw": 15})
    harness.clock.forward(99)
    first = await sweep_once(harness, fire_timers(harness, limit=2))
    assert (first.found, set(ids(first))) == (2, {soon.id, waits.id})
    assert ids(await sweep_once(harness, fire_timers(harness, limit=2))) == [late.id]


async def test_each_job_is_moved_according_to_its_state(harness: StoreHarness) -> None:
    waited = await harness.submitted(waits=WAITS)
    expired = await harness.running(deadline_at=harness.clock.now + 30)
    retrying = await harness.running()
    move = Move(retrying.id, retrying.run, "retry", JobStatus.RETRYING, 0, 1, 0, False, timer_at=harness.clock.now + 5)
    await harness.one(move)
    harness.clock.forward(50)
    swept = await sweep_once(harness, fire_timers(harness))
    assert {job.id: move.verb for job, move in swept.moves} == {
        waited.id: "time_out",
        expired.id: "expire",
        retrying.id: "due",
    }
    after = await harness.store.get_jobs([waited.id, expired.id, retrying.id])
    assert [(job.status, job.retryable) for job in after.values()] == [
        (JobStatus.FAILED, True),
        (JobStatus.FAILED, False),
        (JobStatus.PENDING, None),
    ]
    # A worker of another process may have to stop the call.
    assert {change.job_id: change.job for change in harness.changes} == after


async def test_a_timer_fires_at_its_time_and_not_a_fraction_of_a_microsecond_before(harness: StoreHarness) -> None:
    """Times are stored in microseconds, and a clock is finer."""
    moments = [harness.clock.now + n / 3e6 for n in range(1, 12)]
    jobs = [await harness.submitted(due_at=moment) for moment in moments]
    stored = {job.timer_at for job in jobs}
    for moment in sorted({*moments, *stored}):  # type: ignore[type-var]
        harness.clock.now = moment  # type: ignore[assignment]
        swept = await sweep_once(harness, fire_timers(harness))
        assert [job.timer_at for job, _ in swept.moves] == [job.timer_at for job in jobs if job.timer_at <= moment]  # type: ignore[operator]
        assert swept.found == len(swept.moves)
        jobs = jobs[len(swept.moves) :]
    assert jobs == []


async def test_a_job_without_a_due_move_is_found_but_not_moved(harness: StoreHarness) -> None:
    job = await harness.running()
    stale = Move(job.id, job.run, "fail", JobStatus.FAILED, 0, 1, 0, False, timer_at=harness.clock.now, finished_at=1.0)
    await harness.one(stale)
    due = await harness.submitted(due_at=harness.clock.now + 1)
    harness.clock.forward(2)
    before = await harness.job(job.id)
    swept = await sweep_once(harness, fire_timers(harness))
    assert (swept.found, ids(swept)) == (2, [due.id])
    assert await harness.job(job.id) == before


async def test_a_job_that_the_batch_moves_is_not_swept(harness: StoreHarness) -> None:
    jobs = [await harness.submitted(waits={"draw": 5}) for _ in range(4)]
    reporting = await harness.running(deadline_at=harness.clock.now + 5)
    harness.clock.forward(10)
    outcomes = await harness.commit(
        fire_timers(harness),
        harness.start(jobs[0]),
        transitions.cancel(jobs[1], now=harness.clock.now),
        replace(transitions.cancel(jobs[2], now=harness.clock.now), run=99),
        Progress(reporting.id, reporting.run, {"percent": 5}),
        harness.submit("new", due_at=harness.clock.now + 1),
    )
    assert ids(outcomes[0].value) == [jobs[3].id]  # type: ignore[union-attr]
    statuses = [(await harness.job(job.id)).status for job in (*jobs, reporting)]
    assert statuses == [
        JobStatus.RUNNING,
        JobStatus.CANCELLED,
        JobStatus.PENDING,  # its move was refused, and its timer fires in the next batch
        JobStatus.FAILED,
        JobStatus.RUNNING,
    ]
    assert isinstance(outcomes[2], Done)
    assert isinstance(outcomes[3], Refused)
    assert set(ids(await sweep_once(harness, fire_timers(harness)))) == {jobs[2].id, reporting.id}


async def test_the_moves_of_a_batch_and_of_its_sweep_have_separate_outcomes(harness: StoreHarness) -> None:
    due = [await harness.submitted(due_at=harness.clock.now + 1) for _ in range(3)]
    running = [await harness.running(steps=("draw", "scale")) for _ in range(3)]
    harness.clock.forward(2)
    moves = [harness.done(job, f'"{job.id}"') for job in running]
    moves[1] = replace(moves[1], run=99)
    outcomes = await harness.commit(moves[0], fire_timers(harness), moves[1], moves[2])
    assert [type(outcome) for outcome in outcomes] == [Done, Done, Refused, Done]
    assert set(ids(outcomes[1].value)) == {job.id for job in due}  # type: ignore[union-attr]
    relayed = [change.job_id for change in harness.changes]
    assert sorted(relayed) == sorted([running[0].id, running[2].id, *(job.id for job in due)])
    for job, stored in zip(running, (1, 0, 1), strict=True):
        record = await harness.store.get(job.id)
        assert record is not None
        assert [result.data for result in record.results] == [job.id] * stored


async def test_several_sweeps_of_one_batch_move_a_job_once(harness: StoreHarness) -> None:
    both = await harness.submitted(priority=Priority.LOW, waits={"draw": 5})
    waiting = await harness.submitted(priority=Priority.LOW)
    now = harness.clock.forward(10)
    first, second, third = await harness.commit(fire_timers(harness), promote(harness, now, now), fire_timers(harness))
    assert ids(first.value) == [both.id]  # type: ignore[union-attr]
    assert ids(second.value) == [waiting.id]  # type: ignore[union-attr]
    assert third == Done(SweepResult(0, []))
    assert [(await harness.job(job.id)).run for job in (both, waiting)] == [1, 1]


async def test_jobs_swept_by_another_process_are_not_found_again(harness: StoreHarness) -> None:
    jobs = [await harness.submitted(due_at=harness.clock.now + 1) for _ in range(4)]
    harness.clock.forward(2)
    async with harness.another() as other:
        (outcome,) = (await other.commit([fire_timers(harness, limit=3)])).outcomes
        theirs = ids(outcome.value)
        ours = ids(await sweep_once(harness, fire_timers(harness)))
    assert sorted(theirs + ours) == sorted(job.id for job in jobs)
    assert len(theirs) == 3


async def test_a_failed_sweep_changes_nothing(harness: StoreHarness) -> None:
    job = await harness.submitted("j1", due_at=harness.clock.now + 1)
    harness.clock.forward(2)
    with pytest.raises(Exception, match=r"(?i)unique"):
        await harness.commit(fire_timers(harness), harness.submit("j1"))
    assert await harness.job(job.id) == job
    assert await harness.store.outbox(older_than=harness.clock.now + 1, limit=9) == []
    assert ids(await sweep_once(harness, fire_timers(harness))) == [job.id]


# ---------------------------------------------------------------- promotion


async def waiting_in_all_bands(harness: StoreHarness) -> tuple[Job, Job]:
    low, medium = await harness.submitted(priority=Priority.LOW), await harness.submitted()
    await harness.submitted(priority=Priority.HIGH)
    await harness.running(priority=Priority.LOW)
    await harness.submitted(priority=Priority.LOW, due_at=harness.clock.now + 5)
    await harness.cancelled(priority=Priority.LOW)
    return low, medium


@pytest.mark.parametrize("waited", [(0, -1), (-1, 0), (0, 0), (-1, -1)])
async def test_promotion_moves_the_pending_jobs_that_waited_long_enough_in_their_band(
    harness: StoreHarness, waited: tuple[float, float]
) -> None:
    low, medium = await waiting_in_all_bands(harness)
    now = harness.clock.now
    expected = [job.id for job, moment in zip((low, medium), waited, strict=True) if moment == 0]
    swept = await sweep_once(harness, promote(harness, now + waited[0], now + waited[1]))
    assert (swept.found, sorted(ids(swept))) == (len(expected), sorted(expected))


async def test_a_promoted_job_is_one_band_up_with_its_old_queued_at_and_an_outbox_row(harness: StoreHarness) -> None:
    low, medium = await waiting_in_all_bands(harness)
    start = harness.clock.now
    now = harness.clock.forward(1800)
    swept = await sweep_once(harness, promote(harness, start, start))
    expected: dict[str, Any] = {
        low.id: replace(low, priority=Priority.MEDIUM, promoted_at=now, run=1, timer_at=start + 40),
        medium.id: replace(medium, priority=Priority.HIGH, promoted_at=now, run=1, timer_at=start + 40),
    }
    assert await harness.store.get_jobs([low.id, medium.id]) == expected
    assert {change.job_id: change.job for change in harness.changes} == expected
    assert {job.id: job for job, _ in swept.moves} == {low.id: low, medium.id: medium}


async def test_a_promotion_stops_at_its_limit_and_continues_from_there(harness: StoreHarness) -> None:
    jobs = [
        await harness.submitted(priority=priority) for priority in (Priority.LOW, Priority.MEDIUM) for _ in range(3)
    ]
    now = harness.clock.now
    sweeps = [await sweep_once(harness, promote(harness, now, now, limit=4)) for _ in range(3)]
    assert [swept.found for swept in sweeps] == [4, 4, 1]
    # The low jobs were promoted twice, as they had waited long enough for both bands.
    assert {(await harness.job(job.id)).priority for job in jobs} == {Priority.HIGH}
