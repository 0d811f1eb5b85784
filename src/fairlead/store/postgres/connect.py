"""Reaching the server: what the URL says, and PostgreSQL's errors as ours.

The URL is libpq's, as asyncpg reads it: `postgresql://user:password@host:5432/database?sslmode=require`. What asyncpg
does not know in the query becomes a setting of the session (`?synchronous_commit=off`). Two options are our own:

    statement_cache_size=0   for PgBouncer in transaction mode before 1.21, which knows no prepared statements
    pool_size=10             connections of this process at most, half of them for commits; at least one each

Through PgBouncer in transaction mode all works but the lock of managers and of `fairlead up` (`lock.py`): it belongs to
a session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg
from asyncpg import exceptions as pg

from fairlead.errors import ConfigError, StoreError, Unavailable
from fairlead.store.port import Busy
from fairlead.store.postgres.writers import IDLE_LIFETIME, Writers

OLDEST_SERVER = 130000  # pg_current_xact_id
CONNECT_TIMEOUT = 10.0
COMMAND_TIMEOUT = 20.0  # a server that does not answer for so long is taken for gone

# What passes by itself, soon: another transaction in the way, or the server restarting or failing over.
_CONTENDED = (pg.DeadlockDetectedError, pg.SerializationError, pg.LockNotAvailableError)
_PASSES = (
    *_CONTENDED,
    pg.PostgresConnectionError,
    pg.CannotConnectNowError,
    pg.AdminShutdownError,
    pg.CrashShutdownError,
    pg.TooManyConnectionsError,
    pg.ReadOnlySQLTransactionError,  # connected to what is, or just became, a standby
    pg.IdleInTransactionSessionTimeoutError,
    ConnectionError,
    asyncio.TimeoutError,
    OSError,
)
_AWAY = (pg.InsufficientResourcesError, pg.OperatorInterventionError, pg.PostgresIOError)
_UNUSABLE = (
    pg.InvalidAuthorizationSpecificationError,
    pg.InvalidCatalogNameError,
    pg.InsufficientPrivilegeError,
    pg.UndefinedTableError,
    pg.UndefinedColumnError,
    pg.UndefinedObjectError,  # a setting in the URL that the server does not know
    pg.InvalidSchemaNameError,
)


@contextmanager
def translated(server: str) -> Iterator[None]:
    """What passes by itself, what an operator must mend, what cannot be used at all."""
    try:
        yield
    except _PASSES as error:
        text = f"PostgreSQL at {server} is away or busy: {_said(error)}"
        raise Busy(text, public="the database is away or busy") from error
    except _AWAY as error:
        text = f"PostgreSQL at {server} cannot go on: {_said(error)}"
        raise Unavailable(text, retry_after=5.0, public="the database cannot go on") from error
    except _UNUSABLE as error:
        raise StoreError(f"the database at {server} cannot be used: {_said(error)}") from error
    except pg.InternalClientError as error:
        # The server ended this session while it was idle, and asyncpg is in the middle of hearing of it.
        text = f"a session of PostgreSQL at {server} was ended: {_said(error)}"
        raise Busy(text, public="a session of the database was ended") from error
    except pg.InterfaceError as error:
        # asyncpg has one class for "the connection is closed" and for a parameter of the wrong type.
        if isinstance(error, ValueError) or not any(word in str(error) for word in ("clos", "released")):
            raise
        text = f"the connection to PostgreSQL at {server} was lost: {error}"
        raise Busy(text, public="the connection to the database was lost") from error


def is_contended(error: Unavailable) -> bool:
    """Only another transaction was in the way; the server itself is well."""
    return isinstance(error.__cause__, _CONTENDED)


def is_ending(error: BaseException) -> bool:
    """Nobody knows what became of the statement. Any other error that the server tells of is its last word on it."""
    return not isinstance(error, asyncpg.PostgresError) or isinstance(
        error, pg.PostgresConnectionError | pg.OperatorInterventionError
    )


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


Backend = tuple[int, str]
"""The server's process behind a connection, and when it began."""


class Writing(asyncpg.Connection):  # type: ignore[misc]
    """A connection for commits. `backend` is None behind a pooler, where a session is nobody's own: its statements then
    need a transaction around them that says how to plan them."""

    __slots__ = ("backend",)

    backend: Backend | None


@dataclass(frozen=True, slots=True)
class Server:
    """Where the truth is. `shown` has no password in it."""

    url: str
    shown: str
    statement_cache_size: int
    pool_size: int

    @classmethod
    def of(cls, url: str, pool_size: int) -> Server:
        parts = urlsplit(url)
        try:
            _ = [urlsplit(f"//{host}").port for host in parts.netloc.rpartition("@")[2].split(",")]
        except ValueError as error:
            raise ConfigError([f"DATABASE_URL: a port is a number from 1 to 65535 ({error})"]) from error
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        try:
            cache = int(options.pop("statement_cache_size", "100"))
            size = int(options.pop("pool_size", str(pool_size)))
        except ValueError as error:
            raise ConfigError([f"DATABASE_URL: statement_cache_size and pool_size are numbers ({error})"]) from error
        if cache < 0 or size < 1:
            raise ConfigError(["DATABASE_URL: statement_cache_size is at least 0, and pool_size at least 1"])
        # SQLAlchemy's way of naming a driver is common in DATABASE_URL, and says nothing to us.
        scheme = parts.scheme.partition("+")[0]
        place = parts.netloc.rpartition("@")[2] or options.get("host", "")
        return cls(
            urlunsplit((scheme, parts.netloc, parts.path, urlencode(options), "")), f"{place}{parts.path}", cache, size
        )

    async def pool(self) -> asyncpg.Pool:
        """For reading: half of the connections, the larger one."""
        return await asyncpg.create_pool(
            self.url,
            min_size=0,  # a server that is away is no reason to log every attempt to reach it
            max_size=-(-self.pool_size // 2),
            max_inactive_connection_lifetime=IDLE_LIFETIME,
            reset=_as_it_is,
            **self._options(),
        )

    def writers(self, prepare: Callable[[Writing], Awaitable[None]]) -> Writers[Writing]:
        """For commits: the other half. `prepare` makes each new connection ready for them."""

        async def connect() -> Writing:
            connection: Writing = await asyncpg.connect(self.url, connection_class=Writing, **self._options())
            try:
                await prepare(connection)
            except BaseException:
                connection.terminate()
                raise
            return connection

        return Writers(connect, max(1, self.pool_size // 2))

    async def connection(self, application_name: str) -> asyncpg.Connection:
        connection = await asyncpg.connect(self.url, **self._options())
        await connection.execute("SELECT set_config('application_name', $1, false)", application_name)
        return connection

    def _options(self) -> dict[str, Any]:
        return {
            "statement_cache_size": self.statement_cache_size,
            "max_cached_statement_lifetime": 0,
            "timeout": CONNECT_TIMEOUT,
            "command_timeout": COMMAND_TIMEOUT,
        }


async def _as_it_is(connection: object) -> None:
    """Nothing outlives its transaction here, so nothing has to be reset: that would be a round trip per read."""
