"""Pub/sub between processes, on a server and on a Cluster."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator

import pytest

from fairlead.dispatch.redis import RedisPubSub, pubsub
from tests.redis_servers import Server, cluster_url, server_url


class Process:
    """The pub/sub of one process, and the messages it receives."""

    def __init__(self, url: str) -> None:
        self.bus = RedisPubSub(url)
        self.messages: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    async def start(self, *channels: str) -> None:
        await self.bus.start(channels, lambda channel, message: self.messages.put_nowait((channel, message)))
        await asyncio.wait_for(self.bus.subscribed.wait(), 10)

    async def receives(self) -> tuple[str, bytes]:
        return await asyncio.wait_for(self.messages.get(), 10)

    async def until_listened(self, channel: str, *, listened: bool = True) -> None:
        async with asyncio.timeout(10):
            while (channel in await self.bus.active_channels(channel)) is not listened:
                await asyncio.sleep(0.01)


@pytest.fixture(params=["server", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    return server_url() if request.param == "server" else cluster_url()


@pytest.fixture
async def pair(url: str) -> AsyncIterator[tuple[Process, Process]]:
    first, second = Process(url), Process(url)
    yield first, second
    await first.bus.close()
    await second.bus.close()


@pytest.fixture
def job() -> str:
    return f"ws:{secrets.token_hex(6)}"


async def test_a_message_reaches_all_subscribers_under_the_channels_own_name(
    pair: tuple[Process, Process], job: str
) -> None:
    first, second = pair
    await first.start(job)
    await second.start(job, f"{job}-other")
    first.bus.send(job, b"\x00 any bytes \xff")
    assert await first.receives() == await second.receives() == (job, b"\x00 any bytes \xff")
    first.bus.send(f"{job}-other", b"2")
    assert await second.receives() == (f"{job}-other", b"2")
    assert first.messages.empty()


async def test_messages_of_one_process_keep_their_order(pair: tuple[Process, Process], job: str) -> None:
    first, second = pair
    await second.start(job)
    for number in range(500):
        first.bus.send(job, str(number).encode())
    assert [(await second.receives())[1] for _ in range(500)] == [str(number).encode() for number in range(500)]


async def test_channels_can_be_added_and_removed_while_running(pair: tuple[Process, Process], job: str) -> None:
    first, second = pair
    await first.start()
    assert await second.bus.active_channels(f"{job}*") == frozenset()
    first.bus.subscribe(job)
    first.bus.subscribe(f"{job}-2")
    await second.until_listened(job)
    assert await second.bus.active_channels(f"{job}*") == {job, f"{job}-2"}
    second.bus.send(job, b"1")
    assert await first.receives() == (job, b"1")
    first.bus.unsubscribe(job)
    await second.until_listened(job, listened=False)
    second.bus.send(job, b"2")
    second.bus.send(f"{job}-2", b"3")
    assert await first.receives() == (f"{job}-2", b"3"), "and no earlier message"


async def test_a_handler_that_fails_still_receives_the_next_message(pair: tuple[Process, Process], job: str) -> None:
    first, second = pair
    messages: asyncio.Queue[bytes] = asyncio.Queue()

    def fails_once(channel: str, message: bytes) -> None:
        if message == b"bad":
            raise ValueError(message)
        messages.put_nowait(message)

    await first.bus.start([job], fails_once)
    await asyncio.wait_for(first.bus.subscribed.wait(), 10)
    second.bus.send(job, b"bad")
    second.bus.send(job, b"good")
    assert await asyncio.wait_for(messages.get(), 10) == b"good"


async def test_messages_sent_before_close_are_delivered(pair: tuple[Process, Process], job: str) -> None:
    first, second = pair
    await first.start(job)
    second.bus.send(job, b"last words")
    await second.bus.close()
    assert await first.receives() == (job, b"last words")
    second.bus.send(job, b"too late")
    assert second.bus.dropped == 1


# -- outages
# ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.kill()


async def test_all_channels_are_subscribed_again_after_an_outage(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub, "_RETRY_S", 0.01)
    monkeypatch.setattr(pubsub, "_PAUSE_S", 0.01)
    process = Process(server.url)
    await process.bus.start(["a"], lambda channel, message: process.messages.put_nowait((channel, message)))
    process.bus.subscribe("b")
    process.bus.send("a", b"dropped")
    async with asyncio.timeout(10):
        while process.bus.dropped == 0:
            await asyncio.sleep(0.01)
    for message in (b"1", b"2"):
        await asyncio.to_thread(server.start)
        await asyncio.wait_for(process.bus.subscribed.wait(), 10)
        await process.until_listened("b")
        process.bus.subscribe("c")
        await process.until_listened("c")
        for channel in ("a", "b", "c"):
            process.bus.send(channel, message)
            assert await process.receives() == (channel, message)
        await asyncio.to_thread(server.kill)
        async with asyncio.timeout(10):
            while process.bus.subscribed.is_set():
                await asyncio.sleep(0.01)
    await process.bus.close()


async def test_a_silent_connection_is_replaced(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubsub, "_RETRY_S", 0.01)
    monkeypatch.setattr(pubsub, "_PING_S", 0.05)
    server.start()
    process = Process(server.url)
    await process.start("a")
    server.freeze()
    async with asyncio.timeout(10):
        while process.bus.subscribed.is_set():
            await asyncio.sleep(0.01)
    server.thaw()
    await asyncio.wait_for(process.bus.subscribed.wait(), 10)
    process.bus.send("a", b"1")
    assert await process.receives() == ("a", b"1")
    await process.bus.close()


async def test_a_full_buffer_drops_and_counts_the_oldest_messages(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub, "MAX_BUFFERED", 10)
    server.start()
    process = Process(server.url)
    await process.start("a")
    for number in range(25):  # all in one iteration of the loop
        process.bus.send("a", str(number).encode())
    assert process.bus.dropped == 15
    assert [(await process.receives())[1] for _ in range(10)] == [str(number).encode() for number in range(15, 25)]
    await process.bus.close()


async def test_messages_of_one_iteration_of_the_loop_are_sent_together(server: Server) -> None:
    server.start()
    process = Process(server.url)
    await process.start("a")
    process.bus.send("a", b"first")
    await process.receives()
    monitored = server.client.info("stats")["total_net_input_bytes"]
    reads = server.client.info("stats")["total_reads_processed"]
    for number in range(100):
        process.bus.send("a", str(number).encode())
    for _ in range(100):
        await process.receives()
    stats = server.client.info("stats")
    assert stats["total_net_input_bytes"] > monitored
    assert stats["total_reads_processed"] - reads < 10
    await process.bus.close()
