"""The interface of the store, which holds the state of every job.

All writes go through the group commit (`store/group_commit.py`), which calls `commit` with a batch; reads are plain
methods. A `commit` is one transaction: it applies every transition, returns an outcome for each, and returns the outbox
rows it wrote, so that this process can relay them at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fairlead.domain.access import AuditRecord, Key
from fairlead.domain.batch import BatchItem, BatchState
from fairlead.domain.fast_dataclass import fast_dataclass
from fairlead.domain.job import Hold, Job, JobRecord, JobStatus
from fairlead.domain.processes import ProcessRecord
from fairlead.domain.rules import EVERYTHING, Lanes, Rules
from fairlead.domain.transitions import Move
from fairlead.errors import InvalidInput, Unavailable
from fairlead.store.budgets import BudgetReads
from fairlead.store.dashboard import DashboardReads
from fairlead.store.file_batches import FileBatchReads
from fairlead.store.files import FileReads
from fairlead.store.schedules import ScheduleReads
from fairlead.store.usage import PruneUsage as PruneUsage
from fairlead.store.usage import RollUpUsage as RollUpUsage
from fairlead.store.usage import UsageReads
from fairlead.store.webhooks import WebhookReads
from fairlead.store.writes import Adapt as Adapt
from fairlead.store.writes import Audit as Audit
from fairlead.store.writes import AuditOutcome as AuditOutcome
from fairlead.store.writes import ChangeReader as ChangeReader
from fairlead.store.writes import CreateBatch as CreateBatch
from fairlead.store.writes import CreateKey as CreateKey
from fairlead.store.writes import DeclareServices as DeclareServices
from fairlead.store.writes import DeregisterProcess as DeregisterProcess
from fairlead.store.writes import EndHolds as EndHolds
from fairlead.store.writes import Erase as Erase
from fairlead.store.writes import FireTimers as FireTimers
from fairlead.store.writes import IssueTicket as IssueTicket
from fairlead.store.writes import Override as Override
from fairlead.store.writes import OverrideRates as OverrideRates
from fairlead.store.writes import PromoteWaiting as PromoteWaiting
from fairlead.store.writes import Prune as Prune
from fairlead.store.writes import PruneBatches as PruneBatches
from fairlead.store.writes import PruneRecords as PruneRecords
from fairlead.store.writes import RaiseEpoch as RaiseEpoch
from fairlead.store.writes import RegisterProcess as RegisterProcess
from fairlead.store.writes import Relayed as Relayed
from fairlead.store.writes import RequestDrain as RequestDrain
from fairlead.store.writes import RequestRebuild as RequestRebuild
from fairlead.store.writes import RevokeKey as RevokeKey
from fairlead.store.writes import SettleBatch as SettleBatch
from fairlead.store.writes import SweepResult as SweepResult
from fairlead.store.writes import Transition as Transition
from fairlead.store.writes import UseTicket as UseTicket

RELAYING = "relaying"
"""The origin of outbox rows that the committing process relays itself."""
LATE_AFTER = 0.25
"""An outbox row older than this, in seconds, is late: its process cannot reach the dispatcher, or is gone. A submit to
a FIFO service returns only after its row was relayed, but waits no longer than this (docs/adr/0017)."""


class KeyTaken(InvalidInput):
    """Another process created a batch with this idempotency key at the same time. Nothing was stored; the caller should
    read that batch."""


class Busy(Unavailable):
    """The write failed because of a transient error: a lock, a deadlock, a lost connection. The group commit retries
    it."""


@dataclass(frozen=True, slots=True)
class Done:
    """The transition was applied. `value` is the return value that the docstring of the transition describes, or
    None."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The transition changed nothing, because the job has changed or does not exist, or the epoch has changed."""

    reason: str


@dataclass(frozen=True, slots=True)
class TurnedBack(Refused):
    """The step was not started, because a budget is spent. The same commit has held or demoted its job, and others of
    the same user: `moves` are the applied moves, each with the job as it was before."""

    moves: Sequence[tuple[Job, Move]] = ()


@fast_dataclass
class Accepted:
    """The job of a Submit that was accepted. With `replayed`, the idempotency key was used before, and this is the job
    that was created then."""

    job_id: str
    seq: int
    replayed: bool = False


@fast_dataclass
class Started:
    """The started job (RUNNING, run raised, attempt counted), and the input of its handler.

    `context_json` is a JSON object with the results of earlier steps, in the format of `domain.job.context_of`.
    """

    job: Job
    input_json: str
    context_json: str


Outcome = Done | Refused | Accepted | Started


