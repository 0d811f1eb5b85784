"""Lists in pages: one page of a list, and the cursor that says where the next one begins."""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass
from typing import Generic, TypeVar

from fairlead.errors import InvalidInput

T = TypeVar("T")

MAX_PAGE = 500


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    data: list[T]
    next_cursor: str | None


def check_limit(limit: int) -> None:
    if not isinstance(limit, int) or not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(f"limit must be from 1 to {MAX_PAGE}", pointer="/limit")


def write_cursor(seq: int, where: object) -> str:
    """Opaque to callers, and bound to the filter it was made for."""
    return base64.urlsafe_b64encode(f"{seq}.{_mark(seq, where)}".encode()).decode().rstrip("=")


def read_cursor(cursor: str, where: object) -> int:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
        seq, _, mark = text.partition(".")
        if mark == _mark(int(seq), where):
            return int(seq)
    except (ValueError, binascii.Error):
        pass
    raise InvalidInput("this cursor is not from this list; begin without one", pointer="/cursor")


def _mark(seq: int, where: object) -> str:
    return f"{zlib.crc32(repr((seq, where)).encode()):08x}"
