"""The store: what is this job's state?

All writes go through the journal (`store/journal.py`), which calls `commit` with a batch; reads are plain methods. A
`commit` is one transaction: it applies every transition, tells of each whether it changed something, and returns the
outbox rows it wrote as `LineChange`s so that this process can relay them at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fairlead.domain.job import Hold, Job, JobRecord, JobStatus
from fairlead.domain.limits import Rules, ServiceRules
from fairlead.domain.transitions import Delete, Move, Progress, Start, Submit
from fairlead.errors import Unavailable


class Busy(Unavailable):
    """It will pass: locked by another process, a deadlock, a lost connection. The journal tries again by itself."""


@dataclass(frozen=True, slots=True)
class Relayed:
    """These outbox rows have reached the line; they may go."""

    outbox_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EndHolds:
    """Holds whose deadline has passed; the outcome's value is how many."""

    now: float


@dataclass(frozen=True, slots=True)
class Prune:
    """Finished jobs that are kept no longer, at most `limit` of them; the outcome's value is how many."""

    finished_before: float
    failed_before: float
    limit: int


@dataclass(frozen=True, slots=True)
class RaiseEpoch:
    """A rebuild of this scope begins; the outcome's value is the new epoch."""

    scope: str


@dataclass(frozen=True, slots=True)
class DeclareServices:
    """The config, written to the truth at start. Run-time overrides (limit, pause) stay. Value: the resulting
    `Rules`."""

    services: tuple[ServiceRules, ...]
    pools: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Override:
    """A run-time change of one service, kept until lifted. None leaves the limit, or the pause, as it is. Value: the
    resulting `Rules`."""

    service: str
    limit: int | None = None
    paused: bool | None = None
    lift_limit: bool = False


Transition = (
    Submit | Start | Move | Progress | Delete | Relayed | EndHolds | Prune | RaiseEpoch | DeclareServices | Override
)


# ---------------------------------------------------------------- outcomes


@dataclass(frozen=True, slots=True)
class Done:
    """It was applied. `value` is what the transition's docstring says, or None."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was changed: the job moved on, is not there, or the epoch changed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """A submitted job. `replayed`: its idempotency key was seen before, and this is the job it made."""

    job_id: str
    seq: int
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """The job as it now is (RUNNING, run raised, attempt counted), and what its handler needs.

    `context_json` is the JSON object of the earlier steps' results, by step key, in the shape of
    `domain.job.context_of`.
    """

    job: Job
    input_json: str
    context_json: str


Outcome = Done | Refused | Accepted | Started


@dataclass(frozen=True, slots=True)
class LineChange:
    """An outbox row and the job's state at that moment: what the relay makes the line match."""

    outbox_id: int
    job_id: str
    job: Job | None


@dataclass(frozen=True, slots=True)
class Committed:
    """Per transition its outcome, or the request error that refuses it alone (IdempotencyMismatch, TooManyWaiting)."""

    outcomes: Sequence[Outcome | Exception]
    changes: Sequence[LineChange]


@dataclass(frozen=True, slots=True)
class JobFilter:
    user_id: str | None = None
    statuses: tuple[JobStatus, ...] = ()
    feature_name: str | None = None


class Store(Protocol):
    """See `tests/contract/test_store.py` for every rule as a test. Raises `Unavailable` when it cannot be reached or
    the disk is full, `StoreError` when the database cannot be used at all."""

    async def open(self) -> None:
        """Connect and migrate. A corrupt or newer database is refused untouched."""
        ...

    async def close(self) -> None: ...

    async def lock_dispatch(self) -> None:
        """Become the one process that dispatches from memory for this database, or raise AlreadyDispatching."""
        ...

    async def commit(self, batch: Sequence[Transition], *, all_or_nothing: bool = False) -> Committed:
        """One transaction. Called by the journal only, with at most one transition per job. With `all_or_nothing`, a
        Submit whose outcome is an exception keeps all others of the batch from being stored too."""
        ...

    async def ping(self) -> None: ...

    # Reads of jobs
    async def get(self, job_id: str) -> JobRecord | None: ...

    async def get_jobs(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """The rows alone, without what is kept beside them."""
        ...

    async def list_jobs(self, where: JobFilter, *, before_seq: int | None, limit: int) -> list[Job]:
        """Newest first; `before_seq` continues after the last one seen."""
        ...

    async def count(self, where: JobFilter) -> int: ...

    # Reads of the manager's loops
    async def outbox(self, *, older_than: float, limit: int) -> list[LineChange]:
        """Rows that another process wrote, and this process's own if written before `older_than`."""
        ...

    async def timers(self, now: float, limit: int) -> list[Job]:
        """Jobs whose timer has rung, earliest first."""
        ...

    async def next_timer(self) -> float | None: ...

    async def promotable(self, *, low_before: float, medium_before: float, limit: int) -> list[Job]:
        """PENDING jobs queued at or before these moments, in the low and the medium band."""
        ...

    async def next_promotion(self, *, low_after: float, medium_after: float) -> float | None:
        """When the next waiting job is to be promoted, if nothing changes."""
        ...

    def waiting(self, batch: int) -> AsyncIterator[list[Job]]:
        """All PENDING jobs, in batches."""
        ...

    async def running(self) -> list[Job]: ...

    async def holds(self) -> list[Hold]: ...

    async def rules(self) -> Rules: ...

    async def epochs(self) -> dict[str, int]: ...
