"""Batches in the truth: made whole or not at all, counted from their jobs, and ended exactly while all of them are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairlead.domain import transitions
from fairlead.domain.batch import Batch, BatchItem
from fairlead.domain.job import JobStatus
from fairlead.domain.transitions import Delete, Submit
from fairlead.errors import InvalidInput, TooManyWaiting
from fairlead.store.journal import Journal
from fairlead.store.port import CreateBatch, Done, KeyTaken, Prune, PruneBatches, Refused, SettleBatch
from tests.contract.stores import START_OF_TIME, Line

ODD = 'Zoë "O\'Neill" \\ \n 雪 ]}'


def create(id_: str, submits: list[Submit], custom: list[str | None] | None = None, **given: Any) -> CreateBatch:
    about = {name: given.pop(name) for name in ("name", "metadata_json") if name in given}
    user_id = given.pop("user_id", "ann")
    items = tuple(
        BatchItem(n, custom[n] if custom is not None else None, submit.job.id) for n, submit in enumerate(submits)
    )
    return CreateBatch(Batch(id_, user_id, len(submits), START_OF_TIME, **about), items, **given)


async def made(line: Line, id_: str, size: int, custom: list[str | None] | None = None, **given: Any) -> list[str]:
    """The ids of its jobs."""
    submits = [line.submit(f"{id_}-{n}") for n in range(size)]
    outcomes = await line.commit(*submits, create(id_, submits, custom, **given))
    assert outcomes[-1] == Done()
    return [submit.job.id for submit in submits]


async def complete(line: Line, job_id: str) -> None:
    job = await line.started(await line.job(job_id))
    assert await line.one(line.done(job)) == Done()


async def fail(line: Line, job_id: str) -> None:
    job = await line.started(await line.job(job_id))
    move = transitions.Move(
        *(job.id, job.run, "fail", JobStatus.FAILED, job.step, job.attempt, job.round),
        tells_line=False,
        finished_at=line.clock.now,
        retryable=True,
        error={"code": "X", "message": "no"},
    )
    assert await line.one(move) == Done()


async def revive(line: Line, job_id: str) -> None:
    move = transitions.resume(await line.job(job_id), now=line.clock.now, waits={})
    assert await line.one(move) == Done()


async def settle(line: Line, id_: str) -> bool:
    return isinstance(await line.one(SettleBatch(id_, line.clock.now)), Done)


async def test_a_batch_is_counted_from_its_jobs(line: Line) -> None:
    jobs = await made(line, "b1", 4, name=ODD, metadata_json='{"of":"ann"}')
    await complete(line, jobs[0])
    await fail(line, jobs[2])
    state = await line.store.get_batch("b1")
    assert state is not None
    assert state.batch == Batch("b1", "ann", 4, START_OF_TIME, ODD, '{"of":"ann"}')
    assert state.counts == {JobStatus.PENDING: 2, JobStatus.COMPLETED: 1, JobStatus.FAILED: 1}
    assert (state.open, state.ended, state.removed, state.finished_at) == (2, 2, 0, None)
    assert await line.store.get_batch("another") is None
    assert [await line.store.batch_owner(id_) for id_ in ("b1", "another")] == ["ann", None]


async def test_a_batch_that_has_an_open_item_is_not_settled(line: Line) -> None:
    jobs = await made(line, "b1", 2)
    await complete(line, jobs[1])
    assert await line.store.ended_batches(10) == []
    assert not await settle(line, "b1")
    assert not await settle(line, "another")


async def test_a_batch_ends_when_its_last_item_does_and_is_settled_once(line: Line) -> None:
    jobs = await made(line, "b1", 3)
    for job_id in jobs:
        line.clock.forward(1)
        await complete(line, job_id)
    ended_at = line.clock.now
    line.clock.forward(60)
    assert await line.store.ended_batches(10) == ["b1"]
    assert [await settle(line, "b1"), await settle(line, "b1")] == [True, False]
    state = await line.store.get_batch("b1")
    assert state is not None
    assert (state.finished_at, state.counts) == (ended_at, {JobStatus.COMPLETED: 3})
    assert await line.store.ended_batches(10) == []


async def test_a_job_that_is_taken_up_again_opens_its_batch(line: Line) -> None:
    jobs = await made(line, "b1", 2)
    await made(line, "b2", 1)
    await complete(line, jobs[0])
    await fail(line, jobs[1])
    assert await settle(line, "b1")
    await revive(line, jobs[1])
    state = await line.store.get_batch("b1")
    assert state is not None
    assert (state.finished_at, state.open) == (None, 1)
    assert not await settle(line, "b1")
    line.clock.forward(5)
    await complete(line, jobs[1])
    assert await settle(line, "b1")
    state = await line.store.get_batch("b1")
    assert state is not None
    assert (state.finished_at, state.counts) == (line.clock.now, {JobStatus.COMPLETED: 2})


async def test_a_revival_and_a_settlement_at_once_never_leave_an_open_batch_settled(line: Line) -> None:
    jobs = await made(line, "b1", 2)
    await complete(line, jobs[0])
    await fail(line, jobs[1])
    async with line.another() as other:
        for _ in range(10):
            job = await line.job(jobs[1])
            move = transitions.resume(job, now=line.clock.now, waits={})
            await asyncio.gather(line.store.commit([move]), other.commit([SettleBatch("b1", line.clock.now)]))
            state = await line.store.get_batch("b1")
            assert state is not None
            assert (state.finished_at, state.open) == (None, 1)
            await fail(line, jobs[1])


async def test_several_who_settle_at_once_settle_once(line: Line) -> None:
    jobs = await made(line, "b1", 1)
    await complete(line, jobs[0])
    async with line.another() as other:
        settling = SettleBatch("b1", line.clock.now)
        done = await asyncio.gather(*(store.commit([settling]) for store in (line.store, other)))
    assert sorted(isinstance(one.outcomes[0], Done) for one in done) == [False, True]


async def test_jobs_that_are_gone_count_as_removed_and_end_the_batch(line: Line) -> None:
    jobs = await made(line, "b1", 2)
    for job_id in jobs:
        await complete(line, job_id)
    await line.one(Delete(jobs[0]))
    state = await line.store.get_batch("b1")
    assert state is not None
    assert (state.removed, state.ended, state.open) == (1, 2, 0)
    await line.one(Delete(jobs[1]))
    line.clock.forward(1)
    assert await settle(line, "b1")
    state = await line.store.get_batch("b1")
    assert state is not None
    assert (state.finished_at, state.removed) == (line.clock.now, 2)


async def test_a_settled_batch_counts_the_jobs_that_are_gone_as_its_items_do(line: Line) -> None:
    jobs = await made(line, "b1", 4)
    for job_id in jobs[:3]:
        await complete(line, job_id)
    await line.one(transitions.cancel(await line.job(jobs[3]), now=line.clock.now))
    await made(line, "b2", 1)
    assert await settle(line, "b1")
    ended = await line.store.get_batch("b1")
    await line.one(Delete(jobs[1]))
    state = await line.store.get_batch("b1")
    assert state is not None
    assert ended is not None
    assert (state.counts, state.removed) == ({JobStatus.COMPLETED: 2, JobStatus.CANCELLED: 1}, 1)
    assert (state.finished_at, state.open) == (ended.finished_at, 0)
    assert [each.counts for each in await line.store.list_batches(None, before=None, limit=9) if each == state]
    gone = await line.store.removed_items("b1", limit=10)
    assert [(item.number, item.job_id, item.job) for item in gone] == [(1, jobs[1], None)]
    line.clock.forward(1)
    assert await line.one(Prune(line.clock.now, line.clock.now, 10)) == Done(3)
    state = await line.store.get_batch("b1")
    assert state is not None
    assert (state.counts, state.removed, state.finished_at) == ({}, 4, ended.finished_at)
    assert [item.job for item in await line.store.batch_items("b1", limit=10)] == [None] * 4
    assert [item.number for item in await line.store.removed_items("b1", after=1, limit=1)] == [2]
    assert await line.store.removed_items("b2", limit=10) == []


async def test_items_come_in_their_order_by_status_and_in_pages(line: Line) -> None:
    jobs = await made(line, "b1", 4, ["a", None, ODD, "0"])
    await complete(line, jobs[1])
    items = await line.store.batch_items("b1", limit=10)
    assert [(item.number, item.custom_id, item.job_id) for item in items] == [
        (0, "a", jobs[0]), (1, None, jobs[1]), (2, ODD, jobs[2]), (3, "0", jobs[3]),
    ]  # fmt: skip
    assert [item.job and item.job.status for item in items][:2] == [JobStatus.PENDING, JobStatus.COMPLETED]
    assert [item.number for item in await line.store.batch_items("b1", after=1, limit=1)] == [2]
    pending = await line.store.batch_items("b1", statuses=[JobStatus.PENDING, JobStatus.FAILED], limit=10)
    assert [item.number for item in pending] == [0, 2, 3]


async def test_an_item_is_found_by_its_custom_id_and_else_by_its_number(line: Line) -> None:
    await made(line, "b1", 3, ["a", None, "0"])
    found = {name: await line.store.batch_item("b1", name) for name in ("a", "1", "01", "0", "7", "x", "9" * 30)}
    numbers = {name: item and item.number for name, item in found.items()}
    assert numbers == {"a": 0, "1": 1, "01": None, "0": 2, "7": None, "x": None, "9" * 30: None}


async def test_batches_are_listed_newest_first_in_pages(line: Line) -> None:
    for id_ in ("b1", "b2", "b3"):
        await made(line, id_, 1)
    await made(line, "b4", 1, user_id="bob")
    listed = [state.batch.id for state in await line.store.list_batches(None, before=None, limit=10)]
    assert listed == ["b4", "b3", "b2", "b1"]
    of_ann = await line.store.list_batches("ann", before="b3", limit=1)
    assert [(state.batch.id, state.counts) for state in of_ann] == [("b2", {JobStatus.PENDING: 1})]


async def test_a_key_makes_one_batch_and_the_second_leaves_nothing_behind(line: Line) -> None:
    await made(line, "b1", 1, idempotency_key="k", body_hash="h")
    assert await line.store.batch_of_key("ann", "k") == ("b1", "h")
    assert await line.store.batch_of_key("bob", "k") is None
    submits = [line.submit("late-0"), line.submit("late-1")]
    with pytest.raises(KeyTaken):
        await line.commit(*submits, create("b2", submits, idempotency_key="k", body_hash="h"))
    assert await line.store.get_jobs(["late-0", "late-1"]) == {}
    assert await line.store.get_batch("b2") is None
    await made(line, "b3", 1, idempotency_key="k", user_id="bob")


async def test_a_batch_whose_jobs_are_turned_away_is_not_made(line: Line) -> None:
    submits = [line.submit(f"b1-{n}", max_waiting=2) for n in range(3)]
    committed = await line.store.commit([*submits, create("b1", submits)], all_or_nothing=True)
    assert isinstance(committed.outcomes[2], TooManyWaiting)
    assert await line.store.get_batch("b1") is None
    assert await line.store.batch_items("b1", limit=10) == []
    assert await line.store.get_jobs([submit.job.id for submit in submits]) == {}


async def test_only_the_one_whose_key_is_taken_fails_of_those_that_commit_together(line: Line) -> None:
    await made(line, "b1", 1, idempotency_key="k")
    journal = Journal(line.store, on_commit=lambda changes: None)
    journal.start()
    late = [line.submit("late-0")]
    other, taken, lone = await asyncio.gather(
        journal.write(line.submit("other")),
        journal.write_all([*late, create("b2", late, idempotency_key="k")]),
        journal.write(line.submit("lone")),
        return_exceptions=True,
    )
    await journal.close()
    assert isinstance(taken, KeyTaken)
    assert not isinstance(other, BaseException)
    assert not isinstance(lone, BaseException)
    assert sorted(await line.store.get_jobs(["other", "lone", "late-0"])) == ["lone", "other"]


async def test_batches_that_ended_long_ago_are_pruned_with_their_items(line: Line) -> None:
    for id_ in ("b1", "b2", "b3"):
        (job_id,) = await made(line, id_, 1)
        if id_ != "b3":
            await complete(line, job_id)
            assert await settle(line, id_)
        line.clock.forward(10)
    assert await line.one(PruneBatches(START_OF_TIME, 10)) == Done(0)
    assert await line.one(PruneBatches(line.clock.now, 1)) == Done(1)
    assert await line.store.get_batch("b1") is None
    assert await line.store.batch_items("b1", limit=10) == []
    assert await line.one(PruneBatches(line.clock.now, 10)) == Done(1)
    assert [state.batch.id for state in await line.store.list_batches(None, before=None, limit=10)] == ["b3"]


async def test_records_of_many_jobs_are_read_together(line: Line) -> None:
    jobs = await made(line, "b1", 3)
    await complete(line, jobs[0])
    records = await line.store.get_records([*jobs, "another"])
    assert sorted(records) == sorted(jobs)
    assert records[jobs[0]] == await line.store.get(jobs[0])
    assert records[jobs[0]].result == {"url": "x"}
    assert await line.store.get_records([]) == {}


async def test_a_name_with_a_nul_is_refused(line: Line) -> None:
    submits = [line.submit("n-0")]
    for wrong in (create("b1", submits, name="a\0b"), create("b1", submits, ["a\0b"])):
        with pytest.raises(InvalidInput):
            await line.commit(*submits, wrong)
    assert await line.store.get_jobs(["n-0"]) == {}


async def test_what_is_no_batch_is_refused(line: Line) -> None:
    assert isinstance(await line.one(SettleBatch("another", line.clock.now)), Refused)
