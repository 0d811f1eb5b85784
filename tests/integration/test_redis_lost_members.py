"""Redis loses single members of keys and fields of hashes: no job waits for good in a queue that looks complete."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache

import pytest
import redis

from fairlead import Call, Config, Fairlead
from fairlead.dispatch.port import Claim, Lease, Release
from fairlead.dispatch.redis import RedisDispatcher
from fairlead.domain.rules import Order, ServiceRules
from fairlead.engine.loops import reconcile
from fairlead.errors import Unavailable
from tests.contract.dispatchers import FakeClock, QueueHarness
from tests.redis_servers import port_of, start_server

SCOPE = "pool:gpu"
POOL = (
    ServiceRules("fair", limit=3, pool="gpu", user_limit=1),
    ServiceRules("fifo", limit=2, pool="gpu", order=Order.FIFO),
    ServiceRules("regional", limit=3, pool="gpu", regions={"us": 2, "eu": 1}),
)
ALONE = (ServiceRules("fair", limit=2, user_limit=1),)
GROUPS = {"user-0": "acme/red", "user-1": "acme/red", "user-2": "solo", "debtor": "acme"}
USERS = 3
PATIENCE = 60.0


@cache
def own_server() -> redis.Redis:
    return start_server()


class Scope:
    """A scope whose keys all exist: every service has waiting jobs, running calls and holds, and the fair one has a
    parked user and an idle one with a debt."""

    def __init__(self, services: tuple[ServiceRules, ...], groups: dict[str, str] | None = None) -> None:
        self.services = services
        self.groups = groups or {}
        self.name = services[0].scope
        self.clock = FakeClock()
        url, prefix = f"redis://127.0.0.1:{port_of(own_server())}/0", f"test-{secrets.token_hex(6)}"
        self.queue = QueueHarness(RedisDispatcher(url, prefix=prefix, clock=self.clock), self.clock)
        self.jobs: set[str] = set()
        self.leases: list[Lease] = []

    async def fill(self) -> None:
        own_server().flushall()
        queue, pools = self.queue, {"gpu": 9} if self.name == SCOPE else {}
        await queue.open(*self.services, pools=pools)
        await queue.run_first("debtor", 50.0, "fair", group=self.groups.get("debtor"))
        self.jobs = set()
        for rules in self.services:
            jobs = {f"{rules.service}-{user}-{n}": f"user-{user}" for user in range(USERS) for n in range(2)}
            for job, user in jobs.items():
                await queue.offer(job, user, rules.service, group=self.groups.get(user))
            self.jobs |= jobs.keys()
            for number in range(1 if rules.limit == 2 else 2):
                region = "us" if rules.regions else None
                await queue.hold(f"held-{number}", 1000.0, rules.service, region, hold_id=f"{rules.service}-{number}")
        self.leases = [await queue.take(rules.service) for rules in self.services]

    def members(self) -> Iterator[tuple[str, bytes]]:
        """Everything that may be lost, except what repairs itself with the next claim."""
        for key in sorted(key.decode() for key in own_server().keys("*{*")):
            if not key.endswith(("}:waiters", "}:workers")):
                kind = own_server().type(key)
                for member in own_server().hkeys(key) if kind == b"hash" else own_server().zrange(key, 0, -1):
                    yield key, member

    def lose(self, key: str, member: bytes) -> None:
        own_server().execute_command("ZREM" if own_server().type(key) == b"zset" else "HDEL", key, member)

    async def is_to_be_rebuilt(self) -> bool:
        """Whether the leader's comparison with the database finds the scope."""
        state = (await self.queue.dispatcher.states([self.name]))[self.name]
        return not state.open or state.epoch != 1

    async def serve(self) -> set[str]:
        """Run jobs until none is granted and all holds are over; returns the jobs that still wait."""
        waiting = self.jobs - {lease.job_id for lease in self.leases}
        leases, idle = self.leases, 0
        while waiting and idle < 3:
            self.clock.advance(600.0)
            claim = Claim("w", 9, frozenset(self.queue.rules))
            releases = [Release(lease.name, lease.service) for lease in leases]
            leases = []
            with contextlib.suppress(Unavailable):
                leases = await self.queue.dispatcher.exchange(claim, releases)
            waiting -= {lease.job_id for lease in leases}
            idle = 0 if leases else idle + 1
        return waiting


@pytest.fixture(params=[(POOL,), (ALONE,), (ALONE, GROUPS)], ids=["pool", "alone", "groups"])
async def scope(request: pytest.FixtureRequest) -> AsyncIterator[Scope]:
    scope = Scope(*request.param)
    yield scope
    await scope.queue.dispatcher.close()
    own_server().close()


