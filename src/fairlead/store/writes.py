"""Writes that are not transitions of a single job: sweeps, rules, epochs, batches, keys, audit and processes.

A store applies them in the same commits as the transitions of jobs. In the docstrings below, *Returns X* means that the
outcome is a `Done` with X as its `value`; *Refused if* means that the outcome is then `Refused`, and nothing was
changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.domain.access import AuditRecord, Key
from fairlead.domain.batch import Batch, BatchItem
from fairlead.domain.groups import GroupRules
from fairlead.domain.job import Job
from fairlead.domain.processes import ProcessRecord
from fairlead.domain.rates import Rate, RateOf
from fairlead.domain.rules import Adapted, Rules, ServiceRules
from fairlead.domain.transitions import (
    Adopt,
    AutoResumes,
    Delete,
    Move,
    Prioritise,
    Progress,
    Start,
    Submit,
    WaitTimeouts,
)
from fairlead.store.budgets import ReleaseHeld, SetBudget, SweepBudgets, WarnBudget
from fairlead.store.dashboard import CloseSession, OpenSession, RecordMinuteStats
from fairlead.store.file_batches import ChangeFileBatch, CreateFileBatch, PruneFileBatches
from fairlead.store.files import (
    CompleteFile,
    CreateFile,
    CreatePart,
    DeleteFile,
    FinishPart,
    ForgetArtifacts,
    RenewFile,
    SweepFiles,
)
from fairlead.store.schedules import DeclareSchedules, DeleteSchedule, FireSchedule, SaveSchedule
from fairlead.store.usage import PruneUsage, RollUpUsage
from fairlead.store.webhooks import (
    ClaimDeliveries,
    DeclareEndpoints,
    DeleteEndpoint,
    DisableEndpoint,
    PruneDeliveries,
    RecordAttempt,
    RecordEvent,
    Replay,
    SaveEndpoint,
)


@dataclass(frozen=True, slots=True)
class Relayed:
    """Delete outbox rows that have reached the dispatcher."""

    outbox_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EndHolds:
    """End the holds whose deadline has passed by `now` and also by the database clock. Returns the number of ended
    holds."""

    now: float


@dataclass(frozen=True, slots=True)
class Prune:
    """Delete finished jobs that are past their retention, at most `limit`. Returns the number of deleted jobs."""

    finished_before: float
    failed_before: float
    limit: int


@dataclass(frozen=True, slots=True)
class RaiseEpoch:
    """Raise the epoch of a scope and record the dispatcher server on which the scope is rebuilt. This is the first
    write of a rebuild. Returns the new epoch.

    The write waits until all commits that are starting steps of this scope have ended. Refused if `version` is given
    and the rules have another version by now, because the scope may then contain other services.
    """

    scope: str
    server: str = ""
    version: int | None = None


@dataclass(frozen=True, slots=True)
class FireTimers:
    """Move the jobs whose timer has fired, earliest first, at most `limit`. `transitions.timer_rang` decides how each
    job moves. Returns a `SweepResult`.

    A timer has fired when `timer_at` has passed both by `now` and by the database clock, so that a process whose clock
    is fast does not move jobs too early. Jobs are selected and moved in one transaction; PostgreSQL skips rows that
    another process has locked (SKIP LOCKED).
    """

    now: float
    limit: int
    waits: WaitTimeouts
    resumes: AutoResumes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PromoteWaiting:
    """Promote the jobs of the low band that were queued at or before `low_before`, and those of the medium band that
    were queued at or before `medium_before`; at most `limit` jobs. They are selected and moved as by `FireTimers`.
    Returns a `SweepResult`."""

    now: float
    low_before: float
    medium_before: float
    limit: int
    waits: WaitTimeouts


@dataclass(frozen=True, slots=True)
class SweepResult:
    """How many jobs a sweep found, and the moves that it applied, each with the job as it was before."""

    found: int
    moves: Sequence[tuple[Job, Move]]


@dataclass(frozen=True, slots=True)
class DeclareServices:
    """Store the services, pools and groups of the config, at startup. Run-time overrides (limit, pause) still apply.
    Returns the resulting `Rules`.

    Refused if `based_on` is given and the rules now have another version. If the declaration changes anything, the
    epochs of the scopes in `moved` are raised, so that steps which these scopes granted earlier can no longer be
    started.
    """

    services: tuple[ServiceRules, ...]
    pools: Mapping[str, int]
    based_on: int | None = None
    moved: frozenset[str] = frozenset()
    pool_rates: Mapping[str, Rate] = field(default_factory=dict)
    groups: Mapping[str, GroupRules] = field(default_factory=dict)
    plan_rates: Mapping[str, Rate] = field(default_factory=dict)

    @property
    def rules(self) -> Rules:
        """The rules that are declared, without overrides and automatic limits."""
        return Rules(
            {service.service: service for service in self.services},
            self.pools,
            groups=self.groups,
            pool_rates=self.pool_rates,
            plan_rates=self.plan_rates,
        )


@dataclass(frozen=True, slots=True)
class Override:
    """Set the limit of one service, or pause or unpause it, until the override is lifted. A value of None leaves the
    limit or the pause unchanged. Returns the resulting `Rules`."""

    service: str
    limit: int | None = None
    paused: bool | None = None
    lift_limit: bool = False


@dataclass(frozen=True, slots=True)
class OverrideRates:
    """Set rates until the overrides are lifted, which a value of None does. Returns the resulting `Rules`.

    Refused if the rules have another version than `based_on`. The epochs of the scopes in `moved` are raised, as by
    `DeclareServices`.
    """

    rates: Mapping[RateOf, Rate | None]
    based_on: int
    moved: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Adapt:
    """Set the automatic limit of a service. Returns the new version of the rules. Refused if the service is not
    declared, or if its automatic limit is no longer `was` (None: not set yet), because another leader has changed
    it."""

    service: str
    was: int | None
    adapted: Adapted


@dataclass(frozen=True, slots=True)
class RequestRebuild:
    """Ask the leader to rebuild this scope from the database soon. Refused if the scope was never built."""

    scope: str


@dataclass(frozen=True, slots=True)
class CreateBatch:
    """Create a batch, in one atomic commit with the submits of its items. Raises KeyTaken if another process created a
    batch with the same idempotency key; then nothing is stored."""

    batch: Batch
    items: tuple[BatchItem, ...]
    idempotency_key: str | None = None
    body_hash: str | None = None


@dataclass(frozen=True, slots=True)
class SettleBatch:
    """Store the final counts of a batch. Refused if the batch has open jobs or is already settled. When a later move
    begins a new round of one of its jobs, the same commit deletes the counts, so a batch is settled only while all its
    jobs have ended."""

    batch_id: str
    now: float


@dataclass(frozen=True, slots=True)
class PruneBatches:
    """Delete batches that ended before this time, at most `limit`. Their jobs are kept. Returns the number of deleted
    batches."""

    finished_before: float
    limit: int


@dataclass(frozen=True, slots=True)
class CreateKey:
    """Store a key. Refused if a key with the same id exists."""

    key: Key


@dataclass(frozen=True, slots=True)
class RevokeKey:
    """Revoke a key and its tickets. Refused if the key does not exist or is already revoked."""

    key_id: str
    now: float


@dataclass(frozen=True, slots=True)
class IssueTicket:
    """Store a ticket, which can be used once in place of its key until it expires. Also deletes expired tickets."""

    hash: str
    key_id: str
    expires_at: float


@dataclass(frozen=True, slots=True, eq=False)
class UseTicket:
    """Use up a ticket. Returns the id of its key. Refused if the ticket is unknown, used or expired.

    Two instances never compare equal, so that one use of a ticket never gets the outcome of another use.
    """

    hash: str
    now: float


@dataclass(frozen=True, slots=True)
class Audit:
    """Store an audit record. It may be in one batch with the transition that it records. If a record with this id
    exists, nothing changes."""

    record: AuditRecord


@dataclass(frozen=True, slots=True)
class AuditOutcome:
    """Store the outcome of an audited action. Refused if there is no such record."""

    audit_id: str
    outcome: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChangeReader:
    """Change the reader of a job that a front submitted with this idempotency key (see `domain/front_readers.py`).
    Refused if the job's reader is not `was`."""

    user_id: str
    key: str
    was: str
    reader: str


