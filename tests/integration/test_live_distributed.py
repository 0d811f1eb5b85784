"""Live progress between processes, on PostgreSQL and Redis: whoever does something, all who watch hear of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from fairlead.app import Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.gateway.app import create_gateway
from fairlead.runtime import lookout
from fairlead.runtime.roles import Roles
from tests.integration.gateway_site import Gate, declare_services, served
from tests.integration.test_gateway_websocket import PATIENCE, heard, hears, until_closed, watching
from tests.redis_servers import Server

pytestmark = pytest.mark.slow

GATEWAY, THE_REST = Roles(worker=False, manager=False), Roles(api=False)


@pytest.fixture
def redis() -> Iterator[Server]:
    server = Server().start()
    yield server
    server.kill()


@dataclass
class Processes:
    """Two gateways, and what runs the jobs: each with all that a process has, but its interpreter."""

    here: Fairlead
    there: Fairlead
    gate: Gate
    port: int
    """Of `here`."""

    async def until_known_everywhere(self, topic: str) -> None:
        """Until all would tell of it."""
        async with asyncio.timeout(PATIENCE):
            while topic not in self.there.hub.elsewhere:
                await asyncio.sleep(0.01)


@pytest.fixture
async def processes(emptied_database: str, redis: Server) -> AsyncIterator[Processes]:
    gate = Gate()

    @asynccontextmanager
    async def process(roles: Roles) -> AsyncIterator[Fairlead]:
        app = Fairlead(Settings(Config(), emptied_database, redis_url=redis.url))
        declare_services(app, gate)
        async with app.running(roles):
            yield app

    async with AsyncExitStack() as stack:
        here, there, _ = [await stack.enter_async_context(process(roles)) for roles in (GATEWAY, GATEWAY, THE_REST)]
        port = await stack.enter_async_context(served(create_gateway(here)))
        yield Processes(here, there, gate, port)


def steps(seen: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in seen if event["type"] not in ("POSITION", "WAITING", "SNAPSHOT")]


async def test_what_happens_elsewhere_is_heard_by_the_watchers_of_a_job_and_of_its_user(processes: Processes) -> None:
    job = await processes.here.submit("gated_then_whisper", user_id="ada")
    await processes.gate.entered.wait()
    async with watching(processes.port, f"/ws/{job.id}") as one, watching(processes.port, "/ws?user_id=ada") as all_:
        assert (await heard(one))["job"]["status"] == "RUNNING"
        assert [shown["job_id"] for shown in (await heard(all_))["jobs"]] == [job.id]
        await processes.until_known_everywhere("user:ada")
        later = await processes.there.submit("echo", user_id="ada", delay=3600)
        assert (await hears(all_, "WAITING"))["job_id"] == later.id
        processes.gate.opened.set()
        seen, code = await until_closed(one)
        expected = ["STEP_COMPLETE", "STEP_START", "PROGRESS", "STEP_COMPLETE", "JOB_COMPLETE"]
        assert (steps(seen), code) == (expected, 1000)
        of_all: list[dict[str, Any]] = []
        while not of_all or of_all[-1]["type"] != "JOB_COMPLETE":
            of_all.append(await heard(all_))
        assert steps(of_all) == expected
        await processes.there.cancel(later.id)
        assert (await hears(all_, "JOB_CANCELLED"))["job_id"] == later.id


async def test_a_redis_that_is_away_hides_no_end_and_is_made_up_for_when_it_is_back(
    processes: Processes, redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout, "EVERY", 0.1)
    job = await processes.here.submit("gated", user_id="ada")
    await processes.gate.entered.wait()
    async with watching(processes.port, f"/ws/{job.id}") as one, watching(processes.port, "/ws?user_id=ada") as all_:
        await heard(one)
        await heard(all_)
        await processes.until_known_everywhere("user:ada")
        redis.kill()
        unheard = await processes.there.submit("echo", user_id="ada", delay=3600)
        processes.gate.opened.set()
        seen, code = await until_closed(one)
        assert (seen[-1]["type"], code) == ("JOB_COMPLETE", 1000)
        assert (await hears(all_, "JOB_COMPLETE"))["job_id"] == job.id
        redis.start()
        # What was submitted meanwhile could not be told; it is in the snapshot that comes when Redis is there again.
        again = await hears(all_, "SNAPSHOT")
        assert [shown["job_id"] for shown in again["jobs"]] == [unheard.id]
        # Others may not know yet that somebody listens again: then the next snapshot has it.
        later = await processes.there.submit("echo", user_id="ada", delay=3600)
        news = await hears(all_, "WAITING", "SNAPSHOT")
        assert later.id in [news.get("job_id"), *(shown["job_id"] for shown in news.get("jobs", ()))]


async def test_a_gateway_without_the_line_sees_by_looking_what_others_do(emptied_database: str) -> None:
    """Without Redis: `fairlead api` beside a `fairlead up` on the same database."""
    gate = Gate()
    up, beside = (Fairlead(Settings(Config(), emptied_database)) for _ in range(2))
    for app in (up, beside):
        declare_services(app, gate)
    async with up.running(), beside.running(GATEWAY), served(create_gateway(beside)) as port:
        job = await up.submit("gated_then_whisper", user_id="ada")
        await gate.entered.wait()
        async with watching(port, f"/ws/{job.id}") as one, watching(port, "/ws?user_id=ada") as all_:
            assert (await heard(one))["job"]["status"] == "RUNNING"
            await heard(all_)
            later = await up.submit("echo", user_id="ada", delay=3600)
            assert [shown["job_id"] for shown in (await hears(all_, "SNAPSHOT"))["jobs"]] == [later.id, job.id]
            gate.opened.set()
            seen, code = await until_closed(one)
            assert (seen[-1]["type"], code) == ("JOB_COMPLETE", 1000)
            assert (await hears(all_, "JOB_COMPLETE"))["job_id"] == job.id
