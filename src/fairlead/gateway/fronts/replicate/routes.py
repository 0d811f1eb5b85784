"""The routes below `/replicate/v1`, except those of files. Errors are problems, which Replicate's clients read."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any
from urllib.parse import quote
from uuid import UUID

import orjson
from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from fairlead.domain.access import Role
from fairlead.domain.replicate import PREFIX, Received
from fairlead.errors import (
    IdempotencyMismatch,
    InvalidInput,
    NotFound,
    TooManyReaders,
    TooManyWaiting,
    UnknownModel,
    WrongState,
)
from fairlead.gateway import models_replicate as models
from fairlead.gateway.fronts.callers import named_user, user_of
from fairlead.gateway.fronts.replicate import catalog, requests
from fairlead.gateway.fronts.replicate.files import USER
from fairlead.gateway.fronts.replicate.predictions import Presenter, base_of
from fairlead.gateway.fronts.replicate.streams import DONE, PredictionStream, StreamResponse
from fairlead.gateway.openapi import EVENT, ONE_JOB, RATE_HEADERS, WITH_BODY, Responses, body, documented, header
from fairlead.gateway.permissions import caller_of, operator_of, user_in_reach
from fairlead.gateway.problems import RateLimited
from fairlead.gateway.request_middleware import headers_of
from fairlead.gateway.responses import fairlead_of, json_response

PAGE = 50
MAX_PART = 128

router = APIRouter(prefix=PREFIX, tags=["replicate"])

Part = Annotated[str, Path(min_length=1, max_length=MAX_PART)]
Cursor = Annotated[str | None, Query(description="From the `next` of a page.", max_length=200)]
_PREFER = header("Prefer", "`wait`, or `wait=N`: wait for the end, at most 60 seconds.", examples=["wait", "wait=10"])
_CREATE: dict[str, Any] = {
    "status_code": 201,
    "openapi_extra": {
        **body(models.PredictionRequest),
        "parameters": [
            _PREFER,
            header(requests.CANCEL_AFTER, "Cancel the prediction after this time.", examples=["30s", "1h30m"]),
            header("Idempotency-Key", "Requests with the same key and body get one prediction.", maxLength=255),
            USER,
        ],
    },
    "responses": documented(
        201,
        models.Prediction,
        "The prediction. If the caller waited and it has not ended, its status is `starting`.",
        *WITH_BODY,
        UnknownModel,
        IdempotencyMismatch,
        TooManyWaiting,
        RateLimited,
        headers=RATE_HEADERS,
    ),
}


# ---------------------------------------------------------------- predictions


@router.post("/predictions", summary="Create a prediction of a version", operation_id="replicate_predict", **_CREATE)
async def create_prediction(request: Request) -> Response:
    return await _create(request, None)


@router.post(
    "/models/{owner}/{name}/predictions",
    summary="Create a prediction of a model",
    operation_id="replicate_predict_model",
    **_CREATE,
)
async def create_model_prediction(request: Request, owner: Part, name: Part) -> Response:
    return await _create(request, f"{owner}/{name}")


@router.post(
    "/deployments/{owner}/{name}/predictions",
    summary="Create a prediction of a deployment",
    operation_id="replicate_predict_deployment",
    **_CREATE,
)
async def create_deployment_prediction(request: Request, owner: Part, name: Part) -> Response:
    return await _create(request, f"{owner}/{name}")


async def _create(request: Request, model: str | None) -> Response:
    app, seconds = fairlead_of(request), requests.wait_of(request)
    job_id, headers = await requests.create(request, model)
    if seconds is None:
        job = await app.jobs.get_without_attempts(job_id)
    else:
        job = await app.jobs.wait(job_id, seconds, new=True, attempts=False)
    return json_response(await Presenter(request).shown(job, waited=seconds is not None), 201, headers)


@router.get(
    "/predictions",
    summary="List predictions, newest first",
    operation_id="replicate_predictions",
    description="All jobs of the caller are listed, whichever way they came. Outputs that have more than "
    "`artifacts.max_inline` bytes together are null.",
    openapi_extra={"parameters": [USER]},
    responses=documented(200, models.Predictions, "One page.", InvalidInput),
)
async def list_predictions(request: Request, cursor: Cursor = None) -> Response:
    app, presenter = fairlead_of(request), Presenter(request)
    user_id = user_in_reach(caller_of(request), named_user(headers_of(request.scope)))
    page = await app.list_jobs(user_id=user_id, limit=PAGE, cursor=cursor)
    results, left = [], app.config.artifacts.max_inline
    for each in page.data:
        with contextlib.suppress(NotFound):  # deleted meanwhile
            if not each.turn:
                results.append(await presenter.shown(await app.jobs.get_without_attempts(each.job_id), most=left))
                left -= len(orjson.dumps(results[-1]["output"]))
    following = f"{presenter.base}/predictions?cursor={quote(page.next_cursor)}" if page.next_cursor else None
    return json_response({"previous": None, "next": following, "results": results})


@router.get(
    "/predictions/{job_id}",
    summary="One prediction",
    operation_id="replicate_prediction",
    responses=documented(200, models.Prediction, "The prediction.", *ONE_JOB),
)
async def get_prediction(request: Request, job_id: UUID) -> Response:
    job = await fairlead_of(request).jobs.get_without_attempts(str(job_id))
    return json_response(await Presenter(request).shown(job))


@router.post(
    "/predictions/{job_id}/cancel",
    summary="Cancel a prediction",
    operation_id="replicate_cancel",
    description="A prediction that has ended is returned as it is.",
    responses=documented(200, models.Prediction, "The prediction.", *ONE_JOB),
)
async def cancel_prediction(request: Request, job_id: UUID) -> Response:
    app, name = fairlead_of(request), str(job_id)
    with contextlib.suppress(WrongState):
        await app.cancel(name, who=operator_of(request))
    return json_response(await Presenter(request).shown(await app.jobs.get_without_attempts(name)))


_STREAMED: Responses = {
    **documented(200, None, "", *ONE_JOB, TooManyReaders),
    200: {
        "description": "The events.",
        "content": {
            "text/event-stream": {
                "itemSchema": EVENT,
                "example": "event: output\nid: 2-0.5.f7d18982\ndata: Hello\n\n"
                "event: done\nid: done.2-0.5.f7d18982\ndata: {}\n\n",
            }
        },
    },
    204: {"description": "The prediction has ended, and the client has received its output."},
}


@router.get(
    "/predictions/{job_id}/stream",
    summary="The output of a prediction, as Server-Sent Events",
    operation_id="replicate_stream",
    description="Events `output` (text), `logs`, `error` and `done`. `urls.stream` of a prediction has a ticket, with "
    "which no key is needed. A client that reconnects with `Last-Event-ID` continues where it stopped.",
    openapi_extra={"parameters": [header("Last-Event-ID", "The id of the last event that was received.")]},
    responses=_STREAMED,
)
async def stream_prediction(
    request: Request,
    job_id: UUID,
    ticket: Annotated[str | None, Query(description="Part of `urls.stream`.", max_length=200)] = None,
) -> Response:
    app, last = fairlead_of(request), request.headers.get("last-event-id", "")
    if last.startswith(DONE):
        if (await app.get(str(job_id))).status.finished:
            return Response(status_code=204)
        last = last.removeprefix(f"{DONE}.")
    stream = PredictionStream(app, Presenter(request), str(job_id), Received.parse(last) if last else Received())
    return StreamResponse(stream, await stream.open())


# ---------------------------------------------------------------- models, versions, deployments


@router.get(
    "/models",
    summary="List the models",
    operation_id="replicate_models",
    responses=documented(200, models.ReplicateModels, "All models."),
)
async def list_models(request: Request) -> Response:
    config, base = fairlead_of(request).config, base_of(request)
    results = [catalog.shown_model(config, model, base) for model in catalog.models(config)]
    return json_response({"previous": None, "next": None, "results": results})


@router.get(
    "/models/{owner}/{name}",
    summary="One model",
    operation_id="replicate_model",
    responses=documented(200, models.ReplicateModel, "The model.", UnknownModel, InvalidInput),
)
async def get_model(request: Request, owner: Part, name: Part) -> Response:
    return json_response(catalog.shown_model(fairlead_of(request).config, f"{owner}/{name}", base_of(request)))


@router.get(
    "/models/{owner}/{name}/versions",
    summary="The versions of a model",
    operation_id="replicate_versions",
    responses=documented(200, models.Versions, "Its one version.", UnknownModel, InvalidInput),
)
async def list_versions(request: Request, owner: Part, name: Part) -> Response:
    feature = catalog.feature_of(fairlead_of(request).config, f"{owner}/{name}")
    return json_response({"previous": None, "next": None, "results": [catalog.shown_version(feature)]})


@router.get(
    "/models/{owner}/{name}/versions/{version}",
    summary="One version of a model",
    operation_id="replicate_version",
    responses=documented(200, models.Version, "The version.", NotFound, UnknownModel, InvalidInput),
)
async def get_version(request: Request, owner: Part, name: Part, version: Part) -> Response:
    feature = catalog.check_version(fairlead_of(request).config, f"{owner}/{name}", version)
    return json_response(catalog.shown_version(feature, version))


@router.get(
    "/deployments/{owner}/{name}",
    summary="One deployment: a model by another word",
    operation_id="replicate_deployment",
    responses=documented(200, models.Deployment, "The deployment.", UnknownModel, InvalidInput),
)
async def get_deployment(request: Request, owner: Part, name: Part) -> Response:
    return json_response(catalog.shown_deployment(fairlead_of(request).config, f"{owner}/{name}"))


# ---------------------------------------------------------------- the account


@router.get(
    "/account",
    summary="The user of the key",
    operation_id="replicate_account",
    openapi_extra={"parameters": [USER]},
    responses=documented(200, models.Account, "The account.", InvalidInput),
)
async def get_account(request: Request) -> Response:
    user_id = user_of(caller_of(request), headers_of(request.scope))
    return json_response({"type": "user", "username": user_id, "name": user_id, "github_url": None})


@router.get(
    "/webhooks/default/secret",
    summary="The secret that signs the webhooks of the user's predictions",
    operation_id="replicate_webhook_secret",
    openapi_extra={"parameters": [USER]},
    responses=documented(200, models.WebhookSecret, "The secret.", InvalidInput, NotFound),
)
async def get_secret(request: Request) -> Response:
    caller = caller_of(request)
    if caller.role is Role.VIEWER:
        raise NotFound("a viewer's key has no predictions, and no secret that signs their webhooks")
    user_id = user_of(caller, headers_of(request.scope))
    return json_response({"key": await fairlead_of(request).webhooks.default_secret(user_id)})
