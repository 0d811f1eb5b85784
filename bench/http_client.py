"""A cheap client: it encodes requests once, counts responses and checks only their status.

    python -m bench.http_client PORT PATH COUNT CONNECTIONS < BODY

It prints the requests per second. It has a process of its own, since it shares the cores with the server anyway.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import cast

import uvloop

ACCEPTED = b"HTTP/1.1 202"


class Connection(asyncio.Protocol):
    def __init__(self, request: bytes, left: list[int], done: asyncio.Future[None]) -> None:
        self._request, self._left, self._done = request, left, done
        self._answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass of it
        self._send()

    def _send(self) -> None:
        if self._left[0] > 0:
            self._left[0] -= 1
            self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head = self._answer.find(b"\r\n\r\n")
        if head < 0:
            return
        at = self._answer.lower().index(b"content-length:") + len(b"content-length:")
        length = int(self._answer[at : self._answer.index(b"\r\n", at)])
        if len(self._answer) < head + 4 + length:
            return
        if not self._answer.startswith(ACCEPTED):
            self._done.set_exception(RuntimeError(self._answer[:300].decode(errors="replace")))
            return
        self._answer = b""
        self._left[1] -= 1
        if self._left[1] == 0:
            self._done.set_result(None)
        self._send()


async def rate(port: int, path: str, count: int, connections: int, body: bytes) -> float:
    request = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    left = [count, count]  # to send, to receive
    begun = time.perf_counter()
    for _ in range(connections):
        await loop.create_connection(lambda: Connection(request, left, done), "127.0.0.1", port)
    await done
    return count / (time.perf_counter() - begun)


if __name__ == "__main__":
    port, path, count, connections = sys.argv[1:]
    print(uvloop.run(rate(int(port), path, int(count), int(connections), sys.stdin.buffer.read())))
