"""`/api/v1/batches`: many jobs submitted at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any
from uuid import UUID

import orjson
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from fairlead.app.batch_submission import BatchInvalid
from fairlead.domain.access import Role
from fairlead.domain.batch import REMOVED, ItemView
from fairlead.domain.job import JobStatus
from fairlead.errors import BudgetSpent, IdempotencyMismatch, InvalidInput, TooManyWaiting, WrongState
from fairlead.gateway import large_bodies, models, models_batches, request_parsing
from fairlead.gateway.jobs import LIMITED
from fairlead.gateway.large_bodies import NDJSON
from fairlead.gateway.openapi import EVENT, ONE_JOB, RATE_HEADERS, SUBMIT, WITH_BODY, body, documented, header
from fairlead.gateway.permissions import caller_of, operator_of, user_in_reach
from fairlead.gateway.problems import ManyInvalid, RateLimited
from fairlead.gateway.rate_limit import count_jobs, give_back_jobs
from fairlead.gateway.responses import END, HEARTBEAT_S, SseStream, fairlead_of, json_response

BATCHES = "/api/v1/batches"
ONE_BATCH = ONE_JOB
PIECE = 64 * 1024
"""Minimum size of a chunk of results in bytes. Only the last chunk may be smaller."""

router = APIRouter(prefix=BATCHES, tags=["batches"])

_KEY = header(
    "Idempotency-Key",
    "A repeated request with the same key and items returns the batch of the first one.",
    minLength=1,
    maxLength=255,
)
_PREFER = header("Prefer", "`wait=N`: wait up to N seconds (at most 60) for the batch to end.", examples=["wait=30"])
_BODY = body(models_batches.BatchRequest)
_BODY["requestBody"]["content"][NDJSON] = {
    "schema": {"type": "string", "description": "One item per line."},
    "example": '{"custom_id": "q1", "feature_name": "text_only", "input_data": {"prompt": "one"}}\n',
}


# ---------------------------------------------------------------- submitting


@router.post(
    "",
    status_code=202,
    summary="Submit many jobs as one batch, either all or none",
    operation_id="submit_batch",
    description="As one JSON object, or as JSON Lines with one item per line and the other fields in the query.",
    openapi_extra={**_BODY, "parameters": [_KEY]},
    responses=documented(
        202,
        models_batches.BatchReceipt,
        "Accepted: all jobs are committed.",
        *SUBMIT,
        IdempotencyMismatch,
        BudgetSpent,
        TooManyWaiting,
        RateLimited,
        headers={
            "Location": "The batch.",
            "Idempotent-Replayed": "`true` for a repeated request.",
            **RATE_HEADERS,
        },
    ),
)
async def submit_batch(request: Request, query: Annotated[models_batches.SubmitBatchQuery, Query()]) -> Response:
    app, caller = fairlead_of(request), caller_of(request)
    submission = await large_bodies.read_batch(request, caller, query.model_dump(mode="json"))
    key = request_parsing.idempotency_key(request)
    max_items, number = app.config.server.max_bulk, len(submission.items)
    # Each item counts as a submitted job. A batch with too many items is refused by the application.
    headers = count_jobs(request, submission.user_id, number) if number <= max_items else {}
    try:
        receipt = await app.accept_batch(
            submission,
            idempotency_key=key,
            lowers_only=caller.role is Role.USER,
            trace=request_parsing.trace_of(request),
        )
    except BatchInvalid as error:
        raise ManyInvalid(error.errors) from None
    url = f"{BATCHES}/{receipt.batch_id}"
    headers["Location"] = url
    if receipt.replayed:
        headers |= give_back_jobs(request, submission.user_id, number) | {"Idempotent-Replayed": "true"}
    links = {f"{name}_url": f"{url}/{name}" for name in ("items", "results", "events", "cancel")}
    accepted = {"batch_id": receipt.batch_id, "total": receipt.total, "links": {"status_url": url, **links}}
    return json_response(accepted, 202, headers)


# ---------------------------------------------------------------- reading


@router.get(
    "",
    summary="List batches, newest first",
    operation_id="list_batches",
    description="A user's key lists its own batches, with or without `user_id`.",
    responses=documented(200, models_batches.BatchPage, "One page.", InvalidInput),
)
async def list_batches(request: Request, query: Annotated[models_batches.BatchesQuery, Query()]) -> Response:
    user_id = user_in_reach(caller_of(request), query.user_id)
    page = await fairlead_of(request).list_batches(user_id=user_id, limit=query.limit, cursor=query.cursor)
    return json_response({"data": [batch.as_dict() for batch in page.data], "next_cursor": page.next_cursor})


@router.get(
    "/{batch_id}",
    summary="One batch with its counts and progress",
    operation_id="get_batch",
    openapi_extra={"parameters": [_PREFER]},
    responses=documented(
        200,
        models_batches.Batch,
        "The batch.",
        *ONE_BATCH,
        headers={"Preference-Applied": "The wait that was applied."},
    ),
)
async def get_batch(request: Request, batch_id: UUID) -> Response:
    app, seconds = fairlead_of(request), request_parsing.preferred_wait(request)
    if seconds is None:
        return json_response((await app.get_batch(str(batch_id))).as_dict())
    batch = await app.wait_batch(str(batch_id), seconds)
    return json_response(batch.as_dict(), headers={"Preference-Applied": f"wait={seconds}"})


@router.get(
    "/{batch_id}/items",
    summary="The items of a batch, in order",
    operation_id="list_batch_items",
    responses=documented(200, models_batches.ItemPage, "One page.", *ONE_BATCH),
)
async def list_items(
    request: Request, batch_id: UUID, query: Annotated[models_batches.ItemsQuery, Query()]
) -> Response:
    status = query.status if query.status is None or query.status == REMOVED else JobStatus(query.status)
    page = await fairlead_of(request).batch_items(str(batch_id), status=status, limit=query.limit, cursor=query.cursor)
    return json_response({"data": [item.as_dict() for item in page.data], "next_cursor": page.next_cursor})


@router.get(
    "/{batch_id}/results",
    summary="Every item with its result, as JSON Lines",
    operation_id="get_batch_results",
    description="In the order of the items. Each item has the state at the time it is read, so wait for the batch to "
    "end to get all results.",
    responses={
        **documented(200, None, "The results.", *ONE_BATCH),
        200: {
            "description": "One line per item.",
            "content": {
                NDJSON: {
                    "schema": {"type": "string"},
                    "example": orjson.dumps(models_batches.RESULT).decode() + "\n",
                }
            },
        },
    },
)
async def get_results(request: Request, batch_id: UUID) -> Response:
    items = fairlead_of(request).batch_results(str(batch_id))
    # Await the first item before the response starts, so that an unknown batch is a 404.
    return StreamingResponse(_lines(await anext(items), items), media_type=NDJSON)


async def _lines(first: ItemView, items: AsyncIterator[ItemView]) -> AsyncIterator[bytes]:
    """Yield the items of a batch as JSON Lines, several short lines per chunk: sending each line by itself takes longer
    than reading it from the database."""
    piece = [_line(first)]
    size = len(piece[0])
    async for item in items:
        if size >= PIECE:
            yield b"".join(piece)
            piece.clear()
            size = 0
        piece.append(_line(item))
        size += len(piece[-1])
    yield b"".join(piece)


def _line(item: ItemView) -> bytes:
    return orjson.dumps(item.as_result(), default=str, option=orjson.OPT_APPEND_NEWLINE)


@router.get(
    "/{batch_id}/events",
    summary="A batch's progress, as Server-Sent Events",
    operation_id="watch_batch",
    description="BATCH with the whole batch, then BATCH_PROGRESS at most once a second after changes, and "
    "BATCH_COMPLETE when every item has ended. A client that reconnects after that receives 204, which makes "
    "browsers stop.",
    openapi_extra={"parameters": [header("Last-Event-ID", "Sent by browsers that reconnect.")]},
    responses={
        **documented(200, None, "The events.", *ONE_BATCH),
        200: {"description": "The events.", "content": {"text/event-stream": {"itemSchema": EVENT}}},
        204: {"description": "Every item has ended and the client has received the last event."},
    },
)
async def watch_batch(request: Request, batch_id: UUID) -> Response:
    app = fairlead_of(request)
    if request.headers.get("last-event-id", "").endswith(END) and (await app.get_batch(str(batch_id))).finished:
        return Response(status_code=204)
    events = app.watch_batch(str(batch_id), heartbeat=HEARTBEAT_S)
    # Await the first event before the response starts, so that an unknown batch is a 404.
    return SseStream(await anext(events), events)


# ---------------------------------------------------------------- changing


@router.post(
    "/{batch_id}/cancel",
    summary="Cancel every item that has not ended",
    operation_id="cancel_batch",
    responses=documented(
        200, models_batches.BatchCancelled, "The number of items, and the batch.", *ONE_BATCH, WrongState
    ),
)
async def cancel_batch(request: Request, batch_id: UUID) -> Response:
    cancelled = await fairlead_of(request).cancel_batch(str(batch_id), who=operator_of(request))
    return await _changed(request, str(batch_id), cancelled=cancelled)


@router.post(
    "/{batch_id}/resume",
    summary="Resume every failed item that is retryable",
    operation_id="resume_batch",
    responses=documented(
        200,
        models_batches.BatchResumed,
        "The number of items, and the batch.",
        *ONE_BATCH,
        WrongState,
        *LIMITED,
        headers=RATE_HEADERS,
    ),
)
async def resume_batch(request: Request, batch_id: UUID) -> Response:
    who = operator_of(request)
    return await _revived(
        request, str(batch_id), "resumed", lambda: fairlead_of(request).resume_batch(str(batch_id), who=who)
    )


@router.post(
    "/{batch_id}/retry",
    summary="Retry every failed item, at the step that failed or from the start",
    operation_id="retry_batch",
    description="Works for every FAILED item, also after a permanent error.",
    openapi_extra=body(models.RetryRequest, required=False),
    responses=documented(
        200,
        models_batches.BatchRetried,
        "The number of items, and the batch.",
        *ONE_BATCH,
        *WITH_BODY,
        *LIMITED,
        headers=RATE_HEADERS,
    ),
)
async def retry_batch(request: Request, batch_id: UUID) -> Response:
    command = await request_parsing.read_model(request, models.RetryRequest)
    app, who = fairlead_of(request), operator_of(request)

    async def retry() -> int:
        return await app.retry_batch(str(batch_id), from_start=command.from_start, who=who)

    if who is not None:
        return await _changed(request, str(batch_id), retried=await retry())
    return await _revived(request, str(batch_id), "retried", retry)


async def _revived(request: Request, batch_id: str, verb: str, revive: Callable[[], Awaitable[int]]) -> Response:
    """Call `revive`, which queues failed items of a batch again, within the user's rate limit. How many items it queues
    is known only afterwards, so all failed items are counted toward the limit first, and those that were not queued are
    then given back. A request that queues no item counts as one job."""
    batch = await fairlead_of(request).get_batch(batch_id)
    failed = max(1, batch.counts.get(JobStatus.FAILED, 0))
    headers, revived = count_jobs(request, batch.user_id, failed), 1
    try:
        revived = await revive()
    finally:
        headers |= give_back_jobs(request, batch.user_id, max(0, failed - max(1, revived)))
    return await _changed(request, batch_id, headers, **{verb: revived})


async def _changed(request: Request, batch_id: str, headers: dict[str, str] | None = None, **number: int) -> Response:
    batch = await fairlead_of(request).get_batch(batch_id)
    body: dict[str, Any] = {**number, "batch": batch.as_dict()}
    return json_response(body, headers=headers)


@router.post(
    "/{batch_id}/items/{item}/retry",
    summary="Retry one failed item at the step that failed",
    operation_id="retry_batch_item",
    description="By `custom_id` or index. An item that is not retryable may be retried too: it starts a new round "
    "with fresh attempts.",
    responses=documented(
        200, models_batches.Item, "The item, queued again.", *ONE_BATCH, WrongState, *LIMITED, headers=RATE_HEADERS
    ),
)
async def retry_item(request: Request, batch_id: UUID, item: str) -> Response:
    app = fairlead_of(request)
    user_id = caller_of(request).user_id or await app.owner_of_batch(str(batch_id))
    headers = {} if user_id is None else count_jobs(request, user_id, 1)
    retried = await app.retry_item(str(batch_id), item, who=operator_of(request))
    return json_response(retried.as_dict(), headers=headers)
