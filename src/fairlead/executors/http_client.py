"""A client for POST requests to plain `http` servers: HTTP/1.1 without TLS, redirects, cookies, proxies or hooks.

A request takes a third of the CPU time that it takes with aiohttp: it needs one future, and no task or timer. aiohttp
makes all other requests, and its errors are raised here too, so that callers handle the responses of both alike.

A connection is used again only if its response is complete, and nothing is left to send or to read. Otherwise it is
closed. A request is never sent twice: if a server closes an idle connection at the moment of its next use, the request
fails, as it does with aiohttp.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohappyeyeballs
import aiohttp
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from multidict import CIMultiDict
from yarl import URL

from fairlead.domain.openai import is_header_value
from fairlead.version import __version__

CONNECT_WITHIN_S = 10.0
NEXT_ADDRESS_AFTER_S = 0.25
RESOLVED_FOR_S = 10.0
"""How long the addresses of a host are used for further connections."""
IDLE_S = 15.0
"""Connections that were idle for longer are closed: the server may be about to close them."""
MAX_HEAD = 64 * 1024
"""Bytes before the body, between two pieces of it, or after it."""
MAX_BUFFERED = 256 * 1024
"""Reading pauses while a response has more unread bytes than this."""
MAX_UNPACKED = 32 * 1024 * 1024
"""What one piece of a compressed body may contain."""

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SET_HERE = re.compile(
    "connection|content-.*|expect|idempotency-key|keep-alive|proxy-.*|te|trace.*|trailer|transfer-.*|upgrade",
    re.IGNORECASE,
)
"""Headers that describe the body or the connection, or that differ between requests."""


class Address(NamedTuple):
    host: str
    port: int
    ssl: bool = False


class Target(NamedTuple):
    """The server of a URL, and the lines that begin each request to the URL."""

    address: Address
    head: str


def target_of(text: str, headers: Mapping[str, str]) -> Target | None:
    """The target of requests to this URL with these headers; None if this client does not make such requests."""
    try:
        url = URL(text)
    except ValueError:
        return None
    if url.scheme != "http" or not url.raw_host or not url.port or "@" in url.raw_authority:
        return None
    for name, value in headers.items():
        if _SET_HERE.fullmatch(name) or not _NAME.fullmatch(name) or not is_header_value(value):
            return None
    names = {name.lower() for name in headers}
    sent = {
        "Host": url.host_port_subcomponent or "",
        "Accept": "*/*",
        "Accept-Encoding": "identity",
        "User-Agent": f"fairlead/{__version__}",
    }
    sent = {name: value for name, value in sent.items() if name.lower() not in names} | dict(headers)
    return Target(Address(url.raw_host, url.port), f"POST {url.raw_path_qs} HTTP/1.1\r\n{_lines(sent)}")


def _lines(headers: Mapping[str, str]) -> str:
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers) or "\0" in lines:
        raise ValueError("a header has a line break or NUL")
    return lines


class HttpClient:
    """A client with connections that are used again. There is no limit to their number: slots limit the calls."""

    def __init__(self) -> None:
        self._open: set[Connection] = set()
        self._idle: dict[Address, dict[Connection, float]] = {}
        """Connections, and since when they are idle; the one that was used last is the last."""
        self._timer: asyncio.TimerHandle | None = None
        self._lookups: dict[Address, asyncio.Task[list[Any]]] = {}
        self._closed = False

    async def post(self, target: Target, headers: Mapping[str, str], body: bytes) -> Response:
        """Send a request, and wait for the head of its response, which is a context manager. Raises ClientError."""
        request = f"{target.head}{_lines(headers)}Content-Length: {len(body)}\r\n\r\n".encode() + body
        connection = self._taken(target.address) or await self._connected(target.address)
        response = connection.send(request)
        try:
            while not response.has_head:
                await response.changed()
        except BaseException:
            connection.close()
            raise
        return response

    def _taken(self, address: Address) -> Connection | None:
        idle = self._idle.get(address)
        while idle:
            connection, since = idle.popitem()
            if connection.is_open and time.monotonic() - since < IDLE_S:
                return connection
            connection.close()
        return None

    async def _connected(self, address: Address) -> Connection:
        host, port, _ = address
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                found = await self._found(address, loop)
                opened = await aiohappyeyeballs.start_connection(found, happy_eyeballs_delay=NEXT_ADDRESS_AFTER_S)
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _, connection = await loop.create_connection(lambda: Connection(self, address, loop), sock=opened)
        except UnicodeError as error:
            raise aiohttp.InvalidURL(host, str(error)) from error
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"cannot connect to {host}:{port} in time") from error
        except OSError as error:
            raise aiohttp.ClientConnectorError(address, error) from error  # type: ignore[arg-type]
        # Only now: uvloop calls `connection_made`, but not `connection_lost`, if the call is cancelled at this moment.
        if connection.is_open:
            self._open.add(connection)
        if self._closed:
            connection.close()
        return connection

    async def _found(self, address: Address, loop: asyncio.AbstractEventLoop) -> list[Any]:
        """What a host resolves to. Connections that are opened together share a lookup, even if some are given up."""
        lookup = self._lookups.get(address)
        if lookup is None:
            lookup = self._lookups[address] = loop.create_task(_look_up(address, loop))
            loop.call_later(RESOLVED_FOR_S, self._lookups.pop, address, None)
        try:
            return await asyncio.shield(lookup)
        except (OSError, UnicodeError):
            self._lookups.pop(address, None)
            raise

    # ------------------------------------------------------------ connections

    def keep(self, connection: Connection) -> None:
        """Take back a connection that can be used again."""
        if self._closed:
            connection.close()
            return
        self._idle.setdefault(connection.address, {})[connection] = time.monotonic()
        if self._timer is None:
            self._timer = connection.loop.call_later(IDLE_S, self._close_stale)

    def forget(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._idle.get(connection.address, {}).pop(connection, None)

    def _close_stale(self) -> None:
        oldest, self._timer = time.monotonic() - IDLE_S, None
        for address, idle in list(self._idle.items()):
            for connection in [connection for connection, since in idle.items() if since <= oldest]:
                del idle[connection]
                connection.close()
            if not idle:
                del self._idle[address]
        if self._idle:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._close_stale)

    def close(self) -> None:
        """Close all connections. Requests that are not over fail."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._open):
            connection.close()


