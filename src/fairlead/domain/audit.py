"""What operators did: one record per action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """`id` is a UUID of version 7, so that the records' order is that of their ids. `outcome` is None while the action
    is under way, and stays so if the process died with it."""

    id: str
    at: float
    who: str
    action: str
    target: str
    details: Mapping[str, Any]
    outcome: Mapping[str, Any] | None = None
