"""Strict JSON encoding and decoding: values without an exact JSON form are refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import orjson

# Responses nest stored values a few levels deeper, and orjson writes at most 254 levels.
MAX_DEPTH = 100
TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"

# An unterminated string matches up to the end of the text. Otherwise invalid JSON would be scanned again from every
# quote.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
# Maps all digits to 0, so that a substring search for zeros finds a long number.
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 19
_AS_LISTS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class NotJson(ValueError):
    """The value has no JSON form; the message explains why."""


def to_json(value: Any) -> str:
    try:
        encoded = orjson.dumps(value)
    except TypeError as error:
        raise NotJson(_problem(str(error))) from None
    if len(encoded) > 2 * MAX_DEPTH:  # each level takes two brackets
        check_depth(encoded)
    # orjson writes NaN and infinities as null, so the values need checking only if a null was written.
    if encoded.find(b"null") >= 0 and _has_nan(value):  # `in` would first read the bytes as a number
        raise NotJson("it contains NaN or an infinity")
    return encoded.decode()


def _problem(text: str) -> str:
    if "ecursion limit" in text:
        return TOO_DEEP
    return "it has an integer beyond 64 bits; send it as a string" if "64-bit" in text else text


def from_json(text: bytes) -> Any:
    """Decode JSON without loss. orjson alone turns integers beyond 64 bits into floats. Here they stay integers, which
    `to_json` then refuses. Raises orjson.JSONDecodeError for invalid JSON."""
    value = orjson.loads(text)
    if not has_long_number(text):
        return value
    try:
        return json.loads(text)
    except RecursionError:
        raise NotJson(TOO_DEEP) from None


def from_upstream(text: bytes | str) -> Any:
    """Decode JSON that is passed on as it is. Escaped lone surrogates are valid JSON, for example half of an emoji that
    a model was cut off in; orjson refuses them, and here they become question marks. Raises NotJson, with the reason,
    for what JSON does not allow: Python's encoder, for example, writes NaN."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        problem = str(error)
    try:
        value = json.loads(text.decode() if isinstance(text, bytes) else text)
    except (ValueError, RecursionError):
        raise NotJson(problem) from None
    if _has_nan(value):
        raise NotJson("it contains NaN or an infinity")
    return orjson.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def has_long_number(text: bytes) -> bool:
    """Whether the text may contain an integer beyond 64 bits. True if it has 19 digits in a row."""
    return _LONG_NUMBER in text.translate(_DIGITS)


def check_depth(text: bytes | str) -> None:
    """Refuse JSON text with more than MAX_DEPTH levels of nesting. The text must be valid JSON: this function does not
    detect errors."""
    if len(text) <= 2 * MAX_DEPTH:  # every level has two brackets
        return
    text = text.encode(errors="replace") if isinstance(text, str) else text
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return
    rest = _STRINGS.sub(b"", text).translate(_AS_LISTS, _NO_BRACKETS)
    # Each pass removes the innermost level everywhere.
    for _ in range(MAX_DEPTH):
        if b"[]" not in rest:
            return
        rest = rest.replace(b"[]", b"")
    if b"[]" in rest:
        raise NotJson(TOO_DEEP)


def _has_nan(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(_has_nan(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_has_nan(item) for item in value)
    return False
