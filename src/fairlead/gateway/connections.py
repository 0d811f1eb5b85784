"""Limits on the number and the duration of connections; and a transport that sends a response in one packet, and that
does not reset a connection while the client is still sending.

A timer per request would cost more than the request. Instead, one timer checks all connections about once a second, and
closes those without progress: the next request does not begin, the request head stays incomplete, the client does not
read the response, or a refused body does not end.

Uvicorn writes the head and the body of a response separately, which takes two system calls and two packets. It also
closes a connection at once, even if the client is still sending; the kernel then resets the connection, and the client
never receives the response.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sized
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

try:
    import termios
    from fcntl import ioctl
except ImportError:  # Windows
    termios = None  # type: ignore[assignment]

CHECK_EVERY_S = 1.0
DISCARD_FOR_S = 30.0
DISCARD_IDLE_S = 5.0
DISCARD_BYTES = 128 * 1024 * 1024
"""Maximum number of bytes of a refused body that are read and discarded. They are read because most clients read the
response only after they have sent the whole body."""
MAX_UNSENT = 256 * 1024 * 1024
"""Maximum number of unsent bytes in all connections together. Above it, connections are closed, first those whose
clients have not read for the longest time."""
HEADS_FRACTION = 4
"""At most one in this many connections may be waiting for a complete request head."""
MIN_HEAD_S = 1.0
"""Seconds that a connection has to send its request head, before it may be closed in favour of a new connection."""

_HEAD = b"HTTP/1."


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server on its connections. The defaults are those of `[server]` in the configuration."""

    max_head: int = 65536
    max_headers: int = 100
    max_url: int = 16384
    head_timeout: float = 20.0
    idle_timeout: float = 5.0
    send_timeout: float = 30.0
    max_connections: int = 10_000


class Stage(Enum):
    HEAD = "head"
    """Waiting for the head of the first or the next request."""
    BUSY = "busy"
    """Reading a request or sending its response."""
    DISCARD = "discard"
    """The response is complete, but the client is still sending its body."""


class Watched(Protocol):
    """The interface of a connection that `Connections` watches."""

    transport: Any
    requests: int
    discarded: int
    idle_since: float | None
    """When the last response was complete, if nothing has arrived since."""

    def stage(self) -> Stage: ...

    def timed_out(self) -> None:
        """End the connection. Called when its client takes too long to send the next request, a request head, or the
        rest of a body that is being discarded."""


@dataclass(slots=True)
class _Progress:
    """The state of a connection at the last check: its stage and number of requests, and how many bytes it had sent and
    discarded. For each of them, also the time of its last change; for the stage, that is `since`."""

    since: float
    stage: tuple[Stage, int] | None = None
    sent: int = 0
    sent_at: float = 0.0
    discarded: int = 0
    discarded_at: float = 0.0


