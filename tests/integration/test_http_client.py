"""The client for requests to plain upstreams, against servers that send exactly these bytes."""

from __future__ import annotations

import asyncio
import gc
import gzip
import inspect
import itertools
import socket
import sys
import weakref
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from fairlead.executors import http_client
from fairlead.executors.http_client import MAX_HEAD, Address, HttpClient, Response, Target, target_of

OK = b"HTTP/1.1 200 OK\r\nContent-Type: Application/JSON; charset=utf-8\r\n"
WHOLE = OK + b"Content-Length: 2\r\n\r\n{}"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
PATIENCE_S = 10.0
"""Less than idle connections are kept."""


class Server:
    """Answers each request with these pieces, and then waits for the next one on the same connection, or closes it.
    While `gate` is closed, requests are received and not answered."""

    def __init__(self, *pieces: bytes, closes: bool = False) -> None:
        self.pieces = pieces
        self.closes = closes
        self.requests: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.arrived, self.lost, self.gate = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.url = ""

    @property
    def connections(self) -> int:
        return len(self.writers)

    @property
    def target(self) -> Target:
        target = target_of(self.url, {"Authorization": "Bearer x"})
        assert target is not None
        return target

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(size))
                self.arrived.set()
                await self.gate.wait()
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
async def serving(server: Server) -> AsyncIterator[HttpClient]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1/chat?a=b%20c"
    client = HttpClient()
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield client
        client.close()
        await settled()
        assert not client._open
    finally:
        client.close()
        listening.close()


async def settled() -> None:
    """Let the event loop call what is ready."""
    for _ in range(5):
        await asyncio.sleep(0)


async def post(client: HttpClient, server: Server, body: bytes = b"{}", **headers: str) -> tuple[Response, bytes]:
    async with await client.post(server.target, {"Content-Type": "application/json", **headers}, body) as response:
        return response, b"".join([piece async for piece in response.content.iter_any()])


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
            response, body = await post(client, server)
            assert (response.status, response.reason, response.content_type) == (200, "OK", "application/json")
            assert body == b"{}"
            assert not {"X", "Trailer"} & set(response.headers)
    assert server.connections == 1
    lines = server.requests[2].split(b"\r\n")
    assert lines[0] == b"POST /v1/chat?a=b%20c HTTP/1.1"
    assert {b"Authorization: Bearer x", b"Content-Length: 2", b"Content-Type: application/json"} <= set(lines)
    assert {b"Host: " + server.url.split("/")[2].encode(), b"Accept-Encoding: identity"} <= set(lines)
    assert lines[-1] == b"{}"


async def test_a_large_body_arrives_complete() -> None:
    server, body = Server(WHOLE), bytes(range(256)) * 80_000
    async with serving(server) as client:
        for _ in range(2):
            assert (await post(client, server, body))[1] == b"{}"
    assert server.requests[1].endswith(b"\r\n\r\n" + body)
    assert server.connections == 1


@pytest.mark.parametrize(
    "head",
    [
        OK + b"Connection: close\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n",
        OK + b"\r\n",
        OK + b"Content-Encoding: gzip\r\n\r\n",
    ],
)
async def test_a_connection_that_the_server_closes_is_not_used_again(head: bytes) -> None:
    server = Server(head + (gzip.compress(b"{}", mtime=0) if b"gzip" in head else b"{}"), closes=True)
    async with serving(server) as client:
        for _ in range(2):
            assert (await post(client, server))[1] == b"{}"
    assert server.connections == 2


def compressed(encoding: bytes, body: bytes) -> bytes:
    return OK + b"Content-Encoding: %s\r\nContent-Length: %d\r\n\r\n" % (encoding, len(body)) + body


@pytest.mark.parametrize(
    ("encoding", "body", "text"),
    [
        (b"gzip", gzip.compress(b"x" * 1000, mtime=0), b"x" * 1000),
        (b"deflate", zlib.compress(b"x" * 1000), b"x" * 1000),
        (b"gzip", b"", b""),
        (b"Identity", b"x", b"x"),
    ],
)
async def test_a_compressed_body_is_decompressed(encoding: bytes, body: bytes, text: bytes) -> None:
    server = Server(compressed(encoding, body))
    async with serving(server) as client:
        for _ in range(2):
            assert (await post(client, server))[1] == text
    assert server.connections == 1


async def test_a_small_body_is_not_decompressed_to_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_UNPACKED", 999)
    server = Server(compressed(b"gzip", gzip.compress(b"x" * 1000, mtime=0)))
    async with serving(server) as client:
        with pytest.raises(aiohttp.ClientPayloadError, match="unpacks to too much"):
            await post(client, server)


