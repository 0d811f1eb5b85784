"""One connection that listens to channels. When it is lost another is made, with all of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from fairlead.dispatch.port import Heard
from fairlead.dispatch.redis.connection import Connection
from fairlead.dispatch.redis.errors import ERRORS, unavailable
from fairlead.errors import Unavailable

_log = logging.getLogger(__name__)
_RETRY_S = 0.5
_PING_S = 15.0
"""How often to ask whether the other end is still there; after twice as long without an answer it is not."""


class Subscriber:
    """`listening` is set while all that was asked for at the start of the connection is heard; `began` is called at the
    start of every connection, then: what was said before was missed."""

    def __init__(self, connection: Connection, heard: Heard, began: Callable[[], None] | None = None) -> None:
        self._connection = connection
        self._heard = heard
        self.began = began
        self._wanted: set[str] = set()
        self._touched: set[str] = set()
        """Channels whose wish has changed since the server was told: of ten thousand, it is one at a time."""
        self._changed = asyncio.Event()
        self._answered_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self.listening = asyncio.Event()

    def listen(self, channel: str) -> None:
        self._wanted.add(channel)
        self._touch(channel)

    def unlisten(self, channel: str) -> None:
        self._wanted.discard(channel)
        self._touch(channel)

    def _touch(self, channel: str) -> None:
        self._touched.add(channel)
        self._changed.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_listening())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _keep_listening(self) -> None:
        warned = False
        while True:
            try:
                await self._listen()
            except Unavailable as error:
                # Once for every time that it is away, not once for every attempt.
                if self.listening.is_set() or not warned:
                    _log.warning("nothing is heard from Redis for now: %s", error)
                warned = True
            self.listening.clear()
            await asyncio.sleep(_RETRY_S)

    async def _listen(self) -> None:
        connection = await self._connection.connect()
        tasks: list[asyncio.Task[None]] = []
        try:
            first = set(self._wanted)
            self._touched.clear()
            if first:
                await connection.send_command("SUBSCRIBE", *first)
            tasks = [
                asyncio.create_task(self._read(connection, awaited=set(first))),
                asyncio.create_task(self._tell(connection, told=first)),
            ]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except ERRORS as error:
            raise unavailable(error) from error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(*ERRORS):
                await connection.disconnect(nowait=True)

    async def _tell(self, connection: Any, told: set[str]) -> None:
        """Say which channels, whenever that has changed."""
        loop = asyncio.get_running_loop()
        self._answered_at = loop.time()
        while True:
            self._changed.clear()
            touched, self._touched = self._touched, set()
            new = {channel for channel in touched if channel in self._wanted and channel not in told}
            gone = {channel for channel in touched if channel not in self._wanted and channel in told}
            if new:
                await connection.send_command("SUBSCRIBE", *new)
            if gone:
                await connection.send_command("UNSUBSCRIBE", *gone)
            told |= new
            told -= gone
            try:
                async with asyncio.timeout(_PING_S):
                    await self._changed.wait()
            except TimeoutError:
                if loop.time() - self._answered_at > 2 * _PING_S:
                    raise
                await connection.send_command("PING")

    async def _read(self, connection: Any, awaited: set[str]) -> None:
        loop = asyncio.get_running_loop()
        if not awaited:
            self._now_listening()
        while True:
            message = await connection.read_response(push_request=True)
            self._answered_at = loop.time()
            if not isinstance(message, list):
                continue
            kind, channel, data = message[0], message[1].decode(), message[-1]
            if kind == b"message":
                self._hear(channel, data)
            elif kind == b"subscribe" and awaited:
                awaited.discard(channel)
                if not awaited:
                    self._now_listening()

    def _now_listening(self) -> None:
        self.listening.set()
        if self.began is not None:
            self.began()

    def _hear(self, channel: str, message: bytes) -> None:
        try:
            self._heard(channel, message)
        except Exception:
            _log.exception("a message on %s was not understood", channel)
