"""`fairlead celery`, as an operator runs it."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
import redis

from fairlead.celery import LoadBalancer
from fairlead.cli.failure import Exit
from tests.integration.cli_process import COMMAND, Done, fairlead, started

PROJECT = """
from fairlead.celery import LoadBalancer
from tests.balancing.site import DEFAULTS, make_app

app = make_app({url!r})
LoadBalancer(app, **{{**DEFAULTS, 'worker_ttl': 600.0}})
"""
APP = ("-A", "proj")


@pytest.fixture
def project(url: str, tmp_path: Path) -> Path:
    """A folder with a Celery app."""
    (tmp_path / "proj.py").write_text(PROJECT.format(url=url))
    return tmp_path


def run(project: Path, *arguments: str) -> Done:
    return fairlead("celery", *arguments, *APP, cwd=project)


def test_loads_of_all_queues(balancer: LoadBalancer, project: Path) -> None:
    for _ in range(5):
        balancer.app.tasks["noop"].delay()
    shown = run(project, "loads")
    assert shown.code == Exit.OK
    assert [line.split() for line in shown.out.splitlines()] == [
        ["QUEUE", "PENDING", "RUNNING", "LOAD", "WORKERS"],
        ["queue_0", "2", "0", "2", "0"],
        ["queue_1", "1", "0", "1", "0"],
        ["queue_2", "1", "0", "1", "0"],
        ["queue_3", "1", "0", "1", "0"],
        ["all", "5", "0", "5", "0"],
    ]
    assert "no worker has sent a heartbeat" in shown.err
    as_json = run(project, "loads", "--json")
    assert json.loads(as_json.out)["queue_0"] == {"pending": 2, "running": 0, "workers": 0}


def test_watch_prints_repeatedly(balancer: LoadBalancer, project: Path) -> None:
    with started((*COMMAND, "celery", "loads", "--watch", "--json", *APP), cwd=project) as watching:
        assert json.loads(watching.wait_for("queue_0"))["queue_0"] == {"pending": 0, "running": 0, "workers": 0}
        balancer.app.tasks["noop"].delay()
        while json.loads(watching.wait_for("queue_0"))["queue_0"]["pending"] != 1:
            pass


def test_reconcile_prints_its_repairs(balancer: LoadBalancer, broker: redis.Redis, project: Path) -> None:
    broker.set("queue:queue_1:pending", 3)
    done = run(project, "reconcile")
    assert done.out == "queue_1: pending was 3, is 0\n"
    assert "1 miscounted" in done.err
    again = run(project, "reconcile", "--json")
    assert json.loads(again.out) == {"repaired": {}, "tasks": [], "counters": []}


def test_metrics(balancer: LoadBalancer, project: Path, broker: redis.Redis) -> None:
    balancer.app.tasks["noop"].delay()
    balancer._counts.beat("w@test", [])
    with started((*COMMAND, "celery", "metrics", "--port", "0", "--json", *APP), cwd=project) as serving:
        url = json.loads(serving.wait_for("url"))["url"]
        metrics = urllib.request.urlopen(url, timeout=30).read().decode()
    assert 'fairlead_celery_pending{queue="queue_0"} 1.0' in metrics
    assert 'fairlead_celery_running{queue="queue_3"} 0.0' in metrics
    assert "fairlead_celery_workers 1.0" in metrics
    assert 'fairlead_celery_repairs_total{kind="lost_running"} 0.0' in metrics
    assert "fairlead_celery_up 1.0" in metrics


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("", "No module named"),
        ("from celery import Celery\napp = Celery()", "has no LoadBalancer"),
        ("nothing = 1", "proj"),
    ],
)
def test_an_app_without_a_balancer_is_refused(module: str, message: str, tmp_path: Path) -> None:
    if module:
        (tmp_path / "proj.py").write_text(module)
    done = fairlead("celery", "loads", "-A", "proj", cwd=tmp_path)
    assert done.code == Exit.USAGE
    assert message in done.err


@pytest.mark.parametrize("command", ["loads", "reconcile"])
def test_an_unreachable_redis_is_reported(command: str, tmp_path: Path) -> None:
    (tmp_path / "proj.py").write_text(PROJECT.format(url="redis://127.0.0.1:9/0"))
    done = run(tmp_path, command)
    assert done.code == Exit.REFUSED
    assert "Redis is unavailable" in done.err