@fast_dataclass
class OutboxEntry:
    """An outbox row and the current state of its job (None if the job was deleted). The relay passes the change on to
    the dispatcher. Jobs that entered a lane together may share an outbox row.

    `late` is set only for jobs of FIFO services. It means that the service may have older outbox rows that no process
    is relaying; those rows must be relayed first.
    """

    outbox_id: int
    job_id: str
    job: Job | None
    late: bool = False


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a commit. `outcomes` has one entry per transition: its outcome, or the error with which it alone
    was refused (IdempotencyMismatch, TooManyWaiting). `changes` are the outbox rows that the commit wrote."""

    outcomes: Sequence[Outcome | Exception]
    changes: Sequence[OutboxEntry]


@dataclass(frozen=True, slots=True)
class Epoch:
    """The epoch of a scope, the dispatcher server on which the scope was last built, and whether a rebuild was
    requested."""

    number: int
    server: str
    rebuild_asked: bool = False


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Selects jobs. All conditions that are set must hold. `service` is the service of the current step, `error_code`
    the code of the job's error. The `_from` times are inclusive, the `_before` times exclusive."""

    user_id: str | None = None
    statuses: tuple[JobStatus, ...] = ()
    feature_name: str | None = None
    service: str | None = None
    error_code: str | None = None
    retryable: bool | None = None
    finished_from: float | None = None
    finished_before: float | None = None
    created_from: float | None = None
    created_before: float | None = None

    def __post_init__(self) -> None:
        # PostgreSQL cannot store NUL in text, and no stored value contains one.
        if "\0" in f"{self.user_id}{self.feature_name}{self.service}{self.error_code}":
            raise InvalidInput("a name must not contain the character NUL")


Ended = tuple[float, int]
"""When a job ended, and its seq: the order in which ended jobs are examined."""


class EndedFronts(NamedTuple):
    """Ended jobs of fronts. `last` is the last job that was examined; None if no jobs are left."""

    job_ids: list[str]
    last: Ended | None


Facts = Mapping[str, float | int | str]
"""Every engine: `engine` (sqlite or postgresql), `server_version`, `clock` (database time in seconds since the epoch),
`database_bytes`, `outbox_rows`, `outbox_age` (seconds since the oldest row was written; 0 without rows),
`webhooks_waiting` (deliveries), `webhooks_disabled` (endpoints).

SQLite: `wal_bytes`, `free_bytes` (within the file), `journal_mode`, `synchronous`.

PostgreSQL: `job_rows`, `job_dead_rows`, `outbox_dead_rows` (from its statistics), `oldest_transaction_age` (seconds
since the oldest open transaction of this database began; 0 if there is none) and `oldest_transaction` (its owner),
`oldest_xmin_age` (age in transactions of what keeps dead rows from being removed) and `oldest_xmin` (its owner),
`fsync`, `full_page_writes`, `synchronous_commit`, `autovacuum`, `connections`, `max_connections`."""


