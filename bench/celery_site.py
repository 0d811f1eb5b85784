"""The Celery app of `bench.celery_balance`, for the worker that it starts. The environment has its Redis URL and
its strategy."""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery

from fairlead.celery import LoadBalancer

BROKER, WAY = "BENCH_BROKER", "BENCH_WAY"
SINGLE = "one queue"
ONCE = "the least loaded queue, chosen once for the whole group"
SINGLY = "the same, for 1,000 single calls: chosen for each"
PLAIN = "`LoadBalancer(app)` and nothing else: the user is detected"
QUEUES = 20
STARTED = "bench:started"


def make(url: str, way: str) -> tuple[Any, LoadBalancer | None]:
    """An app whose tasks go to a single queue, to queues chosen by the caller, or by one of our strategies."""
    app = Celery("bench", broker=url, set_as_current=False)
    app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=1, broker_connection_retry_on_startup=True)
    client = redis.Redis.from_url(url)

    @app.task(name="bench.work", shared=False)
    def work(user_id: str, seconds: float) -> None:
        client.rpush(STARTED, f"{user_id} {time.time()}")
        time.sleep(seconds)

    if way == SINGLE:
        return app, None
    if way == PLAIN:
        return app, LoadBalancer(app)
    strategy: Any = "least_loaded" if way in (ONCE, SINGLY) else way
    return app, LoadBalancer(app, queues=QUEUES, strategy=strategy, user_of="user_id")


if BROKER in os.environ:
    app, balancer = make(os.environ[BROKER], os.environ[WAY])
