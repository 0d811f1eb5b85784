"""The dispatcher while Redis refuses connections, hangs, or comes back."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Iterator

import pytest

from fairlead.dispatch.port import Claim
from fairlead.dispatch.redis import RedisDispatcher, RedisLeadership, RedisPubSub, client, errors, pubsub, servers
from fairlead.dispatch.redis.client import ScriptClient
from fairlead.domain.rules import Rules, ServiceRules
from fairlead.errors import Unavailable
from tests.integration.test_redis_server_identity import SCOPE, operations
from tests.redis_servers import Server

RULES = Rules({"s": ServiceRules("s", limit=1)}, version=1)
SOON_S = 2.0


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operation connects at once. test_redis_reconnects.py tests the pauses between attempts."""
    monkeypatch.setattr(errors.Pause, "begin", lambda self, cause, lengths: None)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.kill()


@pytest.fixture
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> float:
    timeout = 0.3
    monkeypatch.setattr(client, "SOCKET_TIMEOUT_S", timeout)
    monkeypatch.setattr(servers, "SOCKET_TIMEOUT_S", timeout)
    return timeout


def dispatcher_on(server: Server) -> RedisDispatcher:
    return RedisDispatcher(server.url, prefix=f"test-{secrets.token_hex(6)}")


async def opened(dispatcher: RedisDispatcher) -> None:
    await dispatcher.configure(RULES)
    await dispatcher.close_scope(SCOPE, 1)
    await dispatcher.open_scope(SCOPE, 1)


async def all_fail(dispatcher: RedisDispatcher, within: float) -> None:
    for operation in [*operations(dispatcher), lambda: dispatcher.states([SCOPE])]:
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await operation()
        assert time.monotonic() - began < within
    began = time.monotonic()
    with pytest.raises(Unavailable):
        dispatcher.renew("w", ["1:1"])
    assert time.monotonic() - began < within


async def test_a_server_that_refuses_connections_is_unavailable_at_once(server: Server) -> None:
    dispatcher = dispatcher_on(server)
    await all_fail(dispatcher, SOON_S)
    server.start()
    await opened(dispatcher)
    assert (await dispatcher.states([SCOPE]))[SCOPE].open, "and everything works as soon as it is there"
    server.kill()
    await all_fail(dispatcher, SOON_S)
    await dispatcher.close()


async def test_a_server_that_hangs_is_unavailable_after_the_timeout(server: Server, short_timeout: float) -> None:
    server.start()
    dispatcher = dispatcher_on(server)
    await opened(dispatcher)
    dispatcher.renew("w", [])
    server.freeze()
    await all_fail(dispatcher, short_timeout + 1)
    server.thaw()
    assert (await dispatcher.states([SCOPE]))[SCOPE].open
    await dispatcher.close()


