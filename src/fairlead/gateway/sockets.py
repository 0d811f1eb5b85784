"""Live progress over WebSockets: `/ws/{job_id}` for one job, `/ws` for all jobs of a user and any others by name.

Each socket has a `Feed` and two tasks: one tells what the feed says, one hears what the client says and puts it into
the same feed, so that answers and events keep one order. Nothing gathers without bound: the feed drops a reader that
falls behind, and a send that does not finish ends the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from uuid import UUID

import orjson
from fastapi import APIRouter
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from fairlead.domain.keys import Role
from fairlead.errors import InvalidInput, NotFound, RequestError, Unavailable
from fairlead.gateway.access import caller_of, user_in_reach
from fairlead.gateway.problems import problem_response
from fairlead.gateway.replies import fairlead_of
from fairlead.runtime.events import Dismissed, TooSlow, iso
from fairlead.runtime.feed import Allowed, Feed, Left
from fairlead.runtime.submission import MAX_USER_ID, check_text
from fairlead.runtime.view import JobView

HEARTBEAT_S = 25.0
SEND_WITHIN_S = 10.0
CLOSE_WITHIN_S = 1.0
MOST_BAD_FRAMES = 3
BAD_FRAME = "bad_frame"
HEARTBEAT = "HEARTBEAT"

ENDED, REFUSED, RESTARTING, LATER, GONE = 1000, 1008, 1012, 1013, 4404


# ---------------------------------------------------------------- routes


async def watch_job(websocket: WebSocket) -> None:
    app = fairlead_of(websocket)
    with contextlib.closing(app.feed(_reach(websocket))) as feed:
        try:
            first = [await feed.watch(_job_id(websocket.path_params["job_id"]))]
        except (RequestError, Unavailable) as error:
            await _refuse(websocket, error)
            return
        await Session(websocket, feed, one_job=True).run(first)


async def watch_user(websocket: WebSocket) -> None:
    app = fairlead_of(websocket)
    with contextlib.closing(app.feed(_reach(websocket))) as feed:
        try:
            user_id = _user_of(websocket)
            first = [feed.snapshot_of_many([], False, None) if user_id is None else await feed.follow(user_id)]
        except (RequestError, Unavailable) as error:
            await _refuse(websocket, error)
            return
        await Session(websocket, feed, one_job=False).run(first)


router = APIRouter(routes=[WebSocketRoute("/ws", watch_user), WebSocketRoute("/ws/{job_id}", watch_job)])


def _reach(websocket: WebSocket) -> Allowed:
    """Jobs asked for by name are looked at here; that of a path the guard has looked at already."""
    caller = caller_of(websocket)

    def reaches(job: JobView) -> bool:
        return caller.role is not Role.USER or job.user_id == caller.user_id

    return reaches


def _user_of(websocket: WebSocket) -> str | None:
    asked = websocket.query_params.get("user_id")
    if asked is not None:
        check_text(asked, "user_id", MAX_USER_ID)
    return user_in_reach(caller_of(websocket), asked)


def _job_id(text: Any) -> str:
    try:
        return str(UUID(text))
    except (ValueError, AttributeError, TypeError):
        raise InvalidInput("job_id: should be a valid UUID", pointer="/job_id") from None


async def _refuse(websocket: WebSocket, error: RequestError | Unavailable) -> None:
    """Before it is accepted: an HTTP status, where the server can send one."""
    if "websocket.http.response" in websocket.scope.get("extensions", {}):
        await websocket.send_denial_response(problem_response(error, websocket.scope))
    else:
        await websocket.accept()
        await websocket.close(GONE if error.status == 404 else 4000 + error.status, error.code)


# ---------------------------------------------------------------- one socket


class Session:
    def __init__(self, websocket: WebSocket, feed: Feed, *, one_job: bool) -> None:
        self._websocket = websocket
        self._feed = feed
        self._one_job = one_job

    async def run(self, first: list[dict[str, Any]]) -> None:
        """`first` is taken out of its list: a snapshot would stay in memory as long as the socket."""
        await self._websocket.accept()
        hearing = asyncio.create_task(self._hear())
        try:
            await self._send(first.pop())
            await self._close(*await self._tell())
        except (Left, WebSocketDisconnect):
            pass
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)

    async def _tell(self) -> tuple[int, str]:
        """Until there is no more to tell: the code and the reason to close with."""
        bad_frames = 0
        try:
            while not (self._one_job and self._feed.follows_nothing):
                event = await self._next()
                await self._send(event)
                bad_frames += event.get("code") == BAD_FRAME
                if bad_frames >= MOST_BAD_FRAMES:
                    return REFUSED, "too many frames that are not understood"
        except TooSlow:
            return LATER, "too slow; reconnect for the present state"
        except Dismissed:
            return RESTARTING, "this gateway stops; reconnect for the present state"
        except Unavailable:
            return LATER, "not now; try again"
        except NotFound:
            return GONE, "the job was deleted"
        return ENDED, "the job has ended"

    async def _next(self) -> dict[str, Any]:
        try:
            return await self._feed.next(HEARTBEAT_S) or {"type": HEARTBEAT, "at": iso(self._feed.now())}
        except RequestError as error:
            if self._one_job:
                raise
            return self._feed.error(error.message, error.code)

    async def _send(self, event: dict[str, Any]) -> None:
        text = orjson.dumps(event, default=str).decode()
        try:
            async with asyncio.timeout(SEND_WITHIN_S):
                await self._websocket.send({"type": "websocket.send", "text": text})
        except TimeoutError:
            raise TooSlow from None

    async def _close(self, code: int, reason: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await self._websocket.close(code, reason)

    # ------------------------------------------------------------ what the client says

    async def _hear(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                self._feed.leave()
                return
            try:
                self._take(message.get("text") or message.get("bytes") or b"")
            except RequestError as error:
                self._feed.refuse(BAD_FRAME, error.message)

    def _take(self, frame: str | bytes) -> None:
        if self._one_job:
            raise RequestError("this socket is about one job and takes no requests; /ws does")
        try:
            said = orjson.loads(frame)
        except ValueError:
            said = None
        if not isinstance(said, dict) or len(said) != 1:
            raise RequestError('send {"watch": "<job_id>"} or {"unwatch": "<job_id>"}')
        match said:
            case {"watch": job_id}:
                self._feed.ask_watch(_job_id(job_id))
            case {"unwatch": job_id}:
                self._feed.ask_unwatch(_job_id(job_id))
            case _:
                raise RequestError('send {"watch": "<job_id>"} or {"unwatch": "<job_id>"}')
