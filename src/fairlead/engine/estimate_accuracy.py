"""Compares the estimated waits of jobs with their actual waits, and corrects later estimates.

A dispatcher knows which jobs are ahead of a job, but not which later jobs will overtake it. In a fair queue this causes
most of the error. A sample of the estimates is therefore kept until their jobs have started. The ratio of the actual to
the estimated wait (`QueuePosition.surprise_of`) is stored by kind of estimate. Later estimates of the same kind are
corrected by the lower and the upper quartile of the last ratios. The kind of an estimate consists of the service, the
band, whether the step is a newcomer's first step, and whether the step waits for its user's own limit.

The samples are local to this process, bounded, and empty at its start: another gateway learns from its own jobs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from fairlead.domain.fair_share import QueuePosition
from fairlead.domain.job import Job
from fairlead.store.port import Store

SAMPLE = 256
"""The maximal number of estimates that are kept until their jobs have started."""
KEPT = 128
"""The number of ratios that are kept for each kind of estimate."""
FEWEST = 8
"""The number of ratios that are needed before estimates of their kind are corrected."""
SCORED = 512
"""The number of a service's last estimates on which its reported accuracy is based."""
CLOSE = 0.25
TOLERANCE = 1.0
"""An estimate that is wrong by at most this many seconds still counts as close."""

Kind = tuple[str, int, bool, bool]
EVERY = 1.0
AT_ONCE = 64
"""The number of jobs read per tick, which is a negligible load."""
PATIENCE = 0.1
"""A waiting job is checked again after this fraction of the time that it has waited so far. Checking late is harmless:
the database has its start time."""
SKEW = 5.0
"""Seconds by which the clocks of two machines may differ."""


@dataclass(frozen=True, slots=True)
class Given:
    """The estimate that a caller received for a job, and the time at which it was given."""

    position: QueuePosition
    at: float


@dataclass(frozen=True, slots=True)
class Score:
    """How well one estimated range of waits matched the actual wait. `within`: the wait lay in the range. `close`: it
    missed the range by at most a second or a quarter of the wait, whichever is longer. `error` is the distance from the
    middle of the range to the actual wait, divided by the actual wait."""

    within: bool
    close: bool
    error: float


def score(low: float, high: float, waited: float) -> Score:
    missed_by = max(0.0, low - waited, waited - high)
    error = abs((low + high) / 2 - waited) / max(waited, TOLERANCE)
    return Score(missed_by == 0.0, missed_by <= max(TOLERANCE, CLOSE * waited), error)


class Surprises:
    """The ratios of actual to estimated wait, for the last estimates of one kind."""

    def __init__(self) -> None:
        self._shares: deque[float] = deque(maxlen=KEPT)
        self._quarters: tuple[float, float] | None = None

    def add(self, share: float) -> None:
        self._shares.append(share)
        self._quarters = None

    @property
    def quarters(self) -> tuple[float, float] | None:
        """The lower and the upper quartile of the ratios; None while there are too few."""
        count = len(self._shares)
        if self._quarters is None and count >= FEWEST:
            in_order = sorted(self._shares)
            self._quarters = (in_order[count // 4], in_order[3 * count // 4])
        return self._quarters


class EstimateAccuracy:
    def __init__(self) -> None:
        self.given: dict[str, Given] = {}
        """Estimates whose jobs have not started yet, oldest first."""
        self._every = 1
        self._counted = 0
        self._surprises: dict[Kind, Surprises] = {}
        self._scores: dict[str, deque[Score]] = {}
        self._totals: dict[str, int] = {}

    def learned(self, positions: Mapping[str, QueuePosition]) -> dict[str, QueuePosition]:
        """Return these positions with their estimates corrected by the earlier waits of the same kind."""
        return {job_id: self._learned(position) for job_id, position in positions.items()}

    def _learned(self, position: QueuePosition) -> QueuePosition:
        known = self._surprises.get(_kind(position))
        return position if known is None or known.quarters is None else replace(position, surprise=known.quarters)

    def remember(self, job_id: str, position: QueuePosition, now: float) -> None:
        """Record the estimate of a job, to compare it with the actual wait when the job has started. Only every n-th
        estimate is recorded. When the sample is full, every second estimate in it is dropped, and n is doubled: if new
        estimates were refused instead, the sample would soon hold only the jobs that wait longest. A job that starts at
        once or waits in a stalled queue has no estimate, and is ignored."""
        if position.starts_at_once or position.estimated_wait() is None:
            return
        self._counted += 1
        if self._counted % self._every or job_id in self.given:
            return
        self.given[job_id] = Given(position, now)
        if len(self.given) > SAMPLE:
            self._every *= 2
            for dropped in list(self.given)[::2]:
                del self.given[dropped]
        elif self._every > 1 and len(self.given) < SAMPLE // 4:
            self._every //= 2

    def forget(self, job_id: str) -> None:
        """Discard the estimate of a job that will not start, or whose wait is unknown."""
        self.given.pop(job_id, None)

    def came_true(self, job_id: str, waited: float) -> None:
        given = self.given.pop(job_id, None)
        if given is None:
            return
        position, wait = given.position, given.position.estimated_wait()
        assert wait is not None
        self._surprises.setdefault(_kind(position), Surprises()).add(position.surprise_of(waited))
        self._scores.setdefault(position.service, deque(maxlen=SCORED)).append(score(*wait, waited))
        self._totals[position.service] = self._totals.get(position.service, 0) + 1

    def report(self) -> dict[str, dict[str, Any]]:
        """For each service: how many estimates were compared with the actual wait since this process started, and how
        accurate the last of these estimates were."""
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


def _kind(position: QueuePosition) -> Kind:
    return (position.service, position.band, position.newcomer, position.waits_for_own)


class ScoreEstimatesLoop:
    """Checks which of the jobs with a recorded estimate have started, and records how long they waited."""

    name = "scores"

    def __init__(self, store: Store, scores: EstimateAccuracy) -> None:
        self._store = store
        self._scores = scores
        self._checked: dict[str, float] = {}
        """For each job that has not started, when it was last checked."""

    async def tick(self, now: float) -> float:
        due = [job_id for job_id in self._scores.given if self._due(job_id, now)][:AT_ONCE]
        jobs = await self._store.get_jobs(due) if due else {}
        for job_id in due:
            self._settle(job_id, jobs.get(job_id), now)
        self._checked = {job_id: at for job_id, at in self._checked.items() if job_id in self._scores.given}
        return now + EVERY

    def _due(self, job_id: str, now: float) -> bool:
        at = self._scores.given[job_id].at
        return now >= max(at + EVERY, self._checked.get(job_id, at) + PATIENCE * (now - at))

    def _settle(self, job_id: str, job: Job | None, now: float) -> None:
        given = self._scores.given.get(job_id)
        if given is None:
            return
        if job is None or (job.started_at is None and job.status.finished):
            self._scores.forget(job_id)
        elif job.started_at is None:
            self._checked[job_id] = now
        elif job.started_at < given.at - SKEW:
            self._scores.forget(job_id)  # the job was at a later step already, and that wait is not recorded
        else:
            self._scores.came_true(job_id, max(0.0, job.started_at - given.at))
