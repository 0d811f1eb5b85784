"""Timers of a job: due, waited too long, past its deadline, promoted, pruned."""

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
from tests.integration.engine.waiting import PATIENCE, reaches
from tests.integration.turn_apps import until_ready


async def test_a_job_is_released_when_it_is_due(make_app: Callable[..., Fairlead]) -> None:
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
        assert ran_at >= shown.scheduled_at.timestamp()
        assert shown.queued_at is not None
        assert shown.queued_at >= shown.scheduled_at


async def test_a_scheduled_time_long_past_means_now(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()

    @app.service(limit=1)
    async def echo(call: Call) -> str:
        return "ok"

    async with app.running():
        job = await app.submit("echo", scheduled_at="1999-01-01T00:00:00Z")
        assert await job.result(timeout=PATIENCE) == "ok"


async def test_a_wait_timeout_fails_the_job_but_it_can_be_resumed(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()
    gate = asyncio.Event()

    @app.service(limit=1, wait_timeout=2.0)
    async def scarce(call: Call) -> str:
        await gate.wait()
        return "ok"

    async with app.running():
        await until_ready(app)
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
        await until_ready(app)
        job = await app.submit("endless", deadline=0.3)
        with pytest.raises(JobFailed) as caught:
            await job.result(timeout=PATIENCE)
        assert caught.value.error["code"] == "DEADLINE_PASSED"
        await asyncio.wait_for(stopped.wait(), PATIENCE)


async def test_long_waiting_jobs_are_promoted_and_notified(make_app: Callable[..., Fairlead]) -> None:
    app = make_app(promotion={"low_to_medium_after": 0.2, "medium_to_high_after": 0.4})
    gate = asyncio.Event()

    @app.service(limit=1)
    async def one(call: Call) -> str:
        await gate.wait()
        return "ok"

    async with app.running():
        await app.submit("one")
        job = await app.submit("one", priority="low")
        promotions = []
        async for event in app.watch(job.id):
            if event is not None and event["type"] == "JOB_PROMOTED":
                promotions.append((event["old"], event["new"]))
            if len(promotions) == 2:
                break
        assert promotions == [("low", "medium"), ("medium", "high")]
        shown = await job.get()
        assert (shown.priority, shown.original_priority) == ("high", "low")
        assert shown.promoted_at is not None
        gate.set()
        assert await job.result(timeout=PATIENCE) == "ok"


async def test_finished_jobs_are_pruned_after_their_retention(make_app: Callable[..., Fairlead]) -> None:
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
