"""Removes credentials from texts that people see, and replaces numbers and ids in error messages to group them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "***"
SHORTEST = 8
"""The minimum length of a secret to replace. Shorter secrets occur in too many ordinary words."""

# The length of the scheme is bounded: otherwise the search would take quadratic time in long words, such as Base64.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://)([^\s'\"<>]+)")


def redacted(text: str) -> str:
    """The text without the credentials, query and fragment of any URL in it."""
    return _URL.sub(_shown, text) if "://" in text else text


def _shown(match: re.Match[str]) -> str:
    scheme, rest = match.groups()
    if scheme.lower().startswith(("http", "ws")):
        end = next((index for index, letter in enumerate(rest) if letter in "/?#"), len(rest))
    else:
        end = len(rest)  # a database password may contain / or ?, so it ends at the last @
    login, at, host = rest[:end].rpartition("@")
    address = host + rest[end:]
    cut = next((index for index, letter in enumerate(address) if letter in "?#"), None)
    hidden = "" if cut is None else address[cut] + HIDDEN
    return f"{scheme}{HIDDEN + at if login else at}{address[:cut]}{hidden}"


def without(text: str, secrets: Iterable[str]) -> str:
    """Replace these secrets in the text. Longer secrets are replaced first, because one secret may contain another."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST:
            text = text.replace(secret, HIDDEN)
    return text


def redacted_error(error: Mapping[str, Any]) -> dict[str, Any]:
    """Redact a stored error. Older releases stored error messages unredacted."""
    message = error.get("message")
    return {**error, "message": redacted(message)} if isinstance(message, str) else dict(error)


LONGEST_SIGNATURE = 200
ANY = "#"
"""Stands for a number or an id in the signature of an error message."""

# A UUID, a long hexadecimal word with a digit in it, or a number.
_DIFFERS = re.compile(
    r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
    r"|\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b"
    r"|\d+(?:\.\d+)?"
)


def likeness(message: str) -> str:
    """The signature of an error message: the message with numbers and ids replaced, and shortened. Messages of the same
    kind have the same signature."""
    return _DIFFERS.sub(ANY, redacted(message[: 4 * LONGEST_SIGNATURE]))[:LONGEST_SIGNATURE]
