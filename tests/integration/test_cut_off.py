"""A process that reaches Redis but not PostgreSQL, beside others that reach both. A proxy refuses connections, or
accepts them and never answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import httpx2
import pytest

from fairlead import Call, Config, Fairlead, JobStatus
from fairlead.domain import processes
from fairlead.engine import claim_loop
from fairlead.engine.roles import Roles
from fairlead.gateway.app import create_gateway
from fairlead.observe import doctor
from tests.chaos.proxy import Proxy
from tests.chaos.waiting import until, until_true
from tests.integration.doctor_site import API, MANAGER, WORKER, found, provokes, until_found, until_gone
from tests.integration.gateway_site import served
from tests.integration.turn_apps import until_ready


@dataclass
class Network:
    """The processes of one deployment; `far` ones reach PostgreSQL through the proxy."""

    near: dict[str, str]
    far: dict[str, str]
    proxy: Proxy
    stack: AsyncExitStack
    ran: dict[str, list[str]] = field(default_factory=dict)

    def app(self, name: str, *, far: bool = False) -> Fairlead:
        app = Fairlead(Config.model_validate({"manager": {"leader_ttl": 2}}), **(self.far if far else self.near))
        ran = self.ran.setdefault(name, [])

        @app.service(limit=2)
        async def gpu(call: Call) -> str:
            ran.append(call.job_id)
            await asyncio.sleep(0.01)
            return name

        return app

    async def start(self, app: Fairlead, roles: Roles) -> Fairlead:
        return await self.stack.enter_async_context(app.running(roles))


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[tuple[Proxy, str]]:
    """The proxy, and this URL through it."""
    parts = urlsplit(url)
    proxy = Proxy(parts.port or 5432)
    server = await asyncio.start_server(proxy.carry, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    user = parts.netloc.rpartition("@")[0]
    try:
        yield proxy, urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{port}"))
    finally:
        proxy.command("heal")
        proxy.command("target", "1")
        server.close()


@pytest.fixture
async def network(distributed: dict[str, str]) -> AsyncIterator[Network]:
    async with proxied(distributed["database_url"]) as (proxy, url), AsyncExitStack() as stack:
        try:
            yield Network(distributed, {**distributed, "database_url": url}, proxy, stack)
        finally:
            proxy.command("heal")  # before the processes stop, so that they stop quickly


both_ways = pytest.mark.parametrize("fault", ["cut", "hole"])


@both_ways
async def test_a_worker_cut_off_from_the_database_leaves_the_work_to_others(
    network: Network, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_loop, "START_WITHIN", 0.5)
    gateway = await network.start(network.app("gateway"), API)
    await network.start(network.app("manager"), MANAGER)
    near, far = network.app("near"), network.app("far", far=True)
    await network.start(far, WORKER)
    await until_ready(gateway)
    first = await gateway.submit("gpu")
    assert await first.result(30) == "far"

    network.proxy.command(fault)
    claimed = await gateway.submit("gpu")
    assert far._runtime.node is not None
    (worker,) = far._runtime.node.workers
    await until_true("the worker gives up what it claimed", lambda: worker._gate.limit == 0)
    await network.start(near, WORKER)
    jobs = [claimed, *[await gateway.submit("gpu", user_id=f"u{n}") for n in range(20)]]
    assert {await job.result(30) for job in jobs} == {"near"}
    assert not any([(await gateway.get(job.id)).attempts for job in jobs]), "a call that never ran costs no attempt"

    network.proxy.command("heal")
    assert near._runtime.node is not None
    for each in near._runtime.node.workers:
        each.draining = True
    assert await (await gateway.submit("gpu")).result(60) == "far"


@both_ways
async def test_a_leader_cut_off_from_the_database_resigns_and_a_standby_leads(network: Network, fault: str) -> None:
    gateway = await network.start(network.app("gateway"), API)
    far = await network.start(network.app("far", far=True), MANAGER)
    await until_ready(gateway)
    await until_true("the first manager leads", lambda: leads(far))
    near = await network.start(network.app("near"), MANAGER)
    await network.start(network.app("worker"), WORKER)
    assert leads(far)
    assert not leads(near)

    network.proxy.command(fault)
    await until_true("the standby leads", lambda: leads(near))
    assert not leads(far)
    # Only a leader releases due jobs.
    assert await (await gateway.submit("gpu", delay=0.1)).result(30) == "worker"

    network.proxy.command("heal")
    await network.start(network.app("more"), MANAGER)
    assert leads(near)
    assert not leads(far)


def leads(app: Fairlead) -> bool:
    assert app._runtime.node is not None
    return all(line.leader is not None and line.leader.leading for line in app._runtime.node.shards.values())


@pytest.mark.parametrize("roles", [API, WORKER, MANAGER], ids=["gateway", "worker", "manager"])
async def test_a_process_stops_within_seconds_while_the_database_does_not_answer(
    network: Network, roles: Roles
) -> None:
    gateway = await network.start(network.app("gateway"), API)
    await network.start(network.app("manager"), MANAGER)
    await until_ready(gateway)
    far = network.app("far", far=True)
    before = asyncio.all_tasks()
    clock = asyncio.get_running_loop().time
    async with far.running(roles):
        await gateway.submit("gpu")
        network.proxy.command("hole")
        submitting = asyncio.create_task(far.submit("gpu"))
        await asyncio.sleep(2.5)  # every loop has sent a query that is not answered
        began = clock()
    assert clock() - began < 15
    await asyncio.gather(submitting, return_exceptions=True)
    await until_true("no task of it is left", lambda: not tasks_since(before))


def tasks_since(before: set[asyncio.Task[object]]) -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks() - before if task.get_name().startswith("fairlead-")}


BLOCKED = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


async def test_a_cancelled_statement_is_retried(network: Network) -> None:
    gateway = await network.start(network.app("gateway"), API)
    operator = await asyncpg.connect(network.near["database_url"])
    try:
        transaction = operator.transaction()
        await transaction.start()
        await operator.execute("LOCK TABLE fairlead.job IN EXCLUSIVE MODE")
        submitting = asyncio.create_task(gateway.submit("gpu"))

        async def blocked() -> list[int]:
            await operator.execute(
                "SELECT pg_stat_clear_snapshot()"
            )  # a transaction sees the sessions of its first read
            return [row["pid"] for row in await operator.fetch(BLOCKED)]

        for pid in await until("the commit waits for the lock", blocked):
            await operator.execute("SELECT pg_cancel_backend($1)", pid)
        await transaction.rollback()
        job = await submitting
        assert (await gateway.get(job.id)).status is JobStatus.PENDING
    finally:
        await operator.close()


@provokes("worker-cut-off", "manager-cut-off")
async def test_the_doctor_names_processes_that_are_cut_off(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SECOND_LOOK", 0.2)
    monkeypatch.setattr(processes, "DEAD_AFTER", 4.0)  # they send a heartbeat every two seconds
    gateway = await network.start(network.app("gateway"), API)
    await network.start(network.app("near"), MANAGER)
    await until_ready(gateway)
    worker = await network.start(network.app("worker", far=True), WORKER)
    manager = await network.start(network.app("manager", far=True), MANAGER)
    codes = ("worker-cut-off", "manager-cut-off")
    assert not (await found(gateway)).keys() & set(codes)

    network.proxy.command("cut")
    seen = await until_found(gateway, *codes)
    assert worker._runtime.node is not None
    assert manager._runtime.node is not None
    assert seen["worker-cut-off"].about == worker._runtime.node.name
    assert seen["manager-cut-off"].about == manager._runtime.node.name
    assert "event-loop-blocked" not in seen

    network.proxy.command("heal")
    await until_gone(gateway, *codes)


@both_ways
async def test_without_redis_a_limit_holds_and_requests_get_503_while_the_database_is_cut_off(
    emptied_database: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running calls continue; none starts in their slots until the database has recorded their end."""
    monkeypatch.setattr(claim_loop, "START_WITHIN", 0.3)
    entered, go = asyncio.Semaphore(0), asyncio.Event()
    open_calls = most = 0
    async with proxied(emptied_database) as (proxy, url):
        app = Fairlead(Config(), database_url=url)

        @app.service(limit=3, lease_ttl=1)
        async def gpu(call: Call) -> str:
            nonlocal open_calls, most
            open_calls += 1
            most = max(most, open_calls)
            entered.release()
            try:
                await go.wait()
                return "done"
            finally:
                open_calls -= 1

        async with (
            app.running(),
            served(create_gateway(app)) as port,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
        ):
            jobs = [await app.submit("gpu") for _ in range(8)]
            for _ in range(3):
                await asyncio.wait_for(entered.acquire(), 30)
            proxy.command(fault)
            try:
                if fault == "cut":
                    answers = [await client.get(f"/api/v1/jobs/{job.id}") for job in jobs[:3]]
                    assert {answer.status_code for answer in answers} == {503}
                    assert all("retry-after" in answer.headers for answer in answers)
                await asyncio.sleep(2.5)  # longer than a lease lasts
                assert open_calls == 3
                go.set()
            finally:
                proxy.command("heal")
            assert [await job.result(60) for job in jobs] == ["done"] * 8
            assert not any([(await app.get(job.id)).attempts for job in jobs])
        assert most == 3
