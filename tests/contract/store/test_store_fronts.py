"""The readers of the jobs that fronts submit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fairlead.domain import transitions
from fairlead.domain.job import JobStatus
from fairlead.domain.retry import Backoff, Failure, RetryPolicy
from fairlead.domain.transitions import Start, Submit
from fairlead.store.port import Accepted, ChangeReader, Done, Erase, RaiseEpoch, Refused, Started
from tests.contract.stores import StoreHarness


async def test_the_newest_key_of_a_fingerprint_is_found(harness: StoreHarness) -> None:
    await harness.submitted(idempotency_key="openai:aa:1", body_hash="b@p1/r1")
    newest = await harness.submitted(idempotency_key="openai:aa:2", body_hash="b@p1/r2")
    await harness.submitted(idempotency_key="openai:ab:9", body_hash="b@p1/r3")
    await harness.submitted(idempotency_key="openai:aa:3", body_hash="b@p1/r4", user_id="bob")
    assert await harness.store.newest_submit("ann", "openai:aa:") == ("openai:aa:2", newest.id, "b@p1/r2")
    assert await harness.store.newest_submit("ann", "openai:a:") is None
    assert await harness.store.newest_submit("eve", "openai:aa:") is None


async def test_a_reader_is_replaced_only_by_one_who_has_seen_it(harness: StoreHarness) -> None:
    job = await harness.submitted(idempotency_key="openai:aa:1", body_hash="b@p1/r1")
    assert isinstance(await harness.one(ChangeReader("ann", "openai:aa:1", "b@p1/r1", "b@p2/r2")), Done)
    assert isinstance(await harness.one(ChangeReader("ann", "openai:aa:1", "b@p1/r1", "b@p3/r3")), Refused)
    assert isinstance(await harness.one(ChangeReader("ann", "openai:aa:2", "b@p2/r2", "b@p3/r3")), Refused)
    assert await harness.store.newest_submit("ann", "openai:aa:") == ("openai:aa:1", job.id, "b@p2/r2")


async def test_only_open_jobs_of_fronts_have_readers(harness: StoreHarness) -> None:
    waiting = await harness.submitted(idempotency_key="openai:aa:1", body_hash="b@p1/r1")
    running = await harness.running(idempotency_key="openai:aa:2", body_hash="b@p1/r2", user_id="bob")
    await harness.completed(idempotency_key="openai:aa:3", body_hash="b@p1/r3")
    await harness.submitted(idempotency_key="mine", body_hash="b@p1/r4")
    await harness.submitted(idempotency_key="openai:mine", body_hash="a hash")
    await harness.submitted()
    found = await harness.store.front_readers(10)
    assert sorted(found) == sorted([(waiting.id, "b@p1/r1"), (running.id, "b@p1/r2")])
    assert len(await harness.store.front_readers(1)) == 1


# ---------------------------------------------------------------- accepted and started in one commit


def chain(harness: StoreHarness, number: int, lease: str = "0:1", **fields: Any) -> tuple[Submit, Start]:
    fields = {"idempotency_key": f"openai:aa:{number}", "body_hash": "b@p1/r1", "deadline_at": 1e9, **fields}
    submit = harness.submit(**fields, waits={"draw": 60.0})
    return submit, harness.start(submit.job, lease=lease, user_id="ann", service="draw")


async def test_a_job_that_starts_in_its_submit_is_the_same_as_one_that_starts_later(harness: StoreHarness) -> None:
    (submit, start), (other_submit, other_start) = chain(harness, 1), chain(harness, 2)
    await harness.one(other_submit)
    later = await harness.one(other_start)
    for one, another in (chain(harness, 3), (submit, start)):  # the scope is known for the second one
        accepted, started = await harness.commit(one, another)
        assert harness.changes == []
        assert isinstance(accepted, Accepted)
        assert isinstance(started, Started)
        assert started.job == await harness.job(another.job_id)
        assert started.job.seq == accepted.seq
    changed = {"id": submit.job.id, "seq": accepted.seq}
    assert Started(replace(later.job, **changed), later.input_json, later.context_json) == started
    assert [entry.job_id for entry in await harness.store.outbox(older_than=1e12, limit=9)] == [other_submit.job.id]
    assert await harness.one(harness.done(started.job)) == Done()


async def test_a_job_whose_lease_is_outdated_is_accepted_and_waits(harness: StoreHarness) -> None:
    await harness.running()  # the scope is known
    await harness.one(RaiseEpoch("service:draw"))
    submits = chain(harness, 1, "0:2"), chain(harness, 2, "1:1"), chain(harness, 3, "0:3")
    outcomes = await harness.commit(*(each for pair in submits for each in pair))
    assert [type(outcome) for outcome in outcomes] == [Accepted, Refused, Accepted, Started, Accepted, Refused]
    waiting = [submits[0][0].job.id, submits[2][0].job.id]
    assert [change.job_id for change in harness.changes] == waiting
    assert [change.job.status for change in harness.changes if change.job is not None] == [JobStatus.PENDING] * 2
    outbox = await harness.store.outbox(older_than=1e12, limit=9)
    assert {entry.outbox_id for entry in harness.changes} <= {entry.outbox_id for entry in outbox}


async def test_a_key_that_is_known_starts_nothing(harness: StoreHarness) -> None:
    first = await harness.running(idempotency_key="openai:aa:1", body_hash="b@p1/r1")
    submit, start = chain(harness, 1)
    again, refused = await harness.commit(submit, start)
    assert again == Accepted(first.id, first.seq, replayed=True)
    assert isinstance(refused, Refused)
    assert await harness.store.get_jobs([submit.job.id]) == {}


async def test_starts_of_new_and_of_waiting_jobs_share_a_commit(harness: StoreHarness) -> None:
    await harness.commit(RaiseEpoch("service:late", "s1"))
    waiting = await harness.submitted()
    (first, begins), (late, too_late), plain = chain(harness, 1), chain(harness, 2), harness.submit()
    too_late = replace(too_late, scope="service:late")  # the epoch of its lease is 0
    batch = first, begins, harness.start(waiting, lease="0:9"), late, too_late, plain
    outcomes = await harness.commit(*batch)
    jobs = await harness.store.get_jobs([first.job.id, waiting.id, late.job.id, plain.job.id])
    assert [type(outcome) for outcome in outcomes] == [Accepted, Started, Started, Accepted, Refused, Accepted]
    assert [outcomes[1], outcomes[2]] == [
        Started(jobs[first.job.id], first.input_json, "{}"),
        Started(jobs[waiting.id], first.input_json, "{}"),
    ]
    assert [jobs[job].status for job in (late.job.id, plain.job.id)] == [JobStatus.PENDING, JobStatus.PENDING]
    assert [(entry.job_id, entry.job) for entry in harness.changes] == [
        (late.job.id, jobs[late.job.id]),
        (plain.job.id, jobs[plain.job.id]),
    ]


async def test_a_start_that_does_not_fit_its_new_job_leaves_it_waiting(harness: StoreHarness) -> None:
    submit, start = chain(harness, 1)
    accepted, refused = await harness.commit(submit, replace(start, run=3))
    assert (type(accepted), type(refused)) == (Accepted, Refused)
    assert (await harness.job(submit.job.id)).status is JobStatus.PENDING
    assert [entry.job_id for entry in harness.changes] == [submit.job.id]


ALL: dict[str, Any] = {"after": (0.0, 0), "before": 1e12, "limit": 100}


async def test_the_requests_and_answers_of_ended_jobs_are_erased(harness: StoreHarness) -> None:
    job = await harness.running(idempotency_key="openai:aa:1", body_hash="b@p1/r1", input_json='{"body":"secret"}')
    metrics = '{"usage":{"total_tokens":3},"output_chunks":2,"output_run":2}'
    await harness.one(harness.done(job, '"secret"', metrics))
    running = await harness.running(idempotency_key="openai:aa:2", body_hash="b@p1/r2", user_id="bob")
    other = await harness.completed()
    assert await harness.one(Erase((job.id, running.id))) == Done(1)
    record = await harness.store.get(job.id)
    assert record is not None
    assert (record.input_data, record.result) == ({"kept": "nothing"}, None)
    assert record.results[0].metrics == {"usage": {"total_tokens": 3}}
    assert await harness.store.newest_submit("ann", "openai:aa:") is None
    assert await harness.store.newest_submit("bob", "openai:aa:") is not None
    untouched = await harness.store.get(other.id)
    assert untouched is not None
    assert untouched.result == {"url": "x"}


async def test_erased_errors_keep_their_codes(harness: StoreHarness) -> None:
    job = await harness.running(idempotency_key="openai:aa:1", body_hash="b@p1/r1")
    failure = Failure("UPSTREAM_ERROR", "secret", retryable=True, http_status=500)
    policy = RetryPolicy(1, Backoff(explicit=(1.0,)))
    await harness.one(transitions.failed(job, failure, policy, now=harness.clock.now, randomness=0.5))
    assert await harness.one(Erase((job.id,))) == Done(1)
    record = await harness.store.get(job.id)
    assert record is not None
    assert "secret" not in repr(record)
    assert record.job.error is not None
    assert (record.job.error["code"], record.job.error["http_status"], record.job.error["attempts"]) == (
        *("UPSTREAM_ERROR", 500),
        1,
    )
    assert record.attempts[0].error["code"] == "UPSTREAM_ERROR"
    assert record.job.retryable is False


async def test_ended_jobs_of_fronts_are_found_once_page_by_page(harness: StoreHarness) -> None:
    ended = [
        await harness.completed(idempotency_key=f"openai:aa:{number}", body_hash=f"b@p/{number}") for number in range(5)
    ]
    await harness.completed(idempotency_key="mine")
    cancelled = await harness.cancelled(idempotency_key="openai:ab:1", body_hash="b@p/c")
    await harness.submitted(idempotency_key="openai:ab:2", body_hash="b@p/o")
    found, after = list[str](), (0.0, 0)
    for _ in range(4):
        page = await harness.store.ended_fronts(JobStatus.COMPLETED, after=after, before=1e12, limit=2)
        found += page.job_ids
        if page.last is None:
            break
        after = page.last
    assert found == [job.id for job in ended]
    assert (await harness.store.ended_fronts(JobStatus.CANCELLED, **ALL)).job_ids == [cancelled.id]
    assert (await harness.store.ended_fronts(JobStatus.COMPLETED, **{**ALL, "before": 0.0})).job_ids == []
    await harness.one(Erase((ended[0].id,)))
    assert (await harness.store.ended_fronts(JobStatus.COMPLETED, **ALL)).job_ids == found[1:]
