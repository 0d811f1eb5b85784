"""What crosses between processes: events of watched jobs, ends, and stops."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from typing import Any

import pytest

from fairlead.dispatch.port import Heard, Lease
from fairlead.runtime import events
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.crossing import Crossing
from fairlead.runtime.events import Event, Hub, Subscription, topic_of


class Wire:
    """All processes' buses hang on it."""

    def __init__(self) -> None:
        self.buses: list[OnWire] = []
        self.sent: list[str] = []


class OnWire:
    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.channels: set[str] = set()
        wire.buses.append(self)

    async def start(self, channels: Sequence[str], heard: Heard, began: Callable[[], None] | None = None) -> None:
        self.channels.update(channels)
        self.heard, self.began = heard, began

    def listen(self, channel: str) -> None:
        self.channels.add(channel)

    def unlisten(self, channel: str) -> None:
        self.channels.discard(channel)

    def send(self, channel: str, message: bytes) -> None:
        self.wire.sent.append(channel)
        for bus in self.wire.buses:
            if channel in bus.channels:
                bus.heard(channel, message)

    async def listened(self, pattern: str) -> frozenset[str]:
        return frozenset(c for bus in self.wire.buses for c in bus.channels if fnmatch(c, pattern))

    async def close(self) -> None: ...


_numbers = itertools.count(1)


class Process:
    def __init__(self, wire: Wire) -> None:
        self.hub = Hub()
        self.name = f"process {next(_numbers)}"
        self.stopped: list[tuple[str, int | None]] = []
        self.offered: list[tuple[str, Lease]] = []
        self.adopted: list[str] = []
        self.bus = OnWire(wire)
        self.crossing = Crossing(self.bus, self.hub, SystemClock(), self)

    def stop_job(self, job_id: str, run: int | None = None) -> None:
        self.stopped.append((job_id, run))

    def turn_offered(self, shard: str, lease: Lease) -> None:
        self.offered.append((shard, lease))

    def turn_adopted(self, turn_id: str) -> None:
        self.adopted.append(turn_id)


async def two(wire: Wire) -> tuple[Process, Process]:
    here, there = Process(wire), Process(wire)
    await here.crossing.start()
    await there.crossing.start()
    return here, there


def said(kind: str, job_id: str, **details: Any) -> Event:
    return Event(kind, job_id, 1_700_000_000.25, "said", details)


async def test_an_event_reaches_the_watchers_of_another_process_once_each() -> None:
    here, there = await two(Wire())
    with there.hub.subscribe("j") as far, here.hub.subscribe("j") as near:
        assert here.hub.watched("j", "ada")
        event = said(events.PROGRESS, "j", fraction=0.5)
        here.hub.publish(event, "ada")
        assert await far.next(1) == event
        assert await near.next(1) == event
        assert await near.next(0.01) is None
    await here.crossing.close()
    await there.crossing.close()


async def test_what_nobody_watches_is_not_sent() -> None:
    wire = Wire()
    here, there = await two(wire)
    assert not here.hub.watched("j", "ada")
    here.hub.publish(said(events.PROGRESS, "j"), "ada")
    assert wire.sent == []
    await here.crossing.close()
    await there.crossing.close()


async def test_the_followers_of_a_user_hear_of_that_user_elsewhere_and_of_no_other() -> None:
    wire = Wire()
    here, there = await two(wire)
    follower = Subscription()
    there.hub.follow(topic_of("ada"), follower)
    with there.hub.subscribe("j1") as watcher:
        for number, user_id in enumerate(("grace", "ada", "ada")):
            here.hub.publish(said(events.WAITING, f"j{number}"), user_id)
        assert [event.job_id for event in follower.waiting()] == ["j1", "j2"]
        assert [event.job_id for event in watcher.waiting()] == ["j1"]
    assert wire.sent.count("ws:user:ada") == 2
    assert "ws:user:grace" not in wire.sent
    here.crossing.ended("j2")
    await asyncio.sleep(0)
    assert [event.type for event in follower.waiting()][-1] == events.ENDED
    there.hub.unfollow(topic_of("ada"), follower)
    assert there.bus.channels.isdisjoint({"ws:user:ada", "ws:j1"})
    await here.crossing.close()
    await there.crossing.close()


