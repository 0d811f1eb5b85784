"""How often a process connects to a Redis that it cannot use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from fairlead import Call, Config, Fairlead, JobHandle
from tests.integration.turn_apps import until_ready
from tests.redis_servers import Server

PATIENCE = 60.0


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server().start()
    yield server
    server.kill()


def application(urls: dict[str, str], server: Server) -> Fairlead:
    app = Fairlead(Config(), database_url=urls["database_url"], redis_url=server.url)

    @app.service(limit=1)
    async def one(call: Call) -> str:
        return "ok"

    return app


async def use(app: Fairlead, seconds: float) -> tuple[JobHandle, float]:
    """Submit and read jobs for some seconds; returns the last job and the time taken."""
    began = time.monotonic()
    while True:
        job = await app.submit("one")
        await app.get(job.id)
        if (took := time.monotonic() - began) > seconds:
            return job, took
        await asyncio.sleep(0.02)


async def test_a_read_only_redis_is_connected_to_at_most_once_a_second(
    distributed: dict[str, str], server: Server
) -> None:
    """By a process with all roles, which uses the server again once it accepts writes."""
    app = application(distributed, server)

    def connections() -> int:
        return int(server.client.info("stats")["total_connections_received"])

    async with app.running():
        await until_ready(app)
        server.client.replicaof("127.0.0.1", "1")
        before = connections()
        job, seconds = await use(app, 3.0)
        made = connections() - before
        server.client.replicaof("NO", "ONE")
        assert await job.result(timeout=PATIENCE) == "ok"
    assert 0 < made <= seconds + 1


async def test_a_redis_that_closes_every_connection_is_tried_by_one_component_at_a_time(
    distributed: dict[str, str], server: Server
) -> None:
    app, attempts = application(distributed, server), 0

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.close()

    async with app.running():
        await until_ready(app)
        server.kill()
        async with await asyncio.start_server(accepted, "127.0.0.1", server.port):
            job, seconds = await use(app, 3.0)
        server.start()
        assert await job.result(timeout=PATIENCE) == "ok"
    assert 0 < attempts <= 2 * seconds + 2, "and those of the heartbeat"
