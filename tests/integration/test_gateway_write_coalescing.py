"""Response heads are combined with their bodies, but never delay what a client waits for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.requests import Request

from fairlead.gateway.http_protocol import BoundedHTTP
from fairlead.gateway.request_middleware import CONNECTION, BodyLimit
from fairlead.gateway.request_parsing import read
from fairlead.gateway.serving import _CHUNKED, _Connection
from tests.integration.gateway_site import Site, open_site, served
from tests.integration.openai_site import HELLO, Front, open_front

BODY = orjson.dumps({"user_id": "ada", "feature_name": "echo"})
HEAD = (
    "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(BODY)}\r\n"
)


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, text: bytes) -> None:
        self._writer.write(text)

    async def read_head(self) -> bytes:
        return await self._reader.readuntil(b"\r\n\r\n")

    async def read(self) -> bytes:
        """Read a response and return its body."""
        head = await self.read_head()
        assert head.startswith(b"HTTP/1.1 202 "), head
        length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        return await self._reader.readexactly(int(length.partition(b":")[2]))


@contextlib.asynccontextmanager
async def raw_client(site: Site) -> AsyncIterator[RawClient]:
    async with served(site.gateway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            async with asyncio.timeout(10):
                yield RawClient(reader, writer)
        finally:
            writer.close()


async def test_a_client_that_expects_100_continue_gets_it(still_site: Site) -> None:
    async with raw_client(still_site) as client:
        client.send(f"{HEAD}Expect: 100-continue\r\n\r\n".encode())
        assert await client.read_head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(BODY)
        receipt = orjson.loads(await client.read())
    assert await still_site.job_ids() == [receipt["job_id"]]


async def test_pipelined_requests_are_answered_in_order(still_site: Site) -> None:
    async with raw_client(still_site) as client:
        client.send(3 * (f"{HEAD}\r\n".encode() + BODY))
        receipts = [orjson.loads(await client.read()) for _ in range(3)]
    assert sorted(await still_site.job_ids()) == sorted(receipt["job_id"] for receipt in receipts)


# ---------------------------------------------------------------- whole bodies and answers of the OpenAI front

CHAT = orjson.dumps({"model": "llama-3", "messages": HELLO})
LENGTH = f"Content-Length: {len(CHAT)}\r\n"


def chat(fields: str = LENGTH) -> bytes:
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}{fields}\r\n".encode()


@contextlib.asynccontextmanager
async def front_client(front: Front) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(front.base.rpartition(":")[2]))
    try:
        async with asyncio.timeout(10):
            yield reader, writer
    finally:
        writer.close()


async def answer(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
    """The headers and the body of a response, which must have status 200."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert head.startswith("HTTP/1.1 200 OK\r\n"), head
    headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
    return headers, await reader.readexactly(int(headers["content-length"]))


async def test_an_answer_in_one_write_has_the_headers_of_one_that_uvicorn_sends(tmp_path: Path) -> None:
    async with open_front(tmp_path, "llama-3") as front, front_client(front) as (reader, writer):
        writer.write(chat() + CHAT)
        whole, body = await answer(reader)
        writer.write(chat(LENGTH + "Connection: close\r\n") + CHAT)
        usual, same = await answer(reader)
        assert await reader.read() == b""
    assert usual.pop("connection") == "close"
    assert list(whole) == list(usual)
    assert {"x-request-id", "x-fairlead-job", "x-content-type-options", "content-type"} <= whole.keys()
    assert orjson.loads(body)["choices"] == orjson.loads(same)["choices"]


async def test_pipelined_requests_get_their_own_answers_in_order(tmp_path: Path) -> None:
    async with open_front(tmp_path, "llama-3") as front, front_client(front) as (reader, writer):
        writer.write(b"".join(chat(f"{LENGTH}X-Request-ID: {number}\r\n") + CHAT for number in range(3)))
        answers = [await answer(reader) for _ in range(3)]
        assert [headers["x-request-id"] for headers, _ in answers] == ["0", "1", "2"]
        assert len({headers["x-fairlead-job"] for headers, _ in answers}) == 3


