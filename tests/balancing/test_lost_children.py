"""Children of a prefork worker that die before their task ends, and workers that die with all their children."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis
from celery import uuid

from fairlead.celery import LoadBalancer
from tests.balancing.site import VISIBILITY_VARIABLE, release
from tests.balancing.workers import Worker, until, until_everything_is_done, until_loads_are, worker

PREFORK = ("-P", "prefork", "-c", "2")
RECONCILING = {"reconcile_every": 0.5, "worker_ttl": 2.0}


@pytest.fixture
def one(balancer: LoadBalancer, url: str) -> Iterator[Worker]:
    """A worker that does not reconcile."""
    with worker(balancer, url, *PREFORK) as one:
        yield one


def test_a_killed_child_leaves_no_count(balancer: LoadBalancer, one: Worker, broker: redis.Redis) -> None:
    app = balancer.app
    app.tasks["die"].delay()
    app.tasks["die_once"].delay(uuid())  # is delivered again, and succeeds
    until(lambda: one.log.count("WorkerLostError") >= 2, "both were lost")
    until_everything_is_done(balancer, broker)


def test_a_task_over_its_time_limit_leaves_no_count(balancer: LoadBalancer, one: Worker, broker: redis.Redis) -> None:
    balancer.app.tasks["overrun"].delay()
    balancer.app.tasks["overrun"].apply_async(retries=1)  # its attempt id differs from its task id
    until_loads_are(balancer, 0, 2)
    until_everything_is_done(balancer, broker)


def test_a_terminated_task_leaves_no_count(balancer: LoadBalancer, one: Worker, broker: redis.Redis) -> None:
    held = balancer.app.tasks["hold"].delay("never")
    until_loads_are(balancer, 0, 1)
    balancer.app.control.revoke(held.id, terminate=True, signal="SIGKILL")
    until_everything_is_done(balancer, broker)


@pytest.fixture
def lost(balancer: LoadBalancer, url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a worker that was killed while it ran two tasks: one acknowledged at its start, one not yet."""
    monkeypatch.setenv(VISIBILITY_VARIABLE, "3600")
    with worker(balancer, url, *PREFORK, **RECONCILING) as lost:
        balancer.app.tasks["hold"].delay("lost")
        balancer.app.tasks["hold_late"].delay("lost")
        until_loads_are(balancer, 0, 2)
        lost.kill()
    return lost.name


def test_the_tasks_of_a_killed_worker_are_repaired_by_another(balancer: LoadBalancer, lost: str, url: str) -> None:
    with worker(balancer, url, *PREFORK, **RECONCILING) as other:
        until_loads_are(balancer, 1, 0)  # one will be delivered again, the other is lost
        until(lambda: "1 lost running" in other.log and "1 returned" in other.log, "it says what it repaired")
    assert balancer.repairs().keys() >= {"lost_running", "returned"}
    assert lost not in {each.name for each in balancer.workers()}


def test_a_redelivered_task_ends_as_usual(
    balancer: LoadBalancer, lost: str, url: str, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBILITY_VARIABLE, "1")
    # A worker looks for overdue messages when it starts, and then every hundred seconds.
    until(lambda: broker.zcount("unacked_index", time.time() - 1, "+inf") == 0, "it is overdue")
    release(broker, "lost")
    with worker(balancer, url, *PREFORK, **RECONCILING):
        until_everything_is_done(balancer, broker)


def test_a_stopping_worker_deregisters(balancer: LoadBalancer, one: Worker) -> None:
    assert [known.name for known in balancer.workers()] == [one.name]
    one.stop()
    assert balancer.workers() == []
