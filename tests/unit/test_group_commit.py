"""The rules of the group commit, with a store that the test controls."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fairlead.domain.job import Job
from fairlead.domain.processes import ProcessRecord
from fairlead.domain.transitions import Delete, Progress, Submit
from fairlead.errors import IdempotencyMismatch, StoreError, TooManyWaiting, Unavailable
from fairlead.store.group_commit import COMPANY, GroupCommit
from fairlead.store.port import (
    Accepted,
    Busy,
    Committed,
    DeregisterProcess,
    Done,
    OutboxEntry,
    RegisterProcess,
    Relayed,
    Transition,
)
from fairlead.store.write_units import BestEffort


class FakeStore:
    """Keeps the batches it is given. `gate` holds commits back; `refuse` may raise for a batch."""

    def __init__(self) -> None:
        self.batches: list[list[Transition]] = []
        self.whole: list[bool] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Event()
        self.refuse: Callable[[Sequence[Transition]], None] = lambda batch: None
        self.outcome: Callable[[Transition], Any] = lambda transition: Done(transition)

    async def commit(self, batch: Sequence[Transition], *, all_or_nothing: bool = False) -> Committed:
        self.entered.set()
        await self.gate.wait()
        self.refuse(batch)
        self.batches.append(list(batch))
        self.whole.append(all_or_nothing)
        return Committed([self.outcome(one) for one in batch], [OutboxEntry(n, "j", None) for n in range(len(batch))])

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Commits do not end before the block does; a first commit is in progress when the block begins."""
        self.gate.clear()
        yield
        self.gate.set()


def touch(job_id: str, run: int = 0) -> Progress:
    return Progress(job_id, run, {})


def submit(job_id: str, **extra: Any) -> Submit:
    return Submit(Job(job_id, "f", "u", ("s",)), "{}", **extra)


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@asynccontextmanager
async def running_group_commit(store: FakeStore, **options: Any) -> AsyncIterator[GroupCommit]:
    options.setdefault("retry_delays", (0, 0, 0))
    group_commit = GroupCommit(store, **options)  # type: ignore[arg-type]
    group_commit.start()
    try:
        yield group_commit
    finally:
        store.gate.set()
        await group_commit.close()


async def busy_with(group_commit: GroupCommit, store: FakeStore) -> asyncio.Future[Any]:
    """A commit of one transition is in progress and held back, so that what follows gathers."""
    store.gate.clear()
    store.entered.clear()
    first = asyncio.ensure_future(group_commit.write(touch("first")))
    await store.entered.wait()
    return first


async def gathered(group_commit: GroupCommit, *transitions: Transition) -> list[asyncio.Future[Any]]:
    """Callers that wait, in this order."""
    callers: list[asyncio.Future[Any]] = [asyncio.ensure_future(group_commit.write(one)) for one in transitions]
    await asyncio.sleep(0)
    return callers


# ---------------------------------------------------------------- batches


async def test_an_idle_group_commit_commits_at_once(store: FakeStore) -> None:
    async with running_group_commit(store) as group_commit:
        transition = touch("a")
        assert await group_commit.write(transition) == Done(transition)
        assert store.batches == [[transition]]


async def test_transitions_that_arrive_during_a_commit_form_the_next_batch(store: FakeStore) -> None:
    async with running_group_commit(store) as group_commit:
        first = await busy_with(group_commit, store)
        callers = await gathered(group_commit, touch("a"), touch("b"), touch("c"))
        store.gate.set()
        await asyncio.gather(first, *callers)
        assert store.batches == [[touch("first")], [touch("a"), touch("b"), touch("c")]]
        assert [caller.result().value.job_id for caller in callers] == ["a", "b", "c"]


