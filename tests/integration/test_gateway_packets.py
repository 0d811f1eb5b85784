"""Heads of answers are held back until their bodies come: what a client waits for must come all the same."""

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


class Link:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def say(self, text: bytes) -> None:
        self._writer.write(text)

    async def hear_head(self) -> bytes:
        return await self._reader.readuntil(b"\r\n\r\n")

    async def hear(self) -> bytes:
        """A whole answer: its body."""
        head = await self.hear_head()
        assert head.startswith(b"HTTP/1.1 202 "), head
        length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        return await self._reader.readexactly(int(length.partition(b":")[2]))


@contextlib.asynccontextmanager
async def link_to(site: Site) -> AsyncIterator[Link]:
    async with served(site.gateway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            async with asyncio.timeout(10):
                yield Link(reader, writer)
        finally:
            writer.close()


async def test_a_client_that_asks_first_is_told_to_go_on(still_site: Site) -> None:
    async with link_to(still_site) as link:
        link.say(f"{HEAD}Expect: 100-continue\r\n\r\n".encode())
        assert await link.hear_head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        link.say(BODY)
        receipt = orjson.loads(await link.hear())
    assert await still_site.job_ids() == [receipt["job_id"]]


async def test_requests_sent_together_are_answered_one_after_the_other(still_site: Site) -> None:
    async with link_to(still_site) as link:
        link.say(3 * (f"{HEAD}\r\n".encode() + BODY))
        receipts = [orjson.loads(await link.hear()) for _ in range(3)]
    assert sorted(await still_site.job_ids()) == sorted(receipt["job_id"] for receipt in receipts)
