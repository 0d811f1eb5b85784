"""RQ: SimpleWorker, which does not fork for every job."""

from __future__ import annotations

from redis import Redis
from rq import Queue

from bench import handlers
from bench.system_port import Job, System, Uses, Workers, redis_url, script

SIMPLE = f"{script('rq')} worker -q -u {redis_url()} -w rq.worker.SimpleWorker"


class RqSystem(System):
    left = ("LLEN rq:queue:default", "ZCARD rq:wip:default")
    workers = Uses(
        fast=Workers(SIMPLE, processes=2),
        narrow=Workers(SIMPLE, processes=4),
        default=Workers(f"{script('rq')} worker -q -u {redis_url()}"),
    )
    packages = ("rq", "redis")
    config = "2 SimpleWorkers (no fork per job); a worker runs one job at a time, so no sleepers"

    async def open(self) -> None:
        self._queue = Queue(connection=Redis.from_url(redis_url()))

    def enqueue(self, job: Job) -> None:
        self._queue.enqueue(handlers.run, job.kind, job.number)

    def enqueue_many(self, jobs: list[Job]) -> None:
        self._queue.enqueue_many([Queue.prepare_data(handlers.run, (job.kind, job.number)) for job in jobs])


system = RqSystem()
