"""What both clients need for files: paths, and the parts of what is uploaded."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, TypedDict

from fairlead.client.calls import ApiCall, raw
from fairlead.domain.files import OCTETS, id_in
from fairlead.errors import WrongState

FILES = "/api/v1/files"
UPLOADS = "/api/v1/uploads"
PART = 8 * 1024 * 1024

Source = bytes | os.PathLike[str] | BinaryIO


class UploadOptions(TypedDict, total=False):
    """What an upload says of its file. `expires_after` is in seconds."""

    content_type: str | None
    purpose: str
    user_id: str | None
    expires_after: float | None


def upload(content: bytes, name: str, about: UploadOptions) -> ApiCall[dict[str, Any]]:
    fields = {"filename": name, **about}
    headers = {"Content-Type": fields.pop("content_type", None) or OCTETS}
    return raw("POST", FILES, None, content, params=known(fields), headers=headers)


def begin(name: str, about: UploadOptions) -> ApiCall[dict[str, Any]]:
    return raw("POST", UPLOADS, known({"filename": name, **about}), None, params=None)


def send_part(upload_id: str, offset: int, part: bytes) -> ApiCall[Any]:
    headers = {"Upload-Offset": str(offset), "Content-Type": OCTETS}
    return raw("PATCH", f"{UPLOADS}/{upload_id}", None, part, params=None, headers=headers)


def check_arrived(error: WrongState, offset: int) -> None:
    """Raise the error, unless it says that the part has arrived: then only the response to it was lost."""
    if error.details.get("offset") != offset:
        raise error


def complete(upload_id: str) -> ApiCall[dict[str, Any]]:
    return raw("POST", f"{UPLOADS}/{upload_id}/complete", None, None, params=None)


def get(file: str | Mapping[str, Any]) -> ApiCall[dict[str, Any]]:
    return raw("GET", file_path(file), None, None, params=None)


def list_files(user_id: str | None, purpose: str | None, limit: int, cursor: str | None) -> ApiCall[dict[str, Any]]:
    filters = {"user_id": user_id, "purpose": purpose, "limit": limit, "cursor": cursor}
    return raw("GET", FILES, None, None, params=known(filters))


def delete(file: str | Mapping[str, Any]) -> ApiCall[Any]:
    return raw("DELETE", file_path(file), None, None, params=None)


def known(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


@contextmanager
def opened(source: Source, name: str | None) -> Iterator[tuple[BinaryIO, str]]:
    """The source as a binary file, and the name of the file."""
    if isinstance(source, str):
        raise TypeError("upload() takes bytes, a pathlib.Path or a binary file, not text: use Path(...)")
    if isinstance(source, bytes):
        yield io.BytesIO(source), name or "file"
    elif isinstance(source, os.PathLike):
        with open(source, "rb") as file:
            yield file, name or os.path.basename(source)
    else:
        yield source, name or os.path.basename(str(getattr(source, "name", "") or "file"))


def next_part(file: BinaryIO) -> bytes:
    """The next `PART` bytes, or fewer at the end. A pipe may return less at a time."""
    part = bytearray()
    while len(part) < PART and (piece := file.read(PART - len(part))):
        part += piece
    return bytes(part)


def id_of(file: str | Mapping[str, Any]) -> str:
    return id_in(file["id"] if isinstance(file, Mapping) and "id" in file else file)


def file_path(file: str | Mapping[str, Any]) -> str:
    return f"{FILES}/{id_of(file)}"


def content_path(file: str | Mapping[str, Any]) -> str:
    """The path of the content of a file. A text that is a path already is returned unchanged."""
    if isinstance(file, str) and file.startswith("/"):
        return file
    if isinstance(file, Mapping) and "$stored" in file:
        return f"/files/{id_in(file['$stored'])}"
    return f"/files/{id_of(file)}"
