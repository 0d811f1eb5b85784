"""Waiting for a job and watching it: positions, progress, results, ends."""

import asyncio
from collections.abc import Callable

import pytest

from fairlead import (
    Call,
    Fairlead,
    JobStatus,
    ResultTimeout,
)
from tests.integration.engine.waiting import PATIENCE, ended, reaches


async def test_positions_are_sent_and_decrease(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()
    gate = asyncio.Event()

    @app.service(limit=1, order="fifo")
    async def one(call: Call) -> str:
        await gate.wait()
        return "ok"

    async with app.running():
        holder = await app.submit("one")
        await reaches(app, holder.id, JobStatus.RUNNING)
        jobs = [await app.submit("one") for _ in range(3)]
        async with asyncio.timeout(PATIENCE):
            while (await jobs[2].get()).position is None:  # the outbox has it until the queue is built
                await asyncio.sleep(0.01)
        assert [(await job.get()).position for job in jobs] == [1, 2, 3]
        await jobs[0].cancel()
        assert [(await job.get()).position for job in jobs[1:]] == [1, 2]
        wait = (await jobs[2].get()).estimated_wait
        assert wait is not None
        assert 0 <= wait.low <= wait.high
        gate.set()
        await ended(app, jobs[2].id)


async def test_progress_reaches_watchers_and_the_database(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()
    gate, begin = asyncio.Event(), asyncio.Event()

    @app.service(limit=1)
    async def works(call: Call) -> str:
        await begin.wait()
        call.progress(0.5, "half way", frames=12)
        await gate.wait()
        return "ok"

    async with app.running():
        job = await app.submit("works")
        types = []
        async for event in app.watch(job.id):
            if event is None:
                continue
            types.append(event["type"])
            if event["type"] == "SNAPSHOT":
                begin.set()
            if event["type"] == "PROGRESS":
                assert (event["fraction"], event["message"], event["frames"]) == (0.5, "half way", 12)
                async with asyncio.timeout(PATIENCE):
                    while (await job.get()).progress is None:
                        await asyncio.sleep(0.02)
                gate.set()
        assert types[0] == "SNAPSHOT"
        assert types[-2:] == ["STEP_COMPLETE", "JOB_COMPLETE"]


async def test_waiting_for_a_result_has_a_timeout(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()

    @app.service(limit=1)
    async def one(call: Call) -> str:
        return "ok"

    async with app:
        job = await app.submit("one")
        with pytest.raises(ResultTimeout):
            await job.result(timeout=0.05)


async def test_a_watcher_in_a_process_without_workers_receives_the_end(make_app: Callable[..., Fairlead]) -> None:
    app, gateway = make_app(), make_app()
    gate = asyncio.Event()

    async def slow(call: Call) -> str:
        await gate.wait()
        return "done"

    app.service(limit=1)(slow)
    gateway.service(limit=1)(slow)
    async with app.running(), gateway:
        job = await gateway.submit("slow")
        types = []
        async with asyncio.timeout(PATIENCE):
            async for event in gateway.watch(job.id, heartbeat=PATIENCE * 2):
                gate.set()
                types.append(event["type"] if event else None)
        assert types[0] == "SNAPSHOT"
        assert types[-1] == "JOB_COMPLETE"
