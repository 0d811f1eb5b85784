"""The routes below `/fal`: the queue of requests, calls that wait for their result, and the proxy."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from fairlead.domain.job import JobStatus
from fairlead.errors import BudgetSpent, InvalidInput, NotFound, TooManyWaiting, UnknownModel, WrongState
from fairlead.gateway import models_fal
from fairlead.gateway.fronts.callers import USER_HEADER
from fairlead.gateway.fronts.fal import errors, proxy, status_stream, statuses
from fairlead.gateway.fronts.fal.documents import APP, documented, with_failures
from fairlead.gateway.fronts.fal.errors import PREFIX, REQUEST_ID
from fairlead.gateway.fronts.fal.polls import Polls
from fairlead.gateway.fronts.fal.requests import (
    PRIORITY_HEADER,
    START_HEADERS,
    WEBHOOK,
    feature_of,
    read_call,
    submit,
    urls_of,
)
from fairlead.gateway.fronts.fal.results import result_of
from fairlead.gateway.fronts.fal.runs import Run, RunStream, named
from fairlead.gateway.openapi import ONE_JOB, SUBMIT, body, header
from fairlead.gateway.permissions import caller_of, operator_of
from fairlead.gateway.problems import NoSuchRoute, RateLimited
from fairlead.gateway.responses import fairlead_of, json_response

STREAM = "/stream"
REQUESTS = PREFIX + "{app:path}/requests/{job_id}"

router = APIRouter(tags=["fal"])
_HEADERS = [
    header(USER_HEADER, "With the key of a service: the user of the request."),
    header(PRIORITY_HEADER, "`low` lowers the priority.", enum=["normal", "low"]),
    header(START_HEADERS[1], "Seconds within which the request must have started."),
]
_WEBHOOK = {
    "name": WEBHOOK,
    "in": "query",
    "required": False,
    "schema": {"type": "string"},
    "description": "A URL that receives the result, signed as fal signs it.",
}
_SUBMIT = (*SUBMIT, UnknownModel, NoSuchRoute, BudgetSpent, TooManyWaiting, RateLimited)
_LOGS = Query(description="`true` or `1`: with the log.", max_length=10)
_OF_RUN = "The result; of `/stream`, what the app emits and then the result, as Server-Sent Events."


def polls_of(request: Request) -> Polls:
    polls: Polls = request.app.state.fal_polls
    return polls


# ---------------------------------------------------------------- the proxy, and calls that wait


@router.api_route(
    proxy.PROXY,
    methods=["GET", "POST", "PUT"],
    summary="For `proxyUrl` of `@fal-ai/client`",
    include_in_schema=False,
)
async def refuse_target(request: Request) -> Response:
    """Refuse a request without a target, or with one that is not served here: `FalProxy` redirects all others."""
    raise InvalidInput(
        f"{proxy.TARGET} must be a URL of https://queue.fal.run, https://fal.run or "
        "https://rest.fal.ai/storage/upload; requests to other hosts are not forwarded",
        pointer=f"/{proxy.TARGET}",
    )


@router.post(
    proxy.RUN + "{app:path}",
    summary="Run an app and wait for its result",
    operation_id="fal_run",
    openapi_extra={**body(models_fal.FalInput, required=False), "parameters": [APP, *_HEADERS]},
    responses={
        **with_failures(documented(200, None, _OF_RUN, *_SUBMIT)),
        200: {"description": _OF_RUN, "content": {"application/json": {}, "text/event-stream": {}}},
    },
)
async def run(request: Request) -> Response:
    app: str = request.path_params["app"].strip("/")
    config = fairlead_of(request).config
    feature = feature_of(config, app)
    streamed = "text/event-stream" in request.headers.get("accept", "")
    if feature is None and app.endswith(STREAM):
        app = app.removesuffix(STREAM)
        feature, streamed = feature_of(config, app), True
    receipt, headers = await submit(request, await read_call(request, app, feature))
    kind = RunStream if streamed else Run
    return kind(request, receipt.job_id, named(receipt.job_id, headers))


# ---------------------------------------------------------------- the queue


@router.get(
    REQUESTS + "/status/stream",
    summary="The statuses of a request, as Server-Sent Events",
    operation_id="fal_status_stream",
    openapi_extra={"parameters": [APP]},
    responses={
        **documented(200, None, "The statuses.", *ONE_JOB),
        200: {"description": "Each new status until it is COMPLETED.", "content": {"text/event-stream": {}}},
    },
)
async def stream_status(request: Request, job_id: UUID, logs: Annotated[str, _LOGS] = "0") -> Response:
    name = str(job_id)
    urls = urls_of(request, request.path_params["app"], name)
    return await status_stream.respond(fairlead_of(request), name, urls, wants_logs=_wants(logs))


@router.get(
    REQUESTS + "/status",
    summary="The status of a request",
    operation_id="fal_status",
    description="A client that asks again soon after an answer gets the next one when the status has changed, or after "
    "`fronts.fal.hold` seconds.",
    openapi_extra={"parameters": [APP]},
    responses={
        **documented(200, models_fal.FalStatus, "The request has ended.", *ONE_JOB, headers={REQUEST_ID: "Its id."}),
        202: {
            "description": "The request has not ended yet.",
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/FalStatus"}}},
        },
    },
)
async def status(request: Request, job_id: UUID, logs: Annotated[str, _LOGS] = "0") -> Response:
    name, wants_logs = str(job_id), _wants(logs)
    caller, address = caller_of(request), request.scope.get("client")
    client = caller.key_id or caller.name, address[0] if address else ""
    state, lines = await polls_of(request).status(name, client, wants_logs=wants_logs)
    urls = urls_of(request, request.path_params["app"], name)
    code, shown = statuses.body_of(state, name, urls, lines if wants_logs else None)
    return json_response(shown, code, {REQUEST_ID: name})


@router.get(
    REQUESTS,
    summary="The result of a request",
    operation_id="fal_result",
    openapi_extra={"parameters": [APP]},
    responses={
        **with_failures(documented(200, None, "The result.", *ONE_JOB, WrongState)),
        200: {"description": "The result.", "content": {"application/json": {}}},
    },
)
async def result(request: Request, job_id: UUID) -> Response:
    job = await fairlead_of(request).jobs.get_without_attempts(str(job_id))
    if job.turn:
        raise NotFound(f"there is no job {job_id}")
    return await result_of(request, job)


@router.put(
    REQUESTS + "/cancel",
    status_code=202,
    summary="Cancel a request",
    operation_id="fal_cancel",
    description="A request that has ended is a 400 with the status ALREADY_COMPLETED.",
    openapi_extra={"parameters": [APP]},
    responses=documented(202, models_fal.FalCancelled, "The request is cancelled.", *ONE_JOB, WrongState),
)
async def cancel(request: Request, job_id: UUID) -> Response:
    app, name = fairlead_of(request), str(job_id)
    try:
        job = await app.jobs.status(name)
        if job.turn:
            raise NotFound(f"there is no job {name}")
        if job.status.finished:
            raise WrongState(f"a request that is {job.status} cannot be cancelled")
        await app.cancel(name, who=operator_of(request))
    except WrongState as error:
        return _uncancelled(400, "ALREADY_COMPLETED", error.message, name)
    except NotFound as error:
        return _uncancelled(404, "NOT_FOUND", error.message, name)
    return json_response({"status": "CANCELLATION_REQUESTED"}, 202, {REQUEST_ID: name})


def _uncancelled(code: int, word: str, text: str, request_id: str) -> Response:
    shown: dict[str, Any] = {"status": word, "detail": text, "message": text, "error_type": word.lower()}
    return json_response(shown, code, {REQUEST_ID: request_id, errors.ERROR_TYPE: word.lower()})


@router.post(
    PREFIX + "{app:path}",
    summary="Submit a request to an app",
    operation_id="fal_submit",
    openapi_extra={**body(models_fal.FalInput, required=False), "parameters": [APP, _WEBHOOK, *_HEADERS]},
    responses=documented(200, models_fal.FalReceipt, "Accepted: the request is committed.", *_SUBMIT),
)
async def submit_request(request: Request) -> Response:
    fairlead = fairlead_of(request)
    app: str = request.path_params["app"].strip("/")
    call = await read_call(request, app, feature_of(fairlead.config, app))
    receipt, headers = await submit(request, call)
    name, waits = receipt.job_id, receipt.status is JobStatus.PENDING
    place = (await fairlead.places_of_new([name])).get(name) if waits else None
    body_ = {
        "status": statuses.IN_QUEUE,
        "request_id": name,
        "gateway_request_id": name,
        **urls_of(request, app, name),
        "queue_position": max(0, place.position - 1) if place is not None and place.position is not None else 0,
    }
    return json_response(body_, 200, named(name, headers))


def _wants(text: str) -> bool:
    return text.lower() in ("1", "true", "yes")