PACKED = gzip.compress(b"x" * 1000, mtime=0)


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize(
    "sent",
    [
        CHUNKED + b"zz\r\n",
        CHUNKED + b"2\r\n{}\r\n0\r\nX: " + b"x" * 8 * MAX_HEAD,
        CHUNKED + b"2\r\n{}\r\n1;" + b"x" * 8 * MAX_HEAD,
        OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        OK + b"Content-Length: -2\r\n\r\n{}",
        OK + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        compressed(b"gzip", PACKED[:-9]),
        compressed(b"gzip", PACKED + b"more"),
        compressed(b"br", b"x"),
        b"not HTTP at all\r\n\r\n",
        b"\x16\x03\x01\x00\xa5\x01\x00\x00",
        b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (MAX_HEAD + 10),
        b"HTTP/1.1 103 Early\r\n\r\n" * 10_000,
    ],
    ids=lambda sent: repr(sent[:60]) if isinstance(sent, bytes) else str(sent),
)
async def test_a_broken_response_is_an_error_and_its_connection_is_closed(sent: bytes, closes: bool) -> None:
    server = Server(sent, closes=closes)
    async with serving(server) as client:
        with pytest.raises(aiohttp.ClientPayloadError):
            await post(client, server)
        server.pieces = (WHOLE,)
        assert (await post(client, server))[1] == b"{}"
    assert server.connections == 2


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", aiohttp.ServerDisconnectedError),
        (b"HTTP/1.1 200 OK\r\nContent-", aiohttp.ServerDisconnectedError),
        (b"HTTP/1.1 100 Continue\r\n\r\n", aiohttp.ServerDisconnectedError),
        (OK + b"Content-Length: 9\r\n\r\n{}", aiohttp.ClientPayloadError),
        (CHUNKED + b"2\r\n{}\r\n", aiohttp.ClientPayloadError),
        (CHUNKED + b"2\r\n{}\r\n0\r\n", aiohttp.ClientPayloadError),
        (OK + b"Content-Encoding: gzip\r\n\r\n" + PACKED[:-9], aiohttp.ClientPayloadError),
    ],
)
async def test_a_connection_that_is_lost_before_the_end_is_an_error(sent: bytes, error: type[Exception]) -> None:
    server = Server(sent, closes=True)
    async with serving(server) as client:
        with pytest.raises(error):
            await post(client, server)


async def test_a_connection_that_is_reset_is_an_error() -> None:
    server = Server(WHOLE)
    server.gate.clear()
    async with serving(server) as client:
        call = asyncio.create_task(post(client, server))
        await server.arrived.wait()
        server.writers[0].transport.abort()
        with pytest.raises((aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)):
            await call
        server.gate.set()


# ---------------------------------------------------------------- connections in doubt


async def test_what_follows_a_response_belongs_to_no_request() -> None:
    server = Server(WHOLE + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
    async with serving(server) as client:
        for _ in range(2):
            assert (await post(client, server))[1] == b"{}"
    assert server.connections == 2


async def test_what_arrives_while_a_connection_is_idle_closes_it() -> None:
    server = Server(WHOLE)
    async with serving(server) as client:
        await post(client, server)
        server.writers[0].write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        await server.lost.wait()
        assert (await post(client, server))[1] == b"{}"
    assert server.connections == 2


async def test_an_idle_connection_that_the_server_closes_is_forgotten() -> None:
    server = Server(WHOLE)
    async with serving(server) as client:
        await post(client, server)
        server.writers[0].close()
        while client._open:
            await asyncio.sleep(0.001)
        assert (await post(client, server))[1] == b"{}"
    assert server.connections == 2


async def test_a_request_on_a_connection_that_is_being_closed_fails_and_is_not_sent_again() -> None:
    server = Server(WHOLE)
    async with serving(server) as client:
        await post(client, server)
        server.writers[0].transport.abort()  # the client's event loop has not seen it yet
        with pytest.raises((aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)):
            await post(client, server)
        assert len(server.requests) == 1
        assert (await post(client, server))[1] == b"{}"


async def test_a_connection_is_not_used_again_while_its_request_is_being_sent() -> None:
    class Impatient(Server):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.writers.append(writer)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(WHOLE)
            await self.lost.wait()  # without reading the body
            writer.close()

    server = Impatient()
    async with serving(server) as client:
        await post(client, server, b"x" * 32 * 1024 * 1024)
        assert (await post(client, server))[1] == b"{}"
        server.lost.set()
    assert server.connections == 2


async def test_a_server_that_stops_sending_and_reads_no_more_fails_the_request() -> None:
    class HalfClosed(Server):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write_eof()
            await self.lost.wait()  # without reading the body
            writer.close()

    server = HalfClosed()
    async with serving(server) as client:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await post(client, server, b"x" * 32 * 1024 * 1024)
        server.lost.set()


async def test_a_response_cannot_change_the_connection_after_its_end() -> None:
    server = Server(WHOLE)
    async with serving(server) as client:
        first, _ = await post(client, server)
        server.gate.clear()
        second = asyncio.create_task(post(client, server))
        await settled()
        first.close()
        await first.__aexit__()
        server.gate.set()
        assert (await second)[1] == b"{}"
    assert server.connections == 1


async def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "IDLE_S", 0.01)
    server = Server(WHOLE)
    async with serving(server) as client:
        await post(client, server)
        await server.lost.wait()
        assert not client._idle


