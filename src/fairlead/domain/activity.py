"""What a process did for a service within one minute: what the dashboard's charts and shares are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SECONDS = 60
"""Of one piece of history."""

KEPT_MINUTES = 120


@dataclass(frozen=True, slots=True)
class Activity:
    """`minute` counts from the epoch. `finished` and `failed` are calls; `waits` counts them by how long their step had
    waited, in the classes of `observations.SECONDS`. `codes` are the failures by class. `used` is by user the calls
    and the seconds of slots; of many users only those with most."""

    process: str
    minute: int
    service: str
    finished: int = 0
    failed: int = 0
    waits: Sequence[int] = ()
    codes: Mapping[str, int] = field(default_factory=dict)
    used: Mapping[str, Sequence[float]] = field(default_factory=dict)


def minute_of(moment: float) -> int:
    return int(moment // SECONDS)
