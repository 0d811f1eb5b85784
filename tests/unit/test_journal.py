"""The group commit's rules, with a store that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fairlead.domain.job import Job
from fairlead.domain.processes import ProcessRecord
from fairlead.domain.transitions import Delete, Progress, Submit
from fairlead.errors import IdempotencyMismatch, StoreError, TooManyWaiting, Unavailable
from fairlead.store.journal import COMPANY, Journal
from fairlead.store.port import (
    Accepted,
    Announce,
    Busy,
    Committed,
    Done,
    Farewell,
    LineChange,
    Relayed,
    Transition,
)


class FakeStore:
    """Keeps the batches it is given. `gate` holds commits back; `refuse` raises for batches that it does not like."""

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
        return Committed([self.outcome(one) for one in batch], [LineChange(n, "j", None) for n in range(len(batch))])

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Commits do not end until the block does; a first one is under way when it begins."""
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
async def journal_of(store: FakeStore, **options: Any) -> AsyncIterator[Journal]:
    options.setdefault("on_commit", lambda changes: None)
    options.setdefault("retry_delays", (0, 0, 0))
    journal = Journal(store, **options)  # type: ignore[arg-type]
    journal.start()
    try:
        yield journal
    finally:
        store.gate.set()
        await journal.close()


async def busy_with(journal: Journal, store: FakeStore) -> asyncio.Future[Any]:
    """A commit of one transition is under way and held back, so that what follows gathers."""
    store.gate.clear()
    store.entered.clear()
    first = asyncio.ensure_future(journal.write(touch("first")))
    await store.entered.wait()
    return first


async def gathered(journal: Journal, *transitions: Transition) -> list[asyncio.Future[Any]]:
    """Callers that wait, in this order."""
    callers: list[asyncio.Future[Any]] = [asyncio.ensure_future(journal.write(one)) for one in transitions]
    await asyncio.sleep(0)
    return callers


# ---------------------------------------------------------------- batches


async def test_an_idle_journal_commits_at_once(store: FakeStore) -> None:
    async with journal_of(store) as journal:
        transition = touch("a")
        assert await journal.write(transition) == Done(transition)
        assert store.batches == [[transition]]


async def test_what_gathers_during_a_commit_is_the_next_batch(store: FakeStore) -> None:
    async with journal_of(store) as journal:
        first = await busy_with(journal, store)
        callers = await gathered(journal, touch("a"), touch("b"), touch("c"))
        store.gate.set()
        await asyncio.gather(first, *callers)
        assert store.batches == [[touch("first")], [touch("a"), touch("b"), touch("c")]]
        assert [caller.result().value.job_id for caller in callers] == ["a", "b", "c"]


async def test_transitions_of_one_job_go_in_separate_batches_in_their_order(store: FakeStore) -> None:
    async with journal_of(store) as journal:
        first = await busy_with(journal, store)
        callers = await gathered(journal, submit("a"), touch("a", 1), touch("b", 1), touch("a", 2), touch("b", 2))
        store.gate.set()
        await asyncio.gather(first, *callers)
        assert store.batches[1:] == [[submit("a"), touch("b", 1)], [touch("a", 1), touch("b", 2)], [touch("a", 2)]]


async def test_a_process_is_not_announced_after_its_farewell(store: FakeStore) -> None:
    announce, farewell = Announce(ProcessRecord("p", (), (), (), 0, "h", 1, "v", 0.0)), Farewell("p")
    async with journal_of(store, writers=2) as journal:
        store.gate.clear()
        store.entered.clear()
        announcing = asyncio.ensure_future(journal.write(announce))
        await store.entered.wait()
        rest = asyncio.gather(journal.write(farewell), journal.write(Farewell("other")))
        await asyncio.sleep(0)
        store.gate.set()
        await asyncio.gather(announcing, rest)
    assert store.batches == [[announce], [Farewell("other")], [farewell]]


async def test_a_batch_is_no_larger_than_allowed(store: FakeStore) -> None:
    async with journal_of(store, max_batch=2) as journal:
        first = await busy_with(journal, store)
        callers = await gathered(journal, *(touch(str(n)) for n in range(5)))
        store.gate.set()
        await asyncio.gather(first, *callers)
        assert [len(batch) for batch in store.batches] == [1, 2, 2, 1]


