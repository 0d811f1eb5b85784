"""Response heads are combined with their bodies, but never delay what a client waits for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import orjson

from tests.integration.gateway_site import Site, served

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
