"""Transitions as plain data. A store applies each one as a single conditional write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlead.domain.calls import CallEnd
from fairlead.domain.fast_dataclass import fast_dataclass
from fairlead.domain.job import Attempt, Hold, Job, JobStatus, Priority, StepResult
from fairlead.domain.webhooks import CANCELLED, COMPLETED, FAILED, JobWebhook


@fast_dataclass
class Submit:
    """Insert a new job. If the user's idempotency key was used before, no job is created, and the outcome names the
    earlier job.

    `ordered` means that the service is FIFO. The commit then also reports, as `late` in the outbox rows, whether
    earlier jobs of the service might still be missing from the queue. `files` are the ids of the files that the input
    names; the submit fails if one of them does not exist.
    """

    job: Job
    input_json: str
    metadata_json: str | None = None
    idempotency_key: str | None = None
    body_hash: str | None = None
    max_waiting: int = 0
    ordered: bool = False
    files: tuple[str, ...] = ()


@fast_dataclass
class Start:
    """Start a claimed step. The start is written before the handler runs. It is refused if the job or the epoch has
    changed, or if a budget is spent. `service` and `user_id` tell whether a budget may concern the step; None means
    that this is unknown."""

    job_id: str
    step: int
    run: int
    lease: str
    scope: str
    worker: str
    timeout: float
    region: str | None = None
    service: str | None = None
    user_id: str | None = None


@fast_dataclass
class Move:
    """Change the state of a job. Covers every change except submitting and starting.

    All fields are written to the job's row, except that a None in `queued_at`, `priority`, `promoted_at`,
    `last_progress_at` or `spilled_at` leaves the stored value unchanged. The lease, worker, call times, call region and
    progress of the job are cleared. `call` is the call that the move ends; it becomes a row of the usage ledger. With
    `tells_line` the same transaction writes an outbox row, because the job enters the queue, leaves it or moves within
    it. A `webhook` is set only if the move ends its job; the same transaction then writes the deliveries of the event.
    """

    job_id: str
    run: int
    verb: str
    status: JobStatus
    step: int
    attempt: int
    round: int
    tells_line: bool
    timer_at: float | None = None
    waiting_since: float | None = None
    finished_at: float | None = None
    retryable: bool | None = None
    error: Mapping[str, Any] | None = None
    queued_at: float | None = None
    priority: Priority | None = None
    promoted_at: float | None = None
    last_progress_at: float | None = None
    goes_back: Mapping[str, Any] | None = None
    result: StepResult | None = None
    failed: Attempt | None = None
    hold: Hold | None = None
    spilled_at: float | None = None
    call: CallEnd | None = None
    webhook: JobWebhook | None = None

    @property
    def event(self) -> str | None:
        """The event that this move causes, if the job has a webhook. The end of a re-run that was given up is none: the
        job is as it was before."""
        return None if self.webhook is None or self.verb == "give_up" else _EVENTS.get(self.status)


_EVENTS = {JobStatus.COMPLETED: COMPLETED, JobStatus.FAILED: FAILED, JobStatus.CANCELLED: CANCELLED}


@fast_dataclass
class Progress:
    """Store the progress that a running handler reported. Refused if the job is no longer at `run`. This is not a
    change of state and does not raise `run`."""

    job_id: str
    run: int
    progress: Mapping[str, Any]


@fast_dataclass
class Prioritise:
    """Set the priority of a job that is not in the queue now. The new priority applies when the job next enters the
    queue; a call that is running continues. This is not a change of state and does not raise `run`.

    If `queued_at` or `promoted_at` is None, the stored time is left unchanged.
    """

    job_id: str
    run: int
    priority: Priority
    queued_at: float | None = None
    promoted_at: float | None = None


@fast_dataclass
class Adopt:
    """Record that another process now serves the caller of a turn. Refused if the job has changed or is not a turn.
    This is not a change of state: the turn keeps its position in the queue, or its slot."""

    job_id: str
    run: int
    process: str


@fast_dataclass
class Delete:
    """Delete a finished job with its results, attempts and input."""

    job_id: str
