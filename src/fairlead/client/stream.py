"""A job's or a turn's events over connections that may break off: what was heard, and when to give up."""

from __future__ import annotations

import json
from typing import Any

import httpx2

from fairlead.client.errors import NoConnection, NotAGateway, of_response, retry_after
from fairlead.client.patience import PASSING, Pauses
from fairlead.domain.job import FINISHED
from fairlead.runtime.events import SNAPSHOT, TERMINAL

MAX_EVENT = 64 << 20


class Stream:
    """`ended` is True after the last event that matters. It gives up after `patience` seconds without any."""

    def __init__(self, path: str, patience: float) -> None:
        self.path = path
        self.ended = False
        self._patience = patience
        self._pauses = Pauses(patience)

    def heard(self, data: str) -> dict[str, Any]:
        self._pauses = Pauses(self._patience)
        try:
            event: dict[str, Any] = json.loads(data)
            self.ended = self._is_last(event)
        except (ValueError, KeyError, TypeError):
            raise NotAGateway("what was heard is no event of a Fairlead gateway; is the URL right?") from None
        return event

    def _is_last(self, event: dict[str, Any]) -> bool:
        return event["type"] in TERMINAL or (event["type"] == SNAPSHOT and event["job"]["status"] in FINISHED)

    def refused(self, response: httpx2.Response) -> float:
        """How long to wait before the next try, unless the answer is final."""
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
