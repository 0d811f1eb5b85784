"""Limits on request heads and on connections without a request."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import openai
import orjson
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from fairlead.gateway import connections
from tests.integration.cli_process import up
from tests.integration.gateway_site import Site, served, serving

MakeSite = Callable[..., Awaitable[Site]]
PATIENCE = 20
GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"


class RawClient:
    """A client that sends raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        # The response may arrive, and the connection close, before everything was sent.
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def status(self) -> int:
        """Read the next response and return its status."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        self.head, self.body = head.lower(), await self.reader.readexactly(int(length.partition(b":")[2]))
        return int(head[9:12])

    async def refused(self, status: int, code: str) -> None:
        assert await self.status() == status
        assert orjson.loads(self.body)["code"] == code
        assert b"connection: close" in self.head
        assert b"content-type: application/problem+json" in self.head
        assert await self.reader.read() == b""


@contextlib.asynccontextmanager
async def raw_client(port: int) -> AsyncIterator[RawClient]:
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield RawClient(reader, writer)
        finally:
            writer.close()


@pytest.fixture
async def port(still_site: Site) -> AsyncIterator[int]:
    async with served(still_site.gateway) as port:
        yield port


# ---------------------------------------------------------------- size


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        (GET + b"X-Big: " + b"x" * 70_000 + b"\r\n\r\n", 431, "head_too_large"),
        (GET + b"X-Big: " + b"x" * 5_000_000, 431, "head_too_large"),
        (GET + b"X-Name: value\r\n" * 200_000, 431, "head_too_large"),
        (GET + b"A: b\r\n" * 100 + b"\r\n", 431, "head_too_large"),
        (b"GET /livez?" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, "url_too_long"),
        (b"GET /livez?" + b"x" * 5_000_000, 414, "url_too_long"),
        (b"this is not HTTP\r\n\r\n", 400, "bad_request"),
    ],
    ids=["large", "without end", "headers without end", "many headers", "long URL", "URL without end", "no HTTP"],
)
async def test_a_head_over_a_limit_is_refused_with_a_readable_response(
    port: int, request_: bytes, status: int, code: str
) -> None:
    async with raw_client(port) as client:
        await client.send(request_)
        await client.refused(status, code)


async def test_a_head_within_the_limits_is_accepted_in_any_number_of_chunks(port: int) -> None:
    async with raw_client(port) as client:
        await client.send(GET)
        for _ in range(6):
            await client.send(b"X-Long: " + b"x" * 10_000 + b"\r\n")
        await client.send(b"\r\n")
        assert await client.status() == 200
        await client.send(GET + b"A: b\r\n" * 90 + b"\r\n" + GET + b"\r\n")
        assert [await client.status(), await client.status()] == [200, 200]


async def test_an_ordinary_client_can_read_the_431(port: int) -> None:
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        response = await client.get("/livez", headers={"X-Big": "x" * 70_000})
    assert (response.status_code, response.json()["code"]) == (431, "head_too_large")


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        (b"POST /v1/chat/completions HTTP/1.1\r\nX-Big: " + b"x" * 70_000 + b"\r\n\r\n", 431, "head_too_large"),
        (b"GET /v1/models?" + b"x" * 5_000_000, 414, "url_too_long"),
        (b"GET /v1/models HTTP/1.1\r\nno header\r\n\r\n", 400, "bad_request"),
    ],
    ids=["large", "URL without end", "no HTTP"],
)
async def test_a_refused_head_below_v1_is_answered_in_the_shape_of_openai(
    port: int, request_: bytes, status: int, code: str
) -> None:
    async with raw_client(port) as client:
        await client.send(request_)
        assert await client.status() == status
    error = orjson.loads(client.body)["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, None)
    assert b"content-type: application/json" in client.head
    assert client.head.count(b"x-request-id: ") == client.head.count(b"connection: close") == 1


async def test_openai_s_client_raises_its_own_error_for_a_431(port: int) -> None:
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0) as client:
        with pytest.raises(openai.APIStatusError) as refused:
            await client.models.list(extra_headers={"X-Big": "x" * 70_000})
    error = refused.value
    assert (error.status_code, error.code, error.type) == (431, "head_too_large", "invalid_request_error")


async def test_the_limits_are_settings(make_site: MakeSite) -> None:
    site = await make_site(running=False, max_head=4096, max_headers=20, max_url=1024)
    async with served(site.gateway) as port:
        for request, status in (
            (GET + b"A: " + b"b" * 4096 + b"\r\n\r\n", 431),
            (GET + b"A: b\r\n" * 20 + b"\r\n", 431),
            (b"GET /" + b"x" * 1024 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
            (GET + b"A: b\r\n" * 10 + b"\r\n", 200),
        ):
            async with raw_client(port) as client:
                await client.send(request)
                assert await client.status() == status


# ---------------------------------------------------------------- trailers

CHUNKED = (
    b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
BODY = orjson.dumps({"user_id": "ada", "feature_name": "echo"})
CHUNK = b"%x\r\n%s\r\n" % (len(BODY), BODY)


async def test_a_trailer_is_not_a_header(port: int) -> None:
    async with raw_client(port) as client:
        await client.send(CHUNKED + CHUNK + b"0\r\nX-Request-ID: from-a-trailer\r\n\r\n")
        assert await client.status() == 202
        assert b"from-a-trailer" not in client.head


@pytest.mark.parametrize("rest", [b"0\r\nX-Big: " + b"x" * 5_000_000, b"0\r\n" + b"A: b\r\n" * 500_000])
async def test_endless_trailers_close_the_connection(port: int, still_site: Site, rest: bytes) -> None:
    async with raw_client(port) as client:
        await client.send(CHUNKED + CHUNK + rest)
        with contextlib.suppress(ConnectionError):
            await client.reader.read()
    assert await still_site.job_ids() == []


# ---------------------------------------------------------------- proxies


async def test_the_client_and_the_scheme_that_a_trusted_proxy_names_are_taken_over() -> None:
    """Also if the connection has had a request without these headers."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        text = f"{scope['client'][0]} {scope['scheme']}"
        await PlainTextResponse(text)(scope, receive, send)

    proto, sent_for = b"X-Forwarded-Proto: https\r\n", b"X-Forwarded-For: 192.0.2.7\r\n"
    own, other = b"127.0.0.1", b"192.0.2.7"
    cases = [(b"", own, b"http"), (proto, own, b"https"), (sent_for, other, b"http"), (b"", own, b"http")]
    served_app: Any = app
    async with served(served_app) as port, raw_client(port) as client:
        for header, address, scheme in cases:
            await client.send(GET + header + b"\r\n")
            assert (await client.status(), client.body) == (200, address + b" " + scheme)
    async with served(served_app, forwarded_allow_ips="192.0.2.1") as port, raw_client(port) as client:
        await client.send(GET + proto + sent_for + b"\r\n")
        assert (await client.status(), client.body) == (200, b"127.0.0.1 http")


