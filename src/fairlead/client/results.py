"""A batch's results over connections that may break off: what was read, and when to give up."""

from __future__ import annotations

import json

import httpx2

from fairlead.client.batch_calls import item_of, path_of
from fairlead.client.errors import NoConnection, of_response, retry_after
from fairlead.client.patience import PASSING, Pauses
from fairlead.runtime.batch_view import ItemView


class Results:
    """When the answer breaks off it is asked for again, and what was read already is left out."""

    def __init__(self, batch_id: str, patience: float) -> None:
        self.path = f"{path_of(batch_id)}/results"
        self._patience = patience
        self._pauses = Pauses(patience)
        self._last = -1
        self._rest = b""

    def begin(self) -> None:
        """A new answer: what came last of the one before was no whole line."""
        self._rest = b""

    def read(self, piece: bytes) -> list[ItemView]:
        """The new items of the lines that this piece completes. Cut at newlines alone: a text in a result may have
        other characters that some take for the end of a line."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        items = [item for item in map(item_of, map(json.loads, filter(None, lines))) if item.item > self._last]
        if items:
            self._last = items[-1].item
            self._pauses = Pauses(self._patience)
        return items

    def refused(self, response: httpx2.Response) -> float:
        """How long to wait before the next try, unless the answer is final."""
        pause = self._pauses.next(retry_after(response)) if response.status_code in PASSING else None
        if pause is None:
            raise of_response(response)
        return pause

    def broke_off(self, error: Exception, url: str) -> float:
        pause = self._pauses.next()
        if pause is None:
            raise NoConnection(f"{url} cannot be reached: {error or type(error).__name__}") from error
        return pause
