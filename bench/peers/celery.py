"""Celery on Redis, without a result backend, with its defaults."""

from __future__ import annotations

import os

from celery import Celery, chain

from bench import handlers
from bench.system_port import LIMITS, Job, System, Uses, Workers, redis_url, script

app = Celery("bench", broker=redis_url())
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=int(os.environ.get("BENCH_PREFETCH", "4")),
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)
work = app.task(handlers.run, name="work")

WORKER = f"{script('celery')} -A bench.peers.celery worker -l ERROR"
LEAN = f"{WORKER} --without-gossip --without-mingle --without-heartbeat -n w{{i}}@bench"


class CelerySystem(System):
    left = ("LLEN celery", "HLEN unacked")
    workers = Uses(
        fast=Workers(f"{LEAN} -P solo", processes=2, env={"BENCH_PREFETCH": "128"}),
        sleep=Workers(f"{LEAN} -P gevent -c 250", processes=2, env={"BENCH_PREFETCH": "1"}),
        narrow=Workers(f"{LEAN} -c 4", env={"BENCH_PREFETCH": "1"}),
        default=Workers(WORKER),
        steps=Workers(f"{LEAN} -P threads -Q step{{i}} -c {{limit}}", processes=4, env={"BENCH_PREFETCH": "1"}),
    )
    packages = ("celery", "kombu", "redis", "gevent")
    config = (
        "Redis broker, no result backend; 2 solo workers without gossip, mingle and heartbeat, prefetch 128; sleepers: "
        "gevent, 2 x 250"
    )

    def enqueue(self, job: Job) -> None:
        work.delay(job.kind, job.number)

    def enqueue_steps(self, number: int) -> None:
        steps = [
            work.si("last" if step == 3 else "step", number).set(queue=f"step{step}") for step in range(len(LIMITS))
        ]
        chain(steps).apply_async()


system = CelerySystem()
