"""Finds the job of a response, and makes the response's object from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from fairlead.domain import openai
from fairlead.domain.access import Role
from fairlead.domain.job import JobStatus
from fairlead.domain.openai import FrontAnswer, FrontRequest
from fairlead.domain.openai_responses import (
    CANCELLED,
    COMPLETED,
    FAILED,
    IN_PROGRESS,
    QUEUED,
    answered,
    job_id_of,
    skeleton,
)
from fairlead.errors import NotFound
from fairlead.gateway.fronts.callers import USER_HEADER
from fairlead.gateway.permissions import caller_of
from fairlead.gateway.request_middleware import headers_of
from fairlead.gateway.responses import fairlead_of

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead
    from fairlead.domain.views import JobView

_STATUS = {JobStatus.RUNNING: IN_PROGRESS, JobStatus.FAILED: FAILED, JobStatus.CANCELLED: CANCELLED}
_NOT_KEPT = {"code": "not_kept", "message": "the answer is no longer kept (openai.keep)"}


@dataclass(frozen=True, slots=True)
class FoundResponse:
    """A response that the caller may read: its job and its request."""

    id: str
    job: JobView
    request: FrontRequest

    @property
    def fields(self) -> dict[str, Any]:
        return openai.json_object(self.request.body) or {}


async def find(request: Request, id_: str) -> FoundResponse:
    """The response with this id. Raises NotFound if there is none, also if it is another user's, was not to be stored,
    or was erased."""
    app, job_id = fairlead_of(request), job_id_of(id_)
    missing = NotFound(f"there is no response {id_[:100]}")
    if job_id is None or not await _is_in_reach(app, request, job_id):
        raise missing
    job = await app.jobs.get_without_attempts(job_id)
    try:
        sent = FrontRequest.of_input(await app.jobs.whole_result(job_id, job.input_data))
    except ValueError:
        raise missing from None
    found = FoundResponse(id_, job, sent)
    if sent.path != openai.RESPONSES or found.fields.get("store") is False:
        raise missing
    return found


async def _is_in_reach(app: Fairlead, request: Request, job_id: str) -> bool:
    """Whether the job exists and is the caller's: a user's own, or, with the key of a service, that of the user whom
    the request names, if it names one."""
    owner, caller = await app.owner_of(job_id), caller_of(request)
    named = headers_of(request.scope).get(USER_HEADER.lower().encode())
    user = caller.user_id if caller.role is Role.USER else None if named is None else named.decode("utf-8", "replace")
    return owner is not None and user in (None, owner)


async def object_of(app: Fairlead, job: JobView, sent: FrontRequest) -> dict[str, Any]:
    """The response as its client sees it now. Raises Unavailable if the answer is in the object store, which cannot be
    reached."""
    if job.status is JobStatus.COMPLETED:
        return await _completed(app, job, sent)
    response = skeleton(sent, job.job_id, _STATUS.get(job.status, QUEUED))
    _set_tier(response, job)
    if job.status is JobStatus.FAILED:
        response["error"] = {"code": "server_error", "message": str((job.error or {}).get("message", "it failed"))}
    if response["status"] == QUEUED and job.position is not None:
        wait = job.estimated_wait
        estimate = None if wait is None else {"low": round(wait.low, 3), "high": round(wait.high, 3)}
        response["fairlead"] = {"position": job.position, "estimated_wait": estimate}
    return response


async def _completed(app: Fairlead, job: JobView, sent: FrontRequest) -> dict[str, Any]:
    response = skeleton(sent, job.job_id, COMPLETED)
    answer = FrontAnswer.of_result(await app.jobs.whole_result(job.job_id, job.result))
    own = {name: response[name] for name in ("id", "created_at", "background")}
    if sent.previous is not None:
        own["previous_response_id"] = sent.previous
    response |= {"status": FAILED, "error": _NOT_KEPT} if answer is None else answered(answer)
    response |= own
    _set_tier(response, job)
    if response["status"] == COMPLETED and response["completed_at"] is None and job.finished_at is not None:
        response["completed_at"] = int(job.finished_at.timestamp())
    return response


def _set_tier(response: dict[str, Any], job: JobView) -> None:
    """The tier that was used, if the client or the upstream names one."""
    if response.get("service_tier") is not None:
        response["service_tier"] = openai.tier_of(job.priority)
