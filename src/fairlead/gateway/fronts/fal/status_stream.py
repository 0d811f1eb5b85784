"""The statuses of one request as Server-Sent Events. Each event has the lines of the log that are new."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from fairlead.errors import NotFound
from fairlead.gateway.fronts.fal import statuses
from fairlead.gateway.fronts.fal.errors import REQUEST_ID
from fairlead.gateway.fronts.fal.statuses import Log, State
from fairlead.gateway.responses import HEARTBEAT_S, KEEP_ALIVE, FrameStream, closing

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead

Events = AsyncIterator[dict[str, Any] | None]


async def respond(app: Fairlead, job_id: str, urls: Mapping[str, str], *, wants_logs: bool) -> FrameStream:
    """The response to a request for the statuses of a job. Raises NotFound."""
    if (await app.jobs.status(job_id)).turn:
        raise NotFound(f"there is no job {job_id}")
    events = app.watch(job_id, heartbeat=HEARTBEAT_S)
    stream = FrameStream(closing(_Statuses(app, job_id, urls, wants_logs).frames(events), events))
    stream.headers[REQUEST_ID] = job_id
    return stream


class _Statuses:
    def __init__(self, app: Fairlead, job_id: str, urls: Mapping[str, str], wants_logs: bool) -> None:
        self._app = app
        self._job_id = job_id
        self._urls = urls
        self._wants_logs = wants_logs
        self._state: State | None = None
        self._last: Log | None = None

    async def frames(self, events: Events) -> AsyncGenerator[bytes, None]:
        async for event in events:
            if event is None:
                yield KEEP_ALIVE
            elif frame := self._take(event):
                yield frame
        job = await self._app.jobs.status(self._job_id)
        yield self._frame(statuses.of_job(job), statuses.logs_of(job) if self._last is None else [])

    def _take(self, event: Mapping[str, Any]) -> bytes:
        """The frame for an event of the job; empty if it is no news."""
        if statuses.has_ended(event):
            return b""  # the end follows
        was, self._state = self._state, statuses.after(self._state, event)
        log = statuses.log_of(event) if self._wants_logs else None
        new = [log] if log is not None and log != self._last else []
        self._last = log or self._last
        return self._frame(self._state, new) if self._state is not None and (self._state != was or new) else b""

    def _frame(self, state: State, logs: list[Log]) -> bytes:
        _, body = statuses.body_of(state, self._job_id, self._urls, logs if self._wants_logs else None)
        return b"data: " + orjson.dumps(body) + b"\n\n"
