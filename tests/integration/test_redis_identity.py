"""Every new connection asks which server it has reached, and one that the truth does not name is left alone."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator

import pytest

from fairlead.dispatch.port import Claim, Offer, Promotion, Release, Renewal, ScopeState, Withdrawal
from fairlead.dispatch.redis import RedisDispatcher
from fairlead.domain.job import Hold
from fairlead.domain.limits import Rules, ServiceRules
from fairlead.errors import Unavailable
from tests.contract.dispatchers import FakeClock, Line
from tests.redis_servers import Sentinel, Server, until_replica_follows

FAIR = ServiceRules("s", limit=9)
SCOPE = FAIR.scope
NOT_OURS = "the one that the line was built on"


class Truth:
    """The servers that it names. A manager that rebuilds puts there the one it has found."""

    def __init__(self) -> None:
        self.named: set[str] = set()
        self.asked: list[str] = []

    def admit(self, server: str) -> bool:
        self.asked.append(server)
        return server in self.named


class Site:
    """A server, the truth, and a process whose line is built on it."""

    def __init__(self, server: Server, url: str | None = None, prefix: str | None = None) -> None:
        self.server = server
        self.truth = Truth()
        self.dispatcher = RedisDispatcher(
            url or server.url, prefix=prefix or f"test-{secrets.token_hex(6)}", admit=self.truth.admit
        )
        self.line = Line(self.dispatcher, FakeClock())

    async def state(self) -> ScopeState:
        return (await self.dispatcher.states([SCOPE]))[SCOPE]

    async def build(self) -> None:
        self.truth.named.add((await self.state()).server)
        await self.line.open(FAIR)
        assert (await self.state()).open

    async def cut_off(self) -> None:
        """Until it is noticed: what was sent before would be lost with its connection, not refused."""
        async with asyncio.timeout(10):
            while any(links.ready for links in self.dispatcher._scopes.connection._links.values()):
                await asyncio.sleep(0.01)

    async def refused(self) -> None:
        """Everything that would change or read the line is."""
        for operation in operations(self.dispatcher):
            with pytest.raises(Unavailable, match=NOT_OURS):
                await operation()
        with pytest.raises(Unavailable, match=NOT_OURS):
            self.dispatcher.renew("w", ["1:1"])


def operations(dispatcher: RedisDispatcher) -> list[Callable[[], Awaitable[object]]]:
    """All that go to the server; `renew` is not asynchronous, and `states` has rules of its own."""
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
        lambda: dispatcher.places(["job"]),
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


async def test_a_server_that_was_started_again_is_refused_until_the_truth_names_it(server: Server) -> None:
    site = Site(server)
    await site.build()
    await site.line.offer("a")
    lease = await site.line.take(worker="w")
    assert site.dispatcher.renew("w", [lease.name]) == Renewal()
    before = await site.state()
    await asyncio.to_thread(server.kill)  # meanwhile the loop hears that its connections are gone
    await asyncio.to_thread(server.start)
    await site.refused()
    after = await site.state()
    assert (after.epoch, after.open) == (before.epoch, before.open), "by what it kept, nobody could tell"
    assert after.server != before.server
    site.truth.named.add(after.server)
    assert site.dispatcher.renew("w", [lease.name]) == Renewal()
    assert (await site.line.see()).in_use == 1
    await site.dispatcher.close()


async def test_each_connection_is_compared_once_and_those_to_the_same_server_stay(server: Server) -> None:
    site = Site(server)
    await site.build()
    made = server.client.info("stats")["total_connections_received"]
    assert len(set(site.truth.asked)) == 1
    asked = len(site.truth.asked)
    for _ in range(20):
        await site.line.see()
    assert len(site.truth.asked) == asked
    assert server.client.info("stats")["total_connections_received"] == made
    await asyncio.gather(*(site.line.see() for _ in range(5)))
    site.dispatcher.renew("w", [])
    assert len(site.truth.asked) > asked, "new ones were made, and compared"
    await site.dispatcher.close()


async def test_a_promoted_replica_is_refused_although_it_has_all_the_data(server: Server, other: Server) -> None:
    site = Site(server, prefix="line")
    await site.build()
    other.client.replicaof("127.0.0.1", server.port)
    until_replica_follows(other)
    until_copied = server.client.wait(1, 5000)
    assert until_copied == 1
    other.client.replicaof("NO", "ONE")
    elsewhere = Site(other, prefix="line")  # the same name now leads to another server
    elsewhere.truth.named = site.truth.named
    await elsewhere.refused()
    there = await elsewhere.state()
    assert (there.epoch, there.open) == (1, True)
    assert there.server not in site.truth.named
    elsewhere.truth.named.add(there.server)
    await elsewhere.line.configure(FAIR)
    await elsewhere.line.offer("a")
    assert await elsewhere.line.claimed() == ["a"]
    for each in (site, elsewhere):
        await each.dispatcher.close()


async def test_a_master_that_was_demoted_for_a_while_is_refused_by_connections_that_were_open(
    server: Server, other: Server
) -> None:
    site = Site(server)
    await site.build()
    await site.line.offer("a")
    lease = await site.line.take(worker="w")
    site.dispatcher.renew("w", [lease.name])
    before = await site.state()
    server.client.replicaof("127.0.0.1", other.port)  # which has nothing
    until_replica_follows(server)
    with pytest.raises(Unavailable):
        await site.line.claimed()
    with pytest.raises(Unavailable):
        site.dispatcher.renew("w", [lease.name])  # and not "lost"
    with pytest.raises(Unavailable):
        await site.dispatcher.expired()
    with pytest.raises(Unavailable, match="replica"):
        await site.state()
    server.client.replicaof("NO", "ONE")
    await site.refused()
    after = await site.state()
    assert after.epoch is None
    assert after.server.split("/")[0] == before.server.split("/")[0], "the same process"
    assert after.server != before.server
    await site.dispatcher.close()


async def test_a_demoted_master_calls_no_lease_lost_or_expired(server: Server, other: Server) -> None:
    """Each of the two must find out by itself, over a connection from before: neither has anything to write."""
    site = Site(server)
    await site.build()
    await site.line.offer("a")
    lease = await site.line.take(worker="w")
    site.dispatcher.renew("w", [lease.name])
    server.client.replicaof("127.0.0.1", other.port)
    until_replica_follows(server)
    with pytest.raises(Unavailable):
        site.dispatcher.renew("w", [lease.name])
    with pytest.raises(Unavailable):
        await site.dispatcher.expired()
    await site.dispatcher.close()


async def test_behind_sentinels_too(server: Server) -> None:
    sentinel = Sentinel(server.port).start()
    site = Site(server, url=sentinel.url)
    await site.refused()
    await site.build()
    await site.line.offer("a")
    lease = await site.line.take(worker="w")
    assert site.dispatcher.renew("w", [lease.name]) == Renewal()
    site.truth.named.clear()
    await asyncio.to_thread(server.client.client_kill_filter, _type="normal", skipme=True)
    await site.cut_off()
    await site.refused()
    await site.dispatcher.close()
    sentinel.kill()


async def test_wakes_are_heard_from_a_server_that_is_refused(server: Server) -> None:
    site = Site(server)
    await site.dispatcher.start()
    await asyncio.wait_for(site.dispatcher._wakes.listening.wait(), 10)
    await site.refused()
    await site.dispatcher.close()
