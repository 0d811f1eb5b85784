"""When to try again, and how long to wait before it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2

from fairlead.client.calls import Call
from fairlead.client.errors import NoConnection, of_response, retry_after
from fairlead.errors import FairleadError, JobError

PASSING = frozenset({429, 502, 503, 504})
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0


class Pauses:
    """Doubling, and jittered, so that many clients of one gateway do not come back at the same moment; until `patience`
    seconds are over."""

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = clock() + patience
        self._lengths = _doubling()

    def next(self, told: float | None = None) -> float | None:
        """How long to wait before the next try, as the gateway `told` or else by our own judgement. None: give up."""
        pause = next(self._lengths) if told is None else told
        return pause if self._clock() + pause <= self._until else None


class Patience:
    """The tries of one call: what each failure means, and how long to wait before the next one; None: it is final."""

    def __init__(self, call: Call[Any], patience: float) -> None:
        self._call = call
        self._pauses = Pauses(patience)
        self._lost = False

    def of_answer(self, response: httpx2.Response) -> tuple[FairleadError, float | None]:
        error = of_response(response)
        passing = response.status_code in PASSING and not isinstance(error, JobError)
        return error, self._pauses.next(retry_after(response)) if passing else None

    def of_failure(self, error: httpx2.TransportError, url: str) -> tuple[FairleadError, float | None]:
        unsent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
        self._lost = self._lost or not unsent
        said = NoConnection(f"{url} cannot be reached: {error or type(error).__name__}")
        return said, self._pauses.next() if unsent or self._call.again else None

    def was_ours(self, error: FairleadError) -> bool:
        """It was an earlier try of ours, whose answer was lost, that made this one come too late."""
        return self._lost and self._call.meant(error)


def _doubling() -> Iterator[float]:
    pause = FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(LONGEST_PAUSE, pause * 2)
