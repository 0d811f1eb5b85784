"""The processes that run: each is in the truth's list, can be drained from afar, and leaves the list when it ends."""

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
from fairlead.domain.audit import AuditRecord
from fairlead.domain.processes import DEAD_AFTER, ProcessRecord
from fairlead.runtime import registry
from fairlead.runtime.loops.prune import KEEP_PROCESSES
from fairlead.runtime.roles import Roles
from fairlead.store.port import Announce, Audit, RequestRebuild
from tests import redis_servers, servers

PATIENCE = 30.0


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "EVERY", 0.05)


class Shop:
    """An app with a service `slow`, whose calls go on until the gate is opened; `begun` counts them."""

    def __init__(self, engines: dict[str, str], **sections: Any) -> None:
        self.app = Fairlead(Config.model_validate({"worker": {"drain_timeout": 20}, **sections}), **engines)
        self.gate = asyncio.Event()
        self.begun = 0
        self.someone = asyncio.Event()

        @self.app.service(limit=1)
        async def slow(call: Call) -> str:
            self.begun += 1
            self.someone.set()
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


async def test_a_process_is_in_the_list_from_its_start_to_its_end(engines: dict[str, str]) -> None:
    shop = Shop(engines, worker={"concurrency": 7})
    async with Fairlead(Config(), **engines) as onlooker:
        assert await onlooker.processes() == []
        async with shop.app.running():
            record = await only(onlooker)
            assert record.roles == ("api", "worker", "manager")
            assert (record.services, record.bands) == (("slow",), ("high", "medium", "low"))
            assert (record.concurrency, record.pid, record.host) == (7, os.getpid(), socket.gethostname())
            assert (record.draining, record.drain_asked) == (False, False)
            assert abs(record.skew) < 30
            job = await shop.app.submit("slow")
            await asyncio.wait_for(shop.someone.wait(), PATIENCE)
            status = await shop.app.status()
            lease = next(service for service in status["services"] if service["service"] == "slow")["running"][0]
            assert lease["worker"] == record.name, "a lease names its process"

            async def told() -> bool:
                now = await only(onlooker)
                return now.running == 1 and now.seen_at > record.seen_at

            await until(told)
            shop.gate.set()
            await job.result(timeout=PATIENCE)
        assert await onlooker.processes() == []


async def test_a_gateway_beside_a_process_that_dispatches_from_memory_is_in_the_list(tmp_path: Path) -> None:
    engines = {"database_url": f"sqlite:///{tmp_path}/fairlead.db"}
    async with Fairlead(Config(), **engines) as onlooker:
        async with Shop(engines).app.running(Roles(worker=False, manager=False)):
            first = await only(onlooker)
            assert (first.roles, first.services, first.bands, first.concurrency) == (("api",), (), (), 0)

            async def seen_again() -> bool:
                return (await only(onlooker)).seen_at > first.seen_at

            await until(seen_again)
        assert await onlooker.processes() == []


async def test_whoever_leads_is_found_among_the_processes() -> None:
    redis_url = redis_servers.server_url()
    database_url = await servers.shared_database()
    await servers.empty(database_url)
    redis_servers.empty(redis_url)
    async with Shop({"database_url": database_url, "redis_url": redis_url}).app.running() as app:

        async def leads() -> bool:
            leader = (await app.status())["leaders"]["main"]["leader"]
            return bool(leader == (await only(app)).name)

        await until(leads)


async def test_a_store_that_is_away_is_not_told_of_by_the_announcements_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = Shop({"database_url": f"sqlite:///{tmp_path}/fairlead.db"}).app
    async with app.running():
        store: Any = app._store
        commit, tried, away = store.commit, asyncio.Event(), True

        async def failing(batch: Any, **options: Any) -> Any:
            if away and any(isinstance(transition, Announce) for transition in batch):
                tried.set()
                raise Unavailable("the disk is full")
            return await commit(batch, **options)

        monkeypatch.setattr(store, "commit", failing)
        before = (await only(app)).seen_at
        with caplog.at_level(logging.INFO):
            for _ in range(3):
                tried.clear()
                await asyncio.wait_for(tried.wait(), PATIENCE)
        assert caplog.records == []
        away = False

        async def back() -> bool:
            return (await only(app)).seen_at > before

        await until(back)


async def test_long_dead_processes_and_old_audit_records_are_pruned(tmp_path: Path) -> None:
    engines = {"database_url": f"sqlite:///{tmp_path}/fairlead.db"}
    shop = Shop(engines, retention={"keep_audit": 3600})
    async with shop.app:
        store: Any = shop.app._store
        now = store._clock()
        gone = registry.introduction("gone", Roles(), shop.app.config, (), 0.0)
        rows = [AuditRecord(f"a{n}", at, "ops", "x", "y", {}) for n, at in enumerate((now - 3700, now - 60))]
        clock, store._clock = store._clock, lambda: now - KEEP_PROCESSES - 60
        await store.commit([Announce(gone), *map(Audit, rows)])
        store._clock = clock
        async with shop.app.running():

            async def pruned() -> bool:
                names = {record.name for record in await shop.app.processes()}
                return "gone" not in names and [row.id for row in await store.audit(limit=9)] == ["a1"]

            await until(pruned)


