"""Scripts read what Python packs, and the hashes they write stay fast to search."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from fairlead.dispatch.port import Claim, Lease, Offer, Release
from fairlead.dispatch.redis import RedisDispatcher
from fairlead.dispatch.redis.codec import FALSE, packed_float, packed_int, packed_text
from fairlead.domain.groups import GroupRules
from fairlead.domain.rates import Rate
from fairlead.domain.rules import Rules, ServiceRules
from tests.redis_servers import server_url

RULES = Rules({"s": ServiceRules("s", limit=9)}, version=1)


@pytest.fixture(scope="module")
def server() -> redis.Redis:
    return redis.Redis.from_url(server_url())


@given(
    text=st.one_of(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.sampled_from([31, 32, 255, 256, 65_535, 65_536]).map("x".__mul__),
    ),
    whole=st.one_of(st.integers(-(2**53), 2**53), st.integers(-200, 200)),
    real=st.floats(allow_nan=False, allow_infinity=False),
)
def test_texts_numbers_and_none_are_decoded_by_redis(server: redis.Redis, text: str, whole: int, real: float) -> None:
    packed = packed_text(text) + packed_int(whole) + packed_float(real) + FALSE
    unpacked = "local t, i, f, no = cmsgpack.unpack(ARGV[1]) "
    back = server.eval(
        unpacked + "return { t, string.format('%d', i), string.format('%.17g', f), no == false and 1 or 0 }", 0, packed
    )
    assert back[0] == text.encode()  # type: ignore[index]
    assert (int(back[1]), float(back[2]), back[3]) == (whole, real, 1)  # type: ignore[index]


async def test_hashes_are_hash_tables_from_their_first_field_on(server: redis.Redis) -> None:
    """Otherwise the server scans all fields of a small hash for each access."""
    dispatcher = RedisDispatcher(server_url(), prefix=f"test-{secrets.token_hex(6)}")
    await dispatcher.configure(RULES)
    await dispatcher.close_scope("service:s", 1)
    await dispatcher.open_scope("service:s", 1)
    for again in range(2):  # emptied hashes are deleted and created again
        job = f"job-{again}"
        await dispatcher.offer([Offer(job, 1, "s", "ann", 2, 2, 0, 1)])
        assert {_encoding(server, dispatcher, name) for name in ("entries", "s:s:users")} == {b"hashtable"}
        (lease,) = await dispatcher.exchange(Claim("w", 1, frozenset({"s"})))
        assert {_encoding(server, dispatcher, name) for name in ("onlease", "s:s:leases")} == {b"hashtable"}
        await dispatcher.close_scope("service:s", 2 + again)
        await dispatcher.open_scope("service:s", 2 + again)
        assert lease.job_id == job
    await dispatcher.close()


@asynccontextmanager
async def _dispatcher() -> AsyncIterator[RedisDispatcher]:
    dispatcher = RedisDispatcher(server_url(), prefix=f"test-{secrets.token_hex(6)}")
    try:
        yield dispatcher
    finally:
        await dispatcher.close()


def _encoding(server: redis.Redis, dispatcher: RedisDispatcher, name: str) -> object:
    return server.object("ENCODING", dispatcher._scopes.key("service:s", name))


NAMES = ("a", "x" * 31, "x" * 32, "é" * 130, "x" * 256)
"""Of lengths that MessagePack writes in different ways."""

REPACKED = """
for _, value in ipairs(redis.call('HVALS', KEYS[1])) do
  if cmsgpack.pack(cmsgpack.unpack(value)) ~= value then
    return redis.error_reply('not as packed: ' .. value)
  end
end
return redis.call('HLEN', KEYS[1])
"""


@pytest.mark.parametrize("at_once", [1, 5])
async def test_records_that_scripts_join_are_as_packed(server: redis.Redis, at_once: int) -> None:
    rules = ServiceRules("s", limit=99, user_rate=Rate(1_000, 1e9, 60.0))
    groups = {"org": GroupRules(rate=Rate(1_000, None, 60.0))}
    choices = itertools.product(NAMES, (None, "team", "org/team"), (None, 0.25, 5.0, 1e6), (0, 3, 200, 70_000))
    async with _dispatcher() as dispatcher:
        await dispatcher.configure(Rules({"s": rules}, version=1, groups=groups))
        await dispatcher.close_scope("service:s", 1)
        await dispatcher.open_scope("service:s", 1)
        leases: list[Lease] = []
        for number, (name, group, cost, run) in enumerate(choices):
            weight, band = (0.5, 1.0, 127.0, 128.0, 2.0**40)[number % 5], number % 3 + 1
            user = f"{name}{number % 7}"
            offer = Offer(f"{name}-{number}", number, "s", user, band, band, 0, run, weight, cost, group=group)
            await dispatcher.offer([offer])
            if number % at_once == 0:
                releases = [Release(lease.name, "s") for lease in leases[::2]]
                leases = await dispatcher.exchange(Claim("w", at_once, frozenset({"s"})), releases)
                for key in ("s:s:users", "s:s:leases", "onlease"):
                    server.eval(REPACKED, 1, dispatcher._scopes.key("service:s", key))
        assert leases


async def test_a_claim_decodes_no_rates_of_other_groups(server: redis.Redis) -> None:
    """The field that every script reads has the same length, however many groups have rates."""
    lengths = set()
    for groups in (1, 300):
        rates = {f"team-{number}": GroupRules(rate=Rate(10, None, 60.0)) for number in range(groups)}
        async with _dispatcher() as dispatcher:
            await dispatcher.configure(Rules(RULES.services, version=1, groups=rates))
            lengths.add(server.hstrlen(dispatcher._scopes.key("service:s", "meta"), "rates"))
    assert len(lengths) == 1


async def test_unchanged_rates_of_groups_are_read_at_once_and_not_written(server: redis.Redis) -> None:
    counted = set()
    for groups in (1, 300):
        rates = {f"team-{number}": GroupRules(rate=Rate(10, None, 60.0)) for number in range(groups)}
        async with _dispatcher() as dispatcher:
            await dispatcher.configure(Rules(RULES.services, version=1, groups=rates))
            before = _calls(server)
            await dispatcher.configure(Rules(RULES.services, version=2, groups=rates))
            counted.add(_calls(server) - before)
    assert len(counted) == 1


def _calls(server: redis.Redis) -> int:
    """How often fields of hashes were read or written, by clients and scripts."""
    counts: dict[str, dict[str, int]] = server.info("commandstats")
    return sum(counts[f"cmdstat_{name}"]["calls"] for name in ("hget", "hmget", "hset") if f"cmdstat_{name}" in counts)
