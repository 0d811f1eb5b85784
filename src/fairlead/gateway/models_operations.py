"""The shapes of what operators and probes ask: dead letters, queues, health."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field, StrictBool, StrictStr, model_validator

from fairlead.gateway.models import JOB_ID, MOMENT, JobError, Shape, example
from fairlead.runtime.dead import DeadFilters

Text = Annotated[StrictStr, Field(min_length=1, max_length=255)]


class DeadFilter(Shape):
    """Which dead jobs: by id, by filters, or all of them; one of the three must be said."""

    job_ids: list[UUID] | None = Field(None, max_length=10_000, description="These alone; an empty list is none.")
    user_id: Text | None = None
    feature_name: Text | None = None
    service: Text | None = Field(None, description="Whose step failed.")
    error_code: Text | None = Field(None, description="Of the last error, such as `HTTP_503`.")
    error_like: Text | None = Field(
        None, description="What their messages have in common, with `#` for numbers and ids."
    )
    retryable: StrictBool | None = Field(None, description="Whether its user may resume it.")
    since: Text | None = Field(None, description="Failed at this moment or later: ISO 8601.")
    until: Text | None = Field(None, description="Failed before this moment: ISO 8601.")
    all: StrictBool = Field(False, description="Every dead job.")
    dry_run: StrictBool = Field(False, description="Only count, and show a few.")

    @model_validator(mode="after")
    def _one_way_to_choose(self) -> DeadFilter:
        filtered = any(value is not None for value in self._filters().values())
        if sum((self.job_ids is not None, filtered, self.all)) != 1:
            raise ValueError('say which: either job_ids, or user_id and feature_name or other filters, or "all": true')
        return self

    def _filters(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in DeadFilters.__annotations__}

    def chosen(self) -> dict[str, Any]:
        """As the application's arguments."""
        job_ids = None if self.job_ids is None else [str(job_id) for job_id in self.job_ids]
        return {"job_ids": job_ids, "all": self.all, **self._filters()}


class PurgeRequest(DeadFilter):
    model_config = example(feature_name="image_gen", dry_run=True)


class RequeueRequest(DeadFilter):
    model_config = example(job_ids=[JOB_ID], from_start=False)

    from_start: StrictBool = Field(False, description="Run all steps again, not only from the failed one on.")


class DeadSample(Shape):
    """One of those that a dry run counted."""

    job_id: str
    user_id: str
    feature_name: str
    service: str
    finished_at: str
    error: JobError | None


_SAMPLE = [
    {
        "job_id": JOB_ID,
        "user_id": "ada",
        "feature_name": "full_pipeline",
        "service": "image_gen",
        "finished_at": MOMENT,
        "error": {"code": "HTTP_503", "message": "busy"},
    }
]


class Requeued(Shape):
    model_config = example(requeued=12, dry_run=True, sample=_SAMPLE, until=MOMENT)

    requeued: int
    dry_run: bool
    sample: list[DeadSample] | None = Field(None, description="A few of them; of a dry run only.")
    until: str | None = Field(
        None, description="Of a dry run without `job_ids`: sent with the action, it leaves alone what failed since."
    )
    missing: list[str] | None = Field(None, description="Of `job_ids` only: those that are no dead letters.")


class Purged(Shape):
    model_config = example(purged=12, dry_run=False)

    purged: int
    dry_run: bool
    sample: list[DeadSample] | None = Field(None, description="A few of them; of a dry run only.")
    until: str | None = Field(
        None, description="Of a dry run without `job_ids`: sent with the action, it leaves alone what failed since."
    )
    missing: list[str] | None = Field(None, description="Of `job_ids` only: those that are no dead letters.")


class Slot(BaseModel):
    """A call that holds a slot."""

    job_id: str
    user_id: str
    worker: str
    step: int
    region: str | None
    since: str
    lease: str
    lease_expires_at: str


