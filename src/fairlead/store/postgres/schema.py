"""Checks the server version and migrates the schema.

An advisory lock serialises processes that open a new database at the same time. Everything lives in the schema
`fairlead`, so that Fairlead can share a database with the application that submits jobs.
"""

from __future__ import annotations

import asyncpg
from asyncpg import exceptions as pg

from fairlead.errors import StoreError
from fairlead.store.postgres.connect import OLDEST_SERVER, Server, translated
from fairlead.store.postgres.queries import READS
from fairlead.store.sql_files import migrations

MIGRATION_LOCK = 0x4641_4952_4D49_4752  # "FAIRMIGR"
# ALTER TABLE waits for all transactions that use the table, and later ones queue behind it. It has to give up and retry
# before the commits in that queue time out (`LOCK_TIMEOUT_MS` in store.py).
LOCK_TIMEOUT_MS = 2000
TRIES = 10
_MIGRATIONS = "fairlead.store.postgres"

_FIRST = """
CREATE SCHEMA IF NOT EXISTS fairlead;
CREATE TABLE fairlead.schema_version (number int NOT NULL);
INSERT INTO fairlead.schema_version VALUES (0);
"""


def known_version() -> int:
    return len(migrations(_MIGRATIONS))


async def prepare(connection: asyncpg.Connection, server: Server) -> None:
    number = int(await connection.fetchval("SELECT current_setting('server_version_num')"))
    if number < OLDEST_SERVER:
        raise StoreError(f"PostgreSQL {number // 10000} is too old: 13 or newer is needed")
    for left in range(TRIES - 1, -1, -1):
        if await version_of(connection) == known_version():
            return
        try:
            await _migrate(connection, server)
        except (pg.LockNotAvailableError, pg.DeadlockDetectedError):
            if not left:
                raise


async def _migrate(connection: asyncpg.Connection, server: Server) -> None:
    """Migrate in one transaction, so that a failure leaves the database unchanged."""
    async with connection.transaction():
        await connection.execute(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
        await connection.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
        version = await version_of(connection)
        if version is None:
            await connection.execute(_FIRST)
            version = 0
        if version > known_version():
            raise StoreError(
                f"the database at {server.shown} has schema {version}, but this Fairlead supports {known_version()}: "
                "upgrade Fairlead; the database was not changed"
            )
        for migration in migrations(_MIGRATIONS)[version:]:
            await connection.execute(migration.sql)
            await connection.execute("UPDATE fairlead.schema_version SET number = $1", migration.number)


async def version_of(connection: asyncpg.Connection) -> int | None:
    """The version of the schema, or None if the database has no Fairlead schema."""
    if await connection.fetchval(READS["schema"]) is None:
        return None
    return int(await connection.fetchval(READS["schema_version"]))


async def found_version(url: str) -> int | None:
    """The schema version of the database at this URL. Opens a connection of its own and changes nothing."""
    server = Server.of(url, pool_size=1)
    with translated(server.shown):
        connection = await server.connection("fairlead doctor")
        try:
            return await version_of(connection)
        finally:
            await connection.close()
