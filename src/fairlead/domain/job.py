"""A job, its steps and its attempts: the nouns of the truth.

A `Job` is the small row that moves; its input, its steps' results and its attempts' errors are insert-only records
beside it. Nothing here changes a job: only `transitions` does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any

import orjson

from fairlead.domain.records import Word, record


class JobStatus(Word):
    SCHEDULED = "SCHEDULED"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    RETRYING = "RETRYING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def finished(self) -> bool:
        return self in FINISHED


FINISHED = frozenset({JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED})
OPEN = tuple(status for status in JobStatus if status not in FINISHED)
WAITING = tuple(status for status in OPEN if status is not JobStatus.RUNNING)
"""Of these `server.max_waiting_per_user` admits so many."""


class Priority(Word):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"

    @property
    def band(self) -> int:
        """1 is served before 2 before 3. Band 0 is not a priority: it is where `retries = "first"` puts retries."""
        return _BANDS[self]

    @property
    def raised(self) -> Priority:
        """One band up; high stays high."""
        return _BY_BAND[max(1, self.band - 1)]

    @classmethod
    def of_band(cls, band: int) -> Priority:
        return _BY_BAND[band]


class PrioritySource(Word):
    """Who said which priority a job has."""

    GIVEN = "given"
    HOOK = "hook"
    CONFIG = "config"
    SERVICE = "service"
    FALLBACK = "fallback"
    DEFAULT = "default"


_BANDS = {Priority.HIGH: 1, Priority.MEDIUM: 2, Priority.LOW: 3}
_BY_BAND = {band: priority for priority, band in _BANDS.items()}


@record
class Job:
    """The job's row. Times are seconds since the epoch, UTC.

    `run` is the fence: every transition but a progress report raises it, so (id, run) names one state of one job.
    `attempt` counts the calls made for the current step in the current `round`; a resume or re-run begins a new round.
    `timer_at` is when time alone must move the job: due, backoff over, waited too long, or deadline passed.
    `region` is where the first call of the step `region_step` goes, unless it waited `spill_after` seconds for it
    (`spilled_at`); `allowed_regions` are never left. `call_region` is where the call under way is.
    `goes_back` is set while one step alone is run again: how the job stood before (`domain.reruns`).
    `turn` is set on a turn alone: the process whose caller waits for the slot, or has it.
    `priority_source` says where `original_priority` came from; None if nobody wrote it down.
    """

    id: str
    feature_name: str
    user_id: str
    steps: tuple[str, ...]
    priority: Priority = Priority.MEDIUM
    original_priority: Priority = Priority.MEDIUM
    status: JobStatus = JobStatus.PENDING
    seq: int = 0
    step: int = 0
    run: int = 0
    attempt: int = 0
    round: int = 0
    created_at: float = 0.0
    queued_at: float | None = None
    waiting_since: float | None = None
    scheduled_at: float | None = None
    promoted_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    last_progress_at: float | None = None
    timer_at: float | None = None
    deadline_at: float | None = None
    lease: str | None = None
    worker: str | None = None
    call_started_at: float | None = None
    call_deadline: float | None = None
    retryable: bool | None = None
    error: Mapping[str, Any] | None = None
    progress: Mapping[str, Any] | None = None
    cost: float | None = None
    weight: float = 1.0
    region: str | None = None
    allowed_regions: tuple[str, ...] | None = None
    priority_source: str | None = None
    region_step: int = 0
    spill_after: float | None = None
    call_region: str | None = None
    spilled_at: float | None = None
    goes_back: Mapping[str, Any] | None = None
    turn: str | None = None

    @property
    def service(self) -> str:
        """The service of the current step; of the last one when all are done."""
        return self.steps[self.step] if self.step < len(self.steps) else self.steps[-1]

    @property
    def bound_to(self) -> tuple[str, ...] | None:
        """The regions that the next call of its current step may go to; None: any."""
        if self.region is not None and self.asks_for_region(self.step, self.attempt):
            return (self.region,)
        return self.allowed_regions

    def bound_within(self, regions: Collection[str]) -> tuple[str, ...] | None:
        """The same, of a service that has these regions now: one that it has no more is not asked for, only kept to if
        nothing else is allowed."""
        bound = self.bound_to
        if regions and bound == (self.region,) and self.region not in regions:
            return self.allowed_regions
        return bound

    def asks_for_region(self, step: int, attempt: int) -> bool:
        """Whether the next call, of this step after so many, is the one that `region` is about."""
        return self.region is not None and step == self.region_step and not attempt and self.spilled_at is None

    @property
    def rank(self) -> int:
        """Within one user: automatic retries, then jobs under way, then arrivals."""
        if self.attempt:
            return RANK_RETRY
        return RANK_UNDER_WAY if self.step else RANK_ARRIVAL

    @property
    def idempotency_key(self) -> str:
        """What the call carries: the same for all attempts of one step in one round."""
        return f"{self.id}:{self.step}:{self.round}"


RANK_RETRY, RANK_UNDER_WAY, RANK_ARRIVAL = 0, 1, 2


@record
class StepResult:
    """One step that is done. Inserted once per round, never changed. Kept as JSON text: most readers only pass it
    on."""

    job_id: str
    step: int
    service: str
    round: int
    data_json: str
    metrics_json: str
    finished_at: float
    lease: str | None = None

    @property
    def data(self) -> Any:
        return orjson.loads(self.data_json)

    @property
    def metrics(self) -> dict[str, Any]:
        return dict(orjson.loads(self.metrics_json))

    @property
    def key(self) -> str:
        return step_key(self.step, self.service)


@record
class Attempt:
    """One call that did not succeed, and why."""

    job_id: str
    step: int
    service: str
    round: int
    attempt: int
    error: Mapping[str, Any]
    started_at: float | None
    ended_at: float
    worker: str | None = None
    region: str | None = None


@record
class JobRecord:
    """A job with everything kept beside it: what `GET /api/v1/jobs/{id}` shows."""

    job: Job
    input_json: str
    metadata_json: str | None
    results: tuple[StepResult, ...] = ()
    attempts: tuple[Attempt, ...] = ()

    @property
    def input_data(self) -> Any:
        return orjson.loads(self.input_json)

    @property
    def metadata(self) -> dict[str, Any] | None:
        return None if self.metadata_json is None else dict(orjson.loads(self.metadata_json))

    @property
    def context(self) -> dict[str, Any]:
        return context_of(self.results)

    @property
    def history(self) -> tuple[StepResult, ...]:
        """What a later round has replaced, in the order of steps and rounds."""
        newest = {result.step: result.round for result in sorted(self.results, key=lambda result: result.round)}
        earlier = [result for result in self.results if result.round < newest[result.step]]
        return tuple(sorted(earlier, key=lambda result: (result.step, result.round)))

    @property
    def result(self) -> Any:
        """The last step's data, once the job is completed."""
        if self.job.status is not JobStatus.COMPLETED or not self.results:
            return None
        return max(self.results, key=lambda result: (result.step, result.round)).data


@record
class Hold:
    """A slot kept taken until a deadline, because a call whose worker is gone may still be computing."""

    job_id: str
    service: str
    region: str | None
    until: float
    id: str = field(default="")
    band: int = 2


def step_key(step: int, service: str) -> str:
    return f"step_{step}_{service}"


def context_of(results: tuple[StepResult, ...]) -> dict[str, Any]:
    """Earlier steps' results by `step_0_prompt_enhancer`; of several rounds the newest."""
    newest: dict[str, StepResult] = {}
    for result in sorted(results, key=lambda result: (result.step, result.round)):
        newest[result.key] = result
    return {
        key: {"status": "SUCCESS", "data": result.data, "metrics": result.metrics} for key, result in newest.items()
    }
