"""Validation of single values from callers: names, ids and times."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from fairlead.errors import InvalidInput

_INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
_JSON_TYPES = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    dict: "an object",
    list: "a list",
}


def check_text(value: Any, field: str, longest: int) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{field} must be text, not {json_type(value)}", pointer=f"/{field}")
    if not value or value.isspace():
        raise InvalidInput(f"{field} must not be {'blank' if value else 'empty'}", pointer=f"/{field}")
    if len(value) > longest:
        raise InvalidInput(f"{field} is longer than {longest} characters", pointer=f"/{field}")
    # Nearly every id is printable ASCII, so the check of every character is rarely needed.
    if not (value.isascii() and value.isprintable()) and any(
        unicodedata.category(character) in _INVISIBLE for character in value
    ):
        raise InvalidInput(f"{field} contains control characters or other invisible characters", pointer=f"/{field}")
    return value


def user_text(user_id: Any) -> Any:
    """Convert an integer user id, as chat platforms use, to a string. Values of other types are returned unchanged;
    `check_text` validates them."""
    return str(user_id) if type(user_id) is int else user_id


def json_type(value: Any) -> str:
    """The name that JSON has for the type of this value."""
    return _JSON_TYPES.get(type(value), type(value).__name__)


def check_id(value: str, what: str = "job", pointer: str | None = None) -> str:
    """Return `value` if it is a UUID in canonical form; raise InvalidInput otherwise."""
    try:
        if isinstance(value, str) and str(UUID(value)) == value:
            return value
    except ValueError:
        pass
    text = f"a {what} id is a UUID, such as 0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a10"
    raise InvalidInput(text, pointer=pointer or f"/{what}_id")


def moment(value: datetime | str, field: str) -> float:
    """Convert a time to seconds since 1970. A time without a time zone is taken as UTC."""
    try:
        value = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise InvalidInput(f"{field} must be an ISO 8601 time, not {str(value)[:50]!r}", pointer=f"/{field}") from None
    if not isinstance(value, datetime):
        raise InvalidInput(f"{field} must be an ISO 8601 time", pointer=f"/{field}")
    try:
        # The first and last times of the calendar may be outside of it once converted to UTC.
        return (value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    except (OverflowError, ValueError):
        raise InvalidInput(f"{field} is out of range", pointer=f"/{field}") from None
