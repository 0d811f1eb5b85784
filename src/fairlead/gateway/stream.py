"""Events of a job, a batch or a turn, as Server-Sent Events: a snapshot, then what happens, until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from fairlead.domain.job import FINISHED
from fairlead.errors import FairleadError
from fairlead.gateway.turn_events import LAST as LAST_OF_TURN
from fairlead.runtime.batch_watch import BATCH_COMPLETE
from fairlead.runtime.events import SNAPSHOT, TERMINAL, Dismissed, TooSlow

HEARTBEAT_S = 15.0
SEND_WITHIN_S = 10.0
RETRY_MS = 2000
END = "-end"
LAST = TERMINAL | LAST_OF_TURN | {BATCH_COMPLETE}

Events = AsyncIterator[dict[str, Any] | None]


class EventStream(StreamingResponse):
    """Closes what it reads from, however it ends: a reader that left must not stay subscribed. One that takes nothing
    for a while is left."""

    def __init__(self, first: dict[str, Any] | None, events: Events) -> None:
        self._frames = frames(first, events)
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


async def frames(first: dict[str, Any] | None, events: Events) -> AsyncGenerator[bytes, None]:
    try:
        yield f"retry: {RETRY_MS}\n".encode() + frame(1, first)
        number = 1
        async for event in events:
            number += event is not None
            yield frame(number, event)
    except TooSlow:
        yield b": too slow, reconnect for the present state\n\n"
    except Dismissed:
        yield b": closing, reconnect for the present state\n\n"
    except FairleadError as error:
        # The status line is long gone: all that is left is to end, and the client's next try hears the error itself.
        yield f": ended, {error.code}\n\n".encode()
    finally:
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()


def frame(number: int, event: dict[str, Any] | None) -> bytes:
    """The last event's id ends in `-end`: a browser that reconnects with it has seen everything."""
    if event is None:
        return b": still here\n\n"
    ended = event["type"] in LAST or (event["type"] == SNAPSHOT and _shown_in(event)["status"] in FINISHED)
    end = END if ended else ""
    data = orjson.dumps(event, default=str)
    return f"id: {number}{end}\nevent: {event['type']}\ndata: ".encode() + data + b"\n\n"


def _shown_in(snapshot: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = snapshot["turn"] if "turn" in snapshot else snapshot["job"]
    return found