async def test_a_lost_member_leaves_no_job_waiting_in_a_queue_that_looks_complete(scope: Scope) -> None:
    await scope.fill()
    assert not await scope.serve()
    assert not await scope.is_to_be_rebuilt()
    await scope.fill()
    for at in range(len(list(scope.members()))):
        await scope.fill()
        lost = list(scope.members())[at]
        scope.lose(*lost)
        waiting = await scope.serve()
        await scope.queue.dispatcher.check()
        assert not waiting or await scope.is_to_be_rebuilt(), (lost, waiting)


@pytest.mark.parametrize("seed", range(10))
async def test_nor_do_many_lost_members(scope: Scope, seed: int) -> None:
    chance = random.Random(seed)
    await scope.fill()
    for key, member in chance.sample(list(scope.members()), 7):
        scope.lose(key, member)
        if chance.random() < 0.5:
            await scope.queue.dispatcher.end_holds()
    waiting = await scope.serve()
    await scope.queue.dispatcher.check()
    assert not waiting or await scope.is_to_be_rebuilt()


async def test_nothing_is_granted_from_a_scope_without_its_rules(scope: Scope) -> None:
    """Without the limit of the pool, more calls would run than it allows; without its services, none."""
    await scope.fill()
    fields = [name for key, name in scope.members() if key.endswith(":meta")]
    vital = [name for name in fields if name.startswith((b"rules:", b"state:", b"services", b"version", b"pool_limit"))]
    assert len(vital) == 2 * len(scope.services) + (3 if scope.name == SCOPE else 2)
    for field in vital:
        await scope.fill()
        (meta,) = {key for key, _ in scope.members() if key.endswith(":meta")}
        scope.lose(meta, field)
        releases = [Release(lease.name, lease.service) for lease in scope.leases]
        assert await scope.queue.dispatcher.exchange(Claim("w", 9, frozenset(scope.queue.rules)), releases) == [], field
        assert (await scope.queue.dispatcher.states([scope.name]))[scope.name].lost, field


async def test_a_lost_counter_gives_no_name_twice(scope: Scope) -> None:
    await scope.fill()
    (meta,) = {key for key, _ in scope.members() if key.endswith(":meta")}
    scope.lose(meta, b"counter")
    scope.clock.advance(2000.0)  # the holds are over, and slots are free
    leases = await scope.queue.dispatcher.exchange(Claim("w", 9, frozenset(scope.queue.rules)))
    assert leases
    assert not {lease.name for lease in leases} & {lease.name for lease in scope.leases}


@pytest.mark.parametrize("kind", ["heads", "line", "users", "seqs", "ends"])
async def test_a_check_finds_what_no_script_misses(kind: str) -> None:
    """A hold that is not in `ends`, for example, would keep its slot forever."""
    scope = Scope(POOL)
    await scope.fill()
    key, member = next(each for each in scope.members() if each[0].endswith(f":{kind}") and b"debtor" not in each[1])
    scope.lose(key, member)
    assert await scope.queue.dispatcher.check() == [SCOPE]
    assert await scope.is_to_be_rebuilt()
    assert await scope.queue.claimed(9) == []
    await scope.queue.dispatcher.close()


@pytest.mark.parametrize("lost", ["acme", "acme/red", "solo"])
async def test_a_check_finds_the_lost_record_of_a_group(lost: str) -> None:
    scope = Scope(ALONE, GROUPS)
    await scope.fill()
    key, member = next(each for each in scope.members() if each[1] == f"\1{lost}".encode())
    scope.lose(key, member)
    assert await scope.queue.dispatcher.check() == [scope.name]
    await scope.queue.dispatcher.close()


async def test_a_check_of_a_complete_queue_finds_nothing(scope: Scope) -> None:
    await scope.fill()
    assert await scope.queue.dispatcher.check() == []
    scope.clock.advance(2000.0)
    await scope.queue.dispatcher.end_holds()
    assert await scope.queue.dispatcher.check() == []


# -- with a manager ----------------------------------------------------------------------------------------------------


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("lost", ["rules", "head"])
async def test_a_job_whose_queue_lost_a_member_runs(
    distributed: dict[str, str], lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "EVERY", 0.05)
    started, may_end = asyncio.Event(), asyncio.Event()
    app = Fairlead(Config(), **distributed)

    @app.service(limit=1)
    async def one(call: Call) -> str:
        started.set()
        await may_end.wait()
        return "ok"

    client = redis.Redis.from_url(distributed["redis_url"])
    meta, heads = "fairlead:{service:one}:meta", "fairlead:{service:one}:s:one:heads"
    async with app.running():
        jobs = [await app.submit("one", user_id="ann")]
        await asyncio.wait_for(started.wait(), PATIENCE)
        jobs += [await app.submit("one", user_id=user) for user in ("bob", "cem")]
        await until(lambda: client.zcard(heads) == 2)
        assert client.zremrangebyrank(heads, 0, 0) == 1 if lost == "head" else client.hdel(meta, "rules:one") == 1
        may_end.set()
        for job in jobs:
            assert await job.result(timeout=PATIENCE) == "ok"
    client.close()
