"""Messages between processes, on a server and on a Cluster."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator

import pytest

from fairlead.dispatch.redis import RedisBus, bus, subscriber
from tests.redis_servers import Server, cluster_url, server_url


class Process:
    """A bus as one process has it, and what it hears."""

    def __init__(self, url: str) -> None:
        self.bus = RedisBus(url)
        self.heard: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    async def start(self, *channels: str) -> None:
        await self.bus.start(channels, lambda channel, message: self.heard.put_nowait((channel, message)))
        await asyncio.wait_for(self.bus.listening.wait(), 10)

    async def hears(self) -> tuple[str, bytes]:
        return await asyncio.wait_for(self.heard.get(), 10)

    async def until_listened(self, channel: str, *, listened: bool = True) -> None:
        async with asyncio.timeout(10):
            while (channel in await self.bus.listened(channel)) is not listened:
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


async def test_a_message_is_heard_by_all_who_listen_under_the_channels_own_name(
    pair: tuple[Process, Process], job: str
) -> None:
    first, second = pair
    await first.start(job)
    await second.start(job, f"{job}-other")
    first.bus.send(job, b"\x00 any bytes \xff")
    assert await first.hears() == await second.hears() == (job, b"\x00 any bytes \xff")
    first.bus.send(f"{job}-other", b"2")
    assert await second.hears() == (f"{job}-other", b"2")
    assert first.heard.empty()


async def test_messages_of_one_process_keep_their_order(pair: tuple[Process, Process], job: str) -> None:
    first, second = pair
    await second.start(job)
    for number in range(500):
        first.bus.send(job, str(number).encode())
    assert [(await second.hears())[1] for _ in range(500)] == [str(number).encode() for number in range(500)]


async def test_channels_come_and_go_while_it_runs(pair: tuple[Process, Process], job: str) -> None:
    first, second = pair
    await first.start()
    assert await second.bus.listened(f"{job}*") == frozenset()
    first.bus.listen(job)
    first.bus.listen(f"{job}-2")
    await second.until_listened(job)
    assert await second.bus.listened(f"{job}*") == {job, f"{job}-2"}
    second.bus.send(job, b"1")
    assert await first.hears() == (job, b"1")
    first.bus.unlisten(job)
    await second.until_listened(job, listened=False)
    second.bus.send(job, b"2")
    second.bus.send(f"{job}-2", b"3")
    assert await first.hears() == (f"{job}-2", b"3"), "and not what came before it"


async def test_a_listener_that_fails_hears_the_next_message_all_the_same(
    pair: tuple[Process, Process], job: str
) -> None:
    first, second = pair
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    def fails_once(channel: str, message: bytes) -> None:
        if message == b"bad":
            raise ValueError(message)
        heard.put_nowait(message)

    await first.bus.start([job], fails_once)
    await asyncio.wait_for(first.bus.listening.wait(), 10)
    second.bus.send(job, b"bad")
    second.bus.send(job, b"good")
    assert await asyncio.wait_for(heard.get(), 10) == b"good"


async def test_what_was_sent_before_the_end_still_goes(pair: tuple[Process, Process], job: str) -> None:
    first, second = pair
    await first.start(job)
    second.bus.send(job, b"last words")
    await second.bus.close()
    assert await first.hears() == (job, b"last words")
    second.bus.send(job, b"too late")
    assert second.bus.dropped == 1


# -- a server that goes and comes ------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.kill()


async def test_all_channels_are_heard_again_after_the_server_was_away(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriber, "_RETRY_S", 0.01)
    monkeypatch.setattr(bus, "_PAUSE_S", 0.01)
    process = Process(server.url)
    await process.bus.start(["a"], lambda channel, message: process.heard.put_nowait((channel, message)))
    process.bus.listen("b")
    process.bus.send("a", b"nobody hears this")
    async with asyncio.timeout(10):
        while process.bus.dropped == 0:
            await asyncio.sleep(0.01)
    for message in (b"1", b"2"):
        await asyncio.to_thread(server.start)
        await asyncio.wait_for(process.bus.listening.wait(), 10)
        await process.until_listened("b")
        process.bus.listen("c")
        await process.until_listened("c")
        for channel in ("a", "b", "c"):
            process.bus.send(channel, message)
            assert await process.hears() == (channel, message)
        await asyncio.to_thread(server.kill)
        async with asyncio.timeout(10):
            while process.bus.listening.is_set():
                await asyncio.sleep(0.01)
    await process.bus.close()


async def test_a_connection_on_which_nothing_is_heard_any_more_is_made_anew(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriber, "_RETRY_S", 0.01)
    monkeypatch.setattr(subscriber, "_PING_S", 0.05)
    server.start()
    process = Process(server.url)
    await process.start("a")
    server.freeze()
    async with asyncio.timeout(10):
        while process.bus.listening.is_set():
            await asyncio.sleep(0.01)
    server.thaw()
    await asyncio.wait_for(process.bus.listening.wait(), 10)
    process.bus.send("a", b"1")
    assert await process.hears() == ("a", b"1")
    await process.bus.close()


async def test_of_too_many_messages_the_oldest_are_dropped_and_counted(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus, "MOST_GATHERED", 10)
    server.start()
    process = Process(server.url)
    await process.start("a")
    for number in range(25):  # all in one turn of the loop
        process.bus.send("a", str(number).encode())
    assert process.bus.dropped == 15
    assert [(await process.hears())[1] for _ in range(10)] == [str(number).encode() for number in range(15, 25)]
    await process.bus.close()


async def test_what_is_sent_in_one_turn_of_the_loop_goes_together(server: Server) -> None:
    server.start()
    process = Process(server.url)
    await process.start("a")
    process.bus.send("a", b"first")
    await process.hears()
    monitored = server.client.info("stats")["total_net_input_bytes"]
    reads = server.client.info("stats")["total_reads_processed"]
    for number in range(100):
        process.bus.send("a", str(number).encode())
    for _ in range(100):
        await process.hears()
    stats = server.client.info("stats")
    assert stats["total_net_input_bytes"] > monitored
    assert stats["total_reads_processed"] - reads < 10
    await process.bus.close()
