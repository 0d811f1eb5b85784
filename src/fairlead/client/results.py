"""Reads the results of a batch over connections that may be interrupted."""

from __future__ import annotations

import json

import httpx2

from fairlead.client.batch_calls import item_of, path_of
from fairlead.client.errors import NoConnection, of_response, retry_after
from fairlead.client.patience import PASSING, Pauses
from fairlead.domain.batch import ItemView


class BatchResults:
    """The state of reading a batch's results. When a response is interrupted, the client requests the results again,
    and the items that were read before are skipped."""

    def __init__(self, batch_id: str, patience: float) -> None:
        self.path = f"{path_of(batch_id)}/results"
        self._patience = patience
        self._pauses = Pauses(patience)
        self._last = -1
        self._rest = b""

    def begin(self) -> None:
        """Prepare to read a new response: drop the incomplete last line of the previous response."""
        self._rest = b""

    def read(self, piece: bytes) -> list[ItemView]:
        """Return the new items in the lines that this chunk completes. The text is split at newlines only: `splitlines`
        would also split at other characters inside a result."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        items = [item for item in map(item_of, map(json.loads, filter(None, lines))) if item.item > self._last]
        if items:
            self._last = items[-1].item
            self._pauses = Pauses(self._patience)
        return items

    def refused(self, response: httpx2.Response) -> float:
        """Return the seconds to wait before the next attempt after an error response. Raises the exception for the
        response if the error is not temporary, or if `patience` is used up."""
        pause = self._pauses.next(retry_after(response)) if response.status_code in PASSING else None
        if pause is None:
            raise of_response(response)
        return pause

    def broke_off(self, error: Exception, url: str) -> float:
        pause = self._pauses.next()
        if pause is None:
            raise NoConnection(f"{url} cannot be reached: {error or type(error).__name__}") from error
        return pause
