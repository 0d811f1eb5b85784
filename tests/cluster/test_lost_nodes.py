"""Losing a node of a Cluster, or replacing it by its replica, affects only the scopes of that node."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from fairlead.dispatch.port import Claim, Lease
from fairlead.dispatch.redis import RedisDispatcher
from fairlead.dispatch.redis.keys import scope_key
from fairlead.domain.rules import ServiceRules
from fairlead.errors import Unavailable
from tests.contract.dispatchers import FakeClock, QueueHarness
from tests.redis_servers import Server, add_replica, start_cluster, until, url_of_cluster

NOT_OURS = "the queue is not built on this Redis server"


@dataclass
class Site:
    """A queue whose services `lost` and `kept` are on different nodes."""

    nodes: list[Server]
    prefix: str = field(default_factory=lambda: f"test-{secrets.token_hex(6)}")
    named: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.dispatcher = RedisDispatcher(url_of_cluster(self.nodes), prefix=self.prefix, admit=self.admit)
        self.queue = QueueHarness(self.dispatcher, FakeClock())
        # With these names, the scope on the lost node is always called first.
        self.lost, self.kept = self.service_on(self.nodes[0], "a"), self.service_on(self.nodes[1], "b")
        self.scopes = [f"service:{self.lost}", f"service:{self.kept}"]

    def admit(self, server: str) -> bool:
        return server in self.named

    def service_on(self, node: Server, name: str) -> str:
        bound = {self.nodes[0].port: range(5461), self.nodes[1].port: range(5461, 10922)}[node.port]
        for number in range(1000):
            service = f"{name}{number}"
            slot = node.client.cluster("KEYSLOT", scope_key(self.prefix, f"service:{service}", "meta"))
            if slot in bound:
                return service
        raise AssertionError

    async def servers(self) -> dict[str, str]:
        return {scope: state.server for scope, state in (await self.dispatcher.states(self.scopes)).items()}

    async def build(self) -> None:
        """Name only the nodes with a scope, not the third one, which may hold the list of scopes."""
        self.named |= set((await self.servers()).values())
        assert len(self.named) == 2
        await self.queue.open(*(ServiceRules(service, limit=9, lease_ttl=60) for service in (self.lost, self.kept)))

    async def claim(self, *services: str) -> list[Lease]:
        return await self.dispatcher.exchange(Claim("w", 5, frozenset(services)))


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    nodes = start_cluster()
    site = Site(nodes)
    await site.build()
    yield site
    await site.dispatcher.close()
    for node in nodes:
        node.kill()


async def test_a_promoted_replica_is_refused_and_the_other_nodes_continue(site: Site) -> None:
    before = await site.servers()
    assert before[site.scopes[0]] != before[site.scopes[1]], "each scope names the node that has it"
    for service in (site.lost, site.kept):
        await site.queue.offer(f"of {service}", service=service)
    (lease,) = await site.claim(site.kept)
    replica = add_replica(site.nodes, site.nodes[0])
    replica.client.execute_command("CLUSTER", "FAILOVER", "TAKEOVER")
    until(lambda: replica.client.info("replication")["role"] == "master", "the replica has taken over")
    async with asyncio.timeout(20):
        while True:  # until the other nodes, and thus the client, have noticed
            with pytest.raises(Unavailable) as refused:
                await site.claim(site.lost)
            if NOT_OURS in str(refused.value):
                break
            await asyncio.sleep(0.05)
    with pytest.raises(Unavailable, match=NOT_OURS):
        await asyncio.to_thread(site.dispatcher.renew, "w", [lease.name])
    await site.queue.offer("more", service=site.kept)
    assert [each.job_id for each in await site.claim(site.kept, site.lost)] == ["more"], "of the healthy node"
    async with asyncio.timeout(20):
        while (after := await site.servers())[site.scopes[0]] == before[site.scopes[0]]:
            await asyncio.sleep(0.05)
    assert after[site.scopes[1]] == before[site.scopes[1]]
    site.named.add(after[site.scopes[0]])
    await site.dispatcher.reconnect()  # as a process does when it learns of the new server
    assert [each.job_id for each in await site.claim(site.lost)] == [f"of {site.lost}"]
    replica.kill()


async def test_leases_on_a_healthy_node_are_renewed_while_another_is_down(site: Site) -> None:
    await site.queue.offer("a", service=site.kept)
    await site.queue.offer("b", service=site.lost)
    leases = await site.claim(site.kept, site.lost)
    assert len(leases) == 2
    names = [lease.name for lease in leases]
    await asyncio.to_thread(site.nodes[0].kill)

    async def expires_at() -> float:
        (seen,) = await site.dispatcher.snapshot([site.kept])
        return seen.leases[0].expires_at

    async with asyncio.timeout(20):
        while True:  # the list of scopes may be on the node that was just lost
            try:
                before = await expires_at()
                break
            except Unavailable:
                await asyncio.sleep(0.05)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await asyncio.to_thread(site.dispatcher.renew, "w", names)
    assert await expires_at() > before
    assert [lease.service for lease in await site.dispatcher.expired()] == []
