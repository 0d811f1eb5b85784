"""The last hour, minute by minute, as the processes wrote it down (`loops/activity.py`).

What is over does not change: only the last minutes are read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fairlead.domain.activity import SECONDS, Activity, minute_of
from fairlead.runtime.observations import SECONDS as CLASSES
from fairlead.store.port import Store

MINUTES = 60
LATELY = 5
"""Minutes that a service's present wait is taken from."""
AGAIN = 2
"""Minutes that are read again each time: a process may be late with what it has to say."""


@dataclass(slots=True)
class Sum:
    """What all processes did in one minute, or in several."""

    finished: int = 0
    failed: int = 0
    waits: list[int] = field(default_factory=lambda: [0] * (len(CLASSES) + 1))
    codes: Counter[str] = field(default_factory=Counter)
    used: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, other: Activity | Sum) -> None:
        self.finished += other.finished
        self.failed += other.failed
        for at, count in enumerate(other.waits[: len(self.waits)]):
            self.waits[at] += count
        self.codes.update(other.codes)
        for user_id, (calls, seconds) in other.used.items():
            before = self.used.get(user_id, (0, 0.0))
            self.used[user_id] = before[0] + calls, before[1] + seconds

    def wait(self, share: float) -> float | None:
        return quantile(self.waits, share)


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Between the bounds of its class as if all were spread evenly there. None: there are none."""
    wanted = share * sum(counts)
    if not wanted:
        return None
    below = 0.0
    for at, count in enumerate(counts):
        if count and below + count >= wanted:
            low = CLASSES[at - 1] if at else 0.0
            high = CLASSES[at] if at < len(CLASSES) else 2 * CLASSES[-1]
            return round(low + (high - low) * (wanted - below) / count, 3)
        below += count
    return None


class History:
    """Keeps what was read, so that each minute is summed up once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._minutes: dict[int, dict[str, Sum]] = {}
        self._totals: dict[int, Sum] = {}
        self._last = 0

    async def renew(self) -> Past:
        """Reads what is new."""
        now = minute_of(await self._store.now())
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
        return Past(self._minutes, self._totals, now)


class Past:
    """The last hour as it was last read. `last` is the minute under way."""

    def __init__(self, minutes: Mapping[int, Mapping[str, Sum]], totals: Mapping[int, Sum], last: int) -> None:
        self._minutes = minutes
        self._totals = totals
        self._last = last

    @cached_property
    def chart(self) -> dict[str, Any]:
        return self._chart([self._totals.get(minute, Sum()) for minute in self._range()])

    @cached_property
    def all(self) -> Sum:
        return _sum(self._totals.values())

    @cached_property
    def lately(self) -> dict[str, Sum]:
        """By service."""
        found: dict[str, Sum] = {}
        for minute in range(self._last - LATELY + 1, self._last + 1):
            for name, each in self._minutes.get(minute, {}).items():
                found.setdefault(name, Sum()).add(each)
        return found

    def chart_of(self, service: str) -> dict[str, Any]:
        return self._chart([self._minutes.get(minute, {}).get(service, Sum()) for minute in self._range()])

    def all_of(self, service: str) -> Sum:
        return _sum(sums[service] for sums in self._minutes.values() if service in sums)

    def _range(self) -> range:
        return range(self._last - MINUTES + 1, self._last + 1)

    def _chart(self, sums: Sequence[Sum]) -> dict[str, Any]:
        """One number per minute, the last is of the one under way."""
        return {
            "start": (self._last - MINUTES + 1) * SECONDS,
            "every": SECONDS,
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