async def test_start_and_close_do_not_wait_for_the_server(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = dispatcher_on(server)
    began = time.monotonic()
    await dispatcher.start()
    await dispatcher.close()
    assert time.monotonic() - began < SOON_S


async def test_closing_does_not_wait_for_a_server_that_hangs(server: Server) -> None:
    server.start()
    dispatcher = dispatcher_on(server)
    await dispatcher.start()
    await asyncio.wait_for(dispatcher._wakeups.subscribed.wait(), 10)
    await opened(dispatcher)
    await dispatcher.exchange(Claim("w", 1, frozenset({"s"})))  # registers this process as waiting; close() removes it
    server.freeze()
    began = time.monotonic()
    await dispatcher.close()
    assert time.monotonic() - began < SOON_S


async def test_wakeups_arrive_once_the_server_is_up_and_again_after_an_outage(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub, "_RETRY_S", 0.01)
    tried = asyncio.Queue[None]()
    connect = ScriptClient.connect

    async def counted(self: ScriptClient) -> object:
        tried.put_nowait(None)
        return await connect(self)

    monkeypatch.setattr(ScriptClient, "connect", counted)
    dispatcher = dispatcher_on(server)
    listening = dispatcher._wakeups.subscribed
    with caplog.at_level(logging.WARNING):
        await dispatcher.start()
        for _ in range(5):
            await asyncio.wait_for(tried.get(), 10)
        assert len(caplog.records) == 1, "once, not at every attempt"
        server.start()
        await asyncio.wait_for(listening.wait(), 10)
        wakeups: asyncio.Queue[frozenset[str]] = asyncio.Queue()
        dispatcher.on_wake(wakeups.put_nowait)
        server.client.publish(f"{dispatcher._scopes.prefix}:wake:{dispatcher._scopes.process}", "s")
        assert await asyncio.wait_for(wakeups.get(), 10) == {"s"}
        await opened(dispatcher)
        server.kill()
        while tried.qsize():
            tried.get_nowait()
        for _ in range(5):
            await asyncio.wait_for(tried.get(), 10)
        assert len(caplog.records) == 2
        server.start()
        await asyncio.wait_for(listening.wait(), 10)
        while not wakeups.empty():  # drop the wakeup for all services
            assert await wakeups.get() == {"s"}
        server.client.publish(f"{dispatcher._scopes.prefix}:wake:{dispatcher._scopes.process}", "other")
        assert await asyncio.wait_for(wakeups.get(), 10) == {"other"}
    await dispatcher.close()


async def test_rules_that_could_not_be_sent_are_sent_later(server: Server) -> None:
    dispatcher = dispatcher_on(server)
    with pytest.raises(Unavailable):
        await dispatcher.configure(RULES)
    server.start()
    await dispatcher.configure(RULES)
    (seen,) = await dispatcher.snapshot()
    assert (seen.service, seen.limit) == ("s", 1)
    await dispatcher.close()


async def test_a_service_that_could_not_be_registered_is_registered_later(server: Server) -> None:
    server.start()
    dispatcher, another = dispatcher_on(server), RedisDispatcher(server.url, prefix="same")
    dispatcher._scopes.prefix = "same"
    server.kill()
    (_, offer, *_) = operations(dispatcher)
    with pytest.raises(Unavailable):
        await offer()
    server.start()
    await offer()
    assert [seen.service for seen in await another.snapshot()] == ["s"]
    for each in (dispatcher, another):
        await each.close()


async def test_leadership_and_pubsub_are_unavailable_too(server: Server) -> None:
    leadership = RedisLeadership(server.url, prefix="p", holder="a")
    for operation in (leadership.acquire(1), leadership.renew(), leadership.resign(), leadership.leader()):
        with pytest.raises(Unavailable):
            await operation
    bus = RedisPubSub(server.url)
    await bus.start(["c"], lambda channel, message: None)
    with pytest.raises(Unavailable):
        await bus.active_channels("*")
    bus.send("c", b"lost")
    began = time.monotonic()
    await leadership.close()
    await bus.close()
    assert time.monotonic() - began < SOON_S


async def test_a_cancelled_call_leaves_no_reply_for_the_next_one(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.start()
    monkeypatch.setattr(client, "MAX_CONNECTIONS", 4)
    shared = ScriptClient(server.url)
    chance = random.Random(7)
    answered = 0

    async def ask(number: int) -> None:
        nonlocal answered
        assert await shared.command("ECHO", str(number)) == str(number).encode()
        answered += 1

    for round_ in range(60):
        tasks = [asyncio.create_task(ask(round_ * 100 + i)) for i in range(12)]
        for _ in range(chance.randrange(12)):
            await asyncio.sleep(0)
        for task in chance.sample(tasks, 6):
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert outcome is None or isinstance(outcome, asyncio.CancelledError), outcome
    assert answered > 300
    await shared.close()


async def test_many_calls_at_once_share_few_connections(server: Server) -> None:
    server.start()
    dispatcher = dispatcher_on(server)
    await opened(dispatcher)
    before = server.client.info("stats")["total_connections_received"]
    await asyncio.gather(*(dispatcher.positions(["job"]) for _ in range(500)))
    assert server.client.info("stats")["total_connections_received"] - before <= client.MAX_CONNECTIONS
    await dispatcher.close()
