"""Redis was away and is back: every component of a process continues at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from fairlead.dispatch.redis import RedisLeadership, RedisPubSub, errors, pubsub
from fairlead.dispatch.redis.client import ScriptClient
from fairlead.errors import Unavailable
from tests.redis_servers import Server

PATIENCE = 20.0
NEVER_S = 3600.0


class StoppedClock:
    """The clock of the pauses: they only end when a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def pass_pause(self) -> None:
        self.now += NEVER_S


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    clock = StoppedClock()
    monkeypatch.setattr(errors, "time", clock)
    for lengths in ("DOWN_S", "REFUSED_S"):
        monkeypatch.setattr(f"fairlead.dispatch.redis.connection.{lengths}", (NEVER_S, NEVER_S))
    return clock


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server().start()
    yield server
    server.kill()


async def away(client: ScriptClient, server: Server) -> None:
    """Stop the server until a call has failed, which begins the pause; then start it again."""
    server.kill()
    with pytest.raises(Unavailable, match="cannot connect"):
        await client.command("GET", "key")
    server.start()


async def test_a_server_that_answers_ends_the_pause_even_if_its_identity_is_refused(
    server: Server, clock: StoppedClock
) -> None:
    """Claims are refused until the leader has rebuilt the queue, and they are tried often. The leader must not wait for
    the pause that they keep up."""
    leadership = RedisLeadership(server.url, holder="a")
    claims = ScriptClient(server.url, admit=lambda identity: False)
    plain = ScriptClient(server.url)
    await away(plain, server)
    with pytest.raises(Unavailable):
        await leadership.acquire(1)
    clock.pass_pause()
    with pytest.raises(Unavailable, match=errors.NOT_OURS):
        await claims.command("GET", "key")
    assert await leadership.acquire(1)
    assert await plain.command("GET", "key") is None
    for each in (leadership, claims, plain):
        await each.close()


async def test_a_component_that_waits_to_retry_continues_once_the_server_has_answered_another(
    server: Server, clock: StoppedClock
) -> None:
    leadership, plain = RedisLeadership(server.url, holder="a"), ScriptClient(server.url)
    await away(plain, server)
    waiting = asyncio.create_task(leadership.wait_to_retry(NEVER_S))
    await asyncio.sleep(0)
    assert not waiting.done()
    clock.pass_pause()
    await plain.command("GET", "key")
    await asyncio.wait_for(waiting, PATIENCE)
    assert await leadership.acquire(1)
    for each in (leadership, plain):
        await each.close()


async def test_a_subscriber_reconnects_once_the_server_has_answered_another(
    server: Server, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub, "_RETRY_S", NEVER_S)
    connected = asyncio.Queue[None]()
    bus, plain = RedisPubSub(server.url), ScriptClient(server.url)
    await bus.start(["channel"], lambda channel, message: None, lambda: connected.put_nowait(None))
    await asyncio.wait_for(connected.get(), PATIENCE)
    server.kill()
    with pytest.raises(Unavailable):
        await plain.command("GET", "key")
    while not pause_of(plain)._waiting:
        await asyncio.sleep(0)
    server.start()
    clock.pass_pause()
    await plain.command("GET", "key")
    await asyncio.wait_for(connected.get(), PATIENCE)
    await bus.close()
    await plain.close()


def pause_of(client: ScriptClient) -> errors.Pause:
    (pool,) = client._pools.values()
    return pool.pause


async def test_waiting_components_make_one_attempt_per_pause(
    server: Server, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that wait wake up together when the pause is over, and one of them connects."""
    clients = [ScriptClient(server.url) for _ in range(5)]
    server.kill()
    attempts = 0

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.close()

    async def retry(client: ScriptClient) -> None:
        await client.wait_to_retry(NEVER_S)
        with pytest.raises(Unavailable):
            await client.command("GET", "key")

    async with await asyncio.start_server(accepted, "127.0.0.1", server.port):
        with pytest.raises(Unavailable):
            await clients[0].command("GET", "key")
        for expected in (2, 3):
            clock.pass_pause()
            await asyncio.gather(*map(retry, clients))
            assert attempts == expected
    for client in clients:
        await client.close()
