"""The client for requests to upstreams, against servers that send exactly these bytes."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import sys
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fairlead.cli import certs
from fairlead.executors import http_client
from fairlead.executors.http import connection_problem
from fairlead.executors.http_client import MAX_HEAD, HttpClient, Response

OK = b"HTTP/1.1 200 OK\r\nContent-Type: Application/JSON; charset=utf-8\r\n"
WHOLE = OK + b"Content-Length: 2\r\n\r\n{}"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


class Server:
    """Answers each request with these pieces, and then waits for the next one on the same connection, or closes it."""

    def __init__(self, *pieces: bytes, closes: bool = False) -> None:
        self.pieces = pieces
        self.closes = closes
        self.requests: list[bytes] = []
        self.connections = 0
        self.lost = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(size))
                for piece in self.pieces:
                    writer.write(piece)
                    await writer.drain()
                if self.closes:
                    return
        except (asyncio.IncompleteReadError, OSError):
            self.lost.set()
        finally:
            writer.close()


@asynccontextmanager
async def serving(server: Server, context: ssl.SSLContext | None = None) -> AsyncIterator[HttpClient]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
    scheme, port = "http" if context is None else "https", listening.sockets[0].getsockname()[1]
    server.url = f"{scheme}://127.0.0.1:{port}/v1/chat?a=b%20c"
    client = HttpClient()
    try:
        yield client
    finally:
        client.close()
        listening.close()


async def post(client: HttpClient, server: Server, body: bytes = b"{}", **headers: str) -> tuple[Response, bytes]:
    response = await client.post(server.url, body, {"Content-Type": "application/json", **headers})
    try:
        return response, b"".join([piece async for piece in response.iter_any()])
    finally:
        response.end()


@pytest.mark.parametrize(
    "pieces",
    [
        (WHOLE,),
        tuple(WHOLE[n : n + 1] for n in range(len(WHOLE))),
        (b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n" + WHOLE),
        (WHOLE.replace(b"\r\n", b"\n"),),
        (CHUNKED + b"2  \r\n{}\r\n0\r\n\r\n",),
        (CHUNKED, b"1\r\n{\r\n1;x=y\r\n}\r\n", b"0\r\nTrailer: x\r\n\r\n"),
    ],
)
async def test_a_response_is_read_and_its_connection_used_again(pieces: tuple[bytes, ...]) -> None:
    server = Server(*pieces)
    async with serving(server) as client:
        for _ in range(3):
            response, body = await post(client, server, Authorization="Bearer x")
            assert (response.status, response.reason, response.content_type) == (200, "OK", "application/json")
            assert body == b"{}"
            assert not {"X", "Trailer"} & set(response.headers)
    assert server.connections == 1
    lines = server.requests[2].split(b"\r\n")
    assert lines[0] == b"POST /v1/chat?a=b%20c HTTP/1.1"
    assert {b"Authorization: Bearer x", b"Content-Length: 2", b"Content-Type: application/json"} <= set(lines)
    assert lines[-1] == b"{}"


async def test_user_and_password_of_the_url_are_sent_unless_the_header_is_given() -> None:
    server = Server(WHOLE)
    async with serving(server) as client:
        server.url = server.url.replace("//", "//ann:p%40ss@")
        await post(client, server)
        await post(client, server, authorization="Bearer x")
        server.url = server.url.replace("//ann:", "//:")
        await post(client, server)
    assert b"Authorization: Basic YW5uOnBAc3M=" in server.requests[0]
    assert b"Basic" not in server.requests[1]
    assert b"Authorization: Basic OnBAc3M=" in server.requests[2]


@pytest.mark.parametrize(
    "head", [OK + b"Connection: close\r\nContent-Length: 2\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n", OK + b"\r\n"]
)
async def test_a_connection_that_the_server_closes_is_not_used_again(head: bytes) -> None:
    server = Server(head + b"{}", closes=True)
    async with serving(server) as client:
        for _ in range(2):
            assert (await post(client, server))[1] == b"{}"
    assert server.connections == 2


def compressed(encoding: bytes, body: bytes) -> bytes:
    return OK + b"Content-Encoding: %s\r\nContent-Length: %d\r\n\r\n" % (encoding, len(body)) + body


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        (b"gzip", gzip.compress(b"x" * 1000)),
        (b"gzip", gzip.compress(b"x" * 400) + gzip.compress(b"x" * 600)),
        (b"deflate", zlib.compress(b"x" * 1000)),
        (b"deflate", zlib.compress(b"x" * 1000)[2:-4]),
    ],
    ids=["gzip", "members", "zlib", "deflate"],
)
async def test_a_compressed_body_is_decompressed(encoding: bytes, body: bytes) -> None:
    server = Server(compressed(encoding, body))
    async with serving(server) as client:
        assert (await post(client, server))[1] == b"x" * 1000


async def test_a_small_body_is_not_decompressed_to_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_UNPACKED", 999)
    server = Server(compressed(b"gzip", gzip.compress(b"x" * 1000)))
    async with serving(server) as client:
        with pytest.raises(aiohttp.ClientPayloadError, match="more than 999 bytes"):
            await post(client, server)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", aiohttp.ServerDisconnectedError),
        (b"HTTP/1.1 200 OK\r\nContent-", aiohttp.ServerDisconnectedError),
        (OK + b"Content-Length: 9\r\n\r\n{}", aiohttp.ClientPayloadError),
        (CHUNKED + b"2\r\n{}\r\n", aiohttp.ClientPayloadError),
        (CHUNKED + b"zz\r\n", aiohttp.ClientPayloadError),
        (CHUNKED + b"2\r\n{}\r\n0\r\nX: " + b"x" * 8 * MAX_HEAD + b"\r\n\r\n", aiohttp.ClientPayloadError),
        (OK + b"Transfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{", aiohttp.ClientPayloadError),
        (OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", aiohttp.ClientPayloadError),
        (OK + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", aiohttp.ClientPayloadError),
        (b"not HTTP at all\r\n\r\n", aiohttp.ClientPayloadError),
        (b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", aiohttp.ClientError),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (MAX_HEAD + 10), aiohttp.ClientPayloadError),
    ],
)
async def test_a_broken_response_is_an_error_and_its_connection_is_closed(sent: bytes, error: type[Exception]) -> None:
    server = Server(sent, closes=True)
    async with serving(server) as client:
        with pytest.raises(error):
            await post(client, server)
        server.pieces = (WHOLE,)
        assert (await post(client, server))[1] == b"{}"
    assert server.connections == 2


async def test_what_follows_a_response_belongs_to_no_request() -> None:
    server = Server(WHOLE + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
    async with serving(server) as client:
        for _ in range(2):
            assert (await post(client, server))[1] == b"{}"
    assert server.connections == 2


async def test_a_connection_that_was_closed_a_moment_ago_is_not_used_again() -> None:
    server = Server(WHOLE)
    async with serving(server) as client:
        response, _ = await post(client, server)
        response.data_received(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        assert (await post(client, server))[1] == b"{}"
    assert server.connections == 2


async def test_a_connection_is_not_used_again_while_its_request_is_being_sent() -> None:
    class Impatient(Server):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            await reader.readuntil(b"\r\n\r\n")
            writer.write(WHOLE)
            await self.lost.wait()  # without reading the body
            writer.close()

    server = Impatient()
    async with serving(server) as client, asyncio.timeout(10):
        await post(client, server, b"x" * 32 * 1024 * 1024)
        assert (await post(client, server))[1] == b"{}"
        server.lost.set()
    assert server.connections == 2


async def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "IDLE_S", 0.01)
    server = Server(WHOLE)
    async with serving(server) as client, asyncio.timeout(10):
        await post(client, server)
        await server.lost.wait()
        assert not client._idle


async def test_a_call_that_is_cancelled_closes_its_connection() -> None:
    server = Server(OK + b"Content-Length: 9\r\n\r\n{}")
    async with serving(server) as client:
        call = asyncio.create_task(post(client, server))
        while not server.requests:
            await asyncio.sleep(0.001)
        call.cancel()
        async with asyncio.timeout(10):
            await server.lost.wait()
        assert call.cancelled()


async def test_a_response_that_is_not_read_stops_the_server() -> None:
    size, piece = 64 * 1024 * 1024, b"x" * 65536
    server = Server(OK + b"Content-Length: %d\r\n\r\n" % size, *[piece] * (size // len(piece)))
    async with serving(server) as client:
        response = await client.post(server.url, b"", {})
        await asyncio.sleep(0.1)
        assert response._buffered < 1024 * 1024
        assert sum([len(piece) async for piece in response.iter_any()]) == size
        response.end()


@pytest.mark.parametrize("value", ["x\r\nY: z", "x\ny", "x\0"])
async def test_a_header_with_a_line_break_is_not_sent(value: str) -> None:
    server = Server(WHOLE)
    async with serving(server) as client:
        with pytest.raises(ValueError, match="line break"):
            await client.post(server.url, b"", {"X": value})
    assert server.connections == 0


@pytest.mark.parametrize("url", ["ftp://x/y", "http://", "/v1", "http://x:y/", "http://a..b/"])
async def test_what_is_not_a_url_is_refused(url: str) -> None:
    with pytest.raises(aiohttp.InvalidURL):
        await HttpClient().post(url, b"", {})


async def test_a_server_that_is_not_there_is_a_connection_error(unused_tcp_port: int) -> None:
    with pytest.raises(aiohttp.ClientConnectorError) as refused:
        await HttpClient().post(f"http://127.0.0.1:{unused_tcp_port}/", b"", {})
    assert (refused.value.host, refused.value.port) == ("127.0.0.1", unused_tcp_port)


@pytest.mark.skipif(sys.platform != "linux", reason="needs an address that does not answer")
async def test_the_next_address_is_tried_while_the_first_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(WHOLE)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as silent,
        socket.socket() as first,
        socket.socket() as other,
    ):
        for client_socket in (first, other):  # its queue is full
            client_socket.setblocking(False)
            client_socket.connect_ex(silent.getsockname())
        async with serving(server) as client:
            port = int(server.url.split(":")[2].split("/")[0])

            async def addresses(*_: Any, **__: Any) -> list[Any]:
                found = (silent.getsockname(), ("127.0.0.1", port))
                return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address) for address in found]

            monkeypatch.setattr(http_client, "NEXT_ADDRESS_AFTER_S", 0.01)
            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", addresses)
            server.url = server.url.replace("127.0.0.1", "upstream.test")
            assert (await post(client, server))[1] == b"{}"


async def test_certificates_are_verified(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / certs.CERTIFICATE, certificates / certs.KEY)
    server = Server(WHOLE)
    async with serving(server, context) as client:
        with pytest.raises(aiohttp.ClientConnectorCertificateError) as refused:
            await post(client, server)
    assert "CERTIFICATE_VERIFY_FAILED" in connection_problem(refused.value)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / certs.AUTHORITY))
    async with serving(server, context) as client:
        assert (await post(client, server))[1] == b"{}"
