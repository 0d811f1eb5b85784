"""API keys and their roles, and the audit records of actions taken with them.

A key is `fl_<id>_<256 bits>_<checksum>` and a ticket is `flt_<256 bits>_<checksum>`, all in hex. A ticket replaces its
key for a single request. The prefix lets secret scanners find leaked keys and tickets; the checksum lets us reject a
mistyped one without a database query. Only the SHA-256 of the whole text is stored: 256 random bits need no slow hash.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Role(StrEnum):
    """What the holder of a key may do. An admin may do everything. A viewer reads what an admin reads and changes
    nothing. A service acts for any user. A user key acts for its own user only."""

    ADMIN = "admin"
    VIEWER = "viewer"
    SERVICE = "service"
    USER = "user"


@dataclass(frozen=True, slots=True)
class Key:
    """A stored API key. `hash` is the hex SHA-256 of the secret text; the text itself is shown once and never
    stored."""

    id: str
    role: Role
    user_id: str | None
    name: str
    hash: str = field(repr=False)
    created_at: float
    revoked_at: float | None = None


ID_BYTES = 6
SECRET_BYTES = 32

KEY_PATTERN = re.compile(r"fl_([0-9a-f]{12})_[0-9a-f]{64}_[0-9a-f]{8}")
TICKET_PATTERN = re.compile(r"flt_[0-9a-f]{64}_[0-9a-f]{8}")
# Anything that looks like a key or ticket, complete or truncated. Only the first group, the prefix, may be shown.
SECRET_PATTERN = re.compile(r"\b(fl_[0-9a-f]{12}_|flt_)[0-9a-f]{16,}(?:_[0-9a-f]{1,8})?")


def key_text(key_id: str, secret: bytes) -> str:
    return _with_checksum(f"fl_{key_id}_{secret.hex()}")


def ticket_text(secret: bytes) -> str:
    return _with_checksum(f"flt_{secret.hex()}")


def key_id_of(key: str) -> str | None:
    """The id contained in the text of a key, or None if the text is not a key."""
    match = KEY_PATTERN.fullmatch(key)
    return match[1] if match is not None and _is_whole(key) else None


def is_ticket(text: str) -> bool:
    return TICKET_PATTERN.fullmatch(text) is not None and _is_whole(text)


def secret_hash(text: str) -> str:
    """The hash under which a key or ticket is stored."""
    return hashlib.sha256(text.encode()).hexdigest()


def _with_checksum(text: str) -> str:
    return f"{text}_{zlib.crc32(text.encode()):08x}"


def _is_whole(text: str) -> bool:
    return _with_checksum(text.rpartition("_")[0]) == text


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One audited action. `id` is a UUID of version 7, so records sort by time. `outcome` is None until the action
    ends, and stays None if the process dies first."""

    id: str
    at: float
    who: str
    action: str
    target: str
    details: Mapping[str, Any]
    outcome: Mapping[str, Any] | None = None
