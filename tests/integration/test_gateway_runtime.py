"""Runtime statistics, workers and draining over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from fairlead.dispatch.port import Lease
from fairlead.domain.job import Hold
from fairlead.domain.processes import DEAD_AFTER
from fairlead.engine import registry
from fairlead.engine.roles import Roles
from fairlead.gateway import models_runtime
from fairlead.store.port import RegisterProcess
from tests.integration.gateway_site import Site

MakeSite = Callable[..., Awaitable[Site]]
PATIENCE = 30.0


async def stats_of(site: Site) -> models_runtime.RuntimeStats:
    response = await site.client.get("/admin/runtime/stats")
    assert response.status_code == 200, response.text
    return models_runtime.RuntimeStats.model_validate(response.json())


async def workers_of(site: Site) -> list[models_runtime.WorkerShape]:
    response = await site.client.get("/admin/workers")
    assert response.status_code == 200, response.text
    return models_runtime.Workers.model_validate(response.json()).data


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await true():
            await asyncio.sleep(0.01)


async def announced(
    site: Site,
    name: str,
    roles: Roles = Roles(),  # noqa: B008
    *,
    ago: float = 0.0,
    running: int = 0,
) -> None:
    store: Any = site.app._runtime.store
    clock = store._clock
    store._clock = lambda: clock() - ago
    record = registry.describe_process(name, roles, site.app.config, ["echo"], 0.0)
    await store.commit([RegisterProcess(replace(record, running=running))])
    store._clock = clock


# ---------------------------------------------------------------- stats


async def test_the_stats_show_a_service_by_band_and_who_runs_its_calls(site: Site) -> None:
    running = await site.submit(feature_name="gated", priority="high")
    await site.gate.entered.wait()
    await site.submit(feature_name="gated", priority="low")
    stats = await stats_of(site)
    assert (stats.queues.main, stats.queues.running) == (1, 1)
    gated = next(service for service in stats.services if service.service == "gated")
    assert (gated.limit, gated.in_use, gated.held, gated.override) == (1, 1, 0, None)
    assert gated.bands["high"] == models_runtime.BandStats(waiting=0, in_use=1, held=0)
    assert gated.bands["low"] == models_runtime.BandStats(waiting=1, in_use=0, held=0)
    (worker,) = stats.workers
    assert worker.name == stats.worker
    assert worker.alive
    assert "gated" in worker.services
    assert [(call.job_id, call.service) for call in worker.calls] == [(running, "gated")]
    assert [(manager.name, manager.leads) for manager in stats.managers] == [(worker.name, ["main"])]
    assert [gateway.name for gateway in stats.gateways] == [worker.name]
    site.gate.opened.set()


async def test_the_stats_show_each_scope_with_its_epoch_and_leader(site: Site) -> None:
    stats = await stats_of(site)
    scope = stats.scopes["service:gated"]
    assert (scope.shard, scope.epoch, scope.open, scope.leader) == ("main", 1, True, stats.worker)
    assert not scope.rebuild_asked


async def test_held_slots_count_as_in_use_in_their_band_and_region(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    process: Any = site.app._runtime.node
    (echo,) = await process.shards["main"].dispatcher.snapshot(["echo"])
    lease = Lease("1:1", "j1", 0, 0, "echo", "ada", "somewhere:1:ab", 0.0, 9.0, region="eu", band=1)
    hold = Hold("j2", "echo", "eu", 9.0, "h", band=3)
    values = {name: getattr(echo, name) for name in echo.__slots__}
    changed = type(echo)(**{**values, "leases": [lease], "holds": [hold], "in_use": 2, "held": 1})

    async def seen(services: Any = None, *, users: bool = False) -> Any:
        return [changed]

    rules = process.rules.services["echo"]
    object.__setattr__(rules, "regions", {"eu": 5, "us": 7})
    monkeypatch.setattr(process.shards["main"].dispatcher, "snapshot", seen)
    stats = await stats_of(site)
    service = next(service for service in stats.services if service.service == "echo")
    assert service.bands["high"] == models_runtime.BandStats(waiting=0, in_use=1, held=0)
    assert service.bands["low"] == models_runtime.BandStats(waiting=0, in_use=1, held=1)
    assert service.regions == {
        "eu": models_runtime.RegionStats(limit=5, in_use=2, held=1),
        "us": models_runtime.RegionStats(limit=7, in_use=0, held=0),
    }
    # The worker of this lease has not registered.
    stranger = next(worker for worker in stats.workers if worker.name == "somewhere:1:ab")
    assert (stranger.alive, stranger.last_seen, len(stranger.calls)) == (False, None, 1)


async def test_declared_groups_are_shown_with_their_slots(make_site: MakeSite) -> None:
    groups = {"acme": {"weight": 2, "limit": 1}, "red": {"parent": "acme"}, "empty": {}}
    users = {"ada": {"group": "red"}, "bob": {"group": "acme"}}
    site = await make_site(sections={"groups": groups, "users": users})
    for user_id in ("ada", "bob", "eve"):
        await site.submit(feature_name="gated", user_id=user_id)
    async with asyncio.timeout(PATIENCE):
        while True:
            status = models_runtime.QueueStatus.model_validate((await site.client.get("/queue/status")).json())
            (gated,) = [service for service in status.services if service.service == "gated"]
            if gated.in_use:
                break
            await asyncio.sleep(0.01)
    acme = models_runtime.GroupState(weight=2, limit=1, rate=None, members=2, running=1, parked=True)
    assert gated.groups["acme"] == acme
    assert gated.groups.keys() == {"acme", "acme/red"}


RATES: dict[str, Any] = {"rate": None, "user_rate": None, "region_rates": {}}


async def test_changes_of_operators_are_shown_as_overrides(site: Site) -> None:
    await site.app.set_limit("echo", 3)
    await site.app.pause("gated")
    for path, shape in (
        ("/queue/status", models_runtime.QueueStatus),
        ("/admin/runtime/stats", models_runtime.RuntimeStats),
    ):
        answer: Any = shape.model_validate((await site.client.get(path)).json())
        overrides = {service.service: service.override for service in answer.services}
        assert overrides["echo"] == models_runtime.Override(limit=3, paused=None, **RATES)
        assert overrides["gated"] == models_runtime.Override(limit=None, paused=True, **RATES)
        assert overrides["shout"] is None
    await site.app.set_limit("echo", None)
    await site.app.unpause("gated")
    answer = await stats_of(site)
    assert {service.override for service in answer.services} == {None}


async def test_the_stats_show_changes_that_are_not_relayed(still_site: Site) -> None:
    await still_site.submit()
    await still_site.submit()
    stats = await stats_of(still_site)
    assert stats.outbox.rows == 2
    assert stats.outbox.age > 0
    assert (stats.workers, stats.managers, stats.gateways) == ([], [], [])
    assert stats.unknown is not None


# ---------------------------------------------------------------- workers


async def test_silent_workers_are_gone_and_gateways_are_not_workers(site: Site) -> None:
    await announced(site, "old", ago=DEAD_AFTER + 5, running=2)
    await announced(site, "gateway", Roles(worker=False, manager=False))
    found = {worker.name: worker for worker in await workers_of(site)}
    assert set(found) == {"old", site.app._runtime.node.name}  # type: ignore[union-attr]
    old = found.pop("old")
    assert (old.alive, old.running) == (False, 0), "its calls were recovered long ago"
    assert all(worker.alive for worker in found.values())


async def test_a_worker_is_drained_and_claims_again(site: Site) -> None:
    (worker,) = await workers_of(site)
    path = f"/admin/workers/{quote(worker.name, safe='')}/drain"
    response = await site.client.post(path, json={"on": True})
    assert response.status_code == 200, response.text
    assert models_runtime.WorkerShape.model_validate(response.json()).drain_asked

    async def drained() -> bool:
        return bool((await workers_of(site))[0].draining)

    await until(drained)
    job_id = await site.submit()
    assert (await site.client.get("/readyz")).status_code == 200
    assert (await site.client.post(path, json={"on": False})).json()["drain_asked"] is False
    assert (await site.app.wait(job_id, PATIENCE)).status == "COMPLETED"
    records = await site.app._runtime.store.audit(limit=9)
    assert [(record.action, record.target) for record in records] == [
        ("worker.undrain", worker.name),
        ("worker.drain", worker.name),
    ]


async def test_draining_an_invalid_worker_is_refused(site: Site) -> None:
    await announced(site, "old", ago=DEAD_AFTER + 5)
    await announced(site, "gateway", Roles(worker=False, manager=False))
    for name, status, code in (
        ("unknown", 404, "not_found"),
        ("old", 409, "wrong_state"),
        ("gateway", 409, "wrong_state"),
    ):
        response = await site.client.post(f"/admin/workers/{name}/drain", json={"on": True})
        assert (response.status_code, response.json()["code"]) == (status, code)
    for body in ({}, {"on": "yes"}, {"on": True, "more": 1}):
        assert (await site.client.post("/admin/workers/x/drain", json=body)).status_code == 422
    assert not any(record.drain_asked for record in await site.app.processes())
