"""What the leader's loops count reaches every gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from fairlead import Call, Config, Fairlead
from fairlead.engine.roles import Roles
from fairlead.gateway.app import create_gateway
from fairlead.gateway.models_runtime import RuntimeStats
from tests.integration.gateway_site import client_of

PATIENCE = 30.0


def app_of(engines: dict[str, str]) -> Fairlead:
    app = Fairlead(Config(), **engines)

    @app.service("echo", limit=5)
    async def echo(call: Call) -> None: ...

    return app


async def read_until(
    client: httpx2.AsyncClient, path: str, satisfied: Callable[[httpx2.Response], bool]
) -> httpx2.Response:
    async with asyncio.timeout(PATIENCE):
        while True:
            response = await client.get(path)
            assert response.status_code == 200, response.text
            if satisfied(response):
                return response
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("roles", [Roles(worker=False, manager=False), Roles()], ids=["gateway", "all in one"])
async def test_a_gateway_shows_the_leader_s_counts_and_the_latency_of_scheduled_jobs(
    distributed: dict[str, str], roles: Roles
) -> None:
    manager, app = app_of(distributed), app_of(distributed)
    async with manager.running(Roles(api=False)), app.running(roles), client_of(create_gateway(app)) as client:
        jobs = [await app.submit("echo", delay=0.05) for _ in range(3)]
        for job in jobs:
            await app.wait(job.id, PATIENCE)

        def counted(response: httpx2.Response) -> bool:
            timers: dict[str, Any] = response.json()["loops"].get("main", {}).get("timers", {})
            return timers.get("queued", 0) >= 3

        stats = await read_until(client, "/admin/runtime/stats", counted)
        RuntimeStats.model_validate(stats.json())
        timers = stats.json()["loops"]["main"]["timers"]
        assert timers["scanned"] >= 3
        assert timers["latency"]["count"] == sum(timers["latency"]["buckets"]) == 3
        assert 0 <= timers["latency"]["mean"] < PATIENCE
        shown = (await read_until(client, "/metrics", lambda found: "latency_seconds_count" in found.text)).text
        assert 'fairlead_leader_queued_total{loop="timers",shard="main"} 3.0' in shown
        assert 'fairlead_schedule_latency_seconds_count{shard="main"} 3.0' in shown


async def test_a_single_process_measures_the_latency_too(embedded: dict[str, str]) -> None:
    async with app_of(embedded).running() as app:
        job = await app.submit("echo", delay=0.05)
        await app.wait(job.id, PATIENCE)
        assert (await app.runtime_stats())["loops"]["main"]["timers"]["latency"]["count"] == 1
