"""Which user a call belongs to, if the balancer is created without `user_of`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
import redis
from celery import chain, group

from fairlead.celery import LoadBalancer
from fairlead.celery.strategies import hand_of_user, queue_of_user
from fairlead.celery.user_extraction import USER_ARGUMENTS, UserExtractor
from tests.balancing.workers import until, worker

QUEUES = 20


@pytest.fixture
def users(app: Any) -> UserExtractor:
    @app.task(name="draw", shared=False)
    def draw(prompt: Any, user_id: Any = None, owner: Any = None) -> None: ...

    @app.task(name="bound", shared=False, bind=True, autoretry_for=(OSError,))
    def bound(self: Any, collection_id: int, user_id: int) -> None: ...

    @app.task(name="keyword_only", shared=False)
    def keyword_only(*prompts: str, user_id: str | None = None) -> None: ...

    return UserExtractor(app, "auto")


@pytest.fixture
def plain(app: Any) -> Iterator[LoadBalancer]:
    """Created with nothing but the app."""
    balancer = LoadBalancer(app)
    yield balancer
    balancer.close()


class Account:
    def __init__(self, pk: int) -> None:
        self.pk = pk


class Detached:
    @property
    def id(self) -> int:
        raise RuntimeError("the session is closed")


CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], str | None]] = {
    "a keyword argument": ("draw", ("a city",), {"user_id": 7}, "7"),
    "a positional argument": ("draw", ("a city", "ada"), {}, "ada"),
    "a positional argument of a bound task": ("bound", (3, 7), {}, "7"),
    "a dict as the first argument": ("elsewhere.task", ({"prompt": "a city", "owner_id": "ada"}, 3), {}, "ada"),
    "a dict as the first keyword argument": ("elsewhere.task", (), {"item": {"userId": "ada"}}, "ada"),
    "a user's record": ("draw", ("a city",), {"user": {"id": 7, "name": "Ada"}}, "7"),
    "a user's object": ("draw", ("a city",), {"account": Account(7)}, "7"),
    "a UUID": ("draw", (), {"tenant_id": UUID(int=7)}, str(UUID(int=7))),
    "the first that has a value": ("draw", ("a city",), {"user_id": None, "owner": "ada"}, "ada"),
    "a user before a tenant": ("draw", (), {"tenant_id": 1, "user_id": 2}, "2"),
    "zero": ("draw", (), {"user_id": 0}, "0"),
    "a chunk": ("celery.starmap", (), {"task": {"task": "draw"}, "it": [["a city", "ada"], ["a sea", "bob"]]}, "ada"),
    "mapped calls": ("celery.map", (), {"task": {"task": "draw"}, "it": [{"user_id": "ada"}]}, "ada"),
    "no user: a value after *args is not the keyword's": ("keyword_only", ("a", "b", "c"), {}, None),
    "no user: it is not the same in all calls": ("draw", (), {"user": object()}, None),
    "no user: a record that cannot be read": ("draw", (), {"user": Detached()}, None),
    "no user: a flag": ("draw", (), {"user": True}, None),
    "no user: other names, a list": ("draw", (["ada"],), {"prompt": "x", "size": 3}, None),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_user_is_found_in(call: str, users: UserExtractor) -> None:
    name, args, kwargs, user = CALLS[call]
    assert users.of(name, args, kwargs) == user


@pytest.mark.parametrize("name", USER_ARGUMENTS)
def test_every_documented_name_is_found(name: str, users: UserExtractor) -> None:
    assert users.of("elsewhere.task", (), {"prompt": "a city", name: "ada"}) == "ada"


@pytest.mark.parametrize(
    ("user_of", "user"),
    [
        ("owner", "bob"),
        (lambda name, args, kwargs: "cyd", "cyd"),
        (lambda name, args, kwargs: None, None),
        (None, None),
    ],
)
def test_an_explicit_user_of_wins_and_none_switches_detection_off(app: Any, user_of: Any, user: str | None) -> None:
    explicit = UserExtractor(app, user_of)
    assert explicit.of("draw", (), {"user_id": "ada", "owner": "bob"}) == user


def test_a_bulk_keeps_to_its_users_queues_without_any_setting(plain: LoadBalancer, broker: redis.Redis) -> None:
    noop = plain.app.tasks["noop"]
    group(noop.s(i, user_id="ada") for i in range(40)).apply_async()
    for i in range(10):
        noop.delay(i, user_id="ada")
    lengths = {index: length for index in range(QUEUES) if (length := broker.llen(f"queue_{index}"))}
    hand = hand_of_user("ada", QUEUES, 4)
    assert set(lengths) == set(hand)
    assert sum(lengths.values()) == 50


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "fairlead.celery"]


def test_a_call_without_a_user_is_warned_of_once_with_what_to_add(
    app: Any, users: UserExtractor, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "fairlead.celery"):
        users.of("draw", (), {})  # such as a periodic task
        users.of("celery.chord_unlock", ("id",), {})
        assert not warnings_of(caplog)
        for _ in range(3):
            users.of("draw", ("a city",), {})
    (text,) = warnings_of(caplog)
    assert "draw(prompt, user_id, owner)" in text
    assert 'LoadBalancer(app, user_of="...")' in text
    assert "LoadBalancer(app, user_of=None)" in text


@pytest.mark.parametrize("settings", [{"user_of": None}, {"strategy": "least_loaded"}])
def test_a_balancer_without_users_does_not_warn(
    app: Any, broker: redis.Redis, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    balancer = LoadBalancer(app, **settings)
    with caplog.at_level(logging.WARNING, "fairlead.celery"):
        app.tasks["noop"].delay("a city")
        app.tasks["noop"].delay("a city", user_id="ada")
    assert not warnings_of(caplog)
    assert [broker.llen(f"queue_{index}") for index in range(3)] == [1, 1, 0]
    balancer.close()


def test_tasks_inherit_the_user_of_the_task_that_sends_them(app: Any, url: str, broker: redis.Redis) -> None:
    """A chain, and a group that a task sends: neither call names the user."""
    settings = {"queues": QUEUES, "strategy": "user_hash", "worker_ttl": 60.0}
    balancer = LoadBalancer(app, **settings)
    relay = app.tasks["relay"]
    with worker(balancer, url, "-P", "threads", "-c", "2", **settings):
        chain(relay.si("first", user_id="ada"), relay.si("second", spread=2), relay.si("third")).apply_async()
        until(lambda: broker.llen("test:relayed") == 5, "the chain and the group have run")
    queue = f"queue_{queue_of_user('ada', QUEUES)}"
    ran = [line.decode().split() for line in broker.lrange("test:relayed", 0, -1)]
    assert sorted(ran) == sorted([name, queue] for name in ("first", "second", "third", "part", "part"))
    balancer.close()
