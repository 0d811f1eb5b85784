"""uvicorn's HTTP/1.1 protocol with limits on heads, trailers, pipelining and time.

httptools accepts heads and trailers of any size, and uvicorn treats trailers as headers. The subclass overrides methods
that uvicorn does not document, so `serving.py` tests it at startup.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Any

from uuid_utils import uuid7
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from fairlead.errors import FairleadError, RequestError, Unavailable
from fairlead.gateway.connections import DISCARD_BYTES, CoalescingTransport, Connections, Limits, Stage
from fairlead.gateway.problems import REQUEST_ID, HeadTimeout, HeadTooLarge, UrlTooLong, problem_response
from fairlead.gateway.request_middleware import CLOSE, CONNECTION, SAFE_HEADERS, headers_of

log = logging.getLogger("fairlead.gateway")

MAX_PIPELINED = 100
"""How many requests a client may send on one connection before it has received the first response."""

FORWARDED = frozenset({b"x-forwarded-for", b"x-forwarded-proto"})
"""The headers that `ProxyHeadersMiddleware` reads. Without them it has nothing to do, and is left out."""

_STATUS_LINES = {int(status): f"HTTP/1.1 {status} {status.phrase}\r\n".encode() for status in HTTPStatus}

_UvicornHTTP: Any = AutoHTTPProtocol
"""The class that uvicorn chooses; it depends on what is installed."""


class _Refused(Exception):
    """Raised in a callback of the HTTP parser, to stop the parser."""


class BoundedHTTP(_UvicornHTTP):  # type: ignore[misc]
    """The protocol class for `uvicorn.Config`. `serving.py` derives a class from it with the configured `limits`."""

    transport: Any
    app: Any
    limits = Limits()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.requests = 0
        self.discarded = 0
        self.idle_since: float | None = None
        self._connections = _connections_of(self.server_state, self.limits, self.loop)
        self._in_head = False
        self._in_body = False
        self._body_arrived = False
        self._chunk = 0
        self._unparsed = 0
        self._refusal: FairleadError | None = None
        self._behind_proxy = self._direct = self.app
        if isinstance(self.app, ProxyHeadersMiddleware):
            self._direct = self.app.app

    # ------------------------------------------------------------ connection

    def connection_made(self, transport: asyncio.Transport) -> None:
        admitted = self._connections.admit(self)
        super().connection_made(CoalescingTransport(transport, self.loop, self._is_unread))
        if not admitted:
            self._refuse(Unavailable("this gateway has reached its limit of connections"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.forget(self)
        super().connection_lost(exc)
        if self.cycle is not None:
            self.cycle.scope.pop(CONNECTION, None)  # a reference cycle

    def handle_websocket_upgrade(self, *event: Any) -> None:
        """Stop applying the limits of HTTP when the connection becomes a WebSocket, which has its own limits and
        timeouts."""
        self._connections.forget(self)
        self.transport = self.transport.plain
        super().handle_websocket_upgrade(*event)

    def stage(self) -> Stage:
        if self.transport.lingering:
            return Stage.DISCARD
        if self.cycle is not None and not self.cycle.response_complete:
            return Stage.BUSY
        return Stage.DISCARD if self._in_body else Stage.HEAD

    def timed_out(self) -> None:
        if self.idle_since is not None:
            self.transport.close()
        elif self._in_head and not self.transport.is_closing():
            self._refuse(HeadTimeout(f"no complete request arrived within {self.limits.head_timeout:g} seconds"))
        else:
            self.transport.abort()

    # ------------------------------------------------------------ parsing

    def data_received(self, data: bytes) -> None:
        if self.transport.lingering:
            self._discard(len(data))
            return
        self.idle_since = None
        self._chunk = len(data)
        super().data_received(data)
        if self._in_head:
            self._await_head()
        elif self._in_body:
            self._await_body()

    def _await_head(self) -> None:
        """Refuse a request whose incomplete head is already too large. The first chunk of the head is not counted,
        because it may begin with the end of the previous request's body."""
        self._connections.head_begins(self)
        if len(self.url) > self.limits.max_url:
            self._refuse(self._url_too_long())
        elif self._unparsed > self.limits.max_head or len(self.headers) > self.limits.max_headers:
            self._refuse(self._head_too_large())
        else:
            self._unparsed += self._chunk

    def _await_body(self) -> None:
        """Refuse a request whose trailers or chunk extensions are larger than a head may be."""
        if self._body_arrived:
            self._body_arrived = False
            self._unparsed = 0
            return
        self._unparsed += self._chunk
        if self._unparsed > self.limits.max_head:
            self._refuse(self._head_too_large())

    def on_message_begin(self) -> None:
        self._in_head = True
        self._unparsed = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        limits = self.limits
        if len(self.url) > limits.max_url:
            self._stop(self._url_too_long())
        if len(self.headers) > limits.max_headers or (
            self._unparsed + self._chunk > limits.max_head and self._head_size() > limits.max_head
        ):
            self._stop(self._head_too_large())
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop(RequestError(f"more than {MAX_PIPELINED} requests were sent before the first response"))
        # The parser appends trailers to its own list; the request keeps a copy without them.
        self.scope["headers"] = self.headers.copy()
        forwarded = not FORWARDED.isdisjoint(headers_of(self.scope))
        self.app = self._behind_proxy if forwarded else self._direct
        self._in_head = False
        self._in_body = True
        self._unparsed = 0
        self.requests += 1
        self._connections.head_ends(self)
        self.scope[CONNECTION] = self
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_arrived = True
        if self.cycle is not None and self.cycle.response_complete:
            self._discard(len(body))
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Do as uvicorn does, but without its timer for idle connections: `Connections` closes them."""
        if self.pipeline or self._in_body or self.transport.is_closing():
            super().on_response_complete()
        else:
            self.server_state.total_requests += 1
            self.flow.resume_reading()
            self.idle_since = self.loop.time()

    def has_body(self, scope: Any) -> bool:
        """Whether the whole body of the request with this scope has arrived."""
        cycle = self.cycle
        return cycle is not None and cycle.scope is scope and not (cycle.more_body or cycle.waiting_for_100_continue)

    def take_body(self, scope: Any, receive: Any) -> bytes | None:
        """The body of the request with this scope, as uvicorn's next message would hold it. None if it has not arrived,
        was read before, or the client is gone; or if `receive` is not uvicorn's, because a layer between limits the
        body or notes that it was read."""
        cycle = self.cycle
        if not self.has_body(scope) or receive != cycle.receive or cycle.disconnected or cycle.response_complete:
            return None
        if not cycle.message_event.is_set():
            return None
        self.flow.resume_reading()
        cycle.message_event.clear()
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    def send_whole(self, scope: Any, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """Send the response to the request with this scope, as uvicorn would. `headers` include the length of the body.
        Returns False, and sends nothing, if the response needs more than a write: the client is slow, gone, or does not
        keep its connection; or it has sent further requests."""
        cycle, line = self.cycle, _STATUS_LINES.get(status)
        if line is None or cycle is None or cycle.scope is not scope or cycle.access_log or not cycle.keep_alive:
            return False
        if cycle.response_started or cycle.disconnected or self.flow.write_paused or scope["method"] == "HEAD":
            return False
        lines = [name + b": " + value for name, value in cycle.default_headers + headers]
        head = b"\r\n".join(lines)
        if head.count(b"\n") >= len(lines) or head.count(b"\r") >= len(lines) or head.find(b"\0") >= 0:
            return False  # a header is invalid, for which uvicorn raises an error
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        self.transport.write_whole(b"%b%b\r\n\r\n%b" % (line, head, body))
        cycle.message_event.set()
        cycle.on_response()
        return True

    def _discard(self, size: int) -> None:
        self.discarded += size
        if self.discarded > DISCARD_BYTES:
            self.transport.abort()

    # ------------------------------------------------------------ refusing

    def _is_unread(self) -> bool:
        return self._in_head or self._in_body

    def _stop(self, error: FairleadError) -> None:
        self._refusal = error
        raise _Refused

    def send_400_response(self, msg: str) -> None:
        """Send the error response to a request that is malformed or was refused. Uvicorn calls this method when the
        parser stops."""
        self._in_head = True  # the rest of the request is not read
        self._refuse(self._refusal or RequestError("the request is not HTTP/1.1"))

    def _refuse(self, error: FairleadError) -> None:
        """Send an error response without calling the application."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()  # the error would end up inside an earlier response
            return
        self.transport.write(_error_response(error, getattr(self, "url", b"")))
        log.debug("refused a request: %d %s", error.status, error.code)
        self.transport.close()

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _head_too_large(self) -> FairleadError:
        limits = self.limits
        return HeadTooLarge(
            f"the headers are over {limits.max_head} bytes (server.max_head) or more than {limits.max_headers} "
            "(server.max_headers)"
        )

    def _url_too_long(self) -> FairleadError:
        return UrlTooLong(f"the URL is over {self.limits.max_url} bytes (server.max_url)")


def _error_response(error: FairleadError, url: bytes) -> bytes:
    """The response to a request with this URL, as far as it has arrived. Clients of fronts get their own errors."""
    request_id = uuid7().hex
    path = url.partition(b"?")[0].decode("latin-1")
    response = problem_response(error, {"type": "http", "path": path, REQUEST_ID: request_id})
    headers = dict([*response.raw_headers, CLOSE, (b"x-request-id", request_id.encode()), *SAFE_HEADERS])
    head = [
        f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}".encode(),
        *(name + b": " + value for name, value in headers.items()),
    ]
    return b"\r\n".join(head) + b"\r\n\r\n" + bytes(response.body)


def _connections_of(server_state: Any, limits: Limits, loop: asyncio.AbstractEventLoop) -> Connections:
    """Return the `Connections` object that all connections of a server share, and create it on the first call."""
    shared: Connections | None = getattr(server_state, "fairlead_connections", None)
    if shared is None:
        shared = server_state.fairlead_connections = Connections(limits, server_state.connections, loop)
    return shared
