"""Children of a prefork worker that end before their task does; and workers that do, with all their children."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from celery import uuid

from fairlead.celery import LoadBalancer
from tests.balancing.site import release
from tests.balancing.workers import Worker, until, until_everything_is_done, until_loads_are, worker

PREFORK = ("-P", "prefork", "-c", "2")
RECONCILING = {"reconcile_every": 0.5, "worker_ttl": 2.0}


@pytest.fixture
def one(balancer: LoadBalancer, url: str) -> Iterator[Worker]:
    """A worker that reconciles nothing."""
    with worker(balancer, url, *PREFORK) as one:
        yield one


def test_a_killed_child_leaves_nothing_behind(balancer: LoadBalancer, one: Worker, broker: redis.Redis) -> None:
    app = balancer.app
    app.tasks["die"].delay()
    app.tasks["die_once"].delay(uuid())  # comes back, and succeeds
    until(lambda: one.log.count("WorkerLostError") >= 2, "both were lost")
    until_everything_is_done(balancer, broker)


def test_a_task_over_its_time_limit_leaves_nothing_behind(
    balancer: LoadBalancer, one: Worker, broker: redis.Redis
) -> None:
    balancer.app.tasks["overrun"].delay()
    balancer.app.tasks["overrun"].apply_async(retries=1)  # whose ticket is not its id
    until_loads_are(balancer, 0, 2)
    until_everything_is_done(balancer, broker)


def test_a_terminated_task_leaves_nothing_behind(balancer: LoadBalancer, one: Worker, broker: redis.Redis) -> None:
    held = balancer.app.tasks["hold"].delay("never")
    until_loads_are(balancer, 0, 1)
    balancer.app.control.revoke(held.id, terminate=True, signal="SIGKILL")
    until_everything_is_done(balancer, broker)


def test_what_a_killed_worker_ran_is_repaired_by_another(balancer: LoadBalancer, url: str, broker: redis.Redis) -> None:
    app = balancer.app
    with worker(balancer, url, *PREFORK, **RECONCILING) as lost:
        app.tasks["hold"].delay("lost")  # acknowledged at its start: nobody runs it again
        app.tasks["hold_late"].delay("lost")  # delivered again once its visibility timeout is over
        until_loads_are(balancer, 0, 2)
        lost.kill()
    with worker(balancer, url, *PREFORK, **RECONCILING) as other:
        until_loads_are(balancer, 1, 0)
        until(lambda: "1 lost running" in other.log and "1 returned" in other.log, "it says what it repaired")
        release(broker, "lost")
        until_everything_is_done(balancer, broker)
    assert balancer.repairs().keys() >= {"lost_running", "returned"}


def test_a_worker_that_is_told_to_stop_says_so(balancer: LoadBalancer, one: Worker) -> None:
    assert [known.name for known in balancer.workers()] == [one.name]
    one.stop()
    assert balancer.workers() == []