class Override(BaseModel):
    """What operators changed while it runs; null: it is as the configuration says."""

    limit: int | None
    paused: bool | None


class Lanes(BaseModel):
    """Null: its dispatcher cannot be asked now."""

    main: int | None
    retry: int | None = Field(description="Retries that go first.")


class Breaker(BaseModel):
    state: Literal["working", "resting", "probing"]
    failures: int = Field(description="In a row.")
    resting_until: str | None = Field(description="Nothing is sent there before.")


class ServiceRegion(BaseModel):
    """One region of one service."""

    limit: int
    weight: float = Field(
        description="By which work is spread that may go to several; where all are the same: it is not."
    )
    pool: str | None = Field(description="Whose slots calls here take as well.")
    running: int | None = Field(
        description="Slots taken, also by what is held. Null: its dispatcher cannot be asked now."
    )
    waiting: Lanes = Field(description="What may run here and not in every region.")
    breaker: Breaker | None
    latency: float | None = Field(description="Seconds, of late calls that succeeded.")


class RegionOfService(ServiceRegion):
    service: str


class RegionStatus(Shape):
    model_config = example(
        region="us",
        limit=1,
        running=1,
        waiting={"main": 3, "retry": 1},
        waiting_anywhere={"main": 12, "retry": 0},
        services=[
            {
                "service": "inference",
                "limit": 1,
                "weight": 1.0,
                "pool": None,
                "running": 1,
                "waiting": {"main": 3, "retry": 1},
                "breaker": {"state": "working", "failures": 0, "resting_until": None},
                "latency": 2.4,
            }
        ],
        unknown=None,
    )

    region: str
    limit: int
    running: int | None
    waiting: Lanes
    waiting_anywhere: Lanes = Field(description="What may run in any region of these services.")
    services: list[RegionOfService]
    unknown: str | None = Field(description="Why slots and lines are not known now: their numbers are null.")


class LimitChange(BaseModel):
    at: str
    limit: int
    why: str


class AutoLimit(BaseModel):
    """Of a limit that is found by itself."""

    min: int
    max: int
    limit: int
    history: list[LimitChange] = Field(description="The last 20 changes, the newest last.")


class ServiceStatus(BaseModel):
    service: str
    limit: int
    in_use: int | None = Field(description="Null: its dispatcher cannot be asked now; so are `held` and what waits.")
    held: int | None
    paused: bool
    override: Override | None
    auto: AutoLimit | None = Field(description='Null unless the configuration says limit = "auto".')
    order: str
    pool: str | None = Field(description="Whose slots its calls take as well, in all or (see `regions`) some regions.")
    shards: list[str] = Field(description="Where its line is: one shard, or several if it is split by priority.")
    waiting: dict[str, int | None] = Field(description="By band: retry, high, medium, low.")
    running: list[Slot]
    mean_duration: float | None = Field(description="Seconds.")
    regions: dict[str, ServiceRegion]


class PoolStatus(BaseModel):
    limit: int
    in_use: int | None


class Leader(BaseModel):
    leader: str | None
    term: int | None
    problem: str | None


class LoopCounts(BaseModel):
    """Since this process began."""

    scanned: int
    queued: int
    failed: int


class QueueStatus(BaseModel):
    services: list[ServiceStatus]
    pools: dict[str, PoolStatus]
    jobs: dict[str, int] = Field(description="By status.")
    worker: str | None
    draining: bool
    leaders: dict[str, Leader] = Field(description="By shard; empty when one process dispatches from its memory.")
    loops: dict[str, dict[str, LoopCounts]] = Field(description="Of this process's manager: by shard and loop.")
    unknown: str | None = Field(
        description="Why slots and lines are not known now, all or some: their numbers are null."
    )


class Alive(Shape):
    model_config = example(status="ok")

    status: str


class Readiness(Shape):
    model_config = example(ready=True, checks={"store": "ok", "dispatcher": "ok", "worker": "ok"})

    ready: bool
    checks: dict[str, str]
