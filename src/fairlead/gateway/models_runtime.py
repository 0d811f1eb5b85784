"""Response models of the running system: queues, regions, workers, processes, health."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, StrictBool

from fairlead.domain.rules import Change, Overridden
from fairlead.gateway.derived_models import Shape, example, fields_of
from fairlead.gateway.models import JOB_ID, MOMENT
from fairlead.gateway.models_rates import GroupState as GroupState
from fairlead.gateway.models_rates import RateShape, RateUseShape, SharedRateShape

WORKER = "gpu-host-1:4242:5f0c9a1e"
_PROCESS = {
    "name": WORKER,
    "roles": ["worker"],
    "host": "gpu-host-1",
    "pid": 4242,
    "version": "0.1.0",
    "started_at": MOMENT,
    "last_seen": MOMENT,
    "silent_for": 0.8,
    "alive": True,
    "clock_skew": -0.004,
    "details": {"event_loop_blocked": 0, "late_results": 0},
}
_CALL = {
    "service": "image_gen",
    "job_id": JOB_ID,
    "user_id": "ada",
    "step": 2,
    "since": MOMENT,
    "lease": "3:17",
    "lease_expires_at": MOMENT,
}


# ---------------------------------------------------------------- queues, regions and health


class _Lease(BaseModel):
    job_id: str
    user_id: str
    step: int
    since: str
    lease: str
    lease_expires_at: str


class Slot(_Lease):
    """A call that holds a slot."""

    worker: str
    region: str | None


@fields_of(Overridden)
class Override(BaseModel):
    """What an operator changed at runtime. A field is null where the configuration applies."""

    rate: RateShape | None
    user_rate: RateShape | None
    region_rates: dict[str, RateShape]


class Lanes(BaseModel):
    """Numbers of waiting jobs; null while the dispatcher cannot be reached."""

    main: int | None
    retry: int | None = Field(description="Retries, which go first.")


class Breaker(BaseModel):
    state: Literal["working", "resting", "probing"]
    failures: int = Field(description="Consecutive failures.")
    resting_until: str | None = Field(description="No calls go to the region before this time.")


class ServiceRegion(BaseModel):
    """One region of one service."""

    limit: int
    weight: float = Field(
        description="How work that may run in several regions is spread; without effect if all weights are equal."
    )
    pool: str | None = Field(description="Pool whose slots the calls also take.")
    rate: RateShape | None = Field(description="Calls and units in any window of time.")
    running: int | None = Field(
        description="Slots in use, including held ones. Null while the dispatcher cannot be reached."
    )
    waiting: Lanes = Field(description="Jobs that may run here, but not in every region.")
    breaker: Breaker | None
    latency: float | None = Field(description="Mean seconds of recent successful calls.")


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
                "rate": None,
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
    waiting_anywhere: Lanes = Field(description="Jobs that may run in any region of these services.")
    services: list[RegionOfService]
    unknown: str | None = Field(description="Why slots and queues are unknown; their numbers are null then.")


@fields_of(Change)
class LimitChange(BaseModel):
    """One change of an automatic limit, which Fairlead discovers."""


class AutoLimit(BaseModel):
    """The state of an automatic limit, which Fairlead discovers."""

    min: int
    max: int
    limit: int
    history: list[LimitChange] = Field(description="The last 20 changes, newest last.")


class ModelFigures(BaseModel):
    """What one model did in the last five minutes, in all processes."""

    calls: int
    tokens_in: int
    tokens_out: int
    tokens_per_second: float | None = Field(description="Output tokens of all requests together.")
    request_tokens_per_second: float | None = Field(description="Output tokens of one request, after its first token.")
    first_token_p50: float | None = Field(description="Seconds from the call to the first token of a stream.")
    first_token_p95: float | None


class _Service(BaseModel):
    service: str
    limit: int
    in_use: int | None = Field(
        description="Slots in use, including held ones. Null while the dispatcher cannot be reached, like `held` and "
        "the numbers of waiting jobs."
    )
    held: int | None
    paused: bool
    override: Override | None
    auto: AutoLimit | None = Field(description='Null unless the configuration has limit = "auto".')
    order: str
    pool: str | None = Field(
        description="Pool whose slots the calls also take, in all regions or in those that `regions` lists."
    )
    shards: list[str] = Field(description="Shards of the queue: one, or several if it is split by priority.")
    mean_duration: float | None = Field(description="Seconds.")
    models: dict[str, ModelFigures] = Field(
        description="Only services of the OpenAI front: what their models did in the last five minutes."
    )
    groups: dict[str, GroupState] = Field(description="Those that `[groups]` declares and that have members here.")
    rate: RateShape | None = Field(description="Calls and units in any window of time.")
    user_rate: RateShape | None = Field(description="The same for each user.")
    unit: str = Field(description="The unit of its costs and rates, such as tokens.")
    rates: list[RateUseShape] = Field(description="The use of its rates, and the rests that upstreams asked for.")


class ServiceStatus(_Service):
    waiting: dict[str, int | None] = Field(description="By band: retry, high, medium, low.")
    running: list[Slot]
    regions: dict[str, ServiceRegion]


class PoolStatus(BaseModel):
    limit: int
    in_use: int | None


class Leader(BaseModel):
    leader: str | None
    term: int | None
    problem: str | None


class LoopLatency(BaseModel):
    count: int
    mean: float | None = Field(description="Seconds.")
    buckets: list[int] = Field(description="As in the metric fairlead_schedule_latency_seconds, not cumulative.")


class LoopCounts(BaseModel):
    """Counts of one of a manager's loops since the process started."""

    scanned: int
    queued: int
    failed: int
    latency: LoopLatency | None = Field(None, description="From `scheduled_at` until the job was queued; timers only.")


