"""Several workers in one process: each has its own bands, services, regions and budget."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fairlead import Call, Config, Fairlead, JobStatus
from fairlead.dispatch.port import Lease
from fairlead.domain.processes import process_of
from fairlead.engine import registry
from fairlead.engine import worker as workers
from fairlead.engine.roles import Roles
from tests.integration.region_endpoints import open_endpoints

PATIENCE = 30.0
SEED = {
    "high": {"bands": ["high"], "concurrency": 5},
    "medium": {"bands": ["medium"], "concurrency": 5},
    "low": {"bands": ["low"], "concurrency": 3},
}


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "EVERY", 0.05)


class GatedApp:
    """Calls of `infer` and `paint` run until the gate is opened; `open_calls` counts the running ones by input."""

    def __init__(self, engines: dict[str, str], *, pool: int | None = None, **sections: Any) -> None:
        pools = {} if pool is None else {"pools": {"gpu": pool}}
        config = Config.model_validate({"worker": {"drain_timeout": 20}, **pools, **sections})
        self.app = Fairlead(config, **engines)
        self.gate = asyncio.Event()
        self.open_calls: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.begun: list[str] = []
        self.changed = asyncio.Event()
        for name in ("infer", "paint"):
            self.app.service(name, limit=100, **({} if pool is None else {"pool": "gpu"}))(self.wait_at_gate)

    async def wait_at_gate(self, call: Call) -> str:
        kind = call.params["kind"]
        self.begun.append(kind)
        self.open_calls[kind] += 1
        self.most[kind] = max(self.most[kind], self.open_calls[kind])
        self.changed.set()
        try:
            await self.gate.wait()
        finally:
            self.open_calls[kind] -= 1
        return kind

    @asynccontextmanager
    async def open(self, roles: Roles | None = None) -> AsyncIterator[Fairlead]:
        async with self.app.running(roles or Roles()) as app:
            try:
                yield app
            finally:
                self.gate.set()

    async def submit(self, count: int, priority: str, service: str = "infer") -> list[str]:
        handles = [
            await self.app.submit(service, {"kind": priority}, user_id=f"u{n}", priority=priority) for n in range(count)
        ]
        return [handle.id for handle in handles]

    async def until_open(self, **counts: int) -> None:
        """Wait until these calls are running."""

        async def are_open() -> bool:
            return all(self.open_calls[kind] >= count for kind, count in counts.items())

        await until(are_open)


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await true():
            await asyncio.sleep(0.01)


async def all_are(app: Fairlead, job_ids: list[str], status: JobStatus) -> None:
    async def reached() -> bool:
        return all([(await app.get(job_id)).status is status for job_id in job_ids])

    await until(reached)


async def test_the_seeds_thirteen_workers_never_take_another_bands_work(engines: dict[str, str]) -> None:
    gated = GatedApp(engines, worker_pools=SEED)
    async with gated.open() as app:
        jobs = [job for band in ("low", "medium", "high") for job in await gated.submit(8, band)]
        await gated.until_open(high=5, medium=5, low=3)
        # Slots are free, and every pool has more waiting than it may run: a while later nothing has changed.
        gated.changed.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.6):
                await gated.changed.wait()
        leases = await _leases(app)
        taken = Counter((lease.worker.partition("/")[2], lease.band) for lease in leases)
        assert taken == {("high", 1): 5, ("medium", 2): 5, ("low", 3): 3}
        gated.gate.set()
        await all_are(app, jobs, JobStatus.COMPLETED)
        assert gated.most == {"high": 5, "medium": 5, "low": 3}


async def test_a_full_pool_does_not_block_another(engines: dict[str, str]) -> None:
    gated = GatedApp(engines, worker_pools=SEED)
    async with gated.open():
        await gated.submit(9, "low")
        await gated.until_open(low=3)
        await gated.submit(1, "high")
        await gated.until_open(high=1, low=3)
        await gated.submit(2, "medium")
        await gated.until_open(high=1, medium=2, low=3)
        assert gated.most["low"] == 3


async def test_work_for_a_pool_with_budget_is_taken_at_once_while_other_work_waits(
    engines: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service is always runnable because of low work that no worker has budget for."""
    monkeypatch.setattr(workers, "SWEEP_EVERY", 3600.0)
    gated = GatedApp(engines, worker_pools=SEED)
    async with gated.open() as app:
        await gated.submit(5, "low")
        await gated.until_open(low=3)
        for count in (1, 2, 3):
            await gated.submit(1, "high")
            await gated.until_open(high=count)
        assert await _waiting(app, 2)


