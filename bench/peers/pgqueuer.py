"""PgQueuer on PostgreSQL. Its `pgq run` is `PgQueuer.run`, called here directly."""

from __future__ import annotations

import json
import os

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job as PgJob
from pgqueuer.queries import Queries

from bench import handlers
from bench.system_port import Job, System, Uses, Workers, database_url, script

WORKER = f"{script('python')} -m bench.peers.pgqueuer"


async def run() -> None:
    pgq = PgQueuer(AsyncpgDriver(await asyncpg.connect(database_url())))

    @pgq.entrypoint("work")
    async def work(job: PgJob) -> None:
        await handlers.run_async(*json.loads(job.payload or b"[]"))

    at_once = os.environ.get("BENCH_AT_ONCE")
    await pgq.run(
        batch_size=int(os.environ.get("BENCH_BATCH", "10")), max_concurrent_tasks=int(at_once) if at_once else None
    )


class PgQueuerSystem(System):
    store = "postgres"
    left = ("SELECT count(*) FROM pgqueuer",)
    workers = Uses(
        fast=Workers(WORKER, processes=2, env={"BENCH_BATCH": "100"}),
        sleep=Workers(WORKER, processes=2, env={"BENCH_BATCH": "100", "BENCH_AT_ONCE": "250"}),
        narrow=Workers(WORKER, env={"BENCH_BATCH": "2", "BENCH_AT_ONCE": "4"}),
        default=Workers(WORKER),
    )
    packages = ("pgqueuer", "asyncpg", "uvloop")
    config = (
        "2 workers on uvloop, batch_size 100; it deletes its rows; producer: asyncpg pool of 20; "
        "enqueue of 1,000; sleepers: 2 x 250"
    )

    async def setup(self) -> None:
        connection = await asyncpg.connect(database_url())
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(database_url(), min_size=20, max_size=20)
        self._queries = Queries(AsyncpgPoolDriver(self._pool))

    async def close(self) -> None:
        await self._pool.close()

    async def enqueue(self, job: Job) -> None:
        await self._queries.enqueue("work", _payload(job))

    async def enqueue_many(self, jobs: list[Job]) -> None:
        await self._queries.enqueue(["work"] * len(jobs), [_payload(job) for job in jobs], [0] * len(jobs))


def _payload(job: Job) -> bytes:
    return json.dumps([job.kind, job.number]).encode()


system = PgQueuerSystem()

if __name__ == "__main__":
    uvloop.run(run())
