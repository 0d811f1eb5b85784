"""Every new connection checks the server's identity, and a server that the database does not name is not used."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Iterator

import pytest

from fairlead.dispatch.port import Claim, Offer, Promotion, Release, Renewal, ScopeState, Withdrawal
from fairlead.dispatch.redis import RedisDispatcher
from fairlead.domain.job import Hold
from fairlead.domain.rules import Rules, ServiceRules
from fairlead.errors import Unavailable
from tests.contract.dispatchers import FakeClock, QueueHarness
from tests.redis_servers import Sentinel, Server, until_replica_follows

FAIR = ServiceRules("s", limit=9)
SCOPE = FAIR.scope
NOT_OURS = "the queue is not built on this Redis server"


class FakeDatabase:
    """The servers named by the database. A manager adds a server when it rebuilds the queue there."""

    def __init__(self) -> None:
        self.named: set[str] = set()
        self.checked: list[str] = []

    def admit(self, server: str) -> bool:
        self.checked.append(server)
        return server in self.named


class Site:
    """A server, a fake database, and a process whose queue is built on the server."""

    def __init__(self, server: Server, url: str | None = None, prefix: str | None = None) -> None:
        self.server = server
        self.database = FakeDatabase()
        self.dispatcher = RedisDispatcher(
            url or server.url, prefix=prefix or f"test-{secrets.token_hex(6)}", admit=self.database.admit
        )
        self.queue = QueueHarness(self.dispatcher, FakeClock())

    async def state(self) -> ScopeState:
        return (await self.dispatcher.states([SCOPE]))[SCOPE]

    async def name(self, server: str) -> None:
        """Name the server in the database, and let the process check again."""
        self.database.named.add(server)
        await self.dispatcher.reconnect()

    async def build(self) -> None:
        await self.name((await self.state()).server)
        await self.queue.open(FAIR)
        assert (await self.state()).open

    async def cut_off(self) -> None:
        """Wait until the process has noticed: earlier calls would fail with their connection instead of being
        refused."""
        async with asyncio.timeout(10):
            while any(pool.ready for pool in self.dispatcher._scopes.client._pools.values()):
                await asyncio.sleep(0.01)

    async def refused(self) -> None:
        """Assert that every operation on the queue is refused."""
        for operation in operations(self.dispatcher):
            with pytest.raises(Unavailable, match=NOT_OURS):
                await operation()
        with pytest.raises(Unavailable, match=NOT_OURS):
            self.dispatcher.renew("w", ["1:1"])


async def until_it_is_tried_again(ask: Callable[[], Awaitable[ScopeState]]) -> ScopeState:
    """Wait out the pause after a server was read-only."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(Unavailable):
                return await ask()
            await asyncio.sleep(0.05)


def operations(dispatcher: RedisDispatcher) -> list[Callable[[], Awaitable[object]]]:
    """All operations on the server but `renew`, which is synchronous, and `states`, which is never refused."""
    offer = Offer("job", 1, "s", "ann", 2, 0, 0, 1)
    rules = Rules({"s": FAIR}, version=1)
    return [
        lambda: dispatcher.configure(rules),
        lambda: dispatcher.offer([offer]),
        lambda: dispatcher.withdraw([Withdrawal("job", "s", 1)]),
        lambda: dispatcher.promote([Promotion("job", "s", 2, 1)]),
        lambda: dispatcher.exchange(Claim("w", 1, frozenset({"s"}))),
        lambda: dispatcher.exchange(Claim("w", 1, frozenset({"s", "t"})), [Release("1:1", "s")]),
        lambda: dispatcher.release([Release("1:1", "s")]),
        lambda: dispatcher.expired(),
        lambda: dispatcher.hold([Hold("job", "s", None, 2e9)]),
        lambda: dispatcher.end_holds(1.0),
        lambda: dispatcher.positions(["job"]),
        lambda: dispatcher.snapshot(),
        lambda: dispatcher.close_scope(SCOPE, 9),
        lambda: dispatcher.restore(SCOPE, 9, [], []),
        lambda: dispatcher.open_scope(SCOPE, 9),
    ]


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server("--appendonly", "yes", "--appendfsync", "always").start()
    yield server
    server.kill()


@pytest.fixture
def other() -> Iterator[Server]:
    server = Server().start()
    yield server
    server.kill()


