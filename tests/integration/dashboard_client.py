"""A client of the dashboard's WebSocket: it follows a view and keeps its state as a browser does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
from websockets.asyncio.client import ClientConnection, connect

PATIENCE = 90.0
"""What was dear to find out on a busy machine is asked again after half a minute
(`pacing.py`)."""


def merge(old: Any, patch: Any) -> Any:
    """Apply a patch as the page does: RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


class Following:
    def __init__(self, client: ClientConnection) -> None:
        self.client = client
        self.state: dict[str, Any] = {}
        self.messages: list[dict[str, Any]] = []

    async def ask(self, **view: Any) -> dict[str, Any]:
        """Send a request and return its response: a state, or an error. Messages of the previous view are skipped."""
        await self.client.send(orjson.dumps(view).decode())
        while True:
            message = await self.hear()
            if message["type"] == "error" or message.get("view") == view:
                return message

    async def hear(self) -> dict[str, Any]:
        message: dict[str, Any] = orjson.loads(await self.client.recv())
        self.messages.append(message)
        if message["type"] == "state":
            self.state = message["state"]
        elif message["type"] == "patch":
            self.state = merge(self.state, message["patch"])
        return message

    async def until(self, holds: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        while not holds(self.state):
            await self.hear()
        return self.state


@asynccontextmanager
async def following(port: int, **headers: str) -> AsyncIterator[Following]:
    address = f"ws://127.0.0.1:{port}/ws/dashboard"
    async with asyncio.timeout(PATIENCE), connect(address, additional_headers=headers) as client:
        yield Following(client)
