"""For operators: the lines and the slots."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fairlead.errors import InvalidInput, NotFound
from fairlead.gateway import models_operations as shapes
from fairlead.gateway import models_runtime
from fairlead.gateway.openapi import answers
from fairlead.gateway.replies import answer, fairlead_of

router = APIRouter(tags=["operations"])


@router.get(
    "/queue/status",
    summary="Services with their slots and lines, pools, and counts of jobs",
    operation_id="queue_status",
    responses=answers(200, shapes.QueueStatus, "As it is now."),
)
async def queue_status(request: Request) -> Response:
    return answer(await fairlead_of(request).status())


@router.get(
    "/queue/status/{region}",
    summary="One region: who waits for it, what runs there, its breaker and how fast it is",
    operation_id="region_status",
    responses=answers(200, shapes.RegionStatus, "As it is now.", InvalidInput, NotFound),
)
async def region_status(request: Request, region: str) -> Response:
    return answer(await fairlead_of(request).region_status(region))


@router.get(
    "/admin/runtime/stats",
    summary="All that runs: sizes, slots by band and region, leaders, processes and what they run",
    operation_id="runtime_stats",
    responses=answers(200, models_runtime.RuntimeStats, "As it is now."),
)
async def runtime_stats(request: Request) -> Response:
    return answer(await fairlead_of(request).runtime_stats())
