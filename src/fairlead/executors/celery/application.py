"""The Celery app by which tasks are sent: the team's own, or a bare one with its broker and result backend."""

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
    """Whether a function that code declares as a service is a Celery task, to be run by Celery's workers."""
    loaded = sys.modules.get("celery")  # without it there is no task, and loading it takes a while
    return loaded is not None and isinstance(handler, loaded.Task)


@lru_cache(maxsize=8)
def application_of(config: CeleryConfig) -> Any:
    """The same for the same config, with the connections it has. Raises ConfigError if there is none."""
    if importlib.util.find_spec("celery") is None:
        raise ConfigError([NEEDED])
    from celery import Celery

    if config.app is not None:
        app = named(config.app, "celery.app")
        if not isinstance(app, Celery):
            raise ConfigError([f"celery.app: {config.app!r} is not a Celery app"])
        return app
    if config.broker_url is None:
        raise ConfigError(["celery: give the team's app (celery.app), or broker_url (CELERY_BROKER_URL)"])
    backend = config.result_backend or (config.broker_url if _is_redis(config.broker_url) else None)
    app = Celery("fairlead", broker=config.broker_url, backend=backend, set_as_current=False)
    # A broker that is away is a failure of the call, which is tried again, and not a thread that hangs.
    app.conf.broker_transport_options = {"max_retries": 3, "interval_start": 0, "interval_step": 0.2}
    return app


def applications_of(config: Config, handlers: Mapping[str, Handler]) -> dict[str, Any]:
    """By service. Services that name a task share one app; one declared in code has the app of its task."""
    found, shared = {}, None
    for name, service in config.services.items():
        if service.celery is None:
            continue
        if name in handlers:
            found[name] = getattr(handlers[name], "app", None)
        else:
            shared = shared or application_of(config.celery)
            found[name] = shared
    return found


def problems(config: Config, handlers: Mapping[str, Handler]) -> Iterator[str]:
    """What stands in the way of the services that are Celery tasks."""
    if not any(service.celery for service in config.services.values()):
        return
    try:
        apps = applications_of(config, handlers)
    except ConfigError as error:
        yield from error.problems
        return
    told: set[str] = set()
    for app in apps.values():
        told.update(_unfit(app))
    yield from sorted(told)


def _unfit(app: Any) -> Iterator[str]:
    try:
        backend = app.backend
    except Exception as error:  # an unknown scheme, a module that is not installed
        yield f"celery: the result backend cannot be used: {type(error).__name__}: {error}"
        return
    scheme = str(app.conf.result_backend or "").partition(":")[0]
    if type(backend).__name__ == "DisabledBackend":
        yield "celery: without a result backend no result comes back; set result_backend, for example to redis://..."
    elif scheme in ("rpc", "amqp"):
        yield f"celery: the result backend {scheme}:// gives results to the sender's thread only; use redis://..."
    elif app.conf.result_serializer != "json":
        yield f"celery: result_serializer is {app.conf.result_serializer!r}; only json is read, nothing is unpickled"


def _is_redis(url: str) -> bool:
    return url.startswith(("redis://", "rediss://", "sentinel://", "redis+socket://", "socket://"))
