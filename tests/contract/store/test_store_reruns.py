"""One step of a finished job, run again: what every store keeps of it."""

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
from tests.contract.stores import Line

STEPS = ("draw", "scale", "store")
NO = Failure("PERMANENT", "no", retryable=False)
BUSY = Failure("HTTP_503", "busy", retryable=True)
MANUAL = RetryPolicy(manual=True)


async def completed(line: Line, steps: tuple[str, ...] = STEPS, **given: Any) -> Job:
    job = await line.running(steps=steps, **given)
    for step in range(len(steps)):
        await line.one(line.done(job, f'"first {step}"'))
        job = await line.job(job.id)
        if not job.status.finished:
            job = await line.started(job)
    assert job.status is JobStatus.COMPLETED
    return job


async def failed_at(line: Line, step: int, failure: Failure = NO, policy: RetryPolicy = RetryPolicy()) -> Job:  # noqa: B008
    job = await line.running(steps=STEPS)
    for done in range(step):
        await line.one(line.done(job, f'"first {done}"'))
        job = await line.started(await line.job(job.id))
    await line.one(transitions.failed(job, failure, policy, now=line.clock.now, randomness=0))
    return await line.job(job.id)


def rerun(line: Line, job: Job, step: int) -> Move:
    return transitions.rerun(job, step, now=line.clock.now, waits={})


async def again(line: Line, job: Job, step: int, data: str) -> JobRecord:
    """That step, run again, with this result."""
    await line.one(rerun(line, job, step))
    running = await line.started(await line.job(job.id))
    await line.one(line.done(running, data))
    return await record_of(line, job)


async def record_of(line: Line, job: Job) -> JobRecord:
    record = await line.store.get(job.id)
    assert record is not None
    return record


def data_of(record: JobRecord) -> list[Any]:
    return [step["data"] for step in record.context.values()]


def history_of(record: JobRecord) -> list[tuple[int, int, Any]]:
    return [(result.step, result.round, result.data) for result in record.history]


async def test_a_step_in_the_middle_is_replaced_and_all_else_stays(line: Line) -> None:
    job = await completed(line)
    line.clock.forward(60)
    record = await again(line, job, 1, '"second 1"')
    assert (record.job.status, record.job.step, record.job.round) == (JobStatus.COMPLETED, 3, 1)
    assert (record.job.finished_at, record.job.goes_back) == (line.clock.now, None)
    assert data_of(record) == ["first 0", "second 1", "first 2"]
    assert record.result == "first 2"
    assert history_of(record) == [(1, 0, "first 1")]


async def test_the_last_step_s_new_result_is_the_job_s(line: Line) -> None:
    job = await completed(line)
    record = await again(line, job, 2, '"second 2"')
    assert record.result == "second 2"
    assert data_of(record) == ["first 0", "first 1", "second 2"]
    assert history_of(record) == [(2, 0, "first 2")]


async def test_one_after_the_other_nothing_is_lost(line: Line) -> None:
    record = await record_of(line, await completed(line))
    for number, step in enumerate((1, 1, 2, 0, 2), 1):
        record = await again(line, record.job, step, f'"again {number}"')
        assert record.job.status is JobStatus.COMPLETED
    assert data_of(record) == ["again 4", "again 2", "again 5"]
    assert history_of(record) == [
        (0, 0, "first 0"),
        (1, 0, "first 1"),
        (1, 1, "again 1"),
        (2, 0, "first 2"),
        (2, 3, "again 3"),
    ]
    async with line.another() as store:
        assert await store.get(record.job.id) == record


async def test_it_waits_in_line_for_its_service_with_the_earlier_steps_newest_results(line: Line) -> None:
    job = await completed(line)
    record = await again(line, job, 0, '"second 0"')
    await line.one(rerun(line, record.job, 1))
    (change,) = line.changes
    assert change.job is not None
    assert (change.job.service, change.job.status, change.job.attempt) == ("scale", JobStatus.PENDING, 0)
    assert change.job.goes_back == {"step": 3, "error": None, "retryable": None}
    assert (change.job.finished_at, change.job.queued_at) == (None, line.clock.now)
    assert change.job.idempotency_key == f"{job.id}:1:2"
    outcome = await line.one(line.start(change.job))
    assert orjson.loads(outcome.context_json) == {
        "step_0_draw": {"status": "SUCCESS", "data": "second 0", "metrics": {}}
    }


async def test_where_it_goes_back_to_outlives_retries_promotions_and_recovery(line: Line) -> None:
    job = await completed(line)
    await line.one(rerun(line, job, 0))
    running = await line.started(await line.job(job.id))
    await line.one(transitions.failed(running, BUSY, RetryPolicy(), now=line.clock.now, randomness=0))
    line.clock.forward(60)
    await line.one(transitions.due(await line.job(job.id), now=line.clock.now, waits={}))
    await line.one(transitions.promote(await line.job(job.id), now=line.clock.now, waits={}))
    running = await line.started(await line.job(job.id))
    await line.one(transitions.recover(running, now=line.clock.now, waits={}, max_attempts=9, hold=None))
    running = await line.started(await line.job(job.id))
    await line.one(transitions.hand_back(running, now=line.clock.now, waits={}))
    running = await line.started(await line.job(job.id))
    await line.one(line.done(running, '"at last"'))
    record = await record_of(line, job)
    assert (record.job.status, record.job.step) == (JobStatus.COMPLETED, 3)
    assert data_of(record) == ["at last", "first 1", "first 2"]


