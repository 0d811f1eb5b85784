"""Signals that real workers rarely send, sent here by hand, and signal handlers of the app itself."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from celery import signals
from celery.app.task import Context

from fairlead.celery import LoadBalancer
from tests.balancing.site import HANDLERS_VARIABLE, release
from tests.balancing.workers import until_everything_is_done, until_loads_are, worker

Q = "queue_0"
REQUEST = {"id": "a", "retries": 1, "delivery_info": {"exchange": "", "routing_key": Q}}


class Consumer:
    def __init__(self, app: Any) -> None:
        self.app = app


class Request:
    """A request as the worker has it for a message."""

    id = "a"
    request_dict = REQUEST


@pytest.fixture
def task(app: Any, balancer: LoadBalancer) -> Any:
    balancer._counts.place("running", [(Q, "a#1")])
    return app.tasks["noop"]


def test_a_failure_without_a_request_counts_for_the_received_one(task: Any, balancer: LoadBalancer) -> None:
    request = Request()
    signals.task_received.send(sender=Consumer(balancer.app), request=request)
    signals.task_failure.send(sender=task, task_id="a")
    assert balancer.get_queue_load(Q) == (0, 0)


def test_a_task_stopped_because_its_worker_lost_the_broker_is_redelivered(task: Any, balancer: LoadBalancer) -> None:
    signals.task_retry.send(sender=task, request=Context(REQUEST), einfo=None)
    assert balancer.get_queue_load(Q) == (1, 0)


def test_a_repeated_end_counts_once(task: Any, balancer: LoadBalancer) -> None:
    balancer._counts.place("running", [(Q, "other")])
    for _ in range(3):
        signals.task_revoked.send(sender=task, request=Context(REQUEST), terminated=True, signum=9, expired=False)
        signals.task_retry.send(sender=task, request=Context(REQUEST), einfo="lost")
    assert balancer.get_queue_load(Q) == (0, 1)


def test_a_task_that_runs_eagerly_is_not_counted(task: Any, balancer: LoadBalancer) -> None:
    task.apply(routing_key=Q)
    assert balancer.get_queue_load(Q) == (0, 1)


@pytest.mark.parametrize("end", ["hold", "fail"])
def test_an_apps_own_counting_handlers_change_nothing(
    end: str, balancer: LoadBalancer, url: str, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HANDLERS_VARIABLE, "1")
    with worker(balancer, url, "-P", "threads", "-c", "2"):
        for _ in range(6):
            balancer.app.tasks["hold"].delay("counted")
        until_loads_are(balancer, 4, 2)
        if end == "fail":
            balancer.app.tasks["fail"].delay()
        release(broker, "counted", 6)
        until_everything_is_done(balancer, broker)
        assert not broker.hgetall("fairlead:celery:queue_:credits")
