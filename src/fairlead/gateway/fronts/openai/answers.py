"""The response to a request that is not streamed. It waits for the job, keeps the connection alive meanwhile, and
cancels the job if the client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from fairlead.domain import openai
from fairlead.domain.job import JobStatus
from fairlead.domain.openai import FrontAnswer
from fairlead.domain.views import EndedJob
from fairlead.errors import Unavailable
from fairlead.gateway.fronts.addresses import origin_of
from fairlead.gateway.fronts.openai import errors
from fairlead.gateway.fronts.openai.requests import FrontCall
from fairlead.gateway.request_middleware import BODY, within

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead
    from fairlead.app.front_requests import Reading
    from fairlead.domain.views import JobView

SPACE_EVERY_S = 15.0
SOON_S, SUBSCRIBE_AFTER_S = 0.05, 0.3
STALLED_S = 60.0
"""A client that does not take a message within this time is disconnected."""
JOB_HEADER = "X-Fairlead-Job"
_ending: set[asyncio.Task[None]] = set()
"""Cancellations that run after their request has ended."""


class Answer(Response):
    """Sends the answer of a job as soon as there is one. After `keepalive_after` seconds it begins the response, and
    sends white space until the job ends. If the job then fails, the response is cut off: its status cannot be changed
    any more, and a client would take the error for an answer. The client's own retry gets the error with its status."""

    def __init__(self, app: Fairlead, call: FrontCall, reading: Reading, headers: dict[str, str]) -> None:
        self.background = None  # all that FastAPI reads; status and headers are those of the response that is sent
        self._app = app
        self._call = call
        self._reading = reading
        self._fields = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ended = None
        if self._reading.new:
            # Until `SOON_S` nothing watches the connection: the task for that would cost as much as the rest of the
            # request.
            try:
                ended = await self._app.jobs.end_soon(self._reading.job_id, SOON_S)
            except asyncio.CancelledError:
                in_background(self._app.fronts.leave(self._reading))  # the key was revoked
                raise
        if ended is not None:
            await self._finish(ended, False, scope, receive, send)
        else:
            await self._wait(scope, receive, in_time(send))

    async def _wait(self, scope: Scope, receive: Receive, send: Send) -> None:
        waiting = asyncio.ensure_future(self._end())
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            started = await self._keep_alive(waiting, gone, send)
            if not waiting.done():
                await self._app.fronts.leave(self._reading)
                raise ClientDisconnect
            await self._finish(waiting.result(), started, scope, receive, send)
        except asyncio.CancelledError:
            in_background(self._app.fronts.leave(self._reading))  # the key was revoked
            raise
        finally:
            for task in (waiting, gone):
                task.cancel()

    async def _end(self) -> EndedJob:
        """The end of the job. A job that takes longer than `SUBSCRIBE_AFTER_S` is followed as a reader, so that its end
        is noticed even if a message is lost."""
        jobs, job_id = self._app.jobs, self._reading.job_id
        ended = await jobs.end_soon(job_id, SUBSCRIBE_AFTER_S) if self._reading.new else None
        return ended or EndedJob.of_view(await jobs.wait(job_id, attempts=False))

    async def _keep_alive(self, waiting: asyncio.Future[EndedJob], gone: asyncio.Future[None], send: Send) -> bool:
        """Wait until the job or the client's connection has ended. Returns whether the response has begun."""
        allowed = self._call.request.path in openai.JSON_PATHS
        seconds = self._app.config.openai.keepalive_after if allowed else None
        started = False
        either: set[asyncio.Future[Any]] = {waiting, gone}
        while not (await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED))[0]:
            if not started:
                response = Response(None, 200, self._fields, "application/json")
                del response.headers["content-length"]
                await send({"type": "http.response.start", "status": 200, "headers": response.raw_headers})
                started, seconds = True, SPACE_EVERY_S
            await send({"type": "http.response.body", "body": b" ", "more_body": True})
        return started

    async def _finish(self, job: EndedJob, started: bool, scope: Scope, receive: Receive, send: Send) -> None:
        if not job.status.finished:
            raise Unavailable("this gateway is stopping; send the request again")
        note_end(self._app, self._reading, job)
        tier = None if self._call.tier is None else openai.tier_of(job.priority)
        response = await response_of(self._app, job, tier, self._fields, scope)
        if not started:
            await response(scope, receive, send)
            return
        failed = response.status_code >= 400
        await send({"type": "http.response.body", "body": response.body, "more_body": failed})
        if failed:
            raise ClientDisconnect  # the server closes the connection of an incomplete response


