"""Files in the answers and requests of HTTP endpoints: a binary body or the parts of a multipart body become files, and
so do large `data:` URIs and base64 fields of JSON. References in the input get a URL that the endpoint can fetch."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson

from fairlead.domain.files import MARK, clean_name, data_uri, extension, type_of
from fairlead.errors import Permanent
from fairlead.executors.port import Call

PIECE = 64 * 1024
MOST_PARTS = 1000
MAX_TEXT_PART = 16 * 1024 * 1024
_BINARY = re.compile(r"(?:image|audio|video|font|model)/.+|application/(?:pdf|zip|gzip|x-tar|wasm)")
# Fields that hold base64 by their name, such as `b64_json`, `image_base64` or `audio_b64`.
_BASE64_FIELD = re.compile(r"(?:.*_)?(?:b64|base64)(?:_json)?", re.IGNORECASE)


def is_binary(response: aiohttp.ClientResponse) -> bool:
    return _BINARY.fullmatch(response.content_type) is not None


def is_multipart(response: aiohttp.ClientResponse) -> bool:
    return response.content_type.startswith("multipart/")


async def save_body(response: aiohttp.ClientResponse, call: Call) -> dict[str, Any]:
    """Save a binary response as it arrives."""
    found = response.content_disposition
    name = (found.filename if found is not None else None) or f"{call.service}{extension(response.content_type)}"
    reference: dict[str, Any] = await call.save(clean_name(name), _pieces(response.content), response.content_type)
    return reference


async def save_bytes(body: bytes, call: Call) -> dict[str, Any]:
    type_ = type_of(body)
    reference: dict[str, Any] = await call.save(f"{call.service}{extension(type_)}", body, type_)
    return reference


async def read_parts(response: aiohttp.ClientResponse, call: Call) -> dict[str, Any]:
    """Read a multipart response: JSON and text as values, everything else as files, by the names of the parts."""
    values: dict[str, Any] = {}
    reader: Any = aiohttp.MultipartReader.from_response(response)
    while (part := await reader.next()) is not None:
        if len(values) >= MOST_PARTS:
            raise Permanent("the service's response has too many parts")
        if not isinstance(part, aiohttp.BodyPartReader):
            raise Permanent("the service's response has a multipart in a multipart")
        type_ = part.headers.get("Content-Type", "text/plain").partition(";")[0].strip().lower()
        name = part.name or f"part_{len(values)}"
        if part.filename is None and (type_.startswith("text/") or type_.endswith("json")):
            text = await _text(part)
            values[name] = orjson.loads(text) if type_.endswith("json") else text.decode("utf-8", "replace")
        else:
            file_name = clean_name(part.filename or f"{name}{extension(type_)}")
            values[name] = await call.save(file_name, _decoded(part), type_)
    return values


async def _text(part: aiohttp.BodyPartReader) -> bytes:
    text = bytearray()
    async for piece in _decoded(part):
        text += piece
        if len(text) > MAX_TEXT_PART:
            raise Permanent("a text in the service's response is too large")
    return bytes(text)


async def _decoded(part: aiohttp.BodyPartReader) -> AsyncIterator[bytes]:
    while piece := await part.read_chunk(PIECE):
        yield bytes(piece)


async def _pieces(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    async for piece in content.iter_chunked(PIECE):
        yield piece


async def taken_out(value: Any, call: Call, above: int) -> Any:
    """The value with each `data:` URI and each base64 field that is longer than `above` characters saved as a file and
    replaced by its reference."""
    if isinstance(value, dict):
        for key, each in value.items():
            if isinstance(each, str) and len(each) > above:
                value[key] = await _saved(key, each, call)
            elif isinstance(each, dict | list):
                value[key] = await taken_out(each, call, above)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            if isinstance(each, str) and len(each) > above:
                value[index] = await _saved("", each, call)
            elif isinstance(each, dict | list):
                value[index] = await taken_out(each, call, above)
    return value


async def _saved(key: str, text: str, call: Call) -> Any:
    """A reference in place of a text that is a `data:` URI or base64; else the text."""
    found = data_uri(text)
    if found is None:
        if not _BASE64_FIELD.fullmatch(key):
            return text
        try:
            content = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            return text
        found = type_of(content), content
    type_, content = found
    name = clean_name(re.sub(r"_?(?:b64|base64)(?:_json)?$", "", key, flags=re.IGNORECASE) or call.service)
    return await call.save(f"{name}{extension(type_)}", content, type_)


async def add_urls(call: Call) -> None:
    """Add to the references of the call's input and context a URL that the endpoint can fetch."""
    if call.files is None:
        return
    if MARK in call.params_json:
        call.params_json = await call.files.urls(call, call.params_json)
    if MARK in call.context_json:
        call.context_json = await call.files.urls(call, call.context_json)
