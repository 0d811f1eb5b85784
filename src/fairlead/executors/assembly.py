"""Who executes each service: an endpoint, Celery's workers, a function in this process or in one of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlead.domain.config import Config
from fairlead.executors.function import FunctionExecutor, Handler, imported, path_of
from fairlead.executors.port import Executor
from fairlead.executors.process import ProcessExecutor


def executors_of(
    config: Config, handlers: Mapping[str, Handler], wanted: frozenset[str] | None = None
) -> dict[str, Executor]:
    """Of the `wanted` services, or of all; `handlers` are those declared in code."""
    executors: dict[str, Executor] = {}
    max_result = config.worker.max_result
    links = _Links(config, handlers)
    for name, service in config.services.items():
        if wanted is not None and name not in wanted:
            continue
        if service.celery:
            executors[name] = links.executor(name)
            continue
        if service.remote:
            # Only those who call HTTP services need the HTTP client installed.
            from fairlead.executors.http import HttpExecutor

            executors[name] = HttpExecutor(service, max_result=max_result)
            continue
        if service.turns_only:
            continue
        handler = handlers.get(name) or imported(service.function or "")
        if service.run_in == "process":
            executors[name] = ProcessExecutor(service.function or path_of(handler), max_result=max_result)
        else:
            executors[name] = FunctionExecutor(handler, max_result=max_result)
    return executors


class _Links:
    """One link for all services that are tasks of the same Celery app. Only those who have any need Celery."""

    def __init__(self, config: Config, handlers: Mapping[str, Handler]) -> None:
        self._config, self._handlers = config, handlers
        self._apps: dict[str, Any] = {}
        self._links: dict[int, Any] = {}

    def executor(self, name: str) -> Executor:
        from fairlead.executors.celery.application import applications_of
        from fairlead.executors.celery.executor import CeleryExecutor
        from fairlead.executors.celery.link import Link

        self._apps = self._apps or applications_of(self._config, self._handlers)
        app = self._apps[name]
        link = self._links.setdefault(id(app), Link(app, self._config.celery.lost_after))
        return CeleryExecutor(self._config.services[name], link, max_result=self._config.worker.max_result)
