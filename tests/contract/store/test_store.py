"""Every rule that a store must keep, on each engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlead.domain import transitions
from fairlead.domain.job import Job, JobStatus, Priority
from fairlead.domain.retry import Failure, RetryPolicy
from fairlead.domain.transitions import Delete, Progress
from fairlead.errors import IdempotencyMismatch, InvalidInput, StoreError, TooManyWaiting, Unavailable
from fairlead.store.port import Accepted, Done, FireTimers, JobFilter, Prune, Refused
from tests.contract.stores import StoreHarness

SOON_OVER = Failure("HTTP_503", "busy", retryable=True)
POLICY = RetryPolicy()
ALL = JobFilter()


# ---------------------------------------------------------------- submit


async def test_a_submitted_job_can_be_read_back_with_everything_given(harness: StoreHarness) -> None:
    submit = harness.submit(
        "j1",
        steps=("draw", "scale"),
        priority=Priority.LOW,
        original_priority=Priority.HIGH,
        deadline_at=harness.clock.now + 60,
        cost=2.5,
        weight=0.1,
        region="eu",
        allowed_regions=("eu", "us"),
        priority_source="service",
        input_json='{"prompt":"ein \\"Hund\\" 🐕\\u0000"}',
        metadata_json='{"tag":"x"}',
    )
    accepted = await harness.one(submit)
    assert accepted == Accepted("j1", accepted.seq)
    record = await harness.store.get("j1")
    assert record is not None
    assert record.job == replace(submit.job, seq=accepted.seq)
    assert record.input_json == submit.input_json
    assert record.metadata_json == '{"tag":"x"}'
    assert record.results == ()
    assert record.attempts == ()


async def test_jobs_are_numbered_in_the_order_of_the_batch_and_of_the_commits(harness: StoreHarness) -> None:
    first = await harness.commit(*(harness.submit() for _ in range(5)))
    second = await harness.commit(*(harness.submit() for _ in range(3)))
    numbers = [accepted.seq for accepted in (*first, *second)]  # type: ignore[union-attr]
    assert numbers == sorted(set(numbers))


async def test_the_seq_of_a_deleted_job_is_not_reused(harness: StoreHarness) -> None:
    job = await harness.cancelled()
    await harness.one(Delete(job.id))
    assert (await harness.submitted()).seq > job.seq


async def test_a_pending_submit_writes_an_outbox_row(harness: StoreHarness) -> None:
    submit = harness.submit("j1")
    accepted = await harness.one(submit)
    (change,) = harness.changes
    assert (change.job_id, change.job) == ("j1", replace(submit.job, seq=accepted.seq))


async def test_outbox_entries_name_the_right_jobs_when_some_of_the_batch_are_not_queued(harness: StoreHarness) -> None:
    later = harness.clock.now + 60
    await harness.commit(
        harness.submit("a"),
        harness.submit("b", due_at=later),
        harness.submit("c", idempotency_key="k", body_hash="1"),
        harness.submit("d", idempotency_key="k", body_hash="1"),
        harness.submit("e"),
    )
    jobs = await harness.store.get_jobs(["a", "c", "e"])
    assert [(change.job_id, change.job) for change in harness.changes] == list(jobs.items())
    assert await harness.store.outbox(older_than=harness.clock.now + 1, limit=10) == harness.changes


async def test_a_scheduled_submit_writes_no_outbox_row(harness: StoreHarness) -> None:
    job = await harness.submitted(due_at=harness.clock.now + 60)
    assert job.status is JobStatus.SCHEDULED
    assert harness.changes == []
    assert await harness.store.outbox(older_than=harness.clock.now + 99, limit=10) == []


async def test_inputs_stay_with_their_jobs_when_one_of_the_batch_is_refused(harness: StoreHarness) -> None:
    await harness.submitted("old", idempotency_key="k", body_hash="1")
    batch = [harness.submit(f"j{n}", input_json=f"{n}", metadata_json=f'{{"n":{n}}}') for n in range(4)]
    batch[1] = replace(batch[1], idempotency_key="k", body_hash="1")
    await harness.commit(*batch)
    for n in (0, 2, 3):
        record = await harness.store.get(f"j{n}")
        assert record is not None
        assert (record.input_data, record.metadata) == (n, {"n": n})
    assert await harness.store.get("j1") is None


@pytest.mark.parametrize("different", [(), ("user_id", "turn"), ("input_json", "metadata_json"), ("everything",)])
async def test_each_job_of_a_batch_is_stored_exactly_whatever_it_shares_with_the_others(
    harness: StoreHarness, different: tuple[str, ...]
) -> None:
    now = harness.clock.now
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
        harness.submit(),
        harness.submit(**unlike),
        harness.submit(),
        harness.submit(
            user_id="\x01\x02",
            **{name: value for name, value in unlike.items() if name not in ("user_id", "idempotency_key")},
        ),
    ]
    accepted = await harness.commit(*batch)
    for submit, outcome in zip(batch, accepted, strict=True):
        record = await harness.store.get(submit.job.id)
        assert record is not None
        assert isinstance(outcome, Accepted)
        assert (record.job, outcome.job_id) == (replace(submit.job, seq=outcome.seq), submit.job.id)
        assert (record.input_json, record.metadata_json) == (submit.input_json, submit.metadata_json)
    assert [outcome.seq for outcome in accepted] == sorted(outcome.seq for outcome in accepted)
    assert [change.job for change in harness.changes] == [
        submit.job for submit in batch if submit.job.status is JobStatus.PENDING
    ]


async def test_an_existing_job_id_fails_the_whole_batch(harness: StoreHarness) -> None:
    await harness.submitted("j1")
    with pytest.raises(Exception, match=r"(?i)unique") as raised:
        await harness.commit(harness.submit("j0"), harness.submit("j1"))
    assert not isinstance(raised.value, Unavailable | StoreError)
    assert await harness.store.count(ALL) == 1


async def test_a_name_with_nul_is_refused_as_invalid(harness: StoreHarness) -> None:
    with pytest.raises(InvalidInput):
        await harness.commit(harness.submit(user_id="ann\0bob"))
    assert await harness.store.count(ALL) == 0


async def test_times_are_kept_to_the_microsecond(harness: StoreHarness) -> None:
    harness.clock.now = 1_712_345_678.123457
    assert (await harness.submitted()).created_at == 1_712_345_678.123457


async def test_unusual_names_are_stored_exactly(harness: StoreHarness) -> None:
    name = 'Zoë "O\'Neill" \\ \n\t\x1f 雪 🐕 ]}'
    job = await harness.started(await harness.submitted(user_id=name, feature_name=name), worker=name)
    assert (job.user_id, job.feature_name, job.worker) == (name, name, name)
    assert [found.id for found in await _listed(harness, user_id=name, feature_name=name)] == [job.id]


# ---------------------------------------------------------------- idempotency


async def test_the_same_key_and_body_returns_the_first_job(harness: StoreHarness) -> None:
    first = await harness.one(harness.submit("j1", idempotency_key="k", body_hash="h"))
    again = await harness.one(harness.submit("j2", idempotency_key="k", body_hash="h"))
    assert again == Accepted("j1", first.seq, replayed=True)
    assert harness.changes == []
    assert await harness.store.count(ALL) == 1


async def test_the_same_key_with_another_body_is_a_mismatch(harness: StoreHarness) -> None:
    await harness.submitted("j1", idempotency_key="k", body_hash="h")
    assert isinstance(
        await harness.one(harness.submit("j2", idempotency_key="k", body_hash="other")), IdempotencyMismatch
    )
    assert await harness.store.count(ALL) == 1


async def test_equal_keys_within_one_batch_make_one_job(harness: StoreHarness) -> None:
    first, again, other = await harness.commit(
        harness.submit("j1", idempotency_key="k", body_hash="h"),
        harness.submit("j2", idempotency_key="k", body_hash="h"),
        harness.submit("j3", idempotency_key="k", body_hash="other"),
    )
    assert isinstance(first, Accepted)
    assert again == Accepted("j1", first.seq, replayed=True)
    assert isinstance(other, IdempotencyMismatch)
    assert [job.id for job in await _listed(harness)] == ["j1"]


async def test_a_retry_with_the_same_job_id_is_a_replay_too(harness: StoreHarness) -> None:
    submit = harness.submit("j1", idempotency_key="k", body_hash="h", metadata_json="{}")
    first = await harness.one(submit)
    assert await harness.one(submit) == Accepted("j1", first.seq, replayed=True)


async def test_new_and_known_keys_share_a_batch(harness: StoreHarness) -> None:
    known = harness.submit("j1", idempotency_key="known", body_hash="h")
    first = await harness.one(known)
    new, retried, other, again, without = await harness.commit(
        harness.submit("j2", idempotency_key="new", body_hash="h"),
        known,
        harness.submit("j3", idempotency_key="known", body_hash="other"),
        harness.submit("j4", idempotency_key="new", body_hash="h"),
        harness.submit("j5"),
    )
    assert isinstance(new, Accepted)
    assert isinstance(without, Accepted)
    assert retried == Accepted("j1", first.seq, replayed=True)
    assert isinstance(other, IdempotencyMismatch)
    assert again == Accepted("j2", new.seq, replayed=True)
    assert {job.id for job in await _listed(harness)} == {"j1", "j2", "j5"}


async def test_keys_are_per_user(harness: StoreHarness) -> None:
    await harness.submitted(idempotency_key="k", body_hash="h")
    outcome = await harness.one(harness.submit(user_id="bob", idempotency_key="k", body_hash="other"))
    assert isinstance(outcome, Accepted)
    assert not outcome.replayed


async def test_a_key_is_forgotten_with_its_job(harness: StoreHarness) -> None:
    job = await harness.cancelled(idempotency_key="k", body_hash="h")
    await harness.one(Delete(job.id))
    outcome = await harness.one(harness.submit(idempotency_key="k", body_hash="other"))
    assert isinstance(outcome, Accepted)
    assert not outcome.replayed


# ---------------------------------------------------------------- the cap on waiting jobs


async def test_a_user_at_the_limit_is_refused(harness: StoreHarness) -> None:
    outcomes = [await harness.one(harness.submit(max_waiting=2)) for _ in range(3)]
    assert [type(outcome) for outcome in outcomes] == [Accepted, Accepted, TooManyWaiting]
    assert await harness.store.count(ALL) == 2


async def test_the_cap_counts_jobs_earlier_in_the_batch(harness: StoreHarness) -> None:
    await harness.submitted()
    outcomes = await harness.commit(*(harness.submit(max_waiting=3) for _ in range(4)))
    assert [type(outcome) for outcome in outcomes] == [Accepted, Accepted, TooManyWaiting, TooManyWaiting]


async def test_the_cap_counts_scheduled_and_retrying_but_neither_running_nor_finished_jobs(
    harness: StoreHarness,
) -> None:
    await harness.running()
    await harness.cancelled()
    await harness.submitted(due_at=harness.clock.now + 9)
    retrying = await harness.running()
    await harness.one(_failed(harness, retrying))
    assert isinstance(await harness.one(harness.submit(max_waiting=3)), Accepted)
    assert isinstance(await harness.one(harness.submit(max_waiting=3)), TooManyWaiting)


async def test_the_cap_is_per_user(harness: StoreHarness) -> None:
    await harness.submitted()
    outcomes = await harness.commit(harness.submit(user_id="bob", max_waiting=1), harness.submit(max_waiting=1))
    assert [type(outcome) for outcome in outcomes] == [Accepted, TooManyWaiting]


async def test_a_replay_is_answered_even_at_the_cap(harness: StoreHarness) -> None:
    first = harness.submit("j1", idempotency_key="k", body_hash="h", max_waiting=1)
    await harness.one(first)
    assert (await harness.one(replace(first, job=replace(first.job, id="j2")))).replayed


async def test_a_refused_submit_leaves_its_key_unused(harness: StoreHarness) -> None:
    await harness.submitted()
    assert isinstance(
        await harness.one(harness.submit(max_waiting=1, idempotency_key="k", body_hash="h")), TooManyWaiting
    )
    assert not (await harness.one(harness.submit(idempotency_key="k", body_hash="other"))).replayed


# ---------------------------------------------------------------- all or nothing


async def test_all_or_nothing_stores_nothing_when_one_is_refused(harness: StoreHarness) -> None:
    await harness.submitted("old", idempotency_key="k", body_hash="h")
    batch = [
        harness.submit("a", idempotency_key="ka", body_hash="h"),
        harness.submit("b", idempotency_key="k", body_hash="other"),
        harness.submit("c", metadata_json="{}"),
    ]
    committed = await harness.store.commit(batch, all_or_nothing=True)
    assert isinstance(committed.outcomes[1], IdempotencyMismatch)
    assert committed.changes == []
    assert [job.id for job in await _listed(harness)] == ["old"]
    assert not (await harness.one(harness.submit("a", idempotency_key="ka", body_hash="now other"))).replayed


async def test_all_or_nothing_stores_all_when_none_is_refused_with_an_error(harness: StoreHarness) -> None:
    old = await harness.submitted("old", idempotency_key="k", body_hash="h")
    batch = [harness.submit("a", max_waiting=5), harness.submit("b", idempotency_key="k", body_hash="h")]
    committed = await harness.store.commit(batch, all_or_nothing=True)
    assert committed.outcomes == [Accepted("a", old.seq + 1), Accepted("old", old.seq, replayed=True)]
    assert len(committed.changes) == 1


# ---------------------------------------------------------------- progress and delete


async def test_progress_is_stored_without_a_new_run(harness: StoreHarness) -> None:
    job = await harness.running()
    harness.clock.forward(3)
    assert await harness.one(Progress(job.id, job.run, {"percent": 50})) == Done()
    assert await harness.job(job.id) == replace(job, progress={"percent": 50}, last_progress_at=harness.clock.now)
    assert harness.changes == []
    assert await harness.one(harness.done(job)) == Done()
    assert (await harness.job(job.id)).progress is None


async def test_progress_of_an_earlier_run_is_refused(harness: StoreHarness) -> None:
    job = await harness.running()
    await harness.one(harness.done(job))
    assert isinstance(await harness.one(Progress(job.id, job.run, {"percent": 99})), Refused)


async def test_a_finished_job_is_deleted_with_all_its_rows(harness: StoreHarness) -> None:
    job = await harness.completed(metadata_json="{}")
    assert await harness.one(Delete(job.id)) == Done()
    assert await harness.store.get(job.id) is None
    assert isinstance(await harness.one(Delete(job.id)), Refused)
    # A job with the same id is a new one.
    record = await harness.store.get((await harness.submitted(job.id)).id)
    assert record is not None
    assert record.results == ()


async def test_an_open_job_cannot_be_deleted(harness: StoreHarness) -> None:
    waiting, running = await harness.submitted(), await harness.running()
    outcomes = await harness.commit(Delete(waiting.id), Delete(running.id), Delete("none"))
    assert all(isinstance(outcome, Refused) for outcome in outcomes)
    assert await harness.store.count(ALL) == 2


async def test_prune_deletes_jobs_past_their_retention_and_returns_their_number(harness: StoreHarness) -> None:
    old = [await harness.completed(), await harness.cancelled(), await harness.failed()]
    harness.clock.forward(100)
    young = [await harness.completed(), await harness.failed(), await harness.submitted()]
    middle = harness.clock.now - 50
    assert await harness.one(Prune(middle, failed_before=0, limit=10)) == Done(2)
    assert await harness.store.get(old[2].id) is not None
    assert await harness.one(Prune(middle, middle, limit=10)) == Done(1)
    assert {job.id for job in await _listed(harness)} == {job.id for job in young}


async def test_prune_stops_at_its_limit(harness: StoreHarness) -> None:
    for _ in range(3):
        await harness.cancelled()
    later = harness.clock.now + 1
    assert await harness.one(Prune(later, later, limit=2)) == Done(2)
    assert await harness.one(Prune(later, later, limit=2)) == Done(1)


async def _listed(harness: StoreHarness, **where: Any) -> list[Job]:
    return await harness.store.list_jobs(JobFilter(**where), before_seq=None, limit=100)


def _failed(harness: StoreHarness, job: Job) -> Any:
    return transitions.failed(job, SOON_OVER, POLICY, now=harness.clock.now, randomness=0.5)


async def test_the_row_has_the_region_of_a_call_until_it_ends(harness: StoreHarness) -> None:
    job = await harness.started(await harness.submitted(region="us", allowed_regions=("eu", "us")), region="eu")
    assert (await harness.job(job.id)).call_region == "eu"
    (running,) = await harness.store.running()
    assert (running.region, running.call_region) == ("us", "eu")
    await harness.one(harness.done(job))
    assert (await harness.job(job.id)).call_region is None


async def test_the_spilled_flag_is_stored(harness: StoreHarness) -> None:
    job = await harness.submitted(region="us", region_step=0, spill_after=5.0)
    assert job.timer_at == harness.clock.now + 5
    harness.clock.forward(5)
    rung = (await harness.one(FireTimers(harness.clock.now, 9, {}))).value
    assert [move.verb for _, move in rung.moves] == ["spill"]
    job = await harness.job(job.id)
    assert (job.spill_after, job.spilled_at, job.bound_to) == (5.0, harness.clock.now, None)
    await harness.one(transitions.promote(job, now=harness.clock.now + 1, waits={}))
    assert (await harness.job(job.id)).spilled_at == harness.clock.now
