"""Huey on Redis. It keeps results by default, so it keeps them here."""

from __future__ import annotations

from huey import RedisHuey

from bench import handlers
from bench.system_port import Job, System, Uses, Workers, redis_url, script

huey = RedisHuey("bench", url=redis_url())
work = huey.task(name="work")(handlers.run)

CONSUMER = f"{script('huey_consumer')} bench.peers.huey.huey -n -q"


class HueySystem(System):
    left = ("LLEN huey.redis.bench",)
    workers = Uses(
        fast=Workers(f"{CONSUMER} -w 4 -k process"),
        sleep=Workers(f"{script('python')} -m bench.peers.patched {CONSUMER} -w 250 -k greenlet", processes=2),
        narrow=Workers(f"{CONSUMER} -w 4 -k thread"),
        default=Workers(f"{script('huey_consumer')} bench.peers.huey.huey -q"),
    )
    packages = ("huey", "redis", "gevent")
    config = "RedisHuey; 4 processes, no periodic tasks; sleepers: 2 x 250 greenlets"

    def enqueue(self, job: Job) -> None:
        work(job.kind, job.number)


system = HueySystem()
