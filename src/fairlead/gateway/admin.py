"""For operators: the dead letters, the lines and the slots."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from fairlead.domain.job import JobStatus
from fairlead.errors import InvalidInput
from fairlead.gateway import models
from fairlead.gateway import models_operations as shapes
from fairlead.gateway.bodies import read_model
from fairlead.gateway.openapi import WITH_BODY, answers, body
from fairlead.gateway.replies import answer, answer_page, fairlead_of

router = APIRouter(tags=["operations"])


@router.get(
    "/admin/queue-dead",
    summary="The dead letters: failed jobs with every attempt's error, newest first",
    operation_id="list_dead",
    responses=answers(200, models.JobPage, "One page.", InvalidInput),
)
async def list_dead(request: Request, query: Annotated[models.DeadQuery, Query()]) -> Response:
    page = await fairlead_of(request).dead(
        user_id=query.user_id, feature_name=query.feature_name, limit=query.limit, cursor=query.cursor
    )
    return answer_page(page)


@router.post(
    "/admin/queue-dead/requeue",
    summary="Take dead letters up again, at the failed step or from the start",
    operation_id="requeue_dead",
    openapi_extra=body(shapes.RequeueRequest),
    responses=answers(200, shapes.Requeued, "How many.", *WITH_BODY),
)
async def requeue_dead(request: Request) -> Response:
    wanted = await read_model(request, shapes.RequeueRequest)
    count = await fairlead_of(request).requeue(**wanted.chosen(), from_start=wanted.from_start)
    return answer({"requeued": count, "dry_run": wanted.dry_run})


@router.post(
    "/admin/queue-dead/purge",
    summary="Remove dead letters for good",
    operation_id="purge_dead",
    openapi_extra=body(shapes.PurgeRequest),
    responses=answers(200, shapes.Purged, "How many.", *WITH_BODY),
)
async def purge_dead(request: Request) -> Response:
    wanted = await read_model(request, shapes.PurgeRequest)
    count = await fairlead_of(request).purge(**wanted.chosen())
    return answer({"purged": count, "dry_run": wanted.dry_run})


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
