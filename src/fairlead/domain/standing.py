"""What is known of a user, priority and weight, in one form: whether a table, a hook or a service said it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.domain.job import Priority

MAX_WEIGHT = 1000.0


@dataclass(frozen=True, slots=True)
class Standing:
    """None: nothing is said of it, and the next who is asked may say it."""

    priority: Priority | None = None
    weight: float | None = None

    def or_else(self, other: Standing) -> Standing:
        """What is left open here, as `other` says it."""
        return Standing(
            other.priority if self.priority is None else self.priority,
            other.weight if self.weight is None else self.weight,
        )


UNKNOWN = Standing()


def standing_of(said: Any, plans: Mapping[str, Standing]) -> Standing:
    """Reads an answer: None, a priority, or a mapping with at least one of `priority`, `weight` and `plan`. What it
    says of priority and weight itself wins over its plan. Raises ValueError."""
    if said is None:
        return UNKNOWN
    if isinstance(said, str):
        return Standing(_priority(said))
    if not isinstance(said, Mapping):
        raise ValueError(f"it should be a priority or a mapping, not {type(said).__name__}")
    priority, weight, plan = (said.get(key) for key in ("priority", "weight", "plan"))
    if priority is None and weight is None and plan is None:
        raise ValueError("it says neither priority nor weight nor plan")
    standing = Standing(
        None if priority is None else _priority(priority),
        None if weight is None else _weight(weight),
    )
    return standing if plan is None else standing.or_else(_plan(plan, plans))


def _priority(value: Any) -> Priority:
    try:
        return Priority(value)
    except ValueError:
        raise ValueError(f"a priority is high, medium or low, not {_shown(value)}") from None


def _weight(value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (0 < value <= MAX_WEIGHT) or not math.isfinite(value):
        raise ValueError(f"a weight is a number above 0 and at most {MAX_WEIGHT:g}, not {_shown(value)}")
    return float(value)


def _plan(value: Any, plans: Mapping[str, Standing]) -> Standing:
    if not isinstance(value, str) or value not in plans:
        raise ValueError(f"no plan is called {_shown(value)}")
    return plans[value]


def _shown(value: Any) -> str:
    return repr(value)[:50]
