"""Chat requests to a front, one after the other on each connection.

    python -m bench.front.load URL CONNECTIONS SECONDS [--stream TOKENS]

It prints the measurement as JSON. It has a process of its own, since it shares the cores with the front anyway.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import aiohttp
import uvloop

from bench.front.upstream import MODEL, TOKEN

KEY = "sk-bench"
FIRST = b"data: {"
DONE = b"data: [DONE]"


class Load:
    def __init__(self, session: aiohttp.ClientSession, url: str, tokens: int | None) -> None:
        self._session = session
        self._url = url
        self._tokens = tokens
        self.latencies: list[float] = []
        self.first_tokens: list[float] = []
        self.chunks = 0
        self.failed: Counter[str] = Counter()

    async def run(self, connection: int, until: float) -> None:
        number = 0
        while time.perf_counter() < until:
            number += 1
            message = {"role": "user", "content": f"hello {connection} {number}"}
            body: dict[str, Any] = {"model": MODEL, "messages": [message], "user": f"user-{connection}"}
            if self._tokens is not None:
                body |= {"stream": True, "max_tokens": self._tokens}
            begun = time.perf_counter()
            if failure := await self._post(body, begun):
                self.failed[failure] += 1
                await asyncio.sleep(0.01)
            else:
                self.latencies.append(time.perf_counter() - begun)

    async def _post(self, body: dict[str, Any], begun: float) -> str | None:
        """Why the request failed, if it did."""
        try:
            async with self._session.post(self._url, json=body) as response:
                if response.status != 200:
                    return f"status {response.status}: {(await response.text())[:200]}"
                if self._tokens is None:
                    answer = await response.read()
                    return None if TOKEN.encode() in answer else f"no answer: {answer[:200]!r}"
                return await self._read_stream(response, begun)
        except aiohttp.ClientError as error:
            return f"{type(error).__name__}: {error}"

    async def _read_stream(self, response: aiohttp.ClientResponse, begun: float) -> str | None:
        received, first = b"", None
        async for piece in response.content.iter_any():
            received += piece
            if first is None and FIRST in received:
                first = time.perf_counter() - begun
        found = received.count(TOKEN.encode())
        if first is None or found != self._tokens or DONE not in received:
            return f"{found} of {self._tokens} tokens: {received[-200:]!r}"
        self.first_tokens.append(first)
        self.chunks += found
        return None


async def measure(url: str, connections: int, seconds: float, tokens: int | None) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:
        load = Load(session, url, tokens)
        begun = time.perf_counter()
        await asyncio.gather(*(load.run(number, begun + seconds) for number in range(connections)))
        took = time.perf_counter() - begun
    return {
        "requests": len(load.latencies),
        "requests/s": len(load.latencies) / took,
        "p50 ms": percentile(load.latencies, 0.5),
        "p99 ms": percentile(load.latencies, 0.99),
        "chunks": load.chunks,
        "chunks/s": load.chunks / took,
        "first token p50 ms": percentile(load.first_tokens, 0.5),
        "first token p99 ms": percentile(load.first_tokens, 0.99),
        "failed": dict(load.failed),
    }


def percentile(seconds: Sequence[float], share: float) -> float | None:
    """In milliseconds. None if there is no value."""
    if not seconds:
        return None
    return sorted(seconds)[max(0, math.ceil(len(seconds) * share) - 1)] * 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("connections", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--stream", type=int, metavar="TOKENS")
    given = parser.parse_args()
    print(json.dumps(uvloop.run(measure(given.url, given.connections, given.seconds, given.stream))))


if __name__ == "__main__":
    main()
