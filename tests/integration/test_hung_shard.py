"""A Redis that accepts connections but never replies delays only requests that need it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from fairlead import Call, Config, Fairlead, JobHandle, JobStatus
from tests.integration.turn_apps import until_ready
from tests.redis_servers import Server


@pytest.fixture
async def hung() -> AsyncIterator[Server]:
    server = Server().start()
    yield server
    server.thaw()
    server.kill()


async def test_reading_a_job_does_not_wait_for_another_shard(distributed: dict[str, str], hung: Server) -> None:
    config = {"shards": {"far": hung.url}, "services": {"slow": {"limit": 1, "shard": "far"}}}
    app = Fairlead(Config.model_validate(config), **distributed)
    may_end = asyncio.Event()

    @app.service()
    async def slow(call: Call) -> None:
        await may_end.wait()

    @app.service(limit=1)
    async def near(call: Call) -> None:
        await may_end.wait()

    async def waiting(service: str) -> JobHandle:
        """Submit two jobs and return the second; the first takes the slot."""
        first, second = await app.submit(service), await app.submit(service)
        while (await first.get()).status is not JobStatus.RUNNING:
            await asyncio.sleep(0.01)
        assert (await second.get()).position == 1
        return second

    async with app.running():
        await until_ready(app)
        there, here = await waiting("slow"), await waiting("near")
        hung.freeze()
        request = asyncio.create_task(there.get())
        await asyncio.sleep(0)
        assert (await here.get()).position == 1
        assert [job.position for job in (await app.list_jobs(feature_name="near")).data] == [1, None]
        receipt = await app.submit("near")
        await app.places_of_new([receipt.id])
        assert not request.done(), "it waits for the hung shard"
        assert (await request).position is None
        for _ in range(3):
            # After the first timeout no request waits for it.
            look = asyncio.create_task(there.get())
            assert (await here.get()).position == 1
            assert (await look).position is None
        hung.thaw()
        async with asyncio.timeout(60):
            while (await there.get()).position is None:
                await asyncio.sleep(0.02)
        may_end.set()
        for job in (there, here):
            await job.result(timeout=60)
