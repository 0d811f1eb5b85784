"""`fairlead.testing`, as the tests of an application use it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fairlead import Call, Fairlead, JobFailed, Permanent, Retry
from fairlead.domain.config import Config
from fairlead.domain.job import JobStatus
from fairlead.testing import FakeEndpoint, Hangs, Takes, in_virtual_time, run, temporary
from fairlead.testing.plugin import Run, fairlead_run

__all__ = ["fairlead_run"]

SERVICES = {
    "paint": {"url": "http://gpu.invalid/v1", "limit": 2, "timeout": 30, "backoff": [60, 600], "max_attempts": 3},
    "chat": {"openai": "http://llm.invalid/v1", "limit": 1, "models": ["llama"]},
}


def new_app() -> Fairlead:
    app = Fairlead(Config.model_validate({"services": SERVICES}), database_url="sqlite:///never-created.db")

    @app.service(limit=1)
    async def frame(call: Call) -> dict[str, str]:
        return {"framed": call.params["picture"]}

    app.pipeline("framed_picture", ["paint", "frame"])
    return app


async def test_fakes_take_the_place_of_services_and_the_app_is_as_before_afterwards(tmp_path: Path) -> None:
    app, painter = new_app(), FakeEndpoint({"image": "a harbour"})
    async with run(app, tmp_path, fakes={"paint": painter, "chat": FakeEndpoint()}) as site:
        await app.submit("paint", {"prompt": "a harbour", "size": 3}, user_id="ada")
        [job] = await site.drain()
        assert (await site.assert_submitted("paint", {"prompt": "a harbour"}, user_id="ada")).job_id == job.job_id
        with pytest.raises(AssertionError, match="paint of ada"):
            await site.assert_submitted("paint", {"prompt": "a ship"})
    assert (job.status, painter.calls) == (JobStatus.COMPLETED, [{"prompt": "a harbour", "size": 3}])
    assert app.config.services["paint"].url == "http://gpu.invalid/v1"
    assert app.settings.database_url == "sqlite:///never-created.db"


async def test_the_limit_of_a_service_holds_for_its_fake(fairlead_run: Run) -> None:
    app, painter = new_app(), FakeEndpoint(Takes(0.01, "done"))
    async with fairlead_run(app, fakes={"paint": painter}) as site:
        for number in range(10):
            await app.submit("paint", {"n": number}, user_id=f"user {number % 3}")
        jobs = await site.drain()
    assert (len(jobs), painter.at_once) == (10, 2)


@in_virtual_time
async def test_minutes_of_backoff_pass_in_virtual_time(tmp_path: Path) -> None:
    app, painter = new_app(), FakeEndpoint(ConnectionError("away"), Retry("busy"), "done")
    virtual = asyncio.get_running_loop().time
    async with run(app, tmp_path, fakes={"paint": painter}) as site:
        await app.submit("paint", {}, user_id="ada")
        [job] = await site.drain(timeout=10_000)
        assert (job.status, len(painter.calls)) == (JobStatus.COMPLETED, 3)
        assert virtual() >= 60 + 600


@in_virtual_time
async def test_faults_end_jobs_as_those_of_real_endpoints_do(tmp_path: Path) -> None:
    app, painter = new_app(), FakeEndpoint(Permanent("no such style"), Hangs())
    async with run(app, tmp_path, fakes={"paint": painter}) as site:
        refused = await app.submit("paint", {}, user_id="ada")
        with pytest.raises(JobFailed, match="no such style"):
            await refused.result(timeout=60)
        await app.submit("paint", {}, user_id="ada")
        with pytest.raises(AssertionError, match="1 jobs are not finished"):
            await site.drain(timeout=5)
        *_, hung = await site.drain(timeout=20_000)
        assert hung.error is not None
        assert hung.error["code"] == "TIMEOUT"


async def test_a_fake_of_an_unknown_service_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no service 'piant'; it has: paint, chat, frame"):
        async with run(new_app(), tmp_path, fakes={"piant": FakeEndpoint()}):
            pass


async def test_nothing_submitted(tmp_path: Path) -> None:
    app = new_app()
    async with run(app, tmp_path) as site:
        await site.assert_nothing_submitted()
        await app.submit("frame", {"picture": "a ship"}, user_id="ada")
        with pytest.raises(AssertionError, match="the first to frame"):
            await site.assert_nothing_submitted()
        await site.drain()


def test_code_without_an_event_loop(tmp_path: Path) -> None:
    app, painter = new_app(), FakeEndpoint()
    painter.then({"picture": "a ship"})
    with temporary(app, tmp_path, {"paint": painter, "frame": FakeEndpoint("framed")}), app.sync.running():
        assert app.sync.submit("framed_picture", {}, user_id="ada").result(timeout=60) == "framed"
