"""Decides whether a failed call is retried, and when."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2

from fairlead.client.calls import ApiCall
from fairlead.client.errors import NoConnection, of_response, retry_after
from fairlead.errors import FairleadError, JobError

PASSING = frozenset({429, 502, 503, 504})
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0


class Pauses:
    """The pauses between the attempts of a call: exponential backoff with jitter, for at most `patience` seconds in
    total."""

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = clock() + patience
        self._lengths = _doubling()

    def next(self, requested: float | None = None) -> float | None:
        """Return the seconds to wait before the next attempt: `requested` if the gateway named a time, otherwise the
        next backoff. Returns None when `patience` is used up."""
        pause = next(self._lengths) if requested is None else requested
        return pause if self._clock() + pause <= self._until else None


class Patience:
    """The attempts of one call. `of_refusal` and `of_failure` take a failed attempt, and return its exception and the
    seconds to wait before the next attempt, or None instead of the seconds if the call must not be repeated."""

    def __init__(self, call: ApiCall[Any], patience: float) -> None:
        self._call = call
        self._pauses = Pauses(patience)
        self._lost = False

    def of_refusal(self, response: httpx2.Response) -> tuple[FairleadError, float | None]:
        error = of_response(response)
        passing = response.status_code in PASSING and not isinstance(error, JobError)
        return error, self._pauses.next(retry_after(response)) if passing else None

    def of_failure(self, error: httpx2.TransportError, url: str) -> tuple[FairleadError, float | None]:
        unsent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
        self._lost = self._lost or not unsent
        no_connection = NoConnection(f"{url} cannot be reached: {error or type(error).__name__}")
        return no_connection, self._pauses.next() if unsent or self._call.again else None

    def already_done(self, error: FairleadError) -> bool:
        """Return whether the gateway refused this attempt because an earlier attempt succeeded and its response was
        lost."""
        return self._lost and self._call.already_done(error)


def _doubling() -> Iterator[float]:
    pause = FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(LONGEST_PAUSE, pause * 2)
