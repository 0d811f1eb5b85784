"""Statistics of calls: histograms, and the calls of each process per service and minute."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SECONDS = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1800.0,
    3600.0,
)
"""The upper bounds, in seconds, of the histograms of waits, calls and delays."""


class Histogram:
    """Counts values in buckets. `bounds` are the inclusive upper bounds of the buckets. One more bucket counts the
    values above the last bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def as_dict(self) -> dict[str, Any]:
        """The histogram as a JSON object: the number of values, their mean and sum, and the counts of the buckets."""
        count = sum(self.counts)
        mean = round(self.total / count, 6) if count else None
        return {"count": count, "mean": mean, "sum": self.total, "buckets": list(self.counts)}

    @classmethod
    def of_dict(cls, bounds: Sequence[float], shown: Mapping[str, Any]) -> Histogram:
        histogram = cls(bounds)
        histogram.counts = list(shown["buckets"])
        histogram.total = shown["sum"]
        return histogram


def quantile(counts: Sequence[int], share: float) -> float | None:
    """The quantile `share` (0.5 is the median) of the values counted in a histogram, interpolated linearly within its
    bucket. None if there are no values."""
    wanted = share * sum(counts)
    if not wanted:
        return None
    below = 0.0
    for at, count in enumerate(counts):
        if count and below + count >= wanted:
            low = SECONDS[at - 1] if at else 0.0
            high = SECONDS[at] if at < len(SECONDS) else 2 * SECONDS[-1]
            return round(low + (high - low) * (wanted - below) / count, 3)
        below += count
    return None


MINUTE = 60
"""The length, in seconds, of the interval over which statistics are counted."""

KEPT_MINUTES = 120


@dataclass(frozen=True, slots=True)
class MinuteStats:
    """The calls of one service that ended in one process in one minute.

    `minute` counts the minutes since 1970. `finished` and `failed` count calls. `waits` is a histogram of the times
    that their steps had waited, with the bounds `SECONDS`. `codes` counts failures by error code. `used` has the users
    with the most slot time, and for each of them the number of calls and the slot seconds. `models` has the models of
    the OpenAI front, each as `ModelStats.as_list` returns it.
    """

    process: str
    minute: int
    service: str
    finished: int = 0
    failed: int = 0
    waits: Sequence[int] = ()
    codes: Mapping[str, int] = field(default_factory=dict)
    used: Mapping[str, Sequence[float]] = field(default_factory=dict)
    models: Mapping[str, Sequence[Any]] = field(default_factory=dict)


def minute_of(moment: float) -> int:
    return int(moment // MINUTE)
