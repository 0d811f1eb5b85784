"""Short messages between processes, over Redis: what is sent gathers until the loop's next turn and goes as one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence

from fairlead.dispatch.port import Heard
from fairlead.dispatch.redis.connection import Connection
from fairlead.dispatch.redis.links import CLOSE_S
from fairlead.dispatch.redis.subscriber import Subscriber
from fairlead.errors import Unavailable

_log = logging.getLogger(__name__)
MOST_GATHERED = 10_000
_PAUSE_S = 0.5
"""After a failure: a server that is away is not asked again for every message."""


class RedisBus:
    """Implements `Bus`. Channels are those of Redis, by the same names. `dropped` counts what was not sent."""

    def __init__(self, url: str) -> None:
        self._connection = Connection(url)
        self._subscriber = Subscriber(self._connection, self._hear)
        self._heard: Heard | None = None
        self._gathered: deque[tuple[str, bytes]] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._closed = False
        self.dropped = 0
        self.listening = self._subscriber.listening

    async def start(self, channels: Sequence[str], heard: Heard, began: Callable[[], None] | None = None) -> None:
        self._heard, self._subscriber.began = heard, began
        for channel in channels:
            self._subscriber.listen(channel)
        self._subscriber.start()

    def listen(self, channel: str) -> None:
        self._subscriber.listen(channel)

    def unlisten(self, channel: str) -> None:
        self._subscriber.unlisten(channel)

    def _hear(self, channel: str, message: bytes) -> None:
        if self._heard is not None:
            self._heard(channel, message)

    def send(self, channel: str, message: bytes) -> None:
        if self._closed:
            self.dropped += 1
            return
        if len(self._gathered) >= MOST_GATHERED:
            self._gathered.popleft()
            self.dropped += 1
        self._gathered.append((channel, message))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all())

    async def _send_all(self) -> None:
        """Runs while there is something to send. A task begins in the loop's next turn: until then more gathers."""
        try:
            while self._gathered:
                batch = [("PUBLISH", channel, message) for channel, message in self._gathered]
                self._gathered.clear()
                try:
                    await self._connection.on_any(batch)
                except Unavailable as error:
                    self.dropped += len(batch)
                    _log.debug("%d messages were not sent: %s", len(batch), error)
                    await asyncio.sleep(_PAUSE_S)
        finally:
            self._sending = None

    async def listened(self, pattern: str) -> frozenset[str]:
        answers = await self._connection.on_each("PUBSUB", "CHANNELS", pattern)
        # Whoever shares the server may give channels any name at all.
        return frozenset(channel.decode(errors="replace") for answer in answers for channel in answer)

    async def close(self) -> None:
        """What was sent before still goes, if that takes no longer than a moment."""
        self._closed = True
        await self._subscriber.close()
        if self._sending is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._sending
        await self._connection.close()
