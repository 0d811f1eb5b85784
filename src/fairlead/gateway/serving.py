"""Options of `uvicorn.Config` that bound the resources a client can use.

Fairlead's protocol classes override undocumented methods of uvicorn, so they are tested when the gateway starts. Each
test feeds requests to a protocol object that has a recording transport instead of a socket, and returns what went
wrong. If the installed uvicorn or websockets behaves differently, the gateway uses uvicorn's own classes and logs a
warning.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import uvicorn
from uvicorn.server import ServerState
from websockets.version import version as websockets_version

from fairlead.domain.config import ServerConfig
from fairlead.gateway.connections import Limits
from fairlead.gateway.http_protocol import BoundedHTTP
from fairlead.gateway.websocket_protocol import FRAMES_AT_ONCE, WEBSOCKET_OPTIONS, websocket_protocol

log = logging.getLogger("fairlead.gateway")

_CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\nX-Trailer: 1\r\n\r\n"
_UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
_PING = b"\x89\x80\x00\x00\x00\x00"
"""An empty, masked ping frame."""
try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


OTHER_FILES = 128
"""File descriptors reserved for databases, logs and pipes."""


def http_problem(protocol: Any) -> str | None:
    """Test an HTTP protocol class with a complete request and with a request that has too many headers. Returns what
    went wrong, or None."""
    try:
        accepted = _Connection(protocol)
        accepted.protocol.data_received(_CHUNKED)
        cycle = accepted.protocol.cycle
        if accepted.tasks != 1 or cycle.response_complete:
            return "it did not start a request"
        if len(cycle.scope["headers"]) != 2 or cycle.more_body:
            return "it did not parse a request correctly"
        _finish(cycle.send({"type": "http.response.start", "status": 204, "headers": []}))
        _finish(cycle.send({"type": "http.response.body", "body": b""}))
        if not accepted.output.startswith(b"HTTP/1.1 204 "):
            return "it did not send a response"
        whole = _Connection(protocol)
        whole.protocol.data_received(_CHUNKED)
        scope = whole.protocol.cycle.scope
        if whole.protocol.take_body(scope, whole.protocol.cycle.receive) != b"1":
            return "it did not pass on a whole body"
        if not whole.protocol.send_whole(scope, 200, [(b"content-length", b"1")], b"1"):
            return "it did not send a whole response"
        if not whole.output.endswith(b"\r\n\r\n1") or not whole.protocol.cycle.response_complete:
            return "it did not complete a whole response"
        refused = _Connection(protocol)
        refused.protocol.data_received(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * (protocol.limits.max_headers + 2))
        if not refused.output.startswith(b"HTTP/1.1 431 ") or refused.tasks:
            return "it did not refuse a head that is too large"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def websocket_problem(protocol: Any) -> str | None:
    """Test a WebSocket protocol class with a client that sends more frames than allowed. Returns what went wrong, or
    None."""
    try:
        connection = _Connection(protocol)
        connection.protocol.data_received(_UPGRADE)
        _finish(connection.protocol.send({"type": "websocket.accept", "subprotocol": None, "headers": []}))
        if connection.tasks != 1 or not connection.output.startswith(b"HTTP/1.1 101 "):
            return "it did not open a WebSocket"
        connection.protocol.data_received(_PING * (FRAMES_AT_ONCE // 2))
        if connection.closed:
            return "it closed a WebSocket within the limit on frames"
        connection.protocol.data_received(_PING * FRAMES_AT_ONCE)
        if not connection.closed or not connection.protocol.close_sent:
            return "it did not limit the number of frames"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _finish(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine to its end without an event loop. Raises RuntimeError if the coroutine waits for anything."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()
    raise RuntimeError("it waits for something while sending")


async def _no_app(scope: Any, receive: Any, send: Any) -> None: ...


class _Connection(asyncio.Transport):
    """A transport that tests a protocol class: it records what the protocol writes. The protocol also uses this object
    as its event loop, which counts tasks and does not run them."""

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self.output = b""
        self.tasks = 0
        self.closed: Any = False
        config = uvicorn.Config(_no_app, lifespan="off", log_config=None, access_log=False, ws="none")
        self.protocol: Any = protocol(config, ServerState(), {}, self)
        self.protocol.logger = logging.Logger("uvicorn.check", logging.CRITICAL)
        self.protocol.connection_made(self)

    # Transport

    def write(self, data: Any) -> None:
        self.output += bytes(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return bool(self.closed)

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    abort = close

    # Event loop

    def time(self) -> float:
        return 0.0

    def call_soon(self, callback: Any, *args: Any) -> None:
        callback(*args)

    def call_later(self, delay: float, callback: Any, *args: Any) -> None: ...

    def create_task(self, coroutine: Coroutine[Any, Any, None], **options: Any) -> asyncio.Future[None]:
        coroutine.close()
        self.tasks += 1
        return _Done()


class _Done(asyncio.Future[None]):
    def __init__(self) -> None: ...

    def add_done_callback(self, *args: Any, **options: Any) -> None: ...


def uvicorn_options(server: ServerConfig) -> dict[str, Any]:
    limits = limits_of(server)
    return {"timeout_keep_alive": limits.idle_timeout, **_http_options(limits), **WEBSOCKET_OPTIONS, "ws": _websocket()}


def _http_options(limits: Limits) -> dict[str, Any]:
    if problem := http_problem(BoundedHTTP):
        log.warning(
            "uvicorn %s is not supported (%s): the limits on request heads, connections and slow readers are off. "
            "Install a version that pyproject.toml allows, and httptools.",
            uvicorn.__version__,
            problem,
        )
        # h11, which uvicorn uses without httptools, has its own limit.
        return {"http": "auto", "h11_max_incomplete_event_size": limits.max_head}
    return {"http": type("BoundedHTTP", (BoundedHTTP,), {"limits": limits})}


def _websocket() -> Any:
    protocol = websocket_protocol()
    problem = "it has no WebSocketsSansIOProtocol" if protocol is None else websocket_problem(protocol)
    if problem is None:
        return protocol
    log.warning(
        "uvicorn %s with websockets %s is not supported (%s): the limits on WebSocket frames and slow readers are off. "
        "Install versions that pyproject.toml allows.",
        uvicorn.__version__,
        websockets_version,
        problem,
    )
    return "auto"


def limits_of(server: ServerConfig) -> Limits:
    max_connections = server.max_connections
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if resource is not None else max_connections
    if 0 < files < max_connections + OTHER_FILES:
        max_connections = max(files - OTHER_FILES, files // 2)
        log.info("limiting connections to %d: this process may open %d files (ulimit -n)", max_connections, files)
    return Limits(
        max_head=server.max_head,
        max_headers=server.max_headers,
        max_url=server.max_url,
        head_timeout=server.head_timeout,
        idle_timeout=server.idle_timeout,
        send_timeout=server.send_timeout,
        max_connections=max_connections,
    )