async def test_a_late_result_of_the_re_run_is_refused(line: Line) -> None:
    job = await completed(line)
    await line.one(rerun(line, job, 0))
    lost = await line.started(await line.job(job.id))
    await line.one(transitions.recover(lost, now=line.clock.now, waits={}, max_attempts=9, hold=None))
    before = await record_of(line, job)
    assert isinstance(await line.one(line.done(lost, '"late"')), Refused)
    assert await record_of(line, job) == before
    assert isinstance(await line.one(rerun(line, job, 0)), Refused)  # a second request that saw the job as it was


async def test_an_earlier_step_of_a_failed_job_leaves_it_failed_as_it_was(line: Line) -> None:
    job = await failed_at(line, 2, BUSY, MANUAL)
    record = await again(line, job, 0, '"second 0"')
    assert (record.job.status, record.job.step, record.job.retryable) == (JobStatus.FAILED, 2, True)
    assert record.job.error == job.error
    assert data_of(record) == ["second 0", "first 1"]
    await line.one(transitions.resume(record.job, now=line.clock.now, waits={}))
    running = await line.started(await line.job(job.id))
    assert (running.step, running.goes_back) == (2, None)


async def test_the_step_that_failed_goes_on_from_there(line: Line) -> None:
    job = await failed_at(line, 1)
    record = await again(line, job, 1, '"second 1"')
    assert (record.job.status, record.job.step) == (JobStatus.PENDING, 2)


async def test_a_re_run_that_fails_can_be_taken_up_and_still_goes_back(line: Line) -> None:
    job = await completed(line)
    await line.one(rerun(line, job, 1))
    running = await line.started(await line.job(job.id))
    await line.one(transitions.failed(running, BUSY, MANUAL, now=line.clock.now, randomness=0))
    record = await record_of(line, job)
    assert (record.job.status, record.job.step, record.result) == (JobStatus.FAILED, 1, None)
    assert data_of(record) == ["first 0", "first 1", "first 2"]
    await line.one(transitions.resume(record.job, now=line.clock.now, waits={}))
    running = await line.started(await line.job(job.id))
    await line.one(line.done(running, '"second 1"'))
    record = await record_of(line, job)
    assert (record.job.status, record.result) == (JobStatus.COMPLETED, "first 2")
    assert data_of(record) == ["first 0", "second 1", "first 2"]


async def fails(line: Line, job: Job, step: int, code: str, policy: RetryPolicy = MANUAL) -> Job:
    """That step, run again, and failing so."""
    await line.one(rerun(line, job, step))
    running = await line.started(await line.job(job.id))
    failure = Failure(code, "busy", retryable=True)
    await line.one(transitions.failed(running, failure, policy, now=line.clock.now, randomness=0))
    return await line.job(job.id)


def stands(record: JobRecord) -> tuple[JobStatus, int, str | None]:
    return record.job.status, record.job.step, (record.job.error or {}).get("code")


async def test_a_failed_re_run_is_not_hidden_by_the_re_run_of_another_step(line: Line) -> None:
    job = await fails(line, await completed(line), 1, "HTTP_503")
    record = await again(line, job, 0, '"second 0"')
    assert stands(record) == (JobStatus.FAILED, 1, "HTTP_503")
    assert (record.job.retryable, data_of(record)) == (True, ["second 0", "first 1", "first 2"])
    await line.one(transitions.resume(record.job, now=line.clock.now, waits={}))
    running = await line.started(await line.job(job.id))
    await line.one(line.done(running, '"second 1"'))
    record = await record_of(line, job)
    assert (stands(record), record.job.goes_back) == ((JobStatus.COMPLETED, 3, None), None)
    assert (record.result, data_of(record)) == ("first 2", ["second 0", "second 1", "first 2"])


async def test_of_several_failed_re_runs_each_must_succeed_and_the_newest_is_shown(line: Line) -> None:
    job = await fails(line, await completed(line), 1, "HTTP_503")
    job = await fails(line, job, 0, "HTTP_502")
    job = await fails(line, job, 1, "HTTP_429")  # which takes the place of its first failure
    record = await again(line, job, 1, '"second 1"')
    assert stands(record) == (JobStatus.FAILED, 0, "HTTP_502")
    record = await again(line, record.job, 0, '"second 0"')
    assert stands(record) == (JobStatus.COMPLETED, 3, None)


