"""JSON as it is stored and sent: what JSON cannot say is refused, never bent."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import orjson

# What is stored is shown within a few more levels, and orjson writes no more than 254.
MAX_DEPTH = 100
TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"

# A string that does not end takes all the rest, or a text that is no JSON would be searched again from every quote.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_AS_LISTS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class NotJson(ValueError):
    """The value has no JSON form; the message says what is in the way."""


def to_json(value: Any) -> str:
    try:
        encoded = orjson.dumps(value)
    except TypeError as error:
        raise NotJson(TOO_DEEP if "ecursion limit" in str(error) else str(error)) from None
    if len(encoded) > 2 * MAX_DEPTH:  # each level takes two brackets
        check_depth(encoded)
    # orjson writes NaN and infinities as null; a look at the values is only needed where there is a null.
    if b"null" in encoded and _has_nan(value):
        raise NotJson("it contains NaN or an infinity")
    return encoded.decode()


def check_depth(text: bytes | str) -> None:
    """Refuse JSON text with more than MAX_DEPTH levels. Text that is no JSON at all is its parser's to refuse, and best
    parsed first: parsers have limits of their own, far beyond this one."""
    if len(text) <= 2 * MAX_DEPTH:  # every level takes a bracket at either end
        return
    text = text.encode(errors="replace") if isinstance(text, str) else text
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return
    rest = _STRINGS.sub(b"", text).translate(_AS_LISTS, _NO_BRACKETS)
    # Each round takes away the innermost level, everywhere at once.
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
