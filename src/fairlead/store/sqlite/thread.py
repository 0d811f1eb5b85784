"""The thread of the one connection that writes.

An executor of the standard library makes a future of its own for every call, with a lock and a condition, and copies
what comes of it into the event loop's: 60 µs more on an idle system, as much as the handover itself.
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


class Thread(Executor):
    """For `run_in_executor` of the loop that made it, and of no other: what `submit` returns is that loop's future."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        # An interpreter that ends does not wait for it: a commit of which nobody has heard yet may as well not be.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self._loop.create_future()
        self._work.put((future, function, arguments))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """After what was submitted before."""
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
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(_tell, future, outcome, problem)
            del work, future, arguments, outcome, problem  # or they would live until the next call


def _tell(future: asyncio.Future[Any], outcome: Any, problem: BaseException | None) -> None:
    if future.done():
        return  # who waited has been cancelled
    if problem is None:
        future.set_result(outcome)
    else:
        future.set_exception(problem)
