"""Services that are Python functions: async ones run on the loop, others in threads."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from fairlead.domain.retry import Failure
from fairlead.errors import ConfigError
from fairlead.executors.failure import failure_of
from fairlead.executors.port import Call, Success
from fairlead.executors.result import encoded
from fairlead.executors.threads import Threads

Handler = Callable[[Call], Any]


class FunctionExecutor:
    def __init__(self, handler: Handler, *, max_result: int) -> None:
        self._handler = handler
        self._max_result = max_result
        self._on_loop = inspect.iscoroutinefunction(handler)
        self._threads = Threads()

    async def execute(self, call: Call) -> Success | Failure:
        try:
            value = await self._handler(call) if self._on_loop else await self._in_thread(call)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a handler that calls sys.exit() must not end the process
            return failure_of(error)
        return encoded(value, self._max_result)

    async def _in_thread(self, call: Call) -> Any:
        done = self._threads.call(lambda: self._handler(call))
        try:
            value, failed = await asyncio.shield(done)
        except asyncio.CancelledError:
            # What has begun in a thread cannot be stopped. The worker is told, and keeps the slot until it has ended.
            if not done.done():
                call.lingering = done
            raise
        if failed is not None:
            raise _carried(failed)
        return value

    async def close(self) -> None:
        self._threads.close()


def _carried(error: BaseException) -> BaseException:
    """What may not cross an `await` as it is: a cancellation that is not ours, and the end of an iteration."""
    if isinstance(error, asyncio.CancelledError | StopIteration | StopAsyncIteration):
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def imported(path: str) -> Handler:
    """The function that `module:name` names."""
    target = named(path, "function")
    if not callable(target):
        raise ConfigError([f"function: {path!r} is not callable"])
    handler: Handler = target
    return handler


def named(path: str, key: str) -> Any:
    """Whatever `module:name` names; `key` is the setting that says it."""
    module_name, _, name = path.partition(":")
    try:
        target: Any = importlib.import_module(module_name)
        for part in name.split("."):
            target = getattr(target, part)
    except Exception as error:  # whatever the user's module does when it is imported
        raise ConfigError([f"{key}: {path!r} cannot be imported: {type(error).__name__}: {error}"]) from None
    return target


def path_of(handler: Handler) -> str:
    """Where another process finds it."""
    module, name = getattr(handler, "__module__", None), getattr(handler, "__qualname__", "")
    if module in (None, "__main__") or "<" in name:
        raise ConfigError([f"{name or handler}: run_in = 'process' needs a function at the top level of a module"])
    return f"{module}:{name}"
