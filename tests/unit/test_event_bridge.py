"""What crosses between processes: events of watched jobs, job ends and stop requests."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from typing import Any

import pytest

from fairlead.dispatch.messages import MessageHandler
from fairlead.dispatch.port import Lease
from fairlead.domain import events
from fairlead.domain.events import Event
from fairlead.domain.output import Entry
from fairlead.engine.clock import SystemClock
from fairlead.engine.event_bridge import EventBridge
from fairlead.engine.events import Hub, Subscription, output_topic_of, topic_of


class Network:
    """Connects the buses of all processes."""

    def __init__(self) -> None:
        self.buses: list[FakeBus] = []
        self.sent: list[str] = []


class FakeBus:
    def __init__(self, network: Network) -> None:
        self.network = network
        self.channels: set[str] = set()
        network.buses.append(self)

    async def start(
        self, channels: Sequence[str], on_message: MessageHandler, on_connect: Callable[[], None] | None = None
    ) -> None:
        self.channels.update(channels)
        self.on_message, self.on_connect = on_message, on_connect

    def subscribe(self, channel: str) -> None:
        self.channels.add(channel)

    def unsubscribe(self, channel: str) -> None:
        self.channels.discard(channel)

    def send(self, channel: str, message: bytes) -> None:
        self.network.sent.append(channel)
        for bus in self.network.buses:
            if channel in bus.channels:
                bus.on_message(channel, message)

    async def active_channels(self, pattern: str) -> frozenset[str]:
        return frozenset(c for bus in self.network.buses for c in bus.channels if fnmatch(c, pattern))

    async def close(self) -> None: ...


_numbers = itertools.count(1)


class Process:
    def __init__(self, network: Network) -> None:
        self.hub = Hub()
        self.name = f"process {next(_numbers)}"
        self.stopped: list[tuple[str, int | None]] = []
        self.offered: list[tuple[str, Lease]] = []
        self.adopted: list[str] = []
        self.bus = FakeBus(network)
        self.event_bridge = EventBridge(self.bus, self.hub, SystemClock(), self)

    def stop_job(self, job_id: str, run: int | None = None) -> None:
        self.stopped.append((job_id, run))

    def turn_offered(self, shard: str, lease: Lease) -> None:
        self.offered.append((shard, lease))

    def turn_adopted(self, turn_id: str) -> None:
        self.adopted.append(turn_id)


async def two(network: Network) -> tuple[Process, Process]:
    here, there = Process(network), Process(network)
    await here.event_bridge.start()
    await there.event_bridge.start()
    return here, there


def event_of(kind: str, job_id: str, **details: Any) -> Event:
    return Event(kind, job_id, 1_700_000_000.25, "name", details)


async def test_an_event_reaches_each_watcher_in_another_process_once() -> None:
    here, there = await two(Network())
    with there.hub.subscribe("j") as far, here.hub.subscribe("j") as near:
        assert here.hub.watched("j", "ada")
        event = event_of(events.PROGRESS, "j", fraction=0.5)
        here.hub.publish(event, "ada")
        assert await far.next(1) == event
        assert await near.next(1) == event
        assert await near.next(0.01) is None
    await here.event_bridge.close()
    await there.event_bridge.close()


async def test_unwatched_events_are_not_sent() -> None:
    network = Network()
    here, there = await two(network)
    assert not here.hub.watched("j", "ada")
    here.hub.publish(event_of(events.PROGRESS, "j"), "ada")
    assert network.sent == []
    await here.event_bridge.close()
    await there.event_bridge.close()


async def test_followers_of_a_user_receive_only_that_users_events() -> None:
    network = Network()
    here, there = await two(network)
    follower = Subscription()
    there.hub.follow(topic_of("ada"), follower)
    with there.hub.subscribe("j1") as watcher:
        for number, user_id in enumerate(("grace", "ada", "ada")):
            here.hub.publish(event_of(events.WAITING, f"j{number}"), user_id)
        assert [event.job_id for event in follower.waiting()] == ["j1", "j2"]
        assert [event.job_id for event in watcher.waiting()] == ["j1"]
    assert network.sent.count("ws:user:ada") == 2
    assert "ws:user:grace" not in network.sent
    here.event_bridge.ended("j2")
    await asyncio.sleep(0)
    assert [event.type for event in follower.waiting()][-1] == events.ENDED
    there.hub.unfollow(topic_of("ada"), follower)
    assert there.bus.channels.isdisjoint({"ws:user:ada", "ws:j1"})
    await here.event_bridge.close()
    await there.event_bridge.close()


async def test_after_a_lost_connection_interests_are_announced_and_watchers_refresh(monkeypatch: Any) -> None:
    monkeypatch.setattr("fairlead.engine.event_bridge.SETTLED_AFTER", 0.01)
    here, there = await two(Network())
    with there.hub.subscribe("j") as watcher:
        here.hub.elsewhere.clear()
        assert there.bus.on_connect is not None
        there.bus.on_connect()
        assert here.hub.elsewhere == {"j"}
        for _ in range(2):
            received = await watcher.next(10)
            assert received is not None
            assert (received.type, received.job_id) == (events.MISSED, "j")
    await here.event_bridge.close()
    await there.event_bridge.close()


async def test_ends_are_sent_together_and_wake_waiters() -> None:
    network = Network()
    here, there = await two(network)
    with there.hub.subscribe("j2") as far:
        for number in range(3):
            here.event_bridge.ended(f"j{number}")
        received = await far.next(5)
        assert received is not None
        assert received.type == events.ENDED
    assert network.sent.count("fairlead:ended") == 1
    await here.event_bridge.close()
    await there.event_bridge.close()


async def test_a_stop_is_sent_to_all_processes_with_its_run() -> None:
    here, there = await two(Network())
    here.event_bridge.stop("j", 7)
    assert there.stopped == [("j", 7)]
    await here.event_bridge.close()
    await there.event_bridge.close()


async def test_a_turn_is_offered_and_adopted_in_its_callers_process_only() -> None:
    here, there = await two(Network())
    lease = Lease("1:7", "t", 0, 3, "flux", "ann", "host:1:ab/-turns", 10.0, 25.0, scope="service:flux")
    here.event_bridge.offer_turn(there.name, "main", lease)
    assert (here.offered, there.offered) == ([], [("main", lease)])
    here.event_bridge.adopt_turn(there.name, "t")
    assert (here.adopted, there.adopted) == ([], ["t"])


async def test_the_end_of_a_turn_is_sent_to_its_callers_process_and_that_of_a_job_is_not() -> None:
    turn = "01890000-0000-8000-8000-000000000001"
    here, there = await two(Network())
    here.event_bridge.ended(turn)
    here.event_bridge.ended("job")
    await asyncio.sleep(0)
    assert there.stopped == [(turn, None)]


async def test_malformed_messages_are_ignored() -> None:
    network = Network()
    here, there = await two(network)
    with there.hub.subscribe("j") as far:
        for channel in ("ws:j", "fairlead:stop"):
            network.buses[0].send(channel, b"\xff{")
        here.hub.publish(event_of(events.PROGRESS, "j"), "ada")
        received = await far.next(5)
        assert received is not None
    await here.event_bridge.close()
    await there.event_bridge.close()


async def test_interests_are_read_from_the_server(monkeypatch: Any) -> None:
    monkeypatch.setattr("fairlead.engine.event_bridge.LOOK_EVERY", 0.01)
    network = Network()
    here, there = await two(network)
    FakeBus(network).channels.add("ws:outsider")
    while not here.hub.watched("outsider", "ada"):
        await asyncio.sleep(0.01)
    await here.event_bridge.close()
    await there.event_bridge.close()


async def test_a_process_receives_its_own_echo_unless_messages_are_lost(monkeypatch: Any) -> None:
    monkeypatch.setattr("fairlead.engine.event_bridge.ECHO_EVERY", 0.01)
    network = Network()
    here, there = await two(network)
    assert all(seconds >= 0 for seconds in await asyncio.gather(here.event_bridge.echo(), here.event_bridge.echo()))
    network.buses.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await here.event_bridge.echo()
    await here.event_bridge.close()
    await there.event_bridge.close()


# ---------------------------------------------------------------- messages of other programs


async def test_a_message_of_another_program_reaches_the_readers_of_its_job() -> None:
    here, _ = await two(Network())
    with here.hub.subscribe("job-123") as reader:
        here.bus.on_message("ws:job-123", b'{"type":"TEST","n":1}')
        event = await reader.next(0)
    assert event is not None
    shown = event.as_dict()
    assert {"type": "TEST", "job_id": "job-123", "message": "", "n": 1}.items() <= shown.items()
    assert shown["at"].endswith("Z")


@pytest.mark.parametrize(
    "message",
    [
        b"hello",
        b"\xff",
        b"[]",
        b"null",
        b"{}",
        b'{"type": 1}',
        b'{"type": "TEST\\nevent: JOB_COMPLETE"}',
        b'{"type": "JOB_COMPLETE"}',
        b'{"type": "TURN_LOST"}',
        b'{"type": "refuse"}',
        b'{"type": "OUTPUT"}',
        b'{"type": "TEST", "job_id": "another"}',
        b'{"type": "TEST", "at": 5}',
        b'{"type": "TEST", "at": "now"}',
        b'{"type": "TEST", "message": {}}',
        b'{"type": "TEST", "process": "x"}',
        b'{"type": "TEST", "pad": "' + b"x" * 20_000 + b'"}',
    ],
    ids=lambda message: message[:40].decode(errors="replace"),
)
async def test_what_readers_would_not_understand_is_ignored_with_one_line(
    message: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    here, _ = await two(Network())
    with here.hub.subscribe("job-123") as reader:
        here.bus.on_message("ws:job-123", message)
        assert list(reader.waiting()) == []
    (record,) = caplog.records
    assert "ws:job-123" in record.getMessage()
    assert record.exc_info is None
    assert len(record.getMessage()) < 300


@pytest.mark.parametrize("topic", [topic_of("ada"), output_topic_of("job-123")])
async def test_messages_of_other_programs_for_a_user_or_an_output_are_ignored(topic: str) -> None:
    here, _ = await two(Network())
    reader = Subscription()
    here.hub.follow(topic, reader)
    here.bus.on_message(f"ws:{topic}", b'{"type": "TEST", "job_id": "job-123"}')
    assert list(reader.waiting()) == []


async def test_the_output_of_a_job_reaches_its_readers_in_other_processes() -> None:
    here, there = await two(Network())
    reader, other = Subscription(), Subscription()
    there.hub.follow(output_topic_of("job-123"), reader)
    there.hub.follow("job-123", other)
    here.hub.elsewhere.add(output_topic_of("job-123"))
    entry = Entry("job-123", 3, 0, 1, 7, ['"a"', '{"b":1}'])
    here.hub.publish_output(entry)
    event = await reader.next(0)
    assert event is not None
    assert Entry.of_list(event.job_id, event.details["entry"]) == entry
    assert list(other.waiting()) == []
    assert there.hub.jobs_here() == ["job-123"]