class _Process(BaseModel):
    """The fields that the queue status and the runtime statistics share."""

    pools: dict[str, PoolStatus]
    leaders: dict[str, Leader] = Field(description="By shard; empty if one process dispatches from its memory.")
    loops: dict[str, dict[str, LoopCounts]] = Field(
        description="Counts of the leading managers, by shard and loop, at most a few seconds old."
    )
    worker: str | None = Field(description="The responding process, if it runs a worker.")
    draining: bool = Field(description="Whether the responding process has stopped claiming.")
    unknown: str | None = Field(
        description="Why some or all slots and queues are unknown; their numbers are null then."
    )


class QueueStatus(_Process):
    services: list[ServiceStatus]
    shared_rates: list[SharedRateShape] = Field(description="The rates of pools, plans and groups.")
    jobs: dict[str, int] = Field(description="By status.")


class Alive(Shape):
    model_config = example(status="ok")

    status: str


class Readiness(Shape):
    model_config = example(ready=True, checks={"store": "ok", "dispatcher": "ok", "worker": "ok"})

    ready: bool
    checks: dict[str, str]


# ---------------------------------------------------------------- processes and statistics


class DrainRequest(Shape):
    model_config = example(on=True)

    on: StrictBool = Field(description="True: stop claiming jobs; false: claim again.")


class ProcessShape(BaseModel):
    """A process as it last registered. For a worker that has leases but no registration, little more than the name is
    known; the other fields are null."""

    name: str = Field(description="The `worker` of its leases.")
    roles: list[str] = Field(description="Any of api, worker and manager.")
    host: str | None
    pid: int | None
    version: str | None
    started_at: str | None
    last_seen: str | None = Field(description="By the database's clock.")
    silent_for: float | None = Field(description="Seconds since `last_seen`.")
    alive: bool = Field(description="Whether it was seen in the last ten seconds.")
    clock_skew: float | None = Field(description="Seconds by which its clock is ahead of the database's.")
    details: dict[str, Any]


class CallShape(_Lease):
    """A call that a worker is running."""

    service: str


class WorkerPoolShape(BaseModel):
    """One of several workers in a process. In its leases, `worker` is the name of the process, a slash, and the `name`
    of this pool."""

    name: str
    services: list[str]
    bands: list[str]
    regions: list[str] | None = Field(description="Null for all regions.")
    concurrency: int
    running: int = 0


