"""A client for POST requests to upstreams, for the plain case: HTTP/1.1 without redirects, cookies, proxies or trace
hooks. A request takes less than half of the time that it takes with aiohttp. Its errors are aiohttp's, so that callers
handle the responses of both alike."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import aiohappyeyeballs
import aiohttp
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from multidict import CIMultiDict
from yarl import URL

from fairlead.version import __version__

CONNECT_WITHIN_S = 10.0
NEXT_ADDRESS_AFTER_S = 0.25
IDLE_S = 15.0
"""Connections that were idle for longer are closed: the server may be about to close them."""
MAX_HEAD = 128 * 1024
"""Bytes before the body, between two pieces of it, or after it."""
MAX_BUFFERED = 256 * 1024
"""Reading pauses while a response has more unread bytes than this."""
MAX_UNPACKED = 32 * 1024 * 1024
"""What one piece of a compressed body may contain."""


class Target(NamedTuple):
    host: str
    port: int
    ssl: bool

    @property
    def is_ssl(self) -> bool:
        """For the message of aiohttp's error."""
        return self.ssl


@lru_cache(1024)
def target_of(text: str, names: tuple[str, ...]) -> tuple[Target, str]:
    """Where a URL leads, and the first lines of a request to it: the request line, and the headers that are not among
    these names. Raises InvalidURL."""
    try:
        url = URL(text)
    except ValueError as error:
        raise aiohttp.InvalidURL(text, str(error)) from error
    if url.scheme not in ("http", "https") or not url.raw_host or not url.port:
        raise aiohttp.InvalidURL(text)
    headers = {
        "Host": url.host_port_subcomponent,
        "Accept": "*/*",
        "Accept-Encoding": "identity",
        "User-Agent": f"fairlead/{__version__}",
    }
    if url.user is not None or url.password is not None:
        secret = f"{url.user or ''}:{url.password or ''}".encode()
        headers["Authorization"] = f"Basic {b64encode(secret).decode()}"
    given = {name.lower() for name in names}
    lines = [f"{name}: {value}\r\n" for name, value in headers.items() if name.lower() not in given]
    target = Target(url.raw_host, url.port, url.scheme == "https")
    return target, f"POST {url.raw_path_qs} HTTP/1.1\r\n{''.join(lines)}"


class HttpClient:
    """A client with connections that are used again. There is no limit to their number: slots limit the calls."""

    def __init__(self) -> None:
        self._idle: dict[Target, list[Response]] = {}
        self._context: ssl.SSLContext | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """Send a request and wait for the head of its response. The caller ends the response. Raises ClientError."""
        target, head = target_of(url, tuple(headers))
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if lines.count("\n") != len(headers) or lines.count("\r") != len(headers) or "\0" in lines:
            raise ValueError("a header contains a line break")
        connection = self._taken(target) or await self._connected(target)
        try:
            await connection.exchange(f"{head}{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        except BaseException:
            connection.close()
            raise
        return connection

    def _taken(self, target: Target) -> Response | None:
        idle, oldest = self._idle.get(target), time.monotonic() - IDLE_S
        while idle:
            connection = idle.pop()
            if connection.idle_since >= oldest and connection.is_open:
                connection.idle_since = 0.0
                return connection
            connection.close()
        return None

    async def _connected(self, target: Target) -> Response:
        if target.ssl and self._context is None:
            self._context = ssl.create_default_context()
            self._context.set_alpn_protocols(["http/1.1"])
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                return await self._opened(target)
        except UnicodeError as error:
            raise aiohttp.InvalidURL(target.host, str(error)) from error
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"cannot connect to {target.host}:{target.port} in time") from error
        except ssl.CertificateError as error:
            raise aiohttp.ClientConnectorCertificateError(target, error) from error  # type: ignore[arg-type]
        except ssl.SSLError as error:
            raise aiohttp.ClientConnectorSSLError(target, error) from error
        except OSError as error:
            raise aiohttp.ClientConnectorError(target, error) from error  # type: ignore[arg-type]

    async def _opened(self, target: Target) -> Response:
        """A connection to one of the addresses: to the next one too if there is none after a moment."""
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        opened = await aiohappyeyeballs.start_connection(addresses, happy_eyeballs_delay=NEXT_ADDRESS_AFTER_S)
        _, connection = await loop.create_connection(
            lambda: Response(self, target),
            sock=opened,
            ssl=self._context if target.ssl else None,
            server_hostname=target.host.rstrip(".") if target.ssl else None,
        )
        return connection

    def keep(self, connection: Response) -> None:
        """Take back a connection whose response is complete."""
        if self._closed:
            connection.close()
        else:
            connection.idle_since = time.monotonic()
            self._idle.setdefault(connection.target, []).append(connection)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._close_stale)

    def _close_stale(self) -> None:
        self._timer, oldest = None, time.monotonic() - IDLE_S
        for target, connections in list(self._idle.items()):
            while connections and connections[0].idle_since <= oldest:  # the first one was returned first
                connections.pop(0).close()
            if not connections:
                del self._idle[target]
        if self._idle:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._close_stale)

    def forget(self, connection: Response) -> None:
        with contextlib.suppress(ValueError):
            self._idle.get(connection.target, []).remove(connection)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for connections in self._idle.values():
            for connection in list(connections):
                connection.close()


