"""`/ws/dashboard`: one WebSocket per page. The page names a view; it is sent its state, and then what changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from fairlead.errors import RequestError
from fairlead.gateway.access import Caller, caller_of
from fairlead.gateway.dashboard.channel import Board, Follower
from fairlead.gateway.dashboard.views import view_of
from fairlead.gateway.problems import problem
from fairlead.gateway.replies import fairlead_of
from fairlead.runtime.events import Dismissed, Subscription, TooSlow

SEND_WITHIN_S = 10.0
BETWEEN_ASKS_S = 0.1
"""Each costs a look at something: who asks faster than anyone can read waits."""
CLOSE_WITHIN_S = 1.0
RESTARTING, LATER = 1012, 1013


async def dashboard(websocket: WebSocket) -> None:
    board: Board = websocket.app.state.board
    await websocket.accept()
    with board.follower() as follower, fairlead_of(websocket).hub.present() as process:
        page = Page(websocket, board, follower, caller_of(websocket))
        await page.run(process)


router = APIRouter(routes=[WebSocketRoute("/ws/dashboard", dashboard)])


class Page:
    def __init__(self, websocket: WebSocket, board: Board, follower: Follower, caller: Caller) -> None:
        self._websocket = websocket
        self._board = board
        self._follower = follower
        self._caller = caller

    async def run(self, process: Subscription) -> None:
        """Until the client leaves, is too slow, or this process stops."""
        parts: list[Coroutine[Any, Any, None]] = [self._hear(), self._tell(), _until_dismissed(process)]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            ended = next(iter(done)).exception()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(ended, Dismissed):
            await self._close(RESTARTING, "this gateway stops; reconnect")
        elif isinstance(ended, TooSlow):
            await self._close(LATER, "too slow; reconnect for the present state")
        elif ended is not None and not isinstance(ended, WebSocketDisconnect):
            raise ended

    async def _hear(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            try:
                self._board.follow(self._follower, view_of(_read(message), self._caller))
            except RequestError as error:
                self._board.leave(self._follower)
                said = problem(error, None)
                self._follower.push(orjson.dumps({"type": "error", "code": said["code"], "message": said["detail"]}))
            await asyncio.sleep(BETWEEN_ASKS_S)

    async def _tell(self) -> None:
        while True:
            message = await self._follower.next()
            try:
                async with asyncio.timeout(SEND_WITHIN_S):
                    await self._websocket.send({"type": "websocket.send", "text": message.decode()})
            except TimeoutError:
                raise TooSlow from None

    async def _close(self, code: int, reason: str) -> None:
        with contextlib.suppress(TimeoutError, RuntimeError, OSError):
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await self._websocket.close(code, reason)


async def _until_dismissed(process: Subscription) -> None:
    while True:
        await process.next()


def _read(message: Any) -> Any:
    try:
        return orjson.loads(message.get("text") or message.get("bytes") or b"")
    except ValueError:
        return None