async def test_a_connection_that_was_idle_for_too_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(WHOLE)
    async with serving(server) as client:
        await post(client, server)
        monkeypatch.setattr(http_client, "IDLE_S", -1.0)
        await post(client, server)
    assert server.connections == 2


# ---------------------------------------------------------------- stopping


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\n", OK + b"Content-Length: 9\r\n\r\n{}", OK + b"\r\n{}"])
async def test_a_call_that_is_cancelled_closes_its_connection(sent: bytes) -> None:
    server = Server(sent)
    async with serving(server) as client:
        call = asyncio.create_task(post(client, server))
        await server.arrived.wait()
        await settled()
        call.cancel()
        await server.lost.wait()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not client._idle


async def test_a_call_that_is_cancelled_at_any_moment_leaves_no_connection() -> None:
    server = Server(WHOLE)
    async with serving(server) as client:
        for moment in range(60):
            call = asyncio.create_task(post(client, server))
            for _ in range(moment):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait([call])
            for idle in client._idle.values():  # the next call opens a connection too
                for connection in list(idle):
                    connection.close()
        await settled()
        assert not client._open
        assert (await post(client, server))[1] == b"{}"


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\n", OK + b"Content-Length: 9\r\n\r\n{}", OK + b"\r\n{}"])
async def test_closing_the_client_ends_its_calls(sent: bytes) -> None:
    server = Server(sent)
    async with serving(server) as client:
        calls = [asyncio.create_task(post(client, server)) for _ in range(3)]
        while len(server.requests) < len(calls):
            await asyncio.sleep(0.001)
        await settled()
        client.close()
        for call in calls:
            with pytest.raises(aiohttp.ClientConnectionError):
                await call
        with pytest.raises(aiohttp.ClientConnectionError):
            await post(client, server)


