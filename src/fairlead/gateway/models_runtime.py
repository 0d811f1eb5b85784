"""The shapes of what runs: services by band and region, scopes, workers, managers, gateways."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field, StrictBool

from fairlead.gateway.models import JOB_ID, MOMENT, Shape, example
from fairlead.gateway.models_operations import AutoLimit, Leader, LoopCounts, Override, PoolStatus

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


class DrainRequest(Shape):
    model_config = example(on=True)

    on: StrictBool = Field(description="True: claim no more; false: claim again.")


class ProcessShape(BaseModel):
    """A process as it announced itself last. Of a worker that is known from its leases alone, the rest is null."""

    name: str = Field(description="The `worker` that its leases carry.")
    roles: list[str] = Field(description="What it does: api, worker, manager.")
    host: str | None
    pid: int | None
    version: str | None
    started_at: str | None
    last_seen: str | None = Field(description="By the database's clock.")
    silent_for: float | None = Field(description="Seconds since then.")
    alive: bool = Field(description="It was seen in the last ten seconds.")
    clock_skew: float | None = Field(description="Seconds that its clock is ahead of the database's.")
    details: dict[str, Any]


class CallShape(BaseModel):
    """A call that a worker has under way."""

    service: str
    job_id: str
    user_id: str
    step: int
    since: str
    lease: str
    lease_expires_at: str


class WorkerPoolShape(BaseModel):
    """One of several workers of a process. Its leases carry the process's name, a slash and this name."""

    name: str
    services: list[str]
    bands: list[str]
    regions: list[str] | None = Field(description="Null: all.")
    concurrency: int
    running: int = 0


class WorkerShape(ProcessShape):
    services: list[str]
    bands: list[str]
    concurrency: int | None
    pools: list[WorkerPoolShape] = Field(description="Its workers, if it has several or is bound to regions.")
    running: int | None = Field(description="Calls under way, as it said itself.")
    draining: bool | None = Field(description="It claims no more.")
    drain_asked: bool | None = Field(description="An operator asked it to; it hears of it within two seconds.")
    calls: list[CallShape] = Field(description="As the dispatchers know them; empty where they are not known.")


class Workers(Shape):
    data: list[WorkerShape]


class ManagerShape(ProcessShape):
    leads: list[str] = Field(description="Shards.")


class BandStats(BaseModel):
    waiting: int | None
    in_use: int | None
    held: int | None


class RegionStats(BaseModel):
    limit: int
    in_use: int | None
    held: int | None


class ServiceStats(BaseModel):
    service: str
    limit: int
    in_use: int | None = Field(description="Slots taken, also by what is held; null: its dispatcher cannot be asked.")
    held: int | None
    paused: bool
    override: Override | None
    auto: AutoLimit | None = Field(description='Null unless the configuration says limit = "auto".')
    order: str
    pool: str | None
    shards: list[str]
    mean_duration: float | None = Field(description="Seconds.")
    bands: dict[str, BandStats] = Field(description="By band: retry, high, medium, low.")
    regions: dict[str, RegionStats]


class ScopeStats(BaseModel):
    """What is built as one: a service, a pool, or what a split service has on one shard."""

    shard: str
    epoch: int | None = Field(description="Raised by each rebuild; null: never built.")
    open: bool | None = Field(description="Steps are granted from it; null: not known here.")
    rebuild_asked: bool
    leader: str | None = Field(description="The process that looks after it.")


class Outbox(BaseModel):
    rows: int = Field(description="Changes that the line has not heard of.")
    age: float = Field(description="Seconds, of the oldest.")


class QueueSizes(Shape):
    main: int = Field(description="Waiting in line.")
    retry: int = Field(description="Waiting for another try.")
    dead: int = Field(description="Failed: GET /admin/queue-dead.")
    scheduled: int
    running: int


class Estimates(Shape):
    """How good the estimated waits of a service were. All but `count` are of the last ones."""

    count: int = Field(description="How many came true since the start.")
    scored: int
    within_range: float = Field(description="The share whose wait lay in the range that was told.")
    close: float = Field(description="The share whose wait lay in it, or missed it by a quarter or a second at most.")
    median_error: float = Field(description="As a share of the wait that came true.")


class RuntimeStats(Shape):
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
    pools: dict[str, PoolStatus]
    scopes: dict[str, ScopeStats]
    leaders: dict[str, Leader] = Field(description="By shard; empty when one process dispatches from its memory.")
    workers: list[WorkerShape]
    managers: list[ManagerShape]
    gateways: list[ProcessShape]
    outbox: Outbox
    estimates: dict[str, Estimates] = Field(description="Of the estimated waits that the answering process gave.")
    loops: dict[str, dict[str, LoopCounts]] = Field(description="Of the answering process's manager.")
    worker: str | None = Field(description="The answering process, if it runs a worker.")
    draining: bool = Field(description="The answering process claims no more.")
    unknown: str | None = Field(
        description="Why slots and lines are not known now, all or some: their numbers are null."
    )
