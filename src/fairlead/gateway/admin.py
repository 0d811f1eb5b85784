"""For operators: the lines and the slots."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fairlead.domain.job import JobStatus
from fairlead.gateway import models_operations as shapes
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
    "/admin/runtime/stats",
    summary="Sizes of the queues, in a few numbers",
    operation_id="runtime_stats",
    responses=answers(200, shapes.RuntimeStats, "As it is now."),
)
async def runtime_stats(request: Request) -> Response:
    status = await fairlead_of(request).status()
    jobs, services = status["jobs"], status["services"]
    sizes = {
        "main": JobStatus.PENDING,
        "retry": JobStatus.RETRYING,
        "dead": JobStatus.FAILED,
        "scheduled": JobStatus.SCHEDULED,
        "running": JobStatus.RUNNING,
    }
    return answer(
        {
            "queues": {name: jobs.get(of.value, 0) for name, of in sizes.items()},
            "slots": {what: sum(service[what] for service in services) for what in ("limit", "in_use", "held")},
            "worker": status["worker"],
            "draining": status["draining"],
        }
    )
