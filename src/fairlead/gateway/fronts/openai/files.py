"""`/v1/files`: OpenAI's files, which are files like all others (docs/files.md)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from fairlead.artifacts.files import NewFile
from fairlead.domain import files as domain
from fairlead.domain.access import Role
from fairlead.domain.file_batch import BATCH
from fairlead.domain.files import File
from fairlead.domain.submission import ANONYMOUS
from fairlead.errors import FileQuota, InvalidInput, NotFound, WrongState
from fairlead.gateway import models_openai, request_parsing, uploads
from fairlead.gateway.file_content import respond
from fairlead.gateway.fronts.callers import USER_HEADER, user_of
from fairlead.gateway.fronts.openai.errors import PREFIX
from fairlead.gateway.openapi import WITH_BODY, header, in_openai_shape
from fairlead.gateway.permissions import caller_of
from fairlead.gateway.problems import PreconditionFailed, RangeNotSatisfiable
from fairlead.gateway.request_middleware import headers_of
from fairlead.gateway.responses import fairlead_of, json_response

FILES = f"{PREFIX}files"
PURPOSES = ("batch", "assistants", "fine-tune", "vision", "user_data", "evals")
KEPT_FOR_S = 30 * 86400
"""How long the file of a batch is kept, unless the client asks for another time."""
SHORTEST_S, LONGEST_S = 3600, 30 * 86400
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"

router = APIRouter(prefix=PREFIX.rstrip("/"), tags=["openai"])

_USER = header(USER_HEADER, "With the key of a service: the user of the file. Lists have the files of this user only.")
_FORM = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "enum": list(PURPOSES)},
        ANCHOR: {"type": "string", "enum": ["created_at"]},
        SECONDS: {"type": "integer", "minimum": SHORTEST_S, "maximum": LONGEST_S},
    },
}


def user_in(request: Request) -> str | None:
    """The user whose files and batches a request reaches; None for all."""
    caller, headers = caller_of(request), headers_of(request.scope)
    if caller.role is not Role.USER and USER_HEADER.lower().encode() not in headers:
        return None
    return user_of(caller, headers)


def file_view(file: File) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size or 0,
        "created_at": int(file.created_at),
        "expires_at": None if file.expires_at is None else int(file.expires_at),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
    }


def list_view(data: list[dict[str, Any]], more: bool) -> dict[str, Any]:
    ids = [each["id"] for each in data]
    return {
        "object": "list",
        "data": data,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": more,
    }


@router.post(
    "/files",
    summary="Upload a file",
    operation_id="openai_upload_file",
    description="A form with the fields `file` and `purpose`. The body goes to the object store as it arrives.",
    openapi_extra={
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}},
        "parameters": [_USER],
    },
    responses=in_openai_shape(models_openai.OpenAIFile, "The file.", *WITH_BODY, FileQuota),
)
async def upload_file(request: Request) -> Response:
    request_parsing.refuse_encoded(request)
    if not uploads.is_form(request):
        raise InvalidInput("send the file as a form (multipart/form-data), in the field 'file'", pointer="/file")
    files, now = fairlead_of(request).files, fairlead_of(request).now()
    user_id = user_in(request) or ANONYMOUS
    form = uploads.Form(request)

    async def write(name: str, type_: str | None, chunks: AsyncIterator[bytes]) -> File:
        if "purpose" in form.fields:
            _purpose(form.fields)  # before the bytes are read
        return await files.write(await files.begin(NewFile(user_id, name or "file", type_)), chunks)

    written: File = await form.read(write)
    purpose = _purpose(form.fields)
    file = await files.complete(replace(written, purpose=purpose, expires_at=_expiry(form.fields, purpose, now)))
    return json_response(file_view(file))


def _purpose(fields: Mapping[str, str]) -> str:
    purpose = fields.get("purpose")
    if purpose not in PURPOSES:
        raise InvalidInput(f"purpose must be one of {', '.join(PURPOSES)}", pointer="/purpose")
    return purpose


def _expiry(fields: Mapping[str, str], purpose: str, now: float) -> float | None:
    anchor, seconds = fields.get(ANCHOR), fields.get(SECONDS)
    if anchor is None and seconds is None:
        return now + KEPT_FOR_S if purpose == BATCH else None
    valid = seconds is not None and seconds.isascii() and seconds.isdecimal() and len(seconds) < 9
    if anchor != "created_at" or not valid or not SHORTEST_S <= int(seconds or 0) <= LONGEST_S:
        raise InvalidInput(
            f"expires_after must have the anchor created_at, and {SHORTEST_S} to {LONGEST_S} seconds",
            pointer="/expires_after",
        )
    return now + int(seconds or 0)


@router.get(
    "/files",
    summary="List files",
    operation_id="openai_list_files",
    openapi_extra={"parameters": [_USER]},
    responses=in_openai_shape(models_openai.OpenAIFiles, "One page.", InvalidInput),
)
async def list_files(request: Request, query: Annotated[models_openai.OpenAIFilesQuery, Query()]) -> Response:
    if query.after is not None and not domain.FILE_ID.fullmatch(query.after):
        raise InvalidInput("after must be the id of a file", pointer="/after")
    files, user_id, purpose, limit = fairlead_of(request).files, user_in(request), query.purpose, query.limit + 1
    if query.order == "asc":
        found = await files.oldest(user_id, purpose=purpose, after=query.after, limit=limit)
    else:
        found = await files.list(user_id, purpose=purpose, before=query.after, limit=limit)
    data = [file_view(file) for file in found[: query.limit]]
    return json_response(list_view(data, len(found) > query.limit))


@router.get(
    "/files/{file_id}",
    summary="One file",
    operation_id="openai_file",
    openapi_extra={"parameters": [_USER]},
    responses=in_openai_shape(models_openai.OpenAIFile, "The file.", InvalidInput, NotFound),
)
async def get_file(request: Request, file_id: str) -> Response:
    return json_response(file_view(await _file(request, file_id)))


async def _file(request: Request, file_id: str) -> File:
    return await fairlead_of(request).files.get_complete(file_id, user_in(request))


@router.get(
    "/files/{file_id}/content",
    summary="The content of a file",
    operation_id="openai_file_content",
    openapi_extra={"parameters": [_USER]},
    response_class=Response,
    responses={
        **in_openai_shape(None, "The content.", InvalidInput, NotFound, PreconditionFailed, RangeNotSatisfiable),
        206: {"description": "The part that `Range` asks for."},
        304: {"description": "The client has this content already."},
        307: {"description": "With `artifacts.presign`: where the object store has it."},
    },
)
async def get_file_content(request: Request, file_id: str) -> Response:
    return await respond(request, fairlead_of(request).files, await _file(request, file_id))


@router.delete(
    "/files/{file_id}",
    summary="Delete a file",
    operation_id="openai_delete_file",
    description="A file that a job or a batch uses cannot be deleted.",
    openapi_extra={"parameters": [_USER]},
    responses=in_openai_shape(
        models_openai.OpenAIFileDeleted, "The file is deleted.", InvalidInput, NotFound, WrongState
    ),
)
async def delete_file(request: Request, file_id: str) -> Response:
    file = await _file(request, file_id)
    await fairlead_of(request).files.delete(file.id)
    return json_response({"id": file.id, "object": "file", "deleted": True})
