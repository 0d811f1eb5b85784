"""One connection: a call's commands go out, and their answers come in.

redis-py knows how to make a connection and to log in. Then its socket is taken over: by way of redis-py's streams every
call would go through a dozen more functions.
"""

from __future__ import annotations

import asyncio
from typing import Any

import hiredis
from redis.asyncio.connection import DefaultParser
from redis.exceptions import ConnectionError, InvalidResponse, ResponseError

_NOTHING = object()


class Wire(asyncio.Protocol):
    """For one call at a time. `usable` until it is closed by either side, or something came that nobody asked for."""

    def __init__(self, link: Any) -> None:
        """`link` is redis-py's connection: connected, and from now on used in no other way."""
        self.usable = True
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(InvalidResponse, DefaultParser.parse_error, notEnoughData=_NOTHING)
        self._answers: list[Any] = []
        self._missing = 0
        self._answered: asyncio.Future[list[Any]] | None = None
        self._transport: asyncio.Transport = link._writer.transport
        self._transport.set_protocol(self)

    async def ask(self, commands: list[bytes], timeout: float) -> list[Any]:
        """The answers, in order; those that are errors of their command only are among them."""
        self._answers, self._missing = [], len(commands)
        self._answered = self._loop.create_future()
        self._transport.write(b"".join(commands))
        # One for the connection: `asyncio.timeout` would have to look for the task, and to tell its own cancellation
        # from others'.
        timer = self._loop.call_later(timeout, self._end, TimeoutError())
        try:
            return await self._answered
        finally:
            timer.cancel()

    async def close(self) -> None:
        self._end(ConnectionError("the connection to Redis was closed"))
        await self._link.disconnect(nowait=True)  # or redis-py would complain of one that nobody closed

    # -- what the event loop calls -------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while self.usable and (answer := self._reader.gets()) is not _NOTHING:
                self._take(answer)
        except InvalidResponse as error:
            self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(ConnectionError(f"the connection to Redis was lost: {error or 'the server closed it'}"))

    def _take(self, answer: Any) -> None:
        if not self._missing or self._answered is None:
            self._end(InvalidResponse("Redis sent an answer that nobody had asked for"))
        elif isinstance(answer, Exception) and not isinstance(answer, ResponseError):
            self._end(answer)  # it is about the connection: the server is loading its data, or has too many clients
        else:
            self._answers.append(answer)
            self._missing -= 1
            if not self._missing and not self._answered.done():
                self._answered.set_result(self._answers)

    def _end(self, error: Exception) -> None:
        self.usable = False
        self._transport.abort()
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error)
