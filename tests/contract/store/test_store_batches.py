"""Batches in the store: created as a whole or not at all, counted from their jobs, and settled exactly while all have
ended."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from fairlead.domain import transitions
from fairlead.domain.batch import Batch, BatchItem
from fairlead.domain.job import Attempt, JobStatus
from fairlead.domain.transitions import Delete, Submit
from fairlead.errors import InvalidInput, TooManyWaiting
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import CreateBatch, Done, KeyTaken, Prune, PruneBatches, Refused, SettleBatch
from tests.contract.stores import START_OF_TIME, StoreHarness

ODD = 'Zoë "O\'Neill" \\ \n 雪 ]}'


def create(id_: str, submits: list[Submit], custom: list[str | None] | None = None, **fields: Any) -> CreateBatch:
    about = {name: fields.pop(name) for name in ("name", "metadata_json") if name in fields}
    user_id = fields.pop("user_id", "ann")
    items = tuple(
        BatchItem(n, custom[n] if custom is not None else None, submit.job.id) for n, submit in enumerate(submits)
    )
    return CreateBatch(Batch(id_, user_id, len(submits), START_OF_TIME, **about), items, **fields)


async def made(
    harness: StoreHarness, id_: str, size: int, custom: list[str | None] | None = None, **fields: Any
) -> list[str]:
    """The ids of its jobs."""
    submits = [harness.submit(f"{id_}-{n}") for n in range(size)]
    outcomes = await harness.commit(*submits, create(id_, submits, custom, **fields))
    assert outcomes[-1] == Done()
    return [submit.job.id for submit in submits]


async def test_a_job_s_batch_is_found_with_its_item(harness: StoreHarness) -> None:
    jobs = await made(harness, "b1", 2, ["first", None], name="survey")
    assert await harness.store.batch_of_job(jobs[0]) == ("b1", "survey", 0, "first")
    assert await harness.store.batch_of_job(jobs[1]) == ("b1", "survey", 1, None)
    assert await harness.store.batch_of_job("nothing") is None


async def complete(harness: StoreHarness, job_id: str) -> None:
    job = await harness.started(await harness.job(job_id))
    assert await harness.one(harness.done(job)) == Done()


async def fail(harness: StoreHarness, job_id: str) -> None:
    job = await harness.started(await harness.job(job_id))
    error, now = {"code": "X", "message": "no"}, harness.clock.now
    move = transitions.Move(
        *(job.id, job.run, "fail", JobStatus.FAILED, job.step, job.attempt, job.round),
        tells_line=False,
        finished_at=now,
        retryable=True,
        error=error,
        failed=Attempt(job.id, job.step, "draw", job.round, job.attempt, {**error, "traceback": "long"}, now, now),
    )
    assert await harness.one(move) == Done()


async def revive(harness: StoreHarness, job_id: str) -> None:
    move = transitions.resume(await harness.job(job_id), now=harness.clock.now, waits={})
    assert await harness.one(move) == Done()


async def settle(harness: StoreHarness, id_: str) -> bool:
    return isinstance(await harness.one(SettleBatch(id_, harness.clock.now)), Done)


async def test_a_batch_is_counted_from_its_jobs(harness: StoreHarness) -> None:
    jobs = await made(harness, "b1", 4, name=ODD, metadata_json='{"of":"ann"}')
    await complete(harness, jobs[0])
    await fail(harness, jobs[2])
    state = await harness.store.get_batch("b1")
    assert state is not None
    assert state.batch == Batch("b1", "ann", 4, START_OF_TIME, ODD, '{"of":"ann"}')
    assert state.counts == {JobStatus.PENDING: 2, JobStatus.COMPLETED: 1, JobStatus.FAILED: 1}
    assert (state.open, state.ended, state.removed, state.finished_at) == (2, 2, 0, None)
    assert await harness.store.get_batch("another") is None
    assert [await harness.store.batch_owner(id_) for id_ in ("b1", "another")] == ["ann", None]


async def test_a_batch_that_has_an_open_item_is_not_settled(harness: StoreHarness) -> None:
    jobs = await made(harness, "b1", 2)
    await complete(harness, jobs[1])
    assert await harness.store.ended_batches(10) == []
    assert not await settle(harness, "b1")
    assert not await settle(harness, "another")


async def test_a_batch_ends_when_its_last_item_does_and_is_settled_once(harness: StoreHarness) -> None:
    jobs = await made(harness, "b1", 3)
    for job_id in jobs:
        harness.clock.forward(1)
        await complete(harness, job_id)
    ended_at = harness.clock.now
    harness.clock.forward(60)
    assert await harness.store.ended_batches(10) == ["b1"]
    assert [await settle(harness, "b1"), await settle(harness, "b1")] == [True, False]
    state = await harness.store.get_batch("b1")
    assert state is not None
    assert (state.finished_at, state.counts) == (ended_at, {JobStatus.COMPLETED: 3})
    assert await harness.store.ended_batches(10) == []


async def test_a_resumed_job_reopens_its_batch(harness: StoreHarness) -> None:
    jobs = await made(harness, "b1", 2)
    await made(harness, "b2", 1)
    await complete(harness, jobs[0])
    await fail(harness, jobs[1])
    assert await settle(harness, "b1")
    await revive(harness, jobs[1])
    state = await harness.store.get_batch("b1")
    assert state is not None
    assert (state.finished_at, state.open) == (None, 1)
    assert not await settle(harness, "b1")
    harness.clock.forward(5)
    await complete(harness, jobs[1])
    assert await settle(harness, "b1")
    state = await harness.store.get_batch("b1")
    assert state is not None
    assert (state.finished_at, state.counts) == (harness.clock.now, {JobStatus.COMPLETED: 2})


async def test_a_revival_and_a_settlement_at_once_never_leave_an_open_batch_settled(harness: StoreHarness) -> None:
    jobs = await made(harness, "b1", 2)
    await complete(harness, jobs[0])
    await fail(harness, jobs[1])
    async with harness.another() as other:
        for _ in range(10):
            job = await harness.job(jobs[1])
            move = transitions.resume(job, now=harness.clock.now, waits={})
            await asyncio.gather(harness.store.commit([move]), other.commit([SettleBatch("b1", harness.clock.now)]))
            state = await harness.store.get_batch("b1")
            assert state is not None
            assert (state.finished_at, state.open) == (None, 1)
            await fail(harness, jobs[1])


async def test_concurrent_settlements_settle_once(harness: StoreHarness) -> None:
    jobs = await made(harness, "b1", 1)
    await complete(harness, jobs[0])
    async with harness.another() as other:
        settling = SettleBatch("b1", harness.clock.now)
        done = await asyncio.gather(*(store.commit([settling]) for store in (harness.store, other)))
    assert sorted(isinstance(one.outcomes[0], Done) for one in done) == [False, True]


async def test_deleted_jobs_count_as_removed_and_end_the_batch(harness: StoreHarness) -> None:
    jobs = await made(harness, "b1", 2)
    for job_id in jobs:
        await complete(harness, job_id)
    await harness.one(Delete(jobs[0]))
    state = await harness.store.get_batch("b1")
    assert state is not None
    assert (state.removed, state.ended, state.open) == (1, 2, 0)
    await harness.one(Delete(jobs[1]))
    harness.clock.forward(1)
    assert await settle(harness, "b1")
    state = await harness.store.get_batch("b1")
    assert state is not None
    assert (state.finished_at, state.removed) == (harness.clock.now, 2)


async def test_a_settled_batch_counts_deleted_jobs_by_their_items(harness: StoreHarness) -> None:
    jobs = await made(harness, "b1", 4)
    for job_id in jobs[:3]:
        await complete(harness, job_id)
    await harness.one(transitions.cancel(await harness.job(jobs[3]), now=harness.clock.now))
    await made(harness, "b2", 1)
    assert await settle(harness, "b1")
    ended = await harness.store.get_batch("b1")
    await harness.one(Delete(jobs[1]))
    state = await harness.store.get_batch("b1")
    assert state is not None
    assert ended is not None
    assert (state.counts, state.removed) == ({JobStatus.COMPLETED: 2, JobStatus.CANCELLED: 1}, 1)
    assert (state.finished_at, state.open) == (ended.finished_at, 0)
    assert [each.counts for each in await harness.store.list_batches(None, before=None, limit=9) if each == state]
    gone = await harness.store.removed_items("b1", limit=10)
    assert [(item.number, item.job_id, item.job) for item in gone] == [(1, jobs[1], None)]
    harness.clock.forward(1)
    assert await harness.one(Prune(harness.clock.now, harness.clock.now, 10)) == Done(3)
    state = await harness.store.get_batch("b1")
    assert state is not None
    assert (state.counts, state.removed, state.finished_at) == ({}, 4, ended.finished_at)
    assert [item.job for item in await harness.store.batch_items("b1", limit=10)] == [None] * 4
    assert [item.number for item in await harness.store.removed_items("b1", after=1, limit=1)] == [2]
    assert await harness.store.removed_items("b2", limit=10) == []


async def test_items_are_listed_in_order_by_status_and_in_pages(harness: StoreHarness) -> None:
    jobs = await made(harness, "b1", 4, ["a", None, ODD, "0"])
    await complete(harness, jobs[1])
    items = await harness.store.batch_items("b1", limit=10)
    assert [(item.number, item.custom_id, item.job_id) for item in items] == [
        (0, "a", jobs[0]), (1, None, jobs[1]), (2, ODD, jobs[2]), (3, "0", jobs[3]),
    ]  # fmt: skip
    assert [item.job and item.job.status for item in items][:2] == [JobStatus.PENDING, JobStatus.COMPLETED]
    assert [item.number for item in await harness.store.batch_items("b1", after=1, limit=1)] == [2]
    pending = await harness.store.batch_items("b1", statuses=[JobStatus.PENDING, JobStatus.FAILED], limit=10)
    assert [item.number for item in pending] == [0, 2, 3]


async def test_an_item_is_found_by_custom_id_or_by_number(harness: StoreHarness) -> None:
    await made(harness, "b1", 3, ["a", None, "0"])
    found = {name: await harness.store.batch_item("b1", name) for name in ("a", "1", "01", "0", "7", "x", "9" * 30)}
    numbers = {name: item and item.number for name, item in found.items()}
    assert numbers == {"a": 0, "1": 1, "01": None, "0": 2, "7": None, "x": None, "9" * 30: None}


async def test_batches_are_listed_newest_first_in_pages(harness: StoreHarness) -> None:
    for id_ in ("b1", "b2", "b3"):
        await made(harness, id_, 1)
    await made(harness, "b4", 1, user_id="bob")
    listed = [state.batch.id for state in await harness.store.list_batches(None, before=None, limit=10)]
    assert listed == ["b4", "b3", "b2", "b1"]
    of_ann = await harness.store.list_batches("ann", before="b3", limit=1)
    assert [(state.batch.id, state.counts) for state in of_ann] == [("b2", {JobStatus.PENDING: 1})]


async def test_a_key_creates_one_batch_and_the_second_request_stores_nothing(harness: StoreHarness) -> None:
    await made(harness, "b1", 1, idempotency_key="k", body_hash="h")
    assert await harness.store.batch_of_key("ann", "k") == ("b1", "h")
    assert await harness.store.batch_of_key("bob", "k") is None
    submits = [harness.submit("late-0"), harness.submit("late-1")]
    with pytest.raises(KeyTaken):
        await harness.commit(*submits, create("b2", submits, idempotency_key="k", body_hash="h"))
    assert await harness.store.get_jobs(["late-0", "late-1"]) == {}
    assert await harness.store.get_batch("b2") is None
    await made(harness, "b3", 1, idempotency_key="k", user_id="bob")


async def test_a_batch_whose_jobs_are_refused_is_not_created(harness: StoreHarness) -> None:
    submits = [harness.submit(f"b1-{n}", max_waiting=2) for n in range(3)]
    committed = await harness.store.commit([*submits, create("b1", submits)], all_or_nothing=True)
    assert isinstance(committed.outcomes[2], TooManyWaiting)
    assert await harness.store.get_batch("b1") is None
    assert await harness.store.batch_items("b1", limit=10) == []
    assert await harness.store.get_jobs([submit.job.id for submit in submits]) == {}


async def test_of_batches_in_one_commit_only_the_one_with_a_taken_key_fails(harness: StoreHarness) -> None:
    await made(harness, "b1", 1, idempotency_key="k")
    group_commit = GroupCommit(harness.store)
    group_commit.start()
    late = [harness.submit("late-0")]
    other, taken, lone = await asyncio.gather(
        group_commit.write(harness.submit("other")),
        group_commit.write_all([*late, create("b2", late, idempotency_key="k")]),
        group_commit.write(harness.submit("lone")),
        return_exceptions=True,
    )
    await group_commit.close()
    assert isinstance(taken, KeyTaken)
    assert not isinstance(other, BaseException)
    assert not isinstance(lone, BaseException)
    assert sorted(await harness.store.get_jobs(["other", "lone", "late-0"])) == ["lone", "other"]


async def test_batches_that_ended_long_ago_are_pruned_with_their_items(harness: StoreHarness) -> None:
    for id_ in ("b1", "b2", "b3"):
        (job_id,) = await made(harness, id_, 1)
        if id_ != "b3":
            await complete(harness, job_id)
            assert await settle(harness, id_)
        harness.clock.forward(10)
    assert await harness.one(PruneBatches(START_OF_TIME, 10)) == Done(0)
    assert await harness.one(PruneBatches(harness.clock.now, 1)) == Done(1)
    assert await harness.store.get_batch("b1") is None
    assert await harness.store.batch_items("b1", limit=10) == []
    assert await harness.one(PruneBatches(harness.clock.now, 10)) == Done(1)
    assert [state.batch.id for state in await harness.store.list_batches(None, before=None, limit=10)] == ["b3"]


async def test_records_of_many_jobs_are_read_together(harness: StoreHarness) -> None:
    jobs = await made(harness, "b1", 3)
    await complete(harness, jobs[0])
    records = await harness.store.get_records([*jobs, "another"])
    assert sorted(records) == sorted(jobs)
    assert records[jobs[0]] == await harness.store.get(jobs[0])
    assert records[jobs[0]].result == {"url": "x"}
    assert await harness.store.get_records([]) == {}


async def test_records_of_many_jobs_are_read_without_attempts(harness: StoreHarness) -> None:
    """The results of a batch do not show them, and their tracebacks are not bounded by its limits."""
    (job_id,) = await made(harness, "b1", 1)
    await fail(harness, job_id)
    whole = await harness.store.get(job_id)
    assert whole is not None
    assert len(whole.attempts) == 1
    assert await harness.store.get_records([job_id]) == {job_id: replace(whole, attempts=())}


async def test_a_name_with_a_nul_is_refused(harness: StoreHarness) -> None:
    submits = [harness.submit("n-0")]
    for wrong in (create("b1", submits, name="a\0b"), create("b1", submits, ["a\0b"])):
        with pytest.raises(InvalidInput):
            await harness.commit(*submits, wrong)
    assert await harness.store.get_jobs(["n-0"]) == {}


async def test_an_unknown_batch_is_refused(harness: StoreHarness) -> None:
    assert isinstance(await harness.one(SettleBatch("another", harness.clock.now)), Refused)