async def _look_up(address: Address, loop: asyncio.AbstractEventLoop) -> list[Any]:
    return await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)


class Response:
    """The response to one request, with the part of aiohttp's interface that executors use. At the end of its context,
    its connection is used again or closed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.status = 0
        self.reason = ""
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.has_head = self.is_packed = self.complete = self.keeps_alive = False
        self.pieces: list[bytes] = []
        self._buffered = 0
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def content_type(self) -> str:
        return self.headers.get("Content-Type", "application/octet-stream").partition(";")[0].strip().lower()

    @property
    def content(self) -> Response:
        return self

    def iter_any(self) -> Response:
        return self

    def __aiter__(self) -> Response:
        return self

    async def __anext__(self) -> bytes:
        if piece := await self.readany():
            return piece
        raise StopAsyncIteration

    async def readany(self) -> bytes:
        """What has arrived since the last piece; empty at the end. Raises ClientPayloadError if the connection is lost
        before the end."""
        while not self.pieces and not self.complete:
            await self.changed()
        piece = b"".join(self.pieces)
        self.pieces, self._buffered = [], 0
        self._connection.resume(self)
        return piece

    async def __aenter__(self) -> Response:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connection.release(self)

    def close(self) -> None:
        """Close the connection: the rest of the response is not wanted."""
        self._connection.close(self)

    async def changed(self) -> None:
        """Wait until more has arrived. Raises what has ended the connection."""
        if self._error is not None:
            raise self._error
        self._waiter = self._connection.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # ------------------------------------------------------------ called by the connection

    def add(self, piece: bytes) -> bool:
        """Returns whether there are more unread bytes now than there should be."""
        if piece:
            self.pieces.append(piece)
            self._buffered += len(piece)
        return self._buffered > MAX_BUFFERED

    def fail(self, error: Exception) -> None:
        if self._error is None and not self.complete:
            self._error = error
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Connection(asyncio.Protocol):
    """A connection to a server. It receives one response at a time, or is idle."""

    _transport: Any

    def __init__(self, client: HttpClient, address: Address, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self.address = address
        self.loop = loop
        self._response: Response | None = None
        self._parser = HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(  # what aiohttp accepts too
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._unpack: Any = None
        self._unread = 0
        """Bytes received since the last piece of a body."""
        self._paused = self._closed = False

    @property
    def is_open(self) -> bool:
        return not (self._closed or self._transport.is_closing())

    def send(self, request: bytes) -> Response:
        if not self.is_open:
            raise aiohttp.ServerDisconnectedError
        self._response = response = Response(self)
        self._unpack, self._unread = None, 0
        self._transport.write(request)
        return response

    def release(self, response: Response) -> None:
        """Return the connection to the client if this response was read to its end; otherwise close it."""
        if self._response is not response:
            return
        usable = response.complete and not response.pieces and response.keeps_alive and self.is_open
        if usable and not self._transport.get_write_buffer_size():
            self._response = None
            self._client.keep(self)
        else:
            self.close()

    def close(self, response: Response | None = None) -> None:
        """Close the connection at once, or only if it still receives `response`."""
        if response is not None and self._response is not response:
            return
        self._fail(aiohttp.ClientConnectionError("the connection was closed"))

    def resume(self, response: Response) -> None:
        if self._paused and self._response is response:
            self._paused = False
            if self.is_open:
                self._transport.resume_reading()

    def _fail(self, error: Exception) -> None:
        if self._response is not None:
            self._response.fail(error)
            self._response = None
        self._closed = True
        self._transport.abort()

    # ------------------------------------------------------------ called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None or response.complete:
            self.close()  # nothing was requested
            return
        self._unread += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            cause = error.__context__ or error  # what a callback raised
            self._fail(aiohttp.ClientPayloadError(f"the response cannot be read: {cause}"))
        if self._unread > MAX_HEAD and not response.complete:
            self._fail(aiohttp.ClientPayloadError(f"the response has more than {MAX_HEAD} bytes outside its body"))
        response.wake()

    def eof_received(self) -> None:
        """The server sends nothing more. Closing the connection in the usual way would first send the rest of the
        request, which the server may never read."""
        response = self._response
        if response is not None and response.has_head and _ends_with_connection(response):
            response.complete = self._unpack is None or self._unpack.eof
        self._fail(_disconnected(response, None))

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        self._client.forget(self)
        if self._response is not None:
            self._response.fail(_disconnected(self._response, error))
            self._response = None
        del self._parser  # it refers to this object

    # ------------------------------------------------------------ called by the parser

    def on_message_begin(self) -> None:
        if self._response is None or self._response.complete:
            raise ValueError("there is a second response")

    def on_status(self, status: bytes) -> None:
        assert self._response is not None
        self._response.reason += status.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        response = self._response
        assert response is not None
        if not response.has_head:  # trailers are ignored
            response.headers.add(name.decode("latin-1"), value.decode("utf-8", "surrogateescape"))

    def on_headers_complete(self) -> None:
        response = self._response
        assert response is not None
        response.status = self._parser.get_status_code()
        if response.status < 200:
            response.reason = ""
            response.headers.clear()
            return
        response.has_head = True
        encoding = response.headers.get("Content-Encoding", "identity").lower()
        response.is_packed = encoding in ("gzip", "deflate")
        if not response.is_packed and encoding != "identity":
            raise ValueError(f"its encoding {encoding} was not asked for")

    def on_body(self, body: bytes) -> None:
        response = self._response
        assert response is not None
        self._unread = 0
        if response.is_packed:
            if self._unpack is None:
                self._unpack = zlib.decompressobj(47)  # gzip or zlib, as its first bytes say
            body = self._unpack.decompress(body, MAX_UNPACKED)
            if self._unpack.unconsumed_tail or self._unpack.unused_data:
                raise ValueError("it unpacks to too much, or goes on after its end")
        if response.add(body) and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        response = self._response
        assert response is not None
        if not response.has_head:  # 100 Continue
            return
        if self._unpack is not None and not self._unpack.eof:
            raise ValueError("it is compressed, and not complete")
        response.complete, response.keeps_alive = True, self._parser.should_keep_alive()


def _ends_with_connection(response: Response) -> bool:
    encodings = ",".join(response.headers.getall("Transfer-Encoding", ())).lower()
    return "Content-Length" not in response.headers and "chunked" not in encodings


def _disconnected(response: Response | None, error: Exception | None) -> Exception:
    if response is not None and response.has_head:
        return aiohttp.ClientPayloadError("the connection was closed before the end of the response")
    return aiohttp.ClientOSError(*error.args) if isinstance(error, OSError) else aiohttp.ServerDisconnectedError()


AnyResponse = aiohttp.ClientResponse | Response
