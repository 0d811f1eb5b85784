"""Connections to a Redis server on our own sockets, and a pool of them.

redis-py supplies the settings of a connection (address, TLS, login) and finds the master behind Sentinels. This module
opens the socket, writes commands and parses replies, because redis-py's client, pool and streams take about 70 µs of
CPU more per call.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

import hiredis
from redis.asyncio.connection import DefaultParser
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.exceptions import AuthenticationWrongNumberOfArgsError, ConnectionError, InvalidResponse, ResponseError

from fairlead.dispatch.redis.errors import DOWN_S, ERRORS, REFUSED_S, Pause, is_refusal
from fairlead.dispatch.redis.servers import IDENTITY_COMMANDS, SOCKET_TIMEOUT_S, Admit, check_identity, close_client

_NO_REPLY = object()


def packed(*command: str | bytes | int) -> bytes:
    """Encode a command in the wire format of Redis."""
    data: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]
    return data


class Connection(asyncio.Protocol):
    """A connection that runs one call at a time. `usable` is true until either side closes the connection or an
    unexpected reply arrives."""

    def __init__(self) -> None:
        self.usable = True
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(InvalidResponse, DefaultParser.parse_error, notEnoughData=_NO_REPLY)
        self._replies: list[Any] = []
        self._missing = 0
        self._done: asyncio.Future[Any] | None = None
        self._on_reply: Callable[[Any], None] | None = None
        self._transport: asyncio.Transport

    async def call(self, commands: list[bytes], timeout: float) -> list[Any]:
        """Send commands and return their replies, in order. An error of a single command is returned as its reply."""
        self._replies, self._missing = [], len(commands)
        self._done = self._loop.create_future()
        self._transport.write(b"".join(commands))
        # A plain timer is cheaper than `asyncio.timeout`, which looks up the current task and has to tell its own
        # cancellation from others.
        timer = self._loop.call_later(timeout, self._end, TimeoutError())
        try:
            replies: list[Any] = await self._done
            return replies
        finally:
            timer.cancel()

    def stream(self, on_reply: Callable[[Any], None]) -> asyncio.Future[None]:
        """Pass all further replies to `on_reply`; used for subscriptions. The returned future fails when the connection
        ends."""
        self._on_reply = on_reply
        self._done = self._loop.create_future()
        return self._done

    def send(self, *command: str) -> None:
        """Send a command on a connection that is in use by `stream`."""
        self._transport.write(packed(*command))

    def close(self) -> None:
        self._end(ConnectionError("the connection to Redis was closed"))

    # -- callbacks of the event loop -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while self.usable and (reply := self._reader.gets()) is not _NO_REPLY:
                self._take(reply)
        except InvalidResponse as error:
            self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(ConnectionError(f"the connection to Redis was lost: {error or 'closed by the server'}"))

    def _take(self, reply: Any) -> None:
        if self._on_reply is not None:
            if isinstance(reply, Exception):
                self._end(reply)
            else:
                self._on_reply(reply)
        elif not self._missing or self._done is None:
            self._end(InvalidResponse("Redis sent an unexpected reply"))
        elif isinstance(reply, Exception) and not isinstance(reply, ResponseError):
            self._end(reply)  # about the connection itself: the server is loading, or has too many clients
        else:
            self._replies.append(reply)
            self._missing -= 1
            if not self._missing and not self._done.done():
                self._done.set_result(self._replies)

    def _end(self, error: Exception) -> None:
        self.usable = False
        self._transport.abort()
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


async def open_connection(pool: Any, admit: Admit | None, timeout: float) -> Connection:
    """Connect and log in with the settings of a redis-py connection pool. If `admit` is given, check the server's
    identity with it."""
    settings = pool.make_connection()
    connection = await _open_socket(pool, settings)
    try:
        await _log_in(connection, settings, admit, timeout)
    except BaseException:
        connection.close()
        raise
    return connection


async def _open_socket(pool: Any, settings: Any) -> Connection:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(settings.socket_connect_timeout):
        if isinstance(pool, SentinelConnectionPool):
            settings.host, settings.port = await pool.get_master_address()  # type: ignore[no-untyped-call]
        path = getattr(settings, "path", None)
        address = path or f"{settings.host}:{settings.port}"
        try:
            if path:
                _, connection = await loop.create_unix_connection(Connection, path)
                return connection
            tls = getattr(settings, "ssl_context", None)
            transport, connection = await loop.create_connection(
                Connection, settings.host, settings.port, ssl=None if tls is None else tls.get()
            )
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionError(f"cannot connect to {address}: {error.strerror or error}") from error
    if settings.socket_keepalive:
        opened = transport.get_extra_info("socket")
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (settings.socket_keepalive_options or {}).items():
            opened.setsockopt(socket.IPPROTO_TCP, option, value)
    return connection


async def _log_in(connection: Connection, settings: Any, admit: Admit | None, timeout: float) -> None:
    if settings.username or settings.password:
        await _authenticate(connection, settings, timeout)
    required = []
    if settings.client_name:
        required.append(packed("CLIENT", "SETNAME", settings.client_name))
    if settings.db:
        required.append(packed("SELECT", int(settings.db)))
    if admit is not None:
        required += [packed(*command) for command in IDENTITY_COMMANDS]
    optional = packed("CLIENT", "SETINFO", "LIB-NAME", "fairlead")  # servers before Redis 7.2 reject it
    _, *replies = await connection.call([optional, *required], timeout)
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    if admit is not None:
        check_identity(admit, replies[-2], replies[-1])


async def _authenticate(connection: Connection, settings: Any, timeout: float) -> None:
    login = (settings.username, settings.password or "") if settings.username else (settings.password,)
    (reply,) = await connection.call([packed("AUTH", *login)], timeout)
    if isinstance(reply, AuthenticationWrongNumberOfArgsError) and settings.username:
        # Servers before Redis 6 have no user names.
        (reply,) = await connection.call([packed("AUTH", login[-1])], timeout)
    if isinstance(reply, Exception):
        raise reply


CLOSE_S = 1.0


class ConnectionPool:
    """A pool of our own connections. The redis-py client only provides their settings.

    All pools of one server share two pauses, during which no connection is opened: `pause` while the server cannot be
    reached or is read-only, and `gate` while its identity is refused because the database names another server.
    """

    def __init__(self, client: Any, admit: Admit | None, pause: Pause, gate: Pause) -> None:
        self._client = client
        self._admit = admit
        self.pause = pause
        self.gate = gate
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._drops = 0

    @property
    def ready(self) -> bool:
        """Whether the next call finds an open connection."""
        return bool(self._idle) and self._idle[-1].usable

    async def call(self, commands: list[bytes], timeout: float) -> list[Any]:
        """Send commands and return their replies, in order. An error of a single command is returned as its reply. The
        timeout starts when a connection is open."""
        drops = self._drops
        connection = self._idle.pop() if self.ready else await self._take_new()
        try:
            replies = await connection.call(commands, timeout)
        except BaseException:
            self._close(connection)
            raise
        if drops == self._drops:
            self._idle.append(connection)
        else:  # `drop` was called while this connection was being opened
            self._close(connection)
        return replies

    async def _take_new(self) -> Connection:
        while self._idle and not self.ready:
            self._close(self._idle.pop())
        connection = await self.connect()
        self._all.add(connection)
        return connection

    def _close(self, connection: Connection) -> None:
        self._all.discard(connection)
        connection.close()

    async def connect(self) -> Connection:
        """Open a new connection that is not part of the pool."""
        self.gate.check()
        self.pause.check()
        successes = self.gate.successes, self.pause.successes
        try:
            connection = await open_connection(self._client.connection_pool, self._admit, SOCKET_TIMEOUT_S)
        except BaseException as error:
            if successes == (self.gate.successes, self.pause.successes):
                if is_refusal(error):
                    self.gate.begin(error, REFUSED_S)
                    self.pause.connected()
                elif isinstance(error, ERRORS):
                    self.pause.begin(error, DOWN_S)
            raise
        self.gate.end()
        self.pause.connected()
        return connection

    def drop(self) -> None:
        """Close all connections, including those in use. The next call opens a new one."""
        connections, self._all, self._idle = self._all, set(), []
        self._drops += 1
        for connection in connections:
            connection.close()

    async def close(self) -> None:
        self.drop()
        with contextlib.suppress(*ERRORS):
            await close_client(self._client, CLOSE_S)
