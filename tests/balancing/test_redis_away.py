"""The Redis with the counters is lost while workers run: tasks continue, and the counters are right again
afterwards."""

from __future__ import annotations

import threading
from typing import Any

import redis

from fairlead.celery import LoadBalancer
from fairlead.errors import Unavailable
from tests import redis_servers
from tests.balancing.site import DEFAULTS, release
from tests.balancing.workers import loads, messages, until, until_loads_are, worker


def test_workers_continue_without_redis_and_count_again_when_it_is_back(
    app: Any, url: str, broker: redis.Redis
) -> None:
    counts = redis_servers.Server().start()
    settings = {"redis_url": counts.url, "reconcile_every": 0.5, "worker_ttl": 2.0}
    balancer = LoadBalancer(app, **{**DEFAULTS, **settings})
    noop, hold = app.tasks["noop"], app.tasks["hold"]
    with worker(balancer, url, "-P", "prefork", "-c", "2", **settings):
        hold.delay("over the outage")
        until_loads_are(balancer, 0, 1)
        counts.kill()
        for _ in range(10):
            noop.delay()
        until(lambda: messages(balancer, broker) == 0, "tasks are run")
        counts.start()  # it has lost all data
        until(lambda: _loads(balancer) == (0, 1), "the task that still runs is found")
        hold.delay("after the outage")
        until_loads_are(balancer, 0, 2)
        release(broker, "over the outage")
        release(broker, "after the outage")
        until_loads_are(balancer, 0, 0)
    balancer.close()
    counts.kill()


def _loads(balancer: LoadBalancer) -> tuple[int, int] | None:
    try:
        return loads(balancer)
    except Unavailable:
        return None


def test_many_threads_share_a_balancer(app: Any, balancer: LoadBalancer, broker: redis.Redis) -> None:
    def produce() -> None:
        for _ in range(50):
            app.tasks["noop"].delay()

    threads = [threading.Thread(target=produce) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [broker.llen(name) for name in balancer.queue_names] == [100] * 4
    assert [load.pending for load in balancer.get_all_queue_loads().values()] == [100] * 4
