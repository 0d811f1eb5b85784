"""Output logs on a Redis Cluster, over whose masters the jobs are spread, and an app on it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest

from fairlead import Call, Config, Fairlead, Roles
from fairlead.dispatch.output_log import Appended
from fairlead.dispatch.redis.output_log import RedisOutputLog
from tests import servers
from tests.contract.test_output_log import entry
from tests.integration.talker import PATIENCE, read_data
from tests.redis_servers import cluster_url

JOBS = 12
"""So many that each of the three masters has some."""


@pytest.fixture
async def output_log() -> AsyncIterator[RedisOutputLog]:
    log = RedisOutputLog(cluster_url(), prefix=f"test-{secrets.token_hex(6)}")
    yield log
    await log.close()


async def test_the_outputs_of_many_jobs_are_appended_read_and_deleted_together(output_log: RedisOutputLog) -> None:
    names = [f"job-{number}" for number in range(JOBS)]
    for first in (0, 1):
        replies = await output_log.append([entry(1, first, f'"{first}"', job=name) for name in names])
        assert replies == [Appended.KEPT] * JOBS
    for name in names:
        assert [each.chunks for each in await output_log.read(name)] == [['"0"'], ['"1"']]
    assert await output_log.append([entry(1, 5, "5", job="lost")]) == [Appended.LOST]
    await output_log.delete([*names, "unknown"])
    assert [await output_log.read(name) for name in names] == [[]] * JOBS


async def test_another_process_reads_output_through_a_cluster() -> None:
    database = await servers.shared_database()
    await servers.empty(database)
    engines = {"database_url": database, "redis_url": cluster_url()}
    worker, gateway = Fairlead(Config(), **engines), Fairlead(Config(), **engines)
    go_on = asyncio.Event()
    for app in (worker, gateway):

        @app.service("talk", limit=JOBS)
        async def talk(call: Call) -> None:
            call.emit("one ")
            await go_on.wait()
            call.emit("two")

    async with worker.running(Roles(api=False)), gateway.running(Roles(worker=False, manager=False)):
        jobs = [await gateway.submit("talk", user_id=f"u{number}") for number in range(JOBS)]
        first = [anext(gateway.output(job.id)) for job in jobs]
        async with asyncio.timeout(PATIENCE):
            assert [str(chunk) for chunk in await asyncio.gather(*first)] == ["one "] * JOBS
        go_on.set()
        late = await asyncio.gather(*(read_data(gateway, job.id) for job in jobs))
        assert late == [["one ", "two"]] * JOBS
