"""Uploads of fal's clients: one request that returns two URLs, then the bytes to the first of them. The second is the
URL of the file, which needs no key."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fairlead.artifacts.files import NewFile
from fairlead.domain.files import UPLOADS_OF, File
from fairlead.errors import FileQuota, InvalidInput, NotFound, WrongState
from fairlead.gateway import models_fal, request_parsing, uploads
from fairlead.gateway.files import files_of
from fairlead.gateway.fronts.callers import user_of
from fairlead.gateway.fronts.fal.documents import documented
from fairlead.gateway.fronts.fal.errors import PREFIX
from fairlead.gateway.fronts.fal.requests import base_of
from fairlead.gateway.fronts.fal.results import url_of
from fairlead.gateway.openapi import WITH_BODY, body, header
from fairlead.gateway.permissions import caller_of
from fairlead.gateway.request_middleware import headers_of
from fairlead.gateway.responses import fairlead_of, json_response

UPLOADS = f"{PREFIX}storage/files"
URL_S = 7 * 86400.0
"""How long the URL of an uploaded file is valid: a job whose input has it may wait for days."""
LIFECYCLE_HEADERS = ("X-Fal-Object-Lifecycle", "X-Fal-Object-Lifecycle-Preference")
LONGEST_LIFE = 10 * 365 * 86400
MOST_PARTS = 10_000

router = APIRouter(tags=["fal"])
_BYTES = {
    "requestBody": {
        "required": False,  # an empty file has no body
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_INITIATE: dict[str, Any] = {
    "openapi_extra": {
        **body(models_fal.FalUploadRequest),
        "parameters": [header(LIFECYCLE_HEADERS[0], 'As JSON: `{"expiration_duration_seconds": 3600}`.')],
    },
    "responses": documented(
        200, models_fal.FalUpload, "Where to send the bytes, and the URL of the file.", *WITH_BODY, FileQuota
    ),
}
_UPLOADING = (*WITH_BODY, FileQuota, NotFound, WrongState)


@router.post(
    f"{PREFIX}storage/upload/initiate", summary="Begin an upload", operation_id="fal_initiate_upload", **_INITIATE
)
@router.post(
    f"{PREFIX}storage/upload/initiate-multipart",
    summary="Begin an upload in parts",
    operation_id="fal_initiate_multipart",
    **_INITIATE,
)
async def initiate(request: Request) -> Response:
    fields = await request_parsing.read_model(request, models_fal.FalUploadRequest, required=True)
    files, base = files_of(request), base_of(request)
    user_id = user_of(caller_of(request), headers_of(request.scope))
    new = NewFile(user_id, fields.file_name, fields.content_type, expires_at=_expiry(request))
    file = await files.begin(new)
    ticket, _ = await files.ticket(UPLOADS_OF + file.id)
    upload_url = f"{base}{UPLOADS}/{file.id}?ticket={ticket}"
    return json_response({"upload_url": upload_url, "file_url": await url_of(files, base, file.id, URL_S)})


def _expiry(request: Request) -> float | None:
    given = next((text for name in LIFECYCLE_HEADERS if (text := request.headers.get(name)) is not None), None)
    if given is None:
        return None
    try:
        preference = orjson.loads(given)
        seconds = preference.get("expiration_duration_seconds")
    except (orjson.JSONDecodeError, AttributeError):
        raise InvalidInput(
            f"{LIFECYCLE_HEADERS[0]} must be a JSON object", pointer=f"/{LIFECYCLE_HEADERS[0]}"
        ) from None
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST_LIFE:
        raise InvalidInput("expiration_duration_seconds must be a number above 0", pointer=f"/{LIFECYCLE_HEADERS[0]}")
    return fairlead_of(request).now() + seconds


@router.put(
    UPLOADS + "/{file_id}",
    summary="Send the bytes of an upload",
    operation_id="fal_put_file",
    description="With the ticket of the `upload_url`, or with a key.",
    openapi_extra=_BYTES,
    responses=documented(200, models_fal.FalUploaded, "The file is stored.", *_UPLOADING),
)
async def put_file(request: Request, file_id: str) -> Response:
    request_parsing.refuse_encoded(request)
    files = files_of(request)
    file = await files.get(file_id)
    if file.ready:  # a client that got no answer sends the bytes again
        await _drain(request)
    else:
        file = await files.complete(await files.write(file, uploads.read_plain(request)))
    return json_response({"size": file.size}, headers={"ETag": f'"{file.sha256}"'})


@router.post(
    UPLOADS + "/{file_id}/complete",
    summary="Complete an upload in parts",
    operation_id="fal_complete_upload",
    responses=documented(200, models_fal.FalUploaded, "The file is stored.", *_UPLOADING),
)
async def complete(request: Request, file_id: str) -> Response:
    files = files_of(request)
    await _drain(request)  # the list of parts, which are known
    file = await files.get(file_id)
    if not file.ready:
        file = await files.assemble(file)
    return json_response({"size": file.size}, headers={"ETag": f'"{file.sha256}"'})


@router.put(
    UPLOADS + "/{file_id}/{part}",
    summary="Send one part of an upload",
    operation_id="fal_put_part",
    description="Parts are numbered from 1 and are sent one after the other.",
    openapi_extra=_BYTES,
    responses=documented(200, models_fal.FalPart, "The part is stored.", *_UPLOADING),
)
async def put_part(request: Request, file_id: str, part: int) -> Response:
    request_parsing.refuse_encoded(request)
    files = files_of(request)
    file = await files.get(file_id)
    arrived = MOST_PARTS if file.ready else await files.part_count(file)
    if not 1 <= part <= MOST_PARTS or part > arrived + 1:
        raise InvalidInput(f"the next part is {arrived + 1}, not {part}", pointer="/part")
    if part <= arrived:  # it was sent again, because the client got no answer
        await _drain(request)
    else:
        await files.add_part(file, await files.uploaded(file), uploads.read_plain(request))
    return json_response({"partNumber": part, "etag": _etag(file, part)})


def _etag(file: File, part: int) -> str:
    return f"{file.artifact_id}-{part}"


async def _drain(request: Request) -> None:
    async for _ in request_parsing.read_pieces(request):
        pass
