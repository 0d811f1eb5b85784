"""The rows of turns: their owners, and which transitions are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fairlead.domain import transitions, turns
from fairlead.domain.job import Job, JobStatus, hold_of
from fairlead.domain.transitions import Adopt
from fairlead.errors import WrongState
from fairlead.store.port import Done, FireTimers, Refused
from tests.contract.stores import StoreHarness


async def test_a_turn_keeps_its_owner_through_all_transitions(harness: StoreHarness) -> None:
    turn = await harness.submitted(turn="p1")
    assert turn.turn == "p1"
    assert harness.changes[0].job == turn
    running = await harness.started(turn)
    assert running.turn == "p1"
    await harness.one(harness.done(running))
    assert (await harness.job(turn.id)).turn == "p1"
    assert (await harness.submitted()).turn is None


async def test_open_turns_are_found_by_their_owner_oldest_first(harness: StoreHarness) -> None:
    first = await harness.submitted(turn="p1")
    held = await harness.started(await harness.submitted(turn="p2"))
    second = await harness.submitted(turn="p1")
    await harness.submitted()
    assert sorted(await harness.store.turn_owners()) == ["p1", "p2"]
    assert await harness.store.turns_of("p1", 10) == [first, second]
    assert await harness.store.turns_of("p1", 1) == [first]
    assert await harness.store.turns_of("p2", 10) == [held]
    await harness.one(harness.done(held))
    assert await harness.store.turn_owners() == ["p1"], "a turn that has ended has no owner"


async def test_a_turn_that_is_set_aside_is_out_of_the_queue_and_returns_to_its_place(harness: StoreHarness) -> None:
    first, second = [await harness.submitted(turn="p1") for _ in range(2)]
    await harness.one(turns.set_aside(first, {"code": "WAITER_GONE"}, now=harness.clock.now, grace=60.0))
    assert [job async for jobs in harness.store.waiting(10) for job in jobs] == [second]
    assert await harness.store.turns_of("p1", 10) == [second], "nothing is to be done about it"
    aside = await harness.job(first.id)
    assert (aside.status, aside.timer_at, aside.seq) == (JobStatus.SCHEDULED, harness.clock.now + 60.0, first.seq)
    assert isinstance(await harness.one(Adopt(first.id, aside.run, "p2")), Done)
    assert isinstance(await harness.one(turns.take_up(aside)), Done)
    back = await harness.job(first.id)
    assert back == replace(first, turn="p2", run=aside.run + 1)
    assert [job async for jobs in harness.store.waiting(10) for job in jobs] == [back, second]
    assert not isinstance(await harness.one(turns.take_up(aside)), Done), "once"


async def test_a_turn_that_is_set_aside_ends_when_its_time_is_over(harness: StoreHarness) -> None:
    turn = await harness.submitted(turn="p1")
    await harness.one(turns.set_aside(turn, {"code": "WAITER_GONE"}, now=harness.clock.now, grace=60.0))
    harness.clock.forward(59.0)
    await harness.one(FireTimers(harness.clock.now, 10, {}))
    assert (await harness.job(turn.id)).status is JobStatus.SCHEDULED
    harness.clock.forward(1.0)
    await harness.one(FireTimers(harness.clock.now, 10, {}))
    ended = await harness.job(turn.id)
    assert (ended.status, ended.error) == (JobStatus.FAILED, {"code": "WAITER_GONE"})


async def test_another_process_adopts_a_turn_where_it_is(harness: StoreHarness) -> None:
    turn = await harness.submitted(turn="p1")
    assert isinstance(await harness.one(Adopt(turn.id, turn.run, "p2")), Done)
    moved = await harness.job(turn.id)
    assert (moved.turn, moved.run, moved.status) == ("p2", turn.run, JobStatus.PENDING)
    running = await harness.started(moved)
    assert isinstance(await harness.one(Adopt(turn.id, turn.run, "p3")), Refused), "its run has changed"
    assert isinstance(await harness.one(Adopt(turn.id, running.run, "p3")), Done)
    assert (await harness.job(turn.id)).turn == "p3"


async def test_a_job_cannot_be_adopted(harness: StoreHarness) -> None:
    job = await harness.submitted()
    assert isinstance(await harness.one(Adopt(job.id, job.run, "p2")), Refused)
    assert (await harness.job(job.id)).turn is None


async def test_the_turn_of_a_dead_holder_ends_without_a_retry(harness: StoreHarness) -> None:
    turn = await harness.running(turn="p1")
    move = transitions.recover(turn, now=harness.clock.now, waits={}, max_attempts=3, hold=hold_of(turn, 0.0))
    assert isinstance(await harness.one(move), Done)
    record = await harness.store.get(turn.id)
    assert record is not None
    assert record.job.status is JobStatus.FAILED
    assert record.job.retryable is False
    assert (record.job.error or {})["code"] == turns.HOLDER_DIED
    assert [attempt.error["code"] for attempt in record.attempts] == [turns.HOLDER_DIED]
    assert await harness.store.holds() == []


async def test_a_turn_that_waited_too_long_cannot_be_resumed(harness: StoreHarness) -> None:
    turn = await harness.submitted(turn="p1", waits={"draw": 5.0})
    move = transitions.timer_rang(turn, now=harness.clock.forward(6.0), waits={"draw": 5.0})
    assert move is not None
    assert (move.error or {})["code"] == "RESOURCE_EXHAUSTED"
    assert move.retryable is False


REVIVALS: dict[str, Callable[[Job], Any]] = {
    "resume": lambda turn: transitions.resume(turn, now=0.0, waits={}),
    "requeue": lambda turn: transitions.requeue(turn, now=0.0, waits={}),
    "re-run": lambda turn: transitions.rerun(turn, 0, now=0.0, waits={}),
}


@pytest.mark.parametrize("verb", sorted(REVIVALS))
async def test_a_turn_can_neither_be_resumed_nor_requeued(harness: StoreHarness, verb: str) -> None:
    turn = await harness.submitted(turn="p1")
    await harness.one(transitions.end_turn(turn, "fail", turns.waiter_gone(turn), now=harness.clock.now))
    with pytest.raises(WrongState, match=f"cannot {verb} a turn"):
        REVIVALS[verb](await harness.job(turn.id))
