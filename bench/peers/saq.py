"""SAQ on Redis."""

from __future__ import annotations

import os
from typing import Any

from saq import Queue

from bench import handlers
from bench.system_port import Job, System, Uses, Workers, redis_url, script

queue = Queue.from_url(redis_url())
WORKER = f"{script('saq')} bench.peers.saq.settings"


async def work(context: Any, *, kind: str, number: int) -> None:
    await handlers.run_async(kind, number)


settings = {"queue": queue, "functions": [work], "concurrency": int(os.environ.get("BENCH_AT_ONCE", "10"))}


class SaqSystem(System):
    left = ("ZCARD saq:default:incomplete",)
    workers = Uses(
        fast=Workers(WORKER, processes=2, env={"BENCH_AT_ONCE": "100"}),
        sleep=Workers(WORKER, processes=2, env={"BENCH_AT_ONCE": "250"}),
        narrow=Workers(WORKER, env={"BENCH_AT_ONCE": "4"}),
        default=Workers(WORKER),
    )
    packages = ("saq", "redis")
    config = "2 workers, concurrency 100; sleepers: 2 x 250"

    async def open(self) -> None:
        await queue.connect()

    async def close(self) -> None:
        await queue.disconnect()

    async def enqueue(self, job: Job) -> None:
        await queue.enqueue("work", kind=job.kind, number=job.number)


system = SaqSystem()
