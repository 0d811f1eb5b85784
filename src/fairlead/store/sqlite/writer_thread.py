"""The thread of the connection that writes, and the thread that copies the write-ahead log into the database file.

For every call, an executor of the standard library creates a future with a lock and a condition, and copies its result
to a second future of the event loop. That would add 60 µs per commit on an idle system, as much as switching threads
takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from queue import SimpleQueue
from typing import Any

log = logging.getLogger("fairlead.store")

COPY_AFTER = 2000
"""Copy the log when about this many pages were written to it."""
COPY_LIMIT = 2 * COPY_AFTER
"""A commit copies the log itself if the log has this many pages."""
PAGES_OF_COMMIT, PAGES_OF_TRANSITION = 10, 2
"""About how many pages a commit writes, and how many more for each transition."""
PASSES = 4

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


class LogCopier:
    """Copies the write-ahead log into the database file (a checkpoint), with a connection and a thread of its own.

    SQLite does this within the commit that makes the log long enough, and all callers wait for it. A passive checkpoint
    runs beside commits, but does not copy what they write meanwhile, and the log starts over only once all of it is
    copied. Each pass is shorter than the one before, so that one of them soon fits between two commits. If none does,
    the log grows up to COPY_LIMIT, and a commit copies the rest."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._thread = WriterThread("fairlead-checkpoint")
        self._pages = 0  # written since the last copy, roughly
        self._copying: asyncio.Future[None] | None = None
        self._fails = False

    def wrote(self, transitions: int) -> None:
        """Copy the log if the commits since the last time have made it long enough."""
        self._pages += PAGES_OF_COMMIT + PAGES_OF_TRANSITION * transitions
        if self._pages >= COPY_AFTER and (self._copying is None or self._copying.done()):
            self._pages = 0
            self._copying = self._thread.submit(self._copy)

    async def pause(self) -> None:
        """Wait until the log is not being copied."""
        if self._copying is not None:
            await self._copying

    async def close(self) -> None:
        await self._thread.submit(self._connection.close)
        self._thread.shutdown()

    def _copy(self) -> None:
        try:
            copied = -1
            for _ in range(PASSES):
                before = copied
                (_, _, copied) = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                if copied == before:
                    break  # no commit has added to the log meanwhile
            self._fails = False
        except sqlite3.Error as error:  # such as a full disk: nothing is lost, and the next commits report it too
            if not self._fails:
                log.warning("the write-ahead log cannot be copied into the database: %s", error)
            self._fails = True
