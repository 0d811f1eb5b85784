"""Routes for operators and probes: queues, search, statistics, workers and their drain, doctor, health."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from fairlead.domain.access import Role
from fairlead.errors import InvalidInput, NotFound, WrongState
from fairlead.gateway import models_admin, models_runtime
from fairlead.gateway.openapi import WITH_BODY, body, documented
from fairlead.gateway.permissions import caller_of, who_of
from fairlead.gateway.problems import NotReady
from fairlead.gateway.request_parsing import read_model
from fairlead.gateway.responses import fairlead_of, json_response
from fairlead.observe.dashboard.dashboard import Reach
from fairlead.observe.doctor import report

_OPERATIONS: list[Any] = ["operations"]
_HEALTH: dict[str, Any] = {"tags": ["health"], "openapi_extra": {"security": []}}

router = APIRouter()


@router.get(
    "/queue/status",
    summary="Services with their slots and queues, pools, and counts of jobs",
    tags=_OPERATIONS,
    operation_id="queue_status",
    responses=documented(200, models_runtime.QueueStatus, "The current state."),
)
async def queue_status(request: Request) -> Response:
    return json_response(await fairlead_of(request).status())


@router.get(
    "/api/v1/search",
    summary="Find jobs, batches, users, services and errors",
    tags=_OPERATIONS,
    operation_id="search",
    description="By id; or by a part of the name of a service or a recent batch, the beginning of a user, a part of an "
    "error. A user's key finds its own jobs and batches, a service's key no errors.",
    responses=documented(200, models_admin.SearchResults, "The best matches of each kind.", InvalidInput),
)
async def search(request: Request, query: Annotated[models_admin.SearchQuery, Query()]) -> Response:
    caller = caller_of(request)
    reach = Reach(caller.user_id, queue=caller.role is not Role.USER, errors=caller.role in (Role.ADMIN, Role.VIEWER))
    return json_response({"results": await fairlead_of(request).dashboard.search(query.q, reach)})


@router.get(
    "/queue/status/{region}",
    summary="One region: waiting and running jobs, breaker, latency",
    tags=_OPERATIONS,
    operation_id="region_status",
    responses=documented(200, models_runtime.RegionStatus, "The current state.", InvalidInput, NotFound),
)
async def region_status(request: Request, region: str) -> Response:
    return json_response(await fairlead_of(request).region_status(region))


@router.get(
    "/admin/runtime/stats",
    summary="The running system: queue sizes, slots by band and region, leaders, processes and their calls",
    tags=_OPERATIONS,
    operation_id="runtime_stats",
    responses=documented(200, models_runtime.RuntimeStats, "The current state."),
)
async def runtime_stats(request: Request) -> Response:
    return json_response(await fairlead_of(request).runtime_stats())


@router.get(
    "/admin/workers",
    summary="All workers, when they were last seen, and their running calls",
    tags=_OPERATIONS,
    operation_id="list_workers",
    responses=documented(200, models_runtime.Workers, "The current state."),
)
async def list_workers(request: Request) -> Response:
    return json_response({"data": await fairlead_of(request).workers()})


@router.post(
    "/admin/workers/{name}/drain",
    summary="Stop a worker from claiming jobs, or let it claim again; its process keeps running",
    tags=_OPERATIONS,
    operation_id="drain_worker",
    openapi_extra=body(models_runtime.DrainRequest),
    responses=documented(
        200,
        models_runtime.WorkerShape,
        "The worker; it reacts within two seconds.",
        *WITH_BODY,
        NotFound,
        WrongState,
    ),
)
async def drain_worker(request: Request, name: str) -> Response:
    drain = await read_model(request, models_runtime.DrainRequest)
    app, who = fairlead_of(request), who_of(request)
    await (app.drain_worker(name, who=who) if drain.on else app.undrain_worker(name, who=who))
    workers = {worker["name"]: worker for worker in await app.workers()}
    if name not in workers:
        raise NotFound(f"there is no process {name[:100]!r}")
    return json_response(workers[name])


@router.get(
    "/admin/doctor",
    summary="Diagnose the system: findings with cause, evidence and fix",
    tags=_OPERATIONS,
    operation_id="doctor",
    responses=documented(
        200, models_admin.Diagnosis, "The findings. It may take a second, since some checks run twice."
    ),
)
async def doctor(request: Request) -> Response:
    return json_response(report(await fairlead_of(request).doctor()))


# ---------------------------------------------------------------- health


@router.head("/livez", include_in_schema=False)
@router.get(
    "/livez",
    summary="Whether the process is alive",
    operation_id="livez",
    **_HEALTH,
    responses=documented(200, models_runtime.Alive, "Alive."),
)
async def livez() -> Response:
    return json_response({"status": "ok"})


@router.head("/readyz", include_in_schema=False)
@router.get(
    "/readyz",
    summary="Whether the process can do its work; 503 names the component that cannot",
    operation_id="readyz",
    **_HEALTH,
    responses=documented(200, models_runtime.Readiness, "Ready.", NotReady),
)
async def readyz(request: Request) -> Response:
    readiness = await fairlead_of(request).readiness()
    if not readiness["ready"]:
        raise NotReady(readiness["checks"])
    return json_response(readiness)
