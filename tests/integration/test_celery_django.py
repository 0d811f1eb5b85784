"""A Django project with the usual layout, its worker and its views in separate processes: balanced by one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from fairlead.celery.strategies import DEFAULT_SHUFFLE_SIZE, hand_of_user
from tests import redis_servers
from tests.celery_workers import ROOT, CeleryWorker, closed, let_go

SITE = Path(__file__).parent / "django_site"
OURS = {f"queue_{n}" for n in range(5)}
PATIENCE = 60.0
pytestmark = pytest.mark.timeout(300)  # a worker starts slowly on a busy machine


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    yield
    let_go()


@pytest.fixture(scope="module")
def server() -> Iterator[redis_servers.Server]:
    own = redis_servers.Server().start()
    yield own
    own.kill()


@pytest.fixture(scope="module")
def asking(server: redis_servers.Server) -> Iterator[Any]:
    """A Celery app that is connected to the worker."""
    with closed(Celery("asking", broker=server.url, set_as_current=False)) as app:
        yield app


@pytest.fixture(scope="module")
def worker(server: redis_servers.Server, asking: Any) -> Iterator[CeleryWorker]:
    """`celery -A shop worker`: it consumes all queues that the app declares, and the one of the route."""
    with CeleryWorker("shop", asking, concurrency=2, folder=SITE, SHOP_REDIS_URL=server.url) as worker:
        asking.control.add_consumer("reports", destination=[worker.name], reply=True)
        yield worker


def in_django(server: redis_servers.Server, function: str) -> Any:
    """The output of `manage.py shell -c`."""
    path = os.pathsep.join([str(SITE), str(ROOT / "src")])
    ended = subprocess.run(
        [sys.executable, "manage.py", "shell", "--no-imports", "-c", f"from images import views; views.{function}()"],
        cwd=SITE, env={**os.environ, "PYTHONPATH": path, "SHOP_REDIS_URL": server.url},
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_the_worker_consumes_the_queues_of_the_settings_and_the_balancer(worker: CeleryWorker, asking: Any) -> None:
    consumed = asking.control.inspect(destination=[worker.name], timeout=10).active_queues()
    names = {queue["name"] for queue in consumed[worker.name]}
    assert names >= OURS | {"celery"}


def test_calls_groups_and_chords_of_a_view_are_balanced_and_routed_ones_are_not(
    server: redis_servers.Server, worker: CeleryWorker
) -> None:
    queues = in_django(server, "everything_shown")
    assert set(queues["singles"]) <= OURS
    assert set(queues["chord"]) <= OURS
    assert queues["routed"] == "reports"
    assert set(queues["group"]) == {f"queue_{n}" for n in hand_of_user("7", 5, DEFAULT_SHUFFLE_SIZE)}, (
        "spread over the hand of this user"
    )


def test_all_counters_return_to_zero(server: redis_servers.Server, worker: CeleryWorker) -> None:
    in_django(server, "everything_shown")
    deadline = time.monotonic() + PATIENCE
    while any(map(sum, in_django(server, "loads").values())):
        assert time.monotonic() < deadline, in_django(server, "loads")
