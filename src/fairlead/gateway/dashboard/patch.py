"""JSON merge patches (RFC 7386): what makes one state of a view into the next."""

from __future__ import annotations

from typing import Any


class Inexpressible(Exception):
    """In a merge patch null means "take it away": a null among what is new cannot be said."""


def diff(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Empty if they are the same. Lists are replaced whole. Raises Inexpressible."""
    patch: dict[str, Any] = {}
    for key, value in new.items():
        before = old.get(key)
        if value is before or value == before:
            if value is None and key not in old:
                raise Inexpressible
            continue
        if isinstance(value, dict) and isinstance(before, dict):
            patch[key] = diff(before, value)
        else:
            _check(value)
            patch[key] = value
    for key in old.keys() - new.keys():
        patch[key] = None
    return patch


def _check(value: Any) -> None:
    """Within lists a null is a value as any other."""
    if value is None:
        raise Inexpressible
    if isinstance(value, dict):
        for each in value.values():
            _check(each)
