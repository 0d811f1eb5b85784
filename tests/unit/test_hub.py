"""Who is told what within one process, and what it keeps of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairlead.domain.order import Place
from fairlead.runtime import events
from fairlead.runtime.events import BUFFER, MOST_FOLLOWED, Dismissed, Event, Hub, Subscription, TooSlow, topic_of
from fairlead.runtime.loops.positions import MOST_A_SECOND, PositionsLoop


def said(kind: str, job_id: str = "j", **details: Any) -> Event:
    return Event(kind, job_id, 1_700_000_000.0, "said", details)


def waiting(reader: Subscription) -> list[tuple[str, str]]:
    return [(event.type, event.job_id) for event in reader.waiting()]


def following(hub: Hub, user_id: str = "ada") -> Subscription:
    reader = Subscription()
    hub.follow(topic_of(user_id), reader)
    return reader


# ---------------------------------------------------------------- one reader


async def test_a_reader_that_falls_behind_is_dropped_with_all_that_it_did_not_read() -> None:
    hub = Hub()
    with hub.subscribe("j") as slow, hub.subscribe("j") as quick:
        for number in range(BUFFER + 1):
            hub.publish(said(events.STEP_START, step=number), "ada")
            assert await quick.next(1) is not None
        assert waiting(slow) == []
        with pytest.raises(TooSlow):
            await slow.next(1)


async def test_a_burst_of_progress_drops_nobody_since_only_the_latest_counts() -> None:
    hub = Hub()
    with hub.subscribe("j") as reader:
        for number in range(BUFFER * 4):
            hub.publish(said(events.PROGRESS, fraction=number), "ada")
        hub.publish(said(events.JOB_COMPLETE), "ada")
        latest = await reader.next(1)
        assert latest is not None
        assert latest.details["fraction"] == BUFFER * 4 - 1
        assert waiting(reader) == [(events.JOB_COMPLETE, "j")]


async def test_an_event_wakes_who_waits_and_silence_is_none() -> None:
    hub = Hub()
    with hub.subscribe("j") as reader:
        assert await reader.next(0.001) is None
        asyncio.get_running_loop().call_soon(hub.publish, said(events.WAITING), "ada")
        assert await reader.next(10) == said(events.WAITING)


async def test_the_dismissed_hear_so_and_newcomers_are_told_as_usual() -> None:
    hub = Hub()
    with hub.subscribe("j") as before:
        hub.dismiss()
        with hub.subscribe("j") as after:
            hub.publish(said(events.WAITING), "ada")
            assert await after.next(1) is not None
        with pytest.raises(Dismissed):
            await before.next(1)


# ---------------------------------------------------------------- a user's jobs


def test_a_follower_hears_of_the_users_jobs_and_of_no_others() -> None:
    hub = Hub()
    assert not hub.watched("j", "ada")
    reader = following(hub)
    assert hub.watched("j", "ada")
    assert not hub.watched("j", "grace")
    hub.publish(said(events.WAITING, "j1"), "ada")
    hub.publish(said(events.WAITING, "j2"), "grace")
    assert waiting(reader) == [(events.WAITING, "j1")]
    assert hub.jobs_here() == ["j1"]
    hub.publish(said(events.JOB_COMPLETE, "j1"), "ada")
    assert hub.jobs_here() == []
    hub.unfollow(topic_of("ada"), reader)
    assert not hub.watched("j", "ada")


def test_an_end_that_is_found_before_it_is_told_is_told_once() -> None:
    hub = Hub()
    reader = following(hub)
    hub.opened("ada", ["j"])
    for _ in range(2):
        hub.ended("j", 0.0)
        hub.publish(said(events.JOB_FAILED), "ada")
    assert waiting(reader)[0] == (events.ENDED, "j")
    # A job that failed may be resumed, and fail again.
    assert waiting(reader)[1:] == [(events.JOB_FAILED, "j")]


def test_a_job_that_was_taken_up_again_ends_again() -> None:
    hub = Hub()
    reader = following(hub)
    hub.opened("ada", ["j"])
    hub.ended("j", 0.0)
    hub.publish(said(events.WAITING), "ada")
    hub.publish(said(events.JOB_COMPLETE), "ada")
    kinds = [kind for kind, _ in waiting(reader)]
    assert kinds == [events.ENDED, events.WAITING, events.JOB_COMPLETE]


def test_a_late_position_does_not_open_a_job_again() -> None:
    hub = Hub()
    following(hub)
    hub.publish(said(events.JOB_COMPLETE), "ada")
    hub.tell(said(events.POSITION), "ada")
    assert hub.jobs_here() == []


def test_only_so_many_open_jobs_of_a_user_are_kept_and_all_are_told() -> None:
    hub = Hub()
    reader = following(hub)
    for number in range(MOST_FOLLOWED + 5):
        hub.publish(said(events.WAITING, f"j{number}"), "ada")
    assert len(hub.jobs_here()) == MOST_FOLLOWED
    assert len(waiting(reader)) == MOST_FOLLOWED + 5
    hub.unfollow(topic_of("ada"), reader)
    assert hub.jobs_here() == []
    assert not hub.is_watched_here("j0")


# ---------------------------------------------------------------- places in line


class Line:
    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self.asked: list[list[str]] = []

    async def __call__(self, job_ids: Any) -> dict[str, Place]:
        self.asked.append(list(job_ids))
        return {job_id: self.places[job_id] for job_id in job_ids if job_id in self.places}


async def test_places_are_told_to_those_who_watch_and_only_when_they_change() -> None:
    hub, line = Hub(), Line()
    loop = PositionsLoop(line, hub)
    await loop.tick(0.0)
    assert line.asked == [], "nobody watches, nobody asks"
    line.places = {"j": Place(3, 30.0, 1, 10.0), "other": Place(1, 0.0, 1, 10.0)}
    follower = following(hub)
    hub.opened("ada", ["j"])
    with hub.subscribe("j") as reader:
        for _ in range(3):
            await loop.tick(0.0)
        assert line.asked[-1] == ["j"]
        assert waiting(reader) == waiting(follower) == [(events.POSITION, "j")]
        told = await reader.next(1)
        assert told is not None
        assert told.details == {"position": 3, "estimated_wait": {"low": 30.0, "high": 40.0}}


def test_places_are_looked_for_only_where_somebody_wants_to_hear_them() -> None:
    hub = Hub()
    with hub.subscribe("quiet", places=False), hub.subscribe("both", places=False):
        with hub.subscribe("both"), hub.subscribe("both"), hub.subscribe("heard"):
            assert sorted(hub.placed_here()) == ["both", "heard"]
        assert hub.placed_here() == []
        assert sorted(hub.jobs_here()) == ["both", "quiet"]
    following(hub)
    hub.opened("ada", ["ada's"])
    with hub.subscribe("ada's"):
        assert hub.placed_here() == ["ada's"]


async def test_a_notably_different_wait_is_told_though_the_position_is_the_same() -> None:
    hub, line = Hub(), Line()
    loop = PositionsLoop(line, hub)
    with hub.subscribe("j") as reader:
        for work, is_told in ((30.0, True), (31.0, False), (29.0, False), (60.0, True), (60.5, False), (20.0, True)):
            line.places = {"j": Place(3, work, 1, 10.0)}
            await loop.tick(0.0)
            assert bool(waiting(reader)) is is_told, work
            if is_told:
                await reader.next(1)


async def test_a_line_that_stands_still_and_moves_again_is_told_though_the_position_is_the_same() -> None:
    hub, line = Hub(), Line()
    loop = PositionsLoop(line, hub)
    with hub.subscribe("j") as reader:
        for undated, is_told in ((False, True), (True, True), (True, False), (False, True), (False, False)):
            line.places = {"j": Place(3, 30.0, 1, 10.0, undated=undated)}
            await loop.tick(0.0)
            assert bool(waiting(reader)) is is_told
            if is_told:
                event = await reader.next(1)
                assert event is not None
                assert (event.details["estimated_wait"] is None) is undated


async def test_the_more_are_told_the_less_often() -> None:
    hub, line = Hub(), Line()
    loop = PositionsLoop(line, hub)
    many = 3 * MOST_A_SECOND
    line.places = {f"j{number}": Place(number, 1.0, 1, 1.0) for number in range(many)}
    for job_id in line.places:
        hub.follow(job_id, Subscription())
    assert await loop.tick(100.0) >= 103.0
    assert await loop.tick(200.0) < 202.0, "nothing has changed"
