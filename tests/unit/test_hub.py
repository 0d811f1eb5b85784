"""Events within one process: who receives them, and what the hub keeps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairlead.domain import events
from fairlead.domain.events import Event
from fairlead.domain.fair_share import QueuePosition
from fairlead.domain.job import JobStatus, Priority
from fairlead.domain.views import EndedJob
from fairlead.engine.events import BUFFER, MOST_FOLLOWED, Hub, ShuttingDown, SlowConsumer, Subscription, topic_of
from fairlead.engine.positions import MOST_A_SECOND, PositionsLoop


def event_of(kind: str, job_id: str = "j", **details: Any) -> Event:
    return Event(kind, job_id, 1_700_000_000.0, "name", details)


def waiting(reader: Subscription) -> list[tuple[str, str]]:
    return [(event.type, event.job_id) for event in reader.waiting()]


def following(hub: Hub, user_id: str = "ada") -> Subscription:
    reader = Subscription()
    hub.follow(topic_of(user_id), reader)
    return reader


# ---------------------------------------------------------------- one reader


async def test_a_slow_reader_is_dropped_with_its_unread_events() -> None:
    hub = Hub()
    with hub.subscribe("j") as slow, hub.subscribe("j") as quick:
        for number in range(BUFFER + 1):
            hub.publish(event_of(events.STEP_START, step=number), "ada")
            assert await quick.next(1) is not None
        assert waiting(slow) == []
        with pytest.raises(SlowConsumer):
            await slow.next(1)


async def test_a_burst_of_progress_drops_no_reader_since_only_the_latest_counts() -> None:
    hub = Hub()
    with hub.subscribe("j") as reader:
        for number in range(BUFFER * 4):
            hub.publish(event_of(events.PROGRESS, fraction=number), "ada")
        hub.publish(event_of(events.JOB_COMPLETE), "ada")
        latest = await reader.next(1)
        assert latest is not None
        assert latest.details["fraction"] == BUFFER * 4 - 1
        assert waiting(reader) == [(events.JOB_COMPLETE, "j")]


async def test_an_event_wakes_a_waiting_reader_and_a_timeout_returns_none() -> None:
    hub = Hub()
    with hub.subscribe("j") as reader:
        assert await reader.next(0.001) is None
        asyncio.get_running_loop().call_soon(hub.publish, event_of(events.WAITING), "ada")
        assert await reader.next(10) == event_of(events.WAITING)


async def test_dismissed_readers_are_notified_and_new_ones_receive_events() -> None:
    hub = Hub()
    with hub.subscribe("j") as before:
        hub.dismiss()
        with hub.subscribe("j") as after:
            hub.publish(event_of(events.WAITING), "ada")
            assert await after.next(1) is not None
        with pytest.raises(ShuttingDown):
            await before.next(1)


# ---------------------------------------------------------------- a user's jobs


def test_a_follower_receives_events_of_its_users_jobs_only() -> None:
    hub = Hub()
    assert not hub.watched("j", "ada")
    reader = following(hub)
    assert hub.watched("j", "ada")
    assert not hub.watched("j", "grace")
    hub.publish(event_of(events.WAITING, "j1"), "ada")
    hub.publish(event_of(events.WAITING, "j2"), "grace")
    assert waiting(reader) == [(events.WAITING, "j1")]
    assert hub.jobs_here() == ["j1"]
    hub.publish(event_of(events.JOB_COMPLETE, "j1"), "ada")
    assert hub.jobs_here() == []
    hub.unfollow(topic_of("ada"), reader)
    assert not hub.watched("j", "ada")


def test_an_end_that_is_found_before_its_event_is_reported_once() -> None:
    hub = Hub()
    reader = following(hub)
    hub.opened("ada", ["j"])
    for _ in range(2):
        hub.ended("j", 0.0)
        hub.publish(event_of(events.JOB_FAILED), "ada")
    assert waiting(reader)[0] == (events.ENDED, "j")
    # A failed job may be resumed, and fail again.
    assert waiting(reader)[1:] == [(events.JOB_FAILED, "j")]


def test_a_resumed_job_ends_again() -> None:
    hub = Hub()
    reader = following(hub)
    hub.opened("ada", ["j"])
    hub.ended("j", 0.0)
    hub.publish(event_of(events.WAITING), "ada")
    hub.publish(event_of(events.JOB_COMPLETE), "ada")
    kinds = [kind for kind, _ in waiting(reader)]
    assert kinds == [events.ENDED, events.WAITING, events.JOB_COMPLETE]


def test_a_late_position_does_not_reopen_a_job() -> None:
    hub = Hub()
    following(hub)
    hub.publish(event_of(events.JOB_COMPLETE), "ada")
    hub.tell(event_of(events.POSITION), "ada")
    assert hub.jobs_here() == []


def test_the_open_jobs_of_a_user_are_bounded_and_all_events_arrive() -> None:
    hub = Hub()
    reader = following(hub)
    for number in range(MOST_FOLLOWED + 5):
        hub.publish(event_of(events.WAITING, f"j{number}"), "ada")
    assert len(hub.jobs_here()) == MOST_FOLLOWED
    assert len(waiting(reader)) == MOST_FOLLOWED + 5
    hub.unfollow(topic_of("ada"), reader)
    assert hub.jobs_here() == []
    assert not hub.is_watched_here("j0")


# ---------------------------------------------------------------- queue positions


class FakeQueue:
    def __init__(self) -> None:
        self.places: dict[str, QueuePosition] = {}
        self.asked: list[list[str]] = []

    async def __call__(self, job_ids: Any) -> dict[str, QueuePosition]:
        self.asked.append(list(job_ids))
        return {job_id: self.places[job_id] for job_id in job_ids if job_id in self.places}


async def test_positions_are_sent_to_watchers_only_when_they_change() -> None:
    hub, queue = Hub(), FakeQueue()
    loop = PositionsLoop(queue, hub)
    await loop.tick(0.0)
    assert queue.asked == [], "without watchers no position is queried"
    queue.places = {"j": QueuePosition(3, 30.0, 1, 10.0), "other": QueuePosition(1, 0.0, 1, 10.0)}
    follower = following(hub)
    hub.opened("ada", ["j"])
    with hub.subscribe("j") as reader:
        for _ in range(3):
            await loop.tick(0.0)
        assert queue.asked[-1] == ["j"]
        assert waiting(reader) == waiting(follower) == [(events.POSITION, "j")]
        event = await reader.next(1)
        assert event is not None
        assert event.details == {"position": 3, "estimated_wait": {"low": 30.0, "high": 40.0}}


def test_positions_are_queried_only_for_watched_jobs() -> None:
    hub = Hub()
    with hub.subscribe("quiet", places=False), hub.subscribe("both", places=False):
        with hub.subscribe("both"), hub.subscribe("both"), hub.subscribe("placed"):
            assert sorted(hub.placed_here()) == ["both", "placed"]
        assert hub.placed_here() == []
        assert sorted(hub.jobs_here()) == ["both", "quiet"]
    following(hub)
    hub.opened("ada", ["ada's"])
    with hub.subscribe("ada's"):
        assert hub.placed_here() == ["ada's"]


async def test_a_notably_different_wait_is_sent_although_the_position_is_unchanged() -> None:
    hub, queue = Hub(), FakeQueue()
    loop = PositionsLoop(queue, hub)
    with hub.subscribe("j") as reader:
        for work, sent in ((30.0, True), (31.0, False), (29.0, False), (60.0, True), (60.5, False), (20.0, True)):
            queue.places = {"j": QueuePosition(3, work, 1, 10.0)}
            await loop.tick(0.0)
            assert bool(waiting(reader)) is sent, work
            if sent:
                await reader.next(1)


async def test_a_queue_that_stalls_and_resumes_is_reported_although_the_position_is_unchanged() -> None:
    hub, queue = Hub(), FakeQueue()
    loop = PositionsLoop(queue, hub)
    with hub.subscribe("j") as reader:
        for undated, sent in ((False, True), (True, True), (True, False), (False, True), (False, False)):
            queue.places = {"j": QueuePosition(3, 30.0, 1, 10.0, undated=undated)}
            await loop.tick(0.0)
            assert bool(waiting(reader)) is sent
            if sent:
                event = await reader.next(1)
                assert event is not None
                assert (event.details["estimated_wait"] is None) is undated


async def test_positions_are_sent_less_often_to_more_watchers() -> None:
    hub, queue = Hub(), FakeQueue()
    loop = PositionsLoop(queue, hub)
    many = 3 * MOST_A_SECOND
    queue.places = {f"j{number}": QueuePosition(number, 1.0, 1, 1.0) for number in range(many)}
    for job_id in queue.places:
        hub.follow(job_id, Subscription())
    assert await loop.tick(100.0) >= 103.0
    assert await loop.tick(200.0) < 202.0, "nothing has changed"


# ---------------------------------------------------------------- callers that await the end of a job


class Carried:
    """Records the topics of which other processes are notified."""

    def __init__(self) -> None:
        self.topics: list[str] = []

    def send(self, topic: str, event: Event) -> None: ...

    def watch(self, topic: str) -> None:
        self.topics.append(topic)

    def unwatch(self, topic: str) -> None: ...


async def test_a_caller_that_awaits_an_end_gets_it_as_it_was_written() -> None:
    hub = Hub()
    end = hub.await_end("j1", asyncio.get_running_loop())
    ended = EndedJob("j1", JobStatus.COMPLETED, Priority.MEDIUM, {"a": 1})
    hub.end_written("j2", ended)
    assert not end.done()
    hub.end_written("j1", ended)
    assert await end is ended
    hub.forget_end("j1", end)
    assert not hub.awaits_end("j1")


async def test_an_end_in_another_process_must_be_read_and_costs_no_subscription() -> None:
    hub, carrier = Hub(), Carried()
    hub.connect(carrier)
    first, second = hub.await_end("j1", asyncio.get_running_loop()), hub.await_end("j1", asyncio.get_running_loop())
    assert carrier.topics == []
    assert hub.is_watched_here("j1")
    hub.ended("j1", 0.0)
    assert (await first, await second) == (None, None)


async def test_callers_that_await_an_end_are_dismissed_when_the_process_stops() -> None:
    hub = Hub()
    end = hub.await_end("j1", asyncio.get_running_loop())
    hub.dismiss()
    with pytest.raises(ShuttingDown):
        await end
