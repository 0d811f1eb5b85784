"""For operators: the workers, and draining one of them."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fairlead.errors import NotFound, WrongState
from fairlead.gateway import models_runtime as shapes
from fairlead.gateway.access import who_of
from fairlead.gateway.bodies import read_model
from fairlead.gateway.openapi import WITH_BODY, answers, body
from fairlead.gateway.replies import answer, fairlead_of

router = APIRouter(prefix="/admin", tags=["operations"])


@router.get(
    "/workers",
    summary="Every worker, when it was seen last, and what it runs",
    operation_id="list_workers",
    responses=answers(200, shapes.Workers, "As it is now."),
)
async def list_workers(request: Request) -> Response:
    return answer({"data": await fairlead_of(request).workers()})


@router.post(
    "/workers/{name}/drain",
    summary="Let a worker claim no more, or claim again; its process goes on",
    operation_id="drain_worker",
    openapi_extra=body(shapes.DrainRequest),
    responses=answers(
        200, shapes.WorkerShape, "It is asked, and hears of it within two seconds.", *WITH_BODY, NotFound, WrongState
    ),
)
async def drain_worker(request: Request, name: str) -> Response:
    wanted = await read_model(request, shapes.DrainRequest)
    app, who = fairlead_of(request), who_of(request)
    await (app.drain_worker(name, who=who) if wanted.on else app.undrain_worker(name, who=who))
    found = {worker["name"]: worker for worker in await app.workers()}
    if name not in found:
        raise NotFound(f"there is no process {name[:100]!r}")
    return answer(found[name])
