"""What time alone does to a job: due, waited too long, past its deadline, promoted, pruned."""

import asyncio
import time
from collections.abc import Callable

import pytest

from fairlead import (
    Call,
    Fairlead,
    JobFailed,
    JobStatus,
)
from fairlead.errors import NotFound
from tests.integration.line.waiting import PATIENCE, reaches
from tests.integration.turning import stands


async def test_a_job_is_released_at_its_due_moment(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()

    @app.service(limit=1)
    async def note(call: Call) -> float:
        return time.time()

    async with app.running():
        later = await app.submit("note", delay=0.3)
        assert (await later.get()).status is JobStatus.SCHEDULED
        ran_at = await later.result(timeout=PATIENCE)
        shown = await later.get()
        assert shown.scheduled_at is not None
        assert ran_at >= shown.scheduled_at
        assert shown.queued_at is not None
        assert shown.queued_at >= shown.scheduled_at


async def test_a_wait_timeout_fails_the_job_but_it_can_be_resumed(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()
    gate = asyncio.Event()

    @app.service(limit=1, wait_timeout=0.2)
    async def scarce(call: Call) -> str:
        await gate.wait()
        return "ok"

    async with app.running():
        await stands(app)
        holder = await app.submit("scarce")
        await reaches(app, holder.id, JobStatus.RUNNING)
        waiter = await app.submit("scarce")
        with pytest.raises(JobFailed) as caught:
            await waiter.result(timeout=PATIENCE)
        assert caught.value.error["code"] == "RESOURCE_EXHAUSTED"
        assert caught.value.retryable
        gate.set()
        await holder.result(timeout=PATIENCE)
        await waiter.resume()
        assert await waiter.result(timeout=PATIENCE) == "ok"


async def test_a_passed_deadline_stops_the_running_call(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()
    stopped = asyncio.Event()

    @app.service(limit=1)
    async def endless(call: Call) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    async with app.running():
        await stands(app)
        job = await app.submit("endless", deadline=0.3)
        with pytest.raises(JobFailed) as caught:
            await job.result(timeout=PATIENCE)
        assert caught.value.error["code"] == "DEADLINE_PASSED"
        await asyncio.wait_for(stopped.wait(), PATIENCE)


async def test_those_who_wait_long_are_promoted_and_told(make_app: Callable[..., Fairlead]) -> None:
    app = make_app(promotion={"low_to_medium_after": 0.2, "medium_to_high_after": 0.4})
    gate = asyncio.Event()

    @app.service(limit=1)
    async def one(call: Call) -> str:
        await gate.wait()
        return "ok"

    async with app.running():
        await app.submit("one")
        job = await app.submit("one", priority="low")
        heard = []
        async for event in app.watch(job.id):
            if event is not None and event["type"] == "JOB_PROMOTED":
                heard.append((event["old"], event["new"]))
            if len(heard) == 2:
                break
        assert heard == [("low", "medium"), ("medium", "high")]
        shown = await job.get()
        assert (shown.priority, shown.original_priority) == ("high", "low")
        assert shown.promoted_at is not None
        gate.set()
        assert await job.result(timeout=PATIENCE) == "ok"


async def test_finished_jobs_are_pruned_when_they_are_kept_no_longer(make_app: Callable[..., Fairlead]) -> None:
    app = make_app(retention={"keep_finished": 0.2})

    @app.service(limit=1)
    async def one(call: Call) -> str:
        return "ok"

    async with app.running():
        job = await app.submit("one")
        await job.result(timeout=PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    await job.get()
                except NotFound:
                    break
                await asyncio.sleep(0.02)
