"""What became of the estimated waits that were given, and what the next ones learn from it.

A dispatcher knows what is ahead of a job, but not who will come and overtake it: in a fair line that is most of the
error. So a sample of the estimates given is kept until their jobs have started. How long those really waited, as a
share of what was thought (`Place.surprise_of`), is what the next estimates of the same kind are corrected by: of the
last waits of a service's band, the range that the middle half lay in. Newcomers' first steps, and those that wait for
their own user's limit, are kinds of their own.

All of it is this process's own, bounded, and begins anew with it: another gateway learns the same from its own jobs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from fairlead.domain.order import Place

SAMPLE = 256
"""Estimates that are kept until their jobs have started."""
KEPT = 128
"""Waits that came true, of one kind."""
FEWEST = 8
"""So many are needed to learn from."""
SCORED = 512
"""Estimates of a service that its score is of."""
CLOSE = 0.25
NEXT_TO_NOTHING = 1.0
"""Seconds by which any estimate may be wrong: nobody would notice."""

Kind = tuple[str, int, bool, bool]


@dataclass(frozen=True, slots=True)
class Given:
    """An estimate, and when it was given."""

    place: Place
    at: float


@dataclass(frozen=True, slots=True)
class Score:
    """One estimate against what came true. `close`: it lay in the range, or missed its nearest end by at most a
    quarter of what came true, or by a second. `error` is that of the range's middle, as a share of what came true."""

    within: bool
    close: bool
    error: float


def score(low: float, high: float, waited: float) -> Score:
    missed_by = max(0.0, low - waited, waited - high)
    error = abs((low + high) / 2 - waited) / max(waited, NEXT_TO_NOTHING)
    return Score(missed_by == 0.0, missed_by <= max(NEXT_TO_NOTHING, CLOSE * waited), error)


class Surprises:
    """The last waits of one kind, as shares of what was thought."""

    def __init__(self) -> None:
        self._shares: deque[float] = deque(maxlen=KEPT)
        self._quarters: tuple[float, float] | None = None

    def add(self, share: float) -> None:
        self._shares.append(share)
        self._quarters = None

    @property
    def quarters(self) -> tuple[float, float] | None:
        """What the middle half of them lies between."""
        count = len(self._shares)
        if self._quarters is None and count >= FEWEST:
            in_order = sorted(self._shares)
            self._quarters = (in_order[count // 4], in_order[3 * count // 4])
        return self._quarters


class Scores:
    def __init__(self) -> None:
        self.given: dict[str, Given] = {}
        """Those whose jobs have not started yet, oldest first."""
        self._every = 1
        self._counted = 0
        self._surprises: dict[Kind, Surprises] = {}
        self._scores: dict[str, deque[Score]] = {}
        self._totals: dict[str, int] = {}

    def learned(self, places: Mapping[str, Place]) -> dict[str, Place]:
        """These places, with what is known of waits like them."""
        return {job_id: self._learned(place) for job_id, place in places.items()}

    def _learned(self, place: Place) -> Place:
        known = self._surprises.get(_kind(place))
        return place if known is None or known.quarters is None else replace(place, surprise=known.quarters)

    def remember(self, job_id: str, place: Place, now: float) -> None:
        """An estimate was given. Of many, every so-manieth is kept: to take them while there is room would keep those
        that wait long, and learn from them that all do. Who has a free slot does not wait, and of a line that
        stands still nothing was said: neither teaches anything."""
        if place.starts_at_once or place.estimated_wait() is None:
            return
        self._counted += 1
        if self._counted % self._every or job_id in self.given:
            return
        self.given[job_id] = Given(place, now)
        if len(self.given) > SAMPLE:
            self._every *= 2
            for dropped in list(self.given)[::2]:
                del self.given[dropped]
        elif self._every > 1 and len(self.given) < SAMPLE // 4:
            self._every //= 2

    def forget(self, job_id: str) -> None:
        """It will not start: nothing came true."""
        self.given.pop(job_id, None)

    def came_true(self, job_id: str, waited: float) -> None:
        given = self.given.pop(job_id, None)
        if given is None:
            return
        place, wait = given.place, given.place.estimated_wait()
        assert wait is not None
        self._surprises.setdefault(_kind(place), Surprises()).add(place.surprise_of(waited))
        self._scores.setdefault(place.service, deque(maxlen=SCORED)).append(score(*wait, waited))
        self._totals[place.service] = self._totals.get(place.service, 0) + 1

    def report(self) -> dict[str, dict[str, Any]]:
        """Per service: how many estimates came true since the start, and of the last of them, how good they were."""
        return {service: self._report(service, list(scores)) for service, scores in sorted(self._scores.items())}

    def _report(self, service: str, scores: list[Score]) -> dict[str, Any]:
        count = len(scores)
        return {
            "count": self._totals[service],
            "scored": count,
            "within_range": round(sum(each.within for each in scores) / count, 3),
            "close": round(sum(each.close for each in scores) / count, 3),
            "median_error": round(median(each.error for each in scores), 3),
        }


def _kind(place: Place) -> Kind:
    return (place.service, place.band, place.newcomer, place.waits_for_own)
