"""Balanced queues that no worker consumes are reported by the worker, the command line and the doctor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from fairlead import Config, Fairlead
from fairlead.celery import LoadBalancer
from fairlead.celery.consumption import in_words, unconsumed
from fairlead.celery.metrics import LoadCollector
from fairlead.celery.task_counts import CeleryWorker
from fairlead.config import Settings
from fairlead.observe import doctor
from fairlead.observe.doctor.finding import Finding, Severity
from tests.balancing.site import DEFAULTS
from tests.balancing.workers import Worker, until, worker
from tests.integration.cli_process import fairlead
from tests.integration.doctor_site import provokes

SETTINGS: dict[str, Any] = {**DEFAULTS, "worker_ttl": 600.0}
THREADS = ("-P", "threads", "-c", "1")
CODE = "celery-queue-unconsumed"


@pytest.fixture
def balancer(app: Any) -> Iterator[LoadBalancer]:
    balancer = LoadBalancer(app, **SETTINGS)
    yield balancer
    balancer.close()


@pytest.fixture
def partial(balancer: LoadBalancer, url: str) -> Iterator[Worker]:
    """A worker for one of four queues."""
    with worker(balancer, url, *THREADS, "-Q", "queue_0", **SETTINGS) as one:
        yield one


async def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[Finding]:
    monkeypatch.setattr(doctor, "SECOND_LOOK", 0.0)
    config = Config.model_validate(settings.pop("config", {}))
    app = Fairlead(Settings(config, f"sqlite:///{tmp_path}/fairlead.db", **settings))
    return [finding for finding in await app.doctor() if finding.code == CODE]


def test_the_worker_and_the_command_line_report_what_is_not_consumed(
    balancer: LoadBalancer, partial: Worker, url: str, tmp_path: Path
) -> None:
    partial.until_it_logs("this worker consumes 1 of 4 balanced queues")
    assert "no worker consumes queue_1 to queue_3" in partial.log
    assert "-Q queue_1,queue_2,queue_3" in partial.log
    assert balancer.unconsumed_queues() == ("queue_1", "queue_2", "queue_3")

    module = "from tests.balancing.site import make_app\nfrom fairlead.celery import LoadBalancer\n"
    (tmp_path / "proj.py").write_text(f"{module}app = make_app({url!r})\nLoadBalancer(app, **{SETTINGS!r})\n")
    shown = fairlead("celery", "loads", "-A", "proj", cwd=tmp_path)
    assert [line.split()[-1] for line in shown.out.splitlines()] == ["WORKERS", "1", "0", "0", "0", "1"]
    assert "no worker consumes queue_1 to queue_3: start workers without -Q" in shown.err

    samples = {tuple(each.labels.values()): each.value for metric in LoadCollector(balancer).collect()
               for each in metric.samples if each.name == "fairlead_celery_consumers"}  # fmt: skip
    assert samples == {("queue_0",): 1, ("queue_1",): 0, ("queue_2",): 0, ("queue_3",): 0}


def test_a_second_worker_and_remote_control_fill_the_gap(balancer: LoadBalancer, url: str) -> None:
    brief = {**SETTINGS, "worker_ttl": 5.0}
    with worker(balancer, url, *THREADS, "-Q", "queue_0", **brief) as first:
        with worker(balancer, url, *THREADS, "-Q", "queue_1,queue_2", **brief) as second:
            until(lambda: balancer.unconsumed_queues() == ("queue_3",), "the second worker reports its queues")
            second.until_it_logs("no worker consumes queue_3:")
            balancer.app.control.add_consumer("queue_3", destination=[first.name], reply=True)
            until(lambda: balancer.unconsumed_queues() == (), "the queue that was added is reported")
        until(lambda: balancer.unconsumed_queues() == ("queue_1", "queue_2"), "a worker that stops is not counted")


def test_a_reconcile_pass_reports_them_again_only_when_they_change(
    balancer: LoadBalancer, caplog: pytest.LogCaptureFixture
) -> None:
    balancer.reconcile()
    assert not caplog.records, "there is no worker at all"
    balancer._counts.beat("w@test", [], ["queue_0", "queue_2"])
    balancer.app.tasks["noop"].apply_async(queue="queue_3")
    for _ in range(2):
        balancer.reconcile()
    assert [record.getMessage() for record in caplog.records if "consumes" in record.getMessage()] == [
        "load balancing: no worker consumes queue_1, queue_3, where 1 tasks wait; "
        "start workers without -Q, or one more with -Q queue_1,queue_3"
    ]
    balancer._counts.beat("w@test", [])
    balancer.reconcile()
    balancer._counts.beat("w@test", [], ["queue_0"])
    balancer.reconcile()
    assert "no worker consumes queue_1 to queue_3" in caplog.text


@provokes(CODE)
async def test_the_doctor_finds_them_in_the_broker_and_in_its_own_redis(
    balancer: LoadBalancer, partial: Worker, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[dict[str, Any]] = [{"config": {"celery": {"broker_url": url}}}, {"redis_url": url}]
    for way in ways:
        (finding,) = await found(tmp_path, monkeypatch, **way)
        assert (finding.severity, finding.about) == (Severity.WARNING, "queue_0 to queue_3")
        assert "`celery -A APP worker -Q queue_1,queue_2,queue_3`" in finding.fix
    assert await found(tmp_path, monkeypatch) == []
    balancer.app.tasks["noop"].apply_async(queue="queue_3")
    (finding,) = await found(tmp_path, monkeypatch, config=ways[0]["config"], redis_url=url)
    assert (finding.severity, finding.evidence["waiting"]) == (Severity.ERROR, 1)


async def test_a_balancer_that_is_not_in_use_is_no_finding(
    balancer: LoadBalancer, broker: redis.Redis, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    balancer._counts.beat("w@test", [], ["queue_0"])
    balancer._counts.leave("w@test")
    assert await found(tmp_path, monkeypatch, redis_url=url) == []
    broker.hset("fairlead:celery:balancers", "queue_", "no JSON")
    assert await found(tmp_path, monkeypatch, redis_url=url) == []


def test_a_worker_of_an_earlier_release_counts_as_consuming_all() -> None:
    names = [f"queue_{index}" for index in range(12)]
    old, new = CeleryWorker("old", 1, frozenset()), CeleryWorker("new", 1, frozenset(), frozenset({"queue_3"}))
    assert unconsumed(names, [old, new]) == ()
    assert in_words("queue_", unconsumed(names, [new])) == "queue_0 to queue_2, queue_4 to queue_11"
    assert in_words("queue_", ["queue_0", "queue_3", "queue_11"]) == "queue_0, queue_3, queue_11"
