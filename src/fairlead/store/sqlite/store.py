"""The truth in one SQLite file.

One connection writes, in a thread of its own; others only read (`reads.py`). A commit is a single statement, see
`apply.sql`: set-based, so that its cost for the event loop is a few microseconds per transition and its duration does
not depend on how busy that loop is. Only a commit with a sweep in it asks first for the jobs that are due.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orjson

from fairlead.domain.job import Job
from fairlead.errors import Unavailable
from fairlead.store import rows
from fairlead.store.batches import key_taken
from fairlead.store.port import RELAYING, Busy, Committed, RingTimers, Transition
from fairlead.store.sqlite import connect
from fairlead.store.sqlite.batch import Batch
from fairlead.store.sqlite.handover import prompt_handover
from fairlead.store.sqlite.lock import DispatchLock
from fairlead.store.sqlite.queries import script
from fairlead.store.sqlite.reads import Reads
from fairlead.store.sqlite.thread import Thread
from fairlead.store.sweeps import Sweep, promoted_bands


class SqliteStore(Reads):
    """`clock` gives the time that is stored."""

    def __init__(
        self,
        path: str,
        *,
        clock: Callable[[], float] = time.time,
        synchronous: str = "FULL",
    ) -> None:
        super().__init__(path, clock, synchronous)
        self._dispatch_lock = DispatchLock(path)
        self._writer: sqlite3.Connection | None = None
        self._writer_thread: Thread | None = None
        self._cannot_write = False

    async def open(self) -> None:
        self._writer_thread = Thread("fairlead-write")
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

    def relays(self) -> None:
        self._origin = RELAYING

    async def lock_dispatch(self, *, shared: bool = False) -> None:
        self._dispatch_lock.acquire()

    async def commit(self, batch: Sequence[Transition], *, all_or_nothing: bool = False) -> Committed:
        ordered = Batch(batch, all_or_nothing=all_or_nothing)
        now = rows.micros(self._clock())
        with prompt_handover():
            if ordered.sweeps:
                answer = await self._in_writer(self._sweep_and_apply, ordered, now)
            else:
                answer = await self._in_writer(self._apply, self._parameters(ordered, now))
        return ordered.committed(answer)

    def _parameters(self, batch: Batch, now: int | None) -> list[Any]:
        return [value for kind, body in batch.rows() for value in (kind, body, now, self._origin)]

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
            self._writer.executescript(script("operators.sql"))
            self._writer.executescript(script("batches.sql"))
            self._writer.executescript(script("board.sql"))

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

    def _sweep_and_apply(self, batch: Batch, now: int | None) -> str:
        """From the look at what is due until it is moved, no other process writes."""
        assert self._writer is not None
        with self._writing():
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                batch.sweep(self._due)
                answer = self._apply(self._parameters(batch, now))
                self._writer.execute("COMMIT")
            finally:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
        return answer

    def _due(self, sweep: Sweep, taken: Sequence[str]) -> list[Job]:
        assert self._writer is not None
        others = orjson.dumps(taken).decode()
        if isinstance(sweep, RingTimers):
            found = self._writer.execute(self._sql["due"], (rows.micros_by(sweep.now), others, sweep.limit))
            return rows.jobs_of(found.fetchone()[0])
        jobs: list[Job] = []
        for band, before in promoted_bands(sweep):
            parameters = band, rows.micros(before), others, sweep.limit - len(jobs)
            jobs += rows.jobs_of(self._writer.execute(self._sql["promotable"], parameters).fetchone()[0])
        return jobs

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
        except sqlite3.IntegrityError as error:
            if "job_batch.idempotency_key" in str(error):
                raise key_taken() from None
            raise
        self._cannot_write = False

    async def _in_writer(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._writer_thread is None:
            raise Unavailable("the store is not open")
        return await asyncio.get_running_loop().run_in_executor(self._writer_thread, function, *arguments)
