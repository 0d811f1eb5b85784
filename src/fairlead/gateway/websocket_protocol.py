"""A WebSocket protocol for uvicorn with bounded buffers, frame rates and closing times.

Uvicorn closes a connection after flushing its buffer, so a client that reads nothing could keep a connection and its
buffers forever. Uvicorn also answers any number of pings and accepts any number of empty frames.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

try:
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    _UvicornWebSocket: Any = WebSocketsSansIOProtocol
except ImportError:  # uvicorn before 0.35
    _UvicornWebSocket = None

MAX_FRAME = 64 * 1024
PING_EVERY_S = 20.0
PONG_WITHIN_S = 20.0
FLUSH_WITHIN_S = 5.0
BUFFER = 32 * 1024
"""Unsent bytes above which `send` waits."""
KERNEL_BUFFER = 64 * 1024
"""Size of the kernel's send buffer; by default it grows to megabytes for a client that reads nothing."""

FRAMES_AT_ONCE = 500
FRAMES_PER_S = 50.0
"""`FRAMES_AT_ONCE` and `FRAMES_PER_S` are the burst and the rate of frames that a client may send, including pings,
pongs and empty frames. Fairlead's own clients send one frame per job."""
MAX_FRAGMENTS = 1000
SLICE = 4096
"""Received data is parsed in slices of this many bytes, and frames are counted after each slice. A slice contains at
most a few hundred frames."""
POLICY_VIOLATION = 1008

WEBSOCKET_OPTIONS = {
    "ws_max_size": MAX_FRAME,
    "ws_ping_interval": PING_EVERY_S,
    "ws_ping_timeout": PONG_WITHIN_S,
    # Events are short, and a compressor would use more memory than the rest of a connection.
    "ws_per_message_deflate": False,
}
"""Options of `uvicorn.Config`."""


class BoundedWebSocket(_UvicornWebSocket or asyncio.Protocol):  # type: ignore[misc]
    close_sent: bool
    _abort_timer: asyncio.TimerHandle | None = None
    _allowance = float(FRAMES_AT_ONCE)
    _counted_at = 0.0

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), SLICE):
            super().data_received(data[start : start + SLICE])
            if self.transport.is_closing():
                return

    def handle_events(self) -> None:
        if self._over_rate(len(self.conn.events)) or len(self.frames) > MAX_FRAGMENTS:
            self._refuse_frames()
        else:
            super().handle_events()

    def _over_rate(self, frames: int) -> bool:
        """Take `frames` tokens from the connection's token bucket. Returns whether the client has sent more frames than
        allowed."""
        now = self.loop.time()
        refill = (now - self._counted_at) * FRAMES_PER_S
        self._allowance = min(FRAMES_AT_ONCE, self._allowance + refill) - frames
        self._counted_at = now
        return self._allowance < 0

    def _refuse_frames(self) -> None:
        if not self.close_sent:
            self.close_sent = True
            self.queue.put_nowait(
                {"type": "websocket.disconnect", "code": POLICY_VIOLATION, "reason": "too many frames"}
            )
            self.conn.fail(POLICY_VIOLATION, "too many frames")
            self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.close()
        self._abort_soon()

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
            self._abort_soon()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True  # otherwise uvicorn logs that the app sent no response

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._abort_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._abort_timer is not None:
            self._abort_timer.cancel()

    def _abort_soon(self) -> None:
        if not self.disconnected and self._abort_timer is None:
            self._abort_timer = self.loop.call_later(FLUSH_WITHIN_S + 1, self.transport.abort)


def websocket_protocol() -> type[asyncio.Protocol] | None:
    """Return the bounded WebSocket protocol class, or None if uvicorn is older than 0.35."""
    return None if _UvicornWebSocket is None else BoundedWebSocket
