"""What is wrong with the line, asked of a running gateway."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fairlead.gateway import models_doctor as shapes
from fairlead.gateway.openapi import answers
from fairlead.gateway.replies import answer, fairlead_of
from fairlead.runtime.doctor import report

router = APIRouter(tags=["operations"])


@router.get(
    "/admin/doctor",
    summary="What is wrong with this line: each finding with its cause, the evidence, and what mends it",
    operation_id="doctor",
    responses=answers(200, shapes.Diagnosis, "Found nothing, or this. It may take a second: some is looked at twice."),
)
async def doctor(request: Request) -> Response:
    return answer(report(await fairlead_of(request).doctor()))
