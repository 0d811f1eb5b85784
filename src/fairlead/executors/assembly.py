"""Who executes each service: an endpoint, a function in this process, or a function in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping

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
    for name, service in config.services.items():
        if wanted is not None and name not in wanted:
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
