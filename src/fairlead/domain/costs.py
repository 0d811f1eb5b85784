"""The cost of a step in the unit of its service: seconds, tokens, megapixels..."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from fairlead.domain.usage import Usage
from fairlead.domain.validation import json_type

TOKENS = "tokens"
MAX_UNITS = 1e9
"""The highest cost of a step, and the highest use that an endpoint can report. In millionths it is below 2^53, up to
which the Redis scripts count exactly."""


def used_units(usage: Usage, unit: str) -> float | None:
    """The use of a call in this unit, or None if the endpoint reported none."""
    used = usage.tokens if unit == TOKENS else usage.units
    return None if used is None or used > MAX_UNITS else float(used)


ENOUGH = 8
"""The calls that a region must have had before its own ratio is used instead of the service's."""
_REMEMBERED = 64
_LARGEST = 16
"""A call counts at most this many times as much as the mean of those before it."""
_TOO_LONG_TO_SHOW = 1e300
_LONGEST = 10**12
"""The longest estimate of a step, in microseconds: eleven days."""


class Ratio:
    """A ratio learned from calls: two means over the same calls, in whole numbers, so that each call counts by its
    size. They are exact for the first calls and moving averages afterwards. A call that is much larger than those
    before counts with its ratio, but with less weight: one absurd cost that a caller states must not decide alone.

    The arithmetic is that of `scripts/include/costs.lua`, to the last bit: sums and differences of whole numbers below
    2^53, floor, and floating-point multiplication and division where both have them.
    """

    __slots__ = ("count", "over", "under")

    def __init__(self) -> None:
        self.count = 0
        self.over = 0
        self.under = 0

    def learn(self, over: int, under: int) -> None:
        if under <= 0:
            return
        count = self.count
        if count and under > (most := _LARGEST * self.under):
            over, under = int(over * (most / under)), most
        if count < _REMEMBERED:
            count = self.count = count + 1
        self.over += (over - self.over) // count
        if under != self.under:
            self.under += (under - self.under) // count

    @property
    def value(self) -> float | None:
        """None until a call was measured."""
        return self.over / self.under if self.count else None

    def of(self, under: int, steps: int = 1) -> int:
        """The amount that corresponds to `under`, the sum of `steps` steps. Some call must have been measured."""
        amount = float(under) * self.over / self.under
        return int(amount) if amount < _LONGEST else int(min(amount, steps * _LONGEST))


class CostError(ValueError):
    """An expression is not valid, or a cost cannot be computed for an input. The message says why."""


CostHook: TypeAlias = Callable[[Any], float | None]
"""Returns the cost of a step from the input of its job, or None if it has none."""


def checked_cost(value: Any) -> float:
    """A cost that was computed, or raises CostError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CostError(f"the cost is {json_type(value)}, not a number")
    if not 0 < value <= MAX_UNITS:
        shown = f"{value:g}" if abs(value) <= _TOO_LONG_TO_SHOW else "a number of more than 300 digits"
        raise CostError(f"the cost must be more than 0 and at most {MAX_UNITS:.0f}, not {shown}")
    return float(value)
