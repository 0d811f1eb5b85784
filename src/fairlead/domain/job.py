"""Jobs, step results and attempts.

A `Job` is the small row that changes; its input, the results of its steps and the errors of its attempts are
insert-only records. Only the functions in `transitions` change a job.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any

import orjson

from fairlead.domain.fast_dataclass import StringEnum, fast_dataclass
from fairlead.domain.webhooks import JobWebhook


class JobStatus(StringEnum):
    SCHEDULED = "SCHEDULED"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    RETRYING = "RETRYING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @cached_property
    def finished(self) -> bool:
        return self in FINISHED


FINISHED = frozenset({JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED})
OPEN = tuple(status for status in JobStatus if status not in FINISHED)
WAITING = tuple(status for status in OPEN if status is not JobStatus.RUNNING)
"""The statuses counted by `server.max_waiting_per_user`."""


class Priority(StringEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"

    @cached_property
    def band(self) -> int:
        """The number of the band: 1 is served before 2, and 2 before 3. Band 0 is not a priority: it holds the retries
        of services whose retries go before all other steps."""
        return _BANDS[self]

    @property
    def raised(self) -> Priority:
        """The priority one band up. `high` stays `high`."""
        return _BY_BAND[max(1, self.band - 1)]

    @classmethod
    def of_band(cls, band: int) -> Priority:
        return _BY_BAND[band]


class PrioritySource(StringEnum):
    """Who chose the priority of a job."""

    GIVEN = "given"
    HOOK = "hook"
    CONFIG = "config"
    SERVICE = "service"
    FALLBACK = "fallback"
    DEFAULT = "default"


BUDGET_SPENT = "BUDGET_SPENT"
"""The code of the error of a job that is held, or of a turn that failed, because a budget is spent."""

_BANDS = {Priority.HIGH: 1, Priority.MEDIUM: 2, Priority.LOW: 3}
_BY_BAND = {band: priority for priority, band in _BANDS.items()}


@fast_dataclass
class Job:
    """The job's row. Times are seconds since the epoch, UTC.

    `run` is the fence: every change of the job's state raises it, so (id, run) names one state of one job. `attempt`
    counts the calls of the current step in the current `round`; a resume or re-run begins a new round. `timer_at` is
    the time at which the next timer of the job fires: the job is due, its backoff ends, it has waited too long, or its
    deadline passes.

    Calls go to `allowed_regions` only. The first call of step `region_step` goes to `region`. If the step has waited
    `spill_after` seconds for that region, it may go to the other allowed regions too, and `spilled_at` is set.
    `call_region` is the region of the running call.

    `goes_back` is the state to which the job returns after the re-run of one step (see `domain.reruns`). `turn` is the
    owner of a turn (see `turns.owner`), and None for other jobs. `priority_source` is where `original_priority` came
    from, and None for jobs that predate the field. `group` is the path of the user's group when the job was submitted
    (see `domain.groups`), `plan` the name of the user's plan then. `webhook` is None if no webhook wants the events of
    the job. `cost` is what the caller stated for each step, `costs` what was computed for each step from the input.
    `trace` is the trace that the job belongs to (see `domain.trace_context`). The job fails unless it starts within
    `start_within` seconds after it was created.
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
    group: str | None = None
    webhook: JobWebhook | None = None
    costs: tuple[float | None, ...] | None = None
    trace: str | None = None
    plan: str | None = None
    start_within: float | None = None

    @property
    def start_by(self) -> float | None:
        """The time by which the job must have started; None if there is none, or if it has started or was retried."""
        if self.start_within is None or self.started_at is not None or self.round:
            return None
        return self.created_at + self.start_within

    @property
    def step_cost(self) -> float | None:
        """The cost of the current step in the unit of its service: the one that the job states, else the one that was
        computed from its input; None if there is neither."""
        if self.cost is not None or self.costs is None:
            return self.cost
        return self.costs[self.step] if self.step < len(self.costs) else None

    @property
    def service(self) -> str:
        """The service of the current step. Once all steps are done, the service of the last step."""
        try:
            return self.steps[self.step]
        except IndexError:
            return self.steps[-1]

    @property
    def is_set_aside(self) -> bool:
        """Whether this is a turn that is out of the queue because its caller is absent, with its place kept until
        `timer_at`. `error` is then the error with which it fails if the caller does not return."""
        return self.status is JobStatus.SCHEDULED and self.turn is not None

    @property
    def is_held(self) -> bool:
        """Whether the job waits for the next window of a budget."""
        return self.status is JobStatus.RETRYING and (self.error or {}).get("code") == BUDGET_SPENT

    @property
    def bound_to(self) -> tuple[str, ...] | None:
        """The regions that the next call of the current step may go to; None means any."""
        if self.region is not None and self.asks_for_region(self.step, self.attempt):
            return (self.region,)
        return self.allowed_regions

    def bound_within(self, regions: Collection[str]) -> tuple[str, ...] | None:
        """Like `bound_to`, given the regions that the service has now. A preferred region that no longer exists is
        ignored, unless it is the only allowed region."""
        bound = self.bound_to
        if regions and bound == (self.region,) and self.region not in regions:
            return self.allowed_regions
        return bound

    def prefers_within(self, regions: Collection[str]) -> str | None:
        """The region that the next call prefers, given the regions that the service has now. None if it prefers none,
        or if only one region is allowed."""
        return self.region if self.bound_within(regions) == (self.region,) != self.allowed_regions else None

    def asks_for_region(self, step: int, attempt: int) -> bool:
        """Whether the next call of this step, after `attempt` earlier calls, goes to the job's `region`."""
        return self.region is not None and step == self.region_step and not attempt and self.spilled_at is None

    @property
    def rank(self) -> int:
        """The rank of the step among the steps of one user: automatic retries go first, then jobs past their first
        step, then new jobs."""
        if self.attempt:
            return RANK_RETRY
        return RANK_UNDER_WAY if self.step else RANK_ARRIVAL

    @property
    def idempotency_key(self) -> str:
        """The idempotency key sent with each call. All attempts of one step in one round send the same key."""
        return f"{self.id}:{self.step}:{self.round}"


