"""Leader election on a server, behind Sentinels and on a Cluster."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import redis

from fairlead.dispatch.redis import RedisLeadership
from tests.redis_servers import Sentinel, cluster_url, server_url, start_server

Candidate = Callable[..., RedisLeadership]


@pytest.fixture(params=["server", "sentinel", "cluster"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "sentinel":
        master = start_server()
        sentinel = Sentinel(int(master.connection_pool.connection_kwargs["port"])).start()
        yield sentinel.url
        master.close()
        sentinel.kill()
    else:
        yield server_url() if request.param == "server" else cluster_url()


@pytest.fixture
async def candidate(url: str) -> AsyncIterator[Candidate]:
    prefix, made = f"test-{secrets.token_hex(6)}", []

    def make(holder: str, ttl: float = 10.0) -> RedisLeadership:
        made.append(RedisLeadership(url, prefix=prefix, holder=holder, ttl=ttl))
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def test_one_leads_until_it_resigns(candidate: Candidate) -> None:
    a, b = candidate("a host:1"), candidate("b host:2")
    assert await a.leader() is None
    assert await a.acquire(1)
    assert not await b.acquire(2)
    assert await b.leader() == ("a host:1", 1)
    assert await a.renew()
    assert not await b.renew()
    await b.resign()  # has no effect: it is not the leader
    assert await b.leader() == ("a host:1", 1)
    await a.resign()
    assert await b.leader() is None
    assert not await a.renew()
    assert await b.acquire(2)
    assert await a.leader() == ("b host:2", 2)


async def test_the_leader_can_take_a_new_term(candidate: Candidate) -> None:
    leader = candidate("a")
    assert await leader.acquire(1)
    assert await leader.acquire(7)
    assert await leader.leader() == ("a", 7)


async def test_only_one_of_many_leads(candidate: Candidate) -> None:
    candidates = [candidate(str(number)) for number in range(8)]
    assert sum(await asyncio.gather(*(each.acquire(1) for each in candidates))) == 1


async def test_a_leader_that_does_not_renew_loses_the_lease() -> None:
    """The server's clock decides."""
    prefix = f"test-{secrets.token_hex(6)}"
    dead = RedisLeadership(server_url(), prefix=prefix, holder="dead", ttl=0.05)
    heir = RedisLeadership(server_url(), prefix=prefix, holder="heir", ttl=30)
    assert await dead.acquire(1)
    async with asyncio.timeout(10):
        while not await heir.acquire(2):
            await asyncio.sleep(0.01)
    assert not await dead.renew(), "the lease is no longer ours, even if we return"
    assert not await dead.acquire(1)
    await dead.resign()
    assert await heir.leader() == ("heir", 2)
    for each in (dead, heir):
        await each.close()


async def test_acquire_and_renew_each_start_a_full_ttl() -> None:
    prefix = f"test-{secrets.token_hex(6)}"
    leader = RedisLeadership(server_url(), prefix=prefix, holder="a", ttl=30)
    server = redis.Redis.from_url(server_url())

    def left_ms() -> int:
        return int(server.pttl(f"{prefix}:leader"))

    assert await leader.acquire(1)
    assert left_ms() > 20_000
    for extend in (leader.renew, lambda: leader.acquire(2)):
        server.pexpire(f"{prefix}:leader", 5_000)
        assert await extend()
        assert left_ms() > 20_000
    server.close()
    await leader.close()
