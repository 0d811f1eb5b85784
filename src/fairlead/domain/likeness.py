"""Errors that say the same but for a number or an id: what they have in common."""

from __future__ import annotations

import re

LONGEST = 200
ANY = "#"
"""Stands for what differs."""

# A UUID, a long hexadecimal word with a digit in it, or a number.
_DIFFERS = re.compile(
    r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
    r"|\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b"
    r"|\d+(?:\.\d+)?"
)


def likeness(message: str) -> str:
    """The same for messages that are alike. Only the beginning of a long one counts."""
    return _DIFFERS.sub(ANY, message[: 4 * LONGEST])[:LONGEST]
