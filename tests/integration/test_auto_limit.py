"""Automatic limits, with services that reject calls: embedded, and shared by processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fairlead import Call, Config, Fairlead, JobStatus, Retry
from fairlead.engine import registry
from fairlead.engine.loops import auto_limit, sync_rules
from fairlead.engine.roles import Roles
from fairlead.gateway.models_runtime import ServiceStatus

PATIENCE = 60.0
AUTO = {
    "limit": "auto",
    "max": 6,
    # A target that every call meets: the duration of a call on a loaded machine is no property of the service.
    "latency_target": 60,
    "max_attempts": 1000,
    "backoff": {"base": 0.01, "factor": 1, "jitter": 0},
}


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "EVERY", 0.02)
    monkeypatch.setattr(auto_limit, "EVERY", 0.02)
    monkeypatch.setattr(sync_rules, "EVERY", 0.02)


class Gpu:
    """Serves `size` calls at once and rejects others. It counts its own open calls.

    Calls end together, when as many are inside as can be: as many as the limit allows, or all that it serves and one
    that was rejected. So the result does not depend on the duration of anything.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.apps: list[Fairlead] = []
        self.inside = self.most = self.refused = self._refused_now = 0
        self.closing = False
        """Calls end as they come: there may be fewer of them than the limit allows."""
        self._held: list[asyncio.Future[None]] = []

    @property
    def limit(self) -> int:
        """The highest limit by which any process may grant now."""
        found = [app._runtime.node.rules.services for app in self.apps if app._runtime.node is not None]
        return max((services["gpu"].limit for services in found if "gpu" in services), default=1)

    async def take(self) -> bool:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            if self.inside > self.size:
                self.refused += 1
                self._refused_now += 1
                return False
            self._held.append(asyncio.get_running_loop().create_future())
            await self._held[-1]
            return True
        finally:
            self.inside -= 1

    async def go_on(self) -> None:
        while True:
            limit = self.limit
            full = len(self._held) >= min(limit, self.size) and (limit <= self.size or self._refused_now)
            if full or self.closing:
                for each in self._held:
                    each.cancelled() or each.set_result(None)
                self._held.clear()
                self._refused_now = 0
            await asyncio.sleep(0.002)

    async def handle(self, request: web.Request) -> web.Response:
        return web.json_response({"data": "ok"}) if await self.take() else web.Response(status=503)


