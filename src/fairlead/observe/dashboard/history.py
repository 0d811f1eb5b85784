"""The activity of the last two hours, minute by minute, as the processes have recorded it (`engine/counters.py`).

Past minutes do not change, so only the latest minutes are read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fairlead.domain.model_stats import ModelStats
from fairlead.domain.stats import MINUTE, MinuteStats, minute_of, quantile
from fairlead.domain.stats import SECONDS as CLASSES
from fairlead.store.port import Store

MINUTES = 120
"""The number of minutes that the charts show."""
HOUR = 60
"""The number of minutes over which the sums are computed."""
LATELY = 5
"""The number of minutes from which a service's current wait is computed."""
AGAIN = 2
"""The number of latest minutes that are read again each time: a process may record its numbers late."""


@dataclass(slots=True)
class Sum:
    """The counted work of all processes, summed over one or more minutes."""

    finished: int = 0
    failed: int = 0
    waits: list[int] = field(default_factory=lambda: [0] * (len(CLASSES) + 1))
    codes: Counter[str] = field(default_factory=Counter)
    used: dict[str, tuple[float, float]] = field(default_factory=dict)
    models: dict[str, ModelStats] = field(default_factory=dict)

    def add(self, other: MinuteStats | Sum) -> None:
        self.finished += other.finished
        self.failed += other.failed
        for at, count in enumerate(other.waits[: len(self.waits)]):
            self.waits[at] += count
        self.codes.update(other.codes)
        for user_id, (calls, seconds) in other.used.items():
            before = self.used.get(user_id, (0, 0.0))
            self.used[user_id] = before[0] + calls, before[1] + seconds
        for model, stats in other.models.items():
            self.models.setdefault(model, ModelStats()).add(stats.as_list() if isinstance(stats, ModelStats) else stats)

    def wait(self, share: float) -> float | None:
        return quantile(self.waits, share)


class History:
    """Reads the activity of the last two hours. The sums of past minutes are kept, so that each minute is summed
    once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._minutes: dict[int, dict[str, Sum]] = {}
        self._totals: dict[int, Sum] = {}
        self._last = 0

    async def renew(self) -> Past:
        """Read the latest minutes again, and return the last two hours."""
        moment = await self._store.now()
        now = minute_of(moment)
        first = now - MINUTES + 1
        begin = max(first, self._last - AGAIN + 1)
        found: dict[int, dict[str, Sum]] = {minute: {} for minute in range(begin, now + 1)}
        for each in await self._store.activity(begin):
            found.setdefault(each.minute, {}).setdefault(each.service, Sum()).add(each)
        fresh = {minute: _sum(sums.values()) for minute, sums in found.items()}
        kept = [minute for minute in self._minutes if first <= minute < begin]
        self._minutes = {minute: self._minutes[minute] for minute in kept} | found
        self._totals = {minute: self._totals[minute] for minute in kept} | fresh
        self._last = now
        return Past(self._minutes, self._totals, moment)


class Past:
    """The activity of the last two hours as charts, and summed over the last hour. `now` is the current time."""

    def __init__(self, minutes: Mapping[int, Mapping[str, Sum]], totals: Mapping[int, Sum], now: float) -> None:
        self._minutes = minutes
        self._totals = totals
        self._last = minute_of(now)
        self.window = (LATELY - 1) * MINUTE + now % MINUTE
        """The seconds that `lately` covers: the current minute is not over."""

    @cached_property
    def chart(self) -> dict[str, Any]:
        return self._chart([self._totals.get(minute, Sum()) for minute in self._range()])

    @cached_property
    def all(self) -> Sum:
        return _sum(total for minute, total in self._totals.items() if self._is_recent(minute))

    @cached_property
    def lately(self) -> dict[str, Sum]:
        """For each service, the sum over the last few minutes."""
        found: dict[str, Sum] = {}
        for minute in range(self._last - LATELY + 1, self._last + 1):
            for name, each in self._minutes.get(minute, {}).items():
                found.setdefault(name, Sum()).add(each)
        return found

    def chart_of(self, service: str) -> dict[str, Any]:
        return self._chart([self._minutes.get(minute, {}).get(service, Sum()) for minute in self._range()])

    def all_of(self, service: str) -> Sum:
        return _sum(
            sums[service] for minute, sums in self._minutes.items() if service in sums and self._is_recent(minute)
        )

    def _is_recent(self, minute: int) -> bool:
        return minute > self._last - HOUR

    def _range(self) -> range:
        return range(self._last - MINUTES + 1, self._last + 1)

    def _chart(self, sums: Sequence[Sum]) -> dict[str, Any]:
        """A chart with one value per minute for each quantity. The last value belongs to the current minute."""
        return {
            "start": (self._last - MINUTES + 1) * MINUTE,
            "every": MINUTE,
            "finished": [each.finished for each in sums],
            "failed": [each.failed for each in sums],
            "wait_p50": [each.wait(0.5) for each in sums],
            "wait_p95": [each.wait(0.95) for each in sums],
        }


def _sum(parts: Iterable[Sum]) -> Sum:
    total = Sum()
    for part in parts:
        total.add(part)
    return total