async def test_what_was_left_for_a_later_batch_stays_before_what_came_after_it(store: FakeStore) -> None:
    async with journal_of(store, max_batch=2) as journal:
        first = await busy_with(journal, store)
        callers = await gathered(journal, touch("a", 1), touch("a", 2), touch("b"), touch("a", 3))
        store.gate.set()
        await asyncio.gather(first, *callers)
        assert store.batches[1:] == [[touch("a", 1), touch("b")], [touch("a", 2)], [touch("a", 3)]]


async def test_many_transitions_of_one_job_all_arrive(store: FakeStore) -> None:
    async with journal_of(store, max_batch=3) as journal:
        outcomes = await journal.write_each([touch("a", run) for run in range(20)])
        assert [outcome.value.run for outcome in outcomes] == list(range(20))  # type: ignore[union-attr]
        assert [len(batch) for batch in store.batches] == [1] * 20


# ---------------------------------------------------------------- outcomes


async def test_a_caller_gets_the_error_that_refuses_its_transition_alone(store: FakeStore) -> None:
    store.outcome = lambda one: TooManyWaiting("no") if one == touch("bad") else Done()
    async with journal_of(store) as journal:
        first = await busy_with(journal, store)
        good, bad = await gathered(journal, touch("good"), touch("bad"))
        store.gate.set()
        await first
        assert await good == Done()
        with pytest.raises(TooManyWaiting):
            await bad


async def test_the_line_hears_of_a_commit_before_its_callers(store: FakeStore) -> None:
    heard: list[str] = []
    async with journal_of(store, on_commit=lambda changes: heard.append(f"line {len(changes)}")) as journal:

        async def call() -> None:
            await journal.write(touch("a"))
            heard.append("caller")

        await call()
    assert heard == ["line 1", "caller"]


