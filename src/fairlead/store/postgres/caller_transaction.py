"""Submit inside the caller's own transaction: the job exists if and only if that transaction commits.

The statements of `submit.py` run on the caller's connection, which may be one of

    asyncpg     Connection, also one of a pool
    psycopg 3   AsyncConnection, Connection
    SQLAlchemy  AsyncConnection, AsyncSession, Connection, Session, over either of these drivers

None of these is imported here; the driver is recognised by the class of the connection. The outbox row is written with
the job, and a relaying process picks it up after the commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from fairlead.domain.transitions import Submit
from fairlead.errors import RequestError, StoreError
from fairlead.store.port import Accepted
from fairlead.store.postgres.submit import Statements, Submitted, run, submitting

ORIGIN = "enlisted"
"""The origin of outbox rows written here. It marks rows that the committing process does not relay, so any relaying
process takes them at once."""

_NO_SCHEMA = frozenset({"3F000", "42P01", "42703"})  # no such schema, table, column


async def submit_on(connection: Any, submits: Sequence[Submit]) -> list[Accepted]:
    """Submit all these jobs or none of them, in the transaction of the caller's connection.

    Raises IdempotencyMismatch or TooManyWaiting if a job is refused, with the position of the job as `index` in
    `details`. Nothing is written then, and the caller's transaction remains usable. Raises StoreError if the database
    has no Fairlead schema.
    """
    driver, how = await _driver_of(connection)
    if how == "psycopg":
        return submit_on_sync(driver, submits)
    fetch = partial(_asyncpg if how == "asyncpg" else _psycopg_async, driver)
    with _schema_required():
        async with driver.transaction():  # a savepoint if one is open
            return _accepted(await run(_statements(submits), fetch))


def submit_on_sync(connection: Any, submits: Sequence[Submit]) -> list[Accepted]:
    """Like `submit_on`, for synchronous connections of psycopg and SQLAlchemy."""
    driver = _sync_driver_of(connection)
    statements = _statements(submits)
    with _schema_required(), driver.transaction():
        try:
            sql, parameters = next(statements)
            while True:
                sql, parameters = statements.send(_psycopg(driver, sql, parameters))
        except StopIteration as end:
            return _accepted(end.value)


def _statements(submits: Sequence[Submit]) -> Statements:
    return submitting(submits, origin=ORIGIN, now=None, all_or_nothing=True)


@contextmanager
def _schema_required() -> Iterator[None]:
    """Replace the driver's error about a missing schema by a StoreError that explains it: the caller may be connected
    to another database. The exceptions of all supported drivers have `sqlstate`."""
    try:
        yield
    except Exception as error:
        if getattr(error, "sqlstate", None) not in _NO_SCHEMA:
            raise
        raise StoreError(
            "the database of this connection has no Fairlead schema, or an older one. Check that it is the database of "
            "DATABASE_URL; `fairlead migrate` creates the schema, and so does every process that opens the app"
        ) from error


def _accepted(submitted: Submitted) -> list[Accepted]:
    for index, outcome in enumerate(submitted.outcomes):
        if isinstance(outcome, Exception):
            if isinstance(outcome, RequestError):
                outcome.details["index"] = index
            raise outcome
    return [outcome for outcome in submitted.outcomes if isinstance(outcome, Accepted)]


def _family(connection: Any) -> str | None:
    """The library that the connection comes from. Subclasses that the caller defined are recognised too."""
    modules = (kind.__module__.partition(".")[0] for kind in type(connection).__mro__)
    return next((module for module in modules if module in ("asyncpg", "psycopg", "sqlalchemy")), None)


async def _driver_of(connection: Any) -> tuple[Any, str]:
    """The driver's own connection beneath the caller's connection or session, and the name of the driver."""
    family = _family(connection)
    if family == "sqlalchemy":
        if not _is_async(connection):
            return connection, "psycopg"
        if not hasattr(connection, "get_raw_connection"):
            connection = await connection.connection()  # of an AsyncSession
        # SQLAlchemy begins the transaction with the first statement sent through it, and our statements bypass it.
        await connection.exec_driver_sql("SELECT 1")
        driver = (await connection.get_raw_connection()).driver_connection
        return driver, "asyncpg" if _family(driver) == "asyncpg" else "psycopg-async"
    if family == "asyncpg":
        return connection, "asyncpg"
    if family == "psycopg":
        return connection, "psycopg-async" if _is_async(connection) else "psycopg"
    raise _unknown(connection)


def _sync_driver_of(connection: Any) -> Any:
    if _family(connection) == "sqlalchemy":
        if not hasattr(connection, "exec_driver_sql"):
            connection = connection.connection()  # of a Session
        connection.exec_driver_sql("SELECT 1")
        connection = connection.connection.driver_connection
    if _family(connection) != "psycopg" or _is_async(connection):
        raise _unknown(connection)
    return connection


def _is_async(connection: Any) -> bool:
    return any(kind.__name__.startswith("Async") for kind in type(connection).__mro__)


def _unknown(connection: Any) -> TypeError:
    kind = type(connection)
    return TypeError(
        f"cannot submit on a {kind.__module__}.{kind.__qualname__}: it must be a connection of asyncpg or psycopg 3, "
        "or a connection or session of SQLAlchemy over one of them"
    )


async def _asyncpg(driver: Any, sql: str, parameters: Sequence[Any]) -> list[Any]:
    return list(await driver.fetch(sql, *parameters))


async def _psycopg_async(driver: Any, sql: str, parameters: Sequence[Any]) -> list[Any]:
    from psycopg import AsyncRawCursor
    from psycopg.rows import tuple_row

    # A raw cursor accepts `$1` placeholders. Ignore the row factory of the caller.
    async with AsyncRawCursor(driver, row_factory=tuple_row) as cursor:
        await cursor.execute(sql.encode(), parameters)
        return await cursor.fetchall() if cursor.description else []


def _psycopg(driver: Any, sql: str, parameters: Sequence[Any]) -> list[Any]:
    from psycopg import RawCursor
    from psycopg.rows import tuple_row

    with RawCursor(driver, row_factory=tuple_row) as cursor:
        cursor.execute(sql.encode(), parameters)
        return cursor.fetchall() if cursor.description else []
