"""Files: what users upload and what jobs produce, kept in the object store and named by rows of the database."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import mimetypes
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from fairlead.domain.fast_dataclass import fast_dataclass
from fairlead.errors import InvalidInput

FILE_ID = re.compile(r"file-[0-9a-f]{32}")
ARTIFACT_ID = re.compile(r"[0-9a-f]{32}")
MARK = '"$file"'
"""The key of a reference as it appears in JSON text."""
STORED = '{"$stored":"'
"""How the text of a value begins that was moved to the object store."""
VALUE = "value"
"""The purpose of files that hold the input of a job or the result of a step."""
RESULT = "result"
"""The purpose of files that handlers saved."""
UPLOAD = "upload"
UPLOADS_OF = "put:"
"""Before the id of a file: what the ticket of a URL names that the bytes of this file are sent to."""
OCTETS = "application/octet-stream"
MAX_NAME = 255
MAX_PURPOSE = 64
MOST_REFERENCES = 1000
"""The number of files that one input or result may name."""
_TOKEN = r"[A-Za-z0-9!#$&^_.+-]{1,127}"
_TYPE = re.compile(rf'{_TOKEN}/{_TOKEN}(?:\s*;\s*{_TOKEN}=[\w."+ -]{{1,100}})*')
_DATA_URI = re.compile(r"data:([\w.+-]+/[\w.+-]+)?((?:;[\w-]+=[\w.\"-]+)*);base64,")
_MAGIC = (
    (b"\x89PNG\r\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"ID3", "audio/mpeg"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"glTF", "model/gltf-binary"),
)
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@fast_dataclass
class File:
    """The row of a file. `size` and `sha256` are None while its bytes are being uploaded. `job_id` is the job that the
    file was made by or for: such a file ends with the last job that uses it."""

    id: str
    user_id: str
    artifact_id: str
    name: str
    content_type: str
    purpose: str
    created_at: float
    ready: bool = False
    size: int | None = None
    sha256: str | None = None
    expires_at: float | None = None
    job_id: str | None = None

    def reference(self) -> dict[str, Any]:
        return {
            "$file": self.id,
            "name": self.name,
            "content_type": self.content_type,
            "size": self.size,
            "sha256": self.sha256,
        }

    def stored_json(self) -> str:
        """The text that takes the place of a value whose JSON this file holds."""
        return orjson.dumps({"$stored": self.id, "size": self.size, "sha256": self.sha256}).decode()


def id_in(reference: Any) -> str:
    """The id of a file, given the id or a reference. Raises InvalidInput if it is neither."""
    found = reference.get("$file") if isinstance(reference, Mapping) else reference
    if isinstance(found, str) and FILE_ID.fullmatch(found):
        return found
    raise InvalidInput('a file is named by its id, or by a reference such as {"$file": "file-…"}', pointer="/$file")


def stored_id(value_json: str) -> str | None:
    """The id of the file that holds a value; None if this text is the value itself."""
    if not value_json.startswith(STORED):
        return None
    found = value_json[len(STORED) : len(STORED) + 37]
    return found if FILE_ID.fullmatch(found) else None


def references_in(value: Any) -> Iterator[str]:
    """The ids of all files that a JSON value names. Raises InvalidInput for a `$file` that is not an id."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            if "$file" in each:
                yield id_in(each)
            waiting += each.values()
        elif isinstance(each, list | tuple):
            waiting += each


def named_in(value_json: str) -> tuple[str, ...]:
    """The ids of the files that this JSON text names, without duplicates."""
    if MARK not in value_json:
        return ()
    found = tuple(dict.fromkeys(references_in(orjson.loads(value_json))))
    if len(found) > MOST_REFERENCES:
        raise InvalidInput(f"at most {MOST_REFERENCES} files may be named, not {len(found)}")
    return found


def with_files(value: Any, shown: Callable[[Mapping[str, Any]], Any]) -> Any:
    """The value with each reference to a file replaced by what `shown` makes of it."""
    if isinstance(value, Mapping):
        file_id = value.get("$file")
        if isinstance(file_id, str) and FILE_ID.fullmatch(file_id):
            return shown(value)
        return {key: with_files(each, shown) for key, each in value.items()}
    return [with_files(each, shown) for each in value] if isinstance(value, list) else value


def clean_name(name: str) -> str:
    """The last part of a path, without control characters. A name is only shown and sent, never opened."""
    last = _UNSAFE.sub("", name).replace("\\", "/").rstrip("/").rpartition("/")[2].strip()
    while len(last.encode()) > MAX_NAME:
        last = last[:-1]
    return last if last not in ("", ".", "..") else "file"


def content_type_of(given: str | None, name: str) -> str:
    """The content type that the caller gave, or the one that the name suggests."""
    if given is not None and given != OCTETS:
        if not _TYPE.fullmatch(given) or len(given) > MAX_NAME:
            raise InvalidInput(f"{given[:100]!r} is not a content type, such as image/png", pointer="/content_type")
        return given
    return mimetypes.guess_type(name, strict=False)[0] or OCTETS


def check_purpose(purpose: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", purpose):
        raise InvalidInput("purpose must be 1 to 64 letters, digits, dots, dashes or underscores", pointer="/purpose")
    return purpose


def stream_subject(job_id: str) -> str:
    """What the ticket in the URL of a job's stream is for."""
    return f"stream:{job_id}"


def ticket_of(secret: str, file_id: str, expires_at: int) -> str:
    """The ticket with which a URL may read this file until `expires_at`, in seconds since 1970."""
    signed = hmac.new(secret.encode(), f"{file_id}.{expires_at}".encode(), hashlib.sha256).hexdigest()
    return f"{expires_at}.{signed[:40]}"


def is_valid_ticket(secret: str, file_id: str, ticket: str, now: float) -> bool:
    expires_at = ticket.partition(".")[0]
    if not (expires_at.isascii() and expires_at.isdecimal() and len(expires_at) <= 12):
        return False
    expected = ticket_of(secret, file_id, int(expires_at))
    return hmac.compare_digest(expected.encode(), ticket.encode("utf-8", "replace")) and now < int(expires_at)


def data_uri(text: str) -> tuple[str, bytes] | None:
    """The content type and the bytes of a base64 `data:` URI; None if the text is not one."""
    match = _DATA_URI.match(text)
    if match is None:
        return None
    try:
        content = base64.b64decode(text[match.end() :], validate=True)
    except (binascii.Error, ValueError):
        return None
    return match[1] or type_of(content), content


def type_of(content: bytes) -> str:
    """The type that the first bytes show."""
    if content[:4] == b"RIFF":
        return {b"WAVE": "audio/wav", b"WEBP": "image/webp"}.get(content[8:12], OCTETS)
    if content[4:8] == b"ftyp":
        return "video/mp4"
    return next((type_ for magic, type_ in _MAGIC if content.startswith(magic)), OCTETS)


def extension(type_: str) -> str:
    return mimetypes.guess_extension(type_) or ".bin"
