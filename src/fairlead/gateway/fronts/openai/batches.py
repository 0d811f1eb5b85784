"""`/v1/batches`: OpenAI's batches, whose requests are the lines of a file (docs/adr/0041)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from fairlead.app.file_batches import NewFileBatch, check_metadata
from fairlead.domain.access import Role
from fairlead.domain.file_batch import ENDPOINTS, openai_view
from fairlead.errors import InvalidInput, NotFound, TooManyWaiting, WrongState
from fairlead.gateway import models_openai, request_parsing
from fairlead.gateway.fronts.callers import USER_HEADER
from fairlead.gateway.fronts.openai.errors import PREFIX
from fairlead.gateway.fronts.openai.files import KEPT_FOR_S, list_view, user_in
from fairlead.gateway.fronts.openai.requests import retries
from fairlead.gateway.openapi import WITH_BODY, body, header, in_openai_shape
from fairlead.gateway.permissions import caller_of
from fairlead.gateway.request_middleware import headers_of
from fairlead.gateway.responses import fairlead_of, json_response

router = APIRouter(prefix=PREFIX.rstrip("/"), tags=["openai"])

_USER = header(USER_HEADER, "With the key of a service: the user of the batch. Lists have batches of this user only.")
_KEY = header("Idempotency-Key", "Requests with the same key and body get one batch.", maxLength=255)


@router.post(
    "/batches",
    summary="Create a batch from a file",
    operation_id="openai_create_batch",
    description="The file is validated afterwards. `fairlead` has when the batch is expected to end.",
    openapi_extra={**body(models_openai.OpenAIBatchRequest), "parameters": [_USER, _KEY]},
    responses=in_openai_shape(models_openai.OpenAIBatch, "The batch.", *WITH_BODY, TooManyWaiting),
)
async def create_batch(request: Request) -> Response:
    fields = await request_parsing.read_model(request, models_openai.OpenAIBatchRequest)
    if fields.endpoint not in ENDPOINTS:
        raise InvalidInput(f"endpoint must be one of {', '.join(ENDPOINTS)}", pointer="/endpoint")
    app, expiry = fairlead_of(request), fields.output_expires_after
    key = request_parsing.idempotency_key(request)
    batch = await app.file_batches.create(
        NewFileBatch(
            user_in(request),
            fields.input_file_id,
            fields.endpoint,
            fields.completion_window,
            check_metadata(fields.metadata),
            float(KEPT_FOR_S if expiry is None else expiry.seconds),
            lowers_only=caller_of(request).role is Role.USER,
            retried=retries(headers_of(request.scope)) > 0,
            key=key,
        )
    )
    return json_response(openai_view(batch, app.now()))


@router.get(
    "/batches",
    summary="List batches, newest first",
    operation_id="openai_list_batches",
    openapi_extra={"parameters": [_USER]},
    responses=in_openai_shape(models_openai.OpenAIBatches, "One page.", InvalidInput),
)
async def list_batches(request: Request, query: Annotated[models_openai.OpenAIBatchesQuery, Query()]) -> Response:
    app = fairlead_of(request)
    found = await app.file_batches.list(user_in(request), after=query.after, limit=query.limit + 1)
    data = [openai_view(batch, app.now()) for batch in found[: query.limit]]
    return json_response(list_view(data, len(found) > query.limit))


@router.get(
    "/batches/{id}",
    summary="One batch",
    operation_id="openai_batch",
    openapi_extra={"parameters": [_USER]},
    responses=in_openai_shape(models_openai.OpenAIBatch, "The batch.", InvalidInput, NotFound),
)
async def get_batch(request: Request, id: str) -> Response:
    app = fairlead_of(request)
    return json_response(openai_view(await app.file_batches.get(id, user_in(request)), app.now()))


@router.post(
    "/batches/{id}/cancel",
    summary="Cancel a batch",
    operation_id="openai_cancel_batch",
    openapi_extra={"parameters": [_USER]},
    responses=in_openai_shape(
        models_openai.OpenAIBatch, "The batch, which ends soon.", InvalidInput, NotFound, WrongState
    ),
)
async def cancel_batch(request: Request, id: str) -> Response:
    app = fairlead_of(request)
    return json_response(openai_view(await app.file_batches.cancel(id, user_in(request)), app.now()))
