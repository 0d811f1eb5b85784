"""Every error that Fairlead raises on purpose.

    FairleadError
    ├── ConfigError                 the configuration is wrong; `problems` lists every mistake at once
    ├── RequestError                the caller asked for something that cannot be; nothing was stored
    │   ├── InvalidInput            422  a field is missing, of the wrong type or out of range
    │   │   ├── UnknownFeature      422  no pipeline or service has this name
    │   │   └── IdempotencyMismatch 422  this Idempotency-Key was used with another body
    │   ├── NotFound                404  no such job, service, key...
    │   ├── WrongState              409  the job's state does not allow it
    │   ├── TooLarge                413  the body is over the limit
    │   └── TooManyWaiting          429  this user has too many jobs waiting
    ├── Unavailable                 503  try again: the journal is full, the disk is full, we are starting or stopping
    ├── StoreError                  the database cannot be used: corrupt, newer than we are, not ours
    │   └── AlreadyDispatching      another process dispatches from this database
    ├── JobError                    what `await job.result()` raises when there is no result
    │   ├── JobFailed
    │   ├── JobCancelled
    │   └── ResultTimeout
    ├── TurnError                   a turn that is not, or no longer, its caller's
    │   ├── TurnTimeout             nobody's slot was free within the wait_timeout
    │   ├── TurnEnded               it was cancelled, or ended otherwise, before its caller had the slot
    │   └── TurnLost                409  the slot was taken back while its caller had it
    └── raised by handlers, to steer what happens next
        ├── Permanent               do not try again
        └── Retry                   try again, after a delay of the handler's choice

`code` is stable and is what programs compare; `status` is the HTTP status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class FairleadError(Exception):
    """The root: `except FairleadError` catches everything above."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500


class ConfigError(FairleadError):
    code = "config_invalid"

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class RequestError(FairleadError):
    """`pointer` names the offending field as a JSON pointer, e.g. `/priority`; `details` is for machines."""

    code = "bad_request"
    status = 400

    def __init__(self, message: str, *, pointer: str | None = None, details: Mapping[str, Any] | None = None):
        super().__init__(message)
        self.message = message
        self.pointer = pointer
        self.details = dict(details or {})


class InvalidInput(RequestError):
    code = "invalid_input"
    status = 422


class UnknownFeature(InvalidInput):
    code = "unknown_feature"


class IdempotencyMismatch(InvalidInput):
    code = "idempotency_mismatch"


class NotFound(RequestError):
    code = "not_found"
    status = 404


class WrongState(RequestError):
    code = "wrong_state"
    status = 409


class TooLarge(RequestError):
    code = "too_large"
    status = 413


class TooManyWaiting(RequestError):
    code = "too_many_waiting"
    status = 429

    def __init__(self, message: str, *, retry_after: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(FairleadError):
    """`public` is what answers say where the message itself, which is for the log, names an address or a path."""

    code = "unavailable"
    status = 503

    def __init__(self, message: str, *, retry_after: float = 1.0, public: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        self.public = public or message


class StoreError(FairleadError):
    code = "store_unusable"
    public: ClassVar[str] = "the database cannot be used; the log says why"


class AlreadyDispatching(StoreError):
    code = "already_dispatching"


class JobError(FairleadError):
    """There is no result; `job_id` says of which job."""

    def __init__(self, message: str, *, job_id: str) -> None:
        super().__init__(message)
        self.job_id = job_id


class JobFailed(JobError):
    code = "job_failed"

    def __init__(self, message: str, *, job_id: str, error: Mapping[str, Any], retryable: bool) -> None:
        super().__init__(message, job_id=job_id)
        self.error = dict(error)
        self.retryable = retryable


class JobCancelled(JobError):
    code = "job_cancelled"


class ResultTimeout(JobError, TimeoutError):
    code = "result_timeout"


class TurnError(FairleadError):
    """`turn_id` says of which turn; `error` is why it ended, with a `code`, if it has."""

    code = "turn_error"

    def __init__(self, message: str, *, turn_id: str, error: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.turn_id = turn_id
        self.error = dict(error or {})


class TurnTimeout(TurnError, TimeoutError):
    code = "turn_timeout"


class TurnEnded(TurnError):
    code = "turn_ended"


class TurnLost(TurnError):
    code = "turn_lost"
    status = 409


class Permanent(FairleadError):
    """Raised by a handler: this input will never work, do not try again."""

    code = "permanent"


class Retry(FairleadError):
    """Raised by a handler: try again, after `after` seconds if given, else after the service's backoff."""

    code = "retry"

    def __init__(self, message: str = "the handler asked for another try", *, after: float | None = None):
        super().__init__(message)
        self.after = after


def shown(error: BaseException) -> str:
    """What anybody may be told of an error: where our servers are is nobody's business but the operator's."""
    return getattr(error, "public", None) or str(error)