@asynccontextmanager
async def serving(size: int) -> AsyncIterator[tuple[Gpu, str]]:
    gpu, application = Gpu(size), web.Application()
    application.router.add_post("/", gpu.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    going = asyncio.create_task(gpu.go_on())
    try:
        yield gpu, f"http://{host}:{port}/"
    finally:
        going.cancel()
        await runner.cleanup()


@asynccontextmanager
async def running(
    gpu: Gpu, url: str, engines: dict[str, str], roles: Sequence[Roles] = (Roles(),), **options: Any
) -> AsyncIterator[list[Fairlead]]:
    config = Config.model_validate({"services": {"gpu": {"url": url, **AUTO, **options}}})
    gpu.apps = [Fairlead(config, **engines) for _ in roles]
    async with AsyncExitStack() as stack:
        for app, role in zip(gpu.apps, roles, strict=True):
            await stack.enter_async_context(app.running(role))
        yield gpu.apps


@asynccontextmanager
async def traffic(gpu: Gpu, app: Fairlead, waiting: int = 16) -> AsyncIterator[None]:
    """Keep this many jobs queued or running; in the end none, because a call that is cut off would keep its slot."""

    async def go_on() -> None:
        while not gpu.closing:
            job = await app.submit("gpu")
            await app.wait(job.id, PATIENCE)

    gpu.closing = False
    async with asyncio.TaskGroup() as group:
        for _ in range(waiting):
            group.create_task(go_on())
        yield
        gpu.closing = True


async def eventually(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not what():
            await asyncio.sleep(0.01)


async def shown(app: Fairlead) -> dict[str, Any]:
    (service,) = (await app.status())["services"]
    assert isinstance(service, dict)
    return service


async def until(app: Fairlead, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while not what(service := await shown(app)):
            await asyncio.sleep(0.01)
    return service


def limits(service: dict[str, Any]) -> list[int]:
    return [change["limit"] for change in service["auto"]["history"]]


def fell(service: dict[str, Any]) -> list[tuple[int, int]]:
    """(from, to)"""
    return [(before, after) for before, after in pairwise(limits(service)) if after < before]


@pytest.fixture
def embedded(tmp_path: Path) -> dict[str, str]:
    return {"database_url": f"sqlite:///{tmp_path}/fairlead.db"}


async def test_the_limit_rises_until_the_endpoint_rejects_calls_and_then_falls(embedded: dict[str, str]) -> None:
    async with serving(3) as (gpu, url), running(gpu, url, embedded) as (app,):
        first = await shown(app)
        assert (first["limit"], first["auto"]) == (1, {"min": 1, "max": 6, "limit": 1, "history": []})
        async with traffic(gpu, app):
            service = await until(app, lambda service: len(fell(service)) >= 2)
            # A limit one above the capacity is needed to find it.
            assert limits(service)[:7] == [2, 3, 4, 2, 3, 4, 2]
            assert gpu.most == 4
            ServiceStatus.model_validate(service)
            why = [change["why"] for change in service["auto"]["history"]]
            assert "all slots were used" in why[2]
            assert "refused or timed out" in why[3]
            # The endpoint grows, and the limit follows up to its maximum.
            gpu.size = 100
            await until(app, lambda service: service["limit"] == 6)
            looked = _looked(app)
            await eventually(lambda: _looked(app) >= looked + 50)
            assert ((await shown(app))["limit"], gpu.most) == (6, 6)


def _looked(app: Fairlead) -> int:
    """Calls that the leader has counted."""
    assert app._runtime.node is not None
    return int(app._runtime.node.counts()["main"]["adapt"]["scanned"])


async def test_the_limit_survives_a_restart_and_an_operators_limit_overrides_it(embedded: dict[str, str]) -> None:
    async with serving(100) as (gpu, url):
        async with running(gpu, url, embedded) as (app,), traffic(gpu, app):
            await until(app, lambda service: service["limit"] == 6)
        async with running(gpu, url, embedded) as (app,):
            service = await shown(app)
            assert (service["limit"], limits(service)) == (6, [2, 3, 4, 5, 6])
            await app.set_limit("gpu", 2)
            await until(app, lambda service: service["limit"] == 2)
            gpu.size = 1
            async with traffic(gpu, app):
                await eventually(lambda: gpu.refused >= 20)
                service = await shown(app)
                assert (service["limit"], limits(service)) == (2, [2, 3, 4, 5, 6])
                await app.set_limit("gpu", None)
                service = await until(app, lambda service: service["override"] is None and service["limit"] < 6)
                assert limits(service)[:6] == [2, 3, 4, 5, 6, 4]


async def test_a_number_in_the_config_replaces_the_automatic_limit(embedded: dict[str, str]) -> None:
    async with serving(100) as (gpu, url):
        async with running(gpu, url, embedded) as (app,), traffic(gpu, app):
            await until(app, lambda service: service["limit"] == 3)
        async with running(gpu, url, embedded, limit=5, max=None, latency_target=None) as (app,):
            service = await shown(app)
            assert (service["limit"], service["auto"]) == (5, None)


async def test_calls_over_the_target_latency_stop_the_rise(embedded: dict[str, str]) -> None:
    async with (
        serving(100) as (gpu, url),
        running(gpu, url, embedded, latency_target=1e-6) as (app,),
        traffic(gpu, app),
    ):
        await eventually(lambda: _looked(app) >= 20)
        assert limits(await shown(app)) == []


async def test_the_limit_stays_while_no_slot_is_missing(embedded: dict[str, str]) -> None:
    gpu, app = Gpu(100), Fairlead(Config(), **embedded)

    @app.service("gpu", **{**AUTO, "min": 3})
    async def quick(call: Call) -> None: ...

    async with app.running(), traffic(gpu, app, waiting=2):
        await eventually(lambda: _looked(app) >= 30)
        assert limits(await shown(app)) == []


async def test_a_function_reports_overload_with_retry(embedded: dict[str, str]) -> None:
    gpu, app = Gpu(3), Fairlead(Config(), **embedded)
    gpu.apps = [app]

    @app.service("gpu", **{**AUTO, "min": 2})
    async def take(call: Call) -> str:
        if not await gpu.take():
            raise Retry("too many")
        return "ok"

    going = asyncio.create_task(gpu.go_on())
    async with app.running(), traffic(gpu, app):
        assert (await shown(app))["auto"]["min"] == 2
        service = await until(app, lambda service: len(fell(service)) >= 2)
        assert (limits(service)[:6], gpu.most) == ([3, 4, 2, 3, 4, 2], 4)
        (stats,) = (await app.runtime_stats())["services"]
        assert (stats["auto"]["min"], stats["auto"]["max"], stats["auto"]["limit"]) == (2, 6, stats["limit"])
        assert set(stats["auto"]["history"][0]) == {"at", "limit", "why"}
    going.cancel()


async def test_the_search_for_the_limit_fails_no_job(engines: dict[str, str]) -> None:
    async with (
        serving(3) as (gpu, url),
        running(gpu, url, engines, max_attempts=1) as (app,),
        traffic(gpu, app),
    ):
        service = await until(app, lambda service: len(fell(service)) >= 3)
        assert gpu.refused >= 3
        assert (await app.status())["jobs"]["FAILED"] == 0
        refused = [job for job in (await app.list_jobs(limit=500)).data if job.status is JobStatus.COMPLETED]
        attempts = [each for job in refused for each in (await app.get(job.job_id)).attempts or ()]
        assert {(each["error"]["code"], each["attempt"]) for each in attempts} <= {("HTTP_503", 1)}
        assert (service["auto"]["min"], min(limits(service))) == (1, 2)


async def test_at_the_minimum_a_rejection_counts_as_a_failure(embedded: dict[str, str]) -> None:
    async with serving(0) as (gpu, url), running(gpu, url, embedded, max_attempts=2) as (app,):
        gpu.closing = True
        job = await app.submit("gpu")
        shown = await app.wait(job.id, PATIENCE)
    assert (shown.status, gpu.refused) == (JobStatus.FAILED, 2)


async def test_two_workers_and_a_manager_elsewhere_share_one_limit(distributed: dict[str, str]) -> None:
    worker = Roles(api=False, manager=False)
    roles = [Roles(worker=False), worker, worker]
    async with serving(3) as (gpu, url), running(gpu, url, distributed, roles) as apps, traffic(gpu, apps[0]):
        service = await until(apps[0], lambda service: len(fell(service)) >= 2)
        assert (limits(service)[:7], gpu.most) == ([2, 3, 4, 2, 3, 4, 2], 4)
        gpu.size = 100
        for app in apps:
            await until(app, lambda service: service["limit"] == 6)
        # It is derived from the calls of both.
        assert all(app._runtime.writer.counters.calls_of("gpu").ok for app in apps[1:] if app._runtime.node)
        assert gpu.most <= 6
