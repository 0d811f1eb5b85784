"""A Django project with the usual layout, its worker and its views in processes of their own: balanced by one line."""

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
pytestmark = pytest.mark.timeout(300)  # a worker takes a while to start on a busy machine


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
    """Speaks to the worker."""
    with closed(Celery("asking", broker=server.url, set_as_current=False)) as app:
        yield app


@pytest.fixture(scope="module")
def worker(server: redis_servers.Server, asking: Any) -> Iterator[CeleryWorker]:
    """`celery -A shop worker`: it takes from all queues that the app declares; and from the one of the route."""
    with CeleryWorker("shop", asking, concurrency=2, folder=SITE, SHOP_REDIS_URL=server.url) as worker:
        asking.control.add_consumer("reports", destination=[worker.name], reply=True)
        yield worker


def in_django(server: redis_servers.Server, function: str) -> Any:
    """What `manage.py shell -c` prints."""
    path = os.pathsep.join([str(SITE), str(ROOT / "src")])
    ended = subprocess.run(
        [sys.executable, "manage.py", "shell", "--no-imports", "-c", f"from images import views; views.{function}()"],
        cwd=SITE, env={**os.environ, "PYTHONPATH": path, "SHOP_REDIS_URL": server.url},
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_the_worker_consumes_what_the_settings_and_the_balancer_declare(worker: CeleryWorker, asking: Any) -> None:
    consumed = asking.control.inspect(destination=[worker.name], timeout=10).active_queues()
    names = {queue["name"] for queue in consumed[worker.name]}
    assert names >= OURS | {"celery"}


def test_calls_groups_and_chords_of_a_view_are_balanced_and_routed_ones_left_alone(
    server: redis_servers.Server, worker: CeleryWorker
) -> None:
    said = in_django(server, "everything_shown")
    assert set(said["singles"]) <= OURS
    assert set(said["chord"]) <= OURS
    assert said["routed"] == "reports"
    assert set(said["group"]) == {f"queue_{n}" for n in hand_of_user("7", 5, DEFAULT_SHUFFLE_SIZE)}, "spread over hers"


def test_all_is_counted_down_again(server: redis_servers.Server, worker: CeleryWorker) -> None:
    in_django(server, "everything_shown")
    deadline = time.monotonic() + PATIENCE
    while any(map(sum, in_django(server, "loads").values())):
        assert time.monotonic() < deadline, in_django(server, "loads")