class Response(asyncio.Protocol):
    """One connection, and the response that it receives now."""

    def __init__(self, client: HttpClient, target: Target) -> None:
        self._client = client
        self.target = target
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._waiter: asyncio.Future[None] | None = None
        self._clear()

    def _clear(self) -> None:
        self._parser = HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(  # what aiohttp accepts too
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self.status, self.reason, self.headers = 0, "", CIMultiDict[str]()
        self._size = self._buffered = 0
        self._pieces: list[bytes] = []
        self._has_head = self._complete = self._keeps_alive = self._paused = False
        self._error: Exception | None = None
        self._unpack: Unpacker | None = None
        self.__dict__.pop("content_type", None)

    @cached_property
    def content_type(self) -> str:
        return self.headers.get("Content-Type", "application/octet-stream").partition(";")[0].strip().lower()

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    @property
    def url(self) -> Target:
        return self.target

    @property
    def content(self) -> Response:
        return self

    # ------------------------------------------------------------ one exchange

    async def exchange(self, request: bytes) -> None:
        """Send a request, and wait for the head of its response."""
        self._clear()
        if not self.is_open:
            raise aiohttp.ServerDisconnectedError
        self._transport.write(request)
        while not self._has_head:
            await self._changed()

    async def iter_any(self) -> AsyncIterator[bytes]:
        """The body, as it arrives. Raises ClientPayloadError if it is not complete."""
        while True:
            if self._pieces:
                piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
                self._pieces, self._buffered = [], 0
                if self._paused:
                    self._paused = False
                    if self.is_open:
                        self._transport.resume_reading()
                yield piece
            elif self._complete:
                return
            else:
                await self._changed()

    async def _changed(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def end(self) -> None:
        """Return the connection to its client, or close it if the response or the request is not complete."""
        complete = self._complete and not self._pieces and not self._transport.get_write_buffer_size()
        if complete and self._keeps_alive and self.is_open:
            self._client.keep(self)
        else:
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._error is None and not self._complete:
            self._error = error
        self._wake()

    # ------------------------------------------------------------ the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._complete or self.idle_since:
            self.close()  # nothing was requested
            return
        self._size += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._fail(aiohttp.ClientPayloadError(f"the response is not HTTP: {error}"))
            self.close()
        if self._size > MAX_HEAD and not self._complete:
            what = "trailer" if self._has_head else "head"
            self._fail(aiohttp.ClientPayloadError(f"the {what} of the response is over {MAX_HEAD} bytes"))
            self.close()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        if self.idle_since:
            self._client.forget(self)
        if self._has_head and error is None and self._ends_with_the_connection():
            self._complete = True
            self._wake()
        elif self._has_head:
            self._fail(aiohttp.ClientPayloadError("the connection was closed before the end of the response"))
        else:
            self._fail(aiohttp.ServerDisconnectedError())

    def _ends_with_the_connection(self) -> bool:
        encodings = ",".join(self.headers.getall("Transfer-Encoding", ())).lower()
        return "Content-Length" not in self.headers and "chunked" not in encodings

    # ------------------------------------------------------------ the parser

    def on_message_begin(self) -> None:
        if self._complete:
            raise ValueError("there is a second response")

    def on_status(self, status: bytes) -> None:
        self.reason += status.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # trailers are ignored
            self.headers.add(name.decode("latin-1"), value.decode("utf-8", "surrogateescape"))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self.reason, self.headers = "", CIMultiDict()
            return
        self._has_head = True
        if (encoding := self.headers.get("Content-Encoding", "identity").lower()) in ("gzip", "deflate"):
            self._unpack = Unpacker(encoding)

    def on_body(self, body: bytes) -> None:
        self._size = 0
        if self._unpack is not None:
            try:
                body = self._unpack.feed(body)
            except zlib.error as error:
                self._fail(aiohttp.ClientPayloadError(f"the response cannot be decompressed: {error}"))
                self.close()
                return
        if body:
            self._pieces.append(body)
            self._buffered += len(body)
            if self._buffered > MAX_BUFFERED and not self._paused:
                self._paused = True
                self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self.status >= 200 and self._error is None:
            self._complete, self._keeps_alive = True, self._parser.should_keep_alive()


class Unpacker:
    """Decompresses gzip, zlib and deflate without a head, which some servers send for `deflate`."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._stream: Any = None

    def feed(self, data: bytes) -> bytes:
        """Raises zlib.error."""
        unpacked = b""
        while data:
            if self._stream is None or self._stream.eof:  # gzip may have several members
                has_head = self._encoding == "gzip" or data[0] & 15 == zlib.DEFLATED
                self._stream = zlib.decompressobj(47 if has_head else -15)
            unpacked += self._stream.decompress(data, MAX_UNPACKED + 1 - len(unpacked))
            if len(unpacked) > MAX_UNPACKED:
                raise zlib.error(f"a piece of it has more than {MAX_UNPACKED} bytes")
            data = self._stream.unused_data
        return unpacked


AnyResponse = aiohttp.ClientResponse | Response
