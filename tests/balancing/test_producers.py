"""Many processes publish at once, and nothing is consumed. `make soak` publishes 10,000 tasks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest
import redis

from fairlead.celery import LoadBalancer
from tests.balancing.site import BALANCER_VARIABLE, BROKER_VARIABLE, release
from tests.balancing.workers import ROOT, until

PRODUCERS, QUEUES = 8, 20
EACH = int(os.environ.get("SOAK_TASKS", 960)) // PRODUCERS
GROUP = 60
# The producers are forked from one process, since importing Celery takes longer than publishing.
PROGRAM = f"""
import os
import sys

from celery import group
from tests.balancing.site import app, balancer, redis

producers = []
for _ in range({PRODUCERS}):
    producers.append(os.fork())
    if not producers[-1]:
        break
else:
    sys.exit(any([os.waitpid(producer, 0)[1] for producer in producers]))

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
    producers = subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, start_new_session=True)
    try:
        until(lambda: int(broker.get("test:ready") or 0) == PRODUCERS, "all are ready")
        release(broker, "go", PRODUCERS)
        assert producers.wait(200) == 0
    finally:
        if producers.poll() is None:
            os.killpg(producers.pid, signal.SIGKILL)
            producers.wait()
    lengths = [broker.llen(name) for name in balancer.queue_names]
    assert sum(lengths) == PRODUCERS * EACH
    assert max(lengths) - min(lengths) <= 1
    assert [load.pending for load in balancer.get_all_queue_loads().values()] == lengths
    balancer.close()