def note_end(app: Fairlead, reading: Reading, job: EndedJob | JobView) -> None:
    """Tell the catalog of models whether the service of a request works."""
    if reading.new and job.status is not JobStatus.CANCELLED:
        app.models.note_end(reading.service, failed=errors.is_unreachable(job.error))


class WholeResponse(Response):
    """A response that is sent as one message. `headers` have no length."""

    def __init__(self, body: bytes, status: int, headers: dict[str, str]) -> None:
        self.body = body
        self.status_code = status
        self.background = None
        self._fields = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.lower().encode("latin-1"), text.encode("latin-1")) for name, text in self._fields.items()]
        headers.append((b"content-length", b"%d" % len(self.body)))
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers, BODY: self.body})


async def response_of(
    app: Fairlead, job: EndedJob | JobView, tier: str | None, headers: dict[str, str], scope: Scope | None = None
) -> Response:
    """The response for a job that has ended. `tier` is the `service_tier` to report, if the request named one. `scope`
    is the request's, for the address in the URLs of files. Raises Unavailable if the answer is in the object store,
    which cannot be reached."""
    if job.status is not JobStatus.COMPLETED:
        cancelled = job.status is JobStatus.CANCELLED
        status, body = errors.of_cancelled_job(job.job_id) if cancelled else errors.of_failed_job(job.error)
        # The queue has retried already.
        return Response(orjson.dumps(body), status, {**headers, errors.SHOULD_RETRY: "false"}, "application/json")
    result = await app.jobs.whole_result(job.job_id, job.result)
    answer = FrontAnswer.of_result(result)
    if answer is None:
        text = "the result of the job is not an answer of an upstream"
        if result is None:
            text = "the answer of this job is no longer kept (openai.keep); send the request again"
        body = errors.error_of(text, 502, "bad_result")
        return Response(orjson.dumps(body), 502, headers, "application/json")
    content = await _with_urls(app, answer.body, scope) if answer.files else answer.body
    if tier is not None and (value := openai.json_object(content)) is not None and openai.has_tier(value):
        with contextlib.suppress(RecursionError):  # nested too deeply; the client gets it as it is
            content = openai.replaced(content, "service_tier", tier)
    fields = {**answer.headers, **headers}
    if 200 <= answer.status < 300 and answer.status != 204 and "content-length" not in fields:
        return WholeResponse(content, answer.status, fields)
    return Response(content, answer.status, fields)


async def _with_urls(app: Fairlead, content: bytes, scope: Scope | None) -> bytes:
    """The answer with a URL for each image. It reads the file without a key until it expires. A file that was deleted
    has none. Without `artifacts.public_url`, URLs have the address under which the client reached the gateway."""
    base = "" if scope is None else origin_of(Request(scope))
    value = openai.json_object(content) or {}
    data = value.get("data")
    items = [item for item in data if isinstance(item, dict)] if isinstance(data, list) else []
    named = [str(item["url"].get("$file")) for item in items if isinstance(item.get("url"), dict)]
    found = await app.files.get_many(named)
    for item in items:
        if isinstance(item.get("url"), dict):
            file = found.get(str(item["url"].get("$file")))
            item["url"] = None if file is None else await _url(app, file, base)
    return orjson.dumps(value)


async def _url(app: Fairlead, file: Any, base: str) -> str:
    url = await app.files.service_url(file, 0.0)
    if url is not None:
        return url
    ticket, _ = await app.files.ticket(file.id)
    return f"{base}/files/{file.id}?ticket={ticket}"


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def in_time(send: Send) -> Send:
    async def send_in_time(message: Message) -> None:
        try:
            await within(STALLED_S, send(message))
        except TimeoutError:
            raise ClientDisconnect from None

    return send_in_time


def in_background(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    _ending.add(task)
    task.add_done_callback(_ending.discard)


async def handle_bad_request(request: Request, error: Exception) -> Response:
    """The response to a request that the front refuses."""
    assert isinstance(error, openai.BadRequest)
    answer = error.answer()
    return Response(answer.body, answer.status, dict(answer.headers))
