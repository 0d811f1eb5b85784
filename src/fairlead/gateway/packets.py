"""An answer leaves in one packet.

Uvicorn writes the head of an answer and then its body, each with a call of the system that wakes the client: two
packets, of which the first says nothing that anybody could use yet.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

_HEAD = b"HTTP/1."
_Chosen: Any = AutoHTTPProtocol
"""What uvicorn would take itself: it depends on what is installed."""


class OnePacket(_Chosen):  # type: ignore[misc]
    """As `uvicorn.Config` takes it."""

    transport: Any

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(HeadsHeldBack(transport, self.loop))

    def handle_websocket_upgrade(self, *event: Any) -> None:
        """What a WebSocket sends is whole as it is."""
        self.transport = self.transport.plain
        super().handle_websocket_upgrade(*event)


class HeadsHeldBack:
    """Like the transport `plain`, but what begins with the head of an answer is written together with what is written
    next, if that comes in the same turn of the loop."""

    def __init__(self, plain: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self.plain = plain
        self._call_soon = loop.call_soon
        self._held: bytes | None = None
        # Used for every request, so not looked for where it is not.
        self.is_closing = plain.is_closing
        self.resume_reading = plain.resume_reading

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def write(self, data: bytes) -> None:
        held, self._held = self._held, None
        if held is not None:
            self.plain.writelines((held, data))
        elif data.startswith(_HEAD):
            self._held = data
            self._call_soon(self._let_go)
        else:
            self.plain.write(data)

    def close(self) -> None:
        self._let_go()
        self.plain.close()

    def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None and not self.is_closing():
            self.plain.write(held)
