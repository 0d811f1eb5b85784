"""Scripts read what Python packs, and the hashes they write stay fast to search."""

from __future__ import annotations

import secrets

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from fairlead.dispatch.port import Claim, Offer
from fairlead.dispatch.redis import RedisDispatcher
from fairlead.dispatch.redis.codec import FALSE, packed_float, packed_int, packed_text
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


def _encoding(server: redis.Redis, dispatcher: RedisDispatcher, name: str) -> object:
    return server.object("ENCODING", dispatcher._scopes.key("service:s", name))
