"""The dispatch lock: an advisory lock, held by a connection of its own.

A process that dispatches from memory holds the lock exclusively; processes that dispatch through Redis share it.

The server releases the lock when the connection ends. After a restart of the server, the process takes the lock again
before its next commit. If another process was faster, AlreadyDispatching is raised. That process has raised the epochs,
so starts of this one are refused.

Behind a pooler, sessions are shared with other clients, so the lock belongs to a transaction that stays open. That
transaction reads and writes nothing, so it does not block vacuum.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from contextlib import suppress
from typing import Any, NoReturn

import asyncpg

from fairlead.errors import AlreadyDispatching
from fairlead.store.port import Busy
from fairlead.store.postgres.connect import Server

DISPATCH_LOCK = 0x4641_4952_4449_5350  # "FAIRDISP"

_HOLDER = """
SELECT a.application_name, a.pid FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.classid::bigint = $1 AND l.objid::bigint = $2 AND l.objsubid = 1
AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

_KEEP_OPEN = """
SELECT set_config('application_name', $1, true), set_config('idle_in_transaction_session_timeout', '0', true)
"""


class DispatchLock:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._wanted = False
        self._shared = False
        self._connection: asyncpg.Connection | None = None
        self._host = ""
        self._in_doubt = False
        self._mark = f" #{secrets.token_hex(4)}"
        self._acquiring = asyncio.Lock()  # two concurrent commits may both find it lost

    async def acquire(self, *, shared: bool = False) -> None:
        async with self._acquiring:
            await self._acquire(shared)

    async def _acquire(self, shared: bool) -> None:
        if self._connection is not None and not self._connection.is_closed():
            return
        name = f"fairlead process {os.getpid()} on {socket.gethostname()}"[:50] + self._mark
        connection = await self._server.connection(name)
        try:
            pooled = await connection.fetchval("SELECT pg_backend_pid()") != connection.get_server_pid()
            if pooled:
                await connection.execute("BEGIN")
                await connection.execute(_KEEP_OPEN, name)
            function = f"pg_try_advisory{'_xact' if pooled else ''}_lock{'_shared' if shared else ''}"
            if not await connection.fetchval(f"SELECT {function}($1)", DISPATCH_LOCK):
                await self._refused(connection, name, shared=shared)
        except BaseException:
            connection.terminate()  # it may hold the lock
            raise
        self._connection, self._host = connection, self._server.hosts.current
        self._wanted, self._shared = True, shared

    async def _refused(self, connection: asyncpg.Connection, name: str, *, shared: bool) -> NoReturn:
        """Raise the error for a lock that another session holds. If the holder is an earlier session of this process
        whose connection was lost, it is terminated first, because the server may take hours to notice the lost
        connection."""
        holder = await connection.fetchrow(_HOLDER, DISPATCH_LOCK >> 32, DISPATCH_LOCK & 0xFFFF_FFFF)
        if holder is None:
            raise Busy("the session that had the dispatch lock has just ended")
        if holder[0] == name:
            await connection.execute("SELECT pg_terminate_backend($1)", holder[1])
            raise Busy("our own earlier session still had the dispatch lock")
        what = "dispatches from memory for" if shared else "dispatches from"
        advice = "stop it first" if shared else "submit to it from here, or stop it"
        raise AlreadyDispatching(
            f"the {_named(holder)} already {what} the database at {self._server.shown}: "
            f"{advice}; to run several, use Redis: set REDIS_URL for all of them"
        )

    async def keep(self) -> None:
        """Take the lock again if its connection was lost, or if its server is no longer the primary."""
        if not self._wanted:
            return
        async with self._acquiring:
            if self._in_doubt or self._host != self._server.hosts.current:
                await self._leave_standby()
            await self._acquire(self._shared)

    def doubt(self) -> None:
        """Make the next commit check first whether the server is still the primary. Called when the server refused a
        write."""
        self._in_doubt = True

    async def _leave_standby(self) -> None:
        """Give up a lock on a server that is not the primary any more. Such a lock does not protect the new primary."""
        self._in_doubt = False
        connection = self._connection
        if connection is None or connection.is_closed():
            return
        if self._host == self._server.hosts.current:
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, asyncio.TimeoutError):
                if not await connection.fetchval("SELECT pg_is_in_recovery()"):
                    return
        connection.terminate()

    async def release(self) -> None:
        self._wanted = False
        if self._connection is not None:
            if self._connection.is_in_transaction():
                await self._connection.execute("ROLLBACK", timeout=5)
            await self._connection.close(timeout=5)
            self._connection = None


def _named(holder: Any) -> str:
    name, pid = holder
    name = name.partition(" #")[0]
    return name.removeprefix("fairlead ") if name.startswith("fairlead process ") else f"process {pid} of the server"
