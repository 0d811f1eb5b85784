"""Taskiq with the list broker of taskiq-redis: its fastest, and without acknowledgements."""

from __future__ import annotations

from taskiq_redis import ListQueueBroker

from bench import handlers
from bench.system_port import Job, System, Uses, Workers, redis_url, script

broker = ListQueueBroker(redis_url())
WORKER = f"{script('taskiq')} worker bench.peers.taskiq:broker --log-level ERROR"


@broker.task(task_name="work")
async def work(kind: str, number: int) -> None:
    await handlers.run_async(kind, number)


class TaskiqSystem(System):
    left = ("LLEN taskiq",)
    workers = Uses(
        fast=Workers(f"{WORKER} -w 2 --max-async-tasks 100"),
        sleep=Workers(f"{WORKER} -w 2 --max-async-tasks 250 --max-prefetch 250"),
        narrow=Workers(f"{WORKER} -w 1 --max-async-tasks 4"),
        default=Workers(WORKER),
    )
    packages = ("taskiq", "taskiq-redis", "redis")
    config = "ListQueueBroker, no result backend; 2 processes of 100 tasks; sleepers: 2 x 250"

    async def open(self) -> None:
        await broker.startup()

    async def close(self) -> None:
        await broker.shutdown()

    async def enqueue(self, job: Job) -> None:
        await work.kiq(job.kind, job.number)


system = TaskiqSystem()
