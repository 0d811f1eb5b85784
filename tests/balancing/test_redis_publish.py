"""Choosing the queue and sending the message is one script where possible, and otherwise two steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any

import pytest
import redis
from celery.signals import before_task_publish
from kombu.transport.redis import Channel

from fairlead.celery import LoadBalancer
from fairlead.celery.task_counts import Load
from tests.balancing.site import DEFAULTS, make_app


def commands(broker: redis.Redis, work: Callable[[], Any]) -> dict[str, int]:
    """The commands that Redis has run in the block, of all clients and scripts."""
    broker.config_resetstat()
    work()
    stats: dict[str, Any] = broker.info("commandstats")
    return {name.removeprefix("cmdstat_"): entry["calls"] for name, entry in stats.items()}


def messages(broker: redis.Redis, queue: str) -> list[dict[str, Any]]:
    return [json.loads(message) for message in broker.lrange(queue, 0, -1)]


@contextmanager
def listening(receiver: Callable[..., None]) -> Iterator[None]:
    before_task_publish.connect(receiver, weak=False)
    try:
        yield
    finally:
        before_task_publish.disconnect(receiver)


def test_a_call_is_one_script_which_also_sends_the_message(
    app: Any, balancer: LoadBalancer, broker: redis.Redis
) -> None:
    noop = app.tasks["noop"]
    noop.delay()
    asked = commands(broker, lambda: [noop.delay() for _ in range(10)])
    assert (asked["evalsha"], asked["lpush"]) == (10, 10)
    assert {message["properties"]["delivery_info"]["routing_key"] for message in messages(broker, "queue_1")} == {
        "queue_1"
    }


def test_receivers_of_the_publish_signal_get_the_chosen_queue(
    app: Any, balancer: LoadBalancer, broker: redis.Redis
) -> None:
    queues: list[str] = []
    with listening(lambda routing_key, **_: queues.append(routing_key)):
        for _ in range(6):
            app.tasks["noop"].delay()
    assert queues == ["queue_0", "queue_1", "queue_2", "queue_3", "queue_0", "queue_1"]
    assert balancer.get_queue_load("queue_0") == Load(2, 0)
    assert broker.llen("queue_0") == 2


def test_counters_in_another_redis_are_read_before_the_message_is_sent(url: str, broker: redis.Redis) -> None:
    elsewhere = url.replace("/0", "/5")
    app = make_app(url)
    balancer = LoadBalancer(app, redis_url=elsewhere, **DEFAULTS)
    try:
        for _ in range(5):
            app.tasks["noop"].delay()
        assert [broker.llen(name) for name in balancer.queue_names] == [2, 1, 1, 1]
        assert [load.pending for load in balancer.get_all_queue_loads().values()] == [2, 1, 1, 1]
        assert not broker.exists("queue:queue_0:pending"), "the counters are elsewhere"
    finally:
        balancer.close()
        app.close()


def test_a_message_keeps_its_priority(app: Any, balancer: LoadBalancer, broker: redis.Redis) -> None:
    app.tasks["noop"].apply_async(priority=9)
    [key] = [key.decode() for key in broker.scan_iter("queue_0*") if key != b"queue_0"]
    assert key.endswith("9")
    assert messages(broker, key)[0]["properties"]["priority"] == 9
    assert balancer.get_queue_load("queue_0") == Load(1, 0)


def test_a_brokers_prefix_of_keys_is_kept(url: str, broker: redis.Redis) -> None:
    app = make_app(url)
    app.conf.broker_transport_options = {"global_keyprefix": "team:"}
    balancer = LoadBalancer(app, **DEFAULTS)
    try:
        app.tasks["noop"].delay()
        assert broker.llen("team:queue_0") == 1
    finally:
        balancer.close()
        app.close()


def test_text_that_looks_like_our_marker_is_kept_as_text(app: Any, balancer: LoadBalancer, broker: redis.Redis) -> None:
    mark = "\x00fairlead-queue\x00"
    app.tasks["noop"].delay(mark, user_id=mark)
    [message] = messages(broker, "queue_0")
    assert message["properties"]["delivery_info"]["routing_key"] == "queue_0"
    assert balancer.get_queue_load("queue_0") == Load(1, 0)


def test_a_callers_own_correlation_id_changes_nothing(app: Any, balancer: LoadBalancer, broker: redis.Redis) -> None:
    for _ in range(4):
        app.tasks["noop"].apply_async(correlation_id="order 7")
    assert [broker.llen(name) for name in balancer.queue_names] == [1, 1, 1, 1]
    assert [load.pending for load in balancer.get_all_queue_loads().values()] == [1, 1, 1, 1]
    assert messages(broker, "queue_3")[0]["properties"]["correlation_id"] == "order 7"


def test_a_transport_that_was_wrapped_before_still_works(
    url: str, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = getattr(Channel._put, "__wrapped__", Channel._put)

    @wraps(plain)
    def traced(*args: Any, **kwargs: Any) -> None:
        plain(*args, **kwargs)

    monkeypatch.setattr(Channel, "_put", traced)
    app = make_app(url)
    balancer = LoadBalancer(app, **DEFAULTS)
    try:
        for _ in range(4):
            app.tasks["noop"].delay()
        assert [broker.llen(name) for name in balancer.queue_names] == [1, 1, 1, 1]
    finally:
        balancer.close()
        app.close()


@pytest.mark.parametrize("lost", ["fairlead:celery:queue_:loads", "queue:queue_1:pending"])
def test_lost_counters_are_rebuilt(app: Any, balancer: LoadBalancer, broker: redis.Redis, lost: str) -> None:
    for _ in range(4):
        app.tasks["noop"].delay()
    broker.delete(lost)
    for _ in range(4):
        app.tasks["noop"].delay()
    assert [broker.llen(name) for name in balancer.queue_names] == [2, 2, 2, 2]


def test_queues_that_only_another_balancer_has_are_never_chosen(
    app: Any, balancer: LoadBalancer, broker: redis.Redis
) -> None:
    balancer._counts.place("running", [("queue_7", "a"), ("queue_8", "b"), ("queue_9", "c"), ("queue_1", "d")])
    for _ in range(3):
        app.tasks["noop"].delay()
    assert [broker.llen(name) for name in balancer.queue_names] == [1, 0, 1, 1]


@pytest.mark.parametrize("listened", [False, True])
def test_connections_that_redis_closed_lose_no_task_and_duplicate_none(
    app: Any, balancer: LoadBalancer, broker: redis.Redis, listened: bool
) -> None:
    def receiver(**_: Any) -> None:
        pass

    with listening(receiver) if listened else nullcontext():
        app.tasks["noop"].delay()
        broker.client_kill_filter(_type="normal", skipme=True)
        app.tasks["noop"].delay()
        broker.script_flush()
        app.tasks["noop"].delay()
    assert [broker.llen(name) for name in balancer.queue_names] == [1, 1, 1, 0]
    assert [load.pending for load in balancer.get_all_queue_loads().values()] == [1, 1, 1, 0]


def test_a_message_whose_reply_was_lost_is_not_sent_twice(
    app: Any, balancer: LoadBalancer, broker: redis.Redis
) -> None:
    counts = balancer._counts
    assert counts.push("t1", (), ("", ""), ('{"to": "', '"}')) == "queue_0"
    args = (*counts._arguments("t1", ()), "", "", "{", "}")
    assert counts.names[counts._link.run("push", *args, "again")] == "queue_0"
    assert counts.names[counts._link.run("push", *counts._arguments("t2", ()), "", "", "{", "}", "again")] == "queue_1"
    assert broker.lrange("queue_0", 0, -1) == [b'{"to": "queue_0"}']