async def test_transitions_of_one_job_go_in_separate_batches_in_their_order(store: FakeStore) -> None:
    async with running_group_commit(store) as group_commit:
        first = await busy_with(group_commit, store)
        callers = await gathered(group_commit, submit("a"), touch("a", 1), touch("b", 1), touch("a", 2), touch("b", 2))
        store.gate.set()
        await asyncio.gather(first, *callers)
        assert store.batches[1:] == [[submit("a"), touch("b", 1)], [touch("a", 1), touch("b", 2)], [touch("a", 2)]]


async def test_a_process_is_not_registered_after_its_deregistration(store: FakeStore) -> None:
    announce, farewell = RegisterProcess(ProcessRecord("p", (), (), (), 0, "h", 1, "v", 0.0)), DeregisterProcess("p")
    async with running_group_commit(store, writers=2) as group_commit:
        store.gate.clear()
        store.entered.clear()
        announcing = asyncio.ensure_future(group_commit.write(announce))
        await store.entered.wait()
        rest = asyncio.gather(group_commit.write(farewell), group_commit.write(DeregisterProcess("other")))
        await asyncio.sleep(0)
        store.gate.set()
        await asyncio.gather(announcing, rest)
    assert store.batches == [[announce], [DeregisterProcess("other")], [farewell]]


async def test_a_batch_is_no_larger_than_allowed(store: FakeStore) -> None:
    async with running_group_commit(store, max_batch=2) as group_commit:
        first = await busy_with(group_commit, store)
        callers = await gathered(group_commit, *(touch(str(n)) for n in range(5)))
        store.gate.set()
        await asyncio.gather(first, *callers)
        assert [len(batch) for batch in store.batches] == [1, 2, 2, 1]


async def test_a_postponed_transition_stays_before_later_ones(store: FakeStore) -> None:
    async with running_group_commit(store, max_batch=2) as group_commit:
        first = await busy_with(group_commit, store)
        callers = await gathered(group_commit, touch("a", 1), touch("a", 2), touch("b"), touch("a", 3))
        store.gate.set()
        await asyncio.gather(first, *callers)
        assert store.batches[1:] == [[touch("a", 1), touch("b")], [touch("a", 2)], [touch("a", 3)]]


async def test_many_transitions_of_one_job_all_arrive(store: FakeStore) -> None:
    async with running_group_commit(store, max_batch=3) as group_commit:
        outcomes = await group_commit.write_each([touch("a", run) for run in range(20)])
        assert [outcome.value.run for outcome in outcomes] == list(range(20))  # type: ignore[union-attr]
        assert [len(batch) for batch in store.batches] == [1] * 20


# ---------------------------------------------------------------- outcomes


async def test_a_caller_gets_the_error_that_refuses_its_transition_alone(store: FakeStore) -> None:
    store.outcome = lambda one: TooManyWaiting("no") if one == touch("bad") else Done()
    async with running_group_commit(store) as group_commit:
        first = await busy_with(group_commit, store)
        good, bad = await gathered(group_commit, touch("good"), touch("bad"))
        store.gate.set()
        await first
        assert await good == Done()
        with pytest.raises(TooManyWaiting):
            await bad


async def test_the_relay_receives_a_commit_before_its_callers_resume(store: FakeStore) -> None:
    calls: list[str] = []

    class Relay:
        def committed(self, entries: Sequence[OutboxEntry]) -> None:
            calls.append(f"relay {len(entries)}")

    async with running_group_commit(store, relay=Relay()) as group_commit:
        await group_commit.write(touch("a"))
        calls.append("caller")
    assert calls == ["relay 1", "caller"]