async def test_a_job_that_goes_on_to_its_end_stays_failed_where_a_re_run_failed(line: Line) -> None:
    job = await fails(line, await failed_at(line, 1), 0, "HTTP_503")
    record = await again(line, job, 1, '"second 1"')
    assert (record.job.status, record.job.step) == (JobStatus.PENDING, 2)
    running = await line.started(record.job)
    await line.one(line.done(running, '"first 2"'))
    record = await record_of(line, job)
    assert (stands(record), record.result) == ((JobStatus.FAILED, 0, "HTTP_503"), None)
    record = await again(line, record.job, 0, '"second 0"')
    assert (stands(record), record.result) == ((JobStatus.COMPLETED, 3, None), "first 2")


async def test_a_cancelled_re_run_leaves_a_completed_job_with_its_results(line: Line) -> None:
    before = await record_of(line, await completed(line))
    for begun in (False, True):
        job = await line.job(before.job.id)
        await line.one(rerun(line, job, 1))
        job = await line.job(job.id)
        if begun:
            job = await line.started(job)
        line.changes.clear()
        await line.one(transitions.cancel(job, now=line.clock.now))
        assert [change.job and change.job.status for change in line.changes] == [JobStatus.COMPLETED]
        record = await record_of(line, job)
        assert (stands(record), record.job.goes_back) == ((JobStatus.COMPLETED, 3, None), None)
        assert (record.result, data_of(record), record.history) == (before.result, data_of(before), ())
        if begun:
            assert isinstance(await line.one(line.done(job, '"late"')), Refused)
    record = await again(line, record.job, 2, '"second 2"')
    assert (record.result, history_of(record)) == ("second 2", [(2, 0, "first 2")])


async def test_a_cancelled_re_run_leaves_a_failed_job_with_its_error(line: Line) -> None:
    before = await failed_at(line, 2, BUSY, MANUAL)
    await line.one(rerun(line, before, 0))
    await line.one(transitions.cancel(await line.job(before.id), now=line.clock.now))
    job = await line.job(before.id)
    assert (job.status, job.step, job.error, job.retryable) == (JobStatus.FAILED, 2, before.error, True)
    job = await fails(line, job, 1, "HTTP_502")
    await line.one(rerun(line, job, 0))
    await line.one(transitions.cancel(await line.job(before.id), now=line.clock.now))
    assert stands(await record_of(line, job)) == (JobStatus.FAILED, 1, "HTTP_502")


async def test_a_re_run_that_the_deadline_ends_leaves_the_job_as_it_was(line: Line) -> None:
    before = await record_of(line, await completed(line, deadline_at=line.clock.now + 60))
    await line.one(rerun(line, before.job, 1))
    running = await line.started(await line.job(before.job.id))
    line.clock.forward(61)
    move = transitions.timer_rang(running, now=line.clock.now, waits={})
    assert move is not None
    await line.one(move)
    record = await record_of(line, running)
    assert (stands(record), record.result) == ((JobStatus.COMPLETED, 3, None), before.result)
    assert [(attempt.step, attempt.error["code"]) for attempt in record.attempts] == [(1, "DEADLINE_PASSED")]


async def test_to_give_up_a_failed_re_run_it_is_begun_again_and_cancelled(line: Line) -> None:
    job = await fails(line, await completed(line), 1, "HTTP_503")
    await line.one(rerun(line, job, 1))
    await line.one(transitions.cancel(await line.job(job.id), now=line.clock.now))
    record = await record_of(line, job)
    assert (stands(record), record.result) == ((JobStatus.COMPLETED, 3, None), "first 2")


async def test_a_job_that_goes_on_from_where_it_failed_is_cancelled_as_any_other(line: Line) -> None:
    job = await failed_at(line, 1)
    await line.one(rerun(line, job, 1))
    await line.one(transitions.cancel(await line.job(job.id), now=line.clock.now))
    assert (await line.job(job.id)).status is JobStatus.CANCELLED


async def test_a_dead_letter_that_is_requeued_from_the_start_goes_back_nowhere(line: Line) -> None:
    job = await completed(line)
    await line.one(rerun(line, job, 1))
    running = await line.started(await line.job(job.id))
    await line.one(transitions.failed(running, NO, RetryPolicy(), now=line.clock.now, randomness=0))
    dead = await line.job(job.id)
    await line.one(transitions.requeue(dead, now=line.clock.now, waits={}, from_start=True))
    running = await line.started(await line.job(job.id))
    await line.one(line.done(running))
    assert (await line.job(job.id)).step == 1


async def test_what_is_not_finished_or_was_never_reached_has_no_step_to_run_again(line: Line) -> None:
    for job in (await line.submitted(), await line.running(), await line.cancelled()):
        with pytest.raises(WrongState):
            rerun(line, job, 0)
    with pytest.raises(WrongState, match="has not run"):
        rerun(line, await failed_at(line, 1), 2)
    late = await line.completed(deadline_at=line.clock.now + 5)
    line.clock.forward(6)
    with pytest.raises(WrongState, match="deadline"):
        rerun(line, late, 0)
