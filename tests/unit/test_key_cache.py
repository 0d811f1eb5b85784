"""How often the cache reads keys from the database, its behaviour during an outage, and how requests end when their key
is revoked."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import replace

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairlead.domain.access import Key, Role, key_id_of, key_text, secret_hash
from fairlead.errors import Unavailable
from fairlead.gateway.credentials import (
    AGAIN_AFTER_S,
    ALL_AFTER_S,
    RENEW_AFTER_S,
    STALE_AFTER_S,
    Cookies,
    KeyCache,
    run_until_revoked,
)
from fairlead.gateway.permissions import Caller


class KeyStore:
    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.asked = 0
        self.reads = 0
        self.away = False
        self.now = 100.0
        self.gate = asyncio.Event()
        self.gate.set()

    async def count(self) -> tuple[int, int]:
        self.asked += 1
        counted = len(self.keys), sum(key.revoked_at is not None for key in self.keys)
        await self.gate.wait()
        if self.away:
            raise Unavailable("away")
        return counted

    async def read(self) -> list[Key]:
        self.reads += 1
        return list(self.keys)

    def add(self, role: Role = Role.ADMIN) -> str:
        text = new_text()
        key_id = key_id_of(text)
        assert key_id is not None
        self.keys.append(Key(key_id, role, None, "a key", secret_hash(text), 0.0))
        return text

    def revoke(self) -> None:
        self.keys = [replace(key, revoked_at=1.0) for key in self.keys]

    def cache(self, *, fake: bool = True) -> KeyCache:
        return KeyCache(self.read, self.count, lambda key_id: True, (lambda: self.now) if fake else time.monotonic)


def new_text() -> str:
    return key_text(secrets.token_hex(6), secrets.token_bytes(32))


async def test_concurrent_waiters_share_one_refresh() -> None:
    database = KeyStore()
    cache = database.cache()
    text = database.add()
    await asyncio.gather(*(cache.renew() for _ in range(50)))
    assert database.asked == 1
    assert not cache.old
    for _ in range(50):
        assert await cache.find(text) is not None
    assert database.asked == 1


async def test_a_revoked_key_is_refused_after_the_next_refresh() -> None:
    database = KeyStore()
    cache = database.cache()
    text = database.add()
    await cache.renew()
    database.revoke()
    assert await cache.find(text) is not None
    database.now += STALE_AFTER_S
    assert cache.old
    await cache.renew()
    assert await cache.find(text) is None
    assert not cache.empty, "a revoked key does not open what a missing one would"


async def test_the_cache_is_refreshed_in_the_background() -> None:
    database = KeyStore()
    cache = database.cache()
    await cache.renew()
    database.now += RENEW_AFTER_S
    database.gate.clear()
    await cache.renew()  # returns before the database has responded
    await asyncio.sleep(0)
    assert database.asked == 2
    database.gate.set()


async def test_a_new_key_is_found_right_after_a_refresh() -> None:
    database = KeyStore()
    cache = database.cache(fake=False)
    await cache.renew()
    text = database.add()
    assert await cache.find(text) is not None
    assert database.asked == 2


async def test_an_unknown_key_waits_for_a_refresh_that_starts_later() -> None:
    database = KeyStore()
    cache = database.cache(fake=False)
    await cache.renew()
    database.gate.clear()
    reread = asyncio.create_task(cache.reread())
    await asyncio.sleep(0.01)
    text = database.add()
    looking = asyncio.create_task(cache.find(text))
    await asyncio.sleep(0)
    database.gate.set()
    assert await looking is not None
    await reread


async def test_unknown_keys_do_not_overload_the_database() -> None:
    database = KeyStore()
    cache = database.cache(fake=False)
    await cache.renew()
    began = time.monotonic()
    for _ in range(3):
        assert set(await asyncio.gather(*(cache.find(new_text()) for _ in range(200)))) == {None}
    took = time.monotonic() - began
    assert database.asked - 1 <= took / AGAIN_AFTER_S + 1


@pytest.mark.parametrize("text", ["", "secret", "fl_", "é" * 90, f"fl_{0:012x}_{0:064x}_0000000z"])
async def test_a_malformed_key_is_not_looked_up(text: str) -> None:
    database = KeyStore()
    cache = database.cache()
    await cache.renew()
    assert await cache.find(text) is None
    assert database.asked == 1


async def test_a_valid_id_with_a_wrong_secret_is_refused() -> None:
    database = KeyStore()
    cache = database.cache()
    key_id = key_id_of(database.add())
    assert key_id is not None
    await cache.renew()
    assert await cache.find(key_text(key_id, secrets.token_bytes(32))) is None


async def test_while_the_database_is_unreachable_known_keys_work_and_unknown_ones_are_503() -> None:
    database = KeyStore()
    cache = database.cache(fake=False)
    text = database.add()
    await cache.renew()
    database.away = True
    await cache.reread()
    assert await cache.find(text) is not None
    with pytest.raises(Unavailable):
        await cache.find(new_text())


async def test_without_a_first_refresh_every_key_is_503() -> None:
    database = KeyStore()
    database.away = True
    cache = database.cache()
    for _ in range(2):
        assert cache.old
        with pytest.raises(Unavailable):
            await cache.renew()
    database.away = False
    await cache.renew()
    assert cache.empty


async def test_unchanged_keys_are_read_once_a_minute() -> None:
    database = KeyStore()
    cache = database.cache()
    for _ in range(3):
        database.add()
        database.now += STALE_AFTER_S
        await cache.renew()
    assert database.reads == 3
    for _ in range(10):
        database.now += STALE_AFTER_S
        await cache.renew()
    assert (database.reads, database.asked) == (3, 13)
    database.now += ALL_AFTER_S
    await cache.renew()
    assert database.reads == 4


# ---------------------------------------------------------------- requests in progress


class Running:
    """A request in progress, and what was sent in response to it. `app` is the application that it calls."""

    def __init__(self, app: ASGIApp, *, live: bool = True) -> None:
        self.app = app
        self.live = live
        self.sent: list[Message] = []
        self.entered = asyncio.Event()
        self.store = KeyStore()
        self.cache = KeyCache(self.store.read, self.store.count, lambda key_id: self.live)

    async def run(self) -> None:
        scope: Scope = {"type": "http", "path": "/", "method": "GET", "headers": []}
        caller = Caller(Role.ADMIN, None, "a key", "its id")
        cookies = Cookies(self._no_session)
        await run_until_revoked(self._app, self.cache, cookies, caller, scope, self._receive, self._send)

    async def revoke(self) -> None:
        self.live = False
        self.store.add()  # the cache reads all keys, since their number has changed
        await self.cache.reread()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.entered.set()
        await self.app(scope, receive, send)

    async def _receive(self) -> Message:
        raise AssertionError("the body is not read")

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    async def _no_session(self, text: str) -> str | None:
        raise AssertionError("no cookie was sent")


async def _wait(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.Event().wait()


async def test_a_request_whose_key_was_revoked_just_before_does_not_begin() -> None:
    request = Running(_wait, live=False)
    await request.run()
    assert request.sent[0]["status"] == 401
    assert not request.entered.is_set()


async def test_revoking_a_key_ends_its_request_and_not_the_task() -> None:
    request = Running(_wait)
    running = asyncio.create_task(request.run())
    await request.entered.wait()
    await request.revoke()
    await running
    assert running.cancelling() == 0
    assert request.sent[0]["status"] == 401
    assert not request.cache._streams


async def test_a_request_that_is_also_cancelled_by_others_stays_cancelled() -> None:
    request = Running(_wait)
    running = asyncio.create_task(request.run())
    await request.entered.wait()
    revoking = asyncio.create_task(request.revoke())
    while not running.cancelling():
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await revoking
    assert not request.sent
    assert not request.cache._streams


async def test_a_timeout_of_the_application_is_an_error_of_its_own() -> None:
    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await Running(late).run()
