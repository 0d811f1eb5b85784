"""What this process has seen since it was opened, as plain numbers. Whoever wants to know reads them (`readings.py`);
nobody is told."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from fairlead.domain import retry, turns
from fairlead.domain.adapt import Calls, Ending
from fairlead.domain.histogram import Histogram
from fairlead.domain.job import Job, JobStatus, Priority
from fairlead.domain.transitions import Move

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

CODES = frozenset(
    {
        *(value for name, value in vars(retry).items() if name.isupper() and isinstance(value, str)),
        turns.NOT_TAKEN,
        turns.WAITER_GONE,
        turns.HOLDER_DIED,
        *(f"HTTP_{status}" for status in (400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 502, 503, 504)),
    }
)
OTHER = "OTHER"

Lane = tuple[str, Priority]
"""A service and a band."""

MOST_USERS = 10_000
"""Of one service, that are kept apart until somebody takes them."""


@dataclass(slots=True)
class Used:
    """What one user had of a service."""

    calls: int = 0
    seconds: float = 0.0

    def add(self, other: Used) -> None:
        self.calls += other.calls
        self.seconds += other.seconds


_kind = attrgetter("feature_name", "priority")


class Observations:
    def __init__(self) -> None:
        self.accepted: Counter[tuple[str, Priority]] = Counter()
        self.ended: Counter[tuple[str, JobStatus]] = Counter()
        self.retries: Counter[str] = Counter()
        self.failures: Counter[tuple[str, str]] = Counter()
        self.promotions: Counter[Priority] = Counter()
        self.waits: defaultdict[Lane, Histogram] = defaultdict(_histogram)
        self.runs: defaultdict[Lane, Histogram] = defaultdict(_histogram)
        self._answers: Counter[tuple[str, Ending]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        """What the calls took, by service, that ended well."""
        self._used: dict[str, dict[str, Used]] = {}

    def submitted(self, jobs: Iterable[Job]) -> None:
        # Those of a bulk are of one kind: to see that takes less time than to count them one by one.
        for kind, some in itertools.groupby(jobs, _kind):
            self.accepted[kind] += len(list(some))

    def started(self, job: Job) -> None:
        """`job` as its start was written: with when the step entered the line, and when its call began."""
        if job.waiting_since is not None and job.call_started_at is not None:
            self.waits[job.service, job.priority].observe(max(0.0, job.call_started_at - job.waiting_since))

    def ran(self, job: Job, seconds: float) -> None:
        self.runs[job.service, job.priority].observe(seconds)
        users = self._used.setdefault(job.service, {})
        used = users.get(job.user_id)
        if used is None:
            if len(users) >= MOST_USERS:
                return
            used = users[job.user_id] = Used()
        used.calls += 1
        used.seconds += seconds

    def answered(self, service: str, ending: Ending, seconds: float) -> None:
        """A call of this service has ended by itself, or for taking too long."""
        self._answers[service, ending] += 1
        if ending is Ending.OK:
            self._seconds[service] += seconds

    def done(self) -> dict[str, int]:
        """By service, the calls that ended well."""
        return {service: count for (service, ending), count in self._answers.items() if ending is Ending.OK}

    def take_used(self) -> dict[str, dict[str, Used]]:
        """By service and user, since this was last asked: users are too many to be counted for good."""
        used, self._used = self._used, {}
        return used

    def calls_of(self, service: str) -> Calls:
        """How they ended since this process was opened."""
        ok, overloaded, other = (self._answers[service, ending] for ending in Ending)
        return Calls(ok, overloaded, other, self._seconds[service])

    def moved(self, job: Job, move: Move) -> None:
        """`job` as it was before."""
        status = move.status
        if status.finished:
            self.ended[job.feature_name, status] += 1
        elif status is JobStatus.RETRYING:
            self.retries[job.service] += 1
        elif move.priority is not None:
            self.promotions[move.priority] += 1
        # An error that is only carried along, of an earlier call, is none of this move.
        carried = move.verb in ("rerun_done", "complete", "give_up")
        if move.failed is not None or (status is JobStatus.FAILED and move.error is not None and not carried):
            self.failures[job.service, _code(move)] += 1


def _histogram() -> Histogram:
    return Histogram(SECONDS)


def _code(move: Move) -> str:
    """One of a few: an endpoint may answer with any number it likes."""
    error = move.failed.error if move.failed is not None else move.error or {}
    code = str(error.get("code"))
    if code in CODES:
        return code
    family = code.removeprefix("HTTP_")[:1]
    return f"HTTP_{family}xx" if code.startswith("HTTP_") and family in ("3", "4", "5") else OTHER
