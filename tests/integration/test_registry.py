"""The processes that run: each is registered in the database, can be drained remotely, and deregisters when it
exits."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead import Call, Config, Fairlead, JobStatus, NotFound, Unavailable, WrongState
from fairlead.domain.access import AuditRecord
from fairlead.domain.processes import DEAD_AFTER, ProcessRecord
from fairlead.engine import registry
from fairlead.engine.loops.cleanup import KEEP_PROCESSES
from fairlead.engine.roles import Roles
from fairlead.store.port import Audit, RegisterProcess, RequestRebuild
from tests import redis_servers, servers

PATIENCE = 30.0


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "EVERY", 0.05)


class GatedApp:
    """An app with a service `slow`, whose calls run until the gate is opened; `begun` counts them."""

    def __init__(self, engines: dict[str, str], **sections: Any) -> None:
        self.app = Fairlead(Config.model_validate({"worker": {"drain_timeout": 20}, **sections}), **engines)
        self.gate = asyncio.Event()
        self.begun = 0
        self.begun_any = asyncio.Event()

        @self.app.service(limit=1)
        async def slow(call: Call) -> str:
            self.begun += 1
            self.begun_any.set()
            await self.gate.wait()
            return "done"


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await true():
            await asyncio.sleep(0.01)


async def only(app: Fairlead) -> ProcessRecord:
    (record,) = await app.processes()
    return record


# ---------------------------------------------------------------- the list


async def test_a_process_is_listed_from_its_start_to_its_end(engines: dict[str, str]) -> None:
    gated = GatedApp(engines, worker={"concurrency": 7})
    async with Fairlead(Config(), **engines) as onlooker:
        assert await onlooker.processes() == []
        async with gated.app.running():
            record = await only(onlooker)
            assert record.roles == ("api", "worker", "manager")
            assert (record.services, record.bands) == (("slow",), ("high", "medium", "low"))
            assert (record.concurrency, record.pid, record.host) == (7, os.getpid(), socket.gethostname())
            assert (record.draining, record.drain_asked) == (False, False)
            assert abs(record.skew) < 30
            job = await gated.app.submit("slow")
            await asyncio.wait_for(gated.begun_any.wait(), PATIENCE)
            status = await gated.app.status()
            lease = next(service for service in status["services"] if service["service"] == "slow")["running"][0]
            assert lease["worker"] == record.name, "a lease names its process"

            async def announced() -> bool:
                now = await only(onlooker)
                return now.running == 1 and now.seen_at > record.seen_at

            await until(announced)
            gated.gate.set()
            await job.result(timeout=PATIENCE)
        assert await onlooker.processes() == []


async def test_a_gateway_beside_a_process_with_a_memory_dispatcher_is_listed(tmp_path: Path) -> None:
    engines = {"database_url": f"sqlite:///{tmp_path}/fairlead.db"}
    async with Fairlead(Config(), **engines) as onlooker:
        async with GatedApp(engines).app.running(Roles(worker=False, manager=False)):
            first = await only(onlooker)
            assert (first.roles, first.services, first.bands, first.concurrency) == (("api",), (), (), 0)

            async def seen_again() -> bool:
                return (await only(onlooker)).seen_at > first.seen_at

            await until(seen_again)
        assert await onlooker.processes() == []


async def test_the_leader_is_marked_in_the_list_of_processes() -> None:
    redis_url = redis_servers.server_url()
    database_url = await servers.shared_database()
    await servers.empty(database_url)
    redis_servers.empty(redis_url)
    async with GatedApp({"database_url": database_url, "redis_url": redis_url}).app.running() as app:

        async def leads() -> bool:
            leader = (await app.status())["leaders"]["main"]["leader"]
            return bool(leader == (await only(app)).name)

        await until(leads)


async def test_heartbeats_do_not_log_an_unreachable_store_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = GatedApp({"database_url": f"sqlite:///{tmp_path}/fairlead.db"}).app
    async with app.running():
        store: Any = app._runtime.store
        commit, tried, away = store.commit, asyncio.Event(), True

        async def failing(batch: Any, **options: Any) -> Any:
            if away and any(isinstance(transition, RegisterProcess) for transition in batch):
                tried.set()
                raise Unavailable("the disk is full")
            return await commit(batch, **options)

        monkeypatch.setattr(store, "commit", failing)
        before = (await only(app)).seen_at
        with caplog.at_level(logging.INFO):
            for _ in range(3):
                tried.clear()
                await asyncio.wait_for(tried.wait(), PATIENCE)
        # A loop whose write is in the same commit as a heartbeat fails with it, and says so.
        assert [record for record in caplog.records if record.name != "fairlead.loops"] == []
        away = False

        async def back() -> bool:
            return (await only(app)).seen_at > before

        await until(back)


async def test_long_dead_processes_and_old_audit_records_are_pruned(tmp_path: Path) -> None:
    engines = {"database_url": f"sqlite:///{tmp_path}/fairlead.db"}
    gated = GatedApp(engines, retention={"keep_audit": 3600})
    async with gated.app:
        store: Any = gated.app._runtime.store
        now = store._clock()
        gone = registry.describe_process("gone", Roles(), gated.app.config, (), 0.0)
        rows = [AuditRecord(f"a{n}", at, "ops", "x", "y", {}) for n, at in enumerate((now - 3700, now - 60))]
        clock, store._clock = store._clock, lambda: now - KEEP_PROCESSES - 60
        await store.commit([RegisterProcess(gone), *map(Audit, rows)])
        store._clock = clock
        async with gated.app.running():

            async def pruned() -> bool:
                names = {record.name for record in await gated.app.processes()}
                return "gone" not in names and [row.id for row in await store.audit(limit=9)] == ["a1"]

            await until(pruned)


# ---------------------------------------------------------------- draining


async def test_a_drained_worker_finishes_its_calls_and_claims_nothing_until_it_is_resumed(
    engines: dict[str, str],
) -> None:
    gated = GatedApp(engines)
    async with Fairlead(Config(), **engines) as operator, gated.app.running():
        running = await gated.app.submit("slow")
        await asyncio.wait_for(gated.begun_any.wait(), PATIENCE)
        waiting = await gated.app.submit("slow")
        name = (await only(operator)).name
        drained = await operator.drain_worker(name)
        assert drained.drain_asked

        async def drains() -> bool:
            return (await only(operator)).draining

        await until(drains)
        assert (await gated.app.readiness())["ready"], "its gateway continues"
        gated.gate.set()
        assert await running.result(timeout=PATIENCE) == "done"

        async def idle() -> bool:
            return (await only(operator)).running == 0

        await until(idle)
        before = (await only(operator)).seen_at

        async def announced_again() -> bool:
            return (await only(operator)).seen_at > before

        await until(announced_again)
        record = await only(operator)
        assert (record.draining, record.drain_asked) == (True, True), "it stays drained"
        assert ((await waiting.get()).status, gated.begun) == (JobStatus.PENDING, 1)
        await operator.undrain_worker(name)
        assert await waiting.result(timeout=PATIENCE) == "done"

        async def claims() -> bool:
            return not (await only(operator)).draining

        await until(claims)


async def test_a_drain_releases_calls_that_do_not_finish_in_time(tmp_path: Path) -> None:
    engines = {"database_url": f"sqlite:///{tmp_path}/fairlead.db"}
    gated = GatedApp(engines, worker={"drain_timeout": 0.05})
    async with gated.app.running() as app:
        job = await app.submit("slow")
        await asyncio.wait_for(gated.begun_any.wait(), PATIENCE)
        await app.drain_worker((await only(app)).name)

        async def handed_back() -> bool:
            return (await job.get()).status is JobStatus.PENDING

        await until(handed_back)
        assert (await job.get()).attempts == []
        gated.gate.set()
        await app.undrain_worker((await only(app)).name)
        assert await job.result(timeout=PATIENCE) == "done"


async def test_a_restarted_process_is_not_drained(tmp_path: Path) -> None:
    engines = {"database_url": f"sqlite:///{tmp_path}/fairlead.db"}
    gated = GatedApp(engines)
    gated.gate.set()
    async with gated.app.running() as app:
        await app.drain_worker((await only(app)).name)
        job_id = (await app.submit("slow")).id
    again = GatedApp(engines)
    again.gate.set()
    async with again.app.running() as app:
        assert (await app.wait(job_id, PATIENCE)).status is JobStatus.COMPLETED


async def test_an_exiting_process_cannot_be_resumed(tmp_path: Path) -> None:
    gated = GatedApp({"database_url": f"sqlite:///{tmp_path}/fairlead.db"})
    async with gated.app.running() as app:
        name = (await only(app)).name
        await app.drain_worker(name)

        async def drains() -> bool:
            return (await only(app)).draining

        await until(drains)
        await app.drain()
        await app.undrain_worker(name)
        before = (await only(app)).seen_at

        async def announced_again() -> bool:
            return (await only(app)).seen_at > before

        await until(announced_again)
        assert (await only(app)).draining
        assert not (await app.readiness())["ready"]


async def test_only_a_known_worker_can_be_drained(tmp_path: Path) -> None:
    engines = {"database_url": f"sqlite:///{tmp_path}/fairlead.db"}
    async with Fairlead(Config(), **engines) as app:
        with pytest.raises(NotFound):
            await app.drain_worker("unknown")
        about = registry.describe_process("a gateway", Roles(worker=False, manager=False), app.config, (), 0.0)
        gone = registry.describe_process("gone", Roles(), app.config, ("slow",), 0.0)
        store: Any = app._runtime.store
        clock, store._clock = store._clock, lambda: clock() - DEAD_AFTER - 1
        await store.commit([RegisterProcess(gone)])
        store._clock = clock
        await store.commit([RegisterProcess(about)])
        with pytest.raises(WrongState, match="runs no worker"):
            await app.drain_worker("a gateway")
        with pytest.raises(WrongState, match="gone"):
            await app.drain_worker("gone")


# ---------------------------------------------------------------- a rebuild on demand


async def test_a_rebuild_on_demand_leaves_running_calls_alone(engines: dict[str, str]) -> None:
    gated = GatedApp(engines)
    async with gated.app.running() as app:
        running = await app.submit("slow")
        await asyncio.wait_for(gated.begun_any.wait(), PATIENCE)
        waiting = await app.submit("slow")
        store: Any = app._runtime.store
        before = (await store.epochs())["service:slow"].number
        await store.commit([RequestRebuild("service:slow")])

        async def rebuilt() -> bool:
            (shard,) = app._runtime.node.shards.values()  # type: ignore[union-attr]
            state = (await shard.dispatcher.states({"service:slow"}))["service:slow"]
            return state.open and state.epoch == before + 1

        await until(rebuilt)
        assert ((await running.get()).status, gated.begun) == (JobStatus.RUNNING, 1)
        assert (await app.status())["services"][0]["in_use"] == 1
        gated.gate.set()
        assert await running.result(timeout=PATIENCE) == "done"
        assert await waiting.result(timeout=PATIENCE) == "done"
        assert (gated.begun, (await running.get()).attempts) == (2, [])
