"""Connections to PostgreSQL, and the translation of its errors.

The URL has the format of libpq: `postgresql://user:password@host:5432/database?sslmode=require`. Options unknown to
asyncpg become settings of the session (`?synchronous_commit=off`). Two options are our own:

    statement_cache_size=0   for PgBouncer before 1.21 in transaction mode, which lacks prepared statements
    pool_size=10             the maximum number of connections: half for reads, half for commits, at least one each

With several hosts (`postgresql://user@a,b/database`) the one that accepts writes is used, unless the URL sets
`target_session_attrs`. After a failover, connections go to the new primary.

PgBouncer in transaction mode is supported. The lock of managers and of `fairlead up` (`lock.py`) then occupies one
pooler connection per process.

Commits have their own pool, `WritePool`, because asyncpg's pool is too slow for them. For every use, that pool creates
a proxy, and a task that returns the connection. Together they take as much time of the event loop as a whole statement,
and on an idle system a job would wait for them twice before it starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg
from asyncpg import exceptions as pg

from fairlead.domain.redaction import redacted
from fairlead.errors import ConfigError, InvalidInput, StoreError, Unavailable
from fairlead.store.port import Busy
from fairlead.urls import postgres_problem

IDLE_LIFETIME = 300.0
CLOSE_TIMEOUT = 5.0


class Closable(Protocol):
    def is_closed(self) -> bool: ...

    def is_in_transaction(self) -> bool: ...

    def terminate(self) -> None: ...

    async def close(self, *, timeout: float) -> None: ...


C = TypeVar("C", bound=Closable)


class WritePool(Generic[C]):
    """A pool of at most `most` connections, opened on demand and closed when they have been idle for some time. A
    connection is closed instead of reused after errors for which `spoils` returns True."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[C]],
        most: int,
        idle_lifetime: float = IDLE_LIFETIME,
        *,
        spoils: Callable[[BaseException], bool] = lambda error: False,
    ) -> None:
        self._connect = connect
        self._spoils = spoils
        self._slots = asyncio.Semaphore(most)
        self._idle: list[tuple[C, float]] = []
        """The idle connections, each with the time since which it is idle, newest last. The newest is used next, so
        that the others time out."""
        self._idle_lifetime = idle_lifetime
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[C]:
        async with self._slots:
            connection = await self._take()
            try:
                yield connection
            except (asyncio.CancelledError, TimeoutError):
                connection.terminate()  # a statement may still be running on it
                raise
            except Exception as error:
                if self._spoils(error):
                    connection.terminate()
                raise
            finally:
                self._give_back(connection)

    async def close(self) -> None:
        """Close idle connections now, and connections that are in use when they are returned."""
        self._closed = True
        self._cancel_timer()
        while self._idle:
            connection, _ = self._idle.pop()
            await connection.close(timeout=CLOSE_TIMEOUT)

    def terminate(self) -> None:
        """Close all idle connections without waiting."""
        self._closed = True
        self._cancel_timer()
        while self._idle:
            self._idle.pop()[0].terminate()

    async def _take(self) -> C:
        while self._idle:
            connection, _ = self._idle.pop()
            if not connection.is_closed():  # the server may have closed it while it was idle
                return connection
        return await self._connect()

    def _give_back(self, connection: C) -> None:
        """Return a connection to the pool. It is closed instead if it is in an unfinished transaction."""
        if self._closed or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
            return
        loop = asyncio.get_running_loop()
        self._idle.append((connection, loop.time()))
        if self._timer is None:
            self._timer = loop.call_later(self._idle_lifetime, self._end_idle)

    def _end_idle(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._idle_lifetime
        while self._idle and self._idle[0][1] <= oldest:
            self._idle.pop(0)[0].terminate()
        self._timer = None
        if self._idle:
            self._timer = loop.call_at(self._idle[0][1] + self._idle_lifetime, self._end_idle)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


OLDEST_SERVER = 130000  # pg_current_xact_id
CONNECT_TIMEOUT = 10.0
COMMAND_TIMEOUT = 20.0  # a server that does not respond for this long counts as gone

# Transient errors: a conflicting transaction, or a server that restarts or fails over.
_CONTENDED = (pg.DeadlockDetectedError, pg.SerializationError, pg.LockNotAvailableError)
_PASSES = (
    *_CONTENDED,
    pg.PostgresConnectionError,
    pg.CannotConnectNowError,
    pg.AdminShutdownError,
    pg.CrashShutdownError,
    pg.TooManyConnectionsError,
    pg.InvalidTransactionStateError,  # read-only: a standby, or a server under maintenance; or idle for too long
    pg.IdleSessionTimeoutError,
    pg.QueryCanceledError,  # by an operator or a timeout: the statement did nothing
    pg.InvalidSQLStatementNameError,  # a pooler or DISCARD dropped our prepared statements
    pg.DuplicatePreparedStatementError,
    pg.InvalidCachedStatementError,  # a table was altered
    ConnectionError,
    asyncio.TimeoutError,
    OSError,
)
# After these errors the session remains usable. After any other error it is closed, because the server may have
# changed: settings that apply to new sessions only (those of the role, or of a standby) would stay outdated in an old
# one.
_SESSION_IS_GOOD = (*_CONTENDED, pg.IntegrityConstraintViolationError, pg.DataError, pg.DiskFullError)
_AWAY = (pg.InsufficientResourcesError, pg.OperatorInterventionError, pg.PostgresIOError)
_UNUSABLE = (
    pg.InvalidAuthorizationSpecificationError,
    pg.InvalidCatalogNameError,
    pg.InsufficientPrivilegeError,
    pg.UndefinedTableError,
    pg.UndefinedColumnError,
    pg.UndefinedObjectError,  # an unknown setting in the URL
    pg.InvalidSchemaNameError,
)


@contextmanager
def translated(server: str) -> Iterator[None]:
    """Translate errors of the driver: transient ones to Busy, lasting ones to Unavailable, and errors of unusable
    databases to StoreError."""
    try:
        yield
    except _PASSES as error:
        text = f"PostgreSQL at {server} is away or busy: {_text(error)}"
        raise Busy(text, public="the database is away or busy") from error
    except _AWAY as error:
        text = f"PostgreSQL at {server} cannot process requests: {_text(error)}"
        raise Unavailable(text, retry_after=5.0, public="the database cannot process requests") from error
    except (pg.CharacterNotInRepertoireError, UnicodeEncodeError) as error:
        raise InvalidInput("a text must not contain the character NUL or a lone surrogate") from error
    except _UNUSABLE as error:
        raise StoreError(f"the database at {server} cannot be used: {_text(error)}{_next_step(error)}") from error
    except pg.TargetServerAttributeNotMatched as error:
        text = f"none of the PostgreSQL servers at {server} accepts writes: {_text(error)}"
        raise Busy(text, public="the database does not accept writes") from error
    except pg.InternalClientError as error:
        # The server ended this session while it was idle, and asyncpg has not finished closing the connection.
        text = f"a session of PostgreSQL at {server} was ended: {_text(error)}"
        raise Busy(text, public="a session of the database was ended") from error
    except pg.ClientConfigurationError as error:
        # An option of the URL, such as sslmode, has a value that asyncpg does not understand.
        raise ConfigError([f"DATABASE_URL: {redacted(str(error))}"]) from None
    except pg.InterfaceError as error:
        # asyncpg has one class for "the connection is closed" and for a parameter of the wrong type.
        if isinstance(error, ValueError) or not any(word in str(error) for word in ("clos", "released")):
            raise
        text = f"the connection to PostgreSQL at {server} was lost: {error}"
        raise Busy(text, public="the connection to the database was lost") from error


def is_contended(error: Unavailable) -> bool:
    """Whether the error is a conflict with another transaction, and not a failure of the server."""
    return isinstance(error.__cause__, _CONTENDED)


def is_full(error: Unavailable) -> bool:
    return isinstance(error.__cause__, pg.DiskFullError)


def is_read_only(error: Unavailable) -> bool:
    """Whether the server refuses writes: it may have become a standby."""
    return isinstance(error.__cause__, pg.ReadOnlySQLTransactionError)


def spoils_session(error: BaseException) -> bool:
    """Whether the connection is unusable after this error."""
    if isinstance(error, asyncpg.PostgresError):
        return not isinstance(error, _SESSION_IS_GOOD)
    # A ValueError is a parameter of the wrong type, which asyncpg detects before sending anything.
    return isinstance(error, asyncpg.InterfaceError | pg.InternalClientError) and not isinstance(error, ValueError)


def is_ending(error: BaseException) -> bool:
    """Whether the statement may have taken effect despite this error: it is an error of the client, such as a lost
    connection, or the server ended the connection or cancelled the statement. After all other errors of the server, the
    statement had no effect."""
    return not isinstance(error, asyncpg.PostgresError) or isinstance(
        error, pg.PostgresConnectionError | pg.OperatorInterventionError
    )


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


_NEXT_STEPS = {
    pg.InvalidPasswordError: "check the password in DATABASE_URL",
    pg.InvalidAuthorizationSpecificationError: "check the user in DATABASE_URL, or create the role with `createuser`",
    pg.InvalidCatalogNameError: "check the name in DATABASE_URL, or create the database with `createdb`",
}


def _next_step(error: BaseException) -> str:
    return next((f"; {step}" for kind, step in _NEXT_STEPS.items() if isinstance(error, kind)), "")


Backend = tuple[int, str]
"""The server process of a connection, and when it started."""


class Writing(asyncpg.Connection):  # type: ignore[misc]
    """A connection for commits. `backend` is None behind a pooler. Clients of a pooler share sessions, so planner
    settings must then be made inside a transaction."""

    __slots__ = ("backend",)

    backend: Backend | None


class Hosts:
    """The hosts of a URL that lists several, as one URL per host, most recently used first.

    Each host is tried with its own timeout. asyncpg would use one timeout for all hosts, and a host that does not
    respond would use it up.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = list(urls)

    @property
    def current(self) -> str:
        return self._urls[0]

    async def connect(self, **options: Any) -> asyncpg.Connection:
        if len(self._urls) == 1:
            return await asyncpg.connect(self.current, **options)
        if "target_session_attrs=" not in self.current:
            options["target_session_attrs"] = "read-write"
        problem: Exception | None = None
        for url in tuple(self._urls):
            try:
                connection = await asyncpg.connect(url, **options)
            except (TimeoutError, OSError, asyncpg.PostgresError, pg.InternalClientError) as error:
                # Report the error of an unreachable host, which may be the primary, rather than "not a primary".
                if problem is None or not isinstance(error, pg.TargetServerAttributeNotMatched):
                    problem = error
            else:
                self._urls.remove(url)
                self._urls.insert(0, url)
                return connection
        assert problem is not None
        raise problem


@dataclass(frozen=True, slots=True)
class Server:
    """A parsed DATABASE_URL. `shown` is the URL for messages, without the password."""

    url: str
    shown: str
    statement_cache_size: int
    pool_size: int
    hosts: Hosts = field(compare=False)

    @classmethod
    def of(cls, url: str, pool_size: int) -> Server:
        if problem := postgres_problem(url):
            raise ConfigError([f"DATABASE_URL: {problem}"])
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        try:
            cache = int(options.pop("statement_cache_size", "100"))
            size = int(options.pop("pool_size", str(pool_size)))
        except ValueError:
            raise ConfigError(["DATABASE_URL: statement_cache_size and pool_size are numbers"]) from None
        if cache < 0 or size < 1:
            raise ConfigError(["DATABASE_URL: statement_cache_size is at least 0, and pool_size at least 1"])
        # Ignore the driver of an SQLAlchemy URL (postgresql+asyncpg://).
        scheme = parts.scheme.partition("+")[0]
        address = parts.netloc.rpartition("@")[2] or options.get("host", "")
        user, at, hosts = parts.netloc.rpartition("@")
        urls = [
            urlunsplit((scheme, netloc, parts.path, urlencode(options), ""))
            for netloc in (parts.netloc, *(f"{user}{at}{host}" for host in hosts.split(",")))
        ]
        return cls(urls[0], f"{address}{parts.path}", cache, size, Hosts(urls[1:]))

    async def pool(self) -> asyncpg.Pool:
        """The pool of connections for reads: half of `pool_size`, rounded up."""
        return await asyncpg.create_pool(
            connect=self._connect_reader,
            min_size=0,  # otherwise asyncpg logs every failed attempt while the server is away
            max_size=-(-self.pool_size // 2),
            max_inactive_connection_lifetime=IDLE_LIFETIME,
            reset=_no_reset,
            **self._options(),
        )

    def writers(self, prepare: Callable[[Writing], Awaitable[None]]) -> WritePool[Writing]:
        """The pool of connections for commits: the other half of `pool_size`, at least one. `prepare` sets up each new
        connection."""

        async def connect() -> Writing:
            connection: Writing = await self.hosts.connect(connection_class=Writing, **self._options())
            try:
                await prepare(connection)
            except BaseException:
                connection.terminate()
                raise
            return connection

        return WritePool(connect, max(1, self.pool_size // 2), spoils=spoils_session)

    async def connection(self, application_name: str) -> asyncpg.Connection:
        connection = await self.hosts.connect(**self._options())
        await connection.execute("SELECT set_config('application_name', $1, false)", application_name)
        return connection

    async def _connect_reader(self, *_: object, **options: Any) -> asyncpg.Connection:
        return await self.hosts.connect(**options)

    def _options(self) -> dict[str, Any]:
        return {
            "statement_cache_size": self.statement_cache_size,
            "max_cached_statement_lifetime": 0,
            "timeout": CONNECT_TIMEOUT,
            "command_timeout": COMMAND_TIMEOUT,
        }


async def _no_reset(connection: object) -> None:
    """Replaces asyncpg's reset of returned connections, which costs a round trip per read. Reads leave no session state
    behind, so nothing has to be reset."""
