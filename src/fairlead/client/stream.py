"""Reads the events of a job or a turn over connections that may be interrupted."""

from __future__ import annotations

import json
from typing import Any

import httpx2

from fairlead.client.errors import NoConnection, NotAGateway, of_response, retry_after
from fairlead.client.patience import PASSING, Pauses
from fairlead.domain.events import SNAPSHOT, TERMINAL
from fairlead.domain.job import FINISHED
from fairlead.domain.output import Chunk, Position, Restart

MAX_EVENT = 64 << 20


class Stream:
    """The state of reading an event stream. `ended` is True after the last event. After `patience` seconds without an
    event, the attempts to reconnect end with an exception."""

    def __init__(self, path: str, patience: float) -> None:
        self.path = path
        self.ended = False
        self._patience = patience
        self._pauses = Pauses(patience)

    def parse(self, data: str) -> dict[str, Any]:
        self._pauses = Pauses(self._patience)
        try:
            event: dict[str, Any] = json.loads(data)
            self.ended = self._is_last(event)
            self._received(event)
        except (ValueError, KeyError, TypeError):
            raise NotAGateway("the stream has data that is not from a Fairlead gateway; check the URL") from None
        return event

    def _is_last(self, event: dict[str, Any]) -> bool:
        return event["type"] in TERMINAL or (event["type"] == SNAPSHOT and event["job"]["status"] in FINISHED)

    def _received(self, event: dict[str, Any]) -> None:
        """Called for each event."""

    def refused(self, response: httpx2.Response) -> float:
        """Return the seconds to wait before the next attempt after an error response. Raises the exception for the
        response if the error is not temporary, or if `patience` is used up."""
        passing = response.status_code in PASSING
        pause = self._pauses.next(retry_after(response)) if passing else None
        if pause is None:
            raise of_response(response)
        return pause

    def broke_off(self, error: Exception | None, url: str) -> float:
        pause = 0.0 if self.ended else self._pauses.next()
        if pause is None:
            raise NoConnection(f"{url} cannot be reached: {error or 'the stream ended early'}") from error
        return pause


class OutputEvents(Stream):
    """The state of reading the output of a job. After an interruption, reading continues after the last chunk."""

    def __init__(self, job_path: str, after: Position | str | None, patience: float) -> None:
        self._base = f"{job_path}/output"
        super().__init__(self._base if after is None else f"{self._base}?after={after}", patience)

    def _is_last(self, event: dict[str, Any]) -> bool:
        return bool(event["type"] == "end")

    def _received(self, event: dict[str, Any]) -> None:
        if event["type"] == "chunk":
            self.path = f"{self._base}?after={event['position']}"


def output_of(event: dict[str, Any]) -> Chunk | Restart | None:
    """The output in an event; None for the end, and for events of a later version."""
    if event["type"] == "chunk":
        return Chunk.of_dict(event)
    return Restart(event["step_index"]) if event["type"] == "restart" else None
