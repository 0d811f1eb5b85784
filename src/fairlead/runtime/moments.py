"""Moments as callers write them."""

from __future__ import annotations

from datetime import UTC, datetime

from fairlead.errors import InvalidInput


def moment(value: datetime | str, field: str) -> float:
    """Seconds since the epoch; what says nothing of its zone is in UTC."""
    try:
        value = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise InvalidInput(f"{field} must be an ISO 8601 time, not {str(value)[:50]!r}", pointer=f"/{field}") from None
    if not isinstance(value, datetime):
        raise InvalidInput(f"{field} must be an ISO 8601 time", pointer=f"/{field}")
    try:
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    except (OverflowError, ValueError):
        raise InvalidInput(f"{field} is out of range", pointer=f"/{field}") from None
