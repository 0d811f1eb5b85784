"""The dead letters, grouped by what went wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fairlead.domain.likeness import likeness
from fairlead.store.board import DeadGroup

EXAMPLES = 3


def groups(found: Iterable[DeadGroup]) -> dict[str, Any]:
    """Errors of the same code whose messages are alike are one group; `message` is what they have in common, and what
    `error_like` of the dead letters' routes takes."""
    merged: dict[str, dict[str, Any]] = {}
    for each in found:
        message = likeness(each.message)
        group = merged.setdefault(
            f"{each.code} {message}",
            {
                "code": each.code,
                "message": message,
                "services": [],
                "count": 0,
                "first": each.first,
                "last": each.last,
                "examples": [],
            },
        )
        group["count"] += each.count
        group["first"], group["last"] = min(group["first"], each.first), max(group["last"], each.last)
        if each.service not in group["services"]:
            group["services"] = sorted([*group["services"], each.service])
        group["examples"] = sorted([*group["examples"], *each.examples], reverse=True)[:EXAMPLES]
    return merged
