"""The private functions of Celery and kombu: what others wrap stays usable, and what is missing has a fallback."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import wraps
from typing import Any

import pytest
import redis
from celery import group
from celery.app.amqp import AMQP
from kombu.exceptions import OperationalError
from kombu.transport.redis import Channel

from fairlead.celery import LoadBalancer, private_api
from tests.balancing.site import DEFAULTS, make_app


@pytest.fixture(autouse=True)
def reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The log, with no fallback reported yet."""
    monkeypatch.setattr(private_api, "_reported", set())
    with caplog.at_level(logging.WARNING, "fairlead.celery"):
        yield caplog


def messages(broker: redis.Redis, balancer: LoadBalancer) -> list[int]:
    return [broker.llen(name) for name in balancer.queue_names]


def pending(balancer: LoadBalancer) -> list[int]:
    return [load.pending for load in balancer.get_all_queue_loads().values()]


def script_calls(broker: redis.Redis) -> int:
    return sum(stats["calls"] for name, stats in broker.info("commandstats").items() if "eval" in name)


def without_patch(function: Any) -> Any:
    return function.__wrapped__ if hasattr(function, private_api._MARKER) else function


def test_groups_are_spread_although_other_code_has_wrapped_celerys_function(
    app: Any, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = without_patch(group._apply_tasks)

    @wraps(original)
    def traced(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    monkeypatch.setattr(group, "_apply_tasks", traced)
    balancer = LoadBalancer(app, **DEFAULTS)
    noop = app.tasks["noop"]
    noop.delay()  # loads the scripts
    before = script_calls(broker)
    group(noop.s(i) for i in range(99)).apply_async()
    assert messages(broker, balancer) == pending(balancer) == [25, 25, 25, 25]
    assert script_calls(broker) - before < 10
    balancer.close()


def test_a_wrapper_around_our_patch_does_not_lead_to_a_second_one(
    app: Any, balancer: LoadBalancer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = group._apply_tasks

    @wraps(ours)
    def traced(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs)

    monkeypatch.setattr(group, "_apply_tasks", traced)
    LoadBalancer(app, **DEFAULTS).close()
    assert group._apply_tasks is traced


def takes_something_else(self: Any, signatures: Any, **options: Any) -> None:
    raise AssertionError("not called")


def test_without_celerys_function_for_groups_each_task_reserves_its_queue(
    app: Any, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch, reported: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group, "_apply_tasks", without_patch(group._apply_tasks))
    monkeypatch.setattr(private_api, "_takes", lambda function, parameters: "tasks" not in parameters)
    balancer = LoadBalancer(app, **DEFAULTS)
    group(app.tasks["noop"].s(i) for i in range(8)).apply_async()
    assert messages(broker, balancer) == pending(balancer) == [2, 2, 2, 2]
    assert "group._apply_tasks is not as expected in this version; each task of a group" in reported.text
    balancer.close()


def test_a_function_with_other_parameters_is_not_patched(reported: pytest.LogCaptureFixture) -> None:
    class Owner:
        changed = takes_something_else

    assert private_api.usable(Owner, "changed", "self", "signatures", fallback="")
    for name in ("changed", "gone", "changed"):
        assert not private_api.usable(Owner, name, "self", "tasks", fallback="it is slower")
    assert [record.getMessage() for record in reported.records] == [
        "load balancing: Owner.changed is not as expected in this version; it is slower",
        "load balancing: Owner.gone is not as expected in this version; it is slower",
    ]


@pytest.mark.parametrize("private", ["_put", "_q_for_pri", "_get_message_priority"])
def test_without_the_transports_methods_the_queue_is_chosen_before_the_message_is_sent(
    app: Any, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch, reported: pytest.LogCaptureFixture, private: str
) -> None:
    unpatched = without_patch(getattr(Channel, private))
    monkeypatch.setattr(Channel, private, unpatched)
    takes = private_api._takes
    monkeypatch.setattr(
        private_api, "_takes", lambda function, names: function is not unpatched and takes(function, names)
    )
    balancer = LoadBalancer(app, **DEFAULTS)
    for _ in range(6):
        app.tasks["noop"].delay()
    assert messages(broker, balancer) == pending(balancer) == [2, 2, 1, 1]
    assert f"Channel.{private} is not as expected in this version; publishing takes one more" in reported.text
    balancer.close()


@pytest.mark.parametrize("one_script", [True, False])
def test_without_celerys_task_sender_publishes_are_still_balanced(
    url: str, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch, reported: pytest.LogCaptureFixture, one_script: bool
) -> None:
    sender = AMQP._create_task_sender
    takes = private_api._takes
    monkeypatch.setattr(
        private_api, "_takes", lambda function, names: function is not sender and takes(function, names)
    )
    app = make_app(url)
    balancer = LoadBalancer(app, **DEFAULTS, redis_url=None if one_script else url)
    noop = app.tasks["noop"]
    for _ in range(4):
        noop.delay()
    group(noop.s(i) for i in range(4)).apply_async()
    for _ in range(4):
        balancer.enqueue_task_with_load_balancing(noop)
    assert messages(broker, balancer) == pending(balancer) == [3, 3, 3, 3]
    assert "AMQP._create_task_sender is not as expected in this version" in reported.text
    noop.apply_async(queue="queue_0")
    assert (messages(broker, balancer), pending(balancer)) == ([4, 3, 3, 3], [3, 3, 3, 3])
    balancer.close()
    app.close()


def test_without_celerys_task_sender_a_failed_publish_is_not_counted(
    url: str, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_api, "_takes", lambda function, names: names != ("self",))
    app = make_app("redis://127.0.0.1:9/0", task_publish_retry=False)
    app.conf.broker_transport_options = {"max_retries": 0}
    balancer = LoadBalancer(app, **DEFAULTS, redis_url=url)
    with pytest.raises(OperationalError):
        app.tasks["noop"].delay()
    assert pending(balancer) == [0, 0, 0, 0]
    balancer.close()
    app.close()


def test_without_the_transports_keys_a_reconcile_pass_leaves_pending_tasks_alone(
    app: Any, balancer: LoadBalancer, monkeypatch: pytest.MonkeyPatch, reported: pytest.LogCaptureFixture
) -> None:
    app.tasks["noop"].delay()
    monkeypatch.setattr(private_api, "_takes", lambda function, names: "pri" not in names)
    assert not balancer.reconcile()
    assert pending(balancer) == [1, 0, 0, 0]
    assert reported.text.count("a reconcile pass does not compare the counts") == 1
