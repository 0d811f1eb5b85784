"""The output of a prediction as Server-Sent Events: `output`, `logs`, `error`, `done`. Every event has an id, because
the Python client drops those without one; the id says what the client has received (`domain/replicate.py`)."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import orjson
from starlette.types import Receive, Scope, Send

from fairlead.domain import events, replicate
from fairlead.domain.job import JobStatus
from fairlead.domain.output import Position
from fairlead.domain.replicate import Diverged, Received, Resumption
from fairlead.engine.events import ShuttingDown, SlowConsumer
from fairlead.errors import FairleadError
from fairlead.gateway.fronts.replicate.predictions import Presenter
from fairlead.gateway.responses import HEARTBEAT_S, KEEP_ALIVE, FrameStream

if TYPE_CHECKING:
    from fairlead.app.event_stream import EventStream
    from fairlead.app.fairlead import Fairlead

DONE = "done"
"""How the id of the last event begins. A browser that reconnects with it has received everything."""
# All that a client may take for the end of a line; Python's has more of them than the protocol.
_LINE_ENDS = re.compile("\r\n|[\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


class PredictionStream:
    """The stream of one reader."""

    def __init__(self, app: Fairlead, presenter: Presenter, job_id: str, received: Received) -> None:
        self._app = app
        self._presenter = presenter
        self._job_id = job_id
        self._output = Resumption(received)
        self._last_step = 0
        self._user_id = ""
        self._stream: EventStream = app.jobs.stream()

    async def open(self) -> dict[str, Any]:
        """Follow the job, and return its snapshot. Raises NotFound and TooManyReaders."""
        try:
            after = self._output.received.position
            snapshot = await self._stream.watch(self._job_id, output=True, after=after)
        except BaseException:
            self._stream.close()
            raise
        self._last_step = snapshot["job"]["total_steps"] - 1
        self._user_id = snapshot["job"]["user_id"]
        return snapshot

    def close(self) -> None:
        self._stream.close()

    async def frames(self, snapshot: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        try:
            yield self._place(snapshot["job"]) or KEEP_ALIVE
            async for frame in self._follow():
                yield frame
        except Diverged:
            yield self._failure("the output began again and is different; read the prediction", "error")
        except (ShuttingDown, SlowConsumer, FairleadError) as error:
            # The clients would take the end of the stream for the end of the output.
            reason = error.code if isinstance(error, FairleadError) else "the gateway is stopping, or you read slowly"
            yield self._event("error", _json({"detail": f"{reason}; reconnect with Last-Event-ID"}))

    async def _follow(self) -> AsyncGenerator[bytes, None]:
        while True:
            event = await self._stream.next(HEARTBEAT_S)
            if event is None:
                yield KEEP_ALIVE
            elif event["type"] in events.TERMINAL:
                async for frame in self._end():
                    yield frame
                return
            elif frame := await self._frame(event):
                yield frame

    async def _frame(self, event: dict[str, Any]) -> bytes:
        match event["type"]:
            case events.OUTPUT if event["step_index"] == self._last_step:
                return await self._chunk(event)
            case events.OUTPUT_RESTART if event["step_index"] <= self._last_step:
                self._output.restart()
            case events.PROGRESS:
                lines = replicate.progress_lines(event)
                return self._event("logs", lines) if lines else b""
            case events.POSITION | events.SNAPSHOT:
                return self._place(event.get("job", event))
        return b""

    def _place(self, source: dict[str, Any]) -> bytes:
        """The place in the queue, as a comment."""
        line = replicate.queue_line(source.get("position"), source.get("estimated_wait"))
        return f": {line}\n".encode() if line else b""

    async def _chunk(self, event: dict[str, Any]) -> bytes:
        data_json = orjson.dumps(event["data"]).decode()
        data = orjson.loads(data_json)
        if event.get("whole"):
            data = await self._app.jobs.whole_result(self._job_id, data)
        position = Position.parse(event["position"])
        if isinstance(data, str):
            text = self._output.take(data, position)
            return self._event("output", text) if text else b""
        if not self._output.take(data_json, position):
            return b""
        return self._event("output", await self._shown(data))

    async def _shown(self, data: Any) -> str:
        shown = await self._presenter.with_urls(data, self._user_id)
        return shown if isinstance(shown, str) else _json(shown)

    # ------------------------------------------------------------ the end

    async def _end(self) -> AsyncGenerator[bytes, None]:
        job = await self._app.jobs.get_without_attempts(self._job_id)
        status = replicate.status_of(job.status, job.error, started=True)
        if status == replicate.FAILED:
            yield self._failure(replicate.error_text(job.error) or "the prediction failed", "error")
            return
        if job.status is JobStatus.COMPLETED:
            self._output.finish()
            if not self._output.received.size:  # nothing was streamed: the output is the result
                result = await self._app.jobs.whole_result(self._job_id, job.result)
                for each in result if isinstance(result, list) else [result]:
                    yield self._event("output", await self._shown(each))
        yield self._done({"reason": "canceled"} if status == replicate.CANCELED else {})

    def _failure(self, detail: str, reason: str) -> bytes:
        return self._event("error", _json({"detail": detail})) + self._done({"reason": reason})

    def _done(self, data: dict[str, Any]) -> bytes:
        return _frame_of("done", f"{DONE}.{self._output.received}", _json(data))

    def _event(self, kind: str, text: str) -> bytes:
        return _frame_of(kind, str(self._output.received), text)


class StreamResponse(FrameStream):
    """Ends the stream also if the client disconnects before the first event."""

    def __init__(self, stream: PredictionStream, snapshot: dict[str, Any]) -> None:
        super().__init__(stream.frames(snapshot))
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.close()


def _frame_of(kind: str, event_id: str, text: str) -> bytes:
    data = "".join(f"data: {line}\n" for line in _LINE_ENDS.split(text))
    return f"event: {kind}\nid: {event_id}\n{data}\n".encode("utf-8", "replace")


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
