"""A page of the dashboard, as a test has it: it follows a view and keeps its state as a browser does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
from websockets.asyncio.client import ClientConnection, connect

from fairlead.gateway.dashboard.patch import merge

PATIENCE = 30


class Following:
    def __init__(self, client: ClientConnection) -> None:
        self.client = client
        self.state: dict[str, Any] = {}
        self.messages: list[dict[str, Any]] = []

    async def ask(self, **view: Any) -> dict[str, Any]:
        """The answer to it: a state, or an error. What comes of the view before is passed over."""
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
