"""Rerunning one step of a job: from the request to its end, on both engines, and over HTTP."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fairlead import AsyncClient, Call, Config, Fairlead, JobStatus, JobView, Permanent, WrongState
from fairlead.errors import InvalidInput
from fairlead.gateway import models
from tests.integration.gateway_site import Site, served

PATIENCE = 30.0
ADMIN = "fl_admin_0123456789abcdef0123456789abcdef"


class PipelineApp:
    """A pipeline of three steps; each returns how often it was called. Steps in `broken` fail, those in `stuck`
    hang."""

    def __init__(self, engines: dict[str, str]) -> None:
        self.app = Fairlead(Config(), **engines)
        self.calls: list[tuple[str, str]] = []
        self.broken: set[str] = set()
        self.stuck: set[str] = set()
        self.entered, self.stopped = asyncio.Event(), asyncio.Event()
        for name in ("ask", "judge", "sum_up"):
            self.app.service(name, limit=5)(self._handler(name))
        self.app.pipeline("survey", ["ask", "judge", "sum_up"])

    def _handler(self, name: str) -> Callable[[Call], Awaitable[str]]:
        async def handle(call: Call) -> str:
            self.calls.append((name, call.idempotency_key))
            if name in self.broken:
                raise Permanent(f"{name} is broken")
            if name in self.stuck:
                self.entered.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    self.stopped.set()
            return f"{name} {sum(called == name for called, _ in self.calls)}"

        return handle

    async def ended(self, job_id: str) -> JobView:
        job = await self.app.wait(job_id, PATIENCE)
        assert job.status.finished
        return job


def data_of(job: JobView) -> list[Any]:
    assert job.context is not None
    return [step["data"] for step in job.context.values()]


async def test_one_step_is_rerun_and_no_other(engines: dict[str, str]) -> None:
    pipeline = PipelineApp(engines)
    async with pipeline.app.running() as app:
        job = await app.submit("survey", user_id="ada")
        await pipeline.ended(job.id)
        again = await job.retry_step(1)
        assert again.status in (JobStatus.PENDING, JobStatus.RUNNING, JobStatus.COMPLETED)
        done = await pipeline.ended(job.id)
        assert (done.status, done.result, done.current_step_index) == (JobStatus.COMPLETED, "sum_up 1", 3)
        assert data_of(done) == ["ask 1", "judge 2", "sum_up 1"]
        assert done.history is not None
        assert [(each["step"], each["round"], each["data"]) for each in done.history] == [(1, 0, "judge 1")]
        await app.retry_step(job.id, 2)
        done = await pipeline.ended(job.id)
        assert (done.result, [name for name, _ in pipeline.calls]) == (
            "sum_up 2",
            ["ask", "judge", "sum_up", "judge", "sum_up"],
        )
        # Each round is a new call for the endpoint.
        assert [key for _, key in pipeline.calls[3:]] == [f"{job.id}:1:1", f"{job.id}:2:2"]


async def test_a_rerun_of_the_failed_step_continues_and_that_of_an_earlier_one_leaves_the_job_failed(
    engines: dict[str, str],
) -> None:
    pipeline = PipelineApp(engines)
    pipeline.broken = {"judge"}
    async with pipeline.app.running() as app:
        job = await app.submit("survey", user_id="ada")
        failed = await pipeline.ended(job.id)
        assert (failed.status, failed.current_step_index) == (JobStatus.FAILED, 1)
        await app.retry_step(job.id, 0)
        still = await pipeline.ended(job.id)
        assert (still.status, still.current_step_index, still.error) == (JobStatus.FAILED, 1, failed.error)
        assert data_of(still) == ["ask 2"]
        with pytest.raises(WrongState, match="has not run"):
            await app.retry_step(job.id, 2)
        pipeline.broken = set()
        await app.retry_step(job.id, 1)
        done = await pipeline.ended(job.id)
        assert (done.status, data_of(done)) == (JobStatus.COMPLETED, ["ask 2", "judge 2", "sum_up 1"])


async def test_a_cancelled_rerun_leaves_the_queue_and_the_job_unchanged(engines: dict[str, str]) -> None:
    """For a waiting and for a running step: the services of the other steps are not called."""
    pipeline = PipelineApp(engines)
    async with pipeline.app.running() as app:
        job = await app.submit("survey", user_id="ada")
        before = await pipeline.ended(job.id)
        await app.pause("ask")
        await job.retry_step(0)
        cancelled = await job.cancel()
        assert (cancelled.status, cancelled.result) == (JobStatus.COMPLETED, before.result)
        async with asyncio.timeout(PATIENCE):
            while await app.places([job.id]):  # the queue of that step is updated too
                await asyncio.sleep(0.01)
        await app.unpause("ask")
        pipeline.stuck = {"judge"}
        await job.retry_step(1)
        async with asyncio.timeout(PATIENCE):
            await pipeline.entered.wait()
        cancelled = await job.cancel()
        assert (cancelled.status, cancelled.result) == (JobStatus.COMPLETED, before.result)
        async with asyncio.timeout(PATIENCE):
            await pipeline.stopped.wait()
        assert (data_of(cancelled), cancelled.history) == (["ask 1", "judge 1", "sum_up 1"], [])
        another = await app.submit("survey", user_id="ada")
        pipeline.stuck = set()
        await pipeline.ended(another.id)
        # The rerun that was cancelled before its start was never called.
        assert [name for name, _ in pipeline.calls] == ["ask", "judge", "sum_up", "judge", "ask", "judge", "sum_up"]
        with pytest.raises(WrongState):
            await job.cancel()


async def test_a_rerun_has_its_events(engines: dict[str, str]) -> None:
    pipeline = PipelineApp(engines)
    async with pipeline.app.running() as app:
        job = await app.submit("survey", user_id="ada")
        await pipeline.ended(job.id)
        with app.hub.subscribe(job.id) as subscription:
            await app.retry_step(job.id, 1)
            types = []
            async with asyncio.timeout(PATIENCE):
                while not types or types[-1] != "JOB_COMPLETE":
                    types.append((await subscription.next()).type)
        # The event of the earlier end may arrive late from another process.
        kinds = [kind for kind in types if kind not in ("POSITION", "PROGRESS", "ENDED")]
        assert kinds == ["WAITING", "STEP_START", "STEP_COMPLETE", "JOB_COMPLETE"]


async def test_only_finished_jobs_and_existing_steps_can_be_rerun(engines: dict[str, str]) -> None:
    pipeline = PipelineApp(engines)
    async with pipeline.app.running() as app:
        waiting = await app.submit("survey", user_id="ada", delay=3600)
        with pytest.raises(WrongState):
            await app.retry_step(waiting.id, 0)
        await waiting.cancel()
        with pytest.raises(WrongState):
            await app.retry_step(waiting.id, 0)
        for step in (-1, 3):
            with pytest.raises(InvalidInput):
                await app.retry_step(waiting.id, step)


# ---------------------------------------------------------------- over HTTP


async def test_the_route_returns_the_job_or_a_problem(site: Site) -> None:
    job_id = await site.submit(feature_name="echo_then_shout")
    await site.app.wait(job_id, PATIENCE)
    url = f"/api/v1/jobs/{job_id}/steps"
    response = await site.client.post(f"{url}/0/retry")
    assert response.status_code == 200
    models.Job.model_validate(response.json())
    done = (await site.client.get(f"/api/v1/jobs/{job_id}", headers={"Prefer": "wait=30"})).json()
    models.Job.model_validate(done)
    assert (done["status"], [each["step"] for each in done["history"]]) == ("COMPLETED", [0])
    for index in ("2", "-1", "x", "00", "01", "+1", "0_1", "%201", "1.0", "9" * 30):
        refused = await site.client.post(f"{url}/{index}/retry")
        assert (refused.status_code, refused.json()["pointer"]) == (422, "/index")
    gone = await site.client.post(f"/api/v1/jobs/{uuid.uuid4()}/steps/0/retry")
    assert (gone.status_code, gone.json()["code"]) == (404, "not_found")
    running = await site.submit(feature_name="gated")
    async with asyncio.timeout(PATIENCE):
        await site.gate.entered.wait()
    wrong = await site.client.post(f"/api/v1/jobs/{running}/steps/0/retry")
    assert (wrong.status_code, wrong.json()["details"]["status"]) == (409, "RUNNING")


async def test_a_user_s_key_retries_its_own_jobs_only(make_site: Callable[..., Awaitable[Site]]) -> None:
    site = await make_site(admin_key=ADMIN)
    keys = {user: (await site.app.create_key("user", user_id=user)).text for user in ("ada", "bob")}
    job = await site.app.submit("echo", user_id="ada")
    await site.app.wait(job.id, PATIENCE)
    answers = [
        (await site.client.post(f"/api/v1/jobs/{job.id}/steps/0/retry", headers={"Authorization": f"Bearer {key}"}))
        for key in (keys["bob"], keys["ada"])
    ]
    assert [answer.status_code for answer in answers] == [404, 200]


async def test_the_client_retries_a_step(site: Site) -> None:
    async with served(site.gateway) as port, AsyncClient(f"http://127.0.0.1:{port}") as client:
        job = await client.submit("echo", {"n": 1}, user_id="ada")
        await job.result(timeout=PATIENCE)
        await job.retry_step(0)
        done = await client.wait(job.id, PATIENCE)
        assert done.history is not None
        assert [each["data"] for each in done.history] == [{"echo": {"n": 1}}]
