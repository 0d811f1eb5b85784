"""Helpers that routes share: access to the application behind a request, JSON responses, and Server-Sent Events about a
job, a batch or a turn. An event stream is a snapshot, followed by events until the job, batch or turn ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Any

import orjson
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from fairlead.app.batches import BATCH_COMPLETE
from fairlead.domain.events import SNAPSHOT, TERMINAL
from fairlead.domain.job import FINISHED
from fairlead.engine.events import ShuttingDown, SlowConsumer
from fairlead.errors import FairleadError
from fairlead.gateway.turn_events import LAST as LAST_OF_TURN

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead
    from fairlead.domain.pagination import Page
    from fairlead.domain.views import JobView

HEARTBEAT_S = 15.0
SEND_WITHIN_S = 10.0
RETRY_MS = 2000
END = "-end"
KEEP_ALIVE = b": keep-alive\n\n"
LAST = TERMINAL | LAST_OF_TURN | {BATCH_COMPLETE}

Events = AsyncIterator[dict[str, Any] | None]


def fairlead_of(request: HTTPConnection) -> Fairlead:
    app: Fairlead = request.scope["app"].state.fairlead
    return app


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value, default=str), status, headers, "application/json")


def page_response(page: Page[JobView]) -> Response:
    return json_response({"data": [job.as_dict() for job in page.data], "next_cursor": page.next_cursor})


class FrameStream(StreamingResponse):
    """A response that streams Server-Sent Events. When it ends, it closes its source, so that no subscription outlives
    the reader. A reader that stalls is disconnected."""

    def __init__(self, frames: AsyncGenerator[bytes, None]) -> None:
        self._frames = frames
        super().__init__(self._frames, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(SEND_WITHIN_S):
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        except TimeoutError:
            raise ClientDisconnect from None
        finally:
            await self._frames.aclose()


class SseStream(FrameStream):
    """A response that streams the events of a job, a batch or a turn."""

    def __init__(self, first: dict[str, Any] | None, events: Events) -> None:
        super().__init__(frames(first, events))


def frames(first: dict[str, Any] | None, events: Events) -> AsyncGenerator[bytes, None]:
    return closing(_numbered(first, events), events)


async def _numbered(first: dict[str, Any] | None, events: Events) -> AsyncGenerator[bytes, None]:
    yield f"retry: {RETRY_MS}\n".encode() + frame(1, first)
    number = 1
    async for event in events:
        number += event is not None
        yield frame(number, event)


async def closing(frames: AsyncIterator[bytes], source: AsyncIterator[Any]) -> AsyncGenerator[bytes, None]:
    """Yield frames, and then the reason if they end early. Closes the source of the frames."""
    try:
        async for each in frames:
            yield each
    except SlowConsumer:
        yield b": too slow, reconnect for the current state\n\n"
    except ShuttingDown:
        yield b": closing, reconnect for the current state\n\n"
    except FairleadError as error:
        # The status line was sent long ago. The client receives the error when it reconnects.
        yield f": ended, {error.code}\n\n".encode()
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()


def frame(number: int, event: dict[str, Any] | None) -> bytes:
    """Encode an event as a Server-Sent Event; None is a keep-alive comment. The id of the last event ends in `-end`: a
    browser that reconnects with such an id has received every event."""
    if event is None:
        return KEEP_ALIVE
    ended = event["type"] in LAST or (event["type"] == SNAPSHOT and _subject_of(event)["status"] in FINISHED)
    end = END if ended else ""
    data = orjson.dumps(event, default=str)
    return f"id: {number}{end}\nevent: {event['type']}\ndata: ".encode() + data + b"\n\n"


def _subject_of(snapshot: dict[str, Any]) -> dict[str, Any]:
    subject: dict[str, Any] = snapshot["turn"] if "turn" in snapshot else snapshot["job"]
    return subject
