"""Arq. It polls; 10 ms instead of its 500."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from arq import create_pool
from arq.connections import RedisSettings

from bench import handlers
from bench.system_port import Job, System, Uses, Workers, redis_url, script

SETTINGS = RedisSettings.from_dsn(redis_url())
WORKER = f"{script('arq')} bench.peers.arq.WorkerSettings"


async def work(context: Any, kind: str, number: int) -> None:
    await handlers.run_async(kind, number)


class WorkerSettings:
    functions: ClassVar = [work]
    redis_settings = SETTINGS
    max_jobs = int(os.environ.get("BENCH_AT_ONCE", "10"))
    poll_delay = float(os.environ.get("BENCH_POLL", "0.5"))


class ArqSystem(System):
    left = ("ZCARD arq:queue",)
    workers = Uses(
        fast=Workers(WORKER, processes=2, env={"BENCH_AT_ONCE": "100", "BENCH_POLL": "0.01"}),
        sleep=Workers(WORKER, processes=2, env={"BENCH_AT_ONCE": "250", "BENCH_POLL": "0.01"}),
        narrow=Workers(WORKER, env={"BENCH_AT_ONCE": "4", "BENCH_POLL": "0.01"}),
        default=Workers(WORKER),
    )
    packages = ("arq", "redis")
    config = "2 workers, max_jobs 100, poll_delay 0.01 s; sleepers: 2 x 250"

    async def open(self) -> None:
        self._pool = await create_pool(SETTINGS)

    async def enqueue(self, job: Job) -> None:
        await self._pool.enqueue_job("work", job.kind, job.number)


system = ArqSystem()
