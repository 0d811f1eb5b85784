"""Submit inside the caller's own transaction: the job exists if and only if that transaction commits.

The statements are those of `submit.py`, run on the caller's connection. It may be one of

    asyncpg     Connection, also one of a pool
    psycopg 3   AsyncConnection, Connection
    SQLAlchemy  AsyncConnection, AsyncSession, Connection, Session, over either of these drivers

and none of these is imported here: the class of the connection tells which it is. The outbox row goes in with the job;
a process that relays finds it there after the commit, since it is not its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fairlead.domain.transitions import Submit
from fairlead.errors import RequestError, StoreError
from fairlead.store.port import Accepted
from fairlead.store.postgres.submit import Submitted, Talk, submitting

ORIGIN = "enlisted"
"""No process has this name, so every one of them takes these rows for another's, and relays them at once."""

_NO_SCHEMA = frozenset({"3F000", "42P01", "42703"})  # no such schema, table, column


async def submit_on(connection: Any, submits: Sequence[Submit]) -> list[Accepted]:
    """All or nothing. Raises what refuses one of them (IdempotencyMismatch, TooManyWaiting), its `details` then say
    which as `index`; nothing was written then, and the caller's transaction is still good. StoreError if the
    schema is not there."""
    driver, how = await _driver_of(connection)
    if how == "psycopg":
        return submit_on_sync(driver, submits)
    talk = _talk(submits)
    with _schema_is_there():
        async with driver.transaction():  # a savepoint if one is open
            try:
                sql, parameters = next(talk)
                while True:
                    rows = await (_asyncpg if how == "asyncpg" else _psycopg_async)(driver, sql, parameters)
                    sql, parameters = talk.send(rows)
            except StopIteration as end:
                return _accepted(end.value)


def submit_on_sync(connection: Any, submits: Sequence[Submit]) -> list[Accepted]:
    """As `submit_on`, for psycopg's and SQLAlchemy's synchronous connections."""
    driver = _sync_driver_of(connection)
    talk = _talk(submits)
    with _schema_is_there(), driver.transaction():
        try:
            sql, parameters = next(talk)
            while True:
                sql, parameters = talk.send(_psycopg(driver, sql, parameters))
        except StopIteration as end:
            return _accepted(end.value)


def _talk(submits: Sequence[Submit]) -> Talk:
    return submitting(submits, origin=ORIGIN, now=None, all_or_nothing=True)


@contextmanager
def _schema_is_there() -> Iterator[None]:
    """The caller's connection may lead to a database that Fairlead has never been opened on. All drivers name the
    server's error the same."""
    try:
        yield
    except Exception as error:
        if getattr(error, "sqlstate", None) not in _NO_SCHEMA:
            raise
        raise StoreError(
            "the database of this connection has no Fairlead schema, or an older one: is it that of DATABASE_URL? "
            "`fairlead migrate` makes it, and so does every process that opens the app"
        ) from error


def _accepted(submitted: Submitted) -> list[Accepted]:
    for index, outcome in enumerate(submitted.outcomes):
        if isinstance(outcome, Exception):
            if isinstance(outcome, RequestError):
                outcome.details["index"] = index
            raise outcome
    return [outcome for outcome in submitted.outcomes if isinstance(outcome, Accepted)]


# ---------------------------------------------------------------- which driver


def _family(connection: Any) -> str | None:
    """Whose connection it is, also if its class is the caller's own."""
    modules = (kind.__module__.partition(".")[0] for kind in type(connection).__mro__)
    return next((module for module in modules if module in ("asyncpg", "psycopg", "sqlalchemy")), None)


async def _driver_of(connection: Any) -> tuple[Any, str]:
    """The driver's own connection, within the caller's transaction, and the way to talk to it."""
    family = _family(connection)
    if family == "sqlalchemy":
        if not _is_async(connection):
            return connection, "psycopg"
        if not hasattr(connection, "get_raw_connection"):
            connection = await connection.connection()  # of an AsyncSession
        # SQLAlchemy begins with the first statement that goes through it, and ours do not.
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


# ---------------------------------------------------------------- how to talk to it


async def _asyncpg(driver: Any, sql: str, parameters: Sequence[Any]) -> list[Any]:
    return list(await driver.fetch(sql, *parameters))


async def _psycopg_async(driver: Any, sql: str, parameters: Sequence[Any]) -> list[Any]:
    from psycopg import AsyncRawCursor
    from psycopg.rows import tuple_row

    # A raw cursor takes `$1` as the server does; and whatever rows the caller likes, we want plain ones.
    async with AsyncRawCursor(driver, row_factory=tuple_row) as cursor:
        await cursor.execute(sql.encode(), parameters)
        return await cursor.fetchall() if cursor.description else []


def _psycopg(driver: Any, sql: str, parameters: Sequence[Any]) -> list[Any]:
    from psycopg import RawCursor
    from psycopg.rows import tuple_row

    with RawCursor(driver, row_factory=tuple_row) as cursor:
        cursor.execute(sql.encode(), parameters)
        return cursor.fetchall() if cursor.description else []
