"""Signing in to the dashboard with a key, and out again."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fairlead.gateway import models_access as shapes
from fairlead.gateway.access import Caller, caller_of
from fairlead.gateway.auth import guard_of
from fairlead.gateway.bodies import read_model
from fairlead.gateway.cookies import set_cookie
from fairlead.gateway.openapi import WITH_BODY, answers, body
from fairlead.gateway.replies import answer, fairlead_of

router = APIRouter(tags=["keys"])


@router.post(
    "/session",
    summary="Sign in to the dashboard with a key: sets the cookie that stands for it",
    operation_id="sign_in",
    openapi_extra={**body(shapes.SignIn), "security": []},
    responses=answers(200, shapes.SessionInfo, "Signed in, for twelve hours.", *WITH_BODY),
)
async def sign_in(request: Request) -> Response:
    wanted = await read_model(request, shapes.SignIn)
    caller, text = await guard_of(request).sign_in(request, wanted.key)
    return answer(_shown(caller, signed_in=True), headers={"Set-Cookie": set_cookie(text, secure=_is_secure(request))})


@router.get(
    "/session",
    summary="Who is asking, by cookie or by key",
    operation_id="session",
    responses=answers(200, shapes.SessionInfo, "Who it is."),
)
async def session(request: Request) -> Response:
    caller = caller_of(request)
    return answer(_shown(caller, signed_in=caller.cookie is not None))


@router.delete(
    "/session",
    status_code=204,
    summary="Sign out: the session ends at every gateway within seconds",
    operation_id="sign_out",
    responses=answers(204, None, "Signed out, or there was no session."),
)
async def sign_out(request: Request) -> Response:
    cookie = caller_of(request).cookie
    if cookie is not None:
        await fairlead_of(request).close_session(cookie)
        guard_of(request).cookies.forget(cookie)
    return Response(status_code=204, headers={"Set-Cookie": set_cookie("", secure=_is_secure(request))})


def _shown(caller: Caller, *, signed_in: bool) -> dict[str, object]:
    return {
        "role": caller.role,
        "name": caller.name,
        "user_id": caller.user_id,
        "may_act": caller.may_act,
        "signed_in": signed_in,
    }


def _is_secure(request: Request) -> bool:
    return request.url.scheme == "https"
