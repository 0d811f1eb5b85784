"""What a key and a ticket look like: `fl_<id>_<256 bits>_<checksum>` and `flt_<256 bits>_<checksum>`, all in hex.

The prefix lets scanners of repositories and logs find one that got lost; the checksum lets us refuse a mistyped one
without a look into the truth. Only the SHA-256 of the whole text is stored: 256 bits of chance need no slow hash.
"""

from __future__ import annotations

import hashlib
import re
import zlib

ID_BYTES = 6
SECRET_BYTES = 32

KEY = re.compile(r"fl_([0-9a-f]{12})_[0-9a-f]{64}_[0-9a-f]{8}")
TICKET = re.compile(r"flt_[0-9a-f]{64}_[0-9a-f]{8}")
# Whatever looks like one, whole or cut off; the first group may be shown.
SECRET = re.compile(r"\b(fl_[0-9a-f]{12}_|flt_)[0-9a-f]{16,}(?:_[0-9a-f]{1,8})?")


def key_text(key_id: str, secret: bytes) -> str:
    return _with_checksum(f"fl_{key_id}_{secret.hex()}")


def ticket_text(secret: bytes) -> str:
    return _with_checksum(f"flt_{secret.hex()}")


def id_of(key: str) -> str | None:
    """The id that a key names. None: this is no key."""
    found = KEY.fullmatch(key)
    return found[1] if found is not None and _is_whole(key) else None


def is_ticket(text: str) -> bool:
    return TICKET.fullmatch(text) is not None and _is_whole(text)


def hash_of(text: str) -> str:
    """What is stored of a key or a ticket."""
    return hashlib.sha256(text.encode()).hexdigest()


def _with_checksum(text: str) -> str:
    return f"{text}_{zlib.crc32(text.encode()):08x}"


def _is_whole(text: str) -> bool:
    return _with_checksum(text.rpartition("_")[0]) == text