async def test_a_trickle_is_read_as_it_arrives() -> None:
    class Trickle(Server):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(CHUNKED)
            for _ in range(3):
                await self.gate.wait()
                self.gate.clear()
                writer.write(b"1\r\nx\r\n")
            await self.gate.wait()
            writer.close()

    server = Trickle()
    server.gate.clear()
    async with serving(server) as client, await client.post(server.target, {}, b"") as response:
        pieces = aiter(response)
        for _ in range(3):
            server.gate.set()
            assert await anext(pieces) == b"x"
        server.gate.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await anext(pieces)


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_response_that_is_not_read_stops_the_server(chunked: bool) -> None:
    size, piece = 32 * 1024 * 1024, b"x" * 65536
    head = CHUNKED if chunked else OK + b"Content-Length: %d\r\n\r\n" % size
    sent = b"10000\r\n" + piece + b"\r\n" if chunked else piece
    server = Server(head, *[sent] * (size // len(piece)), *[b"0\r\n\r\n"] * chunked)
    async with serving(server) as client:
        for _ in range(2):
            async with await client.post(server.target, {}, b"") as response:
                while not response._connection._paused:
                    await asyncio.sleep(0.001)
                await settled()
                assert response._buffered < 1024 * 1024
                assert sum([len(piece) async for piece in response]) == size
    assert server.connections == 1


@pytest.mark.parametrize(
    "pieces", [(WHOLE,), (OK + b"Content-Length: 20000000\r\n\r\n", *[b"x" * 100_000] * 200)], ids=["small", "large"]
)
async def test_a_response_that_is_not_read_to_its_end_closes_its_connection(pieces: tuple[bytes, ...]) -> None:
    server = Server(*pieces)
    async with serving(server) as client:
        async with await client.post(server.target, {}, b""):
            pass
        await server.lost.wait()
        assert not client._idle


async def test_a_closed_connection_leaves_no_cycle() -> None:
    server = Server(WHOLE, closes=True)
    async with serving(server) as client:
        response, _ = await post(client, server)
        connection = weakref.ref(response._connection)
        while client._open:
            await asyncio.sleep(0.001)
        await settled()
        gc.disable()
        try:
            del response
            assert connection() is None
        finally:
            gc.enable()


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize("value", ["x\r\nY: z", "x\ny", "x\ry", "x\0"])
async def test_a_header_with_a_line_break_is_not_sent(value: str) -> None:
    server = Server(WHOLE)
    async with serving(server) as client:
        with pytest.raises(ValueError, match="line break"):
            await client.post(server.target, {"X": value}, b"")
    assert server.connections == 0


# ---------------------------------------------------------------- connecting


async def test_a_server_that_is_not_there_is_a_connection_error(unused_tcp_port: int) -> None:
    target = target_of(f"http://127.0.0.1:{unused_tcp_port}/", {})
    assert target is not None
    with pytest.raises(aiohttp.ClientConnectorError) as refused:
        await HttpClient().post(target, {}, b"")
    assert (refused.value.host, refused.value.port) == ("127.0.0.1", unused_tcp_port)
    assert "Cannot connect to host 127.0.0.1" in str(refused.value)


async def test_a_host_without_an_address_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(WHOLE)

    async def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    async with serving(server) as client:
        monkeypatch.setattr(http_client, "_look_up", unknown)
        for answer in await asyncio.gather(*(post(client, server) for _ in range(3)), return_exceptions=True):
            assert isinstance(answer, aiohttp.ClientConnectorError)
        monkeypatch.undo()
        assert (await post(client, server))[1] == b"{}"


async def test_connections_that_are_opened_together_share_a_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    server, lookups = Server(WHOLE), 0
    look_up = http_client._look_up

    async def counted(address: Address, loop: asyncio.AbstractEventLoop) -> list[Any]:
        nonlocal lookups
        lookups += 1
        return await look_up(address, loop)

    monkeypatch.setattr(http_client, "_look_up", counted)
    async with serving(server) as client:
        for _ in range(3):
            answers = await asyncio.gather(*(post(client, server) for _ in range(10)))
            assert [body for _, body in answers] == [b"{}"] * 10
    assert (lookups, server.connections) == (1, 10)


@pytest.mark.skipif(sys.platform != "linux", reason="needs an address that does not answer")
@pytest.mark.parametrize("last", [True, False])
async def test_an_address_that_does_not_answer(last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next address is tried too, and without one the request fails in time."""
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
            found = [silent.getsockname(), *([] if last else [("127.0.0.1", server.target.address.port)])]

            async def addresses(*_: Any, **__: Any) -> list[Any]:
                return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address) for address in found]

            monkeypatch.setattr(http_client, "NEXT_ADDRESS_AFTER_S", 0.01)
            monkeypatch.setattr(http_client, "_look_up", addresses)
            if last:
                monkeypatch.setattr(http_client, "CONNECT_WITHIN_S", 0.05)
                with pytest.raises(aiohttp.ConnectionTimeoutError):
                    await post(client, server)
            else:
                assert (await post(client, server))[1] == b"{}"


# ---------------------------------------------------------------- the other event loop


def cases() -> Iterator[Any]:
    """All asynchronous tests above, with each of their parameters."""
    for name, test in list(globals().items()):
        if name.startswith("test_") and asyncio.iscoroutinefunction(test):
            marks = [mark.args for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
            for number, values in enumerate(itertools.product(*(values for _, values in marks))):
                given: dict[str, Any] = {}
                for (names, _), value in zip(marks, values, strict=True):
                    given |= {names: value} if isinstance(names, str) else dict(zip(names, value, strict=True))
                yield pytest.param(test, given, id=f"{name}-{number}")


@pytest.mark.parametrize(("test", "given"), list(cases()))
def test_the_same_with_uvloop(test: Any, given: dict[str, Any], request: pytest.FixtureRequest) -> None:
    """The transports of the event loops differ in what they call, and when."""
    uvloop = pytest.importorskip("uvloop")
    fixtures = {name: request.getfixturevalue(name) for name in inspect.signature(test).parameters if name not in given}
    uvloop.run(test(**given, **fixtures))
