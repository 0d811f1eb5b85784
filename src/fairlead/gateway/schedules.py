"""`/api/v1/schedules`: recurring jobs. A user's key reaches those of its user."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from fairlead.app.schedules import shown_run, shown_schedule
from fairlead.domain.access import Role
from fairlead.errors import InvalidInput, NotFound, TooLarge, TooManyWaiting, UnknownFeature, WrongState
from fairlead.gateway import models_schedules as models
from fairlead.gateway.openapi import WITH_BODY, body, documented
from fairlead.gateway.permissions import caller_of, operator_of, user_in_reach
from fairlead.gateway.problems import RateLimited
from fairlead.gateway.rate_limit import count_jobs
from fairlead.gateway.request_parsing import read_model
from fairlead.gateway.responses import fairlead_of, json_response

_ONE = (InvalidInput, NotFound)
_JOB = (UnknownFeature, WrongState)

router = APIRouter(prefix="/api/v1/schedules", tags=["schedules"])


def _reach(request: Request) -> dict[str, Any]:
    """The arguments of an action: whose schedules the caller reaches, and its name for the audit log."""
    return {"user_id": caller_of(request).user_id, "who": operator_of(request)}


@router.get(
    "",
    summary="Schedules of recurring jobs",
    operation_id="list_schedules",
    responses=documented(200, models.ScheduleList, "The schedules, with their next five times.", InvalidInput),
)
async def list_schedules(request: Request, query: Annotated[models.SchedulesQuery, Query()]) -> Response:
    user_id = user_in_reach(caller_of(request), query.user_id)
    schedules = await fairlead_of(request).schedules.all(user_id)
    return json_response({"data": [shown_schedule(schedule) for schedule in schedules]})


@router.post(
    "",
    status_code=201,
    summary="Create a schedule",
    operation_id="create_schedule",
    openapi_extra=body(models.ScheduleRequest),
    responses=documented(201, models.Schedule, "The schedule.", *WITH_BODY, *_JOB),
)
async def create_schedule(request: Request) -> Response:
    wanted = await read_model(request, models.ScheduleRequest)
    caller = caller_of(request)
    fields = wanted.model_dump(exclude_none=True, exclude={"user_id"})
    if (user_id := user_in_reach(caller, wanted.user_id)) is not None:
        fields["user_id"] = user_id
    schedule = await fairlead_of(request).schedules.create(
        **fields, by_user=caller.role is Role.USER, who=operator_of(request)
    )
    return json_response(shown_schedule(schedule), 201)


@router.get(
    "/{schedule_id}",
    summary="One schedule",
    operation_id="get_schedule",
    responses=documented(200, models.Schedule, "The schedule.", *_ONE),
)
async def get_schedule(request: Request, schedule_id: str) -> Response:
    user_id = caller_of(request).user_id
    return json_response(shown_schedule(await fairlead_of(request).schedules.get(schedule_id, user_id=user_id)))


@router.put(
    "/{schedule_id}",
    summary="Change a schedule",
    operation_id="change_schedule",
    openapi_extra=body(models.ScheduleChange, required=False),
    responses=documented(200, models.Schedule, "The schedule.", *_ONE, *WITH_BODY, *_JOB),
)
async def change_schedule(request: Request, schedule_id: str) -> Response:
    changes = (await read_model(request, models.ScheduleChange)).model_dump(exclude_unset=True)
    schedule = await fairlead_of(request).schedules.change(schedule_id, changes, **_reach(request))
    return json_response(shown_schedule(schedule))


@router.delete(
    "/{schedule_id}",
    status_code=204,
    summary="Delete a schedule; its jobs stay",
    operation_id="delete_schedule",
    responses=documented(204, None, "Deleted.", *_ONE, WrongState),
)
async def delete_schedule(request: Request, schedule_id: str) -> Response:
    await fairlead_of(request).schedules.delete(schedule_id, **_reach(request))
    return Response(status_code=204)


@router.post(
    "/{schedule_id}/pause",
    summary="Submit nothing until the schedule is resumed",
    operation_id="pause_schedule",
    responses=documented(200, models.Schedule, "The schedule.", *_ONE, WrongState),
)
async def pause_schedule(request: Request, schedule_id: str) -> Response:
    return json_response(shown_schedule(await fairlead_of(request).schedules.pause(schedule_id, **_reach(request))))


@router.post(
    "/{schedule_id}/resume",
    summary="Resume a schedule; what was due meanwhile is not submitted",
    operation_id="resume_schedule",
    responses=documented(200, models.Schedule, "The schedule.", *_ONE, WrongState),
)
async def resume_schedule(request: Request, schedule_id: str) -> Response:
    return json_response(shown_schedule(await fairlead_of(request).schedules.resume(schedule_id, **_reach(request))))


@router.post(
    "/{schedule_id}/run",
    status_code=202,
    summary="Submit a job of the schedule now",
    operation_id="run_schedule",
    responses=documented(202, models.StartedRun, "The job.", *_ONE, *_JOB, TooLarge, TooManyWaiting, RateLimited),
)
async def run_schedule(request: Request, schedule_id: str) -> Response:
    schedules, reach = fairlead_of(request).schedules, _reach(request)
    schedule = await schedules.get(schedule_id, user_id=reach["user_id"])
    headers = count_jobs(request, schedule.user_id, 1)
    return json_response({"job_id": await schedules.run(schedule_id, **reach)}, 202, headers)


@router.get(
    "/{schedule_id}/runs",
    summary="What became of the last hundred occurrences, newest first",
    operation_id="list_schedule_runs",
    responses=documented(200, models.ScheduleRunPage, "One page.", *_ONE),
)
async def list_runs(request: Request, schedule_id: str, query: Annotated[models.RunsQuery, Query()]) -> Response:
    page = await fairlead_of(request).schedules.runs(
        schedule_id, user_id=caller_of(request).user_id, limit=query.limit, cursor=query.cursor
    )
    return json_response({"data": [shown_run(*each) for each in page.data], "next_cursor": page.next_cursor})