# ---------------------------------------------------------------- draining


async def test_a_drained_worker_finishes_its_calls_and_claims_no_more_until_it_is_told_to(
    engines: dict[str, str],
) -> None:
    shop = Shop(engines)
    async with Fairlead(Config(), **engines) as operator, shop.app.running():
        running = await shop.app.submit("slow")
        await asyncio.wait_for(shop.someone.wait(), PATIENCE)
        waiting = await shop.app.submit("slow")
        name = (await only(operator)).name
        asked = await operator.drain_worker(name)
        assert asked.drain_asked

        async def drains() -> bool:
            return (await only(operator)).draining

        await until(drains)
        assert (await shop.app.readiness())["ready"], "its gateway goes on"
        shop.gate.set()
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
        assert ((await waiting.get()).status, shop.begun) == (JobStatus.PENDING, 1)
        await operator.undrain_worker(name)
        assert await waiting.result(timeout=PATIENCE) == "done"

        async def claims() -> bool:
            return not (await only(operator)).draining

        await until(claims)


async def test_a_drain_hands_back_what_does_not_finish_in_time(tmp_path: Path) -> None:
    engines = {"database_url": f"sqlite:///{tmp_path}/fairlead.db"}
    shop = Shop(engines, worker={"drain_timeout": 0.05})
    async with shop.app.running() as app:
        job = await app.submit("slow")
        await asyncio.wait_for(shop.someone.wait(), PATIENCE)
        await app.drain_worker((await only(app)).name)

        async def handed_back() -> bool:
            return (await job.get()).status is JobStatus.PENDING

        await until(handed_back)
        assert (await job.get()).attempts == []
        shop.gate.set()
        await app.undrain_worker((await only(app)).name)
        assert await job.result(timeout=PATIENCE) == "done"


async def test_a_restarted_process_is_not_drained(tmp_path: Path) -> None:
    engines = {"database_url": f"sqlite:///{tmp_path}/fairlead.db"}
    shop = Shop(engines)
    shop.gate.set()
    async with shop.app.running() as app:
        await app.drain_worker((await only(app)).name)
        job_id = (await app.submit("slow")).id
    again = Shop(engines)
    again.gate.set()
    async with again.app.running() as app:
        assert (await app.wait(job_id, PATIENCE)).status is JobStatus.COMPLETED


async def test_a_process_on_its_way_out_cannot_be_told_to_claim_again(tmp_path: Path) -> None:
    shop = Shop({"database_url": f"sqlite:///{tmp_path}/fairlead.db"})
    async with shop.app.running() as app:
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


async def test_only_a_worker_that_is_there_can_be_drained(tmp_path: Path) -> None:
    engines = {"database_url": f"sqlite:///{tmp_path}/fairlead.db"}
    async with Fairlead(Config(), **engines) as app:
        with pytest.raises(NotFound):
            await app.drain_worker("nobody")
        about = registry.introduction("a gateway", Roles(worker=False, manager=False), app.config, (), 0.0)
        gone = registry.introduction("gone", Roles(), app.config, ("slow",), 0.0)
        store: Any = app._store
        clock, store._clock = store._clock, lambda: clock() - DEAD_AFTER - 1
        await store.commit([Announce(gone)])
        store._clock = clock
        await store.commit([Announce(about)])
        with pytest.raises(WrongState, match="runs no worker"):
            await app.drain_worker("a gateway")
        with pytest.raises(WrongState, match="gone"):
            await app.drain_worker("gone")


# ---------------------------------------------------------------- a rebuild on demand


async def test_a_line_that_is_built_anew_on_demand_leaves_running_calls_alone(engines: dict[str, str]) -> None:
    shop = Shop(engines)
    async with shop.app.running() as app:
        running = await app.submit("slow")
        await asyncio.wait_for(shop.someone.wait(), PATIENCE)
        waiting = await app.submit("slow")
        store: Any = app._store
        before = (await store.epochs())["service:slow"].number
        await store.commit([RequestRebuild("service:slow")])

        async def rebuilt() -> bool:
            epoch = (await store.epochs())["service:slow"]
            return epoch.number == before + 1 and set((await app.readiness())["checks"].values()) == {"ok"}

        await until(rebuilt)
        assert ((await running.get()).status, shop.begun) == (JobStatus.RUNNING, 1)
        assert (await app.status())["services"][0]["in_use"] == 1
        shop.gate.set()
        assert await running.result(timeout=PATIENCE) == "done"
        assert await waiting.result(timeout=PATIENCE) == "done"
        assert (shop.begun, (await running.get()).attempts) == (2, [])
