"""`/api/v1/files`, `/api/v1/uploads` and `/files`: upload, list, read and delete files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from fairlead.artifacts.files import Files, NewFile
from fairlead.domain import files as domain
from fairlead.domain.access import Role
from fairlead.domain.events import iso, utc
from fairlead.domain.file_batch import OUTPUT
from fairlead.domain.files import File
from fairlead.domain.pagination import MAX_PAGE
from fairlead.domain.submission import ANONYMOUS, MAX_USER_ID
from fairlead.domain.validation import check_text
from fairlead.errors import FileQuota, InvalidInput, NotFound, WrongState
from fairlead.gateway import models_files, request_parsing, uploads
from fairlead.gateway.file_content import respond
from fairlead.gateway.openapi import ONE_JOB, WITH_BODY, body, documented, header
from fairlead.gateway.permissions import caller_of, user_in_reach
from fairlead.gateway.problems import Forbidden, PreconditionFailed, RangeNotSatisfiable
from fairlead.gateway.responses import fairlead_of, json_response

FILES = "/api/v1/files"
UPLOADS = "/api/v1/uploads"
CONTENT = "/files"
FORM_OVERHEAD = 64 * 1024
"""What a form may have besides its file, in bytes."""

_MADE = (domain.VALUE, domain.RESULT, OUTPUT)
"""The purposes that no upload has. Some of these files do not count in `artifacts.max_user_bytes`."""

router = APIRouter(tags=["files"])

_BINARY = {"type": "string", "format": "binary"}
_UPLOAD_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/octet-stream": {"schema": _BINARY},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": _BINARY,
                        **{name: {"type": "string"} for name in ("purpose", "user_id", "expires_after", "sha256")},
                    },
                }
            },
        },
    }
}
_PART_BODY = {
    "requestBody": {"required": True, "content": {"application/octet-stream": {"schema": _BINARY}}},
    "parameters": [{**header("Upload-Offset", "Where the part begins.", pattern="^[0-9]{1,18}$"), "required": True}],
}
_QUERY: TypeAdapter[models_files.UploadQuery] = TypeAdapter(models_files.UploadQuery)


def files_of(request: Request) -> Files:
    return fairlead_of(request).files


async def view_of(files: Files, file: File) -> dict[str, Any]:
    """A file as JSON, with a URL that reads its content for a while."""
    ticket, until = await files.ticket(file.id) if file.ready else (None, None)
    return {
        "id": file.id,
        "user_id": file.user_id,
        "name": file.name,
        "content_type": file.content_type,
        "purpose": file.purpose,
        "size": file.size,
        "sha256": file.sha256,
        "status": "ready" if file.ready else "uploading",
        "created_at": iso(utc(file.created_at)),
        "expires_at": iso(utc(file.expires_at)),
        "job_id": file.job_id,
        "url": f"{CONTENT}/{file.id}?ticket={ticket}" if ticket else None,
        "url_expires_at": iso(utc(until)) if until else None,
    }


# ---------------------------------------------------------------- upload


@router.post(
    FILES,
    status_code=201,
    summary="Upload a file",
    operation_id="upload_file",
    description="As a plain body with its fields in the query, or as a form with the file in the field `file`. The "
    "body goes to the object store as it arrives.",
    openapi_extra=_UPLOAD_BODY,
    responses=documented(
        201,
        models_files.File,
        "The file.",
        *WITH_BODY,
        FileQuota,
        headers={"Location": "The file."},
    ),
)
async def upload_file(request: Request, query: Annotated[models_files.UploadQuery, Query()]) -> Response:
    request_parsing.refuse_encoded(request)
    files = files_of(request)
    if uploads.is_form(request):
        form = uploads.Form(request)

        async def write(name: str, type_: str | None, chunks: AsyncIterator[bytes]) -> File:
            fields = _fields({"filename": name or "file", **query.model_dump(exclude_unset=True), **form.fields})
            return await files.write(await files.begin(_new(request, fields, type_)), chunks)

        written = await form.read(write)
        # Fields that came after the file.
        fields = _fields({"filename": written.name, **query.model_dump(exclude_unset=True), **form.fields})
        if _new(request, fields, None).user_id != written.user_id:
            raise InvalidInput("the field user_id comes before the file, or in the query", pointer="/user_id")
    else:
        fields = query
        begun = await files.begin(_new(request, query, uploads.plain_type(request)))
        written = await files.write(begun, uploads.read_plain(request))
    if fields.sha256 not in (None, written.sha256):
        raise InvalidInput(f"the bytes that arrived have the SHA-256 {written.sha256}", pointer="/sha256")
    expires_at = _expiry(request, fields.expires_after)
    file = await files.complete(replace(written, purpose=_purpose(fields), expires_at=expires_at))
    return json_response(await view_of(files, file), 201, {"Location": f"{FILES}/{file.id}"})


def _fields(values: dict[str, Any]) -> models_files.UploadQuery:
    try:
        return _QUERY.validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])[:50] if first["loc"] else ""
        raise InvalidInput(f"{name}: {first['msg']}", pointer=f"/{name}") from None


def _new(request: Request, fields: models_files.UploadQuery | models_files.UploadRequest, type_: str | None) -> NewFile:
    return NewFile(
        _owner(request, fields.user_id),
        fields.filename,
        type_,
        _purpose(fields),
        _expiry(request, fields.expires_after),
    )


def _purpose(fields: models_files.UploadQuery | models_files.UploadRequest) -> str:
    if fields.purpose in _MADE:
        text = f"the purpose {fields.purpose} is that of files that jobs and batches make"
        raise InvalidInput(f"{text}; give {domain.UPLOAD}, or any other name", pointer="/purpose")
    return domain.check_purpose(fields.purpose)


def _owner(request: Request, user_id: str | None) -> str:
    caller = caller_of(request)
    if caller.role is not Role.USER:
        return ANONYMOUS if user_id is None else check_text(user_id, "user_id", MAX_USER_ID)
    if user_id not in (None, caller.user_id):
        raise Forbidden("a user's key uploads its own files only; omit user_id", pointer="/user_id")
    return str(caller.user_id)


def _expiry(request: Request, seconds: float | None) -> float | None:
    return None if seconds is None else fairlead_of(request).now() + seconds


# ---------------------------------------------------------------- upload in parts


@router.post(
    UPLOADS,
    status_code=201,
    summary="Begin an upload in parts",
    operation_id="begin_upload",
    description="Send the parts with `PATCH`, one after the other. An upload that gets no part for "
    "`artifacts.orphan_after` seconds is removed.",
    openapi_extra=body(models_files.UploadRequest),
    responses=documented(
        201, models_files.Upload, "The upload.", *WITH_BODY, FileQuota, headers={"Location": "Where the parts go."}
    ),
)
async def begin_upload(request: Request) -> Response:
    fields = await request_parsing.read_model(request, models_files.UploadRequest)
    files = files_of(request)
    file = await files.begin(_new(request, fields, fields.content_type))
    headers = {"Location": f"{UPLOADS}/{file.id}", "Upload-Offset": "0"}
    return json_response({**await view_of(files, file), "offset": 0}, 201, headers)


@router.get(
    UPLOADS + "/{file_id}",
    summary="How much of an upload has arrived",
    operation_id="get_upload",
    responses=documented(200, models_files.Upload, "The upload.", *ONE_JOB),
)
async def get_upload(request: Request, file_id: str) -> Response:
    files = files_of(request)
    file = await files.get(file_id)
    offset = (file.size or 0) if file.ready else await files.uploaded(file)
    return json_response({**await view_of(files, file), "offset": offset}, headers={"Upload-Offset": str(offset)})


@router.patch(
    UPLOADS + "/{file_id}",
    summary="Send the next part",
    operation_id="send_part",
    description="The header `Upload-Offset` says where the part begins. A part that arrived is kept; a part that was "
    "cut off is sent again from the offset that `GET` returns.",
    openapi_extra=_PART_BODY,
    responses=documented(
        200,
        models_files.Upload,
        "The part is stored.",
        *(*WITH_BODY, FileQuota, NotFound, WrongState),
    ),
)
async def send_part(request: Request, file_id: str) -> Response:
    request_parsing.refuse_encoded(request)
    given = request.headers.get("upload-offset", "")
    if not (given.isascii() and given.isdecimal() and len(given) <= 18):
        raise InvalidInput("the header Upload-Offset must be the number of bytes before this part")
    files = files_of(request)
    file = await files.get(file_id)
    offset = await files.add_part(file, int(given), uploads.read_plain(request))
    return json_response({**await view_of(files, file), "offset": offset}, headers={"Upload-Offset": str(offset)})


@router.post(
    UPLOADS + "/{file_id}/complete",
    summary="Complete an upload in parts",
    operation_id="complete_upload",
    responses=documented(200, models_files.File, "The file.", *ONE_JOB, WrongState, FileQuota),
)
async def complete_upload(request: Request, file_id: str) -> Response:
    files = files_of(request)
    file = await files.assemble(await files.get(file_id))
    return json_response(await view_of(files, file))


# ---------------------------------------------------------------- read and delete


@router.get(
    FILES,
    summary="List uploaded files, newest first",
    operation_id="list_files",
    description="A user's key lists its own files. Files that jobs made are listed with their job.",
    responses=documented(200, models_files.FilePage, "One page.", InvalidInput),
)
async def list_files(request: Request, query: Annotated[models_files.FilesQuery, Query()]) -> Response:
    files = files_of(request)
    user_id = user_in_reach(caller_of(request), query.user_id)
    if query.cursor is not None and not domain.FILE_ID.fullmatch(query.cursor):
        raise InvalidInput("the cursor must be next_cursor of the previous page", pointer="/cursor")
    limit = min(query.limit, MAX_PAGE)
    found = await files.list(user_id, purpose=query.purpose, before=query.cursor, limit=limit + 1)
    data = [await view_of(files, file) for file in found[:limit]]
    return json_response({"data": data, "next_cursor": found[limit - 1].id if len(found) > limit else None})


@router.get(
    FILES + "/{file_id}",
    summary="What is known of a file",
    operation_id="get_file",
    responses=documented(200, models_files.File, "The file.", *ONE_JOB),
)
async def get_file(request: Request, file_id: str) -> Response:
    files = files_of(request)
    return json_response(await view_of(files, await files.get(file_id)))


@router.delete(
    FILES + "/{file_id}",
    status_code=204,
    summary="Delete a file",
    operation_id="delete_file",
    description="A file that a job uses cannot be deleted before the job.",
    responses=documented(204, None, "The file is deleted.", *ONE_JOB, WrongState),
)
async def delete_file(request: Request, file_id: str) -> Response:
    await files_of(request).delete((await files_of(request).get(file_id)).id)
    return Response(status_code=204)


@router.head(CONTENT + "/{file_id}", include_in_schema=False)
@router.get(
    CONTENT + "/{file_id}",
    summary="The content of a file",
    operation_id="get_file_content",
    description="With a key, or with the ticket of a file's `url`. Supports `Range`, `If-Range`, `If-Match` and "
    "`If-None-Match`.",
    response_class=Response,
    responses={
        **documented(200, None, "The content.", *ONE_JOB, PreconditionFailed, RangeNotSatisfiable),
        206: {"description": "The part that `Range` asks for."},
        304: {"description": "The client has this content already."},
        307: {"description": "With `artifacts.presign`: where the object store has it."},
    },
)
async def get_file_content(request: Request, file_id: str) -> Response:
    files = files_of(request)
    return await respond(request, files, await files.get_complete(file_id))
