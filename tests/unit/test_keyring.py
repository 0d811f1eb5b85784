"""How often the truth is asked for keys, and what holds while it cannot be."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import replace

import pytest

from fairlead.domain import keytext
from fairlead.domain.keys import Key, Role
from fairlead.errors import Unavailable
from fairlead.gateway.keyring import AGAIN_AFTER_S, ALL_AFTER_S, RENEW_AFTER_S, STALE_AFTER_S, Keyring


class Truth:
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
        key_id = keytext.id_of(text)
        assert key_id is not None
        self.keys.append(Key(key_id, role, None, "a key", keytext.hash_of(text), 0.0))
        return text

    def revoke(self) -> None:
        self.keys = [replace(key, revoked_at=1.0) for key in self.keys]

    def ring(self, *, fake: bool = True) -> Keyring:
        return Keyring(self.read, self.count, lambda key_id: True, (lambda: self.now) if fake else time.monotonic)


def new_text() -> str:
    return keytext.key_text(secrets.token_hex(6), secrets.token_bytes(32))


async def test_many_who_wait_share_one_reading() -> None:
    truth = Truth()
    ring = truth.ring()
    text = truth.add()
    await asyncio.gather(*(ring.renew() for _ in range(50)))
    assert truth.asked == 1
    assert not ring.old
    for _ in range(50):
        assert await ring.find(text) is not None
    assert truth.asked == 1


async def test_a_revoked_key_is_known_as_soon_as_the_ring_is_read_again() -> None:
    truth = Truth()
    ring = truth.ring()
    text = truth.add()
    await ring.renew()
    truth.revoke()
    assert await ring.find(text) is not None
    truth.now += STALE_AFTER_S
    assert ring.old
    await ring.renew()
    assert await ring.find(text) is None
    assert not ring.empty, "a revoked key does not open what a missing one would"


async def test_a_busy_gateway_reads_while_requests_go_on() -> None:
    truth = Truth()
    ring = truth.ring()
    await ring.renew()
    truth.now += RENEW_AFTER_S
    truth.gate.clear()
    await ring.renew()  # returns although the truth has not answered
    await asyncio.sleep(0)
    assert truth.asked == 2
    truth.gate.set()


async def test_a_key_that_was_just_made_is_found_though_the_ring_was_just_read() -> None:
    truth = Truth()
    ring = truth.ring(fake=False)
    await ring.renew()
    text = truth.add()
    assert await ring.find(text) is not None
    assert truth.asked == 2


async def test_a_reading_that_began_too_early_does_not_make_a_new_key_unknown() -> None:
    truth = Truth()
    ring = truth.ring(fake=False)
    await ring.renew()
    truth.gate.clear()
    reread = asyncio.create_task(ring.reread())
    await asyncio.sleep(0.01)
    text = truth.add()
    looking = asyncio.create_task(ring.find(text))
    await asyncio.sleep(0)
    truth.gate.set()
    assert await looking is not None
    await reread


async def test_unknown_keys_cannot_hammer_the_truth() -> None:
    truth = Truth()
    ring = truth.ring(fake=False)
    await ring.renew()
    began = time.monotonic()
    for _ in range(3):
        assert set(await asyncio.gather(*(ring.find(new_text()) for _ in range(200)))) == {None}
    took = time.monotonic() - began
    assert truth.asked - 1 <= took / AGAIN_AFTER_S + 1


@pytest.mark.parametrize("text", ["", "secret", "fl_", "é" * 90, f"fl_{0:012x}_{0:064x}_0000000z"])
async def test_what_is_no_key_is_not_looked_for(text: str) -> None:
    truth = Truth()
    ring = truth.ring()
    await ring.renew()
    assert await ring.find(text) is None
    assert truth.asked == 1


async def test_the_right_id_with_another_secret_opens_nothing() -> None:
    truth = Truth()
    ring = truth.ring()
    key_id = keytext.id_of(truth.add())
    assert key_id is not None
    await ring.renew()
    assert await ring.find(keytext.key_text(key_id, secrets.token_bytes(32))) is None


async def test_while_the_truth_is_away_known_keys_go_on_and_unknown_ones_are_not_called_wrong() -> None:
    truth = Truth()
    ring = truth.ring(fake=False)
    text = truth.add()
    await ring.renew()
    truth.away = True
    await ring.reread()
    assert await ring.find(text) is not None
    with pytest.raises(Unavailable):
        await ring.find(new_text())


async def test_keys_that_were_never_read_admit_nobody() -> None:
    truth = Truth()
    truth.away = True
    ring = truth.ring()
    for _ in range(2):
        assert ring.old
        with pytest.raises(Unavailable):
            await ring.renew()
    truth.away = False
    await ring.renew()
    assert ring.empty


async def test_keys_that_are_the_same_are_not_read_again_but_for_once_in_a_while() -> None:
    truth = Truth()
    ring = truth.ring()
    for _ in range(3):
        truth.add()
        truth.now += STALE_AFTER_S
        await ring.renew()
    assert truth.reads == 3
    for _ in range(10):
        truth.now += STALE_AFTER_S
        await ring.renew()
    assert (truth.reads, truth.asked) == (3, 13)
    truth.now += ALL_AFTER_S
    await ring.renew()
    assert truth.reads == 4


async def test_a_key_that_is_revoked_while_it_opens_a_stream_does_not_keep_it() -> None:
    truth = Truth()
    ring = Keyring(truth.read, truth.count, lambda key_id: False)

    async def stream() -> None:
        async with asyncio.timeout(None) as until:
            with ring.ends(until, "revoked meanwhile"):
                await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await stream()
