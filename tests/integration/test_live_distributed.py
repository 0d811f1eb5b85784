"""Live progress between processes, on PostgreSQL and Redis."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from redis.asyncio import Redis

from fairlead.app import event_stream
from fairlead.app.fairlead import Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.engine.roles import Roles
from fairlead.gateway.app import create_gateway
from fairlead.gateway.responses import frame
from tests.integration.gateway_site import Gate, declare_services, served
from tests.integration.websocket_client import PATIENCE, next_event, next_of, until_closed, watching
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
    """Two gateways and a worker, each like its own process."""

    here: Fairlead
    there: Fairlead
    gate: Gate
    port: int
    """Of `here`."""

    async def until_known_everywhere(self, topic: str) -> None:
        """Wait until all processes publish this topic."""
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


async def test_events_of_other_processes_reach_watchers_of_the_job_and_the_user(processes: Processes) -> None:
    job = await processes.here.submit("gated_then_whisper", user_id="ada")
    await processes.gate.entered.wait()
    async with watching(processes.port, f"/ws/{job.id}") as one, watching(processes.port, "/ws?user_id=ada") as all_:
        assert (await next_event(one))["job"]["status"] == "RUNNING"
        assert [shown["job_id"] for shown in (await next_event(all_))["jobs"]] == [job.id]
        await processes.until_known_everywhere("user:ada")
        later = await processes.there.submit("echo", user_id="ada", delay=3600)
        assert (await next_of(all_, "WAITING"))["job_id"] == later.id
        processes.gate.opened.set()
        seen, code = await until_closed(one)
        expected = ["STEP_COMPLETE", "STEP_START", "PROGRESS", "STEP_COMPLETE", "JOB_COMPLETE"]
        assert (steps(seen), code) == (expected, 1000)
        of_all: list[dict[str, Any]] = []
        while not of_all or of_all[-1]["type"] != "JOB_COMPLETE":
            of_all.append(await next_event(all_))
        assert steps(of_all) == expected
        await processes.there.cancel(later.id)
        assert (await next_of(all_, "JOB_CANCELLED"))["job_id"] == later.id


async def test_a_test_message_by_redis_cli_reaches_websockets_and_event_streams(
    processes: Processes, redis: Server
) -> None:
    """CAO Gateway's check: `PUBSUB CHANNELS`, then `PUBLISH ws:job-123 '{"type":"TEST"}'`."""
    job = await processes.here.submit("gated", user_id="ada")
    await processes.gate.entered.wait()
    client = Redis.from_url(redis.url)
    async with watching(processes.port, f"/ws/{job.id}") as one, contextlib.aclosing(client):
        await next_event(one)
        stream = processes.here.watch(job.id)
        async with contextlib.aclosing(stream):  # type: ignore[type-var]
            await anext(stream)
            async with asyncio.timeout(PATIENCE):
                while f"ws:{job.id}".encode() not in await client.pubsub_channels():
                    await asyncio.sleep(0.01)
            await client.publish(f"ws:{job.id}", "no JSON")
            assert await client.publish(f"ws:{job.id}", '{"type":"TEST"}') == 1
            event = await next_of(one, "TEST")
            assert (event["job_id"], event["message"], event.keys()) == (
                job.id,
                "",
                {"type", "job_id", "at", "message"},
            )
            assert frame(2, event).startswith(b"id: 2\nevent: TEST\ndata: {")
            assert await anext(stream) == event
        processes.gate.opened.set()
        seen, code = await until_closed(one)
        assert (seen[-1]["type"], code) == ("JOB_COMPLETE", 1000)


async def test_events_missed_during_a_redis_outage_are_recovered(
    processes: Processes, redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "POLL_EVERY", 0.1)
    job = await processes.here.submit("gated", user_id="ada")
    await processes.gate.entered.wait()
    async with watching(processes.port, f"/ws/{job.id}") as one, watching(processes.port, "/ws?user_id=ada") as all_:
        await next_event(one)
        await next_event(all_)
        await processes.until_known_everywhere("user:ada")
        redis.kill()
        unheard = await processes.there.submit("echo", user_id="ada", delay=3600)
        processes.gate.opened.set()
        seen, code = await until_closed(one)
        assert (seen[-1]["type"], code) == ("JOB_COMPLETE", 1000)
        assert (await next_of(all_, "JOB_COMPLETE"))["job_id"] == job.id
        redis.start()
        # Events during the outage are lost; the snapshot after the reconnect has the new jobs.
        again = await next_of(all_, "SNAPSHOT")
        assert [shown["job_id"] for shown in again["jobs"]] == [unheard.id]
        # Other processes may not know of the subscription yet; then the next snapshot has it.
        later = await processes.there.submit("echo", user_id="ada", delay=3600)
        news = await next_of(all_, "WAITING", "SNAPSHOT")
        assert later.id in [news.get("job_id"), *(shown["job_id"] for shown in news.get("jobs", ()))]


async def test_a_gateway_without_redis_polls_for_events(emptied_database: str) -> None:
    """Without Redis: `fairlead api` beside a `fairlead up` on the same database."""
    gate = Gate()
    up, beside = (Fairlead(Settings(Config(), emptied_database)) for _ in range(2))
    for app in (up, beside):
        declare_services(app, gate)
    async with up.running(), beside.running(GATEWAY), served(create_gateway(beside)) as port:
        job = await up.submit("gated_then_whisper", user_id="ada")
        await gate.entered.wait()
        async with watching(port, f"/ws/{job.id}") as one, watching(port, "/ws?user_id=ada") as all_:
            assert (await next_event(one))["job"]["status"] == "RUNNING"
            await next_event(all_)
            later = await up.submit("echo", user_id="ada", delay=3600)
            assert [shown["job_id"] for shown in (await next_of(all_, "SNAPSHOT"))["jobs"]] == [later.id, job.id]
            gate.opened.set()
            seen, code = await until_closed(one)
            assert (seen[-1]["type"], code) == ("JOB_COMPLETE", 1000)
            assert (await next_of(all_, "JOB_COMPLETE"))["job_id"] == job.id
