"""The result of a request. References to files in it become fal's objects, with URLs that need no key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from fairlead.artifacts.files import Files
from fairlead.domain.files import FILE_ID, MARK
from fairlead.domain.job import JobStatus
from fairlead.domain.views import JobView
from fairlead.domain.webhook_shapes import fal_file
from fairlead.gateway.files import CONTENT
from fairlead.gateway.fronts.fal import errors
from fairlead.gateway.fronts.fal.requests import base_of
from fairlead.gateway.responses import fairlead_of, json_response

IN_PROGRESS = "the request is still in progress"
MOST_DEPTH = 100


async def result_of(request: Request, job: JobView, headers: Mapping[str, str] | None = None) -> Response:
    """The response with the result of a job, or with the reason why there is none. Raises Unavailable if the result is
    in the object store, which cannot be reached."""
    named = {errors.REQUEST_ID: job.job_id, **(headers or {})}
    if not job.status.finished:
        return errors.response_of(400, IN_PROGRESS, "in_progress", named)
    if job.status is JobStatus.FAILED:
        return errors.of_failed_job(job.error, named)
    if job.status is JobStatus.CANCELLED:
        return errors.response_of(400, "the request was cancelled", errors.CANCELLED, named)
    return json_response(await shown_result(request, job.job_id, job.result), 200, named)


async def shown_result(request: Request, job_id: str, result: Any) -> Any:
    """A result, or a part of it, as clients see it."""
    app = fairlead_of(request)
    value = await app.jobs.whole_result(job_id, result)
    if isinstance(value, dict | list) and MARK in orjson.dumps(value, default=str).decode():
        owner = await app.owner_of(job_id)
        return await _with_urls(app.files, base_of(request), value, MOST_DEPTH, owner)
    return value


async def _with_urls(files: Files, base: str, value: Any, depth: int, owner: str | None) -> Any:
    if depth == 0:
        return value
    if isinstance(value, list):
        return [await _with_urls(files, base, each, depth - 1, owner) for each in value]
    if not isinstance(value, dict):
        return value
    file_id = value.get("$file")
    if isinstance(file_id, str) and FILE_ID.fullmatch(file_id):
        file = (await files.get_many([file_id])).get(file_id)
        if file is not None and file.user_id != owner:
            return value  # a chunk, unlike a result, was not checked when it was stored
        return fal_file(value, await url_of(files, base, file_id))
    return {name: await _with_urls(files, base, each, depth - 1, owner) for name, each in value.items()}


async def url_of(files: Files, base: str, file_id: str, at_least: float = 0.0) -> str:
    """A URL that reads a file without a key, for at least this many seconds."""
    ticket, _ = await files.ticket(file_id, at_least)
    return f"{base}{CONTENT}/{file_id}?ticket={ticket}"
