"""`/api/v1/jobs`: submit, look, cancel, resume, retry a step, delete.

Submitting is the hot path: it reads and writes JSON with orjson alone, and `Express` calls it past FastAPI's layers.
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

from fairlead.domain.job import JobStatus
from fairlead.domain.keys import Role
from fairlead.errors import IdempotencyMismatch, InvalidInput, RequestError, TooManyWaiting, WrongState
from fairlead.gateway import bodies, models
from fairlead.gateway.accepting import accept
from fairlead.gateway.access import caller_of, operator_of, user_in_reach
from fairlead.gateway.openapi import EVENT, ONE_JOB, RATE_HEADERS, SUBMIT, answers, body, header
from fairlead.gateway.problems import ManyInvalid, RateLimited
from fairlead.gateway.replies import answer, answer_page, fairlead_of
from fairlead.gateway.stream import END, HEARTBEAT_S, EventStream
from fairlead.runtime.events import iso

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.domain.order import Place
    from fairlead.handle import Receipt
    from fairlead.runtime.view import JobView

JOBS = "/api/v1/jobs"
BULK = f"{JOBS}/bulk"
LONGEST_BULK_KEY = 240

router = APIRouter(prefix=JOBS, tags=["jobs"])

KEY = header(
    "Idempotency-Key",
    "The same key with the same body gives the job made the first time.",
    minLength=1,
    maxLength=255,
)
_PREFER = header("Prefer", "`wait=N`: wait up to N seconds (at most 60) for the job's end.", examples=["wait=30"])
_REPLAYED = {"Idempotent-Replayed": "`true` when the key was seen before.", **RATE_HEADERS}
ACCEPTED = {"Location": "The job.", "Preference-Applied": "The wait that was applied.", **_REPLAYED}


# ---------------------------------------------------------------- submitting


@router.post(
    "",
    status_code=202,
    summary="Submit a job",
    operation_id="submit_job",
    openapi_extra={**body(models.SubmitRequest), "parameters": [KEY, _PREFER]},
    responses={
        **answers(
            202,
            models.Receipt,
            "Accepted: the job is committed.",
            *SUBMIT,
            IdempotencyMismatch,
            TooManyWaiting,
            RateLimited,
            headers=ACCEPTED,
        ),
        **answers(200, models.Job, "With `Prefer: wait=N`: the job, which has ended.", headers=ACCEPTED),
    },
)
async def submit_job(request: Request) -> Response:
    app = fairlead_of(request)
    raw = await bodies.read_json(request)
    caller = caller_of(request)
    is_user = caller.role is Role.USER
    wanted = bodies.read_submission(bodies.as_own(raw, caller.user_id) if is_user else raw)
    key = bodies.idempotency_key(request)
    receipts, counted = await accept(request, [wanted], key, idempotency_key=key, lowers_only=is_user)
    receipt = receipts[0]
    headers = {"Location": f"{JOBS}/{receipt.job_id}", **counted}
    if receipt.replayed:
        headers["Idempotent-Replayed"] = "true"
    seconds = bodies.preferred_wait(request)
    if seconds is not None:
        headers["Preference-Applied"] = f"wait={seconds}"
        job = await app.wait(receipt.job_id, seconds)
        if job.status.finished:
            return answer(job.as_dict(), 200, headers)
        return answer(receipt_of(job), 202, headers)
    shown = await _receipts(app, receipts)
    return answer(shown[0], 202, headers)


@router.post(
    "/bulk",
    status_code=202,
    summary="Submit many jobs, all or none",
    operation_id="submit_jobs",
    openapi_extra={**body(models.BulkRequest), "parameters": [KEY]},
    responses=answers(
        202,
        models.BulkReceipt,
        "Accepted: all of them are committed.",
        *SUBMIT,
        IdempotencyMismatch,
        TooManyWaiting,
        RateLimited,
        headers=_REPLAYED,
    ),
)
async def submit_jobs(request: Request) -> Response:
    app = fairlead_of(request)
    raw = await bodies.read_json(request)
    caller = caller_of(request)
    is_user = caller.role is Role.USER
    if is_user:
        raw = bodies.all_as_own(raw, caller.user_id)
    wanted = bodies.read_bulk(raw, app.config)
    key = bodies.idempotency_key(request)
    first_key, keyed = _bulk_key(key, raw)
    try:
        receipts, headers = await accept(request, wanted, first_key, **keyed, lowers_only=is_user)
    except RequestError as error:
        _name_items(error, raw["jobs"], app)
        raise
    if all(receipt.replayed for receipt in receipts):
        headers["Idempotent-Replayed"] = "true"
    return answer({"jobs": await _receipts(app, receipts)}, 202, headers)


def _bulk_key(key: str | None, raw: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The first item's key, and what the application makes all items' keys from, for which there must be room. The key
    of a bulk stands for its whole body: a longer or shorter list with the same key is another request, not a few new
    jobs."""
    if key is None:
        return None, {}
    try:
        canonical = orjson.dumps(raw, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return None, {}  # too deep for orjson, and so for any field: the application names the item
    if len(key) > LONGEST_BULK_KEY:
        key = hashlib.sha256(key.encode()).hexdigest()
    first_key = f"{key}#0"
    body_hash = hashlib.sha256(canonical).hexdigest()
    return first_key, {"idempotency_key": first_key if len(raw["jobs"]) == 1 else key, "body_hash": body_hash}


def _name_items(error: RequestError, items: list[Any], app: Fairlead) -> None:
    """The application stops at the first bad item; whoever sent a thousand wants to hear of all."""
    found = bodies.bad_items(items, app.config) if isinstance(error, InvalidInput) else []
    if found:
        raise ManyInvalid(found) from None
    index = error.details.pop("index", None)
    if index is not None:
        error.pointer = f"/jobs/{index}{error.pointer or ''}"


async def _receipts(app: Fairlead, receipts: list[Receipt]) -> list[dict[str, Any]]:
    waiting = [receipt.job_id for receipt in receipts if receipt.status is JobStatus.PENDING]
    places = await app.places_of_new(waiting) if waiting else {}
    return [
        # A job that was there before is told as it is now, not as it was wished for again.
        receipt_of(await app.get(receipt.job_id)) if receipt.replayed else _of_receipt(receipt, places)
        for receipt in receipts
    ]


def _of_receipt(receipt: Receipt, places: dict[str, Place]) -> dict[str, Any]:
    place = places.get(receipt.job_id)
    if place is None:
        return _shown(receipt, None, None)
    return _shown(receipt, place.position, place.estimated_wait())


def receipt_of(job: JobView) -> dict[str, Any]:
    """Of a job that has not ended: where it stands, and where to look."""
    wait = job.estimated_wait
    return _shown(job, job.position, (wait.low, wait.high) if wait is not None else None)


def _shown(job: Receipt | JobView, position: int | None, wait: tuple[float, float] | None) -> dict[str, Any]:
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


# ---------------------------------------------------------------- looking


@router.get(
    "",
    summary="List jobs, newest first",
    operation_id="list_jobs",
    description="A user's key lists its own jobs, whether it says `user_id` or not.",
    responses=answers(200, models.JobPage, "One page.", InvalidInput),
)
async def list_jobs(request: Request, query: Annotated[models.ListQuery, Query()]) -> Response:
    page = await fairlead_of(request).list_jobs(
        user_id=user_in_reach(caller_of(request), query.user_id),
        status=query.status,
        feature_name=query.feature_name,
        since=query.since,
        until=query.until,
        limit=query.limit,
        cursor=query.cursor,
    )
    return answer_page(page)


@router.get(
    "/{job_id}",
    summary="One job, with its results and every failed attempt",
    operation_id="get_job",
    openapi_extra={"parameters": [_PREFER]},
    responses=answers(
        200, models.Job, "The job.", *ONE_JOB, headers={"Preference-Applied": "The wait that was applied."}
    ),
)
async def get_job(request: Request, job_id: UUID) -> Response:
    app, seconds = fairlead_of(request), bodies.preferred_wait(request)
    if seconds is None:
        return answer((await app.get(str(job_id))).as_dict())
    job = await app.wait(str(job_id), seconds)
    return answer(job.as_dict(), headers={"Preference-Applied": f"wait={seconds}"})


@router.get(
    "/{job_id}/why",
    summary="What holds a job now, in words",
    operation_id="why_job",
    description="The reasons, those first that hold it most. A user's key is told how many others there are, not who.",
    responses=answers(200, models.Why, "Why it is where it is.", *ONE_JOB),
)
async def why_job(request: Request, job_id: UUID) -> Response:
    # A user is told how many others there are; who they are is none of its business.
    private = caller_of(request).role is Role.USER
    why = await fairlead_of(request).why(str(job_id), private=private)
    return answer(why.as_dict())


@router.get(
    "/{job_id}/events",
    summary="A job's events, as Server-Sent Events",
    operation_id="watch_job",
    description="First a SNAPSHOT with the whole job, then what happens, until the job ends. A comment every 15 "
    "seconds keeps the connection open. A client that reconnects after the end gets 204, which tells browsers to stop.",
    openapi_extra={"parameters": [header("Last-Event-ID", "Sent by browsers that reconnect.")]},
    responses={
        **answers(200, None, "The events.", *ONE_JOB),
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
        204: {"description": "The job has ended, and the client has seen its last event."},
    },
)
async def watch_job(request: Request, job_id: UUID) -> Response:
    app = fairlead_of(request)
    if request.headers.get("last-event-id", "").endswith(END) and (await app.get(str(job_id))).status.finished:
        return Response(status_code=204)
    events = app.watch(str(job_id), heartbeat=HEARTBEAT_S)
    # A job that is not there must be a 404, so the first event is awaited before the answer begins.
    return EventStream(await anext(events), events)


# ---------------------------------------------------------------- acting


def _plain_number(said: Any) -> Any:
    """One step has one address: neither 01 nor +1 nor 1_0."""
    if isinstance(said, str) and not (said.isascii() and said.isdecimal() and said == str(int(said[:9]))):
        raise ValueError("a step's number is 0 or more, in digits")
    return said


Index = Annotated[int, BeforeValidator(_plain_number)]


@router.post(
    "/{job_id}/cancel",
    summary="Cancel a job that has not ended",
    operation_id="cancel_job",
    responses=answers(
        200,
        models.Job,
        "The job, cancelled; or as it was before the re-run of a step that is given up.",
        *ONE_JOB,
        WrongState,
    ),
)
async def cancel_job(request: Request, job_id: UUID) -> Response:
    job = await fairlead_of(request).cancel(str(job_id), who=operator_of(request))
    return answer(job.as_dict())


@router.post(
    "/{job_id}/resume",
    summary="Take up a failed, retryable job at the step that failed",
    operation_id="resume_job",
    responses=answers(200, models.Job, "The job, in line again.", *ONE_JOB, WrongState, TooManyWaiting),
)
async def resume_job(request: Request, job_id: UUID) -> Response:
    job = await fairlead_of(request).resume(str(job_id), who=operator_of(request))
    return answer(job.as_dict())


@router.post(
    "/{job_id}/steps/{index}/retry",
    summary="Run one step of a finished job again, and no other",
    operation_id="retry_step",
    description="Steps are counted from 0. The earlier result stays in the job's `history`; later steps' results stay.",
    responses=answers(200, models.Job, "The job, in line for that step.", *ONE_JOB, WrongState),
)
async def retry_step(request: Request, job_id: UUID, index: Index) -> Response:
    job = await fairlead_of(request).retry_step(str(job_id), index, who=operator_of(request))
    return answer(job.as_dict())


@router.delete(
    "/{job_id}",
    status_code=204,
    summary="Remove a finished job for good",
    operation_id="delete_job",
    responses=answers(204, None, "It is gone.", *ONE_JOB, WrongState),
)
async def delete_job(request: Request, job_id: UUID) -> Response:
    await fairlead_of(request).delete(str(job_id), who=operator_of(request))
    return Response(status_code=204)
