"""The open connections to one server. A connection is redis-py's, which knows how to make one and to log in. What goes
over it is packed and awaited here: redis-py's client and pool take about 60 µs of CPU more for it.

A call that ends early, cancelled or by an error, ends its connection: a late answer is never read by the next call.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import hiredis
from redis.exceptions import ResponseError

from fairlead.dispatch.redis.clients import sentinels_of
from fairlead.dispatch.redis.errors import ERRORS

CLOSE_S = 1.0


def packed(*command: str | bytes | int) -> bytes:
    """A command as the server reads it."""
    data: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]
    return data


class Links:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._idle: list[Any] = []
        self._all: set[Any] = set()
        self._drops = 0

    async def ask(self, commands: list[bytes]) -> list[Any]:
        """The answers, in order; those that are errors of their command only are among them."""
        link = self._idle.pop() if self._idle else self.make()
        self._all.add(link)
        answers: list[Any] = []
        drops = self._drops
        try:
            if link.is_connected and await _stirred(link):
                await link.disconnect(nowait=True)
            if not link.is_connected:
                await link.connect()
            await link.send_packed_command(commands, check_health=False)
            for _ in commands:
                try:
                    answers.append(await link.read_response())
                except ResponseError as error:
                    answers.append(error)
        except BaseException:
            self._all.discard(link)
            await link.disconnect(nowait=True)  # redis-py has done so in most cases
            raise
        if drops == self._drops:
            self._idle.append(link)
        else:  # it was still being made when all were to end
            await link.disconnect(nowait=True)
        return answers

    def make(self) -> Any:
        """A connection that is not connected yet."""
        return self._client.connection_pool.make_connection()

    async def drop(self) -> None:
        """End all connections, also those in use; the next call makes a new one."""
        links, self._all, self._idle = self._all, set(), []
        self._drops += 1
        for link in links:
            with contextlib.suppress(*ERRORS):
                async with asyncio.timeout(CLOSE_S):
                    await link.disconnect(nowait=True)

    async def close(self) -> None:
        await self.drop()
        for each in (*sentinels_of(self._client), self._client):
            with contextlib.suppress(*ERRORS):
                async with asyncio.timeout(CLOSE_S):
                    await each.aclose()


async def _stirred(link: Any) -> bool:
    """Whether an idle connection was closed by the server, or has something to read that nobody asked for."""
    try:
        return bool(await (link.can_read if hasattr(link, "can_read") else link.can_read_destructive)())
    except ERRORS:
        return True
