"""The truth in one SQLite file.

One connection writes, in a thread of its own; others only read (`reads.py`). A commit is a single statement, see
`apply.sql`: set-based, so that its cost for the event loop is a few microseconds per transition and its duration does
not depend on how busy that loop is.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from fairlead.errors import Unavailable
from fairlead.store import rows
from fairlead.store.port import Busy, Committed, Transition
from fairlead.store.sqlite import connect
from fairlead.store.sqlite.batch import Batch
from fairlead.store.sqlite.handover import prompt_handover
from fairlead.store.sqlite.lock import DispatchLock
from fairlead.store.sqlite.queries import script
from fairlead.store.sqlite.reads import Reads


class SqliteStore(Reads):
    """`clock` gives the time that is stored; `origin` names this process in the outbox rows it writes."""

    def __init__(
        self,
        path: str,
        *,
        clock: Callable[[], float] = time.time,
        synchronous: str = "FULL",
        origin: str | None = None,
    ) -> None:
        super().__init__(path, origin or uuid4().hex)
        self._clock = clock
        self._synchronous = synchronous
        self._dispatch_lock = DispatchLock(path)
        self._writer: sqlite3.Connection | None = None
        self._writer_thread: ThreadPoolExecutor | None = None
        self._cannot_write = False

    async def open(self) -> None:
        self._writer_thread = ThreadPoolExecutor(1, thread_name_prefix="fairlead-write")
        try:
            await self._in_writer(self._open_writer)
        except BaseException:
            self._writer_thread.shutdown()
            self._writer_thread = None
            raise
        self._open_readers()

    async def close(self) -> None:
        if self._writer_thread is None:
            return
        # The readers first: the last connection to close empties the log, and a read-only one cannot.
        self._close_readers()
        await self._in_writer(self._close_writer)
        self._writer_thread.shutdown()
        self._writer_thread = None
        self._dispatch_lock.release()

    async def lock_dispatch(self) -> None:
        self._dispatch_lock.acquire()

    async def commit(self, batch: Sequence[Transition], *, all_or_nothing: bool = False) -> Committed:
        ordered = Batch(batch, all_or_nothing=all_or_nothing)
        now = rows.micros(self._clock())
        parameters = [value for kind, body in ordered.rows() for value in (kind, body, now, self._origin)]
        with prompt_handover():
            answer = await self._in_writer(self._apply, parameters)
        return ordered.committed(answer)

    async def ping(self) -> None:
        """It can be read, it is the file that was opened, and the last commit worked. If not, one is tried now:
        while nobody sends jobs there may be no other."""
        await super().ping()
        if self._cannot_write:
            await self._in_writer(self._try_to_write)

    def _open_writer(self) -> None:
        connect.prepare(self._path)
        self._file = connect.identity(self._path)
        with connect.translated(self._path):
            self._writer = connect.writer(self._path, self._synchronous)
            self._writer.executescript(script("apply.sql"))

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _apply(self, parameters: list[Any]) -> str:
        """A single statement is a transaction by itself: after an error nothing of it remains."""
        assert self._writer is not None  # while there is a writer's thread, there is its connection
        places = ", ".join(["(?, ?, ?, ?)"] * (len(parameters) // 4))
        with self._writing():
            self._writer.execute(f"INSERT INTO batch (kind, body, now, origin) VALUES {places}", parameters)
            answer: str = self._writer.execute(self._sql["answer"]).fetchone()[0]
        return answer

    def _try_to_write(self) -> None:
        assert self._writer is not None
        with self._writing():
            connect.try_to_write(self._writer)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Remembers whether it worked; a database that someone else has locked for a while is not broken."""
        try:
            with connect.translated(self._path):
                yield
        except Busy:
            raise
        except Unavailable:
            self._cannot_write = True
            raise
        self._cannot_write = False

    async def _in_writer(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._writer_thread is None:
            raise Unavailable("the store is not open")
        return await asyncio.get_running_loop().run_in_executor(self._writer_thread, function, *arguments)
