"""A database and a Redis that an earlier release left behind work with this one, without a rebuild.

`tests/release_fixture.py` generated the files with the last commit of that release: jobs in every state, and a worker
that was killed in the middle of a call.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections import Counter
from pathlib import Path

import asyncpg
import redis

from fairlead import Fairlead, JobStatus
from fairlead.dispatch.redis import RedisDispatcher
from tests import redis_servers, servers
from tests.release_fixture import application

RELEASE = Path(__file__).parents[1] / "data" / "release-0.1"
OPEN = {"SCHEDULED", "PENDING", "RUNNING", "RETRYING"}


async def statuses(app: Fairlead) -> Counter[str]:
    page = await app.list_jobs(limit=100)
    return Counter(job.status.value for job in page.data)


async def finish_everything(app: Fairlead) -> None:
    """The jobs of the fixture: two failed, one complete, the others still have to run."""
    before = await statuses(app)
    assert before["FAILED"] == 2
    assert before["COMPLETED"] == 1
    assert sum(before.values()) == 22
    await app.unpause("second")
    await app.unpause("pooled")
    async with asyncio.timeout(60):
        while OPEN & (await statuses(app)).keys():
            await asyncio.sleep(0.05)
    [retryable] = [job for job in (await app.list_jobs(status=JobStatus.FAILED)).data if job.retryable]
    await app.resume(retryable.job_id)
    assert (await app.wait(retryable.job_id, 30)).status is JobStatus.COMPLETED
    assert await statuses(app) == Counter(COMPLETED=21, FAILED=1)


async def test_a_sqlite_database_of_the_previous_release_continues(tmp_path: Path) -> None:
    database = tmp_path / "fairlead.db"
    shutil.copyfile(RELEASE / "fairlead.db", database)
    app = application(database_url=f"sqlite:///{database}")
    async with app.running():
        await finish_everything(app)


async def test_postgresql_and_redis_of_the_previous_release_continue_without_a_rebuild() -> None:
    database = await servers.new_database()
    server = redis_servers.Server().start()
    connection = await asyncpg.connect(database)
    try:
        await connection.execute((RELEASE / "postgres.sql").read_text(encoding="utf-8"))
        restore(server.client)
        epochs = await as_built_on(connection, server.url)
        app = application(database_url=database, redis_url=server.url)
        async with app.running():
            await finish_everything(app)
        assert (
            await connection.fetch(
                "SELECT scope, number FROM fairlead.epoch WHERE scope NOT LIKE 'leader:%' ORDER BY scope"
            )
            == epochs
        )
    finally:
        await connection.close()
        server.kill()
        await servers.drop_database(database)


def restore(client: redis.Redis) -> None:
    """Every key but the leader's, which would have expired."""
    kept: dict[str, str] = json.loads((RELEASE / "redis.json").read_text(encoding="utf-8"))
    for key, value in kept.items():
        if not key.endswith(":leader"):
            client.restore(key, 0, base64.b64decode(value))


async def as_built_on(connection: asyncpg.Connection, redis_url: str) -> list[asyncpg.Record]:
    """The restored keys are on another server than they were written on; the database has to name this one."""
    dispatcher = RedisDispatcher(redis_url)
    [state] = (await dispatcher.states(["service:echo"])).values()
    await dispatcher.close()
    await connection.execute("UPDATE fairlead.epoch SET server = $1", state.server)
    return await connection.fetch(
        "SELECT scope, number FROM fairlead.epoch WHERE scope NOT LIKE 'leader:%' ORDER BY scope"
    )