class Store(DashboardReads, UsageReads, BudgetReads, FileReads, FileBatchReads, WebhookReads, ScheduleReads, Protocol):
    """The interface of the database. `tests/contract/store/` tests it. Methods raise `Unavailable` if the database
    cannot be reached or the disk is full, and `StoreError` if the database cannot be used at all."""

    async def open(self) -> None:
        """Connect, and migrate the schema. A database that is corrupt or of a later release is refused and left
        unchanged."""
        ...

    async def close(self) -> None: ...

    async def lock_dispatch(self, *, shared: bool = False) -> None:
        """Take the dispatch lock of this database. Only one process may dispatch from memory. With `shared`, the lock
        is shared by all processes that dispatch through Redis. Raises AlreadyDispatching."""
        ...

    def relays(self) -> None:
        """Declare that this process relays its own outbox rows. Other processes then relay these rows only if this
        process does not do so in time."""
        ...

    async def commit(self, batch: Sequence[Transition], *, all_or_nothing: bool = False) -> Committed:
        """Apply a batch of transitions in one transaction. Only the group commit calls this, with at most one
        transition per job. With `all_or_nothing`, nothing is stored if a Submit is refused with an error."""
        ...

    async def ping(self) -> None: ...

    async def now(self) -> float:
        """The current database time. All stored times are database times."""
        ...

    # Reads of jobs
    async def get(self, job_id: str) -> JobRecord | None: ...

    async def get_records(self, job_ids: Sequence[str]) -> dict[str, JobRecord]:
        """Many jobs with their input and results, without attempts. Jobs that do not exist are absent from the
        result."""
        ...

    async def get_jobs(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """The job rows only, without input, results and attempts."""
        ...

    async def list_jobs(
        self, where: JobFilter, *, before_seq: int | None, limit: int, from_seq: int | None = None
    ) -> list[Job]:
        """The jobs that match the filter, newest first. `before_seq` is the seq of the last job of the previous page.
        Jobs with a seq below `from_seq` are not examined."""
        ...

    async def seq_after(self, where: JobFilter, *, before_seq: int | None, skip: int) -> int | None:
        """The seq of the job that `list_jobs` returns after `skip` newer ones; None if there are not so many."""
        ...

    async def count(self, where: JobFilter) -> int: ...

    async def users_with_prefix(self, prefix: str, limit: int) -> list[str]:
        """The ids of users that have jobs and whose id begins with `prefix`, sorted. Reads one row per user."""
        ...

    # Reads of batches
    async def get_batch(self, batch_id: str) -> BatchState | None: ...

    async def batch_owner(self, batch_id: str) -> str | None:
        """The user of a batch, or None if there is no such batch. Unlike `get_batch`, this does not count the items."""
        ...

    async def batch_of_key(self, user_id: str, key: str) -> tuple[str, str | None] | None:
        """The id and the body hash of the batch created with this idempotency key."""
        ...

    async def list_batches(self, user_id: str | None, *, before: str | None, limit: int) -> list[BatchState]:
        """The batches, newest first. `before` is the last id of the previous page."""
        ...

    async def batch_items(
        self, batch_id: str, *, statuses: Sequence[JobStatus] = (), after: int = -1, limit: int
    ) -> list[BatchItem]:
        """The items of a batch with their jobs, in order. `after` is the number of the last item of the previous page.
        With `statuses`, only items whose job exists and has one of these statuses."""
        ...

    async def removed_items(self, batch_id: str, *, after: int = -1, limit: int) -> list[BatchItem]:
        """The items of a batch whose job was deleted or pruned."""
        ...

    async def batch_item(self, batch_id: str, name: str) -> BatchItem | None:
        """Find an item by its custom_id, or else by its number."""
        ...

    async def batch_of_job(self, job_id: str) -> tuple[str, str | None, int, str | None] | None:
        """The id and the name of the job's batch, and the job's item number and custom_id there."""
        ...

    async def ended_batches(self, limit: int) -> list[str]:
        """The ids of batches that have no open jobs and are not settled."""
        ...

    async def was_submitted(self, user_id: str, key: str) -> bool:
        """Whether the user has submitted a job with this idempotency key."""
        ...

    async def newest_submit(self, user_id: str, prefix: str) -> tuple[str, str, str] | None:
        """The last of the user's idempotency keys that begin with `prefix`, in the order of their text, with the id of
        its job and the hash stored with it; None if there is none."""
        ...

    # Reads of the manager's loops
    async def front_readers(self, limit: int) -> list[tuple[str, str]]:
        """The ids of open jobs that fronts submitted, each with its reader (see `domain/front_readers.py`)."""
        ...

    async def ended_fronts(self, status: JobStatus, *, after: Ended, before: float, limit: int) -> EndedFronts:
        """Examine at most `limit` jobs that ended with this status after the job `after` and before a time, oldest
        first. Returns those that fronts submitted and that are not erased, and the last job that was examined."""
        ...

    async def outbox(self, *, older_than: float, limit: int, lanes: Lanes = EVERYTHING) -> list[OutboxEntry]:
        """The outbox rows of these lanes that wait for a relay: all rows of processes that do not relay, and the rows
        of relaying processes that were written before `older_than`. A row belongs to the lane that the job entered or
        left. `limit` counts jobs, but the last row is returned with all its jobs."""
        ...

    async def next_timer(self) -> float | None: ...

    async def oldest_waiting(self) -> dict[int, float]:
        """For each band with PENDING jobs, the time at which the longest-waiting one was queued."""
        ...

    async def next_promotion(self, *, low_after: float, medium_after: float) -> float | None:
        """The time of the next promotion, or None. A waiting job is promoted `low_after` or `medium_after` seconds
        after it was queued, depending on its band."""
        ...

    def waiting(self, batch: int, lanes: Lanes = EVERYTHING) -> AsyncIterator[list[Job]]:
        """Yield all PENDING jobs of these lanes, in lists of at most `batch` jobs."""
        ...

    async def count_waiting(self, lanes: Lanes = EVERYTHING) -> int: ...

    async def count_waiting_by_service(self, lanes: Lanes = EVERYTHING) -> dict[str, int]:
        """The number of waiting jobs of each service. Services without waiting jobs are absent."""
        ...

    async def running(self, lanes: Lanes = EVERYTHING) -> list[Job]: ...

    async def turn_owners(self) -> list[str]:
        """The processes that own turns that are in the queue or have a slot."""
        ...

    async def turns_of(self, process: str, limit: int) -> list[Job]:
        """The turns that a process owns and that are in the queue or have a slot, oldest first."""
        ...

    async def holds(self) -> list[Hold]: ...

    async def rules(self) -> Rules: ...

    async def declared(self) -> DeclareServices:
        """The services and pools as last declared, without run-time overrides."""
        ...

    async def epochs(self) -> dict[str, Epoch]: ...

    # Reads of operators
    async def keys(self) -> list[Key]:
        """All keys, including revoked ones, oldest first."""
        ...

    async def count_keys(self) -> tuple[int, int]:
        """The number of keys, and the number of revoked keys. A cache of the keys is valid as long as both numbers are
        unchanged, because keys are only ever created and revoked."""
        ...

    async def audit(self, *, before: str | None = None, limit: int, action: str | None = None) -> list[AuditRecord]:
        """The audit records, newest first. `before` is the last id of the previous page."""
        ...

    async def processes(self) -> list[ProcessRecord]:
        """All registered processes by name, including dead ones."""
        ...

    async def facts(self) -> Facts:
        """The state of the database itself; see `Facts`."""
        ...