async def test_a_relay_that_fails_does_not_disturb_the_callers(
    store: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    class Relay:
        def committed(self, entries: Sequence[OutboxEntry]) -> None:
            raise RuntimeError("no dispatcher")

    async with running_group_commit(store, relay=Relay()) as group_commit:
        assert await group_commit.write(touch("a")) == Done(touch("a"))
    assert "no dispatcher" in caplog.text


async def test_write_each_returns_errors_beside_outcomes(store: FakeStore) -> None:
    store.outcome = lambda one: TooManyWaiting("no") if one == touch("b") else Done()
    async with running_group_commit(store) as group_commit:
        first, second, third = await group_commit.write_each([touch("a"), touch("b"), touch("c")])
        assert (first, third) == (Done(), Done())
        assert isinstance(second, TooManyWaiting)
        assert await group_commit.write_each([]) == []


# ---------------------------------------------------------------- all or nothing


async def test_write_all_is_one_batch(store: FakeStore) -> None:
    async with running_group_commit(store, max_batch=2) as group_commit:
        jobs = [submit(str(n)) for n in range(5)]
        outcomes = await group_commit.write_all(jobs)
        assert [outcome.value for outcome in outcomes] == jobs  # type: ignore[union-attr]
        assert store.batches == [jobs]
        assert await group_commit.write_all([]) == []


async def test_write_all_without_checks_joins_other_transitions(store: FakeStore) -> None:
    async with running_group_commit(store) as group_commit:
        first = await busy_with(group_commit, store)
        (one,) = await gathered(group_commit, touch("x"))
        both = asyncio.ensure_future(group_commit.write_all([submit("a"), submit("b")]))
        await asyncio.sleep(0)
        store.gate.set()
        await asyncio.gather(first, one, both)
        assert store.batches[1] == [touch("x"), submit("a"), submit("b")]
        assert store.whole == [False, False]


async def test_write_all_with_checks_is_committed_alone_and_names_the_refused_transition(store: FakeStore) -> None:
    bulk = [submit("a"), submit("b", idempotency_key="k", body_hash="h")]
    store.outcome = lambda one: IdempotencyMismatch("other body") if one is bulk[1] else Accepted("x", 1)
    async with running_group_commit(store) as group_commit:
        first = await busy_with(group_commit, store)
        (before,) = await gathered(group_commit, touch("x"))
        whole = asyncio.ensure_future(group_commit.write_all(bulk))
        await asyncio.sleep(0)
        (after,) = await gathered(group_commit, touch("y"))
        store.gate.set()
        with pytest.raises(IdempotencyMismatch) as raised:
            await whole
        assert raised.value.details["index"] == 1
        await asyncio.gather(first, before, after)
        assert store.batches[1:] == [[touch("x")], bulk, [touch("y")]]
        assert store.whole == [False, False, True, False]


async def test_write_all_refuses_two_transitions_of_one_job(store: FakeStore) -> None:
    async with running_group_commit(store) as group_commit:
        with pytest.raises(ValueError, match="one transition"):
            await group_commit.write_all([submit("a"), Delete("a")])


async def test_a_bulk_larger_than_the_queue_is_accepted_while_the_queue_is_empty(store: FakeStore) -> None:
    async with running_group_commit(store, max_pending=10, max_batch=5) as group_commit:
        assert len(await group_commit.write_all([submit(str(n)) for n in range(10_000)])) == 10_000


# ---------------------------------------------------------------- when the store fails


async def test_only_the_caller_whose_transition_fails_gets_the_error(
    store: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(batch: Sequence[Transition]) -> None:
        if touch("bad") in batch:
            raise RuntimeError("I do not like this one")

    store.refuse = refuse
    async with running_group_commit(store) as group_commit:
        first = await busy_with(group_commit, store)
        names = ["a", "b", "bad", "c", "d", "e", "f"]
        callers = await gathered(group_commit, *map(touch, names))
        store.gate.set()
        results = await asyncio.gather(*callers, return_exceptions=True)
        await first
    for name, result in zip(names, results, strict=True):
        assert isinstance(result, RuntimeError) if name == "bad" else result == Done(touch(name)), name
    applied = [one.job_id for batch in store.batches for one in batch]  # type: ignore[union-attr]
    assert applied == ["first", "a", "b", "c", "d", "e", "f"]
    assert "I do not like this one" in caplog.text


async def test_a_failing_transition_of_write_each_fails_alone_and_a_failing_bulk_as_a_whole(store: FakeStore) -> None:
    def refuse(batch: Sequence[Transition]) -> None:
        if any(type(one) is Progress and one.run == 13 for one in batch):
            raise RuntimeError("unlucky")

    store.refuse = refuse
    async with running_group_commit(store) as group_commit:
        each, whole, good = await asyncio.gather(
            group_commit.write_each([touch("a"), touch("b", 13)]),
            group_commit.write_all([touch("c"), touch("d", 13)]),
            group_commit.write_all([touch("e"), touch("f")]),
            return_exceptions=True,
        )
    assert each[0] == Done(touch("a"))  # type: ignore[index]
    assert isinstance(each[1], RuntimeError)  # type: ignore[index]
    assert isinstance(whole, RuntimeError)
    assert good == [Done(touch("e")), Done(touch("f"))]


async def test_a_locked_database_is_retried(store: FakeStore) -> None:
    tries = 0

    def refuse(batch: Sequence[Transition]) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise Busy("locked")

    store.refuse = refuse
    async with running_group_commit(store) as group_commit:
        assert await group_commit.write(touch("a")) == Done(touch("a"))
    assert tries == 3


async def test_a_database_that_stays_locked_fails_the_batch_and_the_next_one_retries(store: FakeStore) -> None:
    tries = 0

    def refuse(batch: Sequence[Transition]) -> None:
        nonlocal tries
        tries += 1
        raise Busy("locked")

    store.refuse = refuse
    async with running_group_commit(store, retry_delays=(0, 0)) as group_commit:
        with pytest.raises(Unavailable):
            await group_commit.write(touch("a"))
        assert tries == 3
        store.refuse = lambda batch: None
        assert await group_commit.write(touch("b")) == Done(touch("b"))


@pytest.mark.parametrize("error", [Unavailable("the disk is full"), StoreError("corrupt")])
async def test_a_full_disk_fails_every_caller_without_bisection(store: FakeStore, error: Exception) -> None:
    tries = 0

    def refuse(batch: Sequence[Transition]) -> None:
        nonlocal tries
        tries += 1
        raise error

    async with running_group_commit(store) as group_commit:
        first = await busy_with(group_commit, store)
        store.refuse = refuse
        callers = await gathered(group_commit, touch("a"), touch("b"))
        store.gate.set()
        results = await asyncio.gather(first, *callers, return_exceptions=True)
        assert results == [error] * 3
        assert tries == 2


# ---------------------------------------------------------------- cancelled callers, a full queue, closing


async def test_a_cancelled_caller_does_not_disturb_the_others(store: FakeStore) -> None:
    async with running_group_commit(store) as group_commit:
        first = await busy_with(group_commit, store)
        left, right = await gathered(group_commit, touch("a"), touch("b"))
        left.cancel()
        first.cancel()
        await asyncio.sleep(0)
        store.gate.set()
        assert await right == Done(touch("b"))
        assert left.cancelled()
        assert first.cancelled()


async def test_a_full_queue_refuses_new_jobs_and_accepts_transitions_of_running_ones(store: FakeStore) -> None:
    async with running_group_commit(store, max_pending=3) as group_commit:
        first = await busy_with(group_commit, store)
        callers = await gathered(group_commit, submit("a"), submit("b"), submit("c"))
        assert group_commit.full
        with pytest.raises(Unavailable, match="pending") as raised:
            await group_commit.write(submit("d"))
        assert raised.value.retry_after > 0
        callers += await gathered(group_commit, touch("x"), touch("y"), touch("z"))
        with pytest.raises(Unavailable, match="pending"):
            await group_commit.write(touch("one too many"))
        store.gate.set()
        await asyncio.gather(first, *callers)
        await group_commit.write(submit("d"))


async def test_close_commits_pending_transitions_and_accepts_no_new_ones(store: FakeStore) -> None:
    async with running_group_commit(store) as group_commit:
        first = await busy_with(group_commit, store)
        callers = await gathered(group_commit, touch("a"), touch("a", 1))
        group_commit.write_later(Relayed((1,)))
        closing = asyncio.ensure_future(group_commit.close())
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await group_commit.write(touch("late"))
        store.gate.set()
        await asyncio.gather(first, closing, *callers)
        assert [one for batch in store.batches for one in batch] == [
            touch("first"),
            touch("a"),
            Relayed((1,)),
            touch("a", 1),
        ]


async def test_a_group_commit_that_is_not_started_accepts_nothing(store: FakeStore) -> None:
    group_commit = GroupCommit(store)  # type: ignore[arg-type]
    with pytest.raises(Unavailable):
        await group_commit.write(touch("a"))
    group_commit.write_later(touch("a"))
    await group_commit.flush()
    await group_commit.close()


async def test_a_stopped_writer_fails_its_callers(store: FakeStore) -> None:
    group_commit = GroupCommit(store)  # type: ignore[arg-type]
    group_commit.start()
    first = await busy_with(group_commit, store)
    (pending,) = await gathered(group_commit, touch("a"))
    assert group_commit._task is not None
    group_commit._task.cancel()
    results = await asyncio.gather(first, pending, return_exceptions=True)
    assert [type(result) for result in results] == [Unavailable, Unavailable]
    with pytest.raises(asyncio.CancelledError):
        await group_commit._task


# ---------------------------------------------------------------- best-effort transitions


async def test_a_lazy_transition_joins_the_next_commit_of_many(store: FakeStore) -> None:
    many = [touch(f"j{n}") for n in range(COMPANY)]
    async with running_group_commit(store) as group_commit:
        group_commit.write_later(Relayed((1,)))
        await group_commit.write_each(many)
        assert store.batches == [[*many, Relayed((1,))]]


async def test_a_lazy_transition_does_not_delay_a_commit_of_few(store: FakeStore) -> None:
    async with running_group_commit(store) as group_commit:
        group_commit.write_later(Relayed((1,)))
        await group_commit.write(touch("a"))
        assert store.batches == [[touch("a")]]
        await group_commit.flush()
        assert store.batches == [[touch("a")], [Relayed((1,))]]


async def test_a_lazy_transition_is_committed_alone_when_nothing_else_is_pending(store: FakeStore) -> None:
    async with running_group_commit(store) as group_commit:
        group_commit.write_later(Relayed((1,)))
        await asyncio.sleep(0)
        assert store.batches == []
        await store.entered.wait()
        await group_commit.flush()
        assert store.batches == [[Relayed((1,))]]


async def test_a_lazy_transition_never_shares_a_batch_with_its_job(store: FakeStore) -> None:
    async with running_group_commit(store) as group_commit:
        group_commit.write_later(touch("a", 1))
        await group_commit.write(touch("a", 2))
        await group_commit.flush()
        assert sorted(map(len, store.batches)) == [1, 1]


async def test_flush_returns_when_all_earlier_transitions_are_committed(store: FakeStore) -> None:
    async with running_group_commit(store) as group_commit:
        first = await busy_with(group_commit, store)
        callers = await gathered(group_commit, touch("a"), touch("a", 1))
        group_commit.write_later(Relayed((1,)))
        flushed = asyncio.ensure_future(group_commit.flush())
        await asyncio.sleep(0)
        assert not flushed.done()
        store.gate.set()
        await flushed
        assert sum(map(len, store.batches)) == 4
        await asyncio.gather(first, *callers)


async def test_a_lazy_transition_that_fails_is_logged(store: FakeStore, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(batch: Sequence[Transition]) -> None:
        raise Unavailable("the disk is full")

    store.refuse = refuse
    async with running_group_commit(store) as group_commit:
        group_commit.write_later(Relayed((1,)))
        await group_commit.flush()
    assert "the disk is full" in caplog.text


# ---------------------------------------------------------------- several writers


async def test_two_writers_commit_at_once_but_never_the_same_job(store: FakeStore) -> None:
    async with running_group_commit(store, writers=2) as group_commit:
        first = await busy_with(group_commit, store)
        store.entered.clear()
        other = asyncio.ensure_future(group_commit.write(touch("other")))
        await store.entered.wait()  # while the first one is still in progress
        store.entered.clear()
        again = asyncio.ensure_future(group_commit.write(touch("first", run=1)))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not store.entered.is_set()
        store.gate.set()
        await asyncio.gather(first, other, again)
    assert store.batches == [[touch("first")], [touch("other")], [touch("first", run=1)]]


async def test_with_two_writers_an_alone_unit_and_a_flush_wait_for_both(store: FakeStore) -> None:
    async with running_group_commit(store, writers=2) as group_commit:
        first = await busy_with(group_commit, store)
        whole = asyncio.ensure_future(group_commit.write_all([submit("a", max_waiting=1)]))
        flushed = asyncio.ensure_future(group_commit.flush())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not whole.done()
        assert not flushed.done()
        store.gate.set()
        await asyncio.gather(first, whole, flushed)
    assert store.whole == [False, True]


async def test_close_waits_for_the_commits_of_two_writers(store: FakeStore) -> None:
    async with running_group_commit(store, writers=2) as group_commit:
        first = await busy_with(group_commit, store)
        other = asyncio.ensure_future(group_commit.write(touch("other")))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(group_commit.close())
        await asyncio.sleep(0)
        store.gate.set()
        await asyncio.gather(first, other, closing)
    assert len(store.batches) == 2


async def test_with_two_writers_a_batch_is_of_one_kind_and_each_job_keeps_its_order(store: FakeStore) -> None:
    async with running_group_commit(store, writers=2) as group_commit:
        busy = [await busy_with(group_commit, store), *await gathered(group_commit, touch("second"))]
        await asyncio.sleep(0)
        callers = await gathered(group_commit, submit("a"), touch("a"), submit("b"), touch("c"), submit("d"))
        store.gate.set()
        await asyncio.gather(*busy, *callers)
    assert [submit("a"), submit("b"), submit("d")] in store.batches
    assert all(len({type(one) for one in batch}) == 1 for batch in store.batches)
    of_a = [one for batch in store.batches for one in batch if one in (submit("a"), touch("a"))]
    assert of_a == [submit("a"), touch("a")]


async def test_transitions_written_together_wait_together_for_a_running_commit_of_a_job(store: FakeStore) -> None:
    async with running_group_commit(store, writers=2) as group_commit:
        first = await busy_with(group_commit, store)
        several = asyncio.ensure_future(group_commit.write_each([touch("a"), touch("first", run=1), touch("b")]))
        later = await gathered(group_commit, touch("b", run=1))
        store.gate.set()
        await asyncio.gather(first, several, *later)
    assert store.batches == [[touch("first")], [touch("a"), touch("first", run=1), touch("b")], [touch("b", run=1)]]


async def test_transitions_written_together_are_split_by_batch_size_and_by_job(store: FakeStore) -> None:
    async with running_group_commit(store, max_batch=2) as group_commit:
        five = [touch(job_id) for job_id in "abcde"]
        assert await group_commit.write_each(five) == [Done(one) for one in five]
        twice = [touch("a", run=1), touch("b"), touch("a", run=2)]
        assert await group_commit.write_each(twice) == [Done(one) for one in twice]
    assert [len(batch) for batch in store.batches] == [2, 2, 1, 2, 1]
    assert store.batches[3:] == [[touch("a", run=1), touch("b")], [touch("a", run=2)]]


def test_repeated_failures_of_lazy_transitions_do_not_fill_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(BestEffort, "_warned_at", -math.inf)
    for n in range(100):
        BestEffort(Relayed((n,))).fail(Unavailable("the disk is full"))
    assert len(caplog.records) == 1
