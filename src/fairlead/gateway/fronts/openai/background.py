"""`/v1/responses/{id}`: background responses are created, read, followed, cancelled and deleted. A request may continue
the conversation of an earlier response."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from fairlead.domain import openai_responses
from fairlead.domain.openai import BadRequest
from fairlead.domain.openai_responses import COMPLETED, INCOMPLETE, QUEUED, job_id_of, skeleton
from fairlead.errors import InvalidInput, NotFound, TooManyReaders, WrongState
from fairlead.gateway import models_openai
from fairlead.gateway.fronts.callers import USER_HEADER
from fairlead.gateway.fronts.openai.answers import JOB_HEADER
from fairlead.gateway.fronts.openai.background_streams import BackgroundStream
from fairlead.gateway.fronts.openai.errors import PREFIX
from fairlead.gateway.fronts.openai.requests import QUEUE_HEADER, FrontCall, queue_view
from fairlead.gateway.fronts.openai.response_objects import find, object_of
from fairlead.gateway.openapi import Error, Responses, header, in_openai_shape
from fairlead.gateway.permissions import operator_of
from fairlead.gateway.request_middleware import headers_of
from fairlead.gateway.responses import fairlead_of, json_response

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead
    from fairlead.app.front_requests import Reading

PREVIOUS = "previous_response_id"
router = APIRouter(prefix=f"{PREFIX}responses", tags=["openai"])

_USER = header(USER_HEADER, "With the key of a service: only if the response is this user's.")
_QUEUE = header(QUEUE_HEADER, "How a stream shows the place in the queue.", enum=["comments", "chunks", "none"])


def _documented(model: type[BaseModel], description: str, *errors: Error) -> Responses:
    """The responses of a route that may refuse a request."""
    error = {"message": "only a background response can be cancelled", "type": "invalid_request_error"}
    example = {"error": {**error, "param": "id", "code": "invalid_request"}}
    schema = {"$ref": "#/components/schemas/OpenAIError"}
    content = {"application/json": {"schema": schema, "examples": {"invalid_request": {"value": example}}}}
    refusal: Responses = {400: {"description": "invalid_request: this response cannot do that", "content": content}}
    return {**refusal, **in_openai_shape(model, description, InvalidInput, NotFound, *errors)}


async def created(app: Fairlead, call: FrontCall, reading: Reading, headers: dict[str, str]) -> Response:
    """The response to a request with `background`: at once, or, with `stream`, the events."""
    headers = {JOB_HEADER: reading.job_id, **headers}
    if call.request.stream:
        return BackgroundStream(app, call, reading, headers)
    if not reading.new:
        job = await app.jobs.get_without_attempts(reading.job_id)
        return json_response(await object_of(app, job, call.request), headers=headers)
    return json_response(skeleton(call.request, reading.job_id, QUEUED), headers=headers)


async def continued_call(request: Request, call: FrontCall) -> FrontCall:
    """The call with the conversation of the response that it continues, if that is one of the gateway's. An upstream
    may know other ids. Raises BadRequest."""
    previous = call.previous
    assert previous is not None
    if job_id_of(previous) is None:
        return call
    missing = BadRequest(f"there is no response {previous}", PREVIOUS, "previous_response_not_found")
    try:
        found = await find(request, previous)
    except NotFound:
        raise missing from None
    if found.job.user_id != call.user_id:
        raise missing
    response = await object_of(fairlead_of(request), found.job, found.request)
    if response["status"] not in (COMPLETED, INCOMPLETE):
        raise BadRequest(f"the response {previous} is {response['status']}, and cannot be continued", PREVIOUS)
    try:
        fields = json.loads(call.request.body)
        fields["input"] = openai_responses.continued(found.fields, response["output"], fields)
        del fields[PREVIOUS]
        body = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    except RecursionError:
        raise BadRequest("the conversation is nested too deeply", "input") from None
    return call._replace(request=replace(call.request, body=body, previous=previous))


@router.get(
    "/{response_id}",
    summary="A response, or the rest of its events",
    operation_id="openai_get_response",
    description="With `stream=true`, the events of a response that was created with `background` and `stream`, from "
    "`starting_after` on.",
    openapi_extra={"parameters": [_USER, _QUEUE]},
    responses=_documented(models_openai.OpenAIResponse, "The response.", TooManyReaders),
)
async def get_response(
    request: Request, response_id: str, query: Annotated[models_openai.ResponseQuery, Query()]
) -> Response:
    app, found = fairlead_of(request), await find(request, response_id)
    headers = {JOB_HEADER: found.job.job_id}
    if not query.stream:
        return json_response(await object_of(app, found.job, found.request), headers=headers)
    if not (found.request.background and found.request.stream):
        raise BadRequest("only a response created with background and stream has a stream", "stream")
    after = -1 if query.starting_after is None else query.starting_after
    queue = queue_view(headers_of(request.scope))
    return BackgroundStream.again(app, found.job.job_id, found.request, queue, headers, after)


@router.get(
    "/{response_id}/input_items",
    summary="The input of a response",
    operation_id="openai_response_input",
    openapi_extra={"parameters": [_USER]},
    responses=_documented(models_openai.OpenAIItems, "The items."),
)
async def get_input_items(
    request: Request, response_id: str, query: Annotated[models_openai.ItemsQuery, Query()]
) -> Response:
    found = await find(request, response_id)
    items = [_item(found.job.job_id, n, item) for n, item in enumerate(openai_responses.input_items(found.fields))]
    if query.order != "asc":
        items.reverse()
    if query.after is not None:
        ids = [item["id"] for item in items]
        if query.after not in ids:
            raise BadRequest(f"there is no item {query.after}", "after")
        items = items[ids.index(query.after) + 1 :]
    page = items[: query.limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return json_response({"object": "list", "data": page, **ends, "has_more": len(items) > len(page)})


def _item(job_id: str, number: int, item: Any) -> dict[str, Any]:
    """An item of the input as OpenAI shows it."""
    fields = item if isinstance(item, dict) else {"content": item}
    content = fields.get("content")
    if isinstance(content, str):
        fields = {**fields, "content": [{"type": "input_text", "text": content}]}
    return {"type": "message", "status": "completed", **fields, "id": f"item_{job_id.replace('-', '')}{number:04x}"}


@router.post(
    "/{response_id}/cancel",
    summary="Cancel a background response",
    operation_id="openai_cancel_response",
    description="Returns the response. One that has ended stays as it is.",
    openapi_extra={"parameters": [_USER]},
    responses=_documented(models_openai.OpenAIResponse, "The response."),
)
async def cancel_response(request: Request, response_id: str) -> Response:
    app, found = fairlead_of(request), await find(request, response_id)
    if not found.request.background:
        raise BadRequest("only a background response can be cancelled; others end with their connection", "id")
    await _cancel(request, found.job.job_id)
    job = await app.jobs.get_without_attempts(found.job.job_id)
    return json_response(await object_of(app, job, found.request))


@router.delete(
    "/{response_id}",
    summary="Delete a response",
    operation_id="openai_delete_response",
    description="A response that has not ended is cancelled first.",
    openapi_extra={"parameters": [_USER]},
    responses=in_openai_shape(models_openai.OpenAIDeleted, "Deleted.", InvalidInput, NotFound),
)
async def delete_response(request: Request, response_id: str) -> Response:
    found = await find(request, response_id)
    if not found.job.status.finished:
        await _cancel(request, found.job.job_id)
    await fairlead_of(request).delete(found.job.job_id, who=operator_of(request))
    return json_response({"id": found.id, "object": "response", "deleted": True})


async def _cancel(request: Request, job_id: str) -> None:
    with contextlib.suppress(WrongState):  # it has ended
        await fairlead_of(request).cancel(job_id, who=operator_of(request))
