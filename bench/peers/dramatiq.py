"""Dramatiq on Redis, without results, with its defaults."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench import handlers
from bench.system_port import Job, System, Uses, Workers, redis_url, script

broker = RedisBroker(url=redis_url())
dramatiq.set_broker(broker)
work = dramatiq.actor(handlers.run, actor_name="work")

WORKER = f"{script('dramatiq')} bench.peers.dramatiq"


class DramatiqSystem(System):
    left = ("HLEN dramatiq:default.msgs",)
    workers = Uses(
        fast=Workers(f"{WORKER} -p 2 -t 1", env={"dramatiq_queue_prefetch": "64"}),
        sleep=Workers(f"{WORKER} -p 2 -t 250"),
        narrow=Workers(f"{WORKER} -p 2 -t 2"),
        default=Workers(f"{WORKER} -p 1"),
    )
    packages = ("dramatiq", "redis")
    config = "Redis broker, no results; 2 processes of 1 thread, prefetch 64; sleepers: 2 x 250 threads"

    def enqueue(self, job: Job) -> None:
        work.send(job.kind, job.number)


system = DramatiqSystem()
