"""Behaviour specific to the Redis dispatcher: loss of data, the server's clock, and several processes."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import cache

import pytest
import redis

from fairlead.dispatch.port import Claim, Lease, Offer, Release, Renewal
from fairlead.dispatch.redis import RedisDispatcher
from fairlead.dispatch.redis.keys import scope_key
from fairlead.domain.job import Hold
from fairlead.domain.rates import Rate
from fairlead.domain.rules import Rules, ServiceRules
from fairlead.errors import Unavailable
from tests.contract.dispatchers import FakeClock, QueueHarness
from tests.redis_servers import Sentinel, port_of, server_url, start_server

FAIR = ServiceRules("s", limit=1)


@cache
def own_server() -> redis.Redis:
    """A server of its own, because the tests delete its data."""
    return start_server()


@pytest.fixture
async def queue() -> AsyncIterator[QueueHarness]:
    clock = FakeClock()
    url = f"redis://127.0.0.1:{port_of(own_server())}/0"
    dispatcher = RedisDispatcher(url, prefix=f"test-{secrets.token_hex(6)}", clock=clock)
    yield QueueHarness(dispatcher, clock)
    await dispatcher.close()
    own_server().close()


# -- scopes --------------------------------------------------------------------------------------------------------


async def test_a_job_is_looked_up_only_in_scopes_where_it_may_have_waited(queue: QueueHarness) -> None:
    await queue.open(*(ServiceRules(name, limit=9) for name in "stuv"))

    async def scripts_for(offer: Offer) -> int:
        before = own_server().info("commandstats")["cmdstat_evalsha"]["calls"]
        assert await queue.dispatcher.offer([offer]) == 1
        return int(own_server().info("commandstats")["cmdstat_evalsha"]["calls"]) - before

    new = Offer("j", 1, "s", "ann", band=2, rank=2, step=0, run=0, steps=("s",))
    assert await scripts_for(new) == 1
    assert await scripts_for(replace(new, service="t", step=1, run=2, steps=("s", "t"))) == 1 + 1 + 1
    unknown = replace(new, service="u", step=2, run=4, steps=())
    assert await scripts_for(unknown) == 1 + 3 + 1, "the services it has queued for are unknown"
    assert [(await queue.see(name)).waiting[2] for name in "stu"] == [0, 0, 1]


POOLED = Rules({"s": replace(FAIR, pool="p"), "t": ServiceRules("t", limit=1, pool="p")}, {"p": 1}, version=2)
APART = Rules({"s": FAIR, "t": POOLED.services["t"]}, {"p": 1}, version=3)


async def test_a_scope_refuses_offers_by_older_rules_once_the_service_has_left_it(queue: QueueHarness) -> None:
    old = queue.dispatcher
    assert isinstance(old, RedisDispatcher)
    new = RedisDispatcher(old._scopes._url, prefix=old._scopes.prefix, clock=queue.clock)
    await old.configure(POOLED)
    await new.configure(APART)
    here, there = (Offer(name, 1, name, "ann", band=2, rank=2, step=0, run=0, steps=(name,)) for name in "ts")
    assert await old.offer([here]) == 1, "its service is in the pool by both"
    with pytest.raises(Unavailable, match="the rules have changed"):
        await old.offer([there])
    with pytest.raises(Unavailable, match="the rules have changed"):
        await old.hold([Hold("j", "s", None, queue.clock.now + 60)])
    assert await new.offer([there]) == 1
    await old.configure(APART)
    assert await old.offer([replace(there, run=1)]) == 1
    await new.close()


async def test_a_lease_is_renewed_and_released_in_the_scope_its_service_moved_to(queue: QueueHarness) -> None:
    dispatcher = queue.dispatcher
    await dispatcher.configure(POOLED)
    await dispatcher.close_scope("pool:p", 1)
    await dispatcher.open_scope("pool:p", 1)
    await queue.offer("j")
    lease = await queue.take("s", worker="w")
    assert lease.scope == "pool:p"
    await dispatcher.configure(APART)
    for scope, leases in {"pool:p": [], "service:s": [lease]}.items():
        await dispatcher.close_scope(scope, 2)
        await dispatcher.restore(scope, 2, leases, [])
    assert dispatcher.renew("w", [lease.name]).rebuilding
    for scope in ("pool:p", "service:s"):
        await dispatcher.open_scope(scope, 2)
    queue.clock.advance(10)
    assert dispatcher.renew("w", [lease.name]) == Renewal()
    queue.clock.advance(10)
    assert await dispatcher.expired() == []
    await dispatcher.release([Release(lease.name, "s", scope=lease.scope)])
    assert (await queue.see("s")).in_use == 0
    assert dispatcher.renew("w", [lease.name]) == Renewal(frozenset({lease.name}))


# -- a server that loses its data ----------------------------------------------------------------------------------


async def test_after_the_loss_of_all_data_nothing_is_granted_and_no_lease_is_reported_lost(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9), ServiceRules("t", limit=9))
    await queue.offer_all("ab")
    lease = await queue.take(worker="w")
    own_server().flushall()
    assert await queue.claimed(9) == []
    await queue.offer("c")
    assert await queue.claimed(9) == [], "jobs offered meanwhile wait for the rebuild"
    assert queue.dispatcher.renew("w", [lease.name]) == Renewal(rebuilding=True)
    assert await queue.dispatcher.expired() == []
    await queue.end(lease)
    assert (await queue.see()).in_use == 0


async def test_a_rebuild_after_the_loss_of_all_data_restores_rules_and_leases(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=2, user_limit=1))
    await queue.offer_all("ab")
    lease = await queue.take(worker="w")
    own_server().flushall()
    await queue.dispatcher.close_scope("service:s", epoch=2)
    await queue.dispatcher.restore("service:s", 2, [lease], [])
    await queue.offer("b")
    await queue.offer("c", "bob")
    await queue.dispatcher.open_scope("service:s", epoch=2)
    assert queue.dispatcher.renew("w", [lease.name]) == Renewal()
    (granted,) = await queue.claim(9)
    assert (granted.job_id, granted.name.split(":")[0]) == ("c", "2"), "ann is at her limit"


async def test_scripts_are_loaded_again_when_the_server_lost_them(queue: QueueHarness) -> None:
    await queue.open(FAIR, ServiceRules("t", limit=1))
    own_server().script_flush()
    assert await queue.offer("a")
    own_server().script_flush()
    lease = await queue.take()
    own_server().script_flush()
    assert queue.dispatcher.renew("w", [lease.name]) == Renewal()
    own_server().script_flush()
    assert [seen.in_use for seen in await queue.dispatcher.snapshot()] == [1, 0]


# -- the server's own clock ----------------------------------------------------------------------------------------


async def test_times_are_the_servers_own() -> None:
    dispatcher = RedisDispatcher(server_url(), prefix=f"test-{secrets.token_hex(6)}")
    queue = QueueHarness(dispatcher, FakeClock())
    await queue.open(ServiceRules("s", limit=1, lease_ttl=0.05))
    await queue.offer("a")
    lease = await queue.take()
    assert abs(lease.granted_at - time.time()) < 60
    assert lease.expires_at == pytest.approx(lease.granted_at + 0.05, abs=1e-5)
    await asyncio.sleep(0.1)  # the server's clock cannot be advanced
    past = await dispatcher.expired()
    assert [each.name for each in past] == [lease.name]
    await dispatcher.close()


async def test_a_master_is_found_through_its_sentinels() -> None:
    sentinel = Sentinel(port_of(own_server())).start()
    dispatcher = RedisDispatcher(sentinel.url, prefix=f"test-{secrets.token_hex(6)}")
    queue = QueueHarness(dispatcher, FakeClock())
    await queue.open(FAIR)
    await queue.offer("a")
    lease = await queue.take()
    assert dispatcher.renew("w", [lease.name]) == Renewal()
    await dispatcher.close()
    sentinel.kill()


# -- several processes ---------------------------------------------------------------------------------------------


class Process:
    """The dispatcher of another process, on the same keys."""

    def __init__(self, prefix: str) -> None:
        self.dispatcher = RedisDispatcher(server_url(), prefix=prefix)
        self.wakeups: asyncio.Queue[frozenset[str]] = asyncio.Queue()
        self.dispatcher.on_wake(self.wakeups.put_nowait)

    async def start(self, rules: Rules) -> None:
        await self.dispatcher.configure(rules)
        await self.dispatcher.start()
        await asyncio.wait_for(self.dispatcher._wakeups.subscribed.wait(), 10)
        while not self.wakeups.empty():
            self.wakeups.get_nowait()

    async def claim(self, budget: int, *services: str, band: int | None = None) -> list[Lease]:
        bands = frozenset({1, 2, 3} if band is None else {band})
        claim = Claim(self.dispatcher._scopes.process, budget, frozenset(services), bands)
        return await self.dispatcher.exchange(claim)

    async def next_wakeup(self) -> frozenset[str]:
        return await asyncio.wait_for(self.wakeups.get(), 10)


@pytest.fixture
async def processes() -> AsyncIterator[list[Process]]:
    """A gateway, which never claims, and two workers; one service and a pool of two."""
    prefix = f"test-{secrets.token_hex(6)}"
    services = {
        "s": ServiceRules("s", limit=9),
        "x": ServiceRules("x", limit=9, pool="gpu"),
        "y": ServiceRules("y", limit=9, pool="gpu"),
    }
    rules = Rules(services, {"gpu": 9}, version=1)
    three = [Process(prefix) for _ in range(3)]
    for process in three:
        await process.start(rules)
    for scope in rules.scopes:
        await three[0].dispatcher.close_scope(scope, epoch=1)
        await three[0].dispatcher.open_scope(scope, epoch=1)
    yield three
    for process in three:
        await process.dispatcher.close()


def offering(process: Process) -> QueueHarness:
    return QueueHarness(process.dispatcher, FakeClock())


async def test_an_offer_wakes_one_of_the_waiting_processes_and_no_other(processes: list[Process]) -> None:
    gateway, first, second = processes
    assert await first.claim(1, "s") == await second.claim(1, "s") == []
    queue = offering(gateway)
    await queue.offer("a")
    receiving = [asyncio.create_task(process.next_wakeup()) for process in (first, second)]
    done, waiting = await asyncio.wait(receiving, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == [{"s"}]
    assert queue.wakeups() == [], "the gateway has no worker to wake"
    (other,) = waiting
    await queue.offer("b")
    await asyncio.sleep(0.05)
    assert not other.done(), "the lane was runnable already"
    other.cancel()


@pytest.mark.parametrize("services", [("s",), ("s", "x")])
async def test_a_claim_that_leaves_the_lane_runnable_wakes_the_next_process(
    processes: list[Process], services: tuple[str, ...]
) -> None:
    gateway, first, second = processes
    assert await first.claim(1, *services) == await second.claim(1, *services) == []
    await offering(gateway).offer_all("abc")
    receiving = {process: asyncio.create_task(process.next_wakeup()) for process in (first, second)}
    await asyncio.wait(receiving.values(), return_when=asyncio.FIRST_COMPLETED)
    woken, other = (first, second) if receiving[first].done() else (second, first)
    assert len(await woken.claim(1, *services)) == 1
    assert await receiving[other] == {"s"}


@pytest.mark.parametrize("services", [("s",), ("s", "x")])
@pytest.mark.parametrize("renewed", [False, True])
async def test_each_band_wakes_the_process_that_is_bound_to_it(
    processes: list[Process], services: tuple[str, ...], renewed: bool
) -> None:
    gateway, *bound = processes
    for process, band in zip(bound, (1, 3), strict=True):
        assert await process.claim(5, *services, band=band) == []
        if renewed:
            await process.dispatcher._claims.renew_registration()
    for process, band in zip(bound, (1, 3), strict=True):
        await offering(gateway).offer(f"in band {band}", band=band)
        assert await process.next_wakeup() == {"s"}
    assert all(process.wakeups.empty() for process in bound)
    for process, band in zip(bound, (1, 3), strict=True):
        (lease,) = await process.claim(5, *services, band=band)
        assert lease.job_id == f"in band {band}"


async def test_a_wakeup_of_a_bound_process_parks_no_user(processes: list[Process]) -> None:
    """Parking is written by then: a user that is parked later would lose its turns for good."""
    gateway, first, second = processes
    services = {"s": ServiceRules("s", limit=1, user_rate=Rate(1, None, 3600.0))}
    for process in processes:
        await process.dispatcher.configure(Rules(services, version=2))
    assert await second.claim(5, "s", band=3) == []
    await offering(gateway).offer("low", "ann", band=3)
    (lease,) = await first.claim(1, "s", band=3)
    await offering(gateway).offer("high", "bob", band=1)
    await offering(gateway).offer("low2", "ann", band=3)
    await first.dispatcher.release([Release(lease.name, "s")])
    assert await gateway.dispatcher.check() == []


async def test_a_dead_process_is_skipped_by_wakeups(processes: list[Process]) -> None:
    gateway, first, second = processes
    await first.claim(1, "s")
    await first.dispatcher._wakeups.close()  # as if it had been killed: its registration as waiting remains
    await second.claim(1, "s")
    await offering(gateway).offer("a")
    assert await second.next_wakeup() == {"s"}


async def test_a_process_that_claims_before_it_is_subscribed_gets_wakeups_afterwards(processes: list[Process]) -> None:
    gateway, queue = processes[0], offering(processes[0])
    rules = Rules({"s": ServiceRules("s", limit=9)}, version=1)
    late = Process(gateway.dispatcher._scopes.prefix)
    await late.dispatcher.configure(rules)
    assert await late.claim(2, "s") == []
    await queue.offer("a")  # the wakeup finds no subscriber, so the registration is removed
    await late.start(rules)
    assert len(await late.claim(2, "s")) == 1
    await queue.offer("b")
    assert await late.next_wakeup() == {"s"}
    await late.dispatcher.close()


async def test_a_release_wakes_a_process_waiting_elsewhere(processes: list[Process]) -> None:
    gateway, first, second = processes
    await offering(gateway).offer_all([str(number) for number in range(10)])
    leases = await first.claim(9, "s")
    assert len(leases) == 9
    assert await second.claim(1, "s") == []
    await gateway.dispatcher.release([Release(leases[0].name, "s")])
    assert await second.next_wakeup() == {"s"}


async def test_a_process_with_older_rules_keeps_the_limit_of_a_pool_that_grew(processes: list[Process]) -> None:
    newer, older, _ = processes
    services = {name: ServiceRules(name, limit=9, pool="gpu") for name in "xyz"}
    await newer.dispatcher.configure(Rules(services, {"gpu": 2}, version=2))
    await offering(newer).offer("z0", service="z")
    await offering(newer).offer_all(["x0", "x1"], service="x")
    assert len(await newer.claim(1, "z")) == 1
    assert len(await older.claim(9, "x", "y")) == 1, "the slot that z has counts"


async def test_a_slot_is_released_in_its_own_scope_after_its_service_moved(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=1))
    await queue.offer("a")
    (lease,) = await queue.claim()
    pooled = Rules({"s": ServiceRules("s", limit=1, pool="gpu")}, {"gpu": 1}, version=99)
    await queue.dispatcher.configure(pooled)
    queue.clock.now += 60
    assert await queue.dispatcher.expired() == [], "it is renewed where its service is, once a rebuild has put it there"
    leases = scope_key(queue.dispatcher._scopes.prefix, "service:s", "s:s:leases")  # type: ignore[attr-defined]
    assert own_server().hlen(leases) == 1
    await queue.dispatcher.release([Release(lease.name, "s", scope=lease.scope)])
    assert own_server().hlen(leases) == 0


async def test_entries_left_in_a_former_scope_do_not_refuse_offers(queue: QueueHarness) -> None:
    own_server().flushall()
    await queue.open(ServiceRules("s", limit=1), ServiceRules("t", limit=1))
    await queue.offer("a", steps=("s",))
    await queue.configure(ServiceRules("s", limit=1, pool="gpu"), pools={"gpu": 1})
    assert await queue.offer("a", steps=("s",))
    await queue.dispatcher.close_scope("service:s", 2)
    (entries,) = own_server().scan_iter("*:entries")
    assert b"{pool:gpu}" in entries


async def test_an_offer_queries_no_scope_that_cannot_hold_its_job(queue: QueueHarness) -> None:
    await queue.open(*(ServiceRules(name, limit=1) for name in "stuv"))
    await queue.offer("a", steps=("s",))
    before = scripts_called()
    await queue.offer("b", steps=("s",))
    assert scripts_called() - before == 1
    await queue.offer("c", steps=("s", "t"))
    assert scripts_called() - before == 3, "t is queried first"


def scripts_called() -> int:
    stats: dict[str, dict[str, int]] = own_server().info("commandstats")  # type: ignore[assignment]
    return stats["cmdstat_evalsha"]["calls"]


WORN = """
local state = { cmsgpack.unpack(redis.call('HGET', KEYS[1], 'state:s')) }
state[4] = 5500000000000000
redis.call('HSET', KEYS[1], 'state:s', cmsgpack.pack(unpack(state)))
"""
"""Sets the virtual time of band 2 to 174 years."""


async def test_virtual_times_of_too_many_digits_cause_a_rebuild() -> None:
    dispatcher = RedisDispatcher(server_url(), prefix=f"test-{secrets.token_hex(6)}")
    queue, meta = QueueHarness(dispatcher, FakeClock()), dispatcher._scopes.key("service:s", "meta")
    server = redis.Redis.from_url(server_url())
    await queue.open(ServiceRules("s", limit=9))
    server.eval(WORN, 1, meta)
    await queue.offer_all("abc")
    assert await queue.claimed(1) == ["a"]
    assert server.hget(meta, "open") == b"lost"
    assert await queue.claimed(1) == []
    await dispatcher.close_scope("service:s", 2)
    await dispatcher.open_scope("service:s", 2)
    await queue.offer_all("bc")
    assert await queue.claimed(2) == ["b", "c"]
    assert server.hget(meta, "open") == b"1"
    server.close()
    await dispatcher.close()
