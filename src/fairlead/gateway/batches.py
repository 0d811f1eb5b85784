"""`/api/v1/batches`: many jobs submitted as one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any
from uuid import UUID

import orjson
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from fairlead.domain.job import JobStatus
from fairlead.domain.keys import Role
from fairlead.errors import IdempotencyMismatch, InvalidInput, TooManyWaiting, WrongState
from fairlead.gateway import batch_bodies, bodies
from fairlead.gateway import models_batches as shapes
from fairlead.gateway.access import caller_of, operator_of, user_in_reach
from fairlead.gateway.batch_bodies import NDJSON
from fairlead.gateway.openapi import EVENT, ONE_JOB, RATE_HEADERS, SUBMIT, answers, body, header
from fairlead.gateway.problems import ManyInvalid, RateLimited
from fairlead.gateway.rates import SubmitRate
from fairlead.gateway.replies import answer, fairlead_of
from fairlead.gateway.stream import END, HEARTBEAT_S, EventStream
from fairlead.runtime.batch_submission import BatchInvalid, BatchSubmission
from fairlead.runtime.batch_view import REMOVED, ItemView
from fairlead.runtime.submission import Submission

BATCHES = "/api/v1/batches"
ONE_BATCH = ONE_JOB
LINES_AT_A_TIME = 100

router = APIRouter(prefix=BATCHES, tags=["batches"])

_KEY = header(
    "Idempotency-Key",
    "The same key with the same items gives the batch made the first time.",
    minLength=1,
    maxLength=255,
)
_PREFER = header("Prefer", "`wait=N`: wait up to N seconds (at most 60) for the batch's end.", examples=["wait=30"])
_BODY = body(shapes.BatchRequest)
_BODY["requestBody"]["content"][NDJSON] = {
    "schema": {"type": "string", "description": "One item a line."},
    "example": '{"custom_id": "q1", "feature_name": "text_only", "input_data": {"prompt": "one"}}\n',
}


# ---------------------------------------------------------------- submitting


@router.post(
    "",
    status_code=202,
    summary="Submit many jobs as one batch, all or none",
    operation_id="submit_batch",
    description="As one JSON object, or as JSON Lines with one item a line and what concerns all of them in the query.",
    openapi_extra={**_BODY, "parameters": [_KEY]},
    responses=answers(
        202,
        shapes.BatchReceipt,
        "Accepted: all of its jobs are committed.",
        *SUBMIT,
        IdempotencyMismatch,
        TooManyWaiting,
        RateLimited,
        headers={
            "Location": "The batch.",
            "Idempotent-Replayed": "`true` when the key was seen before.",
            **RATE_HEADERS,
        },
    ),
)
async def submit_batch(request: Request, query: Annotated[shapes.SubmitBatchQuery, Query()]) -> Response:
    app, caller = fairlead_of(request), caller_of(request)
    wanted = await batch_bodies.read_batch(request, caller, query.model_dump(mode="json"))
    key = bodies.idempotency_key(request)
    headers = _counted(request, wanted, app.config.server.max_bulk)
    try:
        receipt = await app.accept_batch(wanted, idempotency_key=key, lowers_only=caller.role is Role.USER)
    except BatchInvalid as error:
        raise ManyInvalid(error.found) from None
    url = f"{BATCHES}/{receipt.batch_id}"
    headers["Location"] = url
    if receipt.replayed:
        headers["Idempotent-Replayed"] = "true"
    links = {f"{name}_url": f"{url}/{name}" for name in ("items", "results", "events", "cancel")}
    said = {"batch_id": receipt.batch_id, "total": receipt.total, "links": {"status_url": url, **links}}
    return answer(said, 202, headers)


def _counted(request: Request, wanted: BatchSubmission, most: int) -> dict[str, str]:
    """Each item counts as a job that is submitted; what is too many for a batch is refused for that."""
    rate: SubmitRate | None = request.app.state.submit_rate
    if rate is None or len(wanted.items) > most:
        return {}
    return rate.take([Submission("", None, wanted.user_id)] * len(wanted.items))


# ---------------------------------------------------------------- looking


@router.get(
    "",
    summary="List batches, newest first",
    operation_id="list_batches",
    description="A user's key lists its own batches, whether it says `user_id` or not.",
    responses=answers(200, shapes.BatchPage, "One page.", InvalidInput),
)
async def list_batches(request: Request, query: Annotated[shapes.BatchesQuery, Query()]) -> Response:
    user_id = user_in_reach(caller_of(request), query.user_id)
    page = await fairlead_of(request).list_batches(user_id=user_id, limit=query.limit, cursor=query.cursor)
    return answer({"data": [batch.as_dict() for batch in page.data], "next_cursor": page.next_cursor})


@router.get(
    "/{batch_id}",
    summary="One batch: its counts and its progress",
    operation_id="get_batch",
    openapi_extra={"parameters": [_PREFER]},
    responses=answers(
        200, shapes.Batch, "The batch.", *ONE_BATCH, headers={"Preference-Applied": "The wait that was applied."}
    ),
)
async def get_batch(request: Request, batch_id: UUID) -> Response:
    app, seconds = fairlead_of(request), bodies.preferred_wait(request)
    if seconds is None:
        return answer((await app.get_batch(str(batch_id))).as_dict())
    batch = await app.wait_batch(str(batch_id), seconds)
    return answer(batch.as_dict(), headers={"Preference-Applied": f"wait={seconds}"})


@router.get(
    "/{batch_id}/items",
    summary="A batch's items, in their order",
    operation_id="list_batch_items",
    responses=answers(200, shapes.ItemPage, "One page.", *ONE_BATCH),
)
async def list_items(request: Request, batch_id: UUID, query: Annotated[shapes.ItemsQuery, Query()]) -> Response:
    status = query.status if query.status is None or query.status == REMOVED else JobStatus(query.status)
    page = await fairlead_of(request).batch_items(str(batch_id), status=status, limit=query.limit, cursor=query.cursor)
    return answer({"data": [item.as_dict() for item in page.data], "next_cursor": page.next_cursor})


@router.get(
    "/{batch_id}/results",
    summary="Every item with its result, as JSON Lines",
    operation_id="get_batch_results",
    description="In the order of the items, each as it is when it is reached: ask when the batch has ended for all.",
    responses={
        **answers(200, None, "The results.", *ONE_BATCH),
        200: {
            "description": "One line for each item.",
            "content": {
                NDJSON: {
                    "schema": {"type": "string"},
                    "example": orjson.dumps(shapes.ItemResult.model_config["json_schema_extra"]["examples"][0]).decode()  # type: ignore[index]
                    + "\n",
                }
            },
        },
    },
)
async def get_results(request: Request, batch_id: UUID) -> Response:
    items = fairlead_of(request).batch_results(str(batch_id))
    # A batch that is not there must be a 404, so the first item is awaited before the answer begins.
    return StreamingResponse(_lines(await anext(items), items), media_type=NDJSON)


async def _lines(first: ItemView, items: AsyncIterator[ItemView]) -> AsyncIterator[bytes]:
    """A hundred in a piece: sending each by itself takes longer than reading it."""
    piece = [_line(first)]
    async for item in items:
        piece.append(_line(item))
        if len(piece) >= LINES_AT_A_TIME:
            yield b"".join(piece)
            piece.clear()
    if piece:
        yield b"".join(piece)


def _line(item: ItemView) -> bytes:
    return orjson.dumps(item.as_result(), default=str, option=orjson.OPT_APPEND_NEWLINE)


@router.get(
    "/{batch_id}/events",
    summary="A batch's progress, as Server-Sent Events",
    operation_id="watch_batch",
    description="First BATCH with the whole batch, then BATCH_PROGRESS at most once a second when something changed, "
    "and BATCH_COMPLETE when every item has ended. A client that reconnects after that gets 204, which tells browsers "
    "to stop.",
    openapi_extra={"parameters": [header("Last-Event-ID", "Sent by browsers that reconnect.")]},
    responses={
        **answers(200, None, "The events.", *ONE_BATCH),
        200: {"description": "The events.", "content": {"text/event-stream": {"itemSchema": EVENT}}},
        204: {"description": "Every item has ended, and the client has seen the last event."},
    },
)
async def watch_batch(request: Request, batch_id: UUID) -> Response:
    app = fairlead_of(request)
    if request.headers.get("last-event-id", "").endswith(END) and (await app.get_batch(str(batch_id))).finished:
        return Response(status_code=204)
    events = app.watch_batch(str(batch_id), heartbeat=HEARTBEAT_S)
    # A batch that is not there must be a 404, so the first event is awaited before the answer begins.
    return EventStream(await anext(events), events)


# ---------------------------------------------------------------- acting


@router.post(
    "/{batch_id}/cancel",
    summary="Cancel every item that has not ended",
    operation_id="cancel_batch",
    responses=answers(200, shapes.BatchCancelled, "How many, and the batch.", *ONE_BATCH, WrongState),
)
async def cancel_batch(request: Request, batch_id: UUID) -> Response:
    cancelled = await fairlead_of(request).cancel_batch(str(batch_id), who=operator_of(request))
    return await _acted(request, str(batch_id), cancelled=cancelled)


@router.post(
    "/{batch_id}/resume",
    summary="Take up every failed item that is marked retryable",
    operation_id="resume_batch",
    responses=answers(200, shapes.BatchResumed, "How many, and the batch.", *ONE_BATCH, WrongState),
)
async def resume_batch(request: Request, batch_id: UUID) -> Response:
    resumed = await fairlead_of(request).resume_batch(str(batch_id), who=operator_of(request))
    return await _acted(request, str(batch_id), resumed=resumed)


async def _acted(request: Request, batch_id: str, **count: int) -> Response:
    batch = await fairlead_of(request).get_batch(batch_id)
    said: dict[str, Any] = {**count, "batch": batch.as_dict()}
    return answer(said)


@router.post(
    "/{batch_id}/items/{item}/retry",
    summary="Take up one failed item at the step that failed",
    operation_id="retry_batch_item",
    description="By its `custom_id` or its number. One that is not marked retryable may be retried too: it begins "
    "a new round, with fresh attempts.",
    responses=answers(200, shapes.Item, "The item, in line again.", *ONE_BATCH, WrongState),
)
async def retry_item(request: Request, batch_id: UUID, item: str) -> Response:
    retried = await fairlead_of(request).retry_item(str(batch_id), item, who=operator_of(request))
    return answer(retried.as_dict())
