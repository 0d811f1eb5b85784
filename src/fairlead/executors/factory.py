"""Creates the executor of each service: for an HTTP endpoint, a server with OpenAI's protocol, a Celery task, or a
function in this process or in a child process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fairlead.domain.config import Config, ServiceConfig
from fairlead.executors.function import FunctionExecutor, Handler, imported, path_of
from fairlead.executors.port import Executor
from fairlead.executors.process import ProcessExecutor


def executors_of(
    config: Config,
    handlers: Mapping[str, Handler],
    services: frozenset[str] | None = None,
    *,
    now: Callable[[], float],
) -> dict[str, Executor]:
    """Create the executors of these services, or of all services. `handlers` are the functions that code declared as
    services; `now` is the database's clock."""
    executors: dict[str, Executor] = {}
    max_result = config.worker.max_result
    celery = _CeleryClients(config, handlers, now)
    for name, service in config.services.items():
        if services is not None and name not in services:
            continue
        if service.celery:
            executors[name] = celery.executor(name)
            continue
        if service.speaks_openai:
            from fairlead.executors.openai import OpenAIExecutor

            executors[name] = OpenAIExecutor(service, max_result=max_result)
            continue
        if service.remote:
            # Imported here: only HTTP services need the HTTP client installed.
            from fairlead.executors.http import HttpExecutor

            executors[name] = HttpExecutor(service, max_result=max_result)
            continue
        if service.turns_only:
            continue
        handler = handlers.get(name) or imported(service.function or "")
        if service.run_in == "process":
            executors[name] = ProcessExecutor(service.function or path_of(handler), max_result=max_result)
        else:
            # Clients of a model have seen the beginning of its stream, and cannot take it back.
            executors[name] = FunctionExecutor(handler, max_result=max_result, retries_output=not service.models)
    return executors


def reaches(service: ServiceConfig, region: str | None) -> bool:
    """Whether this process can call the service in this region; `region` is None for a service without regions. The
    rules in the database may name regions that the configuration of this process lacks."""
    if service.celery or not (service.url or service.openai or service.regions):
        return True
    return bool(service.url or service.openai) if region is None else region in service.regions


class _CeleryClients:
    """Creates one client for all services whose tasks belong to the same Celery app. Celery is imported when the first
    client is needed."""

    def __init__(self, config: Config, handlers: Mapping[str, Handler], now: Callable[[], float]) -> None:
        self._config, self._handlers, self._now = config, handlers, now
        self._apps: dict[str, Any] = {}
        self._clients: dict[int, Any] = {}

    def executor(self, name: str) -> Executor:
        from fairlead.executors.celery.app_loading import applications_of
        from fairlead.executors.celery.celery_client import CeleryClient
        from fairlead.executors.celery.executor import CeleryExecutor

        self._apps = self._apps or applications_of(self._config, self._handlers)
        app = self._apps[name]
        client = self._clients.setdefault(id(app), CeleryClient(app, self._config.celery.lost_after, self._now))
        return CeleryExecutor(self._config.services[name], client, max_result=self._config.worker.max_result)
