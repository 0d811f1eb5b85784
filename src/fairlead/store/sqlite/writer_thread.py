"""The thread of the connection that writes.

For every call, an executor of the standard library creates a future with a lock and a condition, and copies its result
to a second future of the event loop. That would add 60 µs per commit on an idle system, as much as switching threads
takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from queue import SimpleQueue
from typing import Any

Work = tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]


class WriterThread(Executor):
    """An executor with one thread. Use it only through `run_in_executor` of the event loop that created it, because
    `submit` returns a future of that loop."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        # A daemon thread, so that the interpreter does not wait for it at exit. A commit that is cut off was not
        # acknowledged.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self._loop.create_future()
        self._work.put((future, function, arguments))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop the thread after it has finished the work submitted so far."""
        self._work.put(None)
        if wait:
            self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            future, function, arguments = work
            outcome, problem = None, None
            try:
                outcome = function(*arguments)
            except BaseException as error:
                problem = error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(_resolve, future, outcome, problem)
            del work, future, arguments, outcome, problem  # otherwise they stay alive until the next call


def _resolve(future: asyncio.Future[Any], outcome: Any, problem: BaseException | None) -> None:
    if future.done():
        return  # the caller was cancelled
    if problem is None:
        future.set_result(outcome)
    else:
        future.set_exception(problem)
