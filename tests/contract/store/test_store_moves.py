"""The contract of starts and moves: guards, results, attempts and holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from fairlead.domain import transitions
from fairlead.domain.job import Hold, Job, JobStatus, Priority, context_of
from fairlead.domain.retry import Failure, RetryPolicy
from fairlead.store.port import Done, EndHolds, JobFilter, RaiseEpoch, Refused, Started
from tests.contract.stores import StoreHarness

SOON_OVER = Failure("HTTP_503", "busy", retryable=True)
POLICY = RetryPolicy()
ALL = JobFilter()


# ---------------------------------------------------------------- start


async def test_a_start_makes_the_job_running_and_returns_the_input_of_the_handler(harness: StoreHarness) -> None:
    job = await harness.submitted(deadline_at=harness.clock.now + 600, waits={"draw": 60})
    harness.clock.forward(5)
    outcome = await harness.one(harness.start(job, lease="0:7", worker="w1", timeout=30.5))
    now = harness.clock.now
    assert outcome == Started(
        replace(
            job,
            status=JobStatus.RUNNING,
            run=job.run + 1,
            attempt=1,
            lease="0:7",
            worker="w1",
            call_started_at=now,
            call_deadline=now + 30.5,
            started_at=now,
            timer_at=job.deadline_at,
        ),
        '{"prompt":"a cat"}',
        "{}",
    )
    assert outcome.job == await harness.job(job.id)
    assert harness.changes == []


@pytest.mark.parametrize("wrong", [{"run": 7}, {"step": 1}, {"lease": "1:1"}, {"lease": "odd"}])
async def test_a_start_of_another_run_step_or_epoch_is_refused(harness: StoreHarness, wrong: dict[str, Any]) -> None:
    job = await harness.submitted()
    assert isinstance(await harness.one(harness.start(job, **wrong)), Refused)
    assert await harness.job(job.id) == job


async def test_a_repeated_start_is_refused(harness: StoreHarness) -> None:
    job = await harness.submitted()
    running = await harness.started(job)
    assert isinstance(await harness.one(harness.start(job)), Refused)
    assert isinstance(await harness.one(harness.start(running)), Refused)
    assert await harness.job(job.id) == running


async def test_a_start_of_an_unknown_job_is_refused(harness: StoreHarness) -> None:
    assert isinstance(await harness.one(harness.start(Job("none", "f", "u", ("draw",)))), Refused)


async def test_a_start_needs_the_current_epoch_of_its_scope(harness: StoreHarness) -> None:
    old, new = await harness.submitted(), await harness.submitted()
    await harness.one(RaiseEpoch("service:draw"))
    assert isinstance(await harness.one(harness.start(old, lease="0:9")), Refused)
    assert (await harness.started(new, lease="1:1")).lease == "1:1"
    assert (await harness.started(old, lease="0:9", scope="service:other")).lease == "0:9"


async def test_an_epoch_raised_in_the_same_batch_refuses_its_starts(harness: StoreHarness) -> None:
    job = await harness.submitted()
    start, raised = await harness.commit(harness.start(job, lease="0:1"), RaiseEpoch("service:draw"))
    assert isinstance(start, Refused)
    assert raised == Done(1)


async def test_each_start_of_a_batch_returns_its_own_job(harness: StoreHarness) -> None:
    jobs = [await harness.submitted(input_json=f"{n}") for n in range(4)]
    starts = [harness.start(job, lease=f"0:{n}") for n, job in enumerate(jobs)]
    starts[2] = replace(starts[2], run=9)
    outcomes = await harness.commit(*starts)
    assert isinstance(outcomes.pop(2), Refused)
    assert [(o.job.lease, o.input_json) for o in outcomes] == [("0:0", "0"), ("0:1", "1"), ("0:3", "3")]  # type: ignore[union-attr]


async def test_a_retry_keeps_the_first_start_time_and_the_error(harness: StoreHarness) -> None:
    job = await harness.running()
    await harness.one(_failed(harness, job))
    harness.clock.forward(10)
    await harness.one(transitions.due(await harness.job(job.id), now=harness.clock.now, waits={}))
    again = await harness.started(await harness.job(job.id))
    assert again.started_at == job.started_at
    assert again.call_started_at == harness.clock.now
    assert again.attempt == 2
    assert again.error == {"code": "HTTP_503", "message": "busy"}


async def test_a_later_step_starts_with_the_results_of_the_earlier_ones(harness: StoreHarness) -> None:
    job = await harness.running(steps=("draw", "scale", "store"))
    for service in ("scale", "store"):
        data = f'{{"for":"{service}","x":[1,2.50,"\\u00e9"]}}'
        await harness.one(harness.done(job, data, '{"execution_time_ms":3}'))
        outcome = await harness.one(harness.start(await harness.job(job.id)))
        job = outcome.job
    record = await harness.store.get(job.id)
    assert record is not None
    assert orjson.loads(outcome.context_json) == context_of(record.results) == record.context
    assert list(record.context) == ["step_0_draw", "step_1_scale"]


async def test_the_context_has_the_newest_round_of_each_earlier_step_and_none_of_later_ones(
    harness: StoreHarness,
) -> None:
    job = await harness.running(steps=("draw", "scale", "store"))
    for data in ('"old"', '"later"'):
        await harness.one(harness.done(job, data))
        job = await harness.started(await harness.job(job.id))
    failure = Failure("PERMANENT", "no", retryable=False)
    await harness.one(transitions.failed(job, failure, POLICY, now=harness.clock.now, randomness=0))
    requeue = transitions.requeue(await harness.job(job.id), now=harness.clock.now, waits={}, from_start=True)
    await harness.one(requeue)
    outcome = await harness.one(harness.start(await harness.job(job.id)))
    assert outcome.context_json == "{}"
    await harness.one(harness.done(outcome.job, '"new"'))
    outcome = await harness.one(harness.start(await harness.job(job.id)))
    assert orjson.loads(outcome.context_json) == {"step_0_draw": {"status": "SUCCESS", "data": "new", "metrics": {}}}
    assert outcome.context_json.count("step_0_draw") == 1


# ---------------------------------------------------------------- move


async def test_the_last_step_completes_the_job_and_keeps_its_result(harness: StoreHarness) -> None:
    job = await harness.running()
    harness.clock.forward(2)
    relayed = await harness.store.outbox(older_than=harness.clock.now + 1, limit=9)
    assert await harness.one(harness.done(job, '{"url":"x"}')) == Done()
    assert harness.changes == []
    assert len(await harness.store.outbox(older_than=harness.clock.now + 1, limit=9)) == len(relayed)
    record = await harness.store.get(job.id)
    assert record is not None
    assert record.job.status is JobStatus.COMPLETED
    assert record.job.finished_at == record.job.last_progress_at == harness.clock.now
    assert (record.job.lease, record.job.worker, record.job.call_deadline) == (None, None, None)
    assert record.result == {"url": "x"}


async def test_a_finished_step_queues_the_job_for_the_next_step(harness: StoreHarness) -> None:
    job = await harness.running(steps=("draw", "scale"))
    await harness.one(harness.done(job))
    (change,) = harness.changes
    assert change.job == await harness.job(job.id)
    assert change.job is not None
    assert (change.job.step, change.job.run, change.job.attempt) == (1, job.run + 1, 0)


async def test_a_late_result_is_refused_and_stores_nothing(harness: StoreHarness) -> None:
    job = await harness.running()
    await harness.one(transitions.recover(job, now=harness.clock.now, waits={}, max_attempts=3, hold=None))
    moved_on = await harness.store.get(job.id)
    assert isinstance(await harness.one(harness.done(job)), Refused)
    assert await harness.store.get(job.id) == moved_on
    assert harness.changes == []


async def test_a_repeated_move_is_refused(harness: StoreHarness) -> None:
    job = await harness.running(steps=("draw", "scale"))
    move = harness.done(job)
    await harness.one(move)
    assert isinstance(await harness.one(move), Refused)
    assert harness.changes == []


async def test_only_the_matching_moves_of_a_batch_are_applied(harness: StoreHarness) -> None:
    jobs = [await harness.running(job_id=f"j{n}", steps=("draw", "scale")) for n in range(3)]
    moves = [harness.done(job, f'"{job.id}"') for job in jobs]
    moves[1] = replace(moves[1], run=99)
    outcomes = await harness.commit(*moves)
    assert [type(outcome) for outcome in outcomes] == [Done, Refused, Done]
    assert [change.job_id for change in harness.changes] == [jobs[0].id, jobs[2].id]
    for job, stored in zip(jobs, (1, 0, 1), strict=True):
        record = await harness.store.get(job.id)
        assert record is not None
        assert len(record.results) == stored
        assert all(result.data == job.id for result in record.results)


async def test_every_attempt_is_kept(harness: StoreHarness) -> None:
    job = await harness.started(await harness.submitted(region="us"), region="eu")
    for _ in range(3):
        await harness.one(_failed(harness, job))
        job = await harness.job(job.id)
        if job.status is JobStatus.RETRYING:
            harness.clock.forward(60)
            await harness.one(transitions.due(job, now=harness.clock.now, waits={}))
            job = await harness.started(await harness.job(job.id))
    record = await harness.store.get(job.id)
    assert record is not None
    assert record.job.status is JobStatus.FAILED
    assert [attempt.attempt for attempt in record.attempts] == [1, 2, 3]
    first = record.attempts[0]
    assert (first.error["code"], first.worker, first.region) == ("HTTP_503", "w1", "eu")
    assert first.started_at is not None


async def test_a_recovery_keeps_the_slot_of_a_call_that_may_still_compute(harness: StoreHarness) -> None:
    job = await harness.running()
    hold = Hold(job.id, "draw", "eu", harness.clock.now + 30, "h1", band=3)
    await harness.one(transitions.recover(job, now=harness.clock.now, waits={}, max_attempts=3, hold=hold))
    assert await harness.store.holds() == [hold]
    assert [change.job_id for change in harness.changes] == [job.id]


async def test_a_hold_without_a_name_gets_one_and_two_holds_of_a_job_are_kept(harness: StoreHarness) -> None:
    job = await harness.running()
    for _ in range(2):
        hold = Hold(job.id, "draw", None, harness.clock.now + 30)
        await harness.one(transitions.recover(job, now=harness.clock.now, waits={}, max_attempts=3, hold=hold))
        job = await harness.started(await harness.job(job.id))
    holds = await harness.store.holds()
    assert len({hold.id for hold in holds} - {""}) == 2


async def test_a_refused_recovery_holds_nothing(harness: StoreHarness) -> None:
    job = await harness.running()
    hold = Hold(job.id, "draw", None, harness.clock.now + 30, "h1")
    move = transitions.recover(job, now=harness.clock.now, waits={}, max_attempts=3, hold=hold)
    await harness.one(harness.done(job))
    assert isinstance(await harness.one(move), Refused)
    assert await harness.store.holds() == []


async def test_holds_end_at_their_deadline(harness: StoreHarness) -> None:
    for seconds in (10, 20):
        job = await harness.running()
        hold = Hold(job.id, "draw", None, harness.clock.now + seconds, f"until {seconds}")
        await harness.one(transitions.recover(job, now=harness.clock.now, waits={}, max_attempts=3, hold=hold))
    harness.clock.forward(9)
    assert await harness.one(EndHolds(harness.clock.now)) == Done(0)
    harness.clock.forward(1)
    assert await harness.one(EndHolds(harness.clock.now - 1)) == Done(0)
    assert await harness.one(EndHolds(harness.clock.now)) == Done(1)
    assert [hold.id for hold in await harness.store.holds()] == ["until 20"]


async def test_a_process_whose_clock_is_ahead_ends_no_hold_early(harness: StoreHarness) -> None:
    job = await harness.running()
    hold = Hold(job.id, "draw", None, harness.clock.now + 30, "h1")
    await harness.one(transitions.recover(job, now=harness.clock.now, waits={}, max_attempts=3, hold=hold))
    assert await harness.one(EndHolds(harness.clock.now + 3600)) == Done(0)
    assert [hold.id for hold in await harness.store.holds()] == ["h1"]


async def test_a_promotion_keeps_queued_at_and_the_original_priority(harness: StoreHarness) -> None:
    job = await harness.submitted(priority=Priority.LOW, original_priority=Priority.LOW)
    harness.clock.forward(1800)
    await harness.one(transitions.promote(job, now=harness.clock.now, waits={}))
    promoted = await harness.job(job.id)
    assert promoted == replace(job, priority=Priority.MEDIUM, promoted_at=harness.clock.now, run=job.run + 1)
    assert [change.job for change in harness.changes] == [promoted]


async def test_a_cancel_of_a_waiting_job_writes_an_outbox_row(harness: StoreHarness) -> None:
    job = await harness.cancelled()
    assert [change.job for change in harness.changes] == [job]
    assert job.status is JobStatus.CANCELLED


async def test_a_new_priority_moves_a_waiting_job_and_sets_no_promotion(harness: StoreHarness) -> None:
    job = await harness.submitted(priority=Priority.MEDIUM)
    harness.clock.forward(100)
    await harness.one(transitions.prioritise(job, Priority.LOW, now=harness.clock.now, waits={}))
    lowered = await harness.job(job.id)
    assert lowered == replace(job, priority=Priority.LOW, queued_at=harness.clock.now, run=job.run + 1)
    assert [change.job for change in harness.changes] == [lowered]


@pytest.mark.parametrize("status", [JobStatus.RUNNING, JobStatus.SCHEDULED])
async def test_a_new_priority_of_a_job_that_is_not_queued_changes_nothing_else(
    harness: StoreHarness, status: JobStatus
) -> None:
    job = await (harness.running() if status is JobStatus.RUNNING else harness.submitted(due_at=harness.clock.now + 60))
    harness.clock.forward(100)
    raised = transitions.prioritise(job, Priority.HIGH, now=harness.clock.now, waits={})
    assert await harness.one(raised) == Done()
    assert harness.changes == []
    assert await harness.job(job.id) == replace(job, priority=Priority.HIGH, promoted_at=harness.clock.now)
    # A repeated change has no further effect, and the end of the running call is not refused because of it.
    assert await harness.one(raised) == Done()
    if status is JobStatus.RUNNING:
        assert await harness.one(harness.done(job)) == Done()
        assert isinstance(await harness.one(raised), Refused)


def _failed(harness: StoreHarness, job: Job) -> Any:
    return transitions.failed(job, SOON_OVER, POLICY, now=harness.clock.now, randomness=0.5)
