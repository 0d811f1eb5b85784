"""Rerunning one step of a finished job: what every store keeps."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from fairlead.domain import transitions
from fairlead.domain.job import Job, JobRecord, JobStatus
from fairlead.domain.retry import Failure, RetryPolicy
from fairlead.domain.transitions import Move
from fairlead.errors import WrongState
from fairlead.store.port import Refused
from tests.contract.stores import StoreHarness

STEPS = ("draw", "scale", "store")
NO = Failure("PERMANENT", "no", retryable=False)
BUSY = Failure("HTTP_503", "busy", retryable=True)
MANUAL = RetryPolicy(manual=True)
RETRY = RetryPolicy()


async def completed(harness: StoreHarness, steps: tuple[str, ...] = STEPS, **fields: Any) -> Job:
    job = await harness.running(steps=steps, **fields)
    for step in range(len(steps)):
        await harness.one(harness.done(job, f'"first {step}"'))
        job = await harness.job(job.id)
        if not job.status.finished:
            job = await harness.started(job)
    assert job.status is JobStatus.COMPLETED
    return job


async def failed_at(harness: StoreHarness, step: int, failure: Failure = NO, policy: RetryPolicy = RETRY) -> Job:
    job = await harness.running(steps=STEPS)
    for done in range(step):
        await harness.one(harness.done(job, f'"first {done}"'))
        job = await harness.started(await harness.job(job.id))
    await harness.one(transitions.failed(job, failure, policy, now=harness.clock.now, randomness=0))
    return await harness.job(job.id)


def rerun(harness: StoreHarness, job: Job, step: int) -> Move:
    return transitions.rerun(job, step, now=harness.clock.now, waits={})


async def again(harness: StoreHarness, job: Job, step: int, data: str) -> JobRecord:
    """Rerun a step with this result."""
    await harness.one(rerun(harness, job, step))
    running = await harness.started(await harness.job(job.id))
    await harness.one(harness.done(running, data))
    return await record_of(harness, job)


async def record_of(harness: StoreHarness, job: Job) -> JobRecord:
    record = await harness.store.get(job.id)
    assert record is not None
    return record


def data_of(record: JobRecord) -> list[Any]:
    return [step["data"] for step in record.context.values()]


def history_of(record: JobRecord) -> list[tuple[int, int, Any]]:
    return [(result.step, result.round, result.data) for result in record.history]


async def test_a_rerun_replaces_the_result_of_its_step_only(harness: StoreHarness) -> None:
    job = await completed(harness)
    harness.clock.forward(60)
    record = await again(harness, job, 1, '"second 1"')
    assert (record.job.status, record.job.step, record.job.round) == (JobStatus.COMPLETED, 3, 1)
    assert (record.job.finished_at, record.job.goes_back) == (harness.clock.now, None)
    assert data_of(record) == ["first 0", "second 1", "first 2"]
    assert record.result == "first 2"
    assert history_of(record) == [(1, 0, "first 1")]


async def test_a_rerun_of_the_last_step_replaces_the_result_of_the_job(harness: StoreHarness) -> None:
    job = await completed(harness)
    record = await again(harness, job, 2, '"second 2"')
    assert record.result == "second 2"
    assert data_of(record) == ["first 0", "first 1", "second 2"]
    assert history_of(record) == [(2, 0, "first 2")]


async def test_consecutive_reruns_lose_nothing(harness: StoreHarness) -> None:
    record = await record_of(harness, await completed(harness))
    for number, step in enumerate((1, 1, 2, 0, 2), 1):
        record = await again(harness, record.job, step, f'"again {number}"')
        assert record.job.status is JobStatus.COMPLETED
    assert data_of(record) == ["again 4", "again 2", "again 5"]
    assert history_of(record) == [
        (0, 0, "first 0"),
        (1, 0, "first 1"),
        (1, 1, "again 1"),
        (2, 0, "first 2"),
        (2, 3, "again 3"),
    ]
    async with harness.another() as store:
        assert await store.get(record.job.id) == record


async def test_a_rerun_is_queued_with_the_newest_results_of_earlier_steps(harness: StoreHarness) -> None:
    job = await completed(harness)
    record = await again(harness, job, 0, '"second 0"')
    await harness.one(rerun(harness, record.job, 1))
    (change,) = harness.changes
    assert change.job is not None
    assert (change.job.service, change.job.status, change.job.attempt) == ("scale", JobStatus.PENDING, 0)
    assert change.job.goes_back == {"step": 3, "error": None, "retryable": None}
    assert (change.job.finished_at, change.job.queued_at) == (None, harness.clock.now)
    assert change.job.idempotency_key == f"{job.id}:1:2"
    outcome = await harness.one(harness.start(change.job))
    assert orjson.loads(outcome.context_json) == {
        "step_0_draw": {"status": "SUCCESS", "data": "second 0", "metrics": {}}
    }


async def test_the_return_state_survives_retries_promotions_and_recovery(harness: StoreHarness) -> None:
    job = await completed(harness)
    await harness.one(rerun(harness, job, 0))
    running = await harness.started(await harness.job(job.id))
    await harness.one(transitions.failed(running, BUSY, RetryPolicy(), now=harness.clock.now, randomness=0))
    harness.clock.forward(60)
    await harness.one(transitions.due(await harness.job(job.id), now=harness.clock.now, waits={}))
    await harness.one(transitions.promote(await harness.job(job.id), now=harness.clock.now, waits={}))
    running = await harness.started(await harness.job(job.id))
    await harness.one(transitions.recover(running, now=harness.clock.now, waits={}, max_attempts=9, hold=None))
    running = await harness.started(await harness.job(job.id))
    await harness.one(transitions.hand_back(running, now=harness.clock.now, waits={}))
    running = await harness.started(await harness.job(job.id))
    await harness.one(harness.done(running, '"at last"'))
    record = await record_of(harness, job)
    assert (record.job.status, record.job.step) == (JobStatus.COMPLETED, 3)
    assert data_of(record) == ["at last", "first 1", "first 2"]


async def test_a_late_result_of_a_rerun_is_refused(harness: StoreHarness) -> None:
    job = await completed(harness)
    await harness.one(rerun(harness, job, 0))
    lost = await harness.started(await harness.job(job.id))
    await harness.one(transitions.recover(lost, now=harness.clock.now, waits={}, max_attempts=9, hold=None))
    before = await record_of(harness, job)
    assert isinstance(await harness.one(harness.done(lost, '"late"')), Refused)
    assert await record_of(harness, job) == before
    assert isinstance(await harness.one(rerun(harness, job, 0)), Refused)  # a second request that read the job before


async def test_a_rerun_of_an_earlier_step_leaves_a_failed_job_failed(harness: StoreHarness) -> None:
    job = await failed_at(harness, 2, BUSY, MANUAL)
    record = await again(harness, job, 0, '"second 0"')
    assert (record.job.status, record.job.step, record.job.retryable) == (JobStatus.FAILED, 2, True)
    assert record.job.error == job.error
    assert data_of(record) == ["second 0", "first 1"]
    await harness.one(transitions.resume(record.job, now=harness.clock.now, waits={}))
    running = await harness.started(await harness.job(job.id))
    assert (running.step, running.goes_back) == (2, None)


async def test_a_rerun_of_the_failed_step_continues_the_job(harness: StoreHarness) -> None:
    job = await failed_at(harness, 1)
    record = await again(harness, job, 1, '"second 1"')
    assert (record.job.status, record.job.step) == (JobStatus.PENDING, 2)


async def test_a_failed_rerun_can_be_resumed_and_still_returns(harness: StoreHarness) -> None:
    job = await completed(harness)
    await harness.one(rerun(harness, job, 1))
    running = await harness.started(await harness.job(job.id))
    await harness.one(transitions.failed(running, BUSY, MANUAL, now=harness.clock.now, randomness=0))
    record = await record_of(harness, job)
    assert (record.job.status, record.job.step, record.result) == (JobStatus.FAILED, 1, None)
    assert data_of(record) == ["first 0", "first 1", "first 2"]
    await harness.one(transitions.resume(record.job, now=harness.clock.now, waits={}))
    running = await harness.started(await harness.job(job.id))
    await harness.one(harness.done(running, '"second 1"'))
    record = await record_of(harness, job)
    assert (record.job.status, record.result) == (JobStatus.COMPLETED, "first 2")
    assert data_of(record) == ["first 0", "second 1", "first 2"]


async def fails(harness: StoreHarness, job: Job, step: int, code: str, policy: RetryPolicy = MANUAL) -> Job:
    """Rerun a step, with this failure."""
    await harness.one(rerun(harness, job, step))
    running = await harness.started(await harness.job(job.id))
    failure = Failure(code, "busy", retryable=True)
    await harness.one(transitions.failed(running, failure, policy, now=harness.clock.now, randomness=0))
    return await harness.job(job.id)


def outcome_of(record: JobRecord) -> tuple[JobStatus, int, str | None]:
    return record.job.status, record.job.step, (record.job.error or {}).get("code")


async def test_a_failed_rerun_is_not_hidden_by_the_rerun_of_another_step(harness: StoreHarness) -> None:
    job = await fails(harness, await completed(harness), 1, "HTTP_503")
    record = await again(harness, job, 0, '"second 0"')
    assert outcome_of(record) == (JobStatus.FAILED, 1, "HTTP_503")
    assert (record.job.retryable, data_of(record)) == (True, ["second 0", "first 1", "first 2"])
    await harness.one(transitions.resume(record.job, now=harness.clock.now, waits={}))
    running = await harness.started(await harness.job(job.id))
    await harness.one(harness.done(running, '"second 1"'))
    record = await record_of(harness, job)
    assert (outcome_of(record), record.job.goes_back) == ((JobStatus.COMPLETED, 3, None), None)
    assert (record.result, data_of(record)) == ("first 2", ["second 0", "second 1", "first 2"])


async def test_several_failed_reruns_must_all_succeed_and_the_newest_error_is_shown(harness: StoreHarness) -> None:
    job = await fails(harness, await completed(harness), 1, "HTTP_503")
    job = await fails(harness, job, 0, "HTTP_502")
    job = await fails(harness, job, 1, "HTTP_429")  # replaces its first failure
    record = await again(harness, job, 1, '"second 1"')
    assert outcome_of(record) == (JobStatus.FAILED, 0, "HTTP_502")
    record = await again(harness, record.job, 0, '"second 0"')
    assert outcome_of(record) == (JobStatus.COMPLETED, 3, None)


async def test_a_job_that_continues_to_its_end_stays_failed_where_a_rerun_failed(harness: StoreHarness) -> None:
    job = await fails(harness, await failed_at(harness, 1), 0, "HTTP_503")
    record = await again(harness, job, 1, '"second 1"')
    assert (record.job.status, record.job.step) == (JobStatus.PENDING, 2)
    running = await harness.started(record.job)
    await harness.one(harness.done(running, '"first 2"'))
    record = await record_of(harness, job)
    assert (outcome_of(record), record.result) == ((JobStatus.FAILED, 0, "HTTP_503"), None)
    record = await again(harness, record.job, 0, '"second 0"')
    assert (outcome_of(record), record.result) == ((JobStatus.COMPLETED, 3, None), "first 2")


async def test_a_cancelled_rerun_leaves_a_completed_job_with_its_results(harness: StoreHarness) -> None:
    before = await record_of(harness, await completed(harness))
    for begun in (False, True):
        job = await harness.job(before.job.id)
        await harness.one(rerun(harness, job, 1))
        job = await harness.job(job.id)
        if begun:
            job = await harness.started(job)
        harness.changes.clear()
        await harness.one(transitions.cancel(job, now=harness.clock.now))
        assert [change.job and change.job.status for change in harness.changes] == [JobStatus.COMPLETED]
        record = await record_of(harness, job)
        assert (outcome_of(record), record.job.goes_back) == ((JobStatus.COMPLETED, 3, None), None)
        assert (record.result, data_of(record), record.history) == (before.result, data_of(before), ())
        if begun:
            assert isinstance(await harness.one(harness.done(job, '"late"')), Refused)
    record = await again(harness, record.job, 2, '"second 2"')
    assert (record.result, history_of(record)) == ("second 2", [(2, 0, "first 2")])


async def test_a_cancelled_rerun_leaves_a_failed_job_with_its_error(harness: StoreHarness) -> None:
    before = await failed_at(harness, 2, BUSY, MANUAL)
    await harness.one(rerun(harness, before, 0))
    await harness.one(transitions.cancel(await harness.job(before.id), now=harness.clock.now))
    job = await harness.job(before.id)
    assert (job.status, job.step, job.error, job.retryable) == (JobStatus.FAILED, 2, before.error, True)
    job = await fails(harness, job, 1, "HTTP_502")
    await harness.one(rerun(harness, job, 0))
    await harness.one(transitions.cancel(await harness.job(before.id), now=harness.clock.now))
    assert outcome_of(await record_of(harness, job)) == (JobStatus.FAILED, 1, "HTTP_502")


async def test_a_rerun_ended_by_the_deadline_leaves_the_job_unchanged(harness: StoreHarness) -> None:
    before = await record_of(harness, await completed(harness, deadline_at=harness.clock.now + 60))
    await harness.one(rerun(harness, before.job, 1))
    running = await harness.started(await harness.job(before.job.id))
    harness.clock.forward(61)
    move = transitions.timer_rang(running, now=harness.clock.now, waits={})
    assert move is not None
    await harness.one(move)
    record = await record_of(harness, running)
    assert (outcome_of(record), record.result) == ((JobStatus.COMPLETED, 3, None), before.result)
    assert [(attempt.step, attempt.error["code"]) for attempt in record.attempts] == [(1, "DEADLINE_PASSED")]


async def test_a_failed_rerun_is_undone_by_a_cancelled_one(harness: StoreHarness) -> None:
    job = await fails(harness, await completed(harness), 1, "HTTP_503")
    await harness.one(rerun(harness, job, 1))
    await harness.one(transitions.cancel(await harness.job(job.id), now=harness.clock.now))
    record = await record_of(harness, job)
    assert (outcome_of(record), record.result) == ((JobStatus.COMPLETED, 3, None), "first 2")


async def test_a_job_continued_from_its_failure_is_cancelled_like_any_other(harness: StoreHarness) -> None:
    job = await failed_at(harness, 1)
    await harness.one(rerun(harness, job, 1))
    await harness.one(transitions.cancel(await harness.job(job.id), now=harness.clock.now))
    assert (await harness.job(job.id)).status is JobStatus.CANCELLED


async def test_a_dead_letter_requeued_from_the_start_has_no_return_state(harness: StoreHarness) -> None:
    job = await completed(harness)
    await harness.one(rerun(harness, job, 1))
    running = await harness.started(await harness.job(job.id))
    await harness.one(transitions.failed(running, NO, RetryPolicy(), now=harness.clock.now, randomness=0))
    dead = await harness.job(job.id)
    await harness.one(transitions.requeue(dead, now=harness.clock.now, waits={}, from_start=True))
    running = await harness.started(await harness.job(job.id))
    await harness.one(harness.done(running))
    assert (await harness.job(job.id)).step == 1


async def test_an_open_job_or_an_unreached_step_cannot_be_rerun(harness: StoreHarness) -> None:
    for job in (await harness.submitted(), await harness.running(), await harness.cancelled()):
        with pytest.raises(WrongState):
            rerun(harness, job, 0)
    with pytest.raises(WrongState, match="has not run"):
        rerun(harness, await failed_at(harness, 1), 2)
    late = await harness.completed(deadline_at=harness.clock.now + 5)
    harness.clock.forward(6)
    with pytest.raises(WrongState, match="deadline"):
        rerun(harness, late, 0)
