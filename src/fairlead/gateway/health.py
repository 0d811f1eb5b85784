"""For probes: is it up, and can it do its work?"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fairlead.gateway import models_operations as shapes
from fairlead.gateway.openapi import answers
from fairlead.gateway.problems import NotReady
from fairlead.gateway.replies import answer, fairlead_of

router = APIRouter(tags=["health"])
_NO_KEY: dict[str, Any] = {"security": []}


@router.head("/livez", include_in_schema=False)
@router.get(
    "/livez",
    summary="Is the process up?",
    operation_id="livez",
    openapi_extra=_NO_KEY,
    responses=answers(200, shapes.Alive, "It is."),
)
async def livez() -> Response:
    return answer({"status": "ok"})


@router.head("/readyz", include_in_schema=False)
@router.get(
    "/readyz",
    summary="Can it do its work? 503 names the part that cannot",
    operation_id="readyz",
    openapi_extra=_NO_KEY,
    responses=answers(200, shapes.Readiness, "It can.", NotReady),
)
async def readyz(request: Request) -> Response:
    found = await fairlead_of(request).readiness()
    if not found["ready"]:
        raise NotReady(found["checks"])
    return answer(found)
