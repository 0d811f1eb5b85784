"""Signals that real workers seldom send: as Celery sends them, but by hand."""

from __future__ import annotations

from typing import Any

import pytest
from celery import signals
from celery.app.task import Context

from fairlead.celery import LoadBalancer

Q = "queue_0"
REQUEST = {"id": "a", "retries": 1, "delivery_info": {"exchange": "", "routing_key": Q}}


class Consumer:
    def __init__(self, app: Any) -> None:
        self.app = app


class Request:
    """As a worker has it for a message."""

    id = "a"
    request_dict = REQUEST


@pytest.fixture
def task(app: Any, balancer: LoadBalancer) -> Any:
    balancer._ledger.place("running", [(Q, "a#1")])
    return app.tasks["noop"]


def test_a_failure_that_names_no_request_is_one_of_what_was_received(task: Any, balancer: LoadBalancer) -> None:
    request = Request()
    signals.task_received.send(sender=Consumer(balancer.app), request=request)
    signals.task_failure.send(sender=task, task_id="a")
    assert balancer.get_queue_load(Q) == (0, 0)


def test_what_is_stopped_because_its_worker_lost_the_broker_comes_back(task: Any, balancer: LoadBalancer) -> None:
    signals.task_retry.send(sender=task, request=Context(REQUEST), einfo=None)
    assert balancer.get_queue_load(Q) == (1, 0)


def test_an_end_that_is_told_again_and_again_counts_once(task: Any, balancer: LoadBalancer) -> None:
    balancer._ledger.place("running", [(Q, "other")])
    for _ in range(3):
        signals.task_revoked.send(sender=task, request=Context(REQUEST), terminated=True, signum=9, expired=False)
        signals.task_retry.send(sender=task, request=Context(REQUEST), einfo="lost")
    assert balancer.get_queue_load(Q) == (0, 1)


def test_a_task_that_runs_eagerly_is_not_counted(task: Any, balancer: LoadBalancer) -> None:
    task.apply(routing_key=Q)
    assert balancer.get_queue_load(Q) == (0, 1)
