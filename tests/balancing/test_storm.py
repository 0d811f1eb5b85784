"""Many tasks of every kind on several workers, one of which is killed. The counters stay right throughout.

`make soak` runs it with 10,000 tasks.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import redis
from celery import group, uuid

from fairlead.celery import LoadBalancer
from tests.balancing.site import VISIBILITY_VARIABLE, release
from tests.balancing.workers import Worker, until, until_everything_is_done, until_loads_are, worker

TASKS = int(os.environ.get("SOAK_TASKS", 600))
PRODUCERS = 2
GROUP = 10
SLOTS = 4
WORKERS = 3
SETTINGS = {"queues": 20, "reconcile_every": 1.0, "worker_ttl": 5.0}
# The states of a task that the counters and the broker may see differently: in a producer between its reservation and
# its publish, in a slot between its start, its end and its acknowledgement, and in a worker between the queue and the
# unacknowledged messages.
IN_FLIGHT = PRODUCERS * GROUP + WORKERS * (2 * SLOTS + 1)


def calls(app: Any) -> dict[str, tuple[int, Callable[[], Any]]]:
    """Each kind of call with its frequency in percent."""
    tasks = app.tasks
    return {
        "noop": (40, lambda: tasks["noop"].delay()),
        "late": (20, lambda: tasks["noop_late"].delay()),
        "fails": (10, lambda: tasks["fail"].delay()),
        "retried": (10, lambda: tasks["flaky"].delay(2)),
        "revoked": (5, lambda: app.control.revoke(tasks["noop"].delay().id)),
        "put back": (4, lambda: tasks["put_back_once"].delay(uuid())),
        "ignored": (3, lambda: tasks["ignore"].delay()),
        "rejected": (3, lambda: tasks["reject"].delay()),
        "expired": (3, lambda: tasks["noop"].apply_async(expires=0.001)),
        "later": (2, lambda: tasks["noop"].apply_async(countdown=0.2)),
    }


def produce(app: Any, count: int, seed: int) -> None:
    dice, kinds = random.Random(seed), calls(app)
    noop = app.tasks["noop"]
    for number in range(count // GROUP):
        if number % 10 == 0:
            group(noop.s(i) for i in range(GROUP)).apply_async()
            continue
        if number % 50 == 25:
            app.tasks["die_once"].delay(uuid())
        for kind in dice.choices(list(kinds), [share for share, _ in kinds.values()], k=GROUP):
            kinds[kind][1]()


def differences(balancer: LoadBalancer, broker: redis.Redis) -> int:
    """Between the counters and the broker, at one moment."""
    with broker.pipeline(transaction=True) as pipeline:
        for name in balancer.queue_names:
            pipeline.mget(f"queue:{name}:pending", f"queue:{name}:running")
            pipeline.llen(name)
        pipeline.hlen("unacked")
        *answers, unacknowledged = pipeline.execute()
    counted = sum(int(value or 0) for pair in answers[::2] for value in pair)
    return counted - sum(answers[1::2]) - unacknowledged


@contextmanager
def sampled(balancer: LoadBalancer, broker: redis.Redis) -> Iterator[list[int]]:
    """The differences, sampled until the end."""
    over, found = threading.Event(), [0]

    def sample() -> None:
        while not over.wait(0.1):
            found.append(differences(balancer, broker))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.timeout(300)  # on a busy machine
def test_counters_hold_under_load_and_return_to_zero(
    app: Any, url: str, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBILITY_VARIABLE, "10")
    balancer = LoadBalancer(app, **SETTINGS)

    def start(pool: str) -> Worker:
        return stack.enter_context(worker(balancer, url, "-P", pool, "-c", str(SLOTS), **SETTINGS))

    with ExitStack() as stack:
        doomed = start("prefork")
        for name in ("hold", "hold_late") * (SLOTS // 2):
            app.tasks[name].delay("doomed")
        until_loads_are(balancer, 0, SLOTS)
        others = [start("prefork"), start("threads")]
        samples = stack.enter_context(sampled(balancer, broker))
        producers = [threading.Thread(target=produce, args=(app, TASKS // PRODUCERS, n)) for n in range(PRODUCERS)]
        for producer in producers:
            producer.start()
        until(lambda: len(samples) > 5, "the storm is on")
        doomed.kill()
        release(broker, "doomed", SLOTS)
        for producer in producers:
            producer.join()
        until_everything_is_done(balancer, broker)
        until(lambda: "lost_running" in balancer.repairs(), "what the killed worker ran is reported")
        assert "WorkerLostError" in others[0].log
    assert max(map(abs, samples)) <= IN_FLIGHT
    balancer.close()
