"""Images by URL. With `response_format: "url"`, images that the upstream sends as base64 or as a binary body are saved
as files. The result names them, and each gateway makes URLs from the names when it answers."""

from __future__ import annotations

import base64
import binascii
import re
import time
from dataclasses import replace
from typing import Any

import orjson

from fairlead.domain import openai
from fairlead.domain.files import extension, type_of
from fairlead.domain.openai import FrontAnswer, FrontRequest
from fairlead.executors.port import Call, Success

_PATHS = frozenset({openai.IMAGES, openai.IMAGE_EDITS, openai.IMAGE_VARIATIONS})
_FIELDS = frozenset({"response_format", "model"})
_REFUSED = re.compile(r'\{"status":4(?:00|22),')
MOST_REMEMBERED = 1000


def asks_for_urls(request: FrontRequest) -> bool:
    return request.path in _PATHS and not request.stream and _fields(request).get("response_format") == "url"


def without_format(request: FrontRequest) -> FrontRequest:
    """The request without `response_format`, for upstreams that do not know the field."""
    if _is_form(request):
        return replace(request, body=openai.form_with(request.content_type, request.body, "response_format", None))
    return replace(request, body=openai.without(request.body, "response_format"))


class RefusedField:
    """For which models, in which regions, the upstream refuses the field `name` of requests."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._refused: dict[tuple[str | None, str], None] = {}

    def has(self, call: Call, request: FrontRequest) -> bool:
        return bool(self._refused) and (call.region, str(_fields(request).get("model"))) in self._refused

    def note(self, call: Call, request: FrontRequest) -> None:
        if len(self._refused) >= MOST_REMEMBERED:
            self._refused.clear()
        self._refused[call.region, str(_fields(request).get("model"))] = None

    def is_why(self, outcome: object) -> bool:
        """Whether the upstream answered that it does not take the field, or not this value."""
        if not isinstance(outcome, Success) or not _REFUSED.match(outcome.data_json):
            return False
        return self._name in outcome.data_json


async def saved_images(call: Call, answer: FrontAnswer, value: Any) -> tuple[FrontAnswer, Any]:
    """The answer with references to files in place of images."""
    if value is None:
        if not answer.headers.get("content-type", "").startswith("image/"):
            return answer, None
        value = {"created": int(time.time()), "data": [{"url": await _save(call, 0, answer.body)}]}
    else:
        data = value.get("data")
        for number, item in enumerate(data if isinstance(data, list) else ()):
            content = _image_in(item)
            if content is not None:
                del item["b64_json"]
                item["url"] = await _save(call, number, content)
    if call.saved is None:
        return answer, value
    headers = {**answer.headers, "content-type": "application/json"}
    return FrontAnswer(answer.status, headers, orjson.dumps(value), files=True), value


async def _save(call: Call, number: int, content: bytes) -> dict[str, Any]:
    type_ = type_of(content)
    reference: dict[str, Any] = await call.save(f"image-{number}{extension(type_)}", content, type_)
    return reference


def _image_in(item: Any) -> bytes | None:
    if not isinstance(item, dict) or item.get("url") or not isinstance(item.get("b64_json"), str):
        return None
    try:
        return base64.b64decode(item["b64_json"], validate=True)
    except (binascii.Error, ValueError):
        return None


def _is_form(request: FrontRequest) -> bool:
    return request.content_type.lower().startswith("multipart/form-data")


def _fields(request: FrontRequest) -> dict[str, Any]:
    if _is_form(request):
        return dict(openai.form_fields(request.content_type, request.body, _FIELDS))
    return openai.json_object(request.body) or {}
