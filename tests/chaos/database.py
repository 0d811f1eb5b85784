"""Queries of the cluster's PostgreSQL from outside, and a trigger (the witness) that records how jobs end."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

# `run` may only grow by one, and a job may only end once: nothing here resumes or re-runs jobs. The trigger writes in
# the transaction it observes, so it records exactly what was committed.
WITNESS = """
CREATE SCHEMA witness;
CREATE TABLE witness.records (id bigint GENERATED ALWAYS AS IDENTITY, job_id text NOT NULL, what text NOT NULL,
                           old_status int, new_status int, old_run int, new_run int);
CREATE FUNCTION witness.record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.run <> OLD.run AND NEW.run <> OLD.run + 1 THEN
        INSERT INTO witness.records (job_id, what, old_status, new_status, old_run, new_run)
            VALUES (NEW.id, 'run jumped', OLD.status, NEW.status, OLD.run, NEW.run);
    END IF;
    IF OLD.ended IS NOT NULL THEN
        INSERT INTO witness.records (job_id, what, old_status, new_status, old_run, new_run)
            VALUES (NEW.id, 'changed after its end', OLD.status, NEW.status, OLD.run, NEW.run);
    ELSIF NEW.ended IS NOT NULL THEN
        INSERT INTO witness.records (job_id, what, old_status, new_status, old_run, new_run)
            VALUES (NEW.id, 'ended', OLD.status, NEW.status, OLD.run, NEW.run);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER witness AFTER UPDATE ON fairlead.job FOR EACH ROW
    WHEN (NEW.ended IS NOT NULL OR OLD.ended IS NOT NULL OR NEW.run <> OLD.run + 1)
    EXECUTE FUNCTION witness.record();
"""

GONE = (OSError, asyncpg.PostgresConnectionError, asyncpg.CannotConnectNowError, asyncpg.InterfaceError, TimeoutError)


class Database:
    """One connection, reopened after it was lost."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Any = None
        self._lock = asyncio.Lock()

    async def set_witness(self) -> None:
        await self.execute(WITNESS)

    async def execute(self, script: str) -> None:
        """Run several statements."""
        async with self._lock:
            await (await self._connected()).execute(script)

    async def rows(self, sql: str, *arguments: Any) -> list[Any]:
        """Run a query. Raises one of `GONE` while PostgreSQL is unavailable."""
        async with self._lock:
            try:
                return list(await (await self._connected()).fetch(sql, *arguments))
            except GONE:
                await self._drop()
                raise

    async def value(self, sql: str, *arguments: Any) -> Any:
        return (await self.rows(sql, *arguments))[0][0]

    async def statuses(self) -> dict[int, int]:
        """Jobs by status: 0 SCHEDULED, 1 PENDING, 2 RETRYING, 3 RUNNING, 4 COMPLETED, 5 FAILED, 6 CANCELLED."""
        return dict(await self.rows("SELECT status::int, count(*) FROM fairlead.job GROUP BY 1"))

    async def marks(self) -> tuple[int, int, int]:
        """Open jobs, ended jobs, and the sum of all runs. If none of these changes, no job moves."""
        sql = "SELECT count(*) - count(ended), count(ended), coalesce(sum(run), 0)::bigint FROM fairlead.job"
        ((open_, ended, runs),) = await self.rows(sql)
        return open_, ended, runs

    async def close(self) -> None:
        async with self._lock:
            await self._drop()

    async def _connected(self) -> Any:
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(self._url, timeout=5, command_timeout=30)
        return self._connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