async def test_pools_may_be_bound_to_services(engines: dict[str, str]) -> None:
    pools = {"text": {"services": ["infer"], "concurrency": 1}, "images": {"services": ["paint"], "concurrency": 2}}
    gated = GatedApp(engines, worker_pools=pools)
    async with gated.open() as app:
        await gated.submit(3, "medium", "infer")
        await gated.submit(3, "high", "paint")
        await gated.until_open(medium=1, high=2)
        (worker,) = await app.workers()
        assert worker["concurrency"] == 3
        assert [(pool["name"], pool["services"]) for pool in worker["pools"]] == [
            ("text", ["infer"]),
            ("images", ["paint"]),
        ]
        assert gated.most == {"medium": 1, "high": 2}


async def test_a_pool_bound_to_a_region_takes_that_region_s_slots_only(engines: dict[str, str]) -> None:
    async with open_endpoints("eu", "us") as world:
        config = {**world.config(limit=2), "worker_pools": {"us": {"regions": ["us"], "concurrency": 4}}}
        app = Fairlead(Config.model_validate(config), **engines)
        async with app.running():
            away = await app.submit("gpu", {"name": "away"}, allowed_regions=["eu"])
            anywhere = [await app.submit("gpu", {"name": f"{n}"}) for n in range(4)]
            assert [await job.result(PATIENCE) for job in anywhere] == [{"region": "us"}] * 4
            assert (await away.get()).status is JobStatus.PENDING
            assert "no_worker" in [reason.code for reason in (await away.why()).reasons]
            (worker,) = await app.workers()
            assert [pool["regions"] for pool in worker["pools"]] == [["us"]]
        assert world["eu"].calls == []
        config["worker_pools"]["eu"] = {"regions": ["eu"]}
        app = Fairlead(Config.model_validate(config), **engines)
        async with app.running():
            assert (await app.wait(away.id, PATIENCE)).result == {"region": "eu"}


async def test_a_slot_of_a_shared_budget_is_reserved_for_the_pool_with_more_urgent_work(
    engines: dict[str, str],
) -> None:
    """The workers of one process compete for it as those of several processes do."""
    gated = GatedApp(engines, pool=2, worker_pools={"low": {"bands": ["low"]}, "rest": {"bands": ["high", "medium"]}})
    async with gated.open():
        jobs = await gated.submit(4, "low", "infer")
        await gated.until_open(low=2)
        jobs += await gated.submit(2, "high", "paint")
        await until(lambda: _waiting(gated.app, 4))
        gated.gate.set()
        await all_are(gated.app, jobs, JobStatus.COMPLETED)
    assert gated.begun == ["low", "low", "high", "high", "low", "low"]


async def _waiting(app: Fairlead, count: int) -> bool:
    return sum(sum(each["waiting"].values()) for each in (await app.status())["services"]) == count


async def test_one_pool_alone_can_be_started_and_roles_override_its_section(engines: dict[str, str]) -> None:
    gated = GatedApp(engines, worker_pools=SEED)
    async with gated.open(Roles(pool="low")) as app:
        await gated.submit(1, "high")
        await gated.submit(4, "low")
        await gated.until_open(low=3)
        (worker,) = await app.workers()
        assert (worker["bands"], worker["concurrency"]) == (["low"], 3)
        assert not gated.open_calls["high"]
    gated = GatedApp(engines, worker_pools=SEED)
    async with gated.open(Roles(bands=frozenset({1}))) as app:
        await gated.until_open(high=1)
        (worker,) = [each for each in await app.workers() if each["alive"]]
        assert (worker["pools"], worker["bands"], worker["concurrency"]) == ([], ["high"], 1000)