async def test_after_a_lost_connection_all_hear_who_listens_and_watchers_look_twice(monkeypatch: Any) -> None:
    monkeypatch.setattr("fairlead.runtime.crossing.SETTLED_AFTER", 0.01)
    here, there = await two(Wire())
    with there.hub.subscribe("j") as watcher:
        here.hub.elsewhere.clear()
        assert there.bus.began is not None
        there.bus.began()
        assert here.hub.elsewhere == {"j"}
        for _ in range(2):
            heard = await watcher.next(10)
            assert heard is not None
            assert (heard.type, heard.job_id) == (events.MISSED, "j")
    await here.crossing.close()
    await there.crossing.close()


async def test_ends_are_told_together_and_wake_who_waits() -> None:
    wire = Wire()
    here, there = await two(wire)
    with there.hub.subscribe("j2") as far:
        for number in range(3):
            here.crossing.ended(f"j{number}")
        heard = await far.next(5)
        assert heard is not None
        assert heard.type == events.ENDED
    assert wire.sent.count("fairlead:ended") == 1
    await here.crossing.close()
    await there.crossing.close()


async def test_a_stop_goes_to_all_with_its_run() -> None:
    here, there = await two(Wire())
    here.crossing.stop("j", 7)
    assert there.stopped == [("j", 7)]
    await here.crossing.close()
    await there.crossing.close()


async def test_a_turn_is_offered_to_its_callers_process_alone_and_so_is_its_adoption() -> None:
    here, there = await two(Wire())
    lease = Lease("1:7", "t", 0, 3, "flux", "ann", "host:1:ab/-turns", 10.0, 25.0, scope="service:flux")
    here.crossing.offer_turn(there.name, "main", lease)
    assert (here.offered, there.offered) == ([], [("main", lease)])
    here.crossing.adopt_turn(there.name, "t")
    assert (here.adopted, there.adopted) == ([], ["t"])


async def test_the_end_of_a_turn_is_heard_where_its_caller_is_and_that_of_a_job_is_not() -> None:
    turn = "01890000-0000-8000-8000-000000000001"
    here, there = await two(Wire())
    here.crossing.ended(turn)
    here.crossing.ended("job")
    await asyncio.sleep(0)
    assert there.stopped == [(turn, None)]


async def test_nonsense_on_a_channel_stops_nobody() -> None:
    wire = Wire()
    here, there = await two(wire)
    with there.hub.subscribe("j") as far:
        for channel in ("ws:j", "fairlead:stop"):
            wire.buses[0].send(channel, b"\xff{")
        here.hub.publish(said(events.PROGRESS, "j"), "ada")
        heard = await far.next(5)
        assert heard is not None
    await here.crossing.close()
    await there.crossing.close()


async def test_who_listens_is_learnt_from_the_server_itself(monkeypatch: Any) -> None:
    monkeypatch.setattr("fairlead.runtime.crossing.LOOK_EVERY", 0.01)
    wire = Wire()
    here, there = await two(wire)
    OnWire(wire).channels.add("ws:outsider")
    while not here.hub.watched("outsider", "ada"):
        await asyncio.sleep(0.01)
    await here.crossing.close()
    await there.crossing.close()


async def test_a_process_hears_its_own_echo_unless_messages_are_lost(monkeypatch: Any) -> None:
    monkeypatch.setattr("fairlead.runtime.crossing.ECHO_EVERY", 0.01)
    wire = Wire()
    here, there = await two(wire)
    assert all(seconds >= 0 for seconds in await asyncio.gather(here.crossing.echo(), here.crossing.echo()))
    wire.buses.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await here.crossing.echo()
    await here.crossing.close()
    await there.crossing.close()
