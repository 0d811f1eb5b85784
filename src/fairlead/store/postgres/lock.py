"""Only one process may dispatch from memory for a database: it holds an advisory lock on a connection of its own. Those
that dispatch through Redis share it, so that nobody dispatches from memory beside them.

The server gives the lock back when that connection ends, however it ends. If it was the server that went away, the lock
is taken again before the next commit. Should another process have been faster: it raised the epochs when it began, so
that none of our starts is accepted any more, and we say so.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from typing import Any

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


class DispatchLock:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._wanted = False
        self._shared = False
        self._connection: asyncpg.Connection | None = None
        self._mark = f" #{secrets.token_hex(4)}"
        self._acquiring = asyncio.Lock()  # two commits at once may both find that it was lost

    async def acquire(self, *, shared: bool = False) -> None:
        async with self._acquiring:
            await self._acquire(shared)

    async def _acquire(self, shared: bool) -> None:
        if self._connection is not None and not self._connection.is_closed():
            return
        name = f"fairlead process {os.getpid()} on {socket.gethostname()}"[:50] + self._mark
        connection = await self._server.connection(name)
        function = "pg_try_advisory_lock_shared" if shared else "pg_try_advisory_lock"
        if not await connection.fetchval(f"SELECT {function}($1)", DISPATCH_LOCK):
            holder = await connection.fetchrow(_HOLDER, DISPATCH_LOCK >> 32, DISPATCH_LOCK & 0xFFFF_FFFF)
            await connection.close()
            if holder is not None and holder[0] == name:
                raise Busy("the server has not noticed yet that our own earlier session is gone")
            what = "dispatches from memory for" if shared else "dispatches from"
            advice = "stop it first" if shared else "submit to it from here, or stop it"
            raise AlreadyDispatching(
                f"the {_named(holder)} {what} the database at {self._server.shown} already: "
                f"{advice}; to run several, use Redis: set REDIS_URL for all of them"
            )
        self._connection = connection
        self._wanted, self._shared = True, shared

    async def keep(self) -> None:
        """If it was ours and its connection broke, take it again."""
        if self._wanted:
            await self.acquire(shared=self._shared)

    async def release(self) -> None:
        self._wanted = False
        if self._connection is not None:
            await self._connection.close(timeout=5)
            self._connection = None


def _named(holder: Any) -> str:
    if holder is None:
        return "process 0 (unknown, it may have ended just now)"
    name, pid = holder
    name = name.partition(" #")[0]
    return name.removeprefix("fairlead ") if name.startswith("fairlead process ") else f"process {pid} of the server"
