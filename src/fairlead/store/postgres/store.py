"""The truth in a PostgreSQL database that any number of processes share.

A commit is one short transaction on a connection of the pool, see `commit.py` and `apply.sql`. What is stored as "now"
is the server's clock, read once per commit, so that processes on machines whose clocks differ agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import asyncpg

from fairlead.domain.transitions import Start
from fairlead.errors import Unavailable
from fairlead.store.port import Committed, RaiseEpoch, Transition
from fairlead.store.postgres import schema
from fairlead.store.postgres.commit import Commit, Undone
from fairlead.store.postgres.connect import Server, translated
from fairlead.store.postgres.doubt import Doubts
from fairlead.store.postgres.lock import DispatchLock
from fairlead.store.postgres.queries import WRITES
from fairlead.store.postgres.reads import Reads
from fairlead.store.rows import micros

LOCK_TIMEOUT_MS = 5000
POOL_SIZE = 4


class PostgresStore(Reads):
    """`origin` names this process in the outbox rows it writes. `clock`, for tests, gives the time that is stored
    instead of the server's."""

    def __init__(
        self,
        url: str,
        *,
        origin: str | None = None,
        pool_size: int = POOL_SIZE,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(Server.of(url, pool_size), origin or uuid4().hex)
        self._clock = clock
        self._dispatch_lock = DispatchLock(self._server)
        self._doubts = Doubts()
        self._scopes: set[str] = set()

    async def open(self) -> None:
        with translated(self._server.shown):
            pool = await self._server.pool()
            try:
                async with pool.acquire() as connection:
                    await schema.prepare(connection, self._server)
            except BaseException:
                pool.terminate()
                raise
        self._pool = pool

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            with suppress(Unavailable), translated(self._server.shown):  # a server that is gone needs no goodbye
                await self._dispatch_lock.release()
                await pool.close()
        finally:
            pool.terminate()

    async def lock_dispatch(self) -> None:
        self._opened()
        with translated(self._server.shown):
            await self._dispatch_lock.acquire()

    async def commit(self, batch: Sequence[Transition], *, all_or_nothing: bool = False) -> Committed:
        pool = self._opened()
        if not batch:
            return Committed([], [])
        with translated(self._server.shown):
            await self._dispatch_lock.keep()
            async with pool.acquire() as connection:
                await self._doubts.settle(connection)
                answers = self._doubts.answers(batch)
                committed = await self._transact(connection, batch, all_or_nothing, answers)
        outcomes = list(committed.outcomes)
        for place, outcome in answers.items():
            outcomes[place] = outcome
        self._doubts.answered(batch[place] for place in answers)
        return Committed(outcomes, [*self._doubts.changes(), *committed.changes])

    async def _transact(
        self, connection: Any, batch: Sequence[Transition], all_or_nothing: bool, answers: dict[int, Any]
    ) -> Committed:
        await connection.execute("BEGIN")
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
        try:
            await connection.execute("COMMIT")
        except BaseException:
            self._doubts.remember(transaction, batch, committed)
            connection.terminate()
            raise
        self._scopes.update(one.scope for one in batch if isinstance(one, Start | RaiseEpoch))
        return committed


async def _roll_back(connection: asyncpg.Connection) -> None:
    """The error that brought us here is the one to tell; a connection that cannot even roll back is thrown away."""
    try:
        await connection.execute("ROLLBACK", timeout=5)
    except Exception:
        connection.terminate()
