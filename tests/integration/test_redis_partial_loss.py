"""Redis loses single keys (eviction, a stray DEL): limits hold, the scope is rebuilt, and every job ends."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from typing import Any

import pytest
import redis

from fairlead import Call, Config, Fairlead
from fairlead.dispatch.port import Claim, Lease, Release, Renewal
from fairlead.dispatch.redis import RedisDispatcher
from fairlead.domain.rules import Order, ServiceRules
from fairlead.engine.roles import Roles
from fairlead.errors import Unavailable
from tests.contract.dispatchers import FakeClock, QueueHarness
from tests.integration.turn_apps import until_ready
from tests.redis_servers import port_of, start_server

PATIENCE = 60.0
SCOPE = "pool:gpu"
FAIR = ServiceRules("fair", limit=3, pool="gpu", user_limit=1)
FIFO = ServiceRules("fifo", limit=2, pool="gpu", order=Order.FIFO)
REGIONAL = ServiceRules("regional", limit=3, pool="gpu", regions={"us": 2, "eu": 1})
ALL = (FAIR, FIFO, REGIONAL)


@cache
def own_server() -> redis.Redis:
    return start_server()


@pytest.fixture
async def queue() -> AsyncIterator[QueueHarness]:
    clock = FakeClock()
    prefix = f"test-{secrets.token_hex(6)}"
    dispatcher = RedisDispatcher(f"redis://127.0.0.1:{port_of(own_server())}/0", prefix=prefix, clock=clock)
    yield QueueHarness(dispatcher, clock)
    await dispatcher.close()
    own_server().close()


def keys() -> list[str]:
    return sorted(key.decode() for key in own_server().keys("*"))


def vital(key: str) -> bool:
    """Whether limits or the queue depend on the key, unlike the list of scopes and the waiters."""
    return "{" in key and not key.endswith(("}:waiters", "}:workers"))


async def fill(queue: QueueHarness) -> list[Lease]:
    """A pool in which every key exists: every service has waiting jobs, a running call and a hold, and the fair one an
    idle user with a debt."""
    own_server().flushall()
    await queue.open(*ALL, pools={"gpu": 6})
    await queue.run_first("debtor", 50.0, "fair")
    for rules in ALL:
        for number in range(4):
            await queue.offer(f"{rules.service}-{number}", f"user-{number}", rules.service)
        await queue.hold(f"held-{rules.service}", 1000.0, rules.service, "us" if rules.regions else None)
    leases = [await queue.take(rules.service) for rules in ALL]
    await queue.claimed(0)
    return leases


@pytest.fixture
def without(queue: QueueHarness) -> Callable[[], AsyncIterator[tuple[str, list[Lease]]]]:
    """The filled pool without one vital key, for each of them in turn."""

    async def each() -> AsyncIterator[tuple[str, list[Lease]]]:
        await fill(queue)
        every = [key for key in keys() if vital(key)]
        kinds = {key.rpartition(":")[2] for key in every}
        assert kinds == {
            "meta", "entries", "onlease", "users", "heads", "line", "seqs", "idle", "leases", "holds", "ends", "slots"
        }  # fmt: skip
        for key in every:
            leases = await fill(queue)
            assert own_server().delete(key) == 1, key
            yield key, leases

    return each


Without = Callable[[], AsyncIterator[tuple[str, list[Lease]]]]


async def test_nothing_is_granted_from_a_scope_that_lost_a_key(queue: QueueHarness, without: Without) -> None:
    async for key, leases in without():
        releases = [Release(lease.name, lease.service) for lease in leases]
        claim = Claim("w", 9, frozenset(queue.rules))
        assert await queue.dispatcher.exchange(claim, releases) == [], key
        assert await queue.dispatcher.exchange(claim) == [], key
        state = (await queue.dispatcher.states([SCOPE]))[SCOPE]
        assert not state.open, key
        assert state.lost, key


async def test_every_operation_tolerates_the_loss_of_a_key(queue: QueueHarness, without: Without) -> None:
    """No operation fails, and none makes the scope look complete again."""
    operations: dict[str, Callable[[list[Lease]], Awaitable[object]]] = {
        "offer": lambda leases: queue.offer("new", "user-0", "fair"),
        "move": lambda leases: queue.offer("fair-3", "user-3", "fifo", run=7),
        "withdraw": lambda leases: queue.withdraw("fair-3", 9, "fair"),
        "promote": lambda leases: queue.promote("fair-2", 1, 9, "fair"),
        "release": lambda leases: queue.dispatcher.release([Release(each.name, each.service) for each in leases]),
        "hold": lambda leases: queue.hold("more", 5.0, "fair"),
        "end_holds": lambda leases: queue.dispatcher.end_holds(queue.clock.now + 2000.0),
        "positions": lambda leases: queue.dispatcher.positions(["fair-3", "fifo-3", "regional-3"]),
        "snapshot": lambda leases: queue.dispatcher.snapshot(users=True),
        "expired": lambda leases: queue.dispatcher.expired(),
        "configure": lambda leases: queue.change("fair", user_limit=None, order=Order.FIFO),
    }
    async for key, leases in without():
        assert queue.dispatcher.renew("w", [lease.name for lease in leases]) == Renewal(rebuilding=True), key
        for name, operation in operations.items():
            try:
                await operation(leases)
            except Exception as error:
                raise AssertionError(f"{name} without {key}") from error
            assert await queue.claimed(9) == [], (name, key)
        await queue.change("fair", user_limit=1, order=Order.FAIR)


def members(key: str) -> list[bytes]:
    kind = own_server().type(key)
    return own_server().hkeys(key) if kind == b"hash" else own_server().zrange(key, 0, -1)


def remove(key: str, member: bytes) -> None:
    command = "ZREM" if own_server().type(key) == b"zset" else "HDEL"
    assert own_server().execute_command(command, key, member) == 1


async def test_a_lost_member_of_a_key_stops_no_service_for_good(queue: QueueHarness) -> None:
    """What a script cannot read is rebuilt; otherwise every claim would fail from now on."""
    await fill(queue)
    failures = 0
    every = [(key, at) for key in keys() if vital(key) for at in range(len(members(key)))]
    for key, at in every:
        leases = await fill(queue)
        remove(key, members(key)[at])
        releases = [Release(lease.name, lease.service) for lease in leases]
        for each in (releases, [], []):
            with contextlib.suppress(Unavailable):
                await queue.dispatcher.exchange(Claim("w", 9, frozenset(queue.rules)), each)
                await queue.dispatcher.positions(["fair-3", "fifo-3", "regional-3"])
                await queue.dispatcher.end_holds(queue.clock.now + 2000.0)
                continue
            failures += 1
        assert await queue.dispatcher.exchange(Claim("w", 9, frozenset(queue.rules))) is not None, (key, at)
    assert failures > 0, "no script depends on a member"


@pytest.mark.parametrize("kind", ["leases", "holds", "slots"])
async def test_nothing_is_granted_after_a_single_slot_was_lost(queue: QueueHarness, kind: str) -> None:
    await queue.open(ServiceRules("s", limit=9, regions={"us": 2}) if kind == "slots" else ServiceRules("s", limit=2))
    await queue.offer_all(f"job-{number}" for number in range(9))
    for number in range(2):
        if kind == "holds":
            await queue.hold(f"held-{number}", 1000.0)
        else:
            await queue.take()
    assert await queue.claimed(9) == []
    (key,) = (key for key in keys() if key.endswith(f":s:s:{kind}") and queue.dispatcher._scopes.prefix in key)
    remove(key, members(key)[0])
    assert await queue.claimed(9) == []
    assert (await queue.dispatcher.states(["service:s"]))["service:s"].lost


async def test_a_key_that_is_lost_during_a_rebuild_is_noticed_before_the_scope_opens(queue: QueueHarness) -> None:
    leases = await fill(queue)
    assert await queue.dispatcher.close_scope(SCOPE, epoch=2)
    assert await queue.dispatcher.restore(SCOPE, 2, leases, [])
    (key,) = (key for key in keys() if key.endswith(":fair:leases"))
    own_server().delete(key)
    await queue.offer("new", "ann", "fair")
    assert not await queue.dispatcher.open_scope(SCOPE, 2)
    assert await queue.claimed(9) == []
    assert await queue.dispatcher.close_scope(SCOPE, epoch=3)
    assert await queue.dispatcher.restore(SCOPE, 3, leases, [])
    await queue.offer("new", "ann", "fair")
    assert await queue.dispatcher.open_scope(SCOPE, 3)
    assert await queue.claimed(9) == ["new"]


async def test_writes_of_an_older_version_are_not_taken_for_a_loss(queue: QueueHarness) -> None:
    """An older version writes keys and states without counting the keys."""
    await queue.open(FIFO, pools={"gpu": 6})
    await queue.offer("first", service="fifo")
    (meta,) = (key for key in keys() if key.endswith(":meta") and queue.dispatcher._scopes.prefix in key)
    before = own_server().hget(meta, "kept:fifo")
    await queue.offer("second", service="fifo")
    lease = await queue.take("fifo")
    own_server().hset(meta, "kept:fifo", before)
    assert await queue.claimed(1, "fifo") == ["second"]
    await queue.end(lease)


async def test_a_lost_list_of_scopes_is_written_again(queue: QueueHarness) -> None:
    await fill(queue)
    (listed,) = (key for key in keys() if key.endswith(":scopes"))
    before = own_server().smembers(listed)
    own_server().delete(listed)
    await queue.dispatcher.snapshot()
    assert own_server().smembers(listed) == before


# -- with running calls ------------------------------------------------------------------------------------------------


class Endpoint:
    """Counts its open calls. Each lasts until the test ends one of its service."""

    def __init__(self) -> None:
        self.open: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.changed = asyncio.Event()
        self.may_end = {service: asyncio.Semaphore(0) for service in LIMITS}

    async def call(self, service: str) -> str:
        self._count(service, 1)
        try:
            await self.may_end[service].acquire()
        finally:
            self._count(service, -1)
        self.ended[service] += 1
        return "ok"

    def _count(self, service: str, change: int) -> None:
        self.open[service] += change
        self.open["pool"] = self.open["image"] + self.open["video"]
        self.most |= self.open
        self.changed.set()

    def let_end(self, count: int) -> None:
        for semaphore in self.may_end.values():
            for _ in range(count):
                semaphore.release()

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not true():
                self.changed.clear()
                await self.changed.wait()


LIMITS = {"chat": 2, "image": 2, "video": 2}
ROUND = 2


def application(urls: dict[str, str], endpoint: Endpoint) -> Fairlead:
    config: dict[str, Any] = {"pools": {"gpu": 3}, "manager": {"leader_ttl": 2.0}}
    app = Fairlead(Config.model_validate(config), **urls)

    @app.service(limit=LIMITS["chat"])
    async def chat(call: Call) -> str:
        return await endpoint.call("chat")

    @app.service(limit=LIMITS["image"], pool="gpu", order="fifo")
    async def image(call: Call) -> str:
        return await endpoint.call("image")

    @app.service(limit=LIMITS["video"], pool="gpu", user_limit=1)
    async def video(call: Call) -> str:
        return await endpoint.call("video")

    return app


async def test_every_key_may_be_lost_while_jobs_run(distributed: dict[str, str]) -> None:
    """Lose one key after the other. Open calls stay counted, and every service continues."""
    client = redis.Redis.from_url(distributed["redis_url"])
    endpoint, jobs, lost = Endpoint(), [], set[str]()
    app = application(distributed, endpoint)
    async with app.running():

        async def submit(count: int) -> None:
            for service in LIMITS:
                jobs.extend([await app.submit(service, user_id=f"user-{number}") for number in range(count)])

        def go_on() -> bool:
            return all(endpoint.ended[name] == ROUND * len(lost) and endpoint.open[name] > 0 for name in LIMITS)

        await submit(3)
        await endpoint.until(go_on)
        while missing := sorted({key.decode() for key in client.keys("fairlead:*")} - lost):
            lost.add(missing[0])
            client.delete(missing[0])
            await submit(ROUND)
            endpoint.let_end(ROUND)
            await endpoint.until(go_on)
        endpoint.let_end(len(jobs))
        for job in jobs:
            assert await job.result(timeout=PATIENCE) == "ok"
    assert {key.rpartition(":")[2] for key in lost} >= {
        "scopes", "leader", "meta", "waiters", "workers", "entries", "onlease",
        "users", "heads", "line", "seqs", "leases",
    }  # fmt: skip
    assert endpoint.most <= Counter(LIMITS | {"pool": 3})
    client.close()


async def test_readiness_reports_lost_data(distributed: dict[str, str]) -> None:
    """While no manager rebuilds the scope."""
    client = redis.Redis.from_url(distributed["redis_url"])
    async with application(distributed, Endpoint()).running(Roles(api=False, worker=False)) as manager:
        await until_ready(manager)
    app = application(distributed, Endpoint())
    async with app.running(Roles(worker=False, manager=False)):
        await until_ready(app)
        await app.submit("chat")
        async with asyncio.timeout(PATIENCE):
            while not client.delete("fairlead:{service:chat}:s:chat:line"):
                await asyncio.sleep(0.02)
            await app.submit("chat")
            while (await app.readiness())["checks"]["dispatcher"] == "ok":
                await asyncio.sleep(0.02)
        readiness = await app.readiness()
        assert readiness["checks"]["dispatcher"] == "data was lost; being rebuilt by a manager"
        assert readiness["ready"], "jobs are still accepted"
    client.close()
