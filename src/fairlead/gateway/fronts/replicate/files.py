"""`/replicate/v1/files`: uploads of Replicate's clients. They are the files of every user, in another shape."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fairlead.artifacts.files import NewFile
from fairlead.domain import files as domain
from fairlead.domain.events import iso, utc
from fairlead.domain.files import File
from fairlead.domain.replicate import PREFIX
from fairlead.errors import FileQuota, InvalidInput, WrongState
from fairlead.gateway import models_replicate as models
from fairlead.gateway import request_parsing, uploads
from fairlead.gateway.fronts.callers import USER_HEADER, named_user, user_of
from fairlead.gateway.fronts.replicate.predictions import base_of
from fairlead.gateway.openapi import ONE_JOB, WITH_BODY, documented, header
from fairlead.gateway.permissions import caller_of, user_in_reach
from fairlead.gateway.problems import UnsupportedMediaType
from fairlead.gateway.request_middleware import headers_of
from fairlead.gateway.responses import fairlead_of, json_response

FILES = f"{PREFIX}/files"
PURPOSE = "replicate"
KEPT_FOR_S = 86400.0
"""Uploads expire after a day, as at Replicate. While a job uses one, it stays."""
PAGE = 100

router = APIRouter(prefix=FILES, tags=["replicate"])

_BINARY = {"type": "string", "format": "binary"}
_FORM = {
    "type": "object",
    "required": ["content"],
    "properties": {"content": _BINARY, "metadata": {"type": "object"}},
}
USER = header(USER_HEADER, "With the key of a service: the user of the request.")


def _shown(request: Request, file: File, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "id": file.id,
        "name": file.name,
        "content_type": file.content_type,
        "size": file.size or 0,
        "etag": file.sha256 or "",
        "checksums": {"sha256": file.sha256 or ""},
        "metadata": metadata or {},
        "created_at": iso(utc(file.created_at)),
        "expires_at": iso(utc(file.expires_at)),
        "urls": {"get": f"{base_of(request)}/files/{file.id}"},
    }


@router.post(
    "",
    status_code=201,
    summary="Upload a file",
    operation_id="replicate_upload",
    openapi_extra={
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}},
        "parameters": [USER],
    },
    responses=documented(201, models.ReplicateFile, "The file.", *WITH_BODY, FileQuota),
)
async def upload(request: Request) -> Response:
    request_parsing.refuse_encoded(request)
    if not uploads.is_form(request):
        raise UnsupportedMediaType("send the file as multipart/form-data, in the part 'content'")
    app = fairlead_of(request)
    user_id = user_of(caller_of(request), headers_of(request.scope))
    form = uploads.Form(request, "content", texts=("metadata",))

    async def write(name: str, type_: str | None, chunks: AsyncIterator[bytes]) -> File:
        new = NewFile(user_id, name or "file", type_, PURPOSE, app.now() + KEPT_FOR_S)
        return await app.files.write(await app.files.begin(new), chunks)

    written = await form.read(write)
    try:
        metadata = orjson.loads(form.fields.get("metadata") or "{}")
    except orjson.JSONDecodeError:
        metadata = None
    if not isinstance(metadata, dict):
        raise InvalidInput("metadata must be a JSON object", pointer="/metadata")
    return json_response(_shown(request, await app.files.complete(written), metadata), 201)


@router.get(
    "",
    summary="List uploaded files, newest first",
    operation_id="replicate_files",
    openapi_extra={"parameters": [USER]},
    responses=documented(200, models.ReplicateFiles, "One page.", InvalidInput),
)
async def list_files(request: Request, cursor: str | None = None) -> Response:
    user_id = user_in_reach(caller_of(request), named_user(headers_of(request.scope)))
    before = None if cursor is None else domain.id_in(cursor)
    found = await fairlead_of(request).files.list(user_id, purpose=PURPOSE, before=before, limit=PAGE + 1)
    following = f"{base_of(request)}/files?cursor={found[PAGE - 1].id}" if len(found) > PAGE else None
    results = [_shown(request, file) for file in found[:PAGE]]
    return json_response({"previous": None, "next": following, "results": results})


@router.get(
    "/{file_id}",
    summary="What is known of a file",
    operation_id="replicate_file",
    responses=documented(200, models.ReplicateFile, "The file.", *ONE_JOB),
)
async def get_file(request: Request, file_id: str) -> Response:
    return json_response(_shown(request, await fairlead_of(request).files.get(file_id)))


@router.delete(
    "/{file_id}",
    status_code=204,
    summary="Delete a file",
    operation_id="replicate_delete_file",
    responses=documented(204, None, "The file is deleted.", *ONE_JOB, WrongState),
)
async def delete_file(request: Request, file_id: str) -> Response:
    files = fairlead_of(request).files
    await files.delete((await files.get(file_id)).id)
    return Response(status_code=204)
