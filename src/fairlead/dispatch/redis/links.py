"""The open connections to one server. redis-py makes them; what goes over them is packed and awaited here and in
`wire.py`: redis-py's client, pool and streams take about 70 µs of CPU more for it.

A call that ends early, cancelled or by an error, ends its connection: a late answer is never read by the next call.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import hiredis

from fairlead.dispatch.redis.clients import sentinels_of
from fairlead.dispatch.redis.errors import ERRORS
from fairlead.dispatch.redis.wire import Wire

CLOSE_S = 1.0


def packed(*command: str | bytes | int) -> bytes:
    """A command as the server reads it."""
    data: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]
    return data


class Links:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._idle: list[Wire] = []
        self._all: set[Wire] = set()
        self._drops = 0

    @property
    def ready(self) -> bool:
        """Whether the next call finds a connection."""
        return bool(self._idle) and self._idle[-1].usable

    async def ask(self, commands: list[bytes], timeout: float) -> list[Any]:
        """The answers, in order; those that are errors of their command only are among them. The time is for the
        answers alone: who is not `ready` connects first."""
        drops = self._drops
        wire = self._idle.pop() if self.ready else await self._connect()
        try:
            answers = await wire.ask(commands, timeout)
        except BaseException:
            await self._end(wire)
            raise
        if drops == self._drops:
            self._idle.append(wire)
        else:  # it was still being made when all were to end
            await self._end(wire)
        return answers

    async def _connect(self) -> Wire:
        while self._idle and not self.ready:
            await self._end(self._idle.pop())
        link = self.make()
        try:
            await link.connect()
        except BaseException:
            await link.disconnect(nowait=True)  # redis-py has done so in most cases
            raise
        wire = Wire(link)
        self._all.add(wire)
        return wire

    async def _end(self, wire: Wire) -> None:
        self._all.discard(wire)
        await wire.close()

    def make(self) -> Any:
        """A connection of redis-py that is not connected yet."""
        return self._client.connection_pool.make_connection()

    async def drop(self) -> None:
        """End all connections, also those in use; the next call makes a new one."""
        wires, self._all, self._idle = self._all, set(), []
        self._drops += 1
        for wire in wires:
            with contextlib.suppress(*ERRORS):
                async with asyncio.timeout(CLOSE_S):
                    await wire.close()

    async def close(self) -> None:
        await self.drop()
        for each in (*sentinels_of(self._client), self._client):
            with contextlib.suppress(*ERRORS):
                async with asyncio.timeout(CLOSE_S):
                    await each.aclose()
