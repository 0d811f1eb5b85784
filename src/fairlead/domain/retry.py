"""Which errors are tried again, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
MOST_SPARED = 10
"""So many calls of a step may be turned away, for the limit is too high, before such a call counts as an attempt."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call did not succeed. `code` is stable and safe to group by; `message` is for people.

    `retry_after` is what the service itself asked for, in seconds.
    """

    code: str
    message: str
    retryable: bool
    retry_after: float | None = None
    http_status: int | None = None

    def as_error(self) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.http_status is not None:
            error["http_status"] = self.http_status
        return error


TIMEOUT = "TIMEOUT"
CONNECTION = "CONNECTION"
WORKER_DIED = "WORKER_DIED"
RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
DEADLINE_PASSED = "DEADLINE_PASSED"
PERMANENT = "PERMANENT"
EXCEPTION = "EXCEPTION"
BAD_RESULT = "BAD_RESULT"
RETRY_ASKED = "RETRY_ASKED"
ATTEMPTS_USED_UP = "ATTEMPTS_USED_UP"
REFUSALS = "refusals"
"""In an error: how many calls of the step in a row were turned away and did not count as attempts."""
RETRY_IN = "retry_in"
"""In the error of an attempt that is followed by another: the seconds until the job is in line again."""


def of_http_status(status: int, message: str, retry_after: float | None = None) -> Failure:
    """429 and the gateway errors pass; every other answer that is not a success is final."""
    return Failure(f"HTTP_{status}", message, status in RETRYABLE_STATUSES, retry_after, status)


@dataclass(frozen=True, slots=True)
class Backoff:
    """`base * factor^n`, capped and jittered; or an explicit list, taken as it is, whose last entry repeats."""

    base: float = 2.0
    factor: float = 2.0
    max: float = 60.0
    jitter: float = 0.2
    explicit: tuple[float, ...] = ()

    def delay(self, attempt: int, randomness: float) -> float:
        """Seconds to wait after the `attempt`-th call (1-based) failed; `randomness` is in [0, 1)."""
        if self.explicit:
            return self.explicit[min(attempt, len(self.explicit)) - 1]
        # The exponent is bounded so that a service with thousands of attempts does not overflow a float.
        plain = min(self.max, self.base * self.factor ** min(attempt - 1, 64))
        return max(0.0, plain * (1 + self.jitter * (2 * randomness - 1)))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    max_attempts: int = 3
    backoff: Backoff = Backoff()
    manual: bool = False

    def after(self, failure: Failure, attempt: int, randomness: float) -> Retry | Fail:
        """What follows the `attempt`-th call's failure."""
        error = failure.as_error()
        if not failure.retryable:
            return Fail(error, retryable=False)
        if self.manual:
            return Fail(error, retryable=True)
        if attempt >= self.max_attempts:
            return Fail({**error, "attempts": attempt, "reason": ATTEMPTS_USED_UP}, retryable=False)
        return Retry(error, self._delay(failure, attempt, randomness))

    def spared(self, failure: Failure, refusals: int, randomness: float) -> Retry | None:
        """What follows a call that was turned away because we sent one too many: it is no attempt, up to so many.
        `refusals`: those before it. None: it is one."""
        if not failure.retryable or self.manual or refusals >= MOST_SPARED:
            return None
        error = {**failure.as_error(), REFUSALS: refusals + 1}
        return Retry(error, self._delay(failure, refusals + 1, randomness), counts=False)

    def _delay(self, failure: Failure, attempt: int, randomness: float) -> float:
        delay = self.backoff.delay(attempt, randomness)
        return delay if failure.retry_after is None else max(delay, failure.retry_after)


@dataclass(frozen=True, slots=True)
class Retry:
    error: Mapping[str, Any]
    delay: float
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Fail:
    error: Mapping[str, Any]
    retryable: bool
