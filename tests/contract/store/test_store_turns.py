"""Rows of turns: who owns them, and what may no longer become of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairlead.domain import transitions, turns
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.transitions import Adopt
from fairlead.errors import WrongState
from fairlead.store.port import Done, Refused
from tests.contract.stores import Line


async def test_a_turn_keeps_its_owner_through_everything(line: Line) -> None:
    turn = await line.submitted(turn="p1")
    assert turn.turn == "p1"
    assert line.changes[0].job == turn
    running = await line.started(turn)
    assert running.turn == "p1"
    await line.one(line.done(running))
    assert (await line.job(turn.id)).turn == "p1"
    assert (await line.submitted()).turn is None


async def test_open_turns_are_found_by_their_owner_oldest_first(line: Line) -> None:
    first = await line.submitted(turn="p1")
    held = await line.started(await line.submitted(turn="p2"))
    second = await line.submitted(turn="p1")
    await line.submitted()
    assert sorted(await line.store.turn_owners()) == ["p1", "p2"]
    assert await line.store.turns_of("p1", 10) == [first, second]
    assert await line.store.turns_of("p1", 1) == [first]
    assert await line.store.turns_of("p2", 10) == [held]
    await line.one(line.done(held))
    assert await line.store.turn_owners() == ["p1"], "what has ended is nobody's matter any more"


async def test_another_process_adopts_a_turn_where_it_is(line: Line) -> None:
    turn = await line.submitted(turn="p1")
    assert isinstance(await line.one(Adopt(turn.id, turn.run, "p2")), Done)
    moved = await line.job(turn.id)
    assert (moved.turn, moved.run, moved.status) == ("p2", turn.run, JobStatus.PENDING)
    running = await line.started(moved)
    assert isinstance(await line.one(Adopt(turn.id, turn.run, "p3")), Refused), "it has moved on"
    assert isinstance(await line.one(Adopt(turn.id, running.run, "p3")), Done)
    assert (await line.job(turn.id)).turn == "p3"


async def test_a_job_is_adopted_by_nobody(line: Line) -> None:
    job = await line.submitted()
    assert isinstance(await line.one(Adopt(job.id, job.run, "p2")), Refused)
    assert (await line.job(job.id)).turn is None


async def test_a_holder_that_died_is_not_waited_for_and_the_turn_not_tried_again(line: Line) -> None:
    turn = await line.running(turn="p1")
    move = transitions.recover(turn, now=line.clock.now, waits={}, max_attempts=3, hold=transitions.hold_of(turn, 0.0))
    assert isinstance(await line.one(move), Done)
    record = await line.store.get(turn.id)
    assert record is not None
    assert record.job.status is JobStatus.FAILED
    assert record.job.retryable is False
    assert (record.job.error or {})["code"] == turns.HOLDER_DIED
    assert [attempt.error["code"] for attempt in record.attempts] == [turns.HOLDER_DIED]
    assert await line.store.holds() == []


async def test_a_turn_that_waited_too_long_cannot_be_resumed(line: Line) -> None:
    turn = await line.submitted(turn="p1", waits={"draw": 5.0})
    move = transitions.timer_rang(turn, now=line.clock.forward(6.0), waits={"draw": 5.0})
    assert move is not None
    assert (move.error or {})["code"] == "RESOURCE_EXHAUSTED"
    assert move.retryable is False


REVIVALS: dict[str, Callable[[Job], Any]] = {
    "resume": lambda turn: transitions.resume(turn, now=0.0, waits={}),
    "requeue": lambda turn: transitions.requeue(turn, now=0.0, waits={}),
    "re-run": lambda turn: transitions.rerun(turn, 0, now=0.0, waits={}),
}


@pytest.mark.parametrize("verb", sorted(REVIVALS))
async def test_a_turn_is_never_taken_up_again(line: Line, verb: str) -> None:
    turn = await line.submitted(turn="p1")
    await line.one(transitions.end_turn(turn, "fail", turns.waiter_gone(turn), now=line.clock.now))
    with pytest.raises(WrongState, match=f"cannot {verb} a turn"):
        REVIVALS[verb](await line.job(turn.id))
