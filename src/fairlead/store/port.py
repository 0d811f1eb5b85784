"""The store: what is this job's state?

All writes go through the journal (`store/journal.py`), which calls `commit` with a batch; reads are plain methods. A
`commit` is one transaction: it applies every transition, tells of each whether it changed something, and returns the
outbox rows it wrote as `LineChange`s so that this process can relay them at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fairlead.domain.audit import AuditRecord
from fairlead.domain.batch import Batch, BatchItem, BatchState
from fairlead.domain.job import Hold, Job, JobRecord, JobStatus
from fairlead.domain.keys import Key
from fairlead.domain.limits import EVERYTHING, Adapted, Lanes, Rules, ServiceRules
from fairlead.domain.processes import ProcessRecord
from fairlead.domain.records import record
from fairlead.domain.transitions import Adopt, Delete, Move, Prioritise, Progress, Start, Submit, WaitTimeouts
from fairlead.errors import InvalidInput, Unavailable
from fairlead.store.board import BoardReads, CloseSession, NoteActivity, OpenSession

RELAYING = "relaying"
"""The origin of outbox rows whose process relays them itself."""


class KeyTaken(InvalidInput):
    """Another process made a batch with this user's idempotency key, and nothing of this one is stored: look again."""


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
    """A rebuild of this scope begins, on this server of the dispatcher; the outcome's value is the new epoch. It waits
    for every commit with starts of this scope that is under way."""

    scope: str
    server: str = ""


@dataclass(frozen=True, slots=True)
class RingTimers:
    """Move every job whose timer has rung, earliest first and at most `limit`, as `transitions.timer_rang` says. Found
    and moved in one transaction; on PostgreSQL one that another process is moving is passed over (SKIP LOCKED).
    Value: `Rung`."""

    now: float
    limit: int
    waits: WaitTimeouts


@dataclass(frozen=True, slots=True)
class PromoteWaiting:
    """Promote what waits in the low and the medium band since these moments or longer, at most `limit`, as
    `transitions.promote` says; found and moved as by `RingTimers`. Value: `Rung`."""

    now: float
    low_before: float
    medium_before: float
    limit: int
    waits: WaitTimeouts


@dataclass(frozen=True, slots=True)
class Rung:
    """What a sweep found (`found` jobs), and the moves that it made: each job as it was before, and its move."""

    found: int
    moves: Sequence[tuple[Job, Move]]


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


@dataclass(frozen=True, slots=True)
class Adapt:
    """Where the limit of a service with `auto` is from now on. Value: the resulting version of the rules. Refused: the
    service is not declared, or its limit is no longer where it `was` put (None: it was not yet), so another leader has
    moved it meanwhile."""

    service: str
    was: int | None
    adapted: Adapted


@dataclass(frozen=True, slots=True)
class RequestRebuild:
    """The leader is to build this scope anew from the truth, soon. Refused: it was never built."""

    scope: str


# ---------------------------------------------------------------- batches


@dataclass(frozen=True, slots=True)
class CreateBatch:
    """In one commit with the submits of its items, all or nothing. Raises KeyTaken, and then nothing is stored."""

    batch: Batch
    items: tuple[BatchItem, ...]
    idempotency_key: str | None = None
    body_hash: str | None = None


@dataclass(frozen=True, slots=True)
class SettleBatch:
    """Write down how it ended. Refused: something of it is open, or it was settled before. Every move that begins a new
    round strikes that out again, in its own commit: so a batch is settled only while all of it has ended."""

    batch_id: str
    now: float


@dataclass(frozen=True, slots=True)
class PruneBatches:
    """Batches that ended before this, at most `limit`; the outcome's value is how many. Their jobs stay."""

    finished_before: float
    limit: int


# ---------------------------------------------------------------- operators: keys, audit, processes


@dataclass(frozen=True, slots=True)
class CreateKey:
    """Refused: its id is taken."""

    key: Key


@dataclass(frozen=True, slots=True)
class RevokeKey:
    """From now on it opens nothing, nor do its tickets. Refused: there is none, or it is revoked already."""

    key_id: str
    now: float


@dataclass(frozen=True, slots=True)
class IssueTicket:
    """A ticket stands for its key once, until it expires. Those that have expired, by the database's clock, go."""

    hash: str
    key_id: str
    expires_at: float


@dataclass(frozen=True, slots=True, eq=False)
class UseTicket:
    """Value: the id of its key, once and only once, whoever asks. Refused: unknown, used, or expired. No two of them
    are equal, so that one is never answered with what another was told."""

    hash: str
    now: float


@dataclass(frozen=True, slots=True)
class Audit:
    """May be in one batch with the transition that it is about. One whose id is there already changes nothing."""

    record: AuditRecord