class Connections:
    """Limits the number of connections of a server, and closes those that make no progress. `everything` holds all
    connections of the server. It includes WebSockets: they count toward the limit, but have their own timeouts."""

    def __init__(self, limits: Limits, everything: Sized, loop: asyncio.AbstractEventLoop) -> None:
        self.limits = limits
        self._everything = everything
        self._loop = loop
        self._heads: dict[Watched, float] = {}
        self._watched: dict[Watched, _Progress] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._every = min(CHECK_EVERY_S, limits.head_timeout / 4, limits.idle_timeout / 4, limits.send_timeout / 4)

    # ------------------------------------------------------------ opening and closing

    def admit(self, connection: Watched) -> bool:
        """Start to watch a new connection, and return True. If the limit is reached, first close a connection that
        sends no request head; if there is none, return False."""
        if len(self._everything) >= self.limits.max_connections and not self._drop_a_head():
            return False
        self._watched[connection] = _Progress(since=self._loop.time(), sent_at=self._loop.time())
        self.head_begins(connection)
        if self._timer is None:
            self._timer = self._loop.call_later(self._every, self._check)
        return True

    def forget(self, connection: Watched) -> None:
        self._watched.pop(connection, None)
        self._heads.pop(connection, None)

    def head_begins(self, connection: Watched) -> None:
        if connection not in self._heads:
            if (len(self._heads) + 1) * HEADS_FRACTION > self.limits.max_connections:
                self._drop_a_head()
            self._heads[connection] = self._loop.time()

    def head_ends(self, connection: Watched) -> None:
        self._heads.pop(connection, None)

    def _drop_a_head(self) -> bool:
        """Close the connection that has waited longest for a complete request head, if it has waited at least
        `MIN_HEAD_S`; ordinary clients send their head at once. Returns whether a connection was closed."""
        oldest = next(iter(self._heads), None)
        if oldest is None or self._loop.time() - self._heads[oldest] < MIN_HEAD_S:
            return False
        self.forget(oldest)
        oldest.transport.abort()
        return True

    # ------------------------------------------------------------ checking

    def _check(self) -> None:
        now = self._loop.time()
        unsent: list[tuple[float, int, Watched]] = []
        for connection, progress in list(self._watched.items()):
            if self._is_stuck(connection, progress, now):
                connection.transport.abort()
            elif self._is_late(connection, progress, now):
                connection.timed_out()
            elif size := connection.transport.get_write_buffer_size():
                unsent.append((progress.sent_at, -size, connection))
        self._drop_unsent(unsent)
        self._timer = self._loop.call_later(self._every, self._check) if self._watched else None

    def _drop_unsent(self, unsent: list[tuple[float, int, Watched]]) -> None:
        """If the unsent data of all connections exceeds `MAX_UNSENT`, close connections until it does not: first those
        whose clients have not read for the longest time and, among equals, those with the largest buffers."""
        total = -sum(size for _, size, _ in unsent)
        if total <= MAX_UNSENT:
            return
        for _, size, connection in sorted(unsent, key=lambda each: each[:2]):
            connection.transport.abort()
            total += size
            if total <= MAX_UNSENT:
                return

    def _is_stuck(self, connection: Watched, progress: _Progress, now: float) -> bool:
        """Return whether the client has stopped reading its response."""
        transport = connection.transport
        sent = transport.sent
        if sent != progress.sent or not transport.get_write_buffer_size():
            progress.sent, progress.sent_at = sent, now
        return now - progress.sent_at >= self.limits.send_timeout

    def _is_late(self, connection: Watched, progress: _Progress, now: float) -> bool:
        """Return whether the client takes too long to send the next request, a request head, or the rest of a body that
        is being discarded."""
        if connection.idle_since is not None and now - connection.idle_since >= self.limits.idle_timeout:
            return True
        stage = connection.stage(), connection.requests
        if stage != progress.stage:
            progress.stage, progress.since = stage, now
            progress.discarded_at = now
        if stage[0] is Stage.BUSY:
            return False
        if stage[0] is Stage.HEAD:
            idle = self.limits.idle_timeout if connection.requests else 0.0
            return now - progress.since >= self.limits.head_timeout + idle
        if connection.discarded != progress.discarded:
            progress.discarded, progress.discarded_at = connection.discarded, now
        return now - progress.since >= DISCARD_FOR_S or now - progress.discarded_at >= DISCARD_IDLE_S


def _never() -> bool:
    return False


class CoalescingTransport:
    """Wraps uvicorn's transport (`plain`). Holds a response head back until the next write in the same iteration of the
    event loop, so that head and body are sent in one packet.

    `unread()` returns whether the client is still sending. In that case `close` closes only the sending direction; the
    protocol discards the data that still arrives, and then calls `close` again.
    """

    def __init__(
        self,
        plain: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        unread: Callable[[], bool] = _never,
    ) -> None:
        self.plain = plain
        self.lingering = False
        self._call_soon = loop.call_soon
        self._unread = unread
        self._held: bytes | None = None
        self._written = 0
        # Used for every request, so bound here instead of being resolved by `__getattr__`.
        self.is_closing: Callable[[], bool] = plain.is_closing
        self.resume_reading = plain.resume_reading

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    @property
    def sent(self) -> int:
        """The number of bytes that the client has acknowledged. It grows as long as the client reads.

        The number of bytes that the kernel has accepted is a worse measure of progress: the kernel's buffer holds
        megabytes, and accepts more only when a third of it is free.
        """
        return self._written - self.plain.get_write_buffer_size() - _unacknowledged(self.plain.get_extra_info("socket"))

    def write(self, data: bytes) -> None:
        self._written += len(data)
        held, self._held = self._held, None
        if held is not None:
            # Not `writelines`: in Python 3.12 and later, asyncio's never drains an empty part, does not pause the
            # protocol, and registers a connection that is already lost.
            self.plain.write(held + data)
        elif data.startswith(_HEAD):
            self._held = data
            self._call_soon(self._flush)
        else:
            self.plain.write(data)

    def write_whole(self, response: bytes) -> None:
        """Write a response with its body."""
        self._flush()
        self._written += len(response)
        self.plain.write(response)

    def close(self) -> None:
        self._flush()
        if self.lingering or self.plain.is_closing() or not self._unread():
            self.plain.close()
            return
        self.lingering = True
        self.is_closing = _always
        if self.plain.can_write_eof():
            self.plain.write_eof()
        self.plain.resume_reading()

    def _flush(self) -> None:
        held, self._held = self._held, None
        if held is not None and not self.plain.is_closing():
            self.plain.write(held)


def _always() -> bool:
    return True


def _unacknowledged(link: Any) -> int:
    """Return how many bytes in the kernel's send queue of a socket the client has not acknowledged. Includes bytes that
    are not sent yet."""
    if termios is None or link is None:
        return 0
    size = array("i", [0])
    try:
        ioctl(link.fileno(), termios.TIOCOUTQ, size)
    except (OSError, ValueError):
        return 0
    return size[0]