# ---------------------------------------------------------------- time


async def test_an_incomplete_head_times_out(make_site: MakeSite) -> None:
    site = await make_site(running=False, head_timeout=0.2, idle_timeout=0.2)
    async with served(site.gateway) as port:
        async with raw_client(port) as client:
            await client.send(GET)
            await client.refused(408, "head_timeout")
        async with raw_client(port) as silent:
            assert await silent.reader.read() == b""
        async with raw_client(port) as idle:
            await idle.send(GET + b"\r\n")
            assert await idle.status() == 200
            # Empty lines between requests do not count as requests.
            await idle.send(b"\r\n")
            with contextlib.suppress(ConnectionError):
                assert await idle.reader.read() == b""


async def test_a_connection_without_a_next_request_is_closed(make_site: MakeSite) -> None:
    site = await make_site(running=False, head_timeout=2 * PATIENCE, idle_timeout=0.2)
    async with served(site.gateway) as port, raw_client(port) as client:
        for _ in range(2):
            await client.send(GET + b"\r\n")
            assert await client.status() == 200
        assert await client.reader.read() == b""


async def test_a_connection_that_sends_its_next_request_slowly_is_not_idle(make_site: MakeSite) -> None:
    site = await make_site(running=False, head_timeout=2 * PATIENCE, idle_timeout=0.1)
    async with served(site.gateway) as port, raw_client(port) as client:
        await client.send(GET + b"\r\n")
        assert await client.status() == 200
        for byte in GET:
            await client.send(bytes([byte]))
            await asyncio.sleep(0.01)
        await client.send(b"\r\n")
        assert await client.status() == 200


# ---------------------------------------------------------------- number


async def test_idle_connections_are_closed_in_favour_of_new_ones(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MIN_HEAD_S", 0.0)
    site = await make_site(running=False, max_connections=8)
    async with served(site.gateway) as port, contextlib.AsyncExitStack() as stack:
        for _ in range(30):
            slow = await stack.enter_async_context(raw_client(port))
            await slow.send(GET)
        async with raw_client(port) as client:
            await client.send(GET + b"\r\n")
            assert await client.status() == 200


async def test_a_full_gateway_responds_with_503(make_site: MakeSite) -> None:
    site = await make_site(running=False, max_connections=2)
    async with serving(site.gateway) as (port, server), contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(raw_client(port))
        while len(server.server_state.connections) < 2:
            await asyncio.sleep(0.01)
        async with raw_client(port) as client:
            assert await client.status() == 503
            assert b"retry-after" in client.head


async def test_endless_pipelining_closes_the_connection(port: int, still_site: Site) -> None:
    async with raw_client(port) as client:
        await client.send(5000 * (GET + b"\r\n"))
        with contextlib.suppress(ConnectionError):
            await client.reader.read()
    async with raw_client(port) as other:
        await other.send(GET + b"\r\n")
        assert await other.status() == 200


# ---------------------------------------------------------------- what it is built on


# ---------------------------------------------------------------- a whole process


def test_fifty_megabytes_of_headers_take_no_memory(tmp_path: Path) -> None:
    with up(tmp_path) as server:
        before = resident(server.process.pid)
        host, _, port = server.url.rpartition("/")[2].partition(":")
        for piece in (b"X-Big: ", b"A: b\r\n"):
            with socket.create_connection((host, int(port))) as client, contextlib.suppress(OSError):
                client.sendall(GET + piece)
                for _ in range(50):
                    client.sendall(b"A: b\r\n" * 170_000 if piece == b"A: b\r\n" else b"x" * 1_000_000)
        assert httpx2.get(f"{server.url}/livez").status_code == 200
        assert resident(server.process.pid) - before < 100_000_000


def resident(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) * 1024
