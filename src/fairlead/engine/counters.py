"""The counters of what this process has done since it was opened, for the metrics (`observe/stats.py`); and the loop
that stores these counts per service and minute, as the history that the dashboard shows.

The loop writes only counts that have changed, at most every few seconds; an idle process writes nothing. Each write
contains the total of the minute so far, so writing it twice is harmless.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from operator import attrgetter, sub
from typing import Any

from fairlead.domain import retry, turns
from fairlead.domain.auto_limit import Calls, Ending
from fairlead.domain.job import Job, JobStatus, Priority
from fairlead.domain.model_stats import Generation, ModelStats, since
from fairlead.domain.stats import KEPT_MINUTES, SECONDS, Histogram, MinuteStats, minute_of
from fairlead.domain.transitions import Move
from fairlead.store.dashboard import RecordMinuteStats
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Store

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
"""At most this many users of one service are counted between two calls of `take_used`. Further users are ignored."""
MOST_MODELS = 200
"""Further models of a process are counted together, as `OTHER`."""
EVERY = 3.0
USERS_PER_MINUTE = 100
"""The number of users recorded per service and minute: those that used its slots for the longest time."""


@dataclass(slots=True)
class Used:
    """How many calls one user made to one service, and how many seconds these took."""

    calls: int = 0
    seconds: float = 0.0

    def add(self, other: Used) -> None:
        self.calls += other.calls
        self.seconds += other.seconds


_kind = attrgetter("feature_name", "priority")


class Counters:
    def __init__(self) -> None:
        self.accepted: Counter[tuple[str, Priority]] = Counter()
        self.ended: Counter[tuple[str, JobStatus]] = Counter()
        self.retries: Counter[str] = Counter()
        self.failures: Counter[tuple[str, str]] = Counter()
        self.promotions: Counter[Priority] = Counter()
        self.webhooks: Counter[str] = Counter()
        """Requests to receivers of webhooks: `accepted` and `failed`."""
        self.turned_back: Counter[str] = Counter()
        """Jobs that a budget has held, demoted or refused."""
        self.waits: defaultdict[Lane, Histogram] = defaultdict(_histogram)
        self.runs: defaultdict[Lane, Histogram] = defaultdict(_histogram)
        self.models: dict[tuple[str, str], ModelStats] = {}
        """The answers of each service's models."""
        self._answers: Counter[tuple[str, Ending]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        """For each service, the total seconds that its successful calls took."""
        self._used: dict[str, dict[str, Used]] = {}

    def submitted(self, jobs: Iterable[Job]) -> None:
        # Jobs submitted together usually have the same feature and priority: counting groups is faster than counting
        # jobs.
        for kind, some in itertools.groupby(jobs, _kind):
            self.accepted[kind] += len(list(some))

    def started(self, job: Job) -> None:
        """Record how long the step of a started call has waited. `job` is the row that the start wrote: it has the time
        at which the wait began and the time at which the call began."""
        if job.waiting_since is not None and job.call_started_at is not None:
            self.waits[job.service, job.priority].observe(max(0.0, job.call_started_at - job.waiting_since))

    def ran(self, job: Job, seconds: float) -> None:
        service = job.service
        self.runs[service, job.priority].observe(seconds)
        users = self._used.setdefault(service, {})
        used = users.get(job.user_id)
        if used is None:
            if len(users) >= MOST_USERS:
                return
            used = users[job.user_id] = Used()
        used.calls += 1
        used.seconds += seconds

    def answered(self, service: str, ending: Ending, seconds: float) -> None:
        """Count a call of this service that has ended or timed out."""
        self._answers[service, ending] += 1
        if ending is Ending.OK:
            self._seconds[service] += seconds

    def generated(self, service: str, answer: Generation) -> None:
        """Count an answer of a model. An upstream may name any model, so the number of different ones is bounded."""
        stats = self.models.get((service, answer.model))
        if stats is None:
            key = (service, answer.model if len(self.models) < MOST_MODELS else OTHER)
            stats = self.models.setdefault(key, ModelStats())
        stats.count(answer)

    def done(self) -> dict[str, int]:
        """The number of successful calls of each service."""
        return {service: count for (service, ending), count in self._answers.items() if ending is Ending.OK}

    def take_used(self) -> dict[str, dict[str, Used]]:
        """Return the calls by service and user since the last call of this method, and start counting from zero: there
        are too many users to keep a count for each."""
        used, self._used = self._used, {}
        return used

    def calls_of(self, service: str) -> Calls:
        """The number of calls of this service since this process was opened, by how they ended."""
        ok, overloaded, other = (self._answers[service, ending] for ending in Ending)
        return Calls(ok, overloaded, other, self._seconds[service])

    def moved(self, job: Job, move: Move) -> None:
        """Count the transition of a job. `job` is the row before the transition."""
        status = move.status
        if status.finished:
            self.ended[job.feature_name, status] += 1
        elif move.verb in ("hold", "demote"):
            self.turned_back[move.verb] += 1
        elif status is JobStatus.RETRYING:
            self.retries[job.service] += 1
        elif move.priority is not None:
            self.promotions[move.priority] += 1
        # An error that is carried over from an earlier call does not count for this move.
        carried = move.verb in ("rerun_done", "complete", "give_up")
        if move.failed is not None or (status is JobStatus.FAILED and move.error is not None and not carried):
            self.failures[job.service, _code(move)] += 1


def _histogram() -> Histogram:
    return Histogram(SECONDS)


def _code(move: Move) -> str:
    """The error code of a failed call, as a label for metrics. An endpoint may answer with any status, so rare statuses
    are combined into one code: the number of different labels stays bounded."""
    error = move.failed.error if move.failed is not None else move.error or {}
    code = str(error.get("code"))
    if code in CODES:
        return code
    family = code.removeprefix("HTTP_")[:1]
    return f"HTTP_{family}xx" if code.startswith("HTTP_") and family in ("3", "4", "5") else OTHER


@dataclass(slots=True)
class _Seen:
    """The values of the counters when the loop last read them."""

    done: dict[str, int] = field(default_factory=dict)
    failures: dict[tuple[str, str], int] = field(default_factory=dict)
    waits: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    models: dict[tuple[str, str], list[Any]] = field(default_factory=dict)


@dataclass(slots=True)
class _Minute:
    finished: int = 0
    failed: int = 0
    waits: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    codes: Counter[str] = field(default_factory=Counter)
    used: dict[str, Used] = field(default_factory=dict)
    models: dict[str, ModelStats] = field(default_factory=dict)

    def add(self, more: _Minute) -> None:
        self.finished += more.finished
        self.failed += more.failed
        self.waits = [before + new for before, new in zip(self.waits, more.waits, strict=True)]
        self.codes.update(more.codes)
        for user_id, used in more.used.items():
            self.used.setdefault(user_id, Used()).add(used)
        for model, stats in more.models.items():
            self.models.setdefault(model, ModelStats()).add(stats.as_list())

    def applied_to(self, stats: MinuteStats) -> MinuteStats:
        most = sorted(self.used.items(), key=lambda item: -item[1].seconds)[:USERS_PER_MINUTE]
        return replace(
            stats,
            finished=self.finished,
            failed=self.failed,
            waits=tuple(self.waits),
            codes=dict(self.codes),
            used={user_id: (used.calls, round(used.seconds, 3)) for user_id, used in most},
            models={model: stats.as_list() for model, stats in self.models.items()},
        )


class MinuteStatsLoop:
    name = "activity"

    def __init__(self, process: str, counters: Counters, store: Store, group_commit: GroupCommit) -> None:
        self._process = process
        self._counters = counters
        self._store = store
        self._group_commit = group_commit
        self._seen = _Seen()
        self._minute = 0
        # While the database is unreachable, `_new` keeps the new counts, and `_due` keeps the rows to write.
        self._new: dict[str, _Minute] = {}
        self._minutes: dict[str, _Minute] = {}
        self._due: dict[tuple[int, str], MinuteStats] = {}

    async def tick(self, now: float) -> float:
        for service, more in self._read().items():
            self._new.setdefault(service, _Minute()).add(more)
        if self._new or self._due:
            minute = minute_of(await self._store.now())
            if minute != self._minute:
                # Counts since the last read belong to the minute in which they are read.
                self._minute, self._minutes = minute, {}
            for service, more in self._new.items():
                minute_stats = self._minutes.setdefault(service, _Minute())
                minute_stats.add(more)
                self._due[minute, service] = minute_stats.applied_to(MinuteStats(self._process, minute, service))
            self._new = {}
            await self._group_commit.write(
                RecordMinuteStats(self._process, tuple(self._due.values()), minute - KEPT_MINUTES)
            )
            self._due.clear()
        return now + EVERY

    def _read(self) -> dict[str, _Minute]:
        """For each service, what was counted since the last read."""
        changes: dict[str, _Minute] = {}
        seen, counters = self._seen, self._counters
        for service, done in counters.done().items():
            if new := done - seen.done.get(service, 0):
                changes.setdefault(service, _Minute()).finished += new
                seen.done[service] = done
        for (service, code), failed in counters.failures.items():
            if new := failed - seen.failures.get((service, code), 0):
                minute_stats = changes.setdefault(service, _Minute())
                minute_stats.failed += new
                minute_stats.codes[code] += new
                seen.failures[service, code] = failed
        for (service, band), waits in counters.waits.items():
            before = seen.waits.get((service, band))
            if waits.counts != before:
                minute_stats = changes.setdefault(service, _Minute())
                new_waits = map(sub, waits.counts, before or [0] * len(waits.counts))
                minute_stats.waits = [had + more for had, more in zip(minute_stats.waits, new_waits, strict=True)]
                seen.waits[service, band] = list(waits.counts)
        for (service, model), stats in counters.models.items():
            new_answers = since(stats, seen.models.get((service, model)))
            if new_answers[0]:
                changes.setdefault(service, _Minute()).models.setdefault(model, ModelStats()).add(new_answers)
                seen.models[service, model] = stats.as_list()
        for service, users in counters.take_used().items():
            changes.setdefault(service, _Minute()).used |= users
        return changes
