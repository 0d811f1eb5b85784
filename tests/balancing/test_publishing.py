"""Where tasks are published, and what is counted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import chain, chord, group
from celery.local import Proxy
from kombu.exceptions import OperationalError

import fairlead.celery as fair
from fairlead.celery import LoadBalancer
from fairlead.celery.strategies import hand_of_user, queue_of_user
from fairlead.errors import ConfigError, NotFound
from tests import redis_servers
from tests.balancing.site import DEFAULTS, make_app


def pending(balancer: LoadBalancer) -> list[int]:
    return [load.pending for load in balancer.get_all_queue_loads().values()]


def messages(broker: redis.Redis, balancer: LoadBalancer) -> list[int]:
    return [broker.llen(name) for name in balancer.queue_names]


def calls_of_scripts(broker: redis.Redis) -> int:
    return sum(stats["calls"] for name, stats in broker.info("commandstats").items() if "eval" in name)


def test_delay_is_balanced_and_the_counters_have_their_documented_keys(
    app: Any, balancer: LoadBalancer, broker: redis.Redis
) -> None:
    for _ in range(6):
        app.tasks["noop"].delay()
    assert messages(broker, balancer) == pending(balancer) == [2, 2, 1, 1]
    assert broker.get("queue:queue_0:pending") == b"2"
    assert int(broker.get("queue:queue_0:running") or 0) == 0


def test_ties_go_to_the_lowest_index_by_number(app: Any) -> None:
    balancer = LoadBalancer(app, queues=12)
    chosen = []
    for _ in balancer.queue_names:
        chosen.append(balancer.select_best_queue())
        app.tasks["noop"].delay()
    assert chosen == [f"queue_{index}" for index in range(12)]
    balancer.close()


def test_send_task_by_name_is_balanced_even_with_positional_options(
    app: Any, balancer: LoadBalancer, broker: redis.Redis
) -> None:
    app.send_task("noop", [1], {}, None, None, "my-id")
    app.send_task("elsewhere.task")
    assert messages(broker, balancer) == pending(balancer) == [1, 1, 0, 0]
    assert broker.zrange("queue:queue_0:pending:tasks", 0, -1) == [b"my-id"]


def test_a_call_with_a_queue_is_unchanged_and_counted_if_the_queue_is_ours(
    app: Any, balancer: LoadBalancer, broker: redis.Redis
) -> None:
    noop = app.tasks["noop"]
    noop.apply_async(queue="queue_2")
    noop.apply_async(queue="reports")
    assert messages(broker, balancer) == pending(balancer) == [0, 0, 1, 0]
    assert broker.llen("reports") == 1


def test_other_routes_come_first(app: Any, broker: redis.Redis) -> None:
    app.conf.task_routes = {"fail": {"queue": "reports"}, "ignore": "queue_3"}
    balancer = LoadBalancer(app, **DEFAULTS)
    for name in ("fail", "ignore", "noop"):
        app.send_task(name)
    group(app.signature(name) for name in ("fail", "ignore", "noop")).apply_async()
    assert broker.llen("reports") == 2
    assert messages(broker, balancer) == pending(balancer) == [1, 1, 0, 2]
    balancer.close()


def test_the_default_queue_is_still_consumed(app: Any, balancer: LoadBalancer) -> None:
    assert set(app.amqp.queues.consume_from) == {"celery", *balancer.queue_names}


def test_queues_are_declared_although_the_app_has_published_before(app: Any, broker: redis.Redis) -> None:
    app.tasks["noop"].delay()
    balancer = LoadBalancer(app, **DEFAULTS)
    app.tasks["noop"].delay()
    assert broker.llen("celery") == 1
    assert messages(broker, balancer) == [1, 0, 0, 0]
    assert "queue_3" in app.amqp.queues.consume_from
    balancer.close()


def test_a_group_is_spread_in_one_call(app: Any, balancer: LoadBalancer, broker: redis.Redis) -> None:
    noop = app.tasks["noop"]
    noop.delay()  # from here on the scripts are loaded
    before = calls_of_scripts(broker)
    group(noop.s(i) for i in range(99)).apply_async()
    assert messages(broker, balancer) == pending(balancer) == [25, 25, 25, 25]
    # One call is ours; the others come from a worker of the previous test that is still stopping.
    assert calls_of_scripts(broker) - before < 10


def test_chords_chains_and_groups_of_them_are_spread(app: Any, balancer: LoadBalancer, broker: redis.Redis) -> None:
    noop = app.tasks["noop"]
    chord([noop.s(i) for i in range(4)], noop.s()).apply_async()
    group(chain(noop.s(), noop.s()) for _ in range(4)).apply_async()
    noop.chunks([(i,) for i in range(8)], 2).apply_async()
    assert messages(broker, balancer) == pending(balancer) == [3, 3, 3, 3]


def test_a_group_with_a_queue_is_unchanged(app: Any, balancer: LoadBalancer, broker: redis.Redis) -> None:
    group(app.tasks["noop"].s(i) for i in range(3)).apply_async(queue="queue_1")
    assert messages(broker, balancer) == pending(balancer) == [0, 3, 0, 0]


def test_an_eager_app_counts_nothing(url: str) -> None:
    with make_app(url, task_always_eager=True) as app:
        balancer = LoadBalancer(app, **DEFAULTS)
        app.tasks["noop"].delay()
        balancer.enqueue_task_with_load_balancing(app.tasks["noop"])
        assert sum(pending(balancer)) == 0
        balancer.close()


# ---------------------------------------------------------------- failures


@pytest.fixture
def lost_broker(url: str) -> Iterator[tuple[Any, LoadBalancer]]:
    """The counts are on a running server, the broker on a stopped one."""
    app = make_app("redis://127.0.0.1:9/0", task_publish_retry=False)
    app.conf.broker_transport_options = {"max_retries": 0}
    balancer = LoadBalancer(app, **DEFAULTS, redis_url=url)
    yield app, balancer
    balancer.close()
    app.close()


def test_a_failed_publish_is_not_counted(lost_broker: tuple[Any, LoadBalancer]) -> None:
    app, balancer = lost_broker
    noop = app.tasks["noop"]
    for send in (
        noop.delay,
        lambda: noop.apply_async(queue="queue_1"),
        lambda: balancer.enqueue_task_with_load_balancing(noop),
        lambda: group(noop.s(i) for i in range(5)).apply_async(),
    ):
        with pytest.raises(OperationalError):
            send()
        assert pending(balancer) == [0, 0, 0, 0]


def test_a_call_that_celery_refuses_is_not_counted(app: Any, balancer: LoadBalancer) -> None:
    with pytest.raises(TypeError):
        app.send_task("noop", args="no list")
    with pytest.raises(TypeError):
        app.tasks["fail"].delay("one too many")
    assert sum(pending(balancer)) == 0


def test_without_redis_tasks_are_published_round_robin_and_one_warning_is_logged(
    app: Any, broker: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    counts = redis_servers.Server().start()
    balancer = LoadBalancer(app, **DEFAULTS, redis_url=counts.url, user_of=None)
    noop = app.tasks["noop"]
    noop.delay()
    counts.kill()
    with caplog.at_level(logging.WARNING, "fairlead.celery"):
        for _ in range(4):
            noop.delay()
        group(noop.s(i) for i in range(4)).apply_async()
    assert sum(messages(broker, balancer)) == 9
    assert min(messages(broker, balancer)) == 2
    assert len(caplog.records) == 1
    assert "in turn" in caplog.text
    balancer.close()


# ---------------------------------------------------------------- the functions of the module


def test_the_functions_use_the_balancer_created_last(app: Any, balancer: LoadBalancer, broker: redis.Redis) -> None:
    noop = app.tasks["noop"]
    fair.enqueue_task_with_load_balancing(noop, 1, user_id="ada")
    fair.enqueue_task_to_user_queue(noop, "ada", 1)
    expected = [1, 0, 0, 0]
    expected[queue_of_user("ada", 4)] += 1
    assert messages(broker, balancer) == pending(balancer) == expected
    assert fair.get_all_queue_loads() == balancer.get_all_queue_loads()
    assert fair.get_queue_load("queue_0") == (expected[0], 0)
    assert fair.select_best_queue() == balancer.select_best_queue()
    fair.reset_queue_counters("queue_0")
    assert fair.get_queue_load("queue_0") == (0, 0)
    fair.reset_queue_counters()
    assert sum(pending(balancer)) == 0


def test_enqueue_with_load_balancing_overrides_other_routes(app: Any, broker: redis.Redis) -> None:
    app.conf.task_routes = {"noop": "reports"}
    balancer = LoadBalancer(app, **DEFAULTS)
    balancer.enqueue_task_with_load_balancing(app.tasks["noop"])
    assert messages(broker, balancer) == pending(balancer) == [1, 0, 0, 0]
    balancer.close()


def test_counters_changed_by_hand_never_go_below_zero(balancer: LoadBalancer, broker: redis.Redis) -> None:
    assert balancer.increment_pending("queue_1") == 1
    assert balancer.increment_running("queue_1") == 1
    assert balancer.get_queue_load("queue_1") == (1, 1)
    for _ in range(3):
        balancer.decrement_running("queue_1")
        balancer.decrement_pending("queue_1")
    assert balancer.get_queue_load("queue_1") == (0, 0)
    assert broker.get("queue:queue_1:running") == b"0"


def test_code_that_counts_a_task_before_it_publishes_counts_it_once(app: Any, balancer: LoadBalancer) -> None:
    queue = balancer.select_best_queue()
    for _ in range(2):
        balancer.increment_pending(queue)
    signatures = [app.tasks["noop"].s(i).set(queue=queue) for i in range(2)]
    group(signatures).apply_async()
    assert balancer.get_queue_load(queue) == (2, 0)


def test_a_task_decremented_by_hand_is_not_repaired_later(app: Any, balancer: LoadBalancer) -> None:
    app.tasks["noop"].apply_async(queue="queue_0", task_id="a")
    balancer.decrement_pending("queue_0")
    assert balancer.get_queue_load("queue_0") == (0, 0)
    balancer._counts.place("", [("queue_0", "a")])
    app.tasks["noop"].apply_async(queue="queue_0")
    assert balancer.get_queue_load("queue_0") == (1, 0)


def test_an_unknown_queue_is_refused(balancer: LoadBalancer) -> None:
    for call in (balancer.get_queue_load, balancer.reset_queue_counters, balancer.increment_pending):
        with pytest.raises(NotFound, match="queue_0 to queue_3"):
            call("queue_4")


# ---------------------------------------------------------------- strategies


def queues_of(broker: redis.Redis, balancer: LoadBalancer) -> set[int]:
    return {index for index, count in enumerate(messages(broker, balancer)) if count}


@pytest.mark.parametrize("user_of", ["user_id", lambda name, args, kwargs: kwargs["user_id"]])
def test_shuffle_keeps_a_user_within_its_hand(app: Any, broker: redis.Redis, user_of: Any) -> None:
    balancer = LoadBalancer(app, queues=20, strategy="shuffle", shuffle_size=3, user_of=user_of)
    noop = app.tasks["noop"]
    for _ in range(10):
        noop.delay(user_id="ada")
    group(noop.s(user_id="ada") for _ in range(11)).apply_async()
    hand = hand_of_user("ada", 20, 3)
    assert len(hand) == 3
    assert queues_of(broker, balancer) == set(hand)
    assert [messages(broker, balancer)[index] for index in hand] == [7, 7, 7]
    balancer.close()


def test_user_hash_gives_a_user_one_queue(app: Any, broker: redis.Redis) -> None:
    balancer = LoadBalancer(app, strategy="user_hash", user_of="user_id")
    group(app.tasks["noop"].s(user_id="ada") for _ in range(5)).apply_async()
    assert queues_of(broker, balancer) == {queue_of_user("ada", 20)}
    balancer.close()


def test_the_user_may_be_a_positional_argument(app: Any, broker: redis.Redis) -> None:
    @app.task(name="draw", shared=False)
    def draw(prompt: str, user: str) -> None: ...

    balancer = LoadBalancer(app, strategy="user_hash", user_of="user")
    draw.delay("a harbour", "ada")
    assert queues_of(broker, balancer) == {queue_of_user("ada", 20)}
    balancer.close()


def test_a_call_without_a_user_may_go_anywhere(app: Any, broker: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    balancer = LoadBalancer(app, queues=3, strategy="user_hash", user_of=lambda name, args, kwargs: kwargs["missing"])
    for _ in range(6):
        app.tasks["noop"].delay()
    assert messages(broker, balancer) == [2, 2, 2]
    assert caplog.text.count("user_of failed") == 1
    balancer.close()


def test_the_queue_of_a_user_is_stable_across_processes_and_releases() -> None:
    assert [queue_of_user(user, 20) for user in ("ada", "grace", "üÿ")] == [11, 9, 13]
    assert hand_of_user("ada", 20, 4) == (0, 2, 8, 9)


def test_hands_differ_and_change_little_with_one_more_queue() -> None:
    users = [f"user-{number}" for number in range(200)]
    hands = [set(hand_of_user(user, 20, 4)) for user in users]
    assert len({frozenset(hand) for hand in hands}) > 180
    moved = sum(len(hand - set(hand_of_user(user, 21, 4))) for user, hand in zip(users, hands, strict=True))
    assert moved < 0.1 * 4 * len(users)


def test_a_proxy_of_an_app_is_accepted_and_anything_else_refused(app: Any) -> None:
    balancer = LoadBalancer(Proxy(lambda: app), **DEFAULTS)
    app.tasks["noop"].delay()
    assert sum(pending(balancer)) == 1
    balancer.close()
    with pytest.raises(ConfigError, match="a Celery app is needed, not str"):
        LoadBalancer("app", **DEFAULTS)


def test_an_invalid_balancer_is_refused_with_all_problems(app: Any) -> None:
    wrong: dict[str, Any] = {
        "queues": 0,
        "prefix": "",
        "strategy": "best",
        "user_of": 7,
        "shuffle_size": 0,
        "worker_ttl": "long",
        "reconcile_every": -1,
        "redis_url": "http://:s3cret@localhost",
    }
    with pytest.raises(ConfigError) as refused:
        LoadBalancer(app, **wrong)
    assert [problem.partition(":")[0] for problem in refused.value.problems] == list(wrong)
    assert "s3cret" not in str(refused.value)


# ---------------------------------------------------------------- several


def test_a_second_balancer_of_an_app_replaces_the_first(app: Any, balancer: LoadBalancer, broker: redis.Redis) -> None:
    second = LoadBalancer(app, queues=2, prefix="lane_")
    for _ in range(4):
        app.tasks["noop"].delay()
    assert messages(broker, second) == pending(second) == [2, 2]
    assert sum(pending(balancer)) == 0
    second.close()


def test_two_apps_do_not_count_each_others_tasks(balancer: LoadBalancer, url: str) -> None:
    with make_app(url) as other:
        others = LoadBalancer(other, queues=2, prefix="lane_")
        other.tasks["noop"].delay()
        balancer.app.tasks["noop"].delay()
        assert sum(pending(others)) == sum(pending(balancer)) == 1
        others.close()


def test_a_closed_balancer_restores_the_app(app: Any, broker: redis.Redis) -> None:
    LoadBalancer(app, **DEFAULTS).close()
    app.tasks["noop"].delay()
    assert broker.llen("celery") == 1
