"""What a balancer may be made with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Celery
from celery.local import Proxy

from fairlead.addresses import redis_problem
from fairlead.celery.ledger import MOST_QUEUES
from fairlead.celery.strategies import STRATEGIES
from fairlead.errors import ConfigError

_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "queues": (lambda value: _is_number(value, int) and 1 <= value <= MOST_QUEUES, f"1 to {MOST_QUEUES}"),
    "prefix": (lambda value: isinstance(value, str) and value != "", "text"),
    "strategy": (lambda value: value in STRATEGIES, f"one of {', '.join(STRATEGIES)}"),
    "user_of": (lambda value: value is None or isinstance(value, str) or callable(value), "a name or a function"),
    "shuffle_size": (lambda value: _is_number(value, int) and value >= 1, "at least 1"),
    "worker_ttl": (lambda value: _is_number(value, int, float) and value > 0, "more than 0"),
    "reconcile_every": (lambda value: _is_number(value, int, float) and value >= 0, "0 or more"),
}


def check(redis_url: Any, **settings: Any) -> None:
    """Raises `ConfigError` with everything that is wrong."""
    problems = [
        f"{name}: should be {what}, not {settings[name]!r}"
        for name, (is_right, what) in _RULES.items()
        if not is_right(settings[name])
    ]
    if redis_url is not None and (wrong := _url_problem(redis_url)):
        problems.append(f"redis_url: {wrong}")
    if problems:
        raise ConfigError(problems)


def _url_problem(url: Any) -> str | None:
    """Without the URL: it may have a password in it."""
    if not isinstance(url, str):
        return "should be text"
    if "+cluster://" in url:
        return "should be one Redis, or a master behind Sentinels: a Cluster has not all queues in one place"
    return redis_problem(url)


def _is_number(value: Any, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def app_of(given: Any) -> Any:
    """The Celery app itself, also of what stands for it, as `celery.current_app` does."""
    app = given._get_current_object() if isinstance(given, Proxy) else given
    if not isinstance(app, Celery):
        raise ConfigError([f"app: a Celery app is needed, not {type(app).__name__}"])
    return app
