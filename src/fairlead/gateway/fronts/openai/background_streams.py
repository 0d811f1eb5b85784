"""The stream of a background response. Every event has a number, and any gateway continues after any of them: the first
two events follow from the job, the others are the job's output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Scope

from fairlead.app.front_requests import Identity, Reading
from fairlead.domain.front_readers import Reader, Readers
from fairlead.domain.openai import FrontRequest
from fairlead.domain.openai_responses import (
    ENDED,
    FIRST_OF_WORKER,
    QUEUED,
    event_text,
    events_in,
    number_of,
    skeleton,
)
from fairlead.domain.output import Chunk
from fairlead.errors import NotFound
from fairlead.gateway.fronts.openai import errors
from fairlead.gateway.fronts.openai.requests import FrontCall, QueueView
from fairlead.gateway.fronts.openai.response_objects import object_of
from fairlead.gateway.fronts.openai.streams import Stream

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead
    from fairlead.domain.views import JobView

_LAST = frozenset(f"response.{status}" for status in ENDED)


class BackgroundStream(Stream):
    """Sends the events after the number `after`. A client that disconnects does not end the job. If an attempt fails
    after its first event, the events of the next one follow, with greater numbers; they begin with a
    `response.in_progress` that has no output."""

    def __init__(
        self, app: Fairlead, call: FrontCall, reading: Reading, headers: dict[str, str], after: int = -1
    ) -> None:
        super().__init__(app, call, reading, headers)
        self._after = after
        self._has_ended = False

    @classmethod
    def again(
        cls, app: Fairlead, job_id: str, sent: FrontRequest, queue: QueueView, headers: dict[str, str], after: int
    ) -> BackgroundStream:
        """The stream of a response that was created before."""
        call = FrontCall(sent, None, "", None, queue, Identity("", "", ""))
        reading = Reading(job_id, "", "", Readers("", ()), Reader("", ""))
        return cls(app, call, reading, headers, after)

    async def _leave(self) -> None:
        """The job goes on."""

    async def _follow(self, scope: Scope, receive: Receive) -> None:
        try:
            await super()._follow(scope, receive)
        except NotFound:
            if not self._started:
                raise
            await self._end_with(errors.error_of("the response was deleted", 404, "not_found"))

    async def _begin(self) -> None:
        response = skeleton(self._call.request, self._reading.job_id, QUEUED)
        first = ("response.created", "response.queued")
        events = [{"type": kind, "sequence_number": at, "response": response} for at, kind in enumerate(first)]
        await self._write("".join(map(event_text, self._new(events))).encode())

    def _new(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The events that the client does not have."""
        self._has_ended = self._has_ended or any(event.get("type") in _LAST for event in events)
        new = [event for event in events if number_of(event) > self._after]
        if new:
            self._after = number_of(new[-1])
        return new

    async def _pass_on_chunk(self, chunk: Chunk) -> bool:
        text = await self._app.jobs.whole_result(self._reading.job_id, chunk.data) if chunk.whole else chunk.data
        if isinstance(text, str) and (new := self._new(events_in(text))):
            await self._write("".join(map(event_text, new)).encode())
        return False

    async def _finish(self, job: JobView, scope: Scope, receive: Receive) -> None:
        """Send the last event, unless it is part of the output."""
        last = b""
        if not self._has_ended:
            response = await object_of(self._app, job, self._call.request)
            number = max(self._after + 1, FIRST_OF_WORKER)
            event = {"type": f"response.{response['status']}", "sequence_number": number, "response": response}
            last = event_text(event).encode()
        await self._write(last, last=True)
