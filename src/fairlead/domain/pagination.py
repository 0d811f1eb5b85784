"""Pages of lists, and the cursors that mark where the next page begins."""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from dataclasses import dataclass
from typing import Generic, TypeVar

from fairlead.errors import InvalidInput

T = TypeVar("T")

MAX_PAGE = 500
MOST = (1 << 63) - 1
_NUMBER = re.compile("[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    data: list[T]
    next_cursor: str | None


def check_limit(limit: int) -> None:
    if not isinstance(limit, int) or not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(f"limit must be from 1 to {MAX_PAGE}", pointer="/limit")


def write_cursor(seq: int, where: object) -> str:
    """Return an opaque cursor that contains `seq`. It is valid only for lists with the filter `where`."""
    return base64.urlsafe_b64encode(f"{seq}.{_mark(seq, where)}".encode()).decode().rstrip("=")


def read_cursor(cursor: str, where: object, most: int = MOST) -> int:
    """Return the number in the cursor. Callers can forge cursors, so numbers above `most`, the largest value that the
    database column holds, are refused."""
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
        number, _, mark = text.partition(".")
        if _NUMBER.fullmatch(number) and int(number) <= most and mark == _mark(int(number), where):
            return int(number)
    except (ValueError, binascii.Error):
        pass
    raise InvalidInput("this cursor does not belong to this list; start without one", pointer="/cursor")


def _mark(seq: int, where: object) -> str:
    return f"{zlib.crc32(repr((seq, where)).encode()):08x}"
