"""The store in a PostgreSQL database, shared by any number of processes.

A commit is one short transaction on a pooled connection, see `commit.py` and `apply.sql`. Stored times come from the
server clock, read once per commit, so that processes on machines with different clocks agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import asyncpg

from fairlead.domain.budgets import NO_BUDGETS, Budgets
from fairlead.domain.prices import NO_PRICES, Prices
from fairlead.domain.transitions import Start
from fairlead.errors import Unavailable
from fairlead.store.port import RELAYING, Committed, RaiseEpoch, Transition
from fairlead.store.postgres import schema
from fairlead.store.postgres.commit import Commit, Undone
from fairlead.store.postgres.connect import (
    Backend,
    Server,
    WritePool,
    Writing,
    is_contended,
    is_ending,
    is_full,
    is_read_only,
    translated,
)
from fairlead.store.postgres.in_doubt_commits import InDoubtCommits
from fairlead.store.postgres.lock import DispatchLock
from fairlead.store.postgres.queries import READS, WRITES
from fairlead.store.postgres.reads import Reads
from fairlead.store.postgres.single_statement import Plan, plan_of
from fairlead.store.rows import micros

LOCK_TIMEOUT_MS = 5000
POOL_SIZE = 4
PING_TIMEOUT = 5.0  # a commit may hang while a synchronous standby is missing


class PostgresStore(Reads):
    """The store in PostgreSQL. Tests pass a `clock` that replaces the clock of the server."""

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = POOL_SIZE,
        clock: Callable[[], float] | None = None,
        prices: Prices = NO_PRICES,
        budgets: Budgets = NO_BUDGETS,
    ) -> None:
        super().__init__(Server.of(url, pool_size), clock)
        self._prices = prices
        self._budgets = budgets
        self._dispatch_lock = DispatchLock(self._server)
        self._doubts = InDoubtCommits()
        self._scopes: set[str] = set()
        self._cannot_write = self._disk_was_full = False
        self._open_writers: WritePool[Writing] | None = None

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
            with suppress(Unavailable), translated(self._server.shown):  # the server may be gone
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
                plan, backend, committed = None, connection.backend, None
                if not answers and backend is not None:
                    plan = plan_of(
                        batch,
                        origin=self._origin,
                        now=now,
                        scopes=self._scopes,
                        prices=self._prices,
                        budgets=self._budgets,
                    )
                if plan is not None and backend is not None:
                    committed = await self._run_statement(connection, backend, batch, plan)
                if committed is None:
                    committed = await self._transact(connection, batch, all_or_nothing, answers)
        outcomes = list(committed.outcomes)
        for index, outcome in answers.items():
            outcomes[index] = outcome
        self._doubts.answered(batch[index] for index in answers)
        return Committed(outcomes, [*self._doubts.changes(), *committed.changes])

    async def ping(self) -> None:
        """Check that the database can be read. If the last commit failed because the server could not write, also try a
        write. Otherwise, while no jobs arrive, nothing would notice that the server has recovered."""
        await super().ping()
        if self._cannot_write:
            with self._writing():
                async with self._writers().connection() as connection:
                    await connection.execute(READS["try_to_write"], timeout=PING_TIMEOUT)
                    if self._disk_was_full:
                        with suppress(asyncpg.InsufficientPrivilegeError):  # temporary tables may be forbidden
                            await connection.execute(READS["try_to_grow"], timeout=PING_TIMEOUT)

    def _writers(self) -> WritePool[Writing]:
        if self._open_writers is None:
            raise Unavailable("the store is not open")
        return self._open_writers

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Record whether the commit in the block could write. Lock conflicts do not count as failures."""
        try:
            with translated(self._server.shown):
                yield
        except Unavailable as error:
            self._cannot_write = self._cannot_write or not is_contended(error)
            self._disk_was_full = self._disk_was_full or is_full(error)
            if is_read_only(error):
                self._renew_readers = True  # after a failover they would read from a standby
                self._dispatch_lock.doubt()
            raise
        self._cannot_write = self._disk_was_full = False

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
                prices=self._prices,
                budgets_=self._budgets,
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

    async def _run_statement(
        self, connection: Any, backend: Backend, batch: Sequence[Transition], plan: Plan
    ) -> Committed | None:
        """Run the single statement of a batch, which is its own transaction. If its reply is lost, the commit is in
        doubt (see `in_doubt_commits`). Returns None if it changed nothing, because an idempotency key was used
        before."""
        sql, parameters, read = plan
        try:
            rows = await connection.fetch(sql, *parameters)
        except asyncpg.UniqueViolationError as error:
            if error.table_name != "idempotency":
                raise
            return None
        except BaseException as error:
            if is_ending(error):
                self._doubts.remember_statement(backend, batch)
                connection.terminate()
            raise
        return read(rows)

    async def _end(
        self, connection: Any, transaction: str | None, batch: Sequence[Transition], committed: Committed
    ) -> None:
        """Send COMMIT. If its reply is lost and something was written, the commit is in doubt (see
        `in_doubt_commits`)."""
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
    """Begin a transaction. If that fails, the connection is closed."""
    try:
        await connection.execute(sql)
    except BaseException:
        connection.terminate()
        raise


async def _roll_back(connection: asyncpg.Connection) -> None:
    """Roll back, or close the connection if the rollback fails. Errors of the rollback are suppressed, so that the
    caller reports the original error."""
    try:
        await connection.execute("ROLLBACK", timeout=5)
    except Exception:
        connection.terminate()