@pytest.mark.parametrize("fields", [LENGTH, "Transfer-Encoding: chunked\r\n", LENGTH + "Expect: 100-continue\r\n"])
async def test_a_body_that_arrives_later_than_its_head_is_read(tmp_path: Path, fields: str) -> None:
    chunked = "chunked" in fields
    async with open_front(tmp_path, "llama-3") as front, front_client(front) as (reader, writer):
        writer.write(chat(fields))
        if "Expect" in fields:
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        for part in (CHAT[:10], CHAT[10:]):
            writer.write(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n" if chunked else b"")
        await answer(reader)
        assert front.upstream.calls[-1].body == CHAT


async def test_an_answer_to_another_origin_has_the_headers_of_cors(tmp_path: Path) -> None:
    server = {"allowed_origins": ["https://app.example"]}
    async with open_front(tmp_path, "llama-3", server=server) as front, front_client(front) as (reader, writer):
        writer.write(chat(LENGTH + "Origin: https://app.example\r\n") + CHAT)
        headers, _ = await answer(reader)
        assert headers["access-control-allow-origin"] == "https://app.example"


@pytest.mark.parametrize("value", [b"a\r\nb: c", b"a\nb", b"a\rb", b"a\0b"])
def test_a_header_that_would_break_the_response_is_left_to_uvicorn(value: bytes) -> None:
    connection = _Connection(BoundedHTTP)
    connection.protocol.data_received(_CHUNKED)
    scope = connection.protocol.cycle.scope
    assert not connection.protocol.send_whole(scope, 200, [(b"x", value), (b"content-length", b"0")], b"")
    assert not connection.output
    assert not connection.protocol.cycle.response_started


def test_a_connection_takes_the_body_of_its_request_once() -> None:
    connection = _Connection(BoundedHTTP)
    connection.protocol.data_received(_CHUNKED)
    scope = connection.protocol.cycle.scope
    receive = connection.protocol.cycle.receive
    assert connection.protocol.take_body(dict(scope), receive) is None
    assert connection.protocol.take_body(scope, lambda: receive()) is None, "a layer between reads it"
    assert connection.protocol.take_body(scope, receive) == b"1"
    assert connection.protocol.take_body(scope, receive) is None


async def test_a_body_in_one_packet_is_limited_without_a_length_too(tmp_path: Path) -> None:
    body = BODY + b" " * 4096
    head = HEAD.replace(f"Content-Length: {len(BODY)}", "Transfer-Encoding: chunked")
    async with open_site(tmp_path / "a.db", running=False, max_body=2048) as site, raw_client(site) as client:
        client.send(f"{head}\r\n{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")
        assert (await client.read_head()).startswith(b"HTTP/1.1 413 ")
        assert await site.job_ids() == []


@pytest.mark.parametrize("fields", [LENGTH, "Transfer-Encoding: chunked\r\n"])
async def test_a_body_that_was_read_is_not_waited_for_again(fields: str) -> None:
    """The handler reads a body that arrived after `BodyLimit` had looked, and then waits for the client to leave."""
    scopes: list[Any] = []
    begun, arrived, taken = asyncio.Event(), asyncio.Event(), asyncio.Event()
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def handle(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)
        begun.set()
        await arrived.wait()
        try:
            body = await read(Request(scope, receive))
            taken.set()
            ended.set_result((body, (await receive())["type"]))
        except Exception as error:
            ended.set_exception(error)

    app: Any = BodyLimit(handle, max_body=1000, patience=0)
    async with served(app, interface="asgi3") as port, asyncio.timeout(10):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(chat(fields))
        await begun.wait()
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(CHAT), CHAT) if "chunked" in fields else CHAT)
        while not scopes[0][CONNECTION].has_body(scopes[0]):
            await asyncio.sleep(0.001)
        arrived.set()
        await taken.wait()
        for _ in range(5):  # a timeout of no seconds would pass meanwhile
            await asyncio.sleep(0)
        writer.close()
        assert await ended == (CHAT, "http.disconnect")


async def test_a_connection_is_kept_after_an_expectation_that_nobody_knows(tmp_path: Path) -> None:
    async with open_front(tmp_path, "llama-3") as front, front_client(front) as (reader, writer):
        for _ in range(2):
            writer.write(chat(LENGTH + "Expect: nothing\r\n") + CHAT)
            assert "connection" not in (await answer(reader))[0]
