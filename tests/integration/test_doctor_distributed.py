"""The doctor on PostgreSQL and Redis: gateways, workers and managers in one event loop. Where a finding needs minutes,
the test changes times in the database; nothing else is faked."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from fairlead import Call, Config, Fairlead, JobStatus
from fairlead.config import Settings
from fairlead.engine.clock import SystemClock
from fairlead.engine.roles import Roles
from fairlead.observe import doctor
from fairlead.observe.doctor import facts
from fairlead.observe.doctor import servers as redis_checks
from tests import redis_servers, servers
from tests.integration import cli_process
from tests.integration.doctor_site import (
    API,
    MANAGER,
    WORKER,
    Operator,
    command_in,
    provokes,
    redis_cli,
    until_found,
    until_gone,
)
from tests.integration.region_endpoints import open_endpoints

Make = Callable[..., Fairlead]
WAITS_FOR_EVER = """
import asyncio
from pathlib import Path
from fairlead import Fairlead

app = Fairlead()

@app.service(limit=2, lease_ttl=2)
async def gate(call):
    Path("entered").touch()
    await asyncio.Event().wait()
"""
AGED = "UPDATE fairlead.process SET seen_at = seen_at - 60000000 WHERE name LIKE '%:{pid}:%'"


@pytest.fixture(scope="module")
def redis_server() -> Iterator[redis_servers.Server]:
    """A server of this module: its tests change the settings."""
    server = redis_servers.Server().start()
    yield server
    server.kill()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SECOND_LOOK", 0.3)


@pytest.fixture
async def make(emptied_database: str, redis_server: redis_servers.Server) -> Make:
    redis_server.client.flushall()

    def made(*, redis_url: str | None = None, clock: Any = None, **config: Any) -> Fairlead:
        settings = Settings(Config.model_validate(config), emptied_database, redis_url=redis_url or redis_server.url)
        app = Fairlead(settings, clock=clock)

        @app.service(limit=2)
        async def gpu(call: Call) -> str:
            return "done"

        return app

    return made


@pytest.fixture
async def operator(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Operator]:
    operator = Operator(monkeypatch)
    yield operator
    await operator.close()


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(servers.direct(url))
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


# ---------------------------------------------------------------- missing processes


@provokes("no-manager", "rebuilding", "promotion-late", "timers-late", "outbox-late", "no-worker")
async def test_missing_processes_are_started_as_the_doctor_advises(
    make: Make, operator: Operator, stack: AsyncExitStack, emptied_database: str
) -> None:
    async with make().running(API) as gateway:
        await gateway.submit("gpu", priority="low")
        await gateway.submit("gpu", delay=60)
        await execute(
            emptied_database,
            "UPDATE fairlead.job SET queued_at = queued_at - 7200000000 WHERE queued_at IS NOT NULL",
            "UPDATE fairlead.job SET timer_at = timer_at - 7200000000 WHERE timer_at IS NOT NULL",
            "UPDATE fairlead.outbox SET written_at = written_at - 60000000",
        )
        ills = ("no-manager", "rebuilding", "promotion-late", "timers-late", "outbox-late")
        seen = await until_found(gateway, *ills, "no-worker")
        await stack.enter_async_context(operator.started(make(), command_in(seen["no-manager"], "fairlead", "manager")))
        await until_gone(gateway, *ills)
        seen = await until_found(gateway, "no-worker")
        await stack.enter_async_context(operator.started(make(), command_in(seen["no-worker"], "fairlead", "worker")))
        await until_gone(gateway, "no-worker")


@provokes("no-worker-for-band")
async def test_a_band_that_no_worker_serves(make: Make, operator: Operator, stack: AsyncExitStack) -> None:
    for roles in (MANAGER, Roles(api=False, manager=False, bands=frozenset({1, 2}))):
        await stack.enter_async_context(make().running(roles))
    async with make().running(API) as gateway:
        seen = await until_found(gateway, "no-worker-for-band")
        assert seen["no-worker-for-band"].about == "gpu low"
        command = command_in(seen["no-worker-for-band"], "fairlead", "worker")
        await stack.enter_async_context(operator.started(make(), command))
        await until_gone(gateway, "no-worker-for-band")


@provokes("no-worker-for-region")
async def test_a_region_that_no_worker_serves(make: Make, operator: Operator, stack: AsyncExitStack) -> None:
    async with open_endpoints("eu", "us") as world:
        services = {"services": {"inference": world.config()["services"]["gpu"]}}
        for roles in (MANAGER, Roles(api=False, manager=False, regions=frozenset({"us"}))):
            await stack.enter_async_context(make(**services).running(roles))
        async with make(**services).running(API) as gateway:
            job = await gateway.submit("inference", allowed_regions=["eu"])
            seen = await until_found(gateway, "no-worker-for-region")
            finding = seen["no-worker-for-region"]
            assert (finding.about, finding.evidence["waiting"]) == ("inference eu", 1)
            assert "waiting-while-free" not in seen
            command = command_in(finding, "fairlead", "worker")
            await stack.enter_async_context(operator.started(make(**services), command))
            assert await job.result(30) == {"region": "eu"}
            await until_gone(gateway, "no-worker-for-region")
        await stack.aclose()


@provokes("manager-not-leading", "another-redis")
async def test_processes_with_different_redis_servers(make: Make, stack: AsyncExitStack) -> None:
    other = redis_servers.Server().start()
    stack.callback(other.kill)
    async with make().running(API) as gateway:
        async with make(redis_url=other.url).running(MANAGER):
            await until_found(gateway, "manager-not-leading", "another-redis")
        async with make().running(MANAGER):
            await until_gone(gateway, "manager-not-leading", "another-redis")


async def knows_the_line(gateway: Fairlead) -> bool:
    """Wait until it can offer jobs itself, and no longer reports a problem of before the queue was built."""
    assert gateway._runtime.node is not None
    problems = [process.details.get("problem") for process in await gateway._runtime.store.processes()]
    (line,) = gateway._runtime.node.shards.values()
    return line.configured == line.rules.version and not any(problems)


@provokes("worker-gone", "waiting-while-free")
async def test_a_worker_that_is_suspended_and_then_killed(
    make: Make, operator: Operator, stack: AsyncExitStack, tmp_path: Path, emptied_database: str, redis_server: Any
) -> None:
    """Suspended, it looks alive and claims nothing; killed, it leaves its lease behind."""
    env = {"DATABASE_URL": emptied_database, "REDIS_URL": redis_server.url}
    (tmp_path / "mine.py").write_text(WAITS_FOR_EVER, encoding="utf-8")

    def project() -> Fairlead:
        app = Fairlead(Settings(Config(), emptied_database, redis_url=redis_server.url))

        @app.service(limit=2, lease_ttl=2)
        async def gate(call: Call) -> str:
            return "through"

        return app

    async with project().running(API) as gateway:
        command = (*cli_process.COMMAND, "worker", "mine:app")
        with cli_process.started(command, cwd=tmp_path, env=env) as worker:
            async with project().running(MANAGER):
                await gateway.submit("gate")
                async with asyncio.timeout(30):
                    while not (tmp_path / "entered").exists():
                        await asyncio.sleep(0.02)
                    while not await knows_the_line(gateway):
                        await asyncio.sleep(0.02)
            # From here on there is no manager, which would repair what the doctor should find.
            worker.signal(signal.SIGSTOP)
            await gateway.submit("gate")
            seen = await until_found(gateway, "waiting-while-free")
            assert seen["waiting-while-free"].evidence["waiting"] == 1
            worker.signal(signal.SIGKILL)
            worker.ended()
        # After ten seconds of silence it counts as dead.
        await execute(emptied_database, AGED.format(pid=worker.process.pid))
        seen = await until_found(gateway, "worker-gone", "no-worker", "no-manager")
        for code, process in (("no-worker", "worker"), ("no-manager", "manager")):
            await stack.enter_async_context(operator.started(project(), command_in(seen[code], "fairlead", process)))
        await until_gone(gateway, "worker-gone", "waiting-while-free", "no-worker")


@provokes("waiting-while-free")
async def test_a_queue_that_lost_a_part_of_its_data(
    make: Make, operator: Operator, stack: AsyncExitStack, redis_server: redis_servers.Server
) -> None:
    """An operator edits a key by hand, and removes a step from its order. (A key that is lost as a whole is
    noticed.)"""
    await stack.enter_async_context(make().running(Roles(api=False)))
    async with make().running(API) as gateway:
        await until_gone(gateway, "rebuilding")
        await operator.serve(gateway)
        await gateway.pause("gpu")
        await gateway.submit("gpu", user_id="ann")
        job = await gateway.submit("gpu", user_id="bob")
        client = redis_server.client
        async with asyncio.timeout(30):
            while client.zcard("fairlead:{service:gpu}:s:gpu:line") != 2:
                await asyncio.sleep(0.02)
        for key in ("fairlead:{service:gpu}:s:gpu:line", "fairlead:{service:gpu}:s:gpu:heads"):
            (member,) = (member for member in client.zrange(key, 0, -1) if b"bob" in member)
            client.zrem(key, member)
        await gateway.unpause("gpu")
        seen = await until_found(gateway, "waiting-while-free")
        await operator.fairlead(command_in(seen["waiting-while-free"], "fairlead", "rebuild"))
        assert (await gateway.wait(job.id, 30)).status is JobStatus.COMPLETED
        await until_gone(gateway, "waiting-while-free")


@provokes("worker-cannot-claim")
async def test_a_worker_that_redis_refuses(
    make: Make, stack: AsyncExitStack, redis_server: redis_servers.Server
) -> None:
    client = redis_server.client
    client.execute_command("ACL", "SETUSER", "worker", "on", ">pw", "~*", "&*", "+@all")
    stack.callback(client.execute_command, "ACL", "DELUSER", "worker")
    await stack.enter_async_context(make().running(MANAGER))
    url = redis_server.url.replace("//", "//worker:pw@")
    await stack.enter_async_context(make(redis_url=url).running(WORKER))
    async with make().running(API) as gateway:
        await until_gone(gateway, "worker-cannot-claim", "rebuilding")
        client.execute_command("ACL", "SETUSER", "worker", "-@scripting")
        seen = await until_found(gateway, "worker-cannot-claim")
        # The full text, not only the public part: the connection was closed, or the user may not run scripts.
        assert "Redis is unavailable: " in seen["worker-cannot-claim"].evidence["reason"]
        client.execute_command("ACL", "SETUSER", "worker", "+@scripting")
        await until_gone(gateway, "worker-cannot-claim")


# ---------------------------------------------------------------- events and clocks


@provokes("events-not-arriving")
async def test_events_that_redis_does_not_let_through(
    make: Make, redis_server: redis_servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = redis_server.client
    monkeypatch.setattr(facts, "HEARD_WITHIN", 0.5)
    async with make().running(API) as gateway:
        await until_gone(gateway, "events-not-arriving")
        client.execute_command("ACL", "SETUSER", "default", "resetchannels")
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        seen = await until_found(gateway, "events-not-arriving")
        command = command_in(seen["events-not-arriving"], "redis-cli")
        await redis_cli(client, command, NAME="default")
        await until_gone(gateway, "events-not-arriving")


class Ahead(SystemClock):
    def now(self) -> float:
        return super().now() + 3600


@provokes("clock-skew")
async def test_a_clock_that_is_an_hour_ahead(make: Make) -> None:
    async with make().running(API) as gateway:
        async with make(clock=Ahead()).running(WORKER):
            seen = await until_found(gateway, "clock-skew")
            assert round(seen["clock-skew"].evidence["skew"], -2) == 3600
        async with make().running(WORKER):
            await until_gone(gateway, "clock-skew")


# ---------------------------------------------------------------- Redis itself


@provokes("redis-evicts", "redis-memory")
async def test_a_redis_without_memory_that_evicts(make: Make, redis_server: redis_servers.Server) -> None:
    client = redis_server.client
    async with make().running(API) as gateway:
        client.config_set("maxmemory", int(client.info("memory")["used_memory"] * 1.2))
        client.config_set("maxmemory-policy", "volatile-lru")
        try:
            seen = await until_found(gateway, "redis-evicts", "redis-memory")
            for code in ("redis-evicts", "redis-memory"):
                await redis_cli(client, command_in(seen[code], "redis-cli"))
            await until_gone(gateway, "redis-evicts", "redis-memory")
        finally:
            client.config_set("maxmemory", 0)
            client.config_set("maxmemory-policy", "noeviction")


@provokes("redis-old")
async def test_an_old_redis_is_reported_with_its_version(make: Make, redis_server: redis_servers.Server) -> None:
    """An upgrade cannot be tested with one server. tests/unit/test_doctor.py has the other versions."""
    info = redis_server.client.info("server")
    version = info.get("valkey_version") or info["redis_version"]
    floors = redis_checks.VALKEY_SAFE if "valkey_version" in info else redis_checks.REDIS_SAFE
    async with make().running(API) as gateway:
        if redis_checks._is_safe(redis_checks._numbers(version), floors):
            await until_gone(gateway, "redis-old")
        else:
            seen = await until_found(gateway, "redis-old")
            assert seen["redis-old"].evidence["version"] == version


@provokes("redis-no-password")
async def test_a_redis_on_the_network_without_a_password(make: Make, stack: AsyncExitStack) -> None:
    address = _own_address()
    if address is None:
        pytest.skip("this machine has no address but loopback")
    server = redis_servers.Server("--bind", "0.0.0.0", "--protected-mode", "no").start()
    stack.callback(server.kill)
    url = server.url.replace("127.0.0.1", address)
    async with make(redis_url=url).running(API) as gateway:
        seen = await until_found(gateway, "redis-no-password")
    await redis_cli(server.client, command_in(seen["redis-no-password"], "redis-cli"), SECRET="pw")
    async with make(redis_url=url.replace("//", "//:pw@")).running(API) as gateway:
        await until_gone(gateway, "redis-no-password", "redis-unreachable")


def _own_address() -> str | None:
    """The address by which this machine would reach others; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address: str = probe.getsockname()[0]
    return None if address.startswith("127.") else address


