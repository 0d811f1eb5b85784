"""For operators: the dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from fairlead.errors import InvalidInput
from fairlead.gateway import models
from fairlead.gateway import models_operations as shapes
from fairlead.gateway.access import who_of
from fairlead.gateway.bodies import read_model
from fairlead.gateway.openapi import WITH_BODY, answers, body
from fairlead.gateway.replies import answer, answer_page, fairlead_of
from fairlead.runtime.events import iso

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairlead.app import Fairlead
    from fairlead.domain.job import Job
    from fairlead.runtime.dead import Preview

DEAD = "/admin/queue-dead"
MOMENT_S = 0.001
"""As exact as moments are written: what failed just now is before the next one."""

router = APIRouter(prefix=DEAD, tags=["operations"])


@router.get(
    "",
    summary="The dead letters: failed jobs with every attempt's error, newest first",
    operation_id="list_dead",
    responses=answers(200, models.JobPage, "One page.", InvalidInput),
)
async def list_dead(request: Request, query: Annotated[models.DeadQuery, Query()]) -> Response:
    retryable = None if query.retryable is None else query.retryable == "true"
    return answer_page(await fairlead_of(request).dead(**{**query.model_dump(), "retryable": retryable}))


@router.post(
    "/requeue",
    summary="Take dead letters up again, at the failed step or from the start",
    operation_id="requeue_dead",
    openapi_extra=body(shapes.RequeueRequest),
    responses=answers(200, shapes.Requeued, "How many.", *WITH_BODY),
)
async def requeue_dead(request: Request) -> Response:
    wanted = await read_model(request, shapes.RequeueRequest)
    app = fairlead_of(request)
    missing = await _missing(app, wanted.chosen()["job_ids"])
    if wanted.dry_run:
        chosen = _so_far(app, wanted.chosen())
        preview = await app.preview_requeue(**chosen, from_start=wanted.from_start)
        return _previewed("requeued", preview, chosen, missing)
    count = await app.requeue(**wanted.chosen(), from_start=wanted.from_start, who=who_of(request))
    return answer({"requeued": count, "dry_run": False, **missing})


@router.post(
    "/purge",
    summary="Remove dead letters for good",
    operation_id="purge_dead",
    openapi_extra=body(shapes.PurgeRequest),
    responses=answers(200, shapes.Purged, "How many.", *WITH_BODY),
)
async def purge_dead(request: Request) -> Response:
    wanted = await read_model(request, shapes.PurgeRequest)
    app = fairlead_of(request)
    missing = await _missing(app, wanted.chosen()["job_ids"])
    if wanted.dry_run:
        chosen = _so_far(app, wanted.chosen())
        return _previewed("purged", await app.preview_purge(**chosen), chosen, missing)
    return answer({"purged": await app.purge(**wanted.chosen(), who=who_of(request)), "dry_run": False, **missing})


async def _missing(app: Fairlead, job_ids: Sequence[str] | None) -> dict[str, list[str]]:
    """Looked up first: afterwards none of them is a dead letter any more."""
    return {} if job_ids is None else {"missing": await app.not_dead(job_ids)}


def _so_far(app: Fairlead, chosen: dict[str, Any]) -> dict[str, Any]:
    """Those that have failed by now: whoever is told how many can then do it to these, and to no others."""
    if chosen["job_ids"] is not None or chosen["until"] is not None:
        return chosen
    return {**chosen, "all": False, "until": iso(app.now() + MOMENT_S)}


def _previewed(verb: str, preview: Preview, chosen: Mapping[str, Any], missing: Mapping[str, list[str]]) -> Response:
    until = {} if chosen["until"] is None else {"until": chosen["until"]}
    sample = [_sampled(job) for job in preview.sample]
    return answer({verb: preview.count, "dry_run": True, "sample": sample, **until, **missing})


def _sampled(job: Job) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "user_id": job.user_id,
        "feature_name": job.feature_name,
        "service": job.service,
        "finished_at": iso(job.finished_at),
        "error": job.error,
    }