async def test_a_relay_that_fails_does_not_disturb_the_callers(
    store: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(changes: Sequence[LineChange]) -> None:
        raise RuntimeError("no line")

    async with journal_of(store, on_commit=fail) as journal:
        assert await journal.write(touch("a")) == Done(touch("a"))
    assert "no line" in caplog.text


async def test_write_each_returns_errors_beside_outcomes(store: FakeStore) -> None:
    store.outcome = lambda one: TooManyWaiting("no") if one == touch("b") else Done()
    async with journal_of(store) as journal:
        first, second, third = await journal.write_each([touch("a"), touch("b"), touch("c")])
        assert (first, third) == (Done(), Done())
        assert isinstance(second, TooManyWaiting)
        assert await journal.write_each([]) == []


# ---------------------------------------------------------------- all or nothing


async def test_write_all_is_one_batch(store: FakeStore) -> None:
    async with journal_of(store, max_batch=2) as journal:
        jobs = [submit(str(n)) for n in range(5)]
        outcomes = await journal.write_all(jobs)
        assert [outcome.value for outcome in outcomes] == jobs  # type: ignore[union-attr]
        assert store.batches == [jobs]
        assert await journal.write_all([]) == []


async def test_write_all_joins_others_when_nothing_can_turn_it_away(store: FakeStore) -> None:
    async with journal_of(store) as journal:
        first = await busy_with(journal, store)
        (one,) = await gathered(journal, touch("x"))
        both = asyncio.ensure_future(journal.write_all([submit("a"), submit("b")]))
        await asyncio.sleep(0)
        store.gate.set()
        await asyncio.gather(first, one, both)
        assert store.batches[1] == [touch("x"), submit("a"), submit("b")]
        assert store.whole == [False, False]


async def test_write_all_with_checks_goes_alone_and_names_the_one_that_is_turned_away(store: FakeStore) -> None:
    bulk = [submit("a"), submit("b", idempotency_key="k", body_hash="h")]
    store.outcome = lambda one: IdempotencyMismatch("other body") if one is bulk[1] else Accepted("x", 1)
    async with journal_of(store) as journal:
        first = await busy_with(journal, store)
        (before,) = await gathered(journal, touch("x"))
        whole = asyncio.ensure_future(journal.write_all(bulk))
        await asyncio.sleep(0)
        (after,) = await gathered(journal, touch("y"))
        store.gate.set()
        with pytest.raises(IdempotencyMismatch) as raised:
            await whole
        assert raised.value.details["index"] == 1
        await asyncio.gather(first, before, after)
        assert store.batches[1:] == [[touch("x")], bulk, [touch("y")]]
        assert store.whole == [False, False, True, False]


async def test_write_all_refuses_two_transitions_of_one_job(store: FakeStore) -> None:
    async with journal_of(store) as journal:
        with pytest.raises(ValueError, match="one transition"):
            await journal.write_all([submit("a"), Delete("a")])


async def test_a_bulk_larger_than_the_journal_goes_through_when_it_is_empty(store: FakeStore) -> None:
    async with journal_of(store, max_pending=10, max_batch=5) as journal:
        assert len(await journal.write_all([submit(str(n)) for n in range(10_000)])) == 10_000


# ---------------------------------------------------------------- when the store fails


async def test_only_the_guilty_caller_fails(store: FakeStore, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(batch: Sequence[Transition]) -> None:
        if touch("bad") in batch:
            raise RuntimeError("I do not like this one")

    store.refuse = refuse
    async with journal_of(store) as journal:
        first = await busy_with(journal, store)
        names = ["a", "b", "bad", "c", "d", "e", "f"]
        callers = await gathered(journal, *map(touch, names))
        store.gate.set()
        results = await asyncio.gather(*callers, return_exceptions=True)
        await first
    for name, result in zip(names, results, strict=True):
        assert isinstance(result, RuntimeError) if name == "bad" else result == Done(touch(name)), name
    applied = [one.job_id for batch in store.batches for one in batch]  # type: ignore[union-attr]
    assert applied == ["first", "a", "b", "c", "d", "e", "f"]
    assert "I do not like this one" in caplog.text


async def test_the_guilty_one_of_write_each_fails_alone_and_a_guilty_bulk_as_a_whole(store: FakeStore) -> None:
    def refuse(batch: Sequence[Transition]) -> None:
        if any(type(one) is Progress and one.run == 13 for one in batch):
            raise RuntimeError("unlucky")

    store.refuse = refuse
    async with journal_of(store) as journal:
        each, whole, good = await asyncio.gather(
            journal.write_each([touch("a"), touch("b", 13)]),
            journal.write_all([touch("c"), touch("d", 13)]),
            journal.write_all([touch("e"), touch("f")]),
            return_exceptions=True,
        )
    assert each[0] == Done(touch("a"))  # type: ignore[index]
    assert isinstance(each[1], RuntimeError)  # type: ignore[index]
    assert isinstance(whole, RuntimeError)
    assert good == [Done(touch("e")), Done(touch("f"))]


async def test_a_locked_database_is_tried_again(store: FakeStore) -> None:
    tries = 0

    def refuse(batch: Sequence[Transition]) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise Busy("locked")

    store.refuse = refuse
    async with journal_of(store) as journal:
        assert await journal.write(touch("a")) == Done(touch("a"))
    assert tries == 3


async def test_a_database_that_stays_locked_is_given_up_and_tried_afresh_by_the_next(store: FakeStore) -> None:
    tries = 0

    def refuse(batch: Sequence[Transition]) -> None:
        nonlocal tries
        tries += 1
        raise Busy("locked")

    store.refuse = refuse
    async with journal_of(store, retry_delays=(0, 0)) as journal:
        with pytest.raises(Unavailable):
            await journal.write(touch("a"))
        assert tries == 3
        store.refuse = lambda batch: None
        assert await journal.write(touch("b")) == Done(touch("b"))


@pytest.mark.parametrize("error", [Unavailable("the disk is full"), StoreError("corrupt")])
async def test_a_full_disk_is_told_to_every_caller_without_a_search_for_the_guilty(
    store: FakeStore, error: Exception
) -> None:
    tries = 0

    def refuse(batch: Sequence[Transition]) -> None:
        nonlocal tries
        tries += 1
        raise error

    async with journal_of(store) as journal:
        first = await busy_with(journal, store)
        store.refuse = refuse
        callers = await gathered(journal, touch("a"), touch("b"))
        store.gate.set()
        results = await asyncio.gather(first, *callers, return_exceptions=True)
        assert results == [error] * 3
        assert tries == 2


# ---------------------------------------------------------------- cancelled callers, a full journal, the end


async def test_a_cancelled_caller_does_not_disturb_the_others(store: FakeStore) -> None:
    async with journal_of(store) as journal:
        first = await busy_with(journal, store)
        left, right = await gathered(journal, touch("a"), touch("b"))
        left.cancel()
        first.cancel()
        await asyncio.sleep(0)
        store.gate.set()
        assert await right == Done(touch("b"))
        assert left.cancelled()
        assert first.cancelled()


async def test_a_full_journal_refuses_new_jobs_and_still_takes_the_moves_of_running_ones(store: FakeStore) -> None:
    async with journal_of(store, max_pending=3) as journal:
        first = await busy_with(journal, store)
        callers = await gathered(journal, submit("a"), submit("b"), submit("c"))
        assert journal.full
        with pytest.raises(Unavailable, match="full") as raised:
            await journal.write(submit("d"))
        assert raised.value.retry_after > 0
        callers += await gathered(journal, touch("x"), touch("y"), touch("z"))
        with pytest.raises(Unavailable, match="full"):
            await journal.write(touch("one too many"))
        store.gate.set()
        await asyncio.gather(first, *callers)
        await journal.write(submit("d"))


async def test_close_commits_what_is_pending_and_takes_nothing_new(store: FakeStore) -> None:
    async with journal_of(store) as journal:
        first = await busy_with(journal, store)
        callers = await gathered(journal, touch("a"), touch("a", 1))
        journal.write_later(Relayed((1,)))
        closing = asyncio.ensure_future(journal.close())
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await journal.write(touch("late"))
        store.gate.set()
        await asyncio.gather(first, closing, *callers)
        assert [one for batch in store.batches for one in batch] == [
            touch("first"),
            touch("a"),
            Relayed((1,)),
            touch("a", 1),
        ]


async def test_a_journal_that_is_not_started_takes_nothing(store: FakeStore) -> None:
    journal = Journal(store, on_commit=lambda changes: None)  # type: ignore[arg-type]
    with pytest.raises(Unavailable):
        await journal.write(touch("a"))
    journal.write_later(touch("a"))
    await journal.flush()
    await journal.close()


async def test_a_stopped_writer_tells_its_callers(store: FakeStore) -> None:
    journal = Journal(store, on_commit=lambda changes: None)  # type: ignore[arg-type]
    journal.start()
    first = await busy_with(journal, store)
    (pending,) = await gathered(journal, touch("a"))
    assert journal._task is not None
    journal._task.cancel()
    results = await asyncio.gather(first, pending, return_exceptions=True)
    assert [type(result) for result in results] == [Unavailable, Unavailable]
    with pytest.raises(asyncio.CancelledError):
        await journal._task


# ---------------------------------------------------------------- lazily


async def test_a_lazy_transition_goes_along_with_the_next_commit_of_many(store: FakeStore) -> None:
    many = [touch(f"j{n}") for n in range(COMPANY)]
    async with journal_of(store) as journal:
        journal.write_later(Relayed((1,)))
        await journal.write_each(many)
        assert store.batches == [[*many, Relayed((1,))]]


async def test_a_lazy_transition_does_not_hold_up_a_commit_of_few(store: FakeStore) -> None:
    async with journal_of(store) as journal:
        journal.write_later(Relayed((1,)))
        await journal.write(touch("a"))
        assert store.batches == [[touch("a")]]
        await journal.flush()
        assert store.batches == [[touch("a")], [Relayed((1,))]]


async def test_a_lazy_transition_goes_alone_when_nothing_else_does(store: FakeStore) -> None:
    async with journal_of(store) as journal:
        journal.write_later(Relayed((1,)))
        await asyncio.sleep(0)
        assert store.batches == []
        await store.entered.wait()
        await journal.flush()
        assert store.batches == [[Relayed((1,))]]


async def test_a_lazy_transition_never_shares_a_batch_with_its_job(store: FakeStore) -> None:
    async with journal_of(store) as journal:
        journal.write_later(touch("a", 1))
        await journal.write(touch("a", 2))
        await journal.flush()
        assert sorted(map(len, store.batches)) == [1, 1]


async def test_flush_returns_when_all_before_it_is_committed(store: FakeStore) -> None:
    async with journal_of(store) as journal:
        first = await busy_with(journal, store)
        callers = await gathered(journal, touch("a"), touch("a", 1))
        journal.write_later(Relayed((1,)))
        flushed = asyncio.ensure_future(journal.flush())
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
    async with journal_of(store) as journal:
        journal.write_later(Relayed((1,)))
        await journal.flush()
    assert "the disk is full" in caplog.text


# ---------------------------------------------------------------- several writers


async def test_two_writers_commit_at_once_but_never_the_same_job(store: FakeStore) -> None:
    async with journal_of(store, writers=2) as journal:
        first = await busy_with(journal, store)
        store.entered.clear()
        other = asyncio.ensure_future(journal.write(touch("other")))
        await store.entered.wait()  # while the first one is still under way
        store.entered.clear()
        again = asyncio.ensure_future(journal.write(touch("first", run=1)))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not store.entered.is_set()
        store.gate.set()
        await asyncio.gather(first, other, again)
    assert store.batches == [[touch("first")], [touch("other")], [touch("first", run=1)]]


async def test_with_two_writers_what_is_alone_waits_for_both_and_so_does_a_flush(store: FakeStore) -> None:
    async with journal_of(store, writers=2) as journal:
        first = await busy_with(journal, store)
        whole = asyncio.ensure_future(journal.write_all([submit("a", max_waiting=1)]))
        flushed = asyncio.ensure_future(journal.flush())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not whole.done()
        assert not flushed.done()
        store.gate.set()
        await asyncio.gather(first, whole, flushed)
    assert store.whole == [False, True]


async def test_two_writers_finish_what_is_under_way_when_the_journal_closes(store: FakeStore) -> None:
    async with journal_of(store, writers=2) as journal:
        first = await busy_with(journal, store)
        other = asyncio.ensure_future(journal.write(touch("other")))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(journal.close())
        await asyncio.sleep(0)
        store.gate.set()
        await asyncio.gather(first, other, closing)
    assert len(store.batches) == 2


async def test_with_two_writers_a_batch_is_of_one_kind_and_each_job_keeps_its_order(store: FakeStore) -> None:
    async with journal_of(store, writers=2) as journal:
        busy = [await busy_with(journal, store), *await gathered(journal, touch("second"))]
        await asyncio.sleep(0)
        callers = await gathered(journal, submit("a"), touch("a"), submit("b"), touch("c"), submit("d"))
        store.gate.set()
        await asyncio.gather(*busy, *callers)
    assert [submit("a"), submit("b"), submit("d")] in store.batches
    assert all(len({type(one) for one in batch}) == 1 for batch in store.batches)
    of_a = [one for batch in store.batches for one in batch if one in (submit("a"), touch("a"))]
    assert of_a == [submit("a"), touch("a")]


async def test_what_was_written_together_waits_together_for_a_job_that_is_under_way(store: FakeStore) -> None:
    async with journal_of(store, writers=2) as journal:
        first = await busy_with(journal, store)
        several = asyncio.ensure_future(journal.write_each([touch("a"), touch("first", run=1), touch("b")]))
        later = await gathered(journal, touch("b", run=1))
        store.gate.set()
        await asyncio.gather(first, several, *later)
    assert store.batches == [[touch("first")], [touch("a"), touch("first", run=1), touch("b")], [touch("b", run=1)]]


async def test_what_was_written_together_is_no_larger_than_a_batch_and_never_twice_of_a_job(store: FakeStore) -> None:
    async with journal_of(store, max_batch=2) as journal:
        five = [touch(job_id) for job_id in "abcde"]
        assert await journal.write_each(five) == [Done(one) for one in five]
        twice = [touch("a", run=1), touch("b"), touch("a", run=2)]
        assert await journal.write_each(twice) == [Done(one) for one in twice]
    assert [len(batch) for batch in store.batches] == [2, 2, 1, 2, 1]
    assert store.batches[3:] == [[touch("a", run=1), touch("b")], [touch("a", run=2)]]