@dataclass(frozen=True, slots=True)
class AuditOutcome:
    """How the action ended. Refused: there is no such record."""

    audit_id: str
    outcome: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Announce:
    """This process is there. `seen_at` is set by the database's clock, and `drain_asked` stays what it is there; that
    is also the outcome's value."""

    record: ProcessRecord


@dataclass(frozen=True, slots=True)
class Farewell:
    """This process has ended well, and is not to be taken for dead."""

    name: str


@dataclass(frozen=True, slots=True)
class AskDrain:
    """The process hears of it with its next announcement. Refused: no such process has announced itself."""

    name: str
    on: bool


@dataclass(frozen=True, slots=True)
class PruneRecords:
    """Audit records of before `audit_before`, at most `limit` of them, and processes that were not seen since
    `seen_before`; the outcome's value is how many audit records."""

    audit_before: float
    seen_before: float
    limit: int


Transition = (
    Submit
    | Start
    | Move
    | Progress
    | Prioritise
    | Adopt
    | Delete
    | Relayed
    | RingTimers
    | PromoteWaiting
    | EndHolds
    | Prune
    | RaiseEpoch
    | DeclareServices
    | Override
    | Adapt
    | RequestRebuild
    | CreateBatch
    | SettleBatch
    | PruneBatches
    | CreateKey
    | RevokeKey
    | IssueTicket
    | UseTicket
    | Audit
    | AuditOutcome
    | Announce
    | Farewell
    | AskDrain
    | PruneRecords
    | OpenSession
    | CloseSession
    | NoteActivity
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


@record
class Accepted:
    """A submitted job. `replayed`: its idempotency key was seen before, and this is the job it made."""

    job_id: str
    seq: int
    replayed: bool = False


@record
class Started:
    """The job as it now is (RUNNING, run raised, attempt counted), and what its handler needs.

    `context_json` is the JSON object of the earlier steps' results, by step key, in the shape of
    `domain.job.context_of`.
    """

    job: Job
    input_json: str
    context_json: str


Outcome = Done | Refused | Accepted | Started


@record
class LineChange:
    """An outbox row and the job's state at that moment: what the relay makes the line match. Jobs that entered a lane
    together may share a row."""

    outbox_id: int
    job_id: str
    job: Job | None


@dataclass(frozen=True, slots=True)
class Committed:
    """Per transition its outcome, or the request error that refuses it alone (IdempotencyMismatch, TooManyWaiting)."""

    outcomes: Sequence[Outcome | Exception]
    changes: Sequence[LineChange]


@dataclass(frozen=True, slots=True)
class Epoch:
    """A scope's epoch, the dispatcher's server on which it was built, and whether someone wants it built anew."""

    number: int
    server: str
    rebuild_asked: bool = False


@dataclass(frozen=True, slots=True)
class JobFilter:
    """All that are given must hold. `service` is that of the step the job is at, `error_code` that of its error;
    `finished_from` counts, `finished_before` does not, and so with `created`."""

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
        # PostgreSQL has no NUL in a text, and nothing that we keep has one.
        if "\0" in f"{self.user_id}{self.feature_name}{self.service}{self.error_code}":
            raise InvalidInput("a name must not contain the character NUL")


Facts = Mapping[str, float | int | str]
"""Of every engine: `engine` (sqlite or postgresql), `server_version`, `clock` (the database's, in seconds since the
epoch), `database_bytes`, `outbox_rows`, `outbox_age` (seconds, of the oldest row; 0 if there is none).

SQLite: `wal_bytes`, `free_bytes` (within the file), `journal_mode`, `synchronous`.

PostgreSQL: `job_rows`, `job_dead_rows`, `outbox_dead_rows` (as its statistics have them), `oldest_transaction_age` (in
seconds, of the oldest open one of this database; 0 if there is none) and `oldest_transaction` (whose it is),
`oldest_xmin_age` (in transactions, of whatever keeps dead rows from being removed) and `oldest_xmin` (what that is),
`fsync`, `full_page_writes`, `synchronous_commit`, `autovacuum`, `connections`, `max_connections`."""


class Store(BoardReads, Protocol):
    """See `tests/contract/store/` for every rule as a test. Raises `Unavailable` when it cannot be reached or the disk
    is full, `StoreError` when the database cannot be used at all."""

    async def open(self) -> None:
        """Connect and migrate. A corrupt or newer database is refused untouched."""
        ...

    async def close(self) -> None: ...

    async def lock_dispatch(self, *, shared: bool = False) -> None:
        """Become the one process that dispatches from memory for this database, or (`shared`) one of those that do so
        through Redis; or raise AlreadyDispatching."""
        ...

    def relays(self) -> None:
        """This process itself tells the line of what it commits: nobody else need, unless it died."""
        ...

    async def commit(self, batch: Sequence[Transition], *, all_or_nothing: bool = False) -> Committed:
        """One transaction. Called by the journal only, with at most one transition per job. With `all_or_nothing`, a
        Submit whose outcome is an exception keeps all others of the batch from being stored too."""
        ...

    async def ping(self) -> None: ...

    async def now(self) -> float:
        """The database's clock, which is the one that commits are stamped with."""
        ...

    # Reads of jobs
    async def get(self, job_id: str) -> JobRecord | None: ...

    async def get_records(self, job_ids: Sequence[str]) -> dict[str, JobRecord]:
        """The same for many; those that are not there are absent."""
        ...

    async def get_jobs(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """The rows alone, without what is kept beside them."""
        ...

    async def list_jobs(self, where: JobFilter, *, before_seq: int | None, limit: int) -> list[Job]:
        """Newest first; `before_seq` continues after the last one seen."""
        ...

    async def count(self, where: JobFilter) -> int: ...

    # Reads of batches
    async def get_batch(self, batch_id: str) -> BatchState | None: ...

    async def batch_owner(self, batch_id: str) -> str | None:
        """Whose it is, without counting its items. None: there is no such batch."""
        ...

    async def batch_of_key(self, user_id: str, key: str) -> tuple[str, str | None] | None:
        """The id and the body's hash of the batch that this idempotency key made."""
        ...

    async def list_batches(self, user_id: str | None, *, before: str | None, limit: int) -> list[BatchState]:
        """Newest first; `before` is the id of the last one seen."""
        ...

    async def batch_items(
        self, batch_id: str, *, statuses: Sequence[JobStatus] = (), after: int = -1, limit: int
    ) -> list[BatchItem]:
        """With their jobs, in their order; `after` is the number of the last one seen. With `statuses`, only those
        whose job is there and has one of them."""
        ...

    async def removed_items(self, batch_id: str, *, after: int = -1, limit: int) -> list[BatchItem]:
        """Those whose job is there no more."""
        ...

    async def batch_item(self, batch_id: str, name: str) -> BatchItem | None:
        """By its custom_id, or else by its number."""
        ...

    async def ended_batches(self, limit: int) -> list[str]:
        """Ids of those that are not settled and have nothing open."""
        ...

    async def was_submitted(self, user_id: str, key: str) -> bool:
        """Whether this user's idempotency key stands for a job."""
        ...

    # Reads of the manager's loops
    async def outbox(self, *, older_than: float, limit: int, lanes: Lanes = EVERYTHING) -> list[LineChange]:
        """Rows of these lanes: at once those of processes that do not relay, and those of processes that do if written
        before `older_than`. A row is of the lane that its transition put the job in, or took it out of. `limit` is of
        jobs; the last row is told whole nevertheless."""
        ...

    async def next_timer(self) -> float | None: ...

    async def oldest_waiting(self) -> dict[int, float]:
        """By band: when the PENDING job that waits longest was queued. Bands in which nobody waits are absent."""
        ...

    async def next_promotion(self, *, low_after: float, medium_after: float) -> float | None:
        """When the next waiting job is to be promoted, if nothing changes."""
        ...

    def waiting(self, batch: int, lanes: Lanes = EVERYTHING) -> AsyncIterator[list[Job]]:
        """All PENDING jobs of these lanes, in batches."""
        ...

    async def count_waiting(self, lanes: Lanes = EVERYTHING) -> int: ...

    async def running(self, lanes: Lanes = EVERYTHING) -> list[Job]: ...

    async def turn_owners(self) -> list[str]:
        """The processes that own turns which have not ended."""
        ...

    async def turns_of(self, process: str, limit: int) -> list[Job]:
        """Those of one of them, oldest first."""
        ...

    async def holds(self) -> list[Hold]: ...

    async def rules(self) -> Rules: ...

    async def declared(self) -> DeclareServices:
        """What was declared last, without what was overridden since."""
        ...

    async def epochs(self) -> dict[str, Epoch]: ...

    # Reads of operators
    async def keys(self) -> list[Key]:
        """All of them, revoked ones too, oldest first."""
        ...

    async def count_keys(self) -> tuple[int, int]:
        """How many keys there are, and how many of them are revoked. Keys are made and revoked and nothing else, so the
        same numbers mean the same keys: whoever has read them need not read them again."""
        ...

    async def audit(self, *, before: str | None = None, limit: int, action: str | None = None) -> list[AuditRecord]:
        """Newest first; `before` is the id of the last one seen."""
        ...

    async def processes(self) -> list[ProcessRecord]:
        """All that announced themselves and did not say farewell, dead ones too, by name."""
        ...

    async def facts(self) -> Facts:
        """How the database itself is; see `Facts`."""
        ...
