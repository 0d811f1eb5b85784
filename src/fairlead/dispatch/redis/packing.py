"""Values as MessagePack, as far as the scripts need it: what is offered is stored as it comes, and not packed again."""

from __future__ import annotations

import struct
from functools import lru_cache

_SMALL = [bytes([number]) for number in range(128)]
_INT = struct.Struct(">Bq").pack
_FLOAT = struct.Struct(">Bd").pack
FALSE = b"\xc2"


def packed_int(number: int) -> bytes:
    return _SMALL[number] if 0 <= number < 128 else _INT(0xD3, number)


def packed_float(number: float) -> bytes:
    """A whole number as one: it is shorter, and the same to Lua."""
    return packed_int(int(number)) if number.is_integer() and abs(number) < 2**53 else _FLOAT(0xCB, number)


@lru_cache(4096)  # users and services come again and again: 0.1 µs instead of 0.4
def packed_text(text: str) -> bytes:
    data = text.encode()
    if len(data) < 32:
        return bytes([0xA0 | len(data)]) + data
    if len(data) < 1 << 8:
        return bytes([0xD9, len(data)]) + data
    if len(data) < 1 << 16:
        return struct.pack(">BH", 0xDA, len(data)) + data
    return struct.pack(">BI", 0xDB, len(data)) + data
