"""A job's events over connections that may break off: what was heard, and when to give up."""

from __future__ import annotations

from typing import Any

import httpx2

from fairlead.client.calls import events_of
from fairlead.client.errors import NoConnection, of_response
from fairlead.client.patience import PASSING, pauses
from fairlead.domain.job import FINISHED
from fairlead.runtime.events import SNAPSHOT, TERMINAL

MAX_EVENT = 64 << 20


class Stream:
    """`ended` is True after the job's last event. As long as something is heard now and then, it never gives up."""

    def __init__(self, job_id: str, retries: int) -> None:
        self.path = events_of(job_id)
        self.ended = False
        self._retries = retries
        self._pauses = pauses(retries)

    def heard(self, event: dict[str, Any]) -> dict[str, Any]:
        self._pauses = pauses(self._retries)
        kind = event["type"]
        self.ended = kind in TERMINAL or (kind == SNAPSHOT and event["job"]["status"] in FINISHED)
        return event

    def refused(self, response: httpx2.Response) -> float:
        """How long to wait before the next try, unless the answer is final."""
        pause = next(self._pauses, None) if response.status_code in PASSING else None
        if pause is None:
            raise of_response(response)
        return pause

    def broke_off(self, error: Exception | None, url: str) -> float:
        pause = 0.0 if self.ended else next(self._pauses, None)
        if pause is None:
            raise NoConnection(f"{url} cannot be reached: {error or 'the stream ended early'}") from error
        return pause
