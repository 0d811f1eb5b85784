"""For operators: services while they run, a job's priority, and the audit of it all."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from fairlead.errors import InvalidInput, NotFound, WrongState
from fairlead.gateway import models
from fairlead.gateway import models_admin as shapes
from fairlead.gateway.access import who_of
from fairlead.gateway.bodies import read_model
from fairlead.gateway.openapi import ONE_JOB, WITH_BODY, answers, body
from fairlead.gateway.replies import answer, fairlead_of
from fairlead.runtime.events import iso

ONE_SERVICE = (InvalidInput, NotFound)

router = APIRouter(prefix="/admin", tags=["operations"])


# ---------------------------------------------------------------- services


@router.post(
    "/services/{service}/pause",
    summary="Start nothing of this service; what runs goes on",
    operation_id="pause_service",
    responses=answers(200, shapes.ServiceState, "It is paused.", *ONE_SERVICE),
)
async def pause_service(request: Request, service: str) -> Response:
    return answer(asdict(await fairlead_of(request).pause(service, who=who_of(request))))


@router.post(
    "/services/{service}/resume",
    summary="End the pause of this service",
    operation_id="resume_service",
    responses=answers(200, shapes.ServiceState, "It is not paused.", *ONE_SERVICE),
)
async def resume_service(request: Request, service: str) -> Response:
    return answer(asdict(await fairlead_of(request).unpause(service, who=who_of(request))))


@router.put(
    "/services/{service}/limit",
    summary="Change this service's limit, whatever the configuration says",
    operation_id="set_limit",
    openapi_extra=body(shapes.LimitRequest),
    responses=answers(200, shapes.ServiceState, "It is changed.", *ONE_SERVICE, *WITH_BODY),
)
async def set_limit(request: Request, service: str) -> Response:
    wanted = await read_model(request, shapes.LimitRequest)
    return answer(asdict(await fairlead_of(request).set_limit(service, wanted.limit, who=who_of(request))))


@router.delete(
    "/services/{service}/limit",
    summary="Go back to the limit that the configuration says",
    operation_id="lift_limit",
    responses=answers(200, shapes.ServiceState, "It is lifted.", *ONE_SERVICE),
)
async def lift_limit(request: Request, service: str) -> Response:
    return answer(asdict(await fairlead_of(request).set_limit(service, None, who=who_of(request))))


@router.post(
    "/services/{service}/rebuild",
    status_code=202,
    summary="Have this service's line built anew from the database",
    operation_id="rebuild_service",
    responses=answers(202, shapes.RebuildRequested, "The leader does it within a second.", *ONE_SERVICE, WrongState),
)
async def rebuild_service(request: Request, service: str) -> Response:
    app = fairlead_of(request)
    scopes = await app.rebuild(service, who=who_of(request))
    return answer({"service": service, "scopes": scopes, "problem": await app.leaderless()}, 202)


# ---------------------------------------------------------------- jobs


@router.post(
    "/jobs/{job_id}/priority",
    summary="Change the priority of a job that has not ended",
    operation_id="set_priority",
    openapi_extra=body(shapes.PriorityRequest),
    responses=answers(200, models.Job, "The job.", *ONE_JOB, *WITH_BODY, WrongState),
)
async def set_priority(request: Request, job_id: UUID) -> Response:
    wanted = await read_model(request, shapes.PriorityRequest)
    job = await fairlead_of(request).set_priority(str(job_id), wanted.priority, who=who_of(request))
    return answer(job.as_dict())


# ---------------------------------------------------------------- the audit


@router.get(
    "/audit",
    summary="What operators did, newest first",
    operation_id="list_audit",
    responses=answers(200, shapes.AuditPage, "One page.", InvalidInput),
)
async def list_audit(request: Request, query: Annotated[shapes.AuditQuery, Query()]) -> Response:
    page = await fairlead_of(request).audit(action=query.action, limit=query.limit, cursor=query.cursor)
    rows = [{**asdict(record), "at": iso(record.at)} for record in page.data]
    return answer({"data": rows, "next_cursor": page.next_cursor})
