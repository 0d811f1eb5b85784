"""A WebSocket client of the gateway for the tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.integration.gateway_site import Site

MakeSite = Callable[..., Awaitable[Site]]
UNKNOWN = "0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a10"
PATIENCE = 60


@asynccontextmanager
async def watching(port: int, path: str, **options: Any) -> AsyncIterator[ClientConnection]:
    async with asyncio.timeout(PATIENCE), connect(f"ws://127.0.0.1:{port}{path}", **options) as client:
        yield client


async def next_event(client: ClientConnection) -> dict[str, Any]:
    return dict(orjson.loads(await client.recv()))


async def next_of(client: ClientConnection, *kinds: str) -> dict[str, Any]:
    """Return the next event of these types, skipping others."""
    while (event := await next_event(client))["type"] not in kinds:
        pass
    return event


async def until_closed(client: ClientConnection) -> tuple[list[dict[str, Any]], int]:
    seen: list[dict[str, Any]] = []
    with contextlib.suppress(ConnectionClosed):
        while True:
            seen.append(await next_event(client))
    assert client.close_code is not None
    return seen, client.close_code


async def refused(port: int, path: str, **options: Any) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as error:
        async with watching(port, path, **options):
            pass
    response = error.value.response
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"
    return response.status_code, orjson.loads(bytes(response.body or b""))["code"]


def with_key(text: str) -> dict[str, Any]:
    return {"additional_headers": {"Authorization": f"Bearer {text}"}}


def types(seen: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in seen]
