"""Pub/sub over Redis.

Messages sent in one iteration of the event loop are published together. A subscriber that loses its connection
reconnects and resubscribes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from fairlead.dispatch.messages import MessageHandler
from fairlead.dispatch.redis.client import ScriptClient
from fairlead.dispatch.redis.connection import CLOSE_S, Connection
from fairlead.dispatch.redis.errors import ERRORS, unavailable
from fairlead.errors import Unavailable

_log = logging.getLogger("fairlead.pubsub")
_RETRY_S = 0.5
_PING_S = 15.0
"""Interval between pings. A connection without a reply for twice as long is considered lost."""


class Subscriber:
    """Subscribes to channels and passes their messages to `on_message`.

    `subscribed` is set once the server has confirmed all channels of the current connection. `on_connect` is called at
    that moment too, because messages published before it are lost.
    """

    def __init__(
        self, client: ScriptClient, on_message: MessageHandler, on_connect: Callable[[], None] | None = None
    ) -> None:
        self._client = client
        self._on_message = on_message
        self.on_connect = on_connect
        self._channels: set[str] = set()
        self._pending: set[str] = set()
        """The channels that were subscribed or unsubscribed since the last command to the server. Only these are sent,
        even if there are ten thousand others."""
        self._changed = asyncio.Event()
        self._last_reply_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self.subscribed = asyncio.Event()

    def subscribe(self, channel: str) -> None:
        self._channels.add(channel)
        self._change(channel)

    def unsubscribe(self, channel: str) -> None:
        self._channels.discard(channel)
        self._change(channel)

    def _change(self, channel: str) -> None:
        self._pending.add(channel)
        self._changed.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        warned = False
        while True:
            try:
                await self._run_connection()
            except Unavailable as error:
                # Warn once per outage, not once per attempt.
                if self.subscribed.is_set() or not warned:
                    _log.warning("lost the Redis subscription, reconnecting: %s", error)
                warned = True
            self.subscribed.clear()
            await self._client.wait_to_retry(_RETRY_S)

    async def _run_connection(self) -> None:
        connection = await self._client.connect()
        try:
            channels = set(self._channels)
            self._pending.clear()
            unconfirmed = set(channels)
            lost = connection.stream(lambda reply: self._on_reply(reply, unconfirmed))
            lost.add_done_callback(self._on_lost)
            if channels:
                connection.send("SUBSCRIBE", *channels)
            else:
                self._confirm()
            await self._update(connection, channels, lost)
        except ERRORS as error:
            raise unavailable(error) from error
        finally:
            connection.close()

    async def _update(self, connection: Connection, channels: set[str], lost: asyncio.Future[None]) -> None:
        """Send the changes of the subscription, and pings, until the connection is lost. `channels` are the channels
        subscribed on this connection; the set is updated in place."""
        loop = asyncio.get_running_loop()
        self._last_reply_at = loop.time()
        while True:
            self._changed.clear()
            if lost.done():
                lost.result()
            pending, self._pending = self._pending, set()
            added = {channel for channel in pending if channel in self._channels and channel not in channels}
            removed = {channel for channel in pending if channel not in self._channels and channel in channels}
            if added:
                connection.send("SUBSCRIBE", *added)
            if removed:
                connection.send("UNSUBSCRIBE", *removed)
            channels |= added
            channels -= removed
            try:
                async with asyncio.timeout(_PING_S):
                    await self._changed.wait()
            except TimeoutError:
                if loop.time() - self._last_reply_at > 2 * _PING_S:
                    raise
                connection.send("PING")

    def _on_lost(self, lost: asyncio.Future[None]) -> None:
        if not lost.cancelled():
            lost.exception()  # mark the exception as retrieved, because after `close` nothing awaits the future
        self._changed.set()

    def _on_reply(self, reply: Any, unconfirmed: set[str]) -> None:
        self._last_reply_at = asyncio.get_running_loop().time()
        if not isinstance(reply, list):
            return
        kind, channel, data = reply[0], reply[1].decode(), reply[-1]
        if kind == b"message":
            self._receive(channel, data)
        elif kind == b"subscribe" and unconfirmed:
            unconfirmed.discard(channel)
            if not unconfirmed:
                self._confirm()

    def _confirm(self) -> None:
        self.subscribed.set()
        if self.on_connect is not None:
            self.on_connect()

    def _receive(self, channel: str, message: bytes) -> None:
        try:
            self._on_message(channel, message)
        except Exception:
            _log.exception("failed to handle a message on %s", channel)


MAX_BUFFERED = 10_000
_PAUSE_S = 0.5
"""Delay after a failed publish, so that a server that is down is not contacted for every message."""


class RedisPubSub:
    """Implements `PubSub` with Redis channels of the same names. `dropped` counts the messages that were not sent."""

    def __init__(self, url: str) -> None:
        self._client = ScriptClient(url)
        self._subscriber = Subscriber(self._client, self._receive)
        self._on_message: MessageHandler | None = None
        self._buffer: deque[tuple[str, bytes]] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._closed = False
        self.dropped = 0
        self.subscribed = self._subscriber.subscribed

    async def start(
        self,
        channels: Sequence[str],
        on_message: MessageHandler,
        on_connect: Callable[[], None] | None = None,
    ) -> None:
        self._on_message, self._subscriber.on_connect = on_message, on_connect
        for channel in channels:
            self._subscriber.subscribe(channel)
        self._subscriber.start()

    def subscribe(self, channel: str) -> None:
        self._subscriber.subscribe(channel)

    def unsubscribe(self, channel: str) -> None:
        self._subscriber.unsubscribe(channel)

    def _receive(self, channel: str, message: bytes) -> None:
        if self._on_message is not None:
            self._on_message(channel, message)

    def send(self, channel: str, message: bytes) -> None:
        if self._closed:
            self.dropped += 1
            return
        if len(self._buffer) >= MAX_BUFFERED:
            self._buffer.popleft()
            self.dropped += 1
        self._buffer.append((channel, message))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all())

    async def _send_all(self) -> None:
        """Publish messages until the buffer is empty. The task starts in the next iteration of the event loop, so all
        messages sent in the current iteration join the batch."""
        try:
            while self._buffer:
                batch = [("PUBLISH", channel, message) for channel, message in self._buffer]
                self._buffer.clear()
                try:
                    await self._client.on_any(batch)
                except Unavailable as error:
                    self.dropped += len(batch)
                    _log.debug("dropped %d messages: %s", len(batch), error)
                    await self._client.wait_to_retry(_PAUSE_S)
        finally:
            self._sending = None

    async def active_channels(self, pattern: str) -> frozenset[str]:
        replies = await self._client.on_each("PUBSUB", "CHANNELS", pattern)
        # Other applications on the server may use channel names that are not UTF-8.
        return frozenset(channel.decode(errors="replace") for reply in replies for channel in reply)

    async def close(self) -> None:
        """Send the buffered messages, for at most `CLOSE_S` seconds, then disconnect."""
        self._closed = True
        await self._subscriber.close()
        if self._sending is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._sending
        await self._client.close()
