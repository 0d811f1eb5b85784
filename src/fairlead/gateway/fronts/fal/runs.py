"""Calls that are answered with their result (`/fal/run/APP`) or with a stream of events (`/fal/run/APP/stream`). The
job of a client that disconnects is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fairlead.domain.job import JobStatus
from fairlead.domain.output import Chunk, End, Output, Restart
from fairlead.domain.views import JobView
from fairlead.engine.events import ShuttingDown, SlowConsumer
from fairlead.errors import FairleadError, Unavailable
from fairlead.gateway.fronts.fal import errors
from fairlead.gateway.fronts.fal.results import result_of, shown_result
from fairlead.gateway.fronts.openai.answers import disconnected, in_background, in_time
from fairlead.gateway.responses import KEEP_ALIVE, fairlead_of

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead

BEGIN_AFTER_S = 10.0
"""A stream begins at the latest after this time. Until then an error has its own status."""
HEARTBEAT_S = 15.0
RETRY_S = 1.0
STOPPING = "this gateway is stopping; send the request again"


class Run(Response):
    """Sends the result of a job once it has ended."""

    def __init__(self, request: Request, job_id: str, headers: dict[str, str]) -> None:
        super().__init__(headers=headers)
        self.request = request
        self.app: Fairlead = fairlead_of(request)
        self.job_id = job_id
        self.named = headers
        self.complete = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = asyncio.ensure_future(self.answer(scope, receive, in_time(send)))
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise ClientDisconnect
            answering.result()
        finally:
            if not self.complete:  # the client or the gateway goes, or the key was revoked
                in_background(self._cancel())
            for task in (answering, gone):
                task.cancel()
            await asyncio.wait({answering})  # its subscriptions end with it

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await result_of(self.request, await self._end(), self.named)
        self.complete = True
        await response(scope, receive, send)

    async def _end(self) -> JobView:
        """Wait for the end of the job, also while the database cannot be read for a time."""
        new = True
        while True:
            try:
                job = await self.app.jobs.wait(self.job_id, new=new, attempts=False)
            except Unavailable:
                new = False
                await asyncio.sleep(RETRY_S)
                continue
            if not job.status.finished:
                raise Unavailable(STOPPING, retry_after=1.0)
            return job

    async def _cancel(self) -> None:
        with contextlib.suppress(FairleadError):
            await self.app.cancel(self.job_id)


class RunStream(Run):
    """Sends what a job emits as events, and then its result, unless that is no more than what it emitted."""

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        self._started = False
        self._emitted = _Emitted()
        source = self.app.jobs.output_stream(self.job_id, attempts=False, new=True)
        try:
            async with contextlib.aclosing(source.follow(HEARTBEAT_S)) as output:
                item = await self._first(output)
                while not isinstance(item, End):
                    await self._pass_on(item)
                    item = await anext(output)
        except (ShuttingDown, SlowConsumer, Unavailable):
            if not self._started:
                raise Unavailable(STOPPING, retry_after=1.0) from None
            await self._write(_event({"detail": STOPPING, "error_type": "unavailable"}, "error"), last=True)
            return
        self.complete = True
        await self._finish(item.job, scope, receive)

    async def _first(self, output: AsyncGenerator[Output | None, None]) -> Output | None:
        first = asyncio.ensure_future(anext(output))
        try:
            await asyncio.wait({first}, timeout=BEGIN_AFTER_S)
            if not first.done():
                await self._write(KEEP_ALIVE)
            return await first
        finally:
            first.cancel()
            await asyncio.wait({first})

    async def _pass_on(self, item: Output | None) -> None:
        match item:
            case None:
                await self._write(KEEP_ALIVE)
            case Chunk() if not item.whole:
                data = item.data
                self._emitted.add(data)
                await self._write(_event(await shown_result(self.request, self.job_id, data)))
            case Restart():
                self._emitted = _Emitted()  # the new attempt emits its events again

    async def _finish(self, job: JobView, scope: Scope, receive: Receive) -> None:
        failed = job.status is not JobStatus.COMPLETED
        if failed and not self._started:
            await (await result_of(self.request, job, self.named))(scope, receive, self._send)
        elif failed:
            response = await result_of(self.request, job)
            await self._write(_event(orjson.loads(bytes(response.body)), "error"), last=True)
        elif self._emitted.is_all(whole := await self.app.jobs.whole_result(self.job_id, job.result)):
            await self._write(b"", last=True)
        else:
            await self._write(_event(await shown_result(self.request, self.job_id, whole)), last=True)

    async def _write(self, data: bytes, *, last: bool = False) -> None:
        if not self._started:
            self._started = True
            head = Response(None, 200, {**self.named, "X-Accel-Buffering": "no"}, "text/event-stream")
            del head.headers["content-length"]
            await self._send({"type": "http.response.start", "status": 200, "headers": head.raw_headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})


class _Emitted:
    """What an attempt has emitted: its number of chunks, and their length if all are text."""

    def __init__(self) -> None:
        self._count = 0
        self._length: int | None = 0

    def add(self, chunk: Any) -> None:
        self._count += 1
        self._length = self._length + len(chunk) if self._length is not None and isinstance(chunk, str) else None

    def is_all(self, result: Any) -> bool:
        """Whether the result is no more than the chunks: their text, or the list of them."""
        if not self._count:
            return False
        if isinstance(result, str):
            return self._length == len(result)
        return isinstance(result, list) and self._length is None and len(result) == self._count


def _event(data: Any, name: str | None = None) -> bytes:
    begin = b"" if name is None else f"event: {name}\n".encode()
    return begin + b"data: " + orjson.dumps(data, default=str) + b"\n\n"


def named(job_id: str, headers: dict[str, str]) -> dict[str, str]:
    return {errors.REQUEST_ID: job_id, **headers}
