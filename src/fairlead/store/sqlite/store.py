"""The store in one SQLite file.

One connection writes, in a thread of its own; other connections only read (`reads.py`). A commit is a single set-based
statement (see `apply.sql`). It costs the event loop a few microseconds per transition, and its duration does not depend
on how busy the loop is. A commit with sweeps first runs the queries that select the jobs that are due.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import chain
from typing import Any

import orjson

from fairlead.domain.budgets import NO_BUDGETS, Budgets
from fairlead.domain.job import Job
from fairlead.domain.prices import NO_PRICES, Prices
from fairlead.errors import Unavailable
from fairlead.store import rows
from fairlead.store.commits import Sweep, promoted_bands
from fairlead.store.files import missing
from fairlead.store.port import RELAYING, Busy, Committed, Erase, FireTimers, Transition
from fairlead.store.records import key_taken
from fairlead.store.schedules import moved
from fairlead.store.sql_files import WRITES, script
from fairlead.store.sqlite import connect
from fairlead.store.sqlite.budgets import CommitBudgets
from fairlead.store.sqlite.commit import CommitBatch
from fairlead.store.sqlite.gil import prompt_handover
from fairlead.store.sqlite.lock import DispatchLock, file_identity, store_closed, store_opened
from fairlead.store.sqlite.reads import Reads
from fairlead.store.sqlite.writer_thread import WriterThread

COPY_AFTER = 2000
"""Copy the write-ahead log into the database when about this many pages were written to it."""
PAGES_OF_COMMIT, PAGES_OF_TRANSITION = 10, 2
"""About how many pages a commit writes, and how many more for each transition."""


def _places(rows: int) -> int:
    """Return the number of rows of the statement that inserts these: 4, 8, 16, 32…. SQLite compiles the triggers of all
    kinds for each number of rows, in about 7 ms."""
    return max(4, 1 << (rows - 1).bit_length())


@cache
def _insert(places: int) -> str:
    values = ", ".join(f"(?{n}, ?{n + 1})" for n in range(3, 3 + 2 * places, 2))
    return f"INSERT INTO batch SELECT column1, column2, ?1, ?2 FROM (VALUES {values}) WHERE column1 IS NOT NULL"


class SqliteStore(Reads):
    """The store in SQLite. `clock` gives the times that are stored. With `overwrites`, nothing of what is deleted or
    erased stays in its files."""

    def __init__(
        self,
        path: str,
        *,
        clock: Callable[[], float] = time.time,
        synchronous: str = "FULL",
        overwrites: bool = False,
        prices: Prices = NO_PRICES,
        budgets: Budgets = NO_BUDGETS,
    ) -> None:
        super().__init__(path, clock, synchronous)
        self._prices = prices
        self._budgets = budgets
        self._dispatch_lock = DispatchLock(self._path)
        self._writer: sqlite3.Connection | None = None
        self._writer_thread: WriterThread | None = None
        self._pages = 0  # written to the log since it was copied, roughly
        self._cannot_write = False
        self._overwrites = overwrites
        self._log_holds_erased = overwrites
        """The write-ahead log may hold what was erased since."""

    async def open(self) -> None:
        self._writer_thread = WriterThread("fairlead-write")
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
        # Close the readers first: the last connection to close empties the write-ahead log, and a read-only one cannot
        # do that.
        self._close_readers()
        await self._in_writer(self._close_writer)
        self._writer_thread.shutdown()
        self._writer_thread = None
        self._dispatch_lock.release()
        if (file := self._files.pop(self._path, None)) is not None:
            store_closed(file)
        self._files.clear()

    def relays(self) -> None:
        self._origin = RELAYING

    async def lock_dispatch(self, *, shared: bool = False) -> None:
        self._dispatch_lock.acquire()

    async def commit(self, batch: Sequence[Transition], *, all_or_nothing: bool = False) -> Committed:
        now = round(self._clock() * 1e6)
        budgets = CommitBudgets(self._budgets, self._prices, now) if self._budgets else None
        ordered = CommitBatch(batch, now, all_or_nothing=all_or_nothing, prices=self._prices, budgets=budgets)
        with prompt_handover():
            if ordered.reads_first:
                answer = await self._in_writer(self._read_and_apply, ordered, now)
            else:
                answer = await self._in_writer(self._apply, self._parameters(ordered, now))
        self._pages += PAGES_OF_COMMIT + PAGES_OF_TRANSITION * len(batch)
        if self._overwrites and any(isinstance(each, Erase) for each in batch):
            self._log_holds_erased = True
            await self._in_writer(self._empty_log)
        elif self._pages >= COPY_AFTER and self._writer_thread is not None:
            self._pages = 0
            self._writer_thread.submit(self._copy_log)  # after this commit, whose callers go on meanwhile
        return ordered.committed(answer)

    def _parameters(self, batch: CommitBatch, now: int | None) -> list[Any]:
        """Return the parameters of the statement: `now` and the origin, then kind and body of each row, then nulls."""
        parameters = [now, self._origin, *chain.from_iterable(batch.rows())]
        return parameters + [None] * (2 + 2 * _places(len(parameters) // 2 - 1) - len(parameters))

    async def ping(self) -> None:
        """Check that the database can be read and that its file is still the one that was opened. If the last commit
        failed, also try a write. Otherwise, while no jobs arrive, nothing would notice that the disk has recovered."""
        await super().ping()
        if self._cannot_write:
            await self._in_writer(self._try_to_write)
        if self._log_holds_erased:
            await self._in_writer(self._empty_log)

    def _open_writer(self) -> None:
        connect.prepare(self._path)
        with connect.translated(self._path):
            self._writer = connect.writer(self._path, self._synchronous, overwrites=self._overwrites)
            for file in WRITES:
                self._writer.executescript(script(__package__, file))
        for path in (self._path, f"{self._path}-wal", f"{self._path}-shm"):
            with suppress(OSError):
                self._files[path] = file_identity(path)
        store_opened(self._files[self._path])

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _copy_log(self) -> None:
        if self._writer is not None:  # the store may have been closed meanwhile
            connect.copy_log(self._writer)

    def _empty_log(self) -> None:
        assert self._writer is not None
        self._log_holds_erased = not connect.empty_log(self._writer)

    def _apply(self, parameters: list[Any]) -> str:
        """Run the statement of a commit. The statement is a transaction of its own, so an error changes nothing."""
        assert self._writer is not None  # the writer thread runs only while its connection is open
        with self._writing():
            self._writer.execute(_insert(len(parameters) // 2 - 1), parameters)
            answer: str = self._writer.execute(self._sql["answer"]).fetchone()[0]
        return answer

    def _read_and_apply(self, batch: CommitBatch, now: int) -> str:
        """Select the due jobs and look at budgets, and commit the batch with the moves that follow, in one transaction.
        No other process writes meanwhile."""
        assert self._writer is not None
        with self._writing():
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                batch.admit(self._read)
                batch.sweep(partial(self._due, now))
                answer = self._apply(self._parameters(batch, now))
                self._writer.execute("COMMIT")
            finally:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
        return answer

    def _read(self, name: str, *parameters: Any) -> Any:
        assert self._writer is not None
        return self._writer.execute(self._sql[name], parameters).fetchone()[0]

    def _due(self, now: int, sweep: Sweep, taken: Sequence[str]) -> list[Job]:
        assert self._writer is not None
        others = orjson.dumps(taken).decode()
        if isinstance(sweep, FireTimers):
            by = min(rows.micros_by(sweep.now), now)
            due = self._writer.execute(self._sql["due"], (by, others, sweep.limit))
            return rows.jobs_of(due.fetchone()[0])
        jobs: list[Job] = []
        for band, before in promoted_bands(sweep):
            parameters = band, rows.micros(before), others, sweep.limit - len(jobs)
            jobs += rows.jobs_of(self._writer.execute(self._sql["promotable"], parameters).fetchone()[0])
        return jobs

    def _try_to_write(self) -> None:
        assert self._writer is not None
        with self._writing():
            connect.try_to_write(self._writer, self._path)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Record whether the write in the block succeeded. A lock held by another process does not count as a failure.
        If the database file is no longer at its path, the write raises an error, even if SQLite has committed it."""
        self._check_file()
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
            if "a file is missing" in str(error):
                raise missing() from None
            if "the schedule has moved" in str(error):
                raise moved() from None
            raise
        self._check_files()
        self._cannot_write = False

    async def _in_writer(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._writer_thread is None:
            raise Unavailable("the store is not open")
        return await asyncio.get_running_loop().run_in_executor(self._writer_thread, function, *arguments)
