"""Executes services that are Python functions: an `async def` runs on the event loop, a plain `def` in a thread.

A `ThreadPoolExecutor` does not fit. Its size is fixed, while a service's limit may be raised. Its threads also keep the
process alive at exit, so a handler that never returns would keep the process from exiting. The threads here are
daemons; the jobs of threads that die with the process are recovered.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import threading
from collections.abc import AsyncGenerator, Callable
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from types import AsyncGeneratorType, GeneratorType
from typing import Any

from fairlead import log_fields
from fairlead.domain.retry import Failure
from fairlead.errors import ConfigError
from fairlead.executors.call_outcome import concluded, failure_of
from fairlead.executors.port import Call, Success

Task = Callable[[], None]
Ended = tuple[Any, BaseException | None]


class Threads:
    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Task | None]] = []
        self._closed = False

    def run(self, task: Task) -> None:
        """Run `task` in an idle thread, or in a new one. `task` must not raise."""
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = SimpleQueue()
            threading.Thread(target=self._work, args=(inbox,), name="fairlead-call", daemon=True).start()
        inbox.put(task)

    def call(self, work: Callable[[], Any]) -> asyncio.Future[Ended]:
        """Run `work` in a thread. The result of the returned future is a pair of the value and the error, and the error
        is None if `work` did not raise: a future cannot hold a StopIteration as its exception."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Ended] = loop.create_future()

        def run() -> None:
            value, failed = None, None
            try:
                value = work()
            except BaseException as error:
                failed = error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_settle, done, (value, failed))

        self.run(run)
        return done

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _work(self, inbox: SimpleQueue[Task | None]) -> None:
        while (task := inbox.get()) is not None:
            task()
            if self._closed:
                return
            self._idle.append(inbox)


def _settle(done: asyncio.Future[Ended], ended: Ended) -> None:
    if not done.done():  # it may be cancelled
        done.set_result(ended)


Handler = Callable[[Call], Any]


class FunctionExecutor:
    def __init__(self, handler: Handler, *, max_result: int, retries_output: bool = True) -> None:
        """Without `retries_output`, an exception is not retried once the call has emitted a chunk, except of a
        background response of the OpenAI front, whose readers expect that."""
        self._handler = handler
        self._max_result = max_result
        self._retries_output = retries_output
        self._on_loop = inspect.iscoroutinefunction(handler)
        self._generates = inspect.isasyncgenfunction(handler)
        self._threads = Threads()

    async def execute(self, call: Call) -> Success | Failure:
        try:
            if self._on_loop:
                value = await self._handler(call)
            else:
                value = self._handler(call) if self._generates else await self._in_thread(call)
            if isinstance(value, AsyncGeneratorType):
                await emit_each(value, call)
                value = None
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a handler that calls sys.exit() must not end the process
            return self._failure(error, call)
        return concluded(value, call, self._max_result)

    def _failure(self, error: BaseException, call: Call) -> Failure:
        failure = failure_of(error)
        seen = call.output is not None and call.output.chunks
        if seen and not self._retries_output and not call.params.get("background"):
            return replace(failure, retryable=False)
        return failure

    async def _in_thread(self, call: Call) -> Any:
        def work() -> Any:
            return emitting(self._handler(call), call)

        # Threads do not inherit the current span.
        done = self._threads.call(
            work if call.trace is None and not log_fields.wanted() else partial(copy_context().run, work)
        )
        try:
            value, failed = await asyncio.shield(done)
        except asyncio.CancelledError:
            # A running thread cannot be stopped. The worker keeps the slot until the thread has finished.
            if not done.done():
                call.lingering = done
            call.open_output().closed = True
            raise
        if failed is not None:
            raise _carried(failed)
        return value

    async def close(self) -> None:
        self._threads.close()


def _carried(error: BaseException) -> BaseException:
    """Return a RuntimeError in place of an exception that must not be raised through an `await`: a StopIteration or
    StopAsyncIteration, or a CancelledError that the handler raised although its call was not cancelled. Any other
    exception is returned unchanged."""
    if isinstance(error, asyncio.CancelledError | StopIteration | StopAsyncIteration):
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def emitting(value: Any, call: Call) -> Any:
    """The value that a handler returned in a thread. If it is a generator, emit what it yields, and return what it
    returns. A generator whose call is abandoned is closed at its next `yield`."""
    if not isinstance(value, GeneratorType):
        return value
    output = call.open_output()
    with contextlib.closing(value):
        while not output.closed:
            try:
                call.emit(next(value))
            except StopIteration as end:
                return end.value
    return None


async def emit_each(chunks: AsyncGenerator[Any, Any], call: Call) -> None:
    call.open_output()
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            call.emit(chunk)


def imported(path: str) -> Handler:
    """Import the function at `path`, which has the form `module:name`."""
    target = named(path, "function")
    if not callable(target):
        raise ConfigError([f"function: {path!r} is not callable"])
    if not accepts(target, 1):
        raise ConfigError([f"function: {path!r} {NO_ARGUMENT}"])
    handler: Handler = target
    return handler


NO_ARGUMENT = "cannot be called with one argument, the Call: write def NAME(call: Call)"


def accepts(function: Any, count: int) -> bool:
    """Whether a function can be called with so many positional arguments. True if that is not known."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def named(path: str, key: str) -> Any:
    """Import the object at `path`, which has the form `module:name`. `key` is the name of the setting, for error
    messages."""
    module_name, _, name = path.partition(":")
    try:
        target: Any = importlib.import_module(module_name)
        for part in name.split("."):
            target = getattr(target, part)
    except Exception as error:  # the user's module may raise anything
        raise ConfigError([f"{key}: {path!r} cannot be imported: {type(error).__name__}: {error}"]) from None
    return target


def path_of(handler: Handler) -> str:
    """The path, in the form `module:name`, from which another process can import this function."""
    module, name = getattr(handler, "__module__", None), getattr(handler, "__qualname__", "")
    if module in (None, "__main__") or "<" in name:
        raise ConfigError([f"{name or handler}: run_in = 'process' needs a function at the top level of a module"])
    return f"{module}:{name}"