RANK_RETRY, RANK_UNDER_WAY, RANK_ARRIVAL = 0, 1, 2


@fast_dataclass
class StepResult:
    """The result of one step. It is inserted once per round and never changed. The data stays JSON text, because most
    readers only pass it on. `files` are the ids of the files that the step made or that the result names; they are
    written, and not read back."""

    job_id: str
    step: int
    service: str
    round: int
    data_json: str
    metrics_json: str
    finished_at: float
    lease: str | None = None
    files: tuple[str, ...] = ()

    @property
    def data(self) -> Any:
        return orjson.loads(self.data_json)

    @property
    def metrics(self) -> dict[str, Any]:
        return dict(orjson.loads(self.metrics_json))

    @property
    def key(self) -> str:
        return step_key(self.step, self.service)


@fast_dataclass
class Attempt:
    """One failed call and its error."""

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


@fast_dataclass
class JobRecord:
    """A job with its input, results and attempts, as shown by `GET /api/v1/jobs/{id}`."""

    job: Job
    input_json: str
    metadata_json: str | None
    results: tuple[StepResult, ...] = ()
    attempts: tuple[Attempt, ...] = ()

    @property
    def size(self) -> int:
        """The size of the input and the results, in characters."""
        return len(self.input_json) + sum(len(result.data_json) for result in self.results)

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
        """The results that a later round replaced, ordered by step and round."""
        newest = {result.step: result.round for result in sorted(self.results, key=lambda result: result.round)}
        earlier = [result for result in self.results if result.round < newest[result.step]]
        return tuple(sorted(earlier, key=lambda result: (result.step, result.round)))

    @property
    def result(self) -> Any:
        """The data of the last step if the job is completed, else None."""
        if self.job.status is not JobStatus.COMPLETED or not self.results:
            return None
        return max(self.results, key=lambda result: (result.step, result.round)).data


@fast_dataclass
class Hold:
    """A slot that stays taken until a deadline, because a call whose worker is gone may still be running."""

    job_id: str
    service: str
    region: str | None
    until: float
    id: str = field(default="")
    band: int = 2


def hold_of(job: Job, now: float, seconds: float | None = None) -> Hold | None:
    """The hold of a call whose worker is gone, for `seconds` or until the deadline of the call, whichever comes first.
    None if that time has passed."""
    until = job.call_deadline
    if until is not None and seconds is not None:
        until = min(until, now + seconds)
    if until is None or until <= now:
        return None
    return Hold(job.id, job.service, job.call_region, until, f"{job.id}:{job.run}", job.priority.band)


def step_key(step: int, service: str) -> str:
    return f"step_{step}_{service}"


def context_of(results: tuple[StepResult, ...]) -> dict[str, Any]:
    """The results of earlier steps by key, such as `step_0_prompt_enhancer`. If a step ran in several rounds, the
    newest result is used."""
    newest: dict[str, StepResult] = {}
    for result in sorted(results, key=lambda result: (result.step, result.round)):
        newest[result.key] = result
    return {
        key: {"status": "SUCCESS", "data": result.data, "metrics": result.metrics} for key, result in newest.items()
    }
