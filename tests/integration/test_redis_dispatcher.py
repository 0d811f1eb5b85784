"""What only the dispatcher in Redis can show: a server that loses its data, its own clock, and several processes."""

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
from fairlead.domain.limits import Rules, ServiceRules
from tests.contract.dispatchers import FakeClock, Line
from tests.redis_servers import Sentinel, port_of, server_url, start_server

FAIR = ServiceRules("s", limit=1)


@cache
def own_server() -> redis.Redis:
    """Not the one of other tests: what is in it is lost on purpose."""
    return start_server()


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    clock = FakeClock()
    url = f"redis://127.0.0.1:{port_of(own_server())}/0"
    dispatcher = RedisDispatcher(url, prefix=f"test-{secrets.token_hex(6)}", clock=clock)
    yield Line(dispatcher, clock)
    await dispatcher.close()
    own_server().close()


# -- scopes --------------------------------------------------------------------------------------------------------


async def test_a_job_is_looked_for_only_where_it_may_have_waited(line: Line) -> None:
    await line.open(*(ServiceRules(name, limit=9) for name in "stuv"))

    async def scripts_for(offer: Offer) -> int:
        before = own_server().info("commandstats")["cmdstat_evalsha"]["calls"]
        assert await line.dispatcher.offer([offer]) == 1
        return int(own_server().info("commandstats")["cmdstat_evalsha"]["calls"]) - before

    new = Offer("j", 1, "s", "ann", band=2, rank=2, step=0, run=0, steps=("s",))
    assert await scripts_for(new) == 1
    assert await scripts_for(replace(new, service="t", step=1, run=2, steps=("s", "t"))) == 1 + 1 + 1
    unknown = replace(new, service="u", step=2, run=4, steps=())
    assert await scripts_for(unknown) == 1 + 3 + 1, "nobody knows what it has waited for"
    assert [(await line.see(name)).waiting[2] for name in "stu"] == [0, 0, 1]


# -- a server that loses its data ----------------------------------------------------------------------------------


async def test_nothing_is_granted_and_no_lease_called_lost_after_all_data_is_gone(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9), ServiceRules("t", limit=9))
    await line.offer_all("ab")
    lease = await line.take(worker="w")
    own_server().flushall()
    assert await line.claimed(9) == []
    await line.offer("c")
    assert await line.claimed(9) == [], "what is offered meanwhile waits for the rebuild"
    assert line.dispatcher.renew("w", [lease.name]) == Renewal(rebuilding=True)
    assert await line.dispatcher.expired() == []
    await line.end(lease)
    assert (await line.see()).in_use == 0


async def test_a_rebuild_after_all_data_is_gone_brings_the_rules_and_leases_back(line: Line) -> None:
    await line.open(ServiceRules("s", limit=2, user_limit=1))
    await line.offer_all("ab")
    lease = await line.take(worker="w")
    own_server().flushall()
    await line.dispatcher.close_scope("service:s", epoch=2)
    await line.dispatcher.restore("service:s", 2, [lease], [])
    await line.offer("b")
    await line.offer("c", "bob")
    await line.dispatcher.open_scope("service:s", epoch=2)
    assert line.dispatcher.renew("w", [lease.name]) == Renewal()
    (granted,) = await line.claim(9)
    assert (granted.job_id, granted.name.split(":")[0]) == ("c", "2"), "ann is at her limit"


async def test_scripts_are_loaded_again_when_the_server_lost_them(line: Line) -> None:
    await line.open(FAIR, ServiceRules("t", limit=1))
    own_server().script_flush()
    assert await line.offer("a")
    own_server().script_flush()
    lease = await line.take()
    own_server().script_flush()
    assert line.dispatcher.renew("w", [lease.name]) == Renewal()
    own_server().script_flush()
    assert [seen.in_use for seen in await line.dispatcher.snapshot()] == [1, 0]


# -- the server's own clock ----------------------------------------------------------------------------------------


async def test_times_are_the_servers_own() -> None:
    dispatcher = RedisDispatcher(server_url(), prefix=f"test-{secrets.token_hex(6)}")
    line = Line(dispatcher, FakeClock())
    await line.open(ServiceRules("s", limit=1, lease_ttl=0.05))
    await line.offer("a")
    lease = await line.take()
    assert abs(lease.granted_at - time.time()) < 60
    assert lease.expires_at == pytest.approx(lease.granted_at + 0.05, abs=1e-5)
    await asyncio.sleep(0.1)  # nothing but the server's clock says when
    past = await dispatcher.expired()
    assert [each.name for each in past] == [lease.name]
    await dispatcher.close()


async def test_a_master_is_found_through_its_sentinels() -> None:
    sentinel = Sentinel(port_of(own_server())).start()
    dispatcher = RedisDispatcher(sentinel.url, prefix=f"test-{secrets.token_hex(6)}")
    line = Line(dispatcher, FakeClock())
    await line.open(FAIR)
    await line.offer("a")
    lease = await line.take()
    assert dispatcher.renew("w", [lease.name]) == Renewal()
    await dispatcher.close()
    sentinel.kill()


# -- several processes ---------------------------------------------------------------------------------------------


