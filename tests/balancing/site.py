"""A Celery app with several tasks and a load balancer, for tests and for the workers that they start.

`FAIRLEAD_TEST_BROKER` is the URL of its broker, `FAIRLEAD_TEST_BALANCER` the arguments of its balancer as JSON, and
`FAIRLEAD_TEST_VISIBILITY` the seconds after which an unacknowledged message is delivered again. With
`FAIRLEAD_TEST_HANDLERS`, signal handlers of its own count the tasks too.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import redis
from billiard import current_process
from celery import Celery, Task, group, signals
from celery.exceptions import Ignore, Reject

from fairlead.celery import LoadBalancer, decrement_pending, decrement_running, increment_running

BROKER_VARIABLE = "FAIRLEAD_TEST_BROKER"
BALANCER_VARIABLE = "FAIRLEAD_TEST_BALANCER"
VISIBILITY_VARIABLE = "FAIRLEAD_TEST_VISIBILITY"
HANDLERS_VARIABLE = "FAIRLEAD_TEST_HANDLERS"
DEFAULTS = {"queues": 4, "worker_ttl": 2.0, "reconcile_every": 0.0}


def make_app(url: str, **settings: Any) -> Any:
    app = Celery("site", broker=url, backend=url if url.startswith("redis:") else None, set_as_current=False)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            "visibility_timeout": float(os.environ.get(VISIBILITY_VARIABLE, "5")),
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            # A worker that is killed while it restores messages keeps all others from restoring until this expires.
            "unacked_mutex_expire": 5,
        },
        task_ignore_result=True,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        **settings,
    )
    # Tasks block on these keys until the test releases them.
    client = redis.Redis.from_url(url if url.startswith("redis:") else "redis://", socket_timeout=None)

    @app.task(name="noop", shared=False)
    def noop(*_: Any, user_id: str | None = None) -> None:
        pass

    @app.task(name="noop_late", shared=False, acks_late=True)
    def noop_late(*_: Any) -> None:
        pass

    @app.task(name="fail", shared=False)
    def fail() -> None:
        raise ValueError("as it should")

    @app.task(name="flaky", shared=False, bind=True, max_retries=5)
    def flaky(self: Task, times: int) -> None:
        if self.request.retries < times:
            raise self.retry(countdown=0)

    @app.task(name="ignore", shared=False)
    def ignore() -> None:
        raise Ignore

    @app.task(name="reject", shared=False, acks_late=True)
    def reject() -> None:
        raise Reject("no", requeue=False)

    @app.task(name="put_back_once", shared=False, acks_late=True)
    def put_back_once(mark: str) -> None:
        if client.set(f"test:{mark}", 1, nx=True):
            raise Reject("not now", requeue=True)

    @app.task(name="replace", shared=False, bind=True)
    def replace(self: Task) -> None:
        raise self.replace(noop.s())

    @app.task(name="die", shared=False)
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @app.task(name="die_once", shared=False, acks_late=True, reject_on_worker_lost=True)
    def die_once(mark: str) -> None:
        if current_process().name == "MainProcess":
            raise Reject("the whole worker would die", requeue=True)
        if client.set(f"test:{mark}", 1, nx=True):
            os.kill(os.getpid(), signal.SIGKILL)

    @app.task(name="overrun", shared=False, time_limit=1)
    def overrun() -> None:
        time.sleep(60)

    @app.task(name="fan_out", shared=False)
    def fan_out(count: int) -> None:
        group(noop.s(i) for i in range(count)).apply_async()

    _add_recording_tasks(app, client)
    return app


def _add_recording_tasks(app: Any, client: redis.Redis) -> None:
    """Tasks that tests follow through Redis."""

    @app.task(name="relay", shared=False, bind=True)
    def relay(self: Task, name: str, user_id: str | None = None, spread: int = 0) -> None:
        """Record the queue, and send more."""
        client.rpush("test:relayed", f"{name} {self.request.delivery_info['routing_key']}")
        group(relay.si("part") for _ in range(spread)).apply_async()

    @app.task(name="hold", shared=False)
    def hold(mark: str) -> None:
        """Runs until the test releases it."""
        client.blpop([f"test:{mark}"], timeout=60)

    @app.task(name="hold_late", shared=False, acks_late=True)
    def hold_late(mark: str) -> None:
        client.blpop([f"test:{mark}"], timeout=60)


def release(client: redis.Redis, mark: str, count: int = 1) -> None:
    client.rpush(f"test:{mark}", *range(count))


def count_by_handlers() -> None:
    """Signal handlers as an app had them before its balancer."""

    def queue_of(task: Any) -> str:
        return str(task.request.delivery_info["routing_key"])

    def on_start(sender: Any, **_: Any) -> None:
        decrement_pending(queue_of(sender))
        increment_running(queue_of(sender))

    def on_end(sender: Any, **_: Any) -> None:
        decrement_running(queue_of(sender))

    signals.task_prerun.connect(on_start, weak=False)
    signals.task_postrun.connect(on_end, weak=False)
    signals.task_failure.connect(on_end, weak=False)


if BROKER_VARIABLE in os.environ:
    if HANDLERS_VARIABLE in os.environ:
        count_by_handlers()
    app = make_app(os.environ[BROKER_VARIABLE])
    balancer = LoadBalancer(app, **{**DEFAULTS, **json.loads(os.environ.get(BALANCER_VARIABLE, "{}"))})