@provokes("redis-unreachable")
async def test_an_unreachable_redis(make: Make) -> None:
    server = redis_servers.Server().start()
    async with make(redis_url=server.url).running(API) as gateway:
        await until_gone(gateway, "redis-unreachable")
        server.kill()
        seen = await until_found(gateway, "redis-unreachable")
        assert seen["redis-unreachable"].about == "main"
        server.start()
        await until_gone(gateway, "redis-unreachable")
        server.kill()


# ---------------------------------------------------------------- without a gateway


async def test_the_command_line_finds_the_leader_without_a_gateway(
    make: Make, monkeypatch: pytest.MonkeyPatch, emptied_database: str, redis_server: Any, tmp_path: Path
) -> None:
    from tests.integration.test_doctor import codes_of, looked

    monkeypatch.chdir(tmp_path)
    for name, value in {
        "FAIRLEAD_URL": "http://127.0.0.1:1",
        "DATABASE_URL": emptied_database,
        "REDIS_URL": redis_server.url,
    }.items():
        monkeypatch.setenv(name, value)
    async with make().running(Roles(worker=False)):
        seen = codes_of(await looked())
        assert "gateway-unreachable" in seen
        assert "no-worker" in seen
        assert not seen & {"no-manager", "manager-not-leading", "redis-unreachable", "database-unreachable"}
    assert "no-manager" in codes_of(await looked())
    assert servers.postgres_url()
