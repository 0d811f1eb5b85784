"""The interface of short messages between processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

MessageHandler = Callable[[str, bytes], None]
"""Called with the channel and the message."""


class PubSub(Protocol):
    """Short messages between processes. Delivery is best effort; anything that must not be lost is in the database."""

    async def start(
        self,
        channels: Sequence[str],
        on_message: MessageHandler,
        on_connect: Callable[[], None] | None = None,
    ) -> None:
        """Subscribe to these channels. Returns immediately, even if the server cannot be reached. `on_connect` is
        called after every connection and reconnection: messages published while there was no connection are lost."""
        ...

    def subscribe(self, channel: str) -> None: ...

    def unsubscribe(self, channel: str) -> None: ...

    def send(self, channel: str, message: bytes) -> None:
        """Publish a message with the next batch of messages. The message is dropped if the server cannot be reached or
        the buffer is full."""
        ...

    async def active_channels(self, pattern: str) -> frozenset[str]:
        """The channels matching `pattern` that have a subscriber in any process."""
        ...

    async def close(self) -> None: ...