@dataclass(frozen=True, slots=True)
class Erase:
    """Erase what ended jobs of fronts hold of their requests and answers: input, results, their files, messages of
    errors, and idempotency key. Their metrics stay. Jobs that have not ended are left alone. Returns the number of
    erased jobs."""

    job_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RegisterProcess:
    """Register a process or renew its registration. `seen_at` is set by the database clock. `drain_asked` is not
    changed. Returns `drain_asked`, as stored."""

    record: ProcessRecord


@dataclass(frozen=True, slots=True)
class DeregisterProcess:
    """Delete the registration of a process that has shut down cleanly, so that it does not count as dead."""

    name: str


@dataclass(frozen=True, slots=True)
class RequestDrain:
    """Ask a process to drain. The process reads the request when it next renews its registration. Refused if the
    process is not registered."""

    name: str
    on: bool


@dataclass(frozen=True, slots=True)
class PruneRecords:
    """Delete audit records older than `audit_before`, at most `limit`, and registrations of processes not seen since
    `seen_before`. Returns the number of deleted audit records."""

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
    | FireTimers
    | PromoteWaiting
    | EndHolds
    | Prune
    | RaiseEpoch
    | DeclareServices
    | Override
    | OverrideRates
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
    | ChangeReader
    | Erase
    | RegisterProcess
    | DeregisterProcess
    | RequestDrain
    | PruneRecords
    | OpenSession
    | CloseSession
    | RecordMinuteStats
    | RollUpUsage
    | PruneUsage
    | SetBudget
    | ReleaseHeld
    | SweepBudgets
    | WarnBudget
    | CreateFile
    | RenewFile
    | CreatePart
    | FinishPart
    | CompleteFile
    | DeleteFile
    | SweepFiles
    | ForgetArtifacts
    | CreateFileBatch
    | ChangeFileBatch
    | PruneFileBatches
    | RecordEvent
    | SaveEndpoint
    | DeclareEndpoints
    | DeleteEndpoint
    | DisableEndpoint
    | ClaimDeliveries
    | RecordAttempt
    | Replay
    | PruneDeliveries
    | SaveSchedule
    | DeclareSchedules
    | DeleteSchedule
    | FireSchedule
)
