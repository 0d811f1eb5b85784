"""The cost of a step in the unit of its service: seconds, tokens, megapixels..."""

from __future__ import annotations

MAX_UNITS = 1e9
"""The highest cost of a step, and the highest use that an endpoint can report. In millionths it is below 2^53, up to
which the Redis scripts count exactly."""


def reported(value: object) -> float | None:
    """The number of units that an endpoint reported, or None if it is not a plausible number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MAX_UNITS else None  # also False for NaN
