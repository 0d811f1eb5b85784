"""Many processes publish at once, and nothing is consumed. `make soak` publishes 10,000 tasks."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import redis

from fairlead.celery import LoadBalancer
from tests.balancing.site import BALANCER_VARIABLE, BROKER_VARIABLE, release
from tests.balancing.workers import ROOT, until

PRODUCERS, QUEUES = 8, 20
EACH = int(os.environ.get("SOAK_TASKS", 1_600)) // PRODUCERS
GROUP = 100
PROGRAM = f"""
from celery import group
from tests.balancing.site import app, balancer, redis

client = redis.Redis.from_url(app.conf.broker_url, socket_timeout=None)
noop = app.tasks["noop"]
with app.connection_for_write():
    client.incr("test:ready")
    client.blpop("test:go")
for _ in range({EACH - GROUP}):
    noop.delay()
group(noop.s(i) for i in range({GROUP})).apply_async()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)  # on a busy machine
def test_tasks_of_eight_processes_are_spread_evenly(app: Any, url: str, broker: redis.Redis) -> None:
    balancer = LoadBalancer(app, queues=QUEUES)
    environment = {**os.environ, BROKER_VARIABLE: url, BALANCER_VARIABLE: f'{{"queues": {QUEUES}}}'}
    command = [sys.executable, "-c", PROGRAM]
    producers = [subprocess.Popen(command, cwd=ROOT, env=environment) for _ in range(PRODUCERS)]
    try:
        until(lambda: int(broker.get("test:ready") or 0) == PRODUCERS, "all are ready")
        release(broker, "go", PRODUCERS)
        assert [producer.wait(200) for producer in producers] == [0] * PRODUCERS
    finally:
        for producer in producers:
            producer.kill()
            producer.wait()
    lengths = [broker.llen(name) for name in balancer.queue_names]
    assert sum(lengths) == PRODUCERS * EACH
    assert max(lengths) - min(lengths) <= 1
    assert [load.pending for load in balancer.get_all_queue_loads().values()] == lengths
    balancer.close()
