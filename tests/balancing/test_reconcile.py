"""What a reconcile pass finds, repairs and leaves alone. No worker runs: the tests write its records."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from fairlead.celery import LoadBalancer, reconcile
from tests.balancing.site import DEFAULTS, make_app

Q = "queue_0"
# A worker counts as lost, and a task as old enough to check, a microsecond after its last record.
AT_ONCE = {**DEFAULTS, "worker_ttl": 0.000001}


@pytest.fixture
def balancer(app: Any) -> Any:
    balancer = LoadBalancer(app, **AT_ONCE)
    yield balancer
    balancer.close()


@pytest.fixture
def noop(app: Any, balancer: LoadBalancer) -> Any:
    return app.tasks["noop"]


def take(broker: redis.Redis, queue: str = Q) -> str:
    """Receive a task as a worker does, without acknowledging it; returns the task's id."""
    raw = broker.rpop(queue)
    assert isinstance(raw, bytes)
    message = json.loads(raw)
    tag = message["properties"]["delivery_tag"]
    broker.hset("unacked", tag, json.dumps([message, "", queue]))
    return str(message["headers"]["id"])


def test_correct_counters_stay(noop: Any, balancer: LoadBalancer, broker: redis.Redis) -> None:
    for _ in range(5):
        noop.apply_async(queue=Q, priority=9)
    noop.delay()
    take(broker, "queue_1")
    assert not balancer.reconcile()
    assert balancer.get_queue_load(Q) == (5, 0)
    assert balancer.get_queue_load("queue_1") == (1, 0)


def test_a_message_that_is_gone_is_no_longer_pending(noop: Any, balancer: LoadBalancer, broker: redis.Redis) -> None:
    noop.apply_async(queue=Q, task_id="gone")
    noop.apply_async(queue=Q, task_id="here")
    broker.rpop(Q)
    done = balancer.reconcile()
    assert [(repair.ticket, repair.was, repair.now) for repair in done.repairs] == [("gone", "pending", "")]
    assert str(done) == "1 lost pending"
    assert balancer.get_queue_load(Q) == (1, 0)
    assert not balancer.reconcile()


def test_uncounted_messages_are_counted(noop: Any, balancer: LoadBalancer, broker: redis.Redis) -> None:
    for _ in range(3):
        noop.apply_async(queue=Q)
    take(broker)
    balancer.reset_queue_counters()
    assert balancer.reconcile().kinds == {"found_pending": 3}
    assert balancer.get_queue_load(Q) == (3, 0)


def test_the_tasks_of_a_lost_worker_are_lost_or_redelivered(
    noop: Any, balancer: LoadBalancer, broker: redis.Redis
) -> None:
    for _ in range(2):
        noop.apply_async(queue=Q)
    late, early = take(broker), take(broker)
    balancer._counts.place("running", [(Q, late), (Q, early)])
    broker.hdel("unacked", *[tag for tag, raw in broker.hgetall("unacked").items() if early in raw.decode()])
    assert balancer.reconcile().kinds == {"returned": 1, "lost_running": 1}
    assert balancer.get_queue_load(Q) == (1, 0)


