"""`/api/v1/webhooks`: endpoints, secrets, and the log of deliveries. A user's key reaches those of its user."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from fairlead.app.webhooks import NewSecret, filter_of, shown_delivery, shown_endpoint
from fairlead.domain.submission import MAX_USER_ID
from fairlead.domain.validation import check_text
from fairlead.errors import InvalidInput, NotFound, WrongState
from fairlead.gateway import models_webhooks as models
from fairlead.gateway.openapi import WITH_BODY, body, documented
from fairlead.gateway.permissions import caller_of, operator_of, user_in_reach
from fairlead.gateway.request_parsing import read_model
from fairlead.gateway.responses import fairlead_of, json_response

WEBHOOKS = "/api/v1/webhooks"
_ONE = (InvalidInput, NotFound)

router = APIRouter(prefix=WEBHOOKS, tags=["webhooks"])
jwks_router = APIRouter(tags=["webhooks"])


def _new(new: NewSecret, status: int) -> Response:
    return json_response({**shown_endpoint(new.endpoint), "secret": new.secret}, status)


@router.get(
    "/endpoints",
    summary="Endpoints that receive events, oldest first",
    operation_id="list_webhook_endpoints",
    responses=documented(200, models.EndpointList, "The endpoints, without their secrets.", InvalidInput),
)
async def list_endpoints(request: Request, query: Annotated[models.EndpointsQuery, Query()]) -> Response:
    user_id = user_in_reach(caller_of(request), query.user_id)
    endpoints = await fairlead_of(request).webhooks.endpoints(user_id)
    return json_response({"data": [shown_endpoint(endpoint) for endpoint in endpoints]})


@router.post(
    "/endpoints",
    status_code=201,
    summary="Create an endpoint; its secret is returned only once",
    operation_id="create_webhook_endpoint",
    openapi_extra=body(models.EndpointRequest),
    responses=documented(201, models.NewEndpoint, "The endpoint.", *WITH_BODY, WrongState),
)
async def create_endpoint(request: Request) -> Response:
    wanted = await read_model(request, models.EndpointRequest)
    user_id = user_in_reach(caller_of(request), wanted.user_id)
    webhooks = fairlead_of(request).webhooks
    new = await webhooks.create(wanted.url, wanted.events, user_id=user_id, who=operator_of(request))
    return _new(new, 201)


@router.get(
    "/endpoints/{endpoint_id}",
    summary="One endpoint",
    operation_id="get_webhook_endpoint",
    responses=documented(200, models.Endpoint, "The endpoint.", *_ONE),
)
async def get_endpoint(request: Request, endpoint_id: str) -> Response:
    user_id = caller_of(request).user_id
    return json_response(shown_endpoint(await fairlead_of(request).webhooks.get(endpoint_id, user_id=user_id)))


@router.put(
    "/endpoints/{endpoint_id}",
    summary="Change an endpoint, disable it, or enable it again",
    operation_id="change_webhook_endpoint",
    openapi_extra=body(models.EndpointChange),
    responses=documented(200, models.Endpoint, "The endpoint.", *_ONE, *WITH_BODY, WrongState),
)
async def change_endpoint(request: Request, endpoint_id: str) -> Response:
    change = await read_model(request, models.EndpointChange, required=True)
    user_id = caller_of(request).user_id
    endpoint = await fairlead_of(request).webhooks.change(
        endpoint_id,
        url=change.url,
        events=change.events,
        enabled=change.enabled,
        user_id=user_id,
        who=operator_of(request),
    )
    return json_response(shown_endpoint(endpoint))


@router.delete(
    "/endpoints/{endpoint_id}",
    status_code=204,
    summary="Delete an endpoint; its waiting deliveries fail",
    operation_id="delete_webhook_endpoint",
    responses=documented(204, None, "Deleted.", *_ONE, WrongState),
)
async def delete_endpoint(request: Request, endpoint_id: str) -> Response:
    user_id = caller_of(request).user_id
    await fairlead_of(request).webhooks.delete(endpoint_id, user_id=user_id, who=operator_of(request))
    return Response(status_code=204)


@router.post(
    "/endpoints/{endpoint_id}/rotate",
    summary="Give an endpoint a new secret; the former one signs too for a day",
    operation_id="rotate_webhook_secret",
    responses=documented(200, models.NewEndpoint, "The endpoint with its new secret.", *_ONE, WrongState),
)
async def rotate_endpoint(request: Request, endpoint_id: str) -> Response:
    user_id = caller_of(request).user_id
    return _new(await fairlead_of(request).webhooks.rotate(endpoint_id, user_id=user_id, who=operator_of(request)), 200)


@router.post(
    "/secret",
    summary="Make a new secret for the URLs of a user's jobs; the former one signs too for a day",
    operation_id="rotate_job_webhook_secret",
    openapi_extra=body(models.SecretRequest, required=False),
    responses=documented(200, models.Secret, "The secret.", *WITH_BODY),
)
async def rotate_secret(request: Request) -> Response:
    wanted = await read_model(request, models.SecretRequest)
    user_id = user_in_reach(caller_of(request), wanted.user_id)
    if user_id is None:
        raise InvalidInput("user_id is missing", pointer="/user_id")
    check_text(user_id, "user_id", MAX_USER_ID)
    new = await fairlead_of(request).webhooks.rotate_default(user_id, who=operator_of(request))
    return json_response({"user_id": user_id, "secret": new.secret})


@router.get(
    "/deliveries",
    summary="Deliveries with their attempts, newest first",
    operation_id="list_webhook_deliveries",
    responses=documented(200, models.DeliveryPage, "One page.", InvalidInput),
)
async def list_deliveries(request: Request, query: Annotated[models.DeliveriesQuery, Query()]) -> Response:
    where = query.model_dump(exclude={"limit", "cursor"})
    where["user_id"] = user_in_reach(caller_of(request), query.user_id)
    page = await fairlead_of(request).webhooks.deliveries(filter_of(**where), limit=query.limit, cursor=query.cursor)
    return json_response({"data": [shown_delivery(each) for each in page.data], "next_cursor": page.next_cursor})


@router.get(
    "/deliveries/{delivery_id}",
    summary="One delivery",
    operation_id="get_webhook_delivery",
    responses=documented(200, models.Delivery, "The delivery.", *_ONE),
)
async def get_delivery(request: Request, delivery_id: str) -> Response:
    user_id = caller_of(request).user_id
    return json_response(shown_delivery(await fairlead_of(request).webhooks.delivery(delivery_id, user_id=user_id)))


@router.post(
    "/deliveries/replay",
    summary="Send deliveries again, one or a range, under their ids",
    operation_id="replay_webhooks",
    openapi_extra=body(models.ReplayRequest),
    responses=documented(200, models.Replayed, "The number of deliveries, at most 10,000.", *WITH_BODY),
)
async def replay_deliveries(request: Request) -> Response:
    wanted = (await read_model(request, models.ReplayRequest)).model_dump()
    wanted["user_id"] = user_in_reach(caller_of(request), wanted["user_id"])
    count = await fairlead_of(request).webhooks.replay(filter_of(**wanted), who=operator_of(request))
    return json_response({"replayed": count})


@jwks_router.get(
    "/.well-known/jwks.json",
    summary="The public keys that verify webhooks signed as fal signs them",
    operation_id="webhook_jwks",
    openapi_extra={"security": []},
    responses=documented(200, models.Jwks, "The keys (RFC 7517, RFC 8037).", NotFound),
)
async def jwks(request: Request) -> Response:
    try:
        keys = await fairlead_of(request).webhooks.jwks()
    except ImportError:
        raise NotFound("there are no keys: pip install 'fairlead[fal]'") from None
    return json_response(keys)
