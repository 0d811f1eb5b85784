"""Real workers and every outcome of a task: the signals alone bring every counter back to zero."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from celery import chord, uuid

from fairlead.celery import LoadBalancer
from tests.balancing.site import DEFAULTS, make_app, release
from tests.balancing.workers import Worker, loads, until_everything_is_done, until_loads_are, worker

SLOTS = 2
POOLS = {pool: ("-P", pool, "-c", str(SLOTS)) for pool in ("prefork", "threads")}


@pytest.fixture(scope="module", params=POOLS)
def site(request: pytest.FixtureRequest, broker_server: Any) -> Iterator[tuple[LoadBalancer, Worker]]:
    """One worker for all tests of a kind; it does not reconcile."""
    broker_server.client.flushall()
    with make_app(broker_server.url) as app:
        balancer = LoadBalancer(app, **DEFAULTS)
        with worker(balancer, broker_server.url, *POOLS[request.param]) as one:
            yield balancer, one
        balancer.close()


@pytest.fixture
def client(broker_server: Any) -> redis.Redis:
    client: redis.Redis = broker_server.client
    return client


ENDS: dict[str, Callable[[Any], Any]] = {
    "succeeds": lambda app: app.tasks["noop"].delay(),
    "succeeds, acknowledged late": lambda app: app.tasks["noop_late"].delay(),
    "fails": lambda app: app.tasks["fail"].delay(),
    "is retried": lambda app: app.tasks["flaky"].delay(2),
    "fails for good after retries": lambda app: app.tasks["flaky"].delay(9),
    "is ignored": lambda app: app.tasks["ignore"].delay(),
    "is rejected": lambda app: app.tasks["reject"].delay(),
    "is rejected and comes back": lambda app: app.tasks["put_back_once"].delay(uuid()),
    "is replaced": lambda app: app.tasks["replace"].delay(),
    "sends a group": lambda app: app.tasks["fan_out"].delay(10),
    "is not known to the worker": lambda app: app.send_task("no.such.task"),
    "has expired": lambda app: app.tasks["noop"].apply_async(expires=datetime.now(UTC) - timedelta(seconds=1)),
    "waits for its moment": lambda app: app.tasks["noop"].apply_async(countdown=0.5),
    "is sent to a queue by name": lambda app: app.tasks["noop"].apply_async(queue="queue_3"),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_task_leaves_no_count_when_it(end: str, site: tuple[LoadBalancer, Worker], client: redis.Redis) -> None:
    balancer, _ = site
    ENDS[end](balancer.app)
    until_everything_is_done(balancer, client)
    assert loads(balancer) == (0, 0)


def test_a_running_task_is_counted_as_running(site: tuple[LoadBalancer, Worker], client: redis.Redis) -> None:
    balancer, _ = site
    for _ in range(6):
        balancer.app.tasks["hold"].delay("running")
    until_loads_are(balancer, 6 - SLOTS, SLOTS)
    release(client, "running", 6)
    until_everything_is_done(balancer, client)


def test_revoked_tasks_are_not_counted_once_a_worker_drops_them(
    site: tuple[LoadBalancer, Worker], client: redis.Redis
) -> None:
    balancer, _ = site
    app = balancer.app
    held = [app.tasks["hold"].delay("revoked") for _ in range(4)]
    until_loads_are(balancer, len(held) - SLOTS, SLOTS)
    waiting = [app.tasks["noop"].delay() for _ in range(3)]
    app.control.revoke([result.id for result in waiting])
    release(client, "revoked", len(held))
    until_everything_is_done(balancer, client)


def test_a_chord_is_counted_with_its_body(site: tuple[LoadBalancer, Worker], client: redis.Redis) -> None:
    balancer, _ = site
    noop = balancer.app.tasks["noop"]
    header = [noop.s(i).set(ignore_result=False) for i in range(5)]
    chord(header, noop.s().set(ignore_result=False)).apply_async().get(timeout=60)
    until_everything_is_done(balancer, client)