async def test_a_restarted_server_is_refused_until_the_database_names_it(server: Server) -> None:
    site = Site(server)
    await site.build()
    await site.queue.offer("a")
    lease = await site.queue.take(worker="w")
    assert site.dispatcher.renew("w", [lease.name]) == Renewal()
    before = await site.state()
    await asyncio.to_thread(server.kill)  # in a thread, so that the loop notices the lost connections
    await asyncio.to_thread(server.start)
    await site.refused()
    after = await site.state()
    assert (after.epoch, after.open) == (before.epoch, before.open), "its data looks the same as before"
    assert after.server != before.server
    await site.name(after.server)
    assert site.dispatcher.renew("w", [lease.name]) == Renewal()
    assert (await site.queue.see()).in_use == 1
    await site.dispatcher.close()


async def test_each_connection_is_checked_once_and_stays_open_to_the_same_server(server: Server) -> None:
    site = Site(server)
    await site.build()
    made = server.client.info("stats")["total_connections_received"]
    assert len(set(site.database.checked)) == 1
    checked = len(site.database.checked)
    for _ in range(20):
        await site.queue.see()
    assert len(site.database.checked) == checked
    assert server.client.info("stats")["total_connections_received"] == made
    await asyncio.gather(*(site.queue.see() for _ in range(5)))
    site.dispatcher.renew("w", [])
    assert len(site.database.checked) > checked, "new connections were checked"
    await site.dispatcher.close()


async def test_a_promoted_replica_is_refused_although_it_has_all_the_data(server: Server, other: Server) -> None:
    site = Site(server, prefix="line")
    await site.build()
    other.client.replicaof("127.0.0.1", server.port)
    until_replica_follows(other)
    until_copied = server.client.wait(1, 5000)
    assert until_copied == 1
    other.client.replicaof("NO", "ONE")
    elsewhere = Site(other, prefix="line")  # the same prefix on another server
    elsewhere.database.named = site.database.named
    await elsewhere.refused()
    there = await elsewhere.state()
    assert (there.epoch, there.open) == (1, True)
    assert there.server not in site.database.named
    await elsewhere.name(there.server)
    await elsewhere.queue.configure(FAIR)
    await elsewhere.queue.offer("a")
    assert await elsewhere.queue.claimed() == ["a"]
    for each in (site, elsewhere):
        await each.dispatcher.close()


async def test_a_master_that_was_demoted_for_a_while_is_refused_by_connections_that_were_open(
    server: Server, other: Server
) -> None:
    site = Site(server)
    await site.build()
    await site.queue.offer("a")
    lease = await site.queue.take(worker="w")
    site.dispatcher.renew("w", [lease.name])
    before = await site.state()
    server.client.replicaof("127.0.0.1", other.port)  # an empty server
    until_replica_follows(server)
    with pytest.raises(Unavailable):
        await site.queue.claimed()
    with pytest.raises(Unavailable):
        site.dispatcher.renew("w", [lease.name])  # raises instead of reporting the lease as lost
    with pytest.raises(Unavailable):
        await site.dispatcher.expired()
    with pytest.raises(Unavailable, match="replica"):
        await site.state()
    server.client.replicaof("NO", "ONE")
    after = await until_it_is_tried_again(site.state)
    await site.refused()
    assert after.epoch is None
    assert after.server.split("/")[0] == before.server.split("/")[0], "the same process"
    assert after.server != before.server
    await site.dispatcher.close()


async def test_a_demoted_master_reports_no_lease_as_lost_or_expired(server: Server, other: Server) -> None:
    """Both operations must notice on an existing connection, although neither has anything to write."""
    site = Site(server)
    await site.build()
    await site.queue.offer("a")
    lease = await site.queue.take(worker="w")
    site.dispatcher.renew("w", [lease.name])
    server.client.replicaof("127.0.0.1", other.port)
    until_replica_follows(server)
    with pytest.raises(Unavailable):
        site.dispatcher.renew("w", [lease.name])
    with pytest.raises(Unavailable):
        await site.dispatcher.expired()
    await site.dispatcher.close()


async def test_identity_is_checked_behind_sentinels_too(server: Server) -> None:
    sentinel = Sentinel(server.port).start()
    site = Site(server, url=sentinel.url)
    await site.refused()
    await site.build()
    await site.queue.offer("a")
    lease = await site.queue.take(worker="w")
    assert site.dispatcher.renew("w", [lease.name]) == Renewal()
    site.database.named.clear()
    await asyncio.to_thread(server.client.client_kill_filter, _type="normal", skipme=True)
    await site.cut_off()
    await site.refused()
    await site.dispatcher.close()
    sentinel.kill()


async def test_wakeups_arrive_from_a_refused_server(server: Server) -> None:
    site = Site(server)
    await site.dispatcher.start()
    await asyncio.wait_for(site.dispatcher._wakeups.subscribed.wait(), 10)
    await site.refused()
    await site.dispatcher.close()