@pytest.fixture
def patient(app: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A balancer whose workers are alive, and whose passes do not wait between their two looks."""
    balancer = LoadBalancer(app, **{**DEFAULTS, "worker_ttl": 60.0})
    monkeypatch.setattr(reconcile.time, "sleep", lambda _: None)
    yield balancer
    balancer.close()


def test_the_tasks_of_a_live_worker_are_running(patient: LoadBalancer, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = patient._counts
    running = [(Q, "its start was never reported"), (Q, "known")]
    counts.place("running", running[1:])
    counts.beat("w@test", running)
    monkeypatch.setattr(reconcile.time, "sleep", lambda _: counts.beat("w@test", running))
    assert patient.reconcile().kinds == {"found_running": 1}
    assert patient.get_queue_load(Q) == (0, 2)


def test_a_task_that_a_worker_no_longer_reports_may_have_ended(patient: LoadBalancer) -> None:
    patient._counts.beat("w@test", [(Q, "ended")])
    assert not patient.reconcile()
    assert patient.get_queue_load(Q) == (0, 0)


def test_a_task_that_moved_recently_is_left_alone(patient: LoadBalancer) -> None:
    patient._counts.place("running", [(Q, "young")])
    assert not patient.reconcile()
    assert patient.get_queue_load(Q) == (0, 1)


def test_a_task_that_moves_between_two_looks_is_left_alone(
    noop: Any, balancer: LoadBalancer, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    noop.apply_async(queue=Q, task_id="a")
    raw = broker.rpop(Q)

    def meanwhile(_: float) -> None:
        balancer._counts.place("pending", [(Q, "a")])

    monkeypatch.setattr(reconcile.time, "sleep", meanwhile)
    assert not balancer.reconcile()
    assert raw is not None
    assert balancer.get_queue_load(Q) == (1, 0)


def test_a_task_that_moves_after_both_looks_is_left_alone(balancer: LoadBalancer) -> None:
    balancer._counts.place("pending", [(Q, "a")])
    moved = balancer._counts.entries(Q)["a"].moved
    stale = reconcile.Repair(Q, "a", "pending", moved, "")
    balancer._counts.place("running", [(Q, "a")])
    assert balancer._counts.repair([stale, reconcile.Repair(Q, "a", "", 0, "pending")]) == []
    assert balancer.get_queue_load(Q) == (0, 1)


def test_overwritten_counters_are_repaired(noop: Any, balancer: LoadBalancer, broker: redis.Redis) -> None:
    noop.apply_async(queue=Q)
    broker.set("queue:queue_0:pending", 7)
    broker.set("queue:queue_1:running", -3)
    broker.set("queue:queue_2:running", "much")
    assert balancer.get_queue_load("queue_2") == (0, 0)
    done = balancer.reconcile()
    assert {(each.queue, each.state, each.now) for each in done.miscounts} == {
        ("queue_0", "pending", 1),
        ("queue_1", "running", 0),
        ("queue_2", "running", 0),
    }
    assert str(done) == "3 miscounted"
    assert broker.get("queue:queue_0:pending") == b"1"


def test_a_queue_that_is_too_long_is_read_only_if_its_length_is_wrong(
    noop: Any, balancer: LoadBalancer, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "DEEP", 10)
    for _ in range(20):
        noop.apply_async(queue=Q)
    monkeypatch.setattr(reconcile, "SLACK", 0.2)
    broker.rpop(Q)
    assert not balancer.reconcile()
    broker.rpop(Q, 9)
    assert balancer.reconcile().kinds == {"lost_pending": 10}


def test_more_messages_than_are_read_at_once(
    noop: Any, balancer: LoadBalancer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.celery.broker.PAGE", 3)
    for _ in range(10):
        noop.apply_async(queue=Q)
    assert not balancer.reconcile()


def test_keys_of_the_broker_with_a_prefix_are_found(url: str, broker: redis.Redis) -> None:
    with make_app(url) as app:
        app.conf.broker_transport_options = {"global_keyprefix": "mine:"}
        balancer = LoadBalancer(app, **AT_ONCE)
        app.tasks["noop"].delay()
        assert broker.llen("mine:queue_0") == 1
        assert not balancer.reconcile()
        balancer.close()


def test_messages_that_are_not_tasks_are_skipped(noop: Any, balancer: LoadBalancer, broker: redis.Redis) -> None:
    noop.apply_async(queue=Q)
    broker.lpush(Q, "no JSON", '{"headers": {}, "properties": {}}')
    assert not balancer.reconcile()
    assert balancer.get_queue_load(Q) == (1, 0)


def test_messages_of_protocol_1_are_read(url: str) -> None:
    with make_app(url, task_protocol=1) as app:
        balancer = LoadBalancer(app, **AT_ONCE)
        app.tasks["noop"].delay()
        assert not balancer.reconcile()
        assert balancer.get_queue_load(Q) == (1, 0)
        balancer.close()


def test_with_another_broker_pending_counts_are_trusted(url: str) -> None:
    with make_app("memory://") as app:
        balancer = LoadBalancer(app, **AT_ONCE, redis_url=url)
        app.tasks["noop"].delay()
        balancer._counts.place("running", [(Q, "of a lost worker")])
        assert balancer.reconcile().kinds == {"lost_running": 1}
        assert balancer.get_queue_load(Q) == (1, 0)
        balancer.close()


def test_repairs_are_listed_in_the_order_of_the_queues(app: Any, broker: redis.Redis) -> None:
    balancer = LoadBalancer(app, **{**AT_ONCE, "queues": 11})
    try:
        for queue in ("queue_10", "queue_2"):
            app.tasks["noop"].apply_async(queue=queue)
            broker.delete(queue)
        assert [repair.queue for repair in balancer.reconcile().repairs] == ["queue_2", "queue_10"]
    finally:
        balancer.close()


def test_everything_expires(noop: Any, balancer: LoadBalancer, broker: redis.Redis) -> None:
    noop.delay()
    balancer._counts.place("running", [(Q, "a")])
    balancer._counts.beat("w@test", [])
    balancer.increment_running(Q)
    ours = [key for pattern in ("queue:*", "fairlead*") for key in broker.scan_iter(pattern)]
    assert len(ours) >= 6
    assert [key for key in ours if broker.ttl(key) < 0] == []


def test_tasks_in_queues_that_are_no_longer_ours_are_reported(
    app: Any, balancer: LoadBalancer, broker: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    for index in (0, 1, 2, 3, 3):
        app.tasks["noop"].apply_async(queue=f"queue_{index}")
    fewer = LoadBalancer(app, **{**AT_ONCE, "queues": 2})
    try:
        fewer.reconcile()
        assert (
            "3 tasks are in queues that the balancer no longer has; run a worker with -Q queue_2,queue_3" in caplog.text
        )
        caplog.clear()
        fewer.reconcile()
        assert not caplog.text, "once is enough"
        broker.delete("queue_2")
        fewer.reconcile()
        assert "2 tasks are in queues that the balancer no longer has; run a worker with -Q queue_3" in caplog.text
    finally:
        fewer.close()
