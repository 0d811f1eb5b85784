"""When to try again, and how long to wait before it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import httpx2

from fairlead.client.calls import Call
from fairlead.client.errors import NoConnection, of_response, retry_after
from fairlead.errors import FairleadError

PASSING = frozenset({429, 502, 503, 504})
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 10.0


class Patience:
    """The tries of one call. `pause` is how long to wait before the next one; None: give up, the error is final."""

    def __init__(self, call: Call[Any], retries: int) -> None:
        self._call = call
        self._pauses = pauses(retries)
        self._lost = False

    def of_answer(self, response: httpx2.Response) -> tuple[FairleadError, float | None]:
        error = of_response(response)
        if response.status_code not in PASSING:
            return error, None
        pause = next(self._pauses, None)
        told = retry_after(response)
        return error, pause if pause is None or told is None else min(max(told, 0.0), LONGEST_PAUSE)

    def of_failure(self, error: httpx2.TransportError, url: str) -> tuple[FairleadError, float | None]:
        unsent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
        self._lost = self._lost or not unsent
        said = NoConnection(f"{url} cannot be reached: {error or type(error).__name__}")
        return said, next(self._pauses, None) if unsent or self._call.again else None

    def was_ours(self, error: FairleadError) -> bool:
        return self._lost and self._call.meant(error)


def pauses(tries: int) -> Iterator[float]:
    """Doubling, and jittered, so that many clients of one gateway do not come back at the same moment."""
    pause = FIRST_PAUSE
    for _ in range(tries):
        yield pause * random.uniform(0.5, 1.0)
        pause = min(LONGEST_PAUSE, pause * 2)
