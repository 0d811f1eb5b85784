"""The errors that Fairlead raises.

    FairleadError
    ├── ConfigError                 the configuration is invalid; `problems` lists every problem
    ├── RequestError                the request is invalid or cannot be fulfilled; nothing was stored
    │   ├── InvalidInput            422  a field is missing, of the wrong type or out of range
    │   │   ├── UnknownFeature      422  no pipeline or service has this name
    │   │   └── IdempotencyMismatch 422  this Idempotency-Key was used with another body
    │   ├── NotFound                404  no such job, service, key...
    │   │   └── UnknownModel        404  no service serves this model
    │   ├── WrongState              409  the job's state does not allow it
    │   ├── BudgetSpent             402  a budget of the user is spent
    │   ├── TooLarge                413  the body is over the limit
    │   │   └── FileQuota           413  this user's uploads keep too many bytes
    │   ├── TooManyReaders          429  the output of this job has too many readers
    │   └── TooManyWaiting          429  this user has too many jobs waiting
    ├── Unavailable                 503  retry later: too many writes pending, disk full, starting or stopping
    ├── StoreError                  the database is corrupt, has a newer schema, or is not a Fairlead database
    │   └── AlreadyDispatching      another process dispatches from this database
    ├── JobError                    raised by `await job.result()` when there is no result
    │   ├── JobFailed
    │   ├── JobCancelled
    │   └── ResultTimeout
    ├── TurnError                   the turn has no slot, or lost it
    │   ├── TurnTimeout             no slot was free within the wait_timeout
    │   ├── TurnEnded               it was cancelled or failed before its caller had the slot
    │   └── TurnLost                409  the slot was withdrawn while its caller had it
    └── raised by handlers
        ├── Permanent               do not retry
        └── Retry                   retry, after an optional delay

`code` is stable, for programs to compare; `status` is the HTTP status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class FairleadError(Exception):
    """The base class of all errors that Fairlead raises."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    problem: Mapping[str, Any] | None = None
    """The `application/problem+json` body, if the error came from a gateway."""


class ConfigError(FairleadError):
    code = "config_invalid"

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class RequestError(FairleadError):
    """The request is invalid or cannot be fulfilled. `pointer` names the field with the error as a JSON pointer, such
    as `/priority`; `details` are for programs."""

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


class UnknownModel(NotFound):
    code = "model_not_found"


class WrongState(RequestError):
    code = "wrong_state"
    status = 409


class BudgetSpent(RequestError):
    """A budget that concerns the job is spent. `details` has its name, its amount and when its next window begins
    (`until`)."""

    code = "budget_spent"
    status = 402


class TooLarge(RequestError):
    code = "too_large"
    status = 413


class FileQuota(TooLarge):
    """The uploads of this user would keep more bytes than `artifacts.max_user_bytes` allows."""

    code = "file_quota"


class TooManyReaders(RequestError):
    code = "too_many_readers"
    status = 429
    retry_after = 5.0


class TooManyWaiting(RequestError):
    code = "too_many_waiting"
    status = 429

    def __init__(self, message: str, *, retry_after: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(FairleadError):
    """The operation is not possible now; retry later. The message is for the log and may name a host or a path;
    responses contain `public` instead."""

    code = "unavailable"
    status = 503

    def __init__(self, message: str, *, retry_after: float = 1.0, public: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        self.public = public or message


class StoreError(FairleadError):
    code = "store_unusable"
    public: ClassVar[str] = "the database cannot be used; see the log"


class AlreadyDispatching(StoreError):
    code = "already_dispatching"


class JobError(FairleadError):
    """The job has no result."""

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
    """The turn has no slot, or has lost it. `error` is the reason why the turn ended, with a `code`; it is empty if the
    turn has not ended."""

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
    """Raised by a handler: the job fails without a retry, because this input will never work."""

    code = "permanent"


class Retry(FairleadError):
    """Raised by a handler: the step is retried after `after` seconds, or after the service's backoff if `after` is
    None."""

    code = "retry"

    def __init__(self, message: str = "the handler requested a retry", *, after: float | None = None):
        super().__init__(message)
        self.after = after


def shown(error: BaseException) -> str:
    """The message of an error without hosts and paths, so that it can be shown to any client."""
    return getattr(error, "public", None) or str(error)