class WorkerShape(ProcessShape):
    services: list[str]
    bands: list[str]
    concurrency: int | None
    pools: list[WorkerPoolShape] = Field(
        description="The workers of a process that has several or is bound to regions."
    )
    running: int | None = Field(description="Running calls, as reported by the process.")
    draining: bool | None = Field(description="Whether it has stopped claiming jobs.")
    drain_asked: bool | None = Field(
        description="Whether an operator requested it; the process reacts within two seconds."
    )
    calls: list[CallShape] = Field(description="From the dispatchers; empty where they cannot be reached.")


class Workers(Shape):
    data: list[WorkerShape]


class ManagerShape(ProcessShape):
    leads: list[str] = Field(description="Shards that it leads.")


class BandStats(BaseModel):
    waiting: int | None
    in_use: int | None
    held: int | None


class RegionStats(BaseModel):
    limit: int
    in_use: int | None
    held: int | None


class ServiceStats(_Service):
    bands: dict[str, BandStats] = Field(description="By band: retry, high, medium, low.")
    regions: dict[str, RegionStats]


class ScopeStats(BaseModel):
    """A scope, which is rebuilt as one unit: a service, a pool with its services, or the part of a split service on one
    shard."""

    shard: str
    epoch: int | None = Field(description="Raised by each rebuild; null if never built.")
    open: bool | None = Field(description="Whether steps are granted; null if unknown to this process.")
    rebuild_asked: bool
    leader: str | None = Field(description="Process that leads the shard.")


class Outbox(BaseModel):
    rows: int = Field(description="Changes that have not been applied to the queue.")
    age: float = Field(description="Seconds since the oldest.")


class QueueSizes(Shape):
    main: int = Field(description="Queued.")
    retry: int = Field(description="Waiting for a retry.")
    dead: int = Field(description="Failed; listed by GET /admin/queue-dead.")
    scheduled: int
    running: int


class Estimates(Shape):
    """The accuracy of the estimated waits of a service. `count` covers all estimates since the process started; the
    other fields cover the most recent ones."""

    count: int = Field(description="Estimates whose job has started, since the process started.")
    scored: int
    within_range: float = Field(description="Share of waits within the estimated range.")
    close: float = Field(description="Share of waits within the range, or off by at most a quarter or one second.")
    median_error: float = Field(description="As a share of the actual wait.")


class RuntimeStats(_Process):
    model_config = example(
        queues={"main": 16, "retry": 2, "dead": 7, "scheduled": 4, "running": 1},
        slots={"limit": 1, "in_use": 1, "held": 0},
        services=[
            {
                "service": "image_gen",
                "limit": 1,
                "in_use": 1,
                "held": 0,
                "paused": False,
                "override": None,
                "order": "fair",
                "pool": None,
                "shards": ["main"],
                "mean_duration": 21.4,
                "models": {},
                "bands": {"high": {"waiting": 2, "in_use": 1, "held": 0}},
                "regions": {},
            }
        ],
        pools={},
        scopes={
            "service:image_gen": {
                "shard": "main",
                "epoch": 3,
                "open": True,
                "rebuild_asked": False,
                "leader": "gpu-host-1:4243:77aa01bc",
            }
        },
        leaders={"main": {"leader": "gpu-host-1:4243:77aa01bc", "term": 12, "problem": None}},
        workers=[
            {
                **_PROCESS,
                "services": ["image_gen"],
                "bands": ["high", "medium", "low"],
                "concurrency": 100,
                "running": 1,
                "draining": False,
                "drain_asked": False,
                "calls": [_CALL],
            }
        ],
        managers=[{**_PROCESS, "name": "gpu-host-1:4243:77aa01bc", "roles": ["manager"], "leads": ["main"]}],
        gateways=[],
        outbox={"rows": 0, "age": 0.0},
        estimates={
            "image_gen": {"count": 812, "scored": 200, "within_range": 0.61, "close": 0.74, "median_error": 0.12}
        },
        loops={"main": {"timers": {"scanned": 310, "queued": 310, "failed": 0}}},
        worker=None,
        draining=False,
        unknown=None,
    )

    queues: QueueSizes
    slots: dict[str, int | None]
    services: list[ServiceStats]
    scopes: dict[str, ScopeStats]
    workers: list[WorkerShape]
    managers: list[ManagerShape]
    gateways: list[ProcessShape]
    outbox: Outbox
    estimates: dict[str, Estimates] = Field(description="Accuracy of the responding process's estimates, by service.")
