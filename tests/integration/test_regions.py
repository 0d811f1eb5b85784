"""Regions, called for real: where jobs go, what is never left, and limits as the endpoints count them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from fairlead import JobStatus
from tests import redis_servers, servers
from tests.integration.regional import World, world_of

PATIENCE = 30.0


@pytest.fixture(params=["sqlite", "redis"])
async def engines(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    if request.param == "sqlite":
        return {"database_url": f"sqlite:///{tmp_path}/fairlead.db"}
    servers.postgres_url()
    database_url = await servers.shared_database()
    await servers.empty(database_url)
    redis_url = redis_servers.server_url()
    redis_servers.empty(redis_url)
    return {"database_url": database_url, "redis_url": redis_url}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with world_of("eu", "us") as served:
        yield served


async def until(what: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not what():
            await asyncio.sleep(0.01)


async def test_a_job_that_fails_in_its_region_is_completed_by_the_first_free_one(
    world: World, engines: dict[str, str]
) -> None:
    world.switch("us", "fails")
    async with world.app(engines).running() as app:
        job = await app.submit("gpu", region="us")
        assert await job.result(PATIENCE) == {"region": "eu"}
        shown = await job.get()
    assert shown.attempts is not None
    assert [(each["region"], each["error"]["code"]) for each in shown.attempts] == [("us", "HTTP_503")]
    assert (shown.region, shown.allowed_regions) == ("us", None)


async def test_allowed_regions_are_never_left_also_by_retries(world: World, engines: dict[str, str]) -> None:
    world.switch("us", "fails")
    async with world.app(engines).running() as app:
        strict = await app.submit("gpu", {"name": "strict"}, allowed_regions=["us"])
        shown = await app.wait(strict.id, PATIENCE)
        assert shown.status is JobStatus.FAILED
        assert shown.attempts is not None
        assert [each["region"] for each in shown.attempts] == ["us", "us", "us"]
        assert world["eu"].calls == []


async def test_a_strictly_bound_job_waits_for_its_own_region_while_another_is_free(
    world: World, engines: dict[str, str]
) -> None:
    world.switch("us", "hangs")
    async with world.app(engines).running() as app:
        hung = await app.submit("gpu", {"name": "hung"}, region="us")
        await world["us"].called.wait()
        strict = await app.submit("gpu", {"name": "strict"}, allowed_regions=["us"])
        free = await app.submit("gpu", {"name": "free"})
        assert await free.result(PATIENCE) == {"region": "eu"}
        assert (await strict.get()).status is JobStatus.PENDING
        world.switch("us", "works")
        assert await strict.result(PATIENCE) == {"region": "us"}
        await hung.result(PATIENCE)
    assert world["us"].calls == ["hung", "strict"]


async def test_a_rebuilt_line_knows_in_which_region_a_call_is(world: World, engines: dict[str, str]) -> None:
    world.switch("us", "hangs")
    async with world.app(engines).running() as app:
        assert app._process is not None
        (line,) = app._process.lines.values()
        hung = await app.submit("gpu", {"name": "hung"}, allowed_regions=["us"])
        await world["us"].called.wait()
        (before,) = await line.dispatcher.snapshot(["gpu"])
        store = app._store
        assert store is not None
        epoch = (await store.epochs())["service:gpu"].number
        await app.rebuild("gpu")
        async with asyncio.timeout(PATIENCE):
            while (await store.epochs())["service:gpu"].number == epoch:
                await asyncio.sleep(0.01)
        strict = await app.submit("gpu", {"name": "strict"}, allowed_regions=["us"])
        free = await app.submit("gpu", {"name": "free"}, allowed_regions=["eu"])
        await free.result(PATIENCE)
        (after,) = await line.dispatcher.snapshot(["gpu"])
        assert [(lease.name, lease.region) for lease in after.leases] == [(before.leases[0].name, "us")]
        assert (await strict.get()).status is JobStatus.PENDING
        world.switch("us", "works")
        await strict.result(PATIENCE)
        await hung.result(PATIENCE)
    assert (world["us"].most, world["us"].calls) == (1, ["hung", "strict"])


async def test_a_job_that_waited_long_enough_for_its_region_is_taken_by_another(
    world: World, engines: dict[str, str]
) -> None:
    world.switch("us", "hangs")
    async with world.app(engines, spill_after=0.2).running() as app:
        await app.submit("gpu", {"name": "hung"}, region="us")
        await world["us"].called.wait()
        strict = await app.submit("gpu", {"name": "strict"}, region="us", allowed_regions=["us"])
        spilled = await app.submit("gpu", {"name": "spilled"}, region="us")
        assert await spilled.result(PATIENCE) == {"region": "eu"}
        assert (await strict.get()).status is JobStatus.PENDING
        world.switch("us", "works")
        assert await strict.result(PATIENCE) == {"region": "us"}