class Process:
    """A dispatcher as another process has it, on the same keys."""

    def __init__(self, prefix: str) -> None:
        self.dispatcher = RedisDispatcher(server_url(), prefix=prefix)
        self.woken: asyncio.Queue[frozenset[str]] = asyncio.Queue()
        self.dispatcher.on_wake(self.woken.put_nowait)

    async def start(self, rules: Rules) -> None:
        await self.dispatcher.configure(rules)
        await self.dispatcher.start()
        await asyncio.wait_for(self.dispatcher._wakes.listening.wait(), 10)
        while not self.woken.empty():
            self.woken.get_nowait()

    async def claim(self, room: int, *services: str) -> list[Lease]:
        return await self.dispatcher.exchange(Claim(self.dispatcher._scopes.process, room, frozenset(services)))

    async def hears(self) -> frozenset[str]:
        return await asyncio.wait_for(self.woken.get(), 10)


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


def offering(process: Process) -> Line:
    return Line(process.dispatcher, FakeClock())


async def test_an_offer_wakes_one_of_the_waiting_processes_and_no_other(processes: list[Process]) -> None:
    gateway, first, second = processes
    assert await first.claim(1, "s") == await second.claim(1, "s") == []
    line = offering(gateway)
    await line.offer("a")
    heard = [asyncio.create_task(process.hears()) for process in (first, second)]
    done, waiting = await asyncio.wait(heard, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == [{"s"}]
    assert line.woken() == [], "the gateway has no worker to wake"
    (other,) = waiting
    await line.offer("b")
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
    heard = {process: asyncio.create_task(process.hears()) for process in (first, second)}
    await asyncio.wait(heard.values(), return_when=asyncio.FIRST_COMPLETED)
    woken, other = (first, second) if heard[first].done() else (second, first)
    assert len(await woken.claim(1, *services)) == 1
    assert await heard[other] == {"s"}


async def test_a_process_that_is_gone_is_not_counted_on(processes: list[Process]) -> None:
    gateway, first, second = processes
    await first.claim(1, "s")
    await first.dispatcher._wakes.close()  # as if it had been killed: nobody says that it no longer waits
    await second.claim(1, "s")
    await offering(gateway).offer("a")
    assert await second.hears() == {"s"}


async def test_a_release_wakes_who_waits_elsewhere(processes: list[Process]) -> None:
    gateway, first, second = processes
    await offering(gateway).offer_all([str(number) for number in range(10)])
    leases = await first.claim(9, "s")
    assert len(leases) == 9
    assert await second.claim(1, "s") == []
    await gateway.dispatcher.release([Release(leases[0].name, "s")])
    assert await second.hears() == {"s"}


async def test_a_process_with_older_rules_keeps_the_limit_of_a_pool_that_grew(processes: list[Process]) -> None:
    newer, older, _ = processes
    services = {name: ServiceRules(name, limit=9, pool="gpu") for name in "xyz"}
    await newer.dispatcher.configure(Rules(services, {"gpu": 2}, version=2))
    await offering(newer).offer("z0", service="z")
    await offering(newer).offer_all(["x0", "x1"], service="x")
    assert len(await newer.claim(1, "z")) == 1
    assert len(await older.claim(9, "x", "y")) == 1, "the slot that z has counts"


async def test_a_slot_is_given_back_where_it_was_taken_though_its_service_has_moved(line: Line) -> None:
    await line.open(ServiceRules("s", limit=1))
    await line.offer("a")
    (lease,) = await line.claim()
    pooled = Rules({"s": ServiceRules("s", limit=1, pool="gpu")}, {"gpu": 1}, version=99)
    await line.dispatcher.configure(pooled)
    line.clock.now += 60
    assert [each.name for each in await line.dispatcher.expired()] == [lease.name]
    await line.dispatcher.release([Release(lease.name, "s", scope=lease.scope)])
    assert await line.dispatcher.expired() == []


async def test_what_waits_in_a_services_former_scope_is_taken_out_of_it(line: Line) -> None:
    own_server().flushall()
    await line.open(ServiceRules("s", limit=1), ServiceRules("t", limit=1))
    await line.offer("a", steps=("s",))
    await line.configure(ServiceRules("s", limit=1, pool="gpu"), pools={"gpu": 1})
    assert not await line.offer("a", steps=("s",))
    assert await line.offer("a", run=2, steps=("s",))
    (entries,) = own_server().scan_iter("*:entries")
    assert b"{pool:gpu}" in entries


async def test_an_offer_asks_no_scope_that_can_know_nothing_of_its_job(line: Line) -> None:
    await line.open(*(ServiceRules(name, limit=1) for name in "stuv"))
    await line.offer("a", steps=("s",))
    before = scripts_called()
    await line.offer("b", steps=("s",))
    assert scripts_called() - before == 1
    await line.offer("c", steps=("s", "t"))
    assert scripts_called() - before == 3, "t is asked first"


def scripts_called() -> int:
    found: dict[str, dict[str, int]] = own_server().info("commandstats")  # type: ignore[assignment]
    return found["cmdstat_evalsha"]["calls"]
