"""Live progress over WebSockets: `/ws/{job_id}` for one job, and `/ws` for all jobs of a user and for jobs that the
client names by id.

Each socket has an `EventStream` and two tasks. One sends the events of the stream; the other receives the client's
messages and passes them to the same stream, which also yields the replies. So replies and events keep one order.
Buffers are bounded: the stream drops a reader that falls behind, and a send that does not complete ends the socket.
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

from fairlead.app.event_stream import Allowed, EventStream, Left
from fairlead.domain.access import Role
from fairlead.domain.events import iso
from fairlead.domain.output import Position
from fairlead.domain.submission import MAX_USER_ID
from fairlead.domain.validation import check_text
from fairlead.domain.views import JobView
from fairlead.engine.events import ShuttingDown, SlowConsumer
from fairlead.errors import InvalidInput, NotFound, RequestError, Unavailable
from fairlead.gateway.permissions import caller_of, user_in_reach
from fairlead.gateway.problems import problem_response
from fairlead.gateway.responses import fairlead_of

HEARTBEAT_S = 25.0
SEND_WITHIN_S = 10.0
CLOSE_WITHIN_S = 1.0
MAX_BAD_FRAMES = 3
BAD_FRAME = "bad_frame"
HEARTBEAT = "HEARTBEAT"

ENDED, REFUSED, RESTARTING, LATER, GONE = 1000, 1008, 1012, 1013, 4404


# ---------------------------------------------------------------- routes


async def watch_job(websocket: WebSocket) -> None:
    app = fairlead_of(websocket)
    with contextlib.closing(app.feed(_allowed(websocket))) as stream:
        try:
            query = websocket.query_params
            wanted = _output_wanted(query.get("output") in ("1", "true"), query.get("after"))
            first = [await stream.watch(_job_id(websocket.path_params["job_id"]), **wanted)]
        except (RequestError, Unavailable) as error:
            await _refuse(websocket, error)
            return
        await WebSocketSession(websocket, stream, one_job=True).run(first)


async def watch_user(websocket: WebSocket) -> None:
    app = fairlead_of(websocket)
    with contextlib.closing(app.feed(_allowed(websocket))) as stream:
        try:
            user_id = _user_of(websocket)
            first = [stream.snapshot_of_many([], False, None) if user_id is None else await stream.follow(user_id)]
        except (RequestError, Unavailable) as error:
            await _refuse(websocket, error)
            return
        await WebSocketSession(websocket, stream, one_job=False).run(first)


router = APIRouter(routes=[WebSocketRoute("/ws", watch_user), WebSocketRoute("/ws/{job_id}", watch_job)])


def _allowed(websocket: WebSocket) -> Allowed:
    """Return a function that checks whether the caller may see a job. It is used for jobs that the client names in
    messages; the `Guard` has already checked the job in the path."""
    caller = caller_of(websocket)

    def allows(job: JobView) -> bool:
        return caller.role is not Role.USER or job.user_id == caller.user_id

    return allows


def _user_of(websocket: WebSocket) -> str | None:
    user_id = websocket.query_params.get("user_id")
    if user_id is not None:
        check_text(user_id, "user_id", MAX_USER_ID)
    return user_in_reach(caller_of(websocket), user_id)


def _job_id(text: Any) -> str:
    try:
        return str(UUID(text))
    except (ValueError, AttributeError, TypeError):
        raise InvalidInput("job_id: should be a valid UUID", pointer="/job_id") from None


def _output_wanted(output: Any, after: Any) -> dict[str, Any]:
    """Read the options with which a client asks for the output of a job. Raises InvalidInput."""
    if not isinstance(output, bool):
        raise InvalidInput("output: should be true or false", pointer="/output")
    if after is not None and not isinstance(after, str):
        raise InvalidInput("after: should be a position such as 12-40", pointer="/after")
    return {"output": output, "after": None if after is None else Position.parse(after)}


async def _refuse(websocket: WebSocket, error: RequestError | Unavailable) -> None:
    """Refuse the handshake of a WebSocket with an HTTP status, or with a close code if the server cannot send an HTTP
    response."""
    if "websocket.http.response" in websocket.scope.get("extensions", {}):
        await websocket.send_denial_response(problem_response(error, websocket.scope))
    else:
        await websocket.accept()
        await websocket.close(GONE if error.status == 404 else 4000 + error.status, error.code)


# ---------------------------------------------------------------- one socket


class WebSocketSession:
    def __init__(self, websocket: WebSocket, stream: EventStream, *, one_job: bool) -> None:
        self._websocket = websocket
        self._stream = stream
        self._one_job = one_job

    async def run(self, first: list[dict[str, Any]]) -> None:
        """Send the event in the list `first`, then all other events. The event is removed from the list, so that its
        snapshot can be freed."""
        await self._websocket.accept()
        receiver = asyncio.create_task(self._receive())
        try:
            await self._send(first.pop())
            await self._close(*await self._send_events())
        except (Left, WebSocketDisconnect):
            pass
        finally:
            receiver.cancel()
            await asyncio.gather(receiver, return_exceptions=True)

    async def _send_events(self) -> tuple[int, str]:
        """Send events until the stream ends. Returns the code and the reason with which to close the WebSocket."""
        bad_frames = 0
        try:
            while not (self._one_job and self._stream.follows_nothing):
                event = await self._next()
                await self._send(event)
                bad_frames += event.get("code") == BAD_FRAME
                if bad_frames >= MAX_BAD_FRAMES:
                    return REFUSED, "too many invalid frames"
        except SlowConsumer:
            return LATER, "too slow; reconnect for the current state"
        except ShuttingDown:
            return RESTARTING, "this gateway is stopping; reconnect for the current state"
        except Unavailable:
            return LATER, "temporarily unavailable; try again"
        except NotFound:
            return GONE, "the job was deleted"
        return ENDED, "the job has ended"

    async def _next(self) -> dict[str, Any]:
        try:
            return await self._stream.next(HEARTBEAT_S) or {"type": HEARTBEAT, "at": iso(self._stream.now())}
        except RequestError as error:
            if self._one_job:
                raise
            return self._stream.error(error.message, error.code)

    async def _send(self, event: dict[str, Any]) -> None:
        text = orjson.dumps(event, default=str).decode()
        try:
            async with asyncio.timeout(SEND_WITHIN_S):
                await self._websocket.send({"type": "websocket.send", "text": text})
        except TimeoutError:
            raise SlowConsumer from None

    async def _close(self, code: int, reason: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await self._websocket.close(code, reason)

    # ------------------------------------------------------------ messages of the client

    async def _receive(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                self._stream.leave()
                return
            try:
                self._handle(message.get("text") or message.get("bytes") or b"")
            except RequestError as error:
                self._stream.refuse(BAD_FRAME, error.message)

    def _handle(self, frame: str | bytes) -> None:
        if self._one_job:
            raise RequestError("this socket watches one job and accepts no messages; use /ws")
        try:
            message = orjson.loads(frame)
        except ValueError:
            message = None
        match message:
            case {"watch": job_id, **options} if options.keys() <= {"output", "after"}:
                wanted = _output_wanted(options.get("output", False), options.get("after"))
                self._stream.ask_watch(_job_id(job_id), **wanted)
            case {"unwatch": job_id} if len(message) == 1:
                self._stream.ask_unwatch(_job_id(job_id))
            case _:
                raise RequestError('send {"watch": "<job_id>"} or {"unwatch": "<job_id>"}')
