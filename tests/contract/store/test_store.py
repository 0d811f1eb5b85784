"""Every rule that a store must keep, whichever engine it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from fairlead.domain import transitions
from fairlead.domain.job import Hold, Job, JobStatus, Priority, context_of
from fairlead.domain.retry import Failure, RetryPolicy
from fairlead.domain.transitions import Delete, Progress
from fairlead.errors import IdempotencyMismatch, InvalidInput, StoreError, TooManyWaiting, Unavailable
from fairlead.store.port import (
    Accepted,
    Done,
    EndHolds,
    JobFilter,
    Prune,
    RaiseEpoch,
    Refused,
    RingTimers,
    Started,
)
from tests.contract.stores import Line

SOON_OVER = Failure("HTTP_503", "busy", retryable=True)
POLICY = RetryPolicy()
ALL = JobFilter()


# ---------------------------------------------------------------- submit


async def test_a_submitted_job_can_be_read_back_with_everything_given(line: Line) -> None:
    submit = line.submit(
        "j1",
        steps=("draw", "scale"),
        priority=Priority.LOW,
        original_priority=Priority.HIGH,
        deadline_at=line.clock.now + 60,
        cost=2.5,
        weight=0.1,
        region="eu",
        allowed_regions=("eu", "us"),
        priority_source="service",
        input_json='{"prompt":"ein \\"Hund\\" 🐕\\u0000"}',
        metadata_json='{"tag":"x"}',
    )
    accepted = await line.one(submit)
    assert accepted == Accepted("j1", accepted.seq)
    record = await line.store.get("j1")
    assert record is not None
    assert record.job == replace(submit.job, seq=accepted.seq)
    assert record.input_json == submit.input_json
    assert record.metadata_json == '{"tag":"x"}'
    assert record.results == ()
    assert record.attempts == ()


async def test_jobs_are_numbered_in_the_order_of_the_batch_and_of_the_commits(line: Line) -> None:
    first = await line.commit(*(line.submit() for _ in range(5)))
    second = await line.commit(*(line.submit() for _ in range(3)))
    numbers = [accepted.seq for accepted in (*first, *second)]  # type: ignore[union-attr]
    assert numbers == sorted(set(numbers))


async def test_a_number_is_not_given_again_after_its_job_is_deleted(line: Line) -> None:
    job = await line.cancelled()
    await line.one(Delete(job.id))
    assert (await line.submitted()).seq > job.seq


async def test_a_submit_in_line_tells_the_line(line: Line) -> None:
    submit = line.submit("j1")
    accepted = await line.one(submit)
    (change,) = line.changes
    assert (change.job_id, change.job) == ("j1", replace(submit.job, seq=accepted.seq))


async def test_changes_name_the_right_jobs_when_some_of_the_batch_are_not_in_line(line: Line) -> None:
    later = line.clock.now + 60
    await line.commit(
        line.submit("a"),
        line.submit("b", due_at=later),
        line.submit("c", idempotency_key="k", body_hash="1"),
        line.submit("d", idempotency_key="k", body_hash="1"),
        line.submit("e"),
    )
    jobs = await line.store.get_jobs(["a", "c", "e"])
    assert [(change.job_id, change.job) for change in line.changes] == list(jobs.items())
    assert await line.store.outbox(older_than=line.clock.now + 1, limit=10) == line.changes


async def test_a_scheduled_submit_does_not_tell_the_line(line: Line) -> None:
    job = await line.submitted(due_at=line.clock.now + 60)
    assert job.status is JobStatus.SCHEDULED
    assert line.changes == []
    assert await line.store.outbox(older_than=line.clock.now + 99, limit=10) == []


async def test_inputs_stay_with_their_jobs_when_one_of_the_batch_is_turned_away(line: Line) -> None:
    await line.submitted("old", idempotency_key="k", body_hash="1")
    batch = [line.submit(f"j{n}", input_json=f"{n}", metadata_json=f'{{"n":{n}}}') for n in range(4)]
    batch[1] = replace(batch[1], idempotency_key="k", body_hash="1")
    await line.commit(*batch)
    for n in (0, 2, 3):
        record = await line.store.get(f"j{n}")
        assert record is not None
        assert (record.input_data, record.metadata) == (n, {"n": n})
    assert await line.store.get("j1") is None


@pytest.mark.parametrize("different", [(), ("user_id", "turn"), ("input_json", "metadata_json"), ("everything",)])
async def test_each_job_of_a_batch_is_kept_as_given_whatever_it_shares_with_the_others(
    line: Line, different: tuple[str, ...]
) -> None:
    now = line.clock.now
    others: dict[str, Any] = {
        "user_id": "bob",
        "feature_name": "film",
        "steps": ("draw", "cut"),
        "priority": Priority.LOW,
        "original_priority": Priority.HIGH,
        "due_at": now + 60,
        "deadline_at": now + 90,
        "cost": 7.5,
        "weight": 2.0,
        "turn": "a process",
        "input_json": '{"prompt":"a dog, a\\u0001 dog"}',
        "metadata_json": '{"n":1}',
        "idempotency_key": "k",
        "body_hash": "h",
    }
    unlike = others if "everything" in different else {name: others[name] for name in different}
    batch = [
        line.submit(),
        line.submit(**unlike),
        line.submit(),
        line.submit(
            user_id="\x01\x02",
            **{name: value for name, value in unlike.items() if name not in ("user_id", "idempotency_key")},
        ),
    ]
    accepted = await line.commit(*batch)
    for submit, outcome in zip(batch, accepted, strict=True):
        record = await line.store.get(submit.job.id)
        assert record is not None
        assert isinstance(outcome, Accepted)
        assert (record.job, outcome.job_id) == (replace(submit.job, seq=outcome.seq), submit.job.id)
        assert (record.input_json, record.metadata_json) == (submit.input_json, submit.metadata_json)
    assert [outcome.seq for outcome in accepted] == sorted(outcome.seq for outcome in accepted)
    assert [change.job for change in line.changes] == [
        submit.job for submit in batch if submit.job.status is JobStatus.PENDING
    ]


async def test_a_job_id_that_is_there_already_fails_the_whole_batch_and_leaves_nothing(line: Line) -> None:
    await line.submitted("j1")
    with pytest.raises(Exception, match=r"(?i)unique") as raised:
        await line.commit(line.submit("j0"), line.submit("j1"))
    assert not isinstance(raised.value, Unavailable | StoreError)
    assert await line.store.count(ALL) == 1


async def test_a_name_with_nul_is_refused_as_invalid(line: Line) -> None:
    with pytest.raises(InvalidInput):
        await line.commit(line.submit(user_id="ann\0bob"))
    assert await line.store.count(ALL) == 0


async def test_times_are_kept_to_the_microsecond(line: Line) -> None:
    line.clock.now = 1_712_345_678.123457
    assert (await line.submitted()).created_at == 1_712_345_678.123457


async def test_odd_names_survive(line: Line) -> None:
    name = 'Zoë "O\'Neill" \\ \n\t\x1f 雪 🐕 ]}'
    job = await line.started(await line.submitted(user_id=name, feature_name=name), worker=name)
    assert (job.user_id, job.feature_name, job.worker) == (name, name, name)
    assert [found.id for found in await _listed(line, user_id=name, feature_name=name)] == [job.id]


# ---------------------------------------------------------------- idempotency


async def test_the_same_key_and_body_is_answered_with_the_job_it_made(line: Line) -> None:
    first = await line.one(line.submit("j1", idempotency_key="k", body_hash="h"))
    again = await line.one(line.submit("j2", idempotency_key="k", body_hash="h"))
    assert again == Accepted("j1", first.seq, replayed=True)
    assert line.changes == []
    assert await line.store.count(ALL) == 1


async def test_the_same_key_with_another_body_is_a_mismatch(line: Line) -> None:
    await line.submitted("j1", idempotency_key="k", body_hash="h")
    assert isinstance(await line.one(line.submit("j2", idempotency_key="k", body_hash="other")), IdempotencyMismatch)
    assert await line.store.count(ALL) == 1


async def test_equal_keys_within_one_batch_make_one_job(line: Line) -> None:
    first, again, other = await line.commit(
        line.submit("j1", idempotency_key="k", body_hash="h"),
        line.submit("j2", idempotency_key="k", body_hash="h"),
        line.submit("j3", idempotency_key="k", body_hash="other"),
    )
    assert isinstance(first, Accepted)
    assert again == Accepted("j1", first.seq, replayed=True)
    assert isinstance(other, IdempotencyMismatch)
    assert [job.id for job in await _listed(line)] == ["j1"]


async def test_a_retry_with_the_very_same_job_id_is_a_replay_too(line: Line) -> None:
    submit = line.submit("j1", idempotency_key="k", body_hash="h", metadata_json="{}")
    first = await line.one(submit)
    assert await line.one(submit) == Accepted("j1", first.seq, replayed=True)


async def test_keys_belong_to_their_user(line: Line) -> None:
    await line.submitted(idempotency_key="k", body_hash="h")
    outcome = await line.one(line.submit(user_id="bob", idempotency_key="k", body_hash="other"))
    assert isinstance(outcome, Accepted)
    assert not outcome.replayed


async def test_a_key_is_forgotten_with_its_job(line: Line) -> None:
    job = await line.cancelled(idempotency_key="k", body_hash="h")
    await line.one(Delete(job.id))
    outcome = await line.one(line.submit(idempotency_key="k", body_hash="other"))
    assert isinstance(outcome, Accepted)
    assert not outcome.replayed


# ---------------------------------------------------------------- the cap on waiting jobs


async def test_a_user_at_the_cap_is_turned_away(line: Line) -> None:
    outcomes = [await line.one(line.submit(max_waiting=2)) for _ in range(3)]
    assert [type(outcome) for outcome in outcomes] == [Accepted, Accepted, TooManyWaiting]
    assert await line.store.count(ALL) == 2


async def test_the_cap_counts_those_earlier_in_the_batch(line: Line) -> None:
    await line.submitted()
    outcomes = await line.commit(*(line.submit(max_waiting=3) for _ in range(4)))
    assert [type(outcome) for outcome in outcomes] == [Accepted, Accepted, TooManyWaiting, TooManyWaiting]


async def test_the_cap_counts_scheduled_and_retrying_but_neither_running_nor_finished_jobs(line: Line) -> None:
    await line.running()
    await line.cancelled()
    await line.submitted(due_at=line.clock.now + 9)
    retrying = await line.running()
    await line.one(_failed(line, retrying))
    assert isinstance(await line.one(line.submit(max_waiting=3)), Accepted)
    assert isinstance(await line.one(line.submit(max_waiting=3)), TooManyWaiting)


async def test_the_cap_is_per_user(line: Line) -> None:
    await line.submitted()
    outcomes = await line.commit(line.submit(user_id="bob", max_waiting=1), line.submit(max_waiting=1))
    assert [type(outcome) for outcome in outcomes] == [Accepted, TooManyWaiting]


async def test_a_replay_is_answered_even_at_the_cap(line: Line) -> None:
    first = line.submit("j1", idempotency_key="k", body_hash="h", max_waiting=1)
    await line.one(first)
    assert (await line.one(replace(first, job=replace(first.job, id="j2")))).replayed


async def test_one_that_was_turned_away_leaves_its_key_unused(line: Line) -> None:
    await line.submitted()
    assert isinstance(await line.one(line.submit(max_waiting=1, idempotency_key="k", body_hash="h")), TooManyWaiting)
    assert not (await line.one(line.submit(idempotency_key="k", body_hash="other"))).replayed


# ---------------------------------------------------------------- all or nothing


async def test_all_or_nothing_stores_nothing_when_one_is_turned_away(line: Line) -> None:
    await line.submitted("old", idempotency_key="k", body_hash="h")
    batch = [
        line.submit("a", idempotency_key="ka", body_hash="h"),
        line.submit("b", idempotency_key="k", body_hash="other"),
        line.submit("c", metadata_json="{}"),
    ]
    committed = await line.store.commit(batch, all_or_nothing=True)
    assert isinstance(committed.outcomes[1], IdempotencyMismatch)
    assert committed.changes == []
    assert [job.id for job in await _listed(line)] == ["old"]
    assert not (await line.one(line.submit("a", idempotency_key="ka", body_hash="now other"))).replayed


async def test_all_or_nothing_stores_all_when_none_is_turned_away_by_an_error(line: Line) -> None:
    old = await line.submitted("old", idempotency_key="k", body_hash="h")
    batch = [line.submit("a", max_waiting=5), line.submit("b", idempotency_key="k", body_hash="h")]
    committed = await line.store.commit(batch, all_or_nothing=True)
    assert committed.outcomes == [Accepted("a", old.seq + 1), Accepted("old", old.seq, replayed=True)]
    assert len(committed.changes) == 1


# ---------------------------------------------------------------- start


async def test_a_start_makes_the_job_running_and_returns_what_the_handler_needs(line: Line) -> None:
    job = await line.submitted(deadline_at=line.clock.now + 600, waits={"draw": 60})
    line.clock.forward(5)
    outcome = await line.one(line.start(job, lease="0:7", worker="w1", timeout=30.5))
    now = line.clock.now
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
    assert outcome.job == await line.job(job.id)
    assert line.changes == []


@pytest.mark.parametrize("wrong", [{"run": 7}, {"step": 1}, {"lease": "1:1"}, {"lease": "odd"}])
async def test_a_start_of_another_run_step_or_epoch_is_refused(line: Line, wrong: dict[str, Any]) -> None:
    job = await line.submitted()
    assert isinstance(await line.one(line.start(job, **wrong)), Refused)
    assert await line.job(job.id) == job


async def test_a_start_that_comes_twice_is_refused_the_second_time(line: Line) -> None:
    job = await line.submitted()
    running = await line.started(job)
    assert isinstance(await line.one(line.start(job)), Refused)
    assert isinstance(await line.one(line.start(running)), Refused)
    assert await line.job(job.id) == running


async def test_a_start_of_a_job_that_is_not_there_is_refused(line: Line) -> None:
    assert isinstance(await line.one(line.start(Job("none", "f", "u", ("draw",)))), Refused)


async def test_a_start_needs_the_epoch_that_its_scope_has_now(line: Line) -> None:
    old, new = await line.submitted(), await line.submitted()
    await line.one(RaiseEpoch("service:draw"))
    assert isinstance(await line.one(line.start(old, lease="0:9")), Refused)
    assert (await line.started(new, lease="1:1")).lease == "1:1"
    assert (await line.started(old, lease="0:9", scope="service:other")).lease == "0:9"


async def test_an_epoch_raised_in_the_same_batch_refuses_its_starts(line: Line) -> None:
    job = await line.submitted()
    start, raised = await line.commit(line.start(job, lease="0:1"), RaiseEpoch("service:draw"))
    assert isinstance(start, Refused)
    assert raised == Done(1)


async def test_starts_of_one_batch_get_each_their_own_job(line: Line) -> None:
    jobs = [await line.submitted(input_json=f"{n}") for n in range(4)]
    starts = [line.start(job, lease=f"0:{n}") for n, job in enumerate(jobs)]
    starts[2] = replace(starts[2], run=9)
    outcomes = await line.commit(*starts)
    assert isinstance(outcomes.pop(2), Refused)
    assert [(o.job.lease, o.input_json) for o in outcomes] == [("0:0", "0"), ("0:1", "1"), ("0:3", "3")]  # type: ignore[union-attr]


async def test_a_retry_keeps_when_the_job_was_first_started_and_its_error(line: Line) -> None:
    job = await line.running()
    await line.one(_failed(line, job))
    line.clock.forward(10)
    await line.one(transitions.due(await line.job(job.id), now=line.clock.now, waits={}))
    again = await line.started(await line.job(job.id))
    assert again.started_at == job.started_at
    assert again.call_started_at == line.clock.now
    assert again.attempt == 2
    assert again.error == {"code": "HTTP_503", "message": "busy"}


async def test_a_later_step_starts_with_the_results_of_the_earlier_ones(line: Line) -> None:
    job = await line.running(steps=("draw", "scale", "store"))
    for service in ("scale", "store"):
        data = f'{{"for":"{service}","x":[1,2.50,"\\u00e9"]}}'
        await line.one(line.done(job, data, '{"execution_time_ms":3}'))
        outcome = await line.one(line.start(await line.job(job.id)))
        job = outcome.job
    record = await line.store.get(job.id)
    assert record is not None
    assert orjson.loads(outcome.context_json) == context_of(record.results) == record.context
    assert list(record.context) == ["step_0_draw", "step_1_scale"]


async def test_the_context_has_the_newest_round_of_each_earlier_step_and_none_of_later_ones(line: Line) -> None:
    job = await line.running(steps=("draw", "scale", "store"))
    for data in ('"old"', '"later"'):
        await line.one(line.done(job, data))
        job = await line.started(await line.job(job.id))
    failure = Failure("PERMANENT", "no", retryable=False)
    await line.one(transitions.failed(job, failure, POLICY, now=line.clock.now, randomness=0))
    requeue = transitions.requeue(await line.job(job.id), now=line.clock.now, waits={}, from_start=True)
    await line.one(requeue)
    outcome = await line.one(line.start(await line.job(job.id)))
    assert outcome.context_json == "{}"
    await line.one(line.done(outcome.job, '"new"'))
    outcome = await line.one(line.start(await line.job(job.id)))
    assert orjson.loads(outcome.context_json) == {"step_0_draw": {"status": "SUCCESS", "data": "new", "metrics": {}}}
    assert outcome.context_json.count("step_0_draw") == 1


# ---------------------------------------------------------------- move


async def test_the_last_step_done_completes_the_job_and_keeps_its_result(line: Line) -> None:
    job = await line.running()
    line.clock.forward(2)
    told = await line.store.outbox(older_than=line.clock.now + 1, limit=9)
    assert await line.one(line.done(job, '{"url":"x"}')) == Done()
    assert line.changes == []
    assert len(await line.store.outbox(older_than=line.clock.now + 1, limit=9)) == len(told)
    record = await line.store.get(job.id)
    assert record is not None
    assert record.job.status is JobStatus.COMPLETED
    assert record.job.finished_at == record.job.last_progress_at == line.clock.now
    assert (record.job.lease, record.job.worker, record.job.call_deadline) == (None, None, None)
    assert record.result == {"url": "x"}


async def test_a_step_done_with_more_to_do_puts_the_job_back_in_line(line: Line) -> None:
    job = await line.running(steps=("draw", "scale"))
    await line.one(line.done(job))
    (change,) = line.changes
    assert change.job == await line.job(job.id)
    assert change.job is not None
    assert (change.job.step, change.job.run, change.job.attempt) == (1, job.run + 1, 0)


async def test_a_late_result_is_refused_and_leaves_nothing(line: Line) -> None:
    job = await line.running()
    await line.one(transitions.recover(job, now=line.clock.now, waits={}, max_attempts=3, hold=None))
    moved_on = await line.store.get(job.id)
    assert isinstance(await line.one(line.done(job)), Refused)
    assert await line.store.get(job.id) == moved_on
    assert line.changes == []


async def test_a_move_that_comes_twice_is_refused_the_second_time(line: Line) -> None:
    job = await line.running(steps=("draw", "scale"))
    move = line.done(job)
    await line.one(move)
    assert isinstance(await line.one(move), Refused)
    assert line.changes == []


async def test_of_a_batch_of_moves_only_the_matching_ones_change_something(line: Line) -> None:
    jobs = [await line.running(job_id=f"j{n}", steps=("draw", "scale")) for n in range(3)]
    moves = [line.done(job, f'"{job.id}"') for job in jobs]
    moves[1] = replace(moves[1], run=99)
    outcomes = await line.commit(*moves)
    assert [type(outcome) for outcome in outcomes] == [Done, Refused, Done]
    assert [change.job_id for change in line.changes] == [jobs[0].id, jobs[2].id]
    for job, stored in zip(jobs, (1, 0, 1), strict=True):
        record = await line.store.get(job.id)
        assert record is not None
        assert len(record.results) == stored
        assert all(result.data == job.id for result in record.results)


async def test_every_attempt_is_kept(line: Line) -> None:
    job = await line.started(await line.submitted(region="us"), region="eu")
    for _ in range(3):
        await line.one(_failed(line, job))
        job = await line.job(job.id)
        if job.status is JobStatus.RETRYING:
            line.clock.forward(60)
            await line.one(transitions.due(job, now=line.clock.now, waits={}))
            job = await line.started(await line.job(job.id))
    record = await line.store.get(job.id)
    assert record is not None
    assert record.job.status is JobStatus.FAILED
    assert [attempt.attempt for attempt in record.attempts] == [1, 2, 3]
    first = record.attempts[0]
    assert (first.error["code"], first.worker, first.region) == ("HTTP_503", "w1", "eu")
    assert first.started_at is not None


async def test_a_recovery_keeps_the_slot_of_a_call_that_may_still_compute(line: Line) -> None:
    job = await line.running()
    hold = Hold(job.id, "draw", "eu", line.clock.now + 30, "h1", band=3)
    await line.one(transitions.recover(job, now=line.clock.now, waits={}, max_attempts=3, hold=hold))
    assert await line.store.holds() == [hold]
    assert [change.job_id for change in line.changes] == [job.id]


async def test_a_hold_without_a_name_gets_one_and_two_of_a_job_are_kept(line: Line) -> None:
    job = await line.running()
    for _ in range(2):
        hold = Hold(job.id, "draw", None, line.clock.now + 30)
        await line.one(transitions.recover(job, now=line.clock.now, waits={}, max_attempts=3, hold=hold))
        job = await line.started(await line.job(job.id))
    holds = await line.store.holds()
    assert len({hold.id for hold in holds} - {""}) == 2


async def test_a_refused_recovery_holds_nothing(line: Line) -> None:
    job = await line.running()
    hold = Hold(job.id, "draw", None, line.clock.now + 30, "h1")
    move = transitions.recover(job, now=line.clock.now, waits={}, max_attempts=3, hold=hold)
    await line.one(line.done(job))
    assert isinstance(await line.one(move), Refused)
    assert await line.store.holds() == []


async def test_holds_end_at_their_deadline(line: Line) -> None:
    for seconds in (10, 20):
        job = await line.running()
        hold = Hold(job.id, "draw", None, line.clock.now + seconds, f"until {seconds}")
        await line.one(transitions.recover(job, now=line.clock.now, waits={}, max_attempts=3, hold=hold))
    assert await line.one(EndHolds(line.clock.now + 9)) == Done(0)
    assert await line.one(EndHolds(line.clock.now + 10)) == Done(1)
    assert [hold.id for hold in await line.store.holds()] == ["until 20"]


async def test_a_promotion_keeps_the_place_in_time_and_what_the_job_was(line: Line) -> None:
    job = await line.submitted(priority=Priority.LOW, original_priority=Priority.LOW)
    line.clock.forward(1800)
    await line.one(transitions.promote(job, now=line.clock.now, waits={}))
    promoted = await line.job(job.id)
    assert promoted == replace(job, priority=Priority.MEDIUM, promoted_at=line.clock.now, run=job.run + 1)
    assert [change.job for change in line.changes] == [promoted]


async def test_a_cancel_of_a_waiting_job_tells_the_line(line: Line) -> None:
    job = await line.cancelled()
    assert [change.job for change in line.changes] == [job]
    assert job.status is JobStatus.CANCELLED


async def test_another_priority_moves_a_waiting_job_and_promises_it_no_promotion(line: Line) -> None:
    job = await line.submitted(priority=Priority.MEDIUM)
    line.clock.forward(100)
    await line.one(transitions.prioritise(job, Priority.LOW, now=line.clock.now, waits={}))
    lowered = await line.job(job.id)
    assert lowered == replace(job, priority=Priority.LOW, queued_at=line.clock.now, run=job.run + 1)
    assert [change.job for change in line.changes] == [lowered]


@pytest.mark.parametrize("status", [JobStatus.RUNNING, JobStatus.SCHEDULED])
async def test_another_priority_of_a_job_that_is_not_in_line_changes_nothing_else(
    line: Line, status: JobStatus
) -> None:
    job = await (line.running() if status is JobStatus.RUNNING else line.submitted(due_at=line.clock.now + 60))
    line.clock.forward(100)
    raised = transitions.prioritise(job, Priority.HIGH, now=line.clock.now, waits={})
    assert await line.one(raised) == Done()
    assert line.changes == []
    assert await line.job(job.id) == replace(job, priority=Priority.HIGH, promoted_at=line.clock.now)
    # Twice is once, and the call's own end is not refused for it.
    assert await line.one(raised) == Done()
    if status is JobStatus.RUNNING:
        assert await line.one(line.done(job)) == Done()
        assert isinstance(await line.one(raised), Refused)


# ---------------------------------------------------------------- progress and delete


async def test_progress_is_kept_but_is_no_move(line: Line) -> None:
    job = await line.running()
    line.clock.forward(3)
    assert await line.one(Progress(job.id, job.run, {"percent": 50})) == Done()
    assert await line.job(job.id) == replace(job, progress={"percent": 50}, last_progress_at=line.clock.now)
    assert line.changes == []
    assert await line.one(line.done(job)) == Done()
    assert (await line.job(job.id)).progress is None


async def test_progress_of_an_earlier_run_is_refused(line: Line) -> None:
    job = await line.running()
    await line.one(line.done(job))
    assert isinstance(await line.one(Progress(job.id, job.run, {"percent": 99})), Refused)


async def test_a_finished_job_can_be_deleted_with_everything_beside_it(line: Line) -> None:
    job = await line.completed(metadata_json="{}")
    assert await line.one(Delete(job.id)) == Done()
    assert await line.store.get(job.id) is None
    assert isinstance(await line.one(Delete(job.id)), Refused)
    # A job under the same id is a new one.
    record = await line.store.get((await line.submitted(job.id)).id)
    assert record is not None
    assert record.results == ()


async def test_an_open_job_cannot_be_deleted(line: Line) -> None:
    waiting, running = await line.submitted(), await line.running()
    outcomes = await line.commit(Delete(waiting.id), Delete(running.id), Delete("none"))
    assert all(isinstance(outcome, Refused) for outcome in outcomes)
    assert await line.store.count(ALL) == 2


async def test_prune_removes_what_was_kept_long_enough_and_tells_how_many(line: Line) -> None:
    old = [await line.completed(), await line.cancelled(), await line.failed()]
    line.clock.forward(100)
    young = [await line.completed(), await line.failed(), await line.submitted()]
    middle = line.clock.now - 50
    assert await line.one(Prune(middle, failed_before=0, limit=10)) == Done(2)
    assert await line.store.get(old[2].id) is not None
    assert await line.one(Prune(middle, middle, limit=10)) == Done(1)
    assert {job.id for job in await _listed(line)} == {job.id for job in young}


async def test_prune_stops_at_its_limit(line: Line) -> None:
    for _ in range(3):
        await line.cancelled()
    later = line.clock.now + 1
    assert await line.one(Prune(later, later, limit=2)) == Done(2)
    assert await line.one(Prune(later, later, limit=2)) == Done(1)


async def _listed(line: Line, **where: Any) -> list[Job]:
    return await line.store.list_jobs(JobFilter(**where), before_seq=None, limit=100)


def _failed(line: Line, job: Job) -> Any:
    return transitions.failed(job, SOON_OVER, POLICY, now=line.clock.now, randomness=0.5)


async def test_where_a_call_is_stands_in_the_row_until_it_ends(line: Line) -> None:
    job = await line.started(await line.submitted(region="us", allowed_regions=("eu", "us")), region="eu")
    assert (await line.job(job.id)).call_region == "eu"
    (running,) = await line.store.running()
    assert (running.region, running.call_region) == ("us", "eu")
    await line.one(line.done(job))
    assert (await line.job(job.id)).call_region is None


async def test_that_a_job_spilled_is_kept(line: Line) -> None:
    job = await line.submitted(region="us", region_step=0, spill_after=5.0)
    assert job.timer_at == line.clock.now + 5
    line.clock.forward(5)
    rung = (await line.one(RingTimers(line.clock.now, 9, {}))).value
    assert [move.verb for _, move in rung.moves] == ["spill"]
    job = await line.job(job.id)
    assert (job.spill_after, job.spilled_at, job.bound_to) == (5.0, line.clock.now, None)
    await line.one(transitions.promote(job, now=line.clock.now + 1, waits={}))
    assert (await line.job(job.id)).spilled_at == line.clock.now