async def test_workers_are_shown_with_what_each_pool_runs(engines: dict[str, str]) -> None:
    gated = GatedApp(engines, worker_pools=SEED)
    async with gated.open() as app:
        (job,) = await gated.submit(1, "high")
        await gated.until_open(high=1)

        async def announced() -> bool:
            (worker,) = await app.workers()
            return [pool["running"] for pool in worker["pools"]] == [1, 0, 0]

        await until(announced)
        (worker,) = await app.workers()
        assert (worker["concurrency"], worker["bands"]) == (13, ["high", "medium", "low"])
        assert [call["job_id"] for call in worker["calls"]] == [job]
        assert {finding.code for finding in await app.doctor()} & {"worker-gone", "no-worker-for-band"} == set()


async def test_the_worker_of_a_pool_is_alive_while_its_process_is(engines: dict[str, str]) -> None:
    gated = GatedApp(engines, worker_pools=SEED)
    async with gated.open() as app:
        (running,) = await gated.submit(1, "high")
        await gated.until_open(high=1)
        assert [reason.code for reason in (await app.why(running)).reasons] == ["running"]


async def test_why_reports_the_pool_that_would_take_the_job(engines: dict[str, str]) -> None:
    gated = GatedApp(engines, worker_pools=SEED)
    async with gated.open() as app:
        jobs = await gated.submit(4, "low")
        await gated.until_open(low=3)

        async def announced() -> bool:
            waiting = [job for job in jobs if (await app.get(job)).status is JobStatus.PENDING]
            return [reason.code for reason in (await app.why(waiting[0])).reasons][:1] == ["workers_full"]

        await until(announced)


async def test_draining_applies_to_all_pools_and_so_does_resuming(engines: dict[str, str]) -> None:
    gated = GatedApp(engines, worker_pools=SEED)
    async with gated.open() as app:
        begun = await gated.submit(1, "high") + await gated.submit(1, "low")
        await gated.until_open(high=1, low=1)
        (worker,) = await app.workers()
        await app.drain_worker(worker["name"])

        async def draining() -> bool:
            return all(each.draining for each in app._runtime.node.workers)  # type: ignore[union-attr]

        await until(draining)
        waiting = [job for band in ("high", "medium", "low") for job in await gated.submit(1, band)]
        gated.gate.set()
        await all_are(app, begun, JobStatus.COMPLETED)
        await all_are(app, waiting, JobStatus.PENDING)
        await app.undrain_worker(worker["name"])
        await all_are(app, waiting, JobStatus.COMPLETED)


async def test_the_heartbeat_renews_the_leases_of_every_pool(engines: dict[str, str]) -> None:
    services = {name: {"limit": 100, "lease_ttl": 1} for name in ("infer", "paint")}
    gated = GatedApp(engines, worker_pools=SEED, services=services)
    async with gated.open() as app:
        jobs = [job for band in ("high", "medium", "low") for job in await gated.submit(1, band)]
        await gated.until_open(high=1, medium=1, low=1)
        first = await _expiries(app)
        await until(lambda: _all_later(app, {name: at + 1.0 for name, at in first.items()}))
        gated.gate.set()
        await all_are(app, jobs, JobStatus.COMPLETED)
        assert gated.most == {"high": 1, "medium": 1, "low": 1}


async def _expiries(app: Fairlead) -> dict[str, float]:
    return {lease.name: lease.expires_at for lease in await _leases(app)}


async def _leases(app: Fairlead) -> list[Lease]:
    assert app._runtime.node is not None
    snapshots = [await shard.dispatcher.snapshot() for shard in app._runtime.node.shards.values()]
    return [lease for services in snapshots for service in services for lease in service.leases]


async def _all_later(app: Fairlead, than: dict[str, float]) -> bool:
    now = await _expiries(app)
    return now.keys() == than.keys() and all(now[name] >= at for name, at in than.items())


def test_a_leases_worker_names_its_process() -> None:
    assert process_of("host:17:ab12cd34/high") == "host:17:ab12cd34" == process_of("host:17:ab12cd34")
