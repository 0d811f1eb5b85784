"""The priority, weight, group and plan of a user. They come from the config, a hook or the priority service."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.domain.groups import path_of
from fairlead.domain.job import Priority

MAX_WEIGHT = 1000.0


@dataclass(frozen=True, slots=True)
class UserPriority:
    """The priority, weight, group and plan of a user according to one source. None means that this source does not know
    the value; the next source is then asked. The group is a path, the plan a name."""

    priority: Priority | None = None
    weight: float | None = None
    group: str | None = None
    plan: str | None = None

    def or_else(self, other: UserPriority) -> UserPriority:
        """A copy whose unknown values are taken from `other`."""
        return UserPriority(
            other.priority if self.priority is None else self.priority,
            other.weight if self.weight is None else self.weight,
            other.group if self.group is None else self.group,
            other.plan if self.plan is None else self.plan,
        )


UNKNOWN = UserPriority()


def standing_of(
    answer: Any, plans: Mapping[str, UserPriority], groups: Mapping[str, str] | None = None
) -> UserPriority:
    """Parse the answer of a hook or of the priority service: None, a priority, or a mapping with at least one of
    `priority`, `weight`, `plan` and `group`. A priority or weight in the mapping overrides the one of the plan.
    `groups` has the paths of the declared groups. Raises ValueError."""
    if answer is None:
        return UNKNOWN
    if isinstance(answer, str):
        return UserPriority(_priority(answer))
    if not isinstance(answer, Mapping):
        raise ValueError(f"it should be a priority or a mapping, not {type(answer).__name__}")
    priority, weight, plan, group = (answer.get(key) for key in ("priority", "weight", "plan", "group"))
    if priority is None and weight is None and plan is None and group is None:
        raise ValueError("it has neither priority nor weight nor plan nor group")
    parsed = UserPriority(
        None if priority is None else _priority(priority),
        None if weight is None else _weight(weight),
        None if group is None else path_of(group, groups or {}),
    )
    return parsed if plan is None else parsed.or_else(_plan(plan, plans))


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


def _plan(value: Any, plans: Mapping[str, UserPriority]) -> UserPriority:
    if not isinstance(value, str) or value not in plans:
        raise ValueError(f"no plan is called {_shown(value)}")
    return plans[value]


def _shown(value: Any) -> str:
    return repr(value)[:50]
