"""Loads the Celery app that sends the tasks: the app that the configuration names, or a new app with the configured
broker and backend."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from fairlead.domain.config import CeleryConfig, Config
from fairlead.errors import ConfigError
from fairlead.executors.function import Handler, named

NEEDED = "Celery is needed: pip install 'fairlead[celery]'"


def is_task(handler: Any) -> bool:
    """Whether a handler is a Celery task. Such a handler is run by Celery's workers."""
    loaded = sys.modules.get("celery")  # importing Celery is slow, and no task exists without it
    return loaded is not None and isinstance(handler, loaded.Task)


@lru_cache(maxsize=8)
def application_of(config: CeleryConfig) -> Any:
    """The Celery app of this configuration, cached together with its connections. Raises ConfigError if it cannot be
    loaded."""
    if importlib.util.find_spec("celery") is None:
        raise ConfigError([NEEDED])
    from celery import Celery

    if config.app is not None:
        app = named(config.app, "celery.app")
        if not isinstance(app, Celery):
            raise ConfigError([f"celery.app: {config.app!r} is not a Celery app"])
        return app
    if config.broker_url is None:
        raise ConfigError(["celery: set the Celery app (celery.app) or broker_url (CELERY_BROKER_URL)"])
    backend = config.result_backend or (config.broker_url if _is_redis(config.broker_url) else None)
    app = Celery("fairlead", broker=config.broker_url, backend=backend, set_as_current=False)
    # An unreachable broker fails the call, which is retried, instead of blocking a thread.
    app.conf.broker_transport_options = {"max_retries": 3, "interval_start": 0, "interval_step": 0.2}
    return app


def applications_of(config: Config, handlers: Mapping[str, Handler]) -> dict[str, Any]:
    """The Celery app of each service that is a Celery task. If code declares the service, this is the app of the
    declared task; all other services share the configured app."""
    apps, shared = {}, None
    for name, service in config.services.items():
        if service.celery is None:
            continue
        if name in handlers:
            apps[name] = getattr(handlers[name], "app", None)
        else:
            shared = shared or application_of(config.celery)
            apps[name] = shared
    return apps


def problems(config: Config, handlers: Mapping[str, Handler]) -> Iterator[str]:
    """The reasons why services that are Celery tasks cannot run; empty if there are none."""
    if not any(service.celery for service in config.services.values()):
        return
    try:
        apps = applications_of(config, handlers)
    except ConfigError as error:
        yield from error.problems
        return
    messages: set[str] = set()
    for app in apps.values():
        messages.update(_unfit(app))
    yield from sorted(messages)


def _unfit(app: Any) -> Iterator[str]:
    try:
        backend = app.backend
    except Exception as error:  # an unknown scheme, a module that is not installed
        yield f"celery: the result backend cannot be used: {type(error).__name__}: {error}"
        return
    scheme = str(app.conf.result_backend or "").partition(":")[0]
    if type(backend).__name__ == "DisabledBackend":
        yield "celery: no results are returned without a result backend; set result_backend, for example to redis://..."
    elif scheme in ("rpc", "amqp"):
        yield f"celery: the result backend {scheme}:// delivers results to the sending thread only; use redis://..."
    elif app.conf.result_serializer != "json":
        yield f"celery: result_serializer is {app.conf.result_serializer!r}; only json is supported"


def _is_redis(url: str) -> bool:
    return url.startswith(("redis://", "rediss://", "sentinel://", "redis+socket://", "socket://"))
