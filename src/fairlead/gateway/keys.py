"""Keys for admins, and tickets for browsers."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fairlead.errors import InvalidInput, NotFound, WrongState
from fairlead.gateway import models_access as shapes
from fairlead.gateway.access import caller_of, user_in_reach, who_of
from fairlead.gateway.auth import grant_of, guard_of
from fairlead.gateway.bodies import read_model
from fairlead.gateway.openapi import WITH_BODY, answers, body
from fairlead.gateway.replies import answer, fairlead_of
from fairlead.runtime.keys import TICKET_LIFE_S, shown
from fairlead.runtime.submission import MAX_USER_ID, check_text

router = APIRouter(tags=["keys"])


@router.post(
    "/api/v1/tickets",
    status_code=201,
    summary="A ticket for one WebSocket or event stream, for browsers, which cannot send a key there",
    operation_id="issue_ticket",
    openapi_extra=body(shapes.TicketRequest, required=False),
    responses=answers(201, shapes.Ticket, "Give it as `?ticket=`, once, within a minute.", *WITH_BODY),
)
async def issue_ticket(request: Request) -> Response:
    wanted = await read_model(request, shapes.TicketRequest)
    if wanted.user_id is not None:
        check_text(wanted.user_id, "user_id", MAX_USER_ID)
    caller = caller_of(request)
    grant = grant_of(caller, user_in_reach(caller, wanted.user_id))
    ticket = await fairlead_of(request).issue_ticket(grant)
    return answer({"ticket": ticket, "expires_in": TICKET_LIFE_S}, 201)


@router.get(
    "/admin/keys",
    summary="All keys, revoked ones too, oldest first",
    operation_id="list_keys",
    responses=answers(200, shapes.KeyList, "The keys, without what opens anything."),
)
async def list_keys(request: Request) -> Response:
    return answer({"data": [shown(key) for key in await fairlead_of(request).keys()]})


@router.post(
    "/admin/keys",
    status_code=201,
    summary="Make a key; its text is shown this once",
    operation_id="create_key",
    openapi_extra=body(shapes.KeyRequest),
    responses=answers(201, shapes.NewKey, "The key.", *WITH_BODY, WrongState),
)
async def create_key(request: Request) -> Response:
    wanted = await read_model(request, shapes.KeyRequest)
    new = await fairlead_of(request).create_key(
        wanted.role, user_id=wanted.user_id, name=wanted.name, who=who_of(request)
    )
    await guard_of(request).ring.reread()
    return answer({**shown(new.key), "key": new.text}, 201)


@router.delete(
    "/admin/keys/{key_id}",
    status_code=204,
    summary="Revoke a key: within about a second no gateway takes it, and its streams end",
    operation_id="revoke_key",
    responses=answers(204, None, "It is revoked.", InvalidInput, NotFound, WrongState),
)
async def revoke_key(request: Request, key_id: str) -> Response:
    await fairlead_of(request).revoke_key(key_id, who=who_of(request))
    await guard_of(request).ring.reread()
    return Response(status_code=204)
