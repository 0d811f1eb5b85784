"""The truth in a PostgreSQL database that any number of processes share.

A commit is one short transaction on a connection of the pool, see `commit.py` and `apply.sql`. What is stored as "now"
is the server's clock, read once per commit, so that processes on machines whose clocks differ agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import asyncpg

from fairlead.domain.transitions import Start
from fairlead.errors import Unavailable
from fairlead.store.port import RELAYING, Committed, RaiseEpoch, Transition
from fairlead.store.postgres import schema
from fairlead.store.postgres.commit import Commit, Undone
from fairlead.store.postgres.connect import Backend, Server, Writing, is_contended, is_ending, translated
from fairlead.store.postgres.doubt import Doubts
from fairlead.store.postgres.express import Plan, plan_of
from fairlead.store.postgres.lock import DispatchLock
from fairlead.store.postgres.queries import READS, WRITES
from fairlead.store.postgres.reads import Reads
from fairlead.store.postgres.writers import Writers
from fairlead.store.rows import micros

LOCK_TIMEOUT_MS = 5000
POOL_SIZE = 4
PING_TIMEOUT = 5.0  # a commit may hang for want of a standby


class PostgresStore(Reads):
    """`clock`, for tests, gives the time that is stored instead of the server's."""

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = POOL_SIZE,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(Server.of(url, pool_size), clock)
        self._dispatch_lock = DispatchLock(self._server)
        self._doubts = Doubts()
        self._scopes: set[str] = set()
        self._cannot_write = False
        self._open_writers: Writers[Writing] | None = None

    async def open(self) -> None:
        with translated(self._server.shown):
            pool = await self._server.pool()
            try:
                async with pool.acquire() as connection:
                    await schema.prepare(connection, self._server)
            except BaseException:
                pool.terminate()
                raise
        self._pool, self._open_writers = pool, self._server.writers(_prepare)

    async def close(self) -> None:
        pools = self._pool, self._open_writers
        self._pool = self._open_writers = None
        try:
            with suppress(Unavailable), translated(self._server.shown):  # a server that is gone needs no goodbye
                await self._dispatch_lock.release()
                for pool in filter(None, pools):
                    await pool.close()
        finally:
            for pool in filter(None, pools):
                pool.terminate()

    def relays(self) -> None:
        self._origin = RELAYING

    async def lock_dispatch(self, *, shared: bool = False) -> None:
        self._opened()
        with translated(self._server.shown):
            await self._dispatch_lock.acquire(shared=shared)

    async def commit(self, batch: Sequence[Transition], *, all_or_nothing: bool = False) -> Committed:
        writers = self._writers()
        if not batch:
            return Committed([], [])
        with self._writing():
            await self._dispatch_lock.keep()
            async with writers.connection() as connection:
                await self._doubts.settle(connection)
                answers = self._doubts.answers(batch)
                now = None if self._clock is None else micros(self._clock())
                plan, backend = None, connection.backend
                if not answers and backend is not None:
                    plan = plan_of(batch, origin=self._origin, now=now, scopes=self._scopes)
                if plan is not None and backend is not None:
                    committed = await self._transact_express(connection, backend, batch, plan)
                else:
                    committed = await self._transact(connection, batch, all_or_nothing, answers)
        outcomes = list(committed.outcomes)
        for place, outcome in answers.items():
            outcomes[place] = outcome
        self._doubts.answered(batch[place] for place in answers)
        return Committed(outcomes, [*self._doubts.changes(), *committed.changes])

    async def ping(self) -> None:
        """It can be read, and the last commit did not fail for want of a server that can write. If it did, one is tried
        now: while nobody sends jobs there may be no other."""
        await super().ping()
        if self._cannot_write:
            with self._writing():
                async with self._writers().connection() as connection:
                    await connection.execute(READS["try_to_write"], timeout=PING_TIMEOUT)

    def _writers(self) -> Writers[Writing]:
        if self._open_writers is None:
            raise Unavailable("the store is not open")
        return self._open_writers

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Remembers whether it worked; a row that another process has locked for a while does not count."""
        try:
            with translated(self._server.shown):
                yield
        except Unavailable as error:
            self._cannot_write = self._cannot_write or not is_contended(error)
            raise
        self._cannot_write = False

    async def _transact(
        self, connection: Any, batch: Sequence[Transition], all_or_nothing: bool, answers: dict[int, Any]
    ) -> Committed:
        await _begin(connection, "BEGIN")
        try:
            transaction, now, *_ = await connection.fetchrow(WRITES["begin"], str(LOCK_TIMEOUT_MS))
            commit = Commit(
                connection,
                batch,
                origin=self._origin,
                now=now if self._clock is None else micros(self._clock()),  # type: ignore[arg-type]
                scopes=self._scopes,
                all_or_nothing=all_or_nothing,
            )
            committed = await commit.apply(answers)
        except Undone as undone:
            await connection.execute("ROLLBACK")
            return undone.committed
        except BaseException:
            await _roll_back(connection)
            raise
        await self._end(connection, transaction, batch, committed)
        self._scopes.update(one.scope for one in batch if isinstance(one, Start | RaiseEpoch))
        return committed

    async def _transact_express(
        self, connection: Any, backend: Backend, batch: Sequence[Transition], plan: Plan
    ) -> Committed:
        """The statement is the transaction. If its reply is lost, it is in doubt."""
        sql, parameters, read = plan
        try:
            rows = await connection.fetch(sql, *parameters)
        except BaseException as error:
            if is_ending(error):
                self._doubts.remember_statement(backend, batch)
                connection.terminate()
            raise
        return read(rows)

    async def _end(
        self, connection: Any, transaction: str | None, batch: Sequence[Transition], committed: Committed
    ) -> None:
        """COMMIT. If its reply is lost, it is in doubt, unless nothing was written."""
        try:
            await connection.execute("COMMIT")
        except BaseException:
            if transaction is not None:
                self._doubts.remember(transaction, batch, committed)
            connection.terminate()
            raise


async def _prepare(connection: Writing) -> None:
    (backend,) = await connection.fetch(WRITES["backend"])
    direct = backend[0] == connection.get_server_pid()
    connection.backend = tuple(backend) if direct else None
    if direct:
        await connection.fetch(WRITES["hold_to_plans"], str(LOCK_TIMEOUT_MS))


async def _begin(connection: asyncpg.Connection, sql: str) -> None:
    """A connection that cannot even begin is of no use to the next one either."""
    try:
        await connection.execute(sql)
    except BaseException:
        connection.terminate()
        raise


async def _roll_back(connection: asyncpg.Connection) -> None:
    """The error that brought us here is the one to tell; a connection that cannot even roll back is thrown away."""
    try:
        await connection.execute("ROLLBACK", timeout=5)
    except Exception:
        connection.terminate()
