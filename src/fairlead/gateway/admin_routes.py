"""Routes of operators: services, priorities, audit, dead letters, keys and tickets."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from fairlead.app.api_keys import TICKET_LIFE_S, shown
from fairlead.domain.events import iso
from fairlead.domain.submission import MAX_USER_ID
from fairlead.domain.validation import check_text
from fairlead.errors import InvalidInput, NotFound, WrongState
from fairlead.gateway import models, models_admin
from fairlead.gateway.auth import grant_of, guard_of
from fairlead.gateway.openapi import ONE_JOB, WITH_BODY, body, documented
from fairlead.gateway.permissions import caller_of, user_in_reach, who_of
from fairlead.gateway.problems import Forbidden, RateLimited
from fairlead.gateway.request_parsing import read_model
from fairlead.gateway.responses import fairlead_of, json_response, page_response

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairlead.app.dead_letters import Preview
    from fairlead.app.fairlead import Fairlead
    from fairlead.domain.job import Job

ONE_SERVICE = (InvalidInput, NotFound)
SharedBy = Literal["pool", "plan", "group"]
RateName = Annotated[str, Path(max_length=201, description="The pool, the plan, or the path of the group.")]

router = APIRouter(prefix="/admin", tags=["operations"])
DEAD = "/admin/queue-dead"
RESOLUTION_S = 0.001
"""Resolution of timestamps in JSON, in seconds. A dry run adds it to the current time to get its `until`: this limit is
exclusive, and a job that failed just now must be included."""

dead_router = APIRouter(prefix=DEAD, tags=["operations"])
keys_router = APIRouter(tags=["keys"])


# ---------------------------------------------------------------- services


@router.post(
    "/services/{service}/pause",
    summary="Pause a service: start no more calls, and let running ones continue",
    operation_id="pause_service",
    responses=documented(200, models_admin.ServiceState, "The paused service.", *ONE_SERVICE),
)
async def pause_service(request: Request, service: str) -> Response:
    return json_response(asdict(await fairlead_of(request).pause(service, who=who_of(request))))


@router.post(
    "/services/{service}/resume",
    summary="Resume a paused service",
    operation_id="resume_service",
    responses=documented(200, models_admin.ServiceState, "The service.", *ONE_SERVICE),
)
async def resume_service(request: Request, service: str) -> Response:
    return json_response(asdict(await fairlead_of(request).unpause(service, who=who_of(request))))


@router.put(
    "/services/{service}/limit",
    summary="Override the configured limit of a service",
    operation_id="set_limit",
    openapi_extra=body(models_admin.LimitRequest),
    responses=documented(200, models_admin.ServiceState, "The service.", *ONE_SERVICE, *WITH_BODY),
)
async def set_limit(request: Request, service: str) -> Response:
    change = await read_model(request, models_admin.LimitRequest)
    return json_response(asdict(await fairlead_of(request).set_limit(service, change.limit, who=who_of(request))))


@router.delete(
    "/services/{service}/limit",
    summary="Remove the override of a service's limit",
    operation_id="lift_limit",
    responses=documented(200, models_admin.ServiceState, "The service.", *ONE_SERVICE),
)
async def lift_limit(request: Request, service: str) -> Response:
    return json_response(asdict(await fairlead_of(request).set_limit(service, None, who=who_of(request))))


@router.put(
    "/services/{service}/rate",
    summary="Override the configured rate of a service, of each of its users, or of a region",
    operation_id="set_rate",
    openapi_extra=body(models_admin.ServiceRateRequest),
    responses=documented(200, models_admin.RateState, "The rates of the service.", *ONE_SERVICE, *WITH_BODY),
)
async def set_rate(request: Request, service: str) -> Response:
    change = await read_model(request, models_admin.ServiceRateRequest)
    state = await fairlead_of(request).set_rate(service, **change.model_dump(), who=who_of(request))
    return json_response(asdict(state))


@router.delete(
    "/services/{service}/rate",
    summary="Remove the overrides of a service's rates, or of one region's",
    operation_id="lift_rate",
    responses=documented(200, models_admin.RateState, "The rates of the service.", *ONE_SERVICE),
)
async def lift_rate(
    request: Request,
    service: str,
    region: Annotated[str | None, Query(max_length=63, description="Of this region only.")] = None,
) -> Response:
    return json_response(asdict(await fairlead_of(request).lift_rate(service, region=region, who=who_of(request))))


@router.put(
    "/rates/{of}/{name:path}",
    summary="Override the configured rate of a pool, a plan or a group",
    operation_id="set_shared_rate",
    openapi_extra=body(models_admin.RateRequest),
    responses=documented(200, models_admin.SharedRate, "The rate.", *ONE_SERVICE, *WITH_BODY),
)
async def set_shared_rate(request: Request, of: SharedBy, name: RateName) -> Response:
    change = await read_model(request, models_admin.RateRequest)
    state = await fairlead_of(request).set_shared_rate(of, name, **change.model_dump(), who=who_of(request))
    return json_response(asdict(state))


@router.delete(
    "/rates/{of}/{name:path}",
    summary="Remove the override of the rate of a pool, a plan or a group",
    operation_id="lift_shared_rate",
    responses=documented(200, models_admin.SharedRate, "The rate.", *ONE_SERVICE),
)
async def lift_shared_rate(request: Request, of: SharedBy, name: RateName) -> Response:
    return json_response(asdict(await fairlead_of(request).lift_shared_rate(of, name, who=who_of(request))))


@router.post(
    "/services/{service}/rebuild",
    status_code=202,
    summary="Rebuild the queue of a service from the database",
    operation_id="rebuild_service",
    responses=documented(
        202, models_admin.RebuildRequested, "Requested; the leader starts within a second.", *ONE_SERVICE, WrongState
    ),
)
async def rebuild_service(request: Request, service: str) -> Response:
    app = fairlead_of(request)
    scopes = await app.rebuild(service, who=who_of(request))
    return json_response({"service": service, "scopes": scopes, "problem": await app.leaderless()}, 202)


# ---------------------------------------------------------------- jobs


@router.post(
    "/jobs/{job_id}/priority",
    summary="Change the priority of a job that has not ended",
    operation_id="set_priority",
    openapi_extra=body(models_admin.PriorityRequest),
    responses=documented(200, models.Job, "The job.", *ONE_JOB, *WITH_BODY, WrongState),
)
async def set_priority(request: Request, job_id: UUID) -> Response:
    change = await read_model(request, models_admin.PriorityRequest)
    job = await fairlead_of(request).set_priority(str(job_id), change.priority, who=who_of(request))
    return json_response(job.as_dict())


# ---------------------------------------------------------------- audit


@router.get(
    "/audit",
    summary="Actions of operators, newest first",
    operation_id="list_audit",
    responses=documented(200, models_admin.AuditPage, "One page.", InvalidInput),
)
async def list_audit(request: Request, query: Annotated[models_admin.AuditQuery, Query()]) -> Response:
    page = await fairlead_of(request).audit(action=query.action, limit=query.limit, cursor=query.cursor)
    rows = [{**asdict(record), "at": iso(record.at)} for record in page.data]
    return json_response({"data": rows, "next_cursor": page.next_cursor})


@dead_router.get(
    "",
    summary="Failed jobs with the errors of all attempts, newest first",
    operation_id="list_dead",
    responses=documented(200, models.JobPage, "One page.", InvalidInput),
)
async def list_dead(request: Request, query: Annotated[models.DeadQuery, Query()]) -> Response:
    retryable = None if query.retryable is None else query.retryable == "true"
    return page_response(await fairlead_of(request).dead(**{**query.model_dump(), "retryable": retryable}))


@dead_router.post(
    "/requeue",
    summary="Requeue dead letters, at the failed step or from the start",
    operation_id="requeue_dead",
    openapi_extra=body(models_admin.RequeueRequest),
    responses=documented(200, models_admin.Requeued, "The number of jobs.", *WITH_BODY),
)
async def requeue_dead(request: Request) -> Response:
    command = await read_model(request, models_admin.RequeueRequest)
    app = fairlead_of(request)
    missing = await _missing(app, command.selection()["job_ids"])
    if command.dry_run:
        selection = _so_far(app, command.selection())
        preview = await app.preview_requeue(**selection, from_start=command.from_start)
        return _previewed("requeued", preview, selection, missing)
    count = await app.requeue(**command.selection(), from_start=command.from_start, who=who_of(request))
    skipped = {} if missing else _skipped(await app.preview_requeue(**command.selection()))
    return json_response({"requeued": count, "dry_run": False, **skipped, **missing})


@dead_router.post(
    "/purge",
    summary="Delete dead letters",
    operation_id="purge_dead",
    description="Without a body: all dead letters, as with `?all=true`.",
    openapi_extra=body(models_admin.PurgeRequest, required=False),
    responses=documented(200, models_admin.Purged, "The number of jobs.", *WITH_BODY),
)
async def purge_dead(request: Request, query: Annotated[models_admin.PurgeQuery, Query()]) -> Response:
    # A Content-Type without content means that the body was lost on the way. Its lost filters must not turn into "all".
    everything = "content-type" not in request.headers if query.all is None else query.all == "true"
    command = await read_model(request, models_admin.PurgeRequest, empty={"all": everything})
    if query.all == "true" and not command.all:
        raise InvalidInput("all=true selects every dead letter; omit it, or the body", pointer="/all")
    app = fairlead_of(request)
    missing = await _missing(app, command.selection()["job_ids"])
    if command.dry_run:
        selection = _so_far(app, command.selection())
        return _previewed("purged", await app.preview_purge(**selection), selection, missing)
    return json_response(
        {"purged": await app.purge(**command.selection(), who=who_of(request)), "dry_run": False, **missing}
    )


async def _missing(app: Fairlead, job_ids: Sequence[str] | None) -> dict[str, list[str]]:
    """Return the ids among `job_ids` that are not dead letters, as a field of the response. Call this before the
    requeue or purge, because afterwards none of the jobs is a dead letter."""
    return {} if job_ids is None else {"missing": await app.not_dead(job_ids)}


def _so_far(app: Fairlead, selection: dict[str, Any]) -> dict[str, Any]:
    """Return the selection of a dry run, restricted to jobs that have failed by now: the current time is added as
    `until`, unless the selection names jobs or has an `until` of its own. A requeue or purge that repeats this `until`
    selects the same jobs."""
    if selection["job_ids"] is not None or selection["until"] is not None:
        return selection
    return {**selection, "all": False, "until": iso(app.now() + RESOLUTION_S)}


def _previewed(verb: str, preview: Preview, selection: Mapping[str, Any], missing: Mapping[str, list[str]]) -> Response:
    until = {} if selection["until"] is None else {"until": selection["until"]}
    sample = [_sampled(job) for job in preview.sample]
    return json_response(
        {verb: preview.count, "dry_run": True, "sample": sample, **_skipped(preview), **until, **missing}
    )


def _skipped(preview: Preview) -> dict[str, int]:
    return {"skipped": preview.skipped} if preview.skipped else {}


def _sampled(job: Job) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "user_id": job.user_id,
        "feature_name": job.feature_name,
        "service": job.service,
        "finished_at": iso(job.finished_at),
        "error": job.error,
    }


@keys_router.post(
    "/api/v1/tickets",
    status_code=201,
    summary="Issue a ticket for one WebSocket or event stream, where browsers cannot send a key",
    operation_id="issue_ticket",
    openapi_extra=body(models_admin.TicketRequest, required=False),
    responses=documented(
        201, models_admin.Ticket, "Pass it as `?ticket=` within a minute; it is valid once.", *WITH_BODY, RateLimited
    ),
)
async def issue_ticket(request: Request) -> Response:
    options = await read_model(request, models_admin.TicketRequest)
    if options.user_id is not None:
        check_text(options.user_id, "user_id", MAX_USER_ID)
    caller = caller_of(request)
    if caller.cookie is not None:
        # A stream opened with a ticket would outlive the session.
        raise Forbidden("a session opens streams and WebSockets with its cookie; tickets are for keys")
    guard_of(request).tickets.take(str(caller.key_id), "too many tickets were issued for this key; try again later")
    grant = grant_of(caller, user_in_reach(caller, options.user_id))
    ticket = await fairlead_of(request).issue_ticket(grant)
    return json_response({"ticket": ticket, "expires_in": TICKET_LIFE_S}, 201)


@keys_router.get(
    "/admin/keys",
    summary="All keys, including revoked ones, oldest first",
    operation_id="list_keys",
    responses=documented(200, models_admin.KeyList, "The keys, without their secrets."),
)
async def list_keys(request: Request) -> Response:
    return json_response({"data": [shown(key) for key in await fairlead_of(request).keys()]})


@keys_router.post(
    "/admin/keys",
    status_code=201,
    summary="Create a key; its text is returned only once",
    operation_id="create_key",
    openapi_extra=body(models_admin.KeyRequest),
    responses=documented(201, models_admin.NewKey, "The key.", *WITH_BODY, WrongState),
)
async def create_key(request: Request) -> Response:
    options = await read_model(request, models_admin.KeyRequest)
    new = await fairlead_of(request).create_key(
        options.role, user_id=options.user_id, name=options.name, who=who_of(request)
    )
    await guard_of(request).key_cache.reread()
    return json_response({**shown(new.key), "key": new.text}, 201)


@keys_router.delete(
    "/admin/keys/{key_id}",
    status_code=204,
    summary="Revoke a key: within about a second every gateway refuses it and ends its streams",
    operation_id="revoke_key",
    responses=documented(204, None, "Revoked.", InvalidInput, NotFound, WrongState),
)
async def revoke_key(request: Request, key_id: str) -> Response:
    await fairlead_of(request).revoke_key(key_id, who=who_of(request))
    await guard_of(request).key_cache.reread()
    return Response(status_code=204)
