"""WebSockets as uvicorn carries them: small, and gone when they are over.

Uvicorn closes a connection by flushing what is still to be sent. A client that reads nothing would keep its buffers,
and its place among our connections, for as long as it likes.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

MAX_FRAME = 64 * 1024
PING_EVERY_S = 20.0
PONG_WITHIN_S = 20.0
FLUSH_WITHIN_S = 5.0
BUFFER = 32 * 1024
"""Bytes that may wait to be sent before a send waits too."""
KERNEL_BUFFER = 64 * 1024
"""The same, of what the kernel keeps; left alone it gives megabytes to a client that reads nothing."""


def websocket_options() -> dict[str, Any]:
    """Of `uvicorn.Config`."""
    return {
        "ws": _protocol(),
        "ws_max_size": MAX_FRAME,
        "ws_ping_interval": PING_EVERY_S,
        "ws_ping_timeout": PONG_WITHIN_S,
        # Events are short, and a compressor takes more memory than all else of a connection together.
        "ws_per_message_deflate": False,
    }


def _protocol() -> type[asyncio.Protocol] | str:
    try:
        from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
    except ImportError:  # before uvicorn 0.35
        return "websockets"

    class Carrier(WebSocketsSansIOProtocol):
        _cut: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport.set_write_buffer_limits(high=BUFFER)
            link = transport.get_extra_info("socket")
            if link is not None:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER)
            self.close_timeout = FLUSH_WITHIN_S

        async def run_asgi(self) -> None:
            try:
                await super().run_asgi()
            finally:
                self._cut_soon()

        async def send(self, message: Any) -> None:
            await super().send(message)
            if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
                self.handshake_complete = True  # or uvicorn would complain that the app said nothing

        def keepalive_timeout(self) -> None:
            super().keepalive_timeout()
            self._cut_soon()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self._cut is not None:
                self._cut.cancel()

        def _cut_soon(self) -> None:
            if not self.disconnected and self._cut is None:
                self._cut = self.loop.call_later(FLUSH_WITHIN_S + 1, self.transport.abort)

    return Carrier
