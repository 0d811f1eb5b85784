"""`/api/v1/jobs`: submit, read, cancel, retry, delete.

Submitting is the hot path: it reads and writes JSON with orjson only, and `FastPath` calls it without FastAPI.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import orjson
from fastapi import APIRouter, Query
from pydantic import BeforeValidator
from starlette.requests import Request
from starlette.responses import Response

from fairlead.domain.access import Role
from fairlead.domain.events import iso
from fairlead.domain.job import JobStatus
from fairlead.domain.views import retried
from fairlead.errors import BudgetSpent, IdempotencyMismatch, InvalidInput, RequestError, TooManyWaiting, WrongState
from fairlead.gateway import large_bodies, models, request_parsing
from fairlead.gateway.openapi import (
    BUDGET_HEADERS,
    EVENT,
    ONE_JOB,
    RATE_HEADERS,
    SUBMIT,
    WITH_BODY,
    body,
    documented,
    header,
)
from fairlead.gateway.permissions import caller_of, operator_of, user_in_reach
from fairlead.gateway.problems import ManyInvalid, RateLimited
from fairlead.gateway.rate_limit import accept_jobs, count_rerun
from fairlead.gateway.responses import END, HEARTBEAT_S, SseStream, fairlead_of, json_response, page_response

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead
    from fairlead.app.handle import Receipt
    from fairlead.domain.fair_share import QueuePosition
    from fairlead.domain.views import JobView

JOBS = "/api/v1/jobs"
BULK = f"{JOBS}/bulk"
MAX_BULK_KEY = 240

router = APIRouter(prefix=JOBS, tags=["jobs"])
executions_router = APIRouter(prefix="/api/v1/executions", tags=["jobs"])

KEY = header(
    "Idempotency-Key",
    "A repeated request with the same key and body returns the job of the first one.",
    minLength=1,
    maxLength=255,
)
_PREFER = header("Prefer", "`wait=N`: wait up to N seconds (at most 60) for the job to end.", examples=["wait=30"])
_REPLAYED = {"Idempotent-Replayed": "`true` for a repeated request.", **RATE_HEADERS, **BUDGET_HEADERS}
LIMITED = (TooManyWaiting, RateLimited)
ACCEPTED = {"Location": "The job.", "Preference-Applied": "The wait that was applied.", **_REPLAYED}


# ---------------------------------------------------------------- submitting


@router.post(
    "",
    status_code=202,
    summary="Submit a job",
    operation_id="submit_job",
    openapi_extra={**body(models.SubmitRequest), "parameters": [KEY, _PREFER]},
    responses={
        **documented(
            202,
            models.Receipt,
            "Accepted: the job is committed.",
            *SUBMIT,
            IdempotencyMismatch,
            BudgetSpent,
            TooManyWaiting,
            RateLimited,
            headers=ACCEPTED,
        ),
        **documented(200, models.Job, "With `Prefer: wait=N`: the job, if it has ended.", headers=ACCEPTED),
    },
)
async def submit_job(request: Request) -> Response:
    app = fairlead_of(request)
    raw = await request_parsing.read_json(request)
    caller = caller_of(request)
    is_user = caller.role is Role.USER
    submission = request_parsing.read_submission(request_parsing.as_own(raw, caller.user_id) if is_user else raw)
    key = request_parsing.idempotency_key(request)
    receipts, rate_headers = await accept_jobs(request, [submission], key, idempotency_key=key, lowers_only=is_user)
    receipt = receipts[0]
    headers = {"Location": f"{JOBS}/{receipt.job_id}", **rate_headers}
    if receipt.replayed:
        headers["Idempotent-Replayed"] = "true"
    seconds = request_parsing.preferred_wait(request)
    if seconds is not None:
        headers["Preference-Applied"] = f"wait={seconds}"
        job = await app.wait(receipt.job_id, seconds)
        if job.status.finished:
            return json_response(job.as_dict(), 200, headers)
        return json_response(receipt_of(job), 202, headers)
    bodies = await _receipts(app, receipts)
    return json_response(bodies[0], 202, headers)


@router.post(
    "/bulk",
    status_code=202,
    summary="Submit many jobs, either all or none",
    operation_id="submit_jobs",
    openapi_extra={**body(models.BulkRequest), "parameters": [KEY]},
    responses=documented(
        202,
        models.BulkReceipt,
        "Accepted: all jobs are committed.",
        *SUBMIT,
        IdempotencyMismatch,
        BudgetSpent,
        TooManyWaiting,
        RateLimited,
        headers=_REPLAYED,
    ),
)
async def submit_jobs(request: Request) -> Response:
    app = fairlead_of(request)
    raw = await large_bodies.read_bulk(request)
    request_parsing.require_bulk(raw, app.config)
    caller = caller_of(request)
    is_user = caller.role is Role.USER
    if is_user:
        raw = request_parsing.all_as_own(raw, caller.user_id)
    submissions = request_parsing.read_bulk(raw, app.config, app.now())
    key = request_parsing.idempotency_key(request)
    first_key, keyed = _bulk_key(key, raw)
    try:
        receipts, headers = await accept_jobs(request, submissions, first_key, **keyed, lowers_only=is_user)
    except RequestError as error:
        _point_at_items(error, raw["jobs"], app)
        raise
    if all(receipt.replayed for receipt in receipts):
        headers["Idempotent-Replayed"] = "true"
    return json_response({"jobs": await _receipts(app, receipts)}, 202, headers)


def _bulk_key(key: str | None, raw: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Derive the idempotency keys of a bulk from the request's key. Returns the key of the first item, and the
    arguments from which the application derives the keys of all items.

    The arguments include a hash of the whole body: a bulk with the same key and a longer or shorter list is a different
    request.
    """
    if key is None:
        return None, {}
    try:
        canonical = orjson.dumps(raw, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return None, {}  # nested too deeply for orjson; the application reports the item
    if len(key) > MAX_BULK_KEY:
        key = hashlib.sha256(key.encode()).hexdigest()
    first_key = f"{key}#0"
    body_hash = hashlib.sha256(canonical).hexdigest()
    return first_key, {"idempotency_key": first_key if len(raw["jobs"]) == 1 else key, "body_hash": body_hash}


def _point_at_items(error: RequestError, items: list[Any], app: Fairlead) -> None:
    """Raise one error that lists all invalid items of a bulk, because `error` is only about the first. If no item is
    invalid, add the index of the refused item to the pointer of `error` instead."""
    errors = request_parsing.bad_items(items, app.config, app.now()) if isinstance(error, InvalidInput) else []
    if errors:
        raise ManyInvalid(errors) from None
    index = error.details.pop("index", None)
    if index is not None:
        error.pointer = f"/jobs/{index}{error.pointer or ''}"


async def _receipts(app: Fairlead, receipts: list[Receipt]) -> list[dict[str, Any]]:
    waiting = [receipt.job_id for receipt in receipts if receipt.status is JobStatus.PENDING]
    positions = await app.places_of_new(waiting) if waiting else {}
    return [
        # For a repeated request, return the job in its present state.
        receipt_of(await app.get(receipt.job_id)) if receipt.replayed else _of_receipt(receipt, positions)
        for receipt in receipts
    ]


def _of_receipt(receipt: Receipt, positions: dict[str, QueuePosition]) -> dict[str, Any]:
    queued = positions.get(receipt.job_id)
    if queued is None:
        return _receipt_json(receipt, None, None)
    return _receipt_json(receipt, queued.position, queued.estimated_wait())


def receipt_of(job: JobView) -> dict[str, Any]:
    """Return the receipt of a job in its current state, as JSON."""
    wait = job.estimated_wait
    return _receipt_json(job, job.position, (wait.low, wait.high) if wait is not None else None)


def _receipt_json(job: Receipt | JobView, position: int | None, wait: tuple[float, float] | None) -> dict[str, Any]:
    url = f"{JOBS}/{job.job_id}"
    return {
        "job_id": job.job_id,
        "priority": job.priority,
        "status": job.status,
        "position": position,
        "estimated_wait": {"low": round(wait[0], 3), "high": round(wait[1], 3)} if wait is not None else None,
        "scheduled_at": iso(job.scheduled_at),
        "links": {"status_url": url, "events_url": f"{url}/events", "cancel_url": f"{url}/cancel"},
    }


# ---------------------------------------------------------------- reading


@router.get(
    "",
    summary="List jobs, newest first",
    operation_id="list_jobs",
    description="A user's key lists its own jobs, with or without `user_id`.",
    responses=documented(200, models.JobPage, "One page.", InvalidInput),
)
async def list_jobs(request: Request, query: Annotated[models.ListQuery, Query()]) -> Response:
    page = await fairlead_of(request).list_jobs(
        user_id=user_in_reach(caller_of(request), query.user_id),
        status=query.status,
        feature_name=query.feature_name,
        since=query.since,
        until=query.until,
        service=query.service,
        error_code=query.error_code,
        limit=query.limit,
        cursor=query.cursor,
    )
    return page_response(page)


@router.get(
    "/{job_id}",
    summary="One job, with its results and every failed attempt",
    operation_id="get_job",
    openapi_extra={"parameters": [_PREFER]},
    responses=documented(
        200, models.Job, "The job.", *ONE_JOB, headers={"Preference-Applied": "The wait that was applied."}
    ),
)
async def get_job(request: Request, job_id: UUID) -> Response:
    app, seconds = fairlead_of(request), request_parsing.preferred_wait(request)
    operates = caller_of(request).role is not Role.USER
    if seconds is None:
        return json_response((await app.get(str(job_id))).as_dict(tracebacks=operates))
    job = await app.wait(str(job_id), seconds)
    return json_response(job.as_dict(tracebacks=operates), headers={"Preference-Applied": f"wait={seconds}"})


@router.get(
    "/{job_id}/why",
    summary="Explain why a job is where it is",
    operation_id="why_job",
    description="The most important reason comes first. A user's key sees the number of other jobs, not their users.",
    responses=documented(200, models.Why, "The explanation.", *ONE_JOB),
)
async def why_job(request: Request, job_id: UUID) -> Response:
    private = caller_of(request).role is Role.USER
    why = await fairlead_of(request).why(str(job_id), private=private)
    return json_response(why.as_dict())


@router.get(
    "/{job_id}/events",
    summary="A job's events, as Server-Sent Events",
    operation_id="watch_job",
    description="A SNAPSHOT with the whole job, then its events until it ends. A comment every 15 seconds keeps the "
    "connection open. A client that reconnects after the end receives 204, which makes browsers stop.",
    openapi_extra={"parameters": [header("Last-Event-ID", "Sent by browsers that reconnect.")]},
    responses={
        **documented(200, None, "The events.", *ONE_JOB),
        200: {
            "description": "The events.",
            "content": {
                "text/event-stream": {
                    "itemSchema": EVENT,
                    "example": "id: 2\nevent: POSITION\n"
                    f'data: {{"type":"POSITION","job_id":"{models.JOB_ID}","at":"{models.MOMENT}",'
                    '"message":"2 jobs are ahead","position":3,"estimated_wait":{"low":8.2,"high":12.3}}\n\n',
                }
            },
        },
        204: {"description": "The job has ended and the client has received its last event."},
    },
)
async def watch_job(request: Request, job_id: UUID) -> Response:
    app = fairlead_of(request)
    if request.headers.get("last-event-id", "").endswith(END) and (await app.get(str(job_id))).status.finished:
        return Response(status_code=204)
    events = app.watch(str(job_id), heartbeat=HEARTBEAT_S)
    # Await the first event before the response starts, so that an unknown job is a 404.
    return SseStream(await anext(events), events)


# ---------------------------------------------------------------- changing


def _plain_number(value: Any) -> Any:
    """Raise ValueError unless the index of a step is written as a plain decimal number, so that each step has exactly
    one URL. For example, 01, +1 and 1_0 are refused."""
    if isinstance(value, str) and not (value.isascii() and value.isdecimal() and value == str(int(value[:9]))):
        raise ValueError("the index of a step must be a decimal number from 0")
    return value


Index = Annotated[int, BeforeValidator(_plain_number)]


@router.post(
    "/{job_id}/cancel",
    summary="Cancel a job that has not ended",
    operation_id="cancel_job",
    responses=documented(
        200,
        models.Job,
        "The cancelled job; or, if only the re-run of a step was cancelled, the job as before.",
        *ONE_JOB,
        WrongState,
    ),
)
async def cancel_job(request: Request, job_id: UUID) -> Response:
    job = await fairlead_of(request).cancel(str(job_id), who=operator_of(request))
    return json_response(job.as_dict())


@router.post(
    "/{job_id}/resume",
    summary="Resume a failed, retryable job at the step that failed",
    operation_id="resume_job",
    responses=documented(
        200, models.Job, "The job, queued again.", *ONE_JOB, WrongState, *LIMITED, headers=RATE_HEADERS
    ),
)
async def resume_job(request: Request, job_id: UUID) -> Response:
    headers = await count_rerun(request, str(job_id))
    job = await fairlead_of(request).resume(str(job_id), who=operator_of(request))
    return json_response(job.as_dict(), headers=headers)


@router.post(
    "/{job_id}/retry",
    summary="Retry a failed job, at the step that failed or from the start",
    operation_id="retry_job",
    description="Works for every FAILED job, also after a permanent error; `warning` is set then.",
    openapi_extra=body(models.RetryRequest, required=False),
    responses=documented(
        200,
        models.RetriedJob,
        "The job, queued again.",
        *ONE_JOB,
        *WITH_BODY,
        WrongState,
        *LIMITED,
        headers=RATE_HEADERS,
    ),
)
async def retry_job(request: Request, job_id: UUID) -> Response:
    command = await request_parsing.read_model(request, models.RetryRequest)
    who = operator_of(request)
    headers = {} if who is not None else await count_rerun(request, str(job_id))
    job = await fairlead_of(request).retry(str(job_id), from_start=command.from_start, who=who)
    return json_response(job.as_dict(), headers=headers)


@executions_router.post(
    "/{job_id}/retry-question",
    summary="Project Beacon's retry button: retry a failed job, or run the last step of a completed one again",
    operation_id="retry_question",
    responses=documented(
        200, models.RetriedJob, "The job, queued again.", *ONE_JOB, WrongState, *LIMITED, headers=RATE_HEADERS
    ),
)
async def retry_question(request: Request, job_id: UUID) -> Response:
    app, who, name = fairlead_of(request), operator_of(request), str(job_id)
    headers = {} if who is not None else await count_rerun(request, name)
    job = await app.get(name)
    if job.status is JobStatus.COMPLETED:
        again = retried(await app.retry_step(name, len(job.steps) - 1, who=who), None)
    else:
        again = await app.retry(name, who=who)
    return json_response(again.as_dict(), headers=headers)


@router.post(
    "/{job_id}/steps/{index}/retry",
    summary="Run one step of a finished job again",
    operation_id="retry_step",
    description="Steps are numbered from 0. The previous result moves to `history`; results of later steps stay.",
    responses=documented(
        200, models.Job, "The job, queued for that step.", *ONE_JOB, WrongState, *LIMITED, headers=RATE_HEADERS
    ),
)
async def retry_step(request: Request, job_id: UUID, index: Index) -> Response:
    headers = await count_rerun(request, str(job_id))
    job = await fairlead_of(request).retry_step(str(job_id), index, who=operator_of(request))
    return json_response(job.as_dict(), headers=headers)


@router.delete(
    "/{job_id}",
    status_code=204,
    summary="Delete a finished job",
    operation_id="delete_job",
    responses=documented(204, None, "Deleted.", *ONE_JOB, WrongState),
)
async def delete_job(request: Request, job_id: UUID) -> Response:
    await fairlead_of(request).delete(str(job_id), who=operator_of(request))
    return Response(status_code=204)
