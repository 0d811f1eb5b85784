"""The response to a streamed request: the place in the queue while the job waits, then the upstream's events.

Until the first byte of the response, an error has its own status; afterwards it is an event of the stream,
`data: {"error": {...}}`, which the clients raise. There are never `id:` or `retry:` lines, nor events without JSON:
they break OpenAI's Python client.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, cast

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fairlead.domain import events, openai
from fairlead.domain.job import JobStatus
from fairlead.domain.output import Chunk, End, Output, Restart
from fairlead.engine.events import ShuttingDown, SlowConsumer
from fairlead.errors import TooManyReaders, Unavailable
from fairlead.gateway.fronts.openai import errors
from fairlead.gateway.fronts.openai.answers import disconnected, in_background, in_time, note_end, response_of
from fairlead.gateway.fronts.openai.requests import FrontCall, QueueView

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead
    from fairlead.app.front_requests import Reading
    from fairlead.domain.views import JobView

QUIET_S = 0.1
"""A job that starts within this time is not shown as queued, and its errors keep their status."""
HEARTBEAT_S = 15.0
STARTED, RETRYING, RESTART = b": started\n\n", b": retrying", b": restart\n\n"
_NOT_FIRST = (STARTED, RETRYING)
"""Comments that do not begin a response: as long as it has not begun, an error keeps its status."""
_TIER = re.compile(r'(?<!\\)"service_tier"\s*:\s*(?:"[^"\\]*"|null)')
_WITHOUT_TIER = re.compile(r'^(data: ?\{)(?=\s*")(?!.*"service_tier"\s*:)', re.MULTILINE)
"""The beginning of an event that reports no tier. The quotes of a text in JSON are escaped."""


class Stream(Response):
    def __init__(self, app: Fairlead, call: FrontCall, reading: Reading, headers: dict[str, str]) -> None:
        super().__init__(headers=headers)
        self._app = app
        self._call = call
        self._reading = reading
        self._fields = headers
        self._sent = _Sent()
        self._tier: str | None = None
        self._view = call.queue
        if call.queue is QueueView.CHUNKS and call.request.path not in openai.WITH_DONE:
            self._view = QueueView.COMMENTS  # the events of other streams have no deltas
        self._created: int | None = None
        self._shown_last, self._shown_at = b"", 0.0
        self._send: Send
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = in_time(send)
        following = asyncio.ensure_future(self._follow(scope, receive))
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait({following, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                raise ClientDisconnect
            following.result()
        except ClientDisconnect:
            if not self._sent.complete:
                await self._leave()
            raise
        except asyncio.CancelledError:
            in_background(self._leave())  # the key was revoked
            raise
        finally:
            for task in (following, gone):
                task.cancel()
            await asyncio.wait({following})  # its subscriptions end with it

    async def _leave(self) -> None:
        """Called when the client has disconnected, or does not get the answer."""
        await self._app.fronts.leave(self._reading)

    async def _begin(self) -> None:
        """Called before the output is read."""

    async def _follow(self, scope: Scope, receive: Receive) -> None:
        try:
            source = self._app.jobs.output_stream(self._reading.job_id, attempts=False, new=self._reading.new)
            await self._begin()
            async with contextlib.aclosing(source.follow(HEARTBEAT_S)) as output:
                item: Output | None = await self._wait_for_first(output)
                while not await self._pass_on(item, scope, receive):
                    item = await anext(output)
        except (ShuttingDown, SlowConsumer, Unavailable) as error:
            if not self._started:
                raise Unavailable("this gateway is stopping; send the request again") from None
            reason = "the gateway is stopping"
            if isinstance(error, SlowConsumer):  # a client does not send a request again whose stream has begun
                reason = "the client reads too slowly"
                await self._leave()
            await self._end_with(errors.error_of(reason, 503, "unavailable"))
        except TooManyReaders:  # it is stored as a reader, and would keep the job running
            await self._leave()
            raise

    # ------------------------------------------------------------ waiting

    async def _wait_for_first(self, output: AsyncGenerator[Output | None, None]) -> Output:
        """Wait for the first output, and show the place in the queue meanwhile."""
        first = asyncio.ensure_future(_first(output))
        try:
            await asyncio.wait({first}, timeout=QUIET_S)
            if not first.done():
                await self._show_queue(first)
            return await first
        finally:
            first.cancel()
            await asyncio.wait({first})

    async def _show_queue(self, first: asyncio.Future[Output]) -> None:
        """Show the place in the queue until the job has output, or has ended. The response begins at the latest after
        `keepalive_after`."""
        loop = asyncio.get_running_loop()
        begin_at = loop.time() + self._app.config.openai.keepalive_after
        watch = self._app.watch(self._reading.job_id, heartbeat=HEARTBEAT_S)
        async with contextlib.aclosing(cast("AsyncGenerator[dict[str, Any] | None, None]", watch)) as places:
            place = asyncio.ensure_future(_next(places))
            try:
                while not first.done():
                    timeout = None if self._started else max(0.0, begin_at - loop.time())
                    either: set[asyncio.Future[Any]] = {first, place}
                    await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                    if place.done():
                        event = place.result()
                        await self._show(event)
                        if _has_ended(event):
                            return
                        place = asyncio.ensure_future(_next(places))
                    elif not self._started and loop.time() >= begin_at:
                        await self._write(STARTED if self._view is QueueView.COMMENTS else b"")
            finally:
                place.cancel()
                await asyncio.wait({place})

    async def _show(self, event: dict[str, Any] | None) -> None:
        """Show an event of the job; None is a heartbeat. What the client has seen last is not sent again, unless the
        connection would otherwise be silent for too long."""
        if event is None:
            await self._keep_alive()
            return
        text, now = self._shown(event), asyncio.get_running_loop().time()
        repeated = text == self._shown_last and now - self._shown_at < HEARTBEAT_S
        if text and not repeated and (self._started or not text.startswith(_NOT_FIRST)):
            self._shown_last, self._shown_at = text, now
            await self._write(text)

    async def _keep_alive(self) -> None:
        if self._started and self._view is QueueView.COMMENTS:
            await self._write(b": keep-alive\n\n")
        elif self._started and self._view is QueueView.CHUNKS:
            await self._write(self._empty_chunk())

    def _shown(self, event: dict[str, Any]) -> bytes:
        """What the client sees of an event of its job; empty if nothing."""
        if self._view is QueueView.NONE:
            return b""
        source = event.get("job", event)
        position, wait = source.get("position"), source.get("estimated_wait")
        if event["type"] == events.JOB_RETRYING and self._view is QueueView.COMMENTS:
            return RETRYING + f", attempt {event['attempt'] + 1}\n\n".encode()
        if position is None:
            started = event["type"] == events.STEP_START
            return STARTED if started and self._view is QueueView.COMMENTS else b""
        if self._view is QueueView.CHUNKS:
            return self._empty_chunk({"position": position, "estimated_wait": wait})
        return f": queued, position {position}{_about(wait)}\n\n".encode()

    def _empty_chunk(self, fairlead: dict[str, Any] | None = None) -> bytes:
        """An event with an empty delta, and with a field of its own for the place in the queue. The delta has no role:
        clients that accumulate deltas concatenate its values."""
        if self._created is None:
            self._created = int(self._app.now())
        chat = self._call.request.path == openai.CHAT
        delta = {"delta": {"content": ""}} if chat else {"text": ""}
        chunk = {
            "id": f"chatcmpl-{self._reading.job_id}" if chat else f"cmpl-{self._reading.job_id}",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": self._created,
            "model": self._call.model or "",
            "choices": [{"index": 0, **delta, "finish_reason": None}],
            **({} if fairlead is None else {"fairlead": fairlead}),
        }
        return b"data: " + orjson.dumps(chunk) + b"\n\n"

    # ------------------------------------------------------------ output

    async def _pass_on(self, item: Output | None, scope: Scope, receive: Receive) -> bool:
        """Send one item of the output. Returns True if the response is complete."""
        match item:
            case None:
                await self._keep_alive()
            case Chunk():
                return await self._pass_on_chunk(item)
            case Restart():
                self._sent.restarted = self._sent.size > 0
            case End(job):
                await self._finish(job, scope, receive)
                return True
        return False

    async def _pass_on_chunk(self, chunk: Chunk) -> bool:
        text = await self._app.jobs.whole_result(self._reading.job_id, chunk.data) if chunk.whole else chunk.data
        if not isinstance(text, str):
            return False  # the answer is not a stream; `_finish` sends it
        if self._sent.restarted:
            rest = self._sent.rest_of(text) if chunk.whole else None
            if rest is None and not await self._retries_streams():
                await self._leave()
                await self._end_with(
                    errors.error_of("the stream was lost after its beginning; send the request again", 502, "lost")
                )
                return True
            if rest is None:
                if self._view is not QueueView.NONE:
                    told = {"position": None, "estimated_wait": None, "restart": True}
                    await self._write(RESTART if self._view is QueueView.COMMENTS else self._empty_chunk(told))
                self._sent = _Sent()
            self._sent.restarted = False
            text = text if rest is None else rest
        self._sent.add(text)
        await self._write(await self._with_tier(text))
        return False

    async def _retries_streams(self) -> bool:
        job = await self._app.get(self._reading.job_id)
        service = self._app.config.services.get(job.feature_name)
        return service is not None and service.retry_streams

    async def _with_tier(self, text: str) -> bytes:
        """The text with the `service_tier` that was used, if the client named one. Each chunk of a chat has it, whether
        the upstream knows the field or not."""
        chat = self._call.request.path == openai.CHAT
        if self._call.tier is not None and (chat or '"service_tier"' in text):
            if self._tier is None:
                try:
                    job = await self._app.get(self._reading.job_id)
                except Unavailable:
                    return text.encode()  # the stream goes on while the database is away
                self._tier = f'"service_tier":"{openai.tier_of(job.priority)}"'
            text = _TIER.sub(self._tier, text)
            text = _WITHOUT_TIER.sub(rf"\1{self._tier},", text) if chat else text
        return text.encode()

    async def _finish(self, job: JobView, scope: Scope, receive: Receive) -> None:
        note_end(self._app, self._reading, job)
        if self._sent.size and not self._sent.restarted and job.status is JobStatus.COMPLETED:
            await self._write(b"", last=True)
            return
        tier = None if self._call.tier is None else openai.tier_of(job.priority)
        response = await response_of(self._app, job, tier, self._fields)
        if not self._started:
            await response(scope, receive, self._send)
        elif response.status_code >= 400:
            await self._end_with(_error_in(bytes(response.body), response.status_code))
        else:
            await self._write(bytes(response.body), last=True)

    async def _end_with(self, error: dict[str, Any]) -> None:
        await self._write(b"data: " + orjson.dumps(error) + b"\n\n", last=True)

    async def _write(self, data: bytes, *, last: bool = False) -> None:
        if not self._started:
            self._started = True
            headers = {**self._fields, "X-Accel-Buffering": "no"}
            head = Response(None, 200, headers, "text/event-stream")
            del head.headers["content-length"]
            await self._send({"type": "http.response.start", "status": 200, "headers": head.raw_headers})
        if data or last:
            await self._send({"type": "http.response.body", "body": data, "more_body": not last})


_DONE = ("data: [DONE]", "data:[DONE]")


class _Sent:
    """What of the output was sent: its size, and a hash to recognise it as the beginning of the whole text."""

    def __init__(self) -> None:
        self.size = 0
        self.restarted = False
        self.complete = False
        """The client has `[DONE]`, and may close its connection: the job ends by itself."""
        self._hash = hashlib.sha1(usedforsecurity=False)

    def add(self, text: str) -> None:
        self.size += len(text)
        self.complete = self.complete or text[-20:].rstrip().endswith(_DONE)
        self._hash.update(text.encode())

    def rest_of(self, whole: str) -> str | None:
        """What follows in the whole text; None if what was sent is not its beginning."""
        begin = hashlib.sha1(whole[: self.size].encode(), usedforsecurity=False)
        return whole[self.size :] if begin.digest() == self._hash.digest() else None


def _about(wait: dict[str, float] | None) -> str:
    """The expected wait for a comment, in whole seconds; empty if it is not known."""
    if not wait:
        return ""
    low, high = f"{wait['low']:.0f}", f"{wait['high']:.0f}"
    return f", about {low} s" if low == high else f", about {low}-{high} s"


async def _first(output: AsyncGenerator[Output | None, None]) -> Output:
    """The first output, however long it takes: heartbeats are none."""
    while True:
        item = await anext(output)
        if item is not None:
            return item


async def _next(places: AsyncGenerator[dict[str, Any] | None, None]) -> dict[str, Any] | None:
    """The next event of a job. The stream of events of a job that has ended is over after its snapshot."""
    return await anext(places, {"type": events.ENDED})


def _has_ended(event: dict[str, Any] | None) -> bool:
    return event is not None and (event["type"] in events.TERMINAL or event["type"] == events.ENDED)


def _error_in(body: bytes, status: int) -> dict[str, Any]:
    """The error to tell in a stream, from the body of a response with this status."""
    value = openai.json_object(body)
    if value is not None and value.get("error"):
        return value
    return errors.error_of(body.decode(errors="replace")[:1000] or f"status {status}", status, None)
