"""The routes below `/v1`. Requests become jobs; GET routes list the models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fairlead.app.models import known_models
from fairlead.errors import IdempotencyMismatch, TooManyWaiting, UnknownModel
from fairlead.gateway import models_openai
from fairlead.gateway.fronts.callers import USER_HEADER
from fairlead.gateway.fronts.openai.answers import JOB_HEADER, Answer
from fairlead.gateway.fronts.openai.background import continued_call, created
from fairlead.gateway.fronts.openai.errors import PREFIX
from fairlead.gateway.fronts.openai.requests import QUEUE_HEADER, WEBHOOK_HEADER, read_call
from fairlead.gateway.fronts.openai.streams import Stream
from fairlead.gateway.fronts.openai.submits import read_or_submit
from fairlead.gateway.openapi import SUBMIT, header, in_openai_shape
from fairlead.gateway.problems import RateLimited
from fairlead.gateway.responses import fairlead_of, json_response

router = APIRouter(prefix=PREFIX.rstrip("/"), tags=["openai"])


_MODEL = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}, "description": "Its name."}
_PATH = {"name": "path", "in": "path", "required": True, "schema": {"type": "string"}, "description": "Any path."}
_PARAMETERS = [
    header(USER_HEADER, "With the key of a service: the user of the request. Overrides the field `user`."),
    header("Idempotency-Key", "Requests with the same key and body get the answer of one job.", maxLength=255),
    header(WEBHOOK_HEADER, "Of a background response: the URL that learns of its end.", maxLength=2000),
    header(QUEUE_HEADER, "How a stream shows the place in the queue.", enum=["comments", "chunks", "none"]),
]
_BODY = {
    "required": True,
    "content": {
        "application/json": {"schema": {"$ref": "#/components/schemas/OpenAIRequest"}},
        "multipart/form-data": {"schema": {"type": "object"}},
    },
}
_OPTIONS: dict[str, Any] = {
    "openapi_extra": {"requestBody": _BODY, "parameters": _PARAMETERS},
    "responses": {
        **in_openai_shape(None, "", *SUBMIT, UnknownModel, IdempotencyMismatch, TooManyWaiting, RateLimited),
        200: {
            "description": "The upstream's answer, unchanged; with `stream`, as Server-Sent Events.",
            "headers": {JOB_HEADER: {"description": "The id of the request's job.", "schema": {"type": "string"}}},
            "content": {"application/json": {}, "text/event-stream": {}},
        },
    },
}


_ANY_PATH = {**_OPTIONS, "openapi_extra": {"requestBody": _BODY, "parameters": [_PATH, *_PARAMETERS]}}


@router.get(
    "/models",
    summary="List the models",
    operation_id="openai_models",
    responses=in_openai_shape(models_openai.OpenAIModels, "The models."),
)
async def list_models(request: Request) -> Response:
    models = await fairlead_of(request).models.all()
    return json_response({"object": "list", "data": [model.as_dict() for model in models]})


@router.get(
    "/models/{model:path}",
    summary="One model",
    operation_id="openai_model",
    openapi_extra={"parameters": [_MODEL]},
    responses=in_openai_shape(models_openai.OpenAIModel, "The model.", UnknownModel),
)
async def get_model(request: Request) -> Response:
    model: str = request.path_params["model"]
    models = await fairlead_of(request).models.all()
    for each in models:
        if each.id == model:
            return json_response(each.as_dict())
    raise UnknownModel(f"there is no model {model[:100]!r}; {known_models(models)}")


@router.post("/chat/completions", summary="Chat with a model", operation_id="openai_chat", **_OPTIONS)
@router.post("/completions", summary="Complete a text", operation_id="openai_completion", **_OPTIONS)
@router.post("/embeddings", summary="Embed texts", operation_id="openai_embeddings", **_OPTIONS)
@router.post("/images/generations", summary="Generate images", operation_id="openai_images", **_OPTIONS)
@router.post("/responses", summary="Create a response", operation_id="openai_response", **_OPTIONS)
@router.post("/{path:path}", summary="Any other request of the upstream", operation_id="openai_other", **_ANY_PATH)
async def forward(request: Request) -> Response:
    app = fairlead_of(request)
    call = await read_call(request)
    if call.previous is not None:
        call = await continued_call(request, call)
    reading, headers = await read_or_submit(request, call)
    if call.request.background:
        return await created(app, call, reading, headers)
    kind = Stream if call.request.stream else Answer
    return kind(app, call, reading, {JOB_HEADER: reading.job_id, **headers})
