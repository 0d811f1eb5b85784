"""Decides which errors are retried, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.domain.redaction import redacted

RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
LONGEST_MESSAGE = 10_000
LONGEST_TRACEBACK = 16_000
MOST_SPARED = 10
"""How many refused calls of a step are free. After that, each further refusal counts as an attempt. A call is refused
if the limit is too high for the service."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call failed. `code` is stable, so that failures can be grouped by it; `message` is for people.

    `retry_after` is the delay that the service requested, in seconds. `traceback` is the traceback of the handler, as
    text. `waits`: the service rests, so the step returns to the queue at once, and the call costs no attempt.
    """

    code: str
    message: str
    retryable: bool
    retry_after: float | None = None
    http_status: int | None = None
    traceback: str | None = None
    waits: bool = False

    def as_error(self) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code, "message": _storable(redacted(self.message))}
        if self.http_status is not None:
            error["http_status"] = self.http_status
        return error

    def of_attempt(self, error: Mapping[str, Any]) -> dict[str, Any]:
        """The error to store with the attempt. It includes the traceback; the error stored with the job does not."""
        if self.traceback is None:
            return dict(error)
        return {**error, TRACEBACK: _storable(redacted(self.traceback), LONGEST_TRACEBACK)}


def without_traceback(error: Mapping[str, Any]) -> dict[str, Any]:
    """The stored error of an attempt without its traceback."""
    return {name: value for name, value in error.items() if name != TRACEBACK}


def _storable(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """Shorten a text and replace the characters that cannot be stored: NUL, which PostgreSQL cannot query inside JSON,
    and lone surrogates, which JSON cannot represent."""
    return text[:longest].replace("\0", "\ufffd").encode("utf-8", "replace").decode()


TIMEOUT = "TIMEOUT"
CONNECTION = "CONNECTION"
WORKER_DIED = "WORKER_DIED"
RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
DEADLINE_PASSED = "DEADLINE_PASSED"
PERMANENT = "PERMANENT"
EXCEPTION = "EXCEPTION"
BAD_RESULT = "BAD_RESULT"
MISSING_FIELD = "MISSING_FIELD"
RETRY_ASKED = "RETRY_ASKED"
UPSTREAM_ERROR = "UPSTREAM_ERROR"
STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
"""The object store with the files of the job cannot be reached. Such a failure never counts as an attempt."""
ATTEMPTS_USED_UP = "ATTEMPTS_USED_UP"
REFUSALS = "refusals"
"""Key in an error: how many calls of the step in a row were refused without counting as attempts."""
TRACEBACK = "traceback"
"""Key in the stored error of an attempt: the traceback of the handler. Views show it beside the error."""
RETRY_IN = "retry_in"
"""Key in the error of an attempt that is retried: seconds until the job is queued again."""


def warning_of(error: Mapping[str, Any] | None, retryable: bool | None) -> str | None:
    """The warning for a caller who retries a job that failed with this error, or None if the error is not permanent. An
    error that was retried until the attempts were used up is not permanent: the next call may succeed."""
    if retryable or error is None or error.get("reason") == ATTEMPTS_USED_UP:
        return None
    return f"the last error, {error.get('code', 'unknown')}, is permanent: the same input may fail again"


def of_http_status(status: int, message: str, retry_after: float | None = None) -> Failure:
    """The failure for an error status: 429, 502, 503 and 504 are retryable, all others are permanent."""
    return Failure(f"HTTP_{status}", message, status in RETRYABLE_STATUSES, retry_after, status)


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delays between attempts: `base * factor^n`, capped at `max` and varied by `jitter`. With `explicit`, the
    delays are those of the list, without jitter, and the last one repeats."""

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
        """Decide whether the job is retried or fails after its `attempt`-th call failed."""
        error = failure.as_error()
        if not failure.retryable:
            return Fail(error, retryable=False)
        if attempt >= self.max_attempts:
            return Fail({**error, "attempts": attempt, "reason": ATTEMPTS_USED_UP}, retryable=False)
        if self.manual:
            return Fail(error, retryable=True)
        return Retry(error, self._delay(failure, attempt, randomness))

    def spared(self, failure: Failure, refusals: int, randomness: float) -> Retry | None:
        """Return a retry that costs no attempt, for a call that the service refused because the limit is too high.
        `refusals` is the number of earlier refused calls of the step. Returns None if the call must count as an
        attempt: the failure is not retried automatically, or too many calls were refused."""
        if failure.code != STORE_UNAVAILABLE and (self.manual or refusals >= MOST_SPARED):
            return None
        if not failure.retryable:
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
