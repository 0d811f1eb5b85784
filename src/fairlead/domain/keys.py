"""Keys: who may ask, and for whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """An admin may do everything, a viewer sees what an admin sees and changes nothing, a service acts for any user, a
    user for itself only."""

    ADMIN = "admin"
    VIEWER = "viewer"
    SERVICE = "service"
    USER = "user"


@dataclass(frozen=True, slots=True)
class Key:
    """A key as the truth knows it. `hash` is the SHA-256, in hex, of the whole secret text: the text itself is shown
    once and kept nowhere."""

    id: str
    role: Role
    user_id: str | None
    name: str
    hash: str = field(repr=False)
    created_at: float
    revoked_at: float | None = None
