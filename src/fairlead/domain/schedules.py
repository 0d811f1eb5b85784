"""Schedules: when recurring jobs are due, and what happens with each occurrence.

A schedule has a *timing*: a cron expression in a time zone, or an interval. An *occurrence* is a time at which it is
due. `decide` says what becomes of the next occurrence: it is submitted, skipped because an earlier run is open, kept
waiting for that run, or missed because no manager was there in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from fairlead.errors import InvalidInput

MAX_CRON = 100
MAX_TIMEZONE = 64
MIN_EVERY = 1.0
MAX_EVERY = 366 * 86400.0
LATE_AFTER = 60.0
"""Seconds after which an occurrence that was not submitted counts as missed, if the policy is `skip`."""
MOST_CAUGHT_UP = 100
"""Missed occurrences that are submitted, if the policy is `all`."""
MOST_COUNTED = 200
"""Due occurrences that are computed; earlier ones are missed and not counted."""
NEEDS_CRONSIM = "cron expressions need a library: pip install 'fairlead[server]'"


class Missed(StrEnum):
    """What is done with occurrences that no manager submitted in time: nothing, one run for all of them, or a run for
    each."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class Overlap(StrEnum):
    """What is done with an occurrence while an earlier run is open: it runs too, it is skipped, or it waits."""

    ALLOW = "allow"
    SKIP = "skip"
    WAIT = "wait"


class RunOutcome(StrEnum):
    """What became of an occurrence. A run that was refused has an error; of missed occurrences there may be several."""

    SUBMITTED = "submitted"
    SKIPPED = "skipped"
    MISSED = "missed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule is due: by a cron expression with five or six fields (the first of six is the second), or every
    so many seconds."""

    cron: str | None = None
    every: float | None = None
    timezone: str = "UTC"

    def check(self) -> None:
        """Raise InvalidInput if this timing is not valid or is never due."""
        if (self.cron is None) == (self.every is None):
            raise InvalidInput("give cron or every, and not both", pointer="/cron")
        if self.every is not None:
            if not MIN_EVERY <= self.every <= MAX_EVERY:
                raise InvalidInput(
                    f"every must be {MIN_EVERY:g} to {MAX_EVERY:g} seconds; not {self.every:g}", pointer="/every"
                )
            return
        if self.cron is not None and len(self.cron) > MAX_CRON:
            raise InvalidInput(f"cron has more than {MAX_CRON} characters", pointer="/cron")
        _zone(self.timezone)
        if self.after(0.0) is None:
            raise InvalidInput(f"cron: {self.cron!r} is never due", pointer="/cron")

    def after(self, moment: float) -> float | None:
        """The first occurrence after a time; None if there is none within decades."""
        if self.every is not None:
            return round(moment + self.every, 6)
        return next(self._from(moment), None)

    def due(self, first: float, now: float) -> list[float]:
        """The occurrences from the occurrence `first` until `now`, oldest first; the newest of them if there are more
        than `MOST_COUNTED`."""
        if self.every is not None:
            last = int((now - first) / self.every)
            return [round(first + n * self.every, 6) for n in range(max(0, last - MOST_COUNTED + 1), last + 1)]
        span = now - first
        while True:
            # Forwards, because cronsim goes forwards and backwards over the end of daylight saving time differently.
            start = max(first, now - span)
            found = [] if start > first else [first]
            found += islice((each for each in _until(self._from(start), now)), MOST_COUNTED + 1)
            if len(found) <= MOST_COUNTED or span < 1.0:
                return found[-MOST_COUNTED:]
            span /= 2

    def next_times(self, first: float | None, count: int) -> list[float]:
        """The next occurrences, beginning with `first`."""
        if first is None:
            return []
        if self.every is not None:
            return [round(first + n * self.every, 6) for n in range(count)]
        return [first, *islice(self._from(first), count - 1)]

    def _from(self, moment: float) -> Iterator[float]:
        """The occurrences after a time. The seconds are applied here, because cronsim treats the changes of daylight
        saving time as Debian's cron does for expressions with five fields only."""
        fields = (self.cron or "").split()
        seconds = _seconds(fields[0]) if len(fields) == 6 else (0,)
        minutes = " ".join(fields[-5:])
        begin = datetime.fromtimestamp(moment, UTC).replace(second=0, microsecond=0) - timedelta(minutes=1)
        for minute in _simulated(minutes, begin.astimezone(_zone(self.timezone))):
            start = minute.timestamp()
            for second in seconds:
                if start + second > moment:
                    yield start + second


def _until(times: Iterator[float], last: float) -> Iterator[float]:
    for each in times:
        if each > last:
            return
        yield each


def _simulated(cron: str, start: datetime) -> Iterator[datetime]:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise InvalidInput(NEEDS_CRONSIM, pointer="/cron") from None
    try:
        return CronSim(cron, start)
    except CronSimError as error:
        raise InvalidInput(f"cron: {cron!r}: {error}", pointer="/cron") from None


@lru_cache(maxsize=256)
def _seconds(text: str) -> tuple[int, ...]:
    """The seconds of an expression with six fields. They have the form of minutes."""
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise InvalidInput(NEEDS_CRONSIM, pointer="/cron") from None
    try:
        return tuple(sorted(CronSim(f"{text} * * * *", datetime(2000, 1, 1, tzinfo=UTC)).minutes))
    except CronSimError:
        raise InvalidInput(f"cron: {text!r}: Bad second", pointer="/cron") from None


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidInput(
            f"timezone: there is no time zone {name[:100]!r}; for example Europe/Berlin", pointer="/timezone"
        ) from None


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it is stored. `job` has the fields of the submission. `revision` changes with every write.

    `secret` is part of the idempotency keys of its runs, so that no caller can use such a key before it is due. A
    schedule that is `declared` comes from the configuration or the code. `last_at` is the latest occurrence that was
    decided, and `waiting_at` the one that waits for an earlier run. `next_at` is None if it is never due again.
    """

    id: str
    user_id: str
    timing: Timing
    job: Mapping[str, Any]
    missed: Missed = Missed.ONCE
    overlap: Overlap = Overlap.ALLOW
    lowers_only: bool = False
    declared: bool = False
    name: str | None = None
    secret: str = field(default="", repr=False)
    created_at: float = 0.0
    revision: int = 0
    next_at: float | None = None
    last_at: float | None = None
    waiting_at: float | None = None
    paused_at: float | None = None

    def following(self, now: float) -> float | None:
        """The next occurrence after now that was not decided before, also if the clock was set back."""
        return self.timing.after(now if self.last_at is None else max(now, self.last_at))


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """What became of one occurrence, or of `count` missed ones; `due_at` is then the last of them. Without `due_at`, an
    operator or user started the run."""

    outcome: RunOutcome
    at: float
    due_at: float | None = None
    job_id: str | None = None
    count: int = 1
    detail: str | None = None
    seq: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One move of a schedule: the occurrence to submit, if any, those that were skipped or missed, and its new
    state."""

    next_at: float | None
    last_at: float | None
    waiting_at: float | None
    run_at: float | None = None
    skipped_at: float | None = None
    missed: int = 0
    missed_at: float | None = None


def decide(schedule: Schedule, now: float, *, busy: bool) -> Step | None:
    """What to do with the schedule now; None if nothing is due. At most one occurrence is submitted, so the caller asks
    again. `busy`: an earlier run is open, and the schedule does not allow more."""
    waiting_at = schedule.waiting_at
    if waiting_at is not None and not busy:
        return Step(schedule.next_at, schedule.last_at, None, run_at=waiting_at)
    if schedule.next_at is None or schedule.next_at > now:
        return None
    due = schedule.timing.due(schedule.next_at, now)
    chosen = _chosen(schedule.missed, due, now)
    missed = due[: len(due) - len(chosen)]
    if len(chosen) > 1:
        next_at: float | None = chosen[1]
    else:
        next_at = schedule.timing.after(due[-1] if schedule.timing.every is not None else max(now, due[-1]))
    at = chosen[0] if chosen else None
    waits = busy and schedule.overlap is Overlap.WAIT and waiting_at is None
    return Step(
        next_at,
        last_at=at if at is not None else due[-1],
        waiting_at=at if waits else waiting_at,
        run_at=None if busy else at,
        skipped_at=at if busy and not waits else None,
        missed=len(missed),
        missed_at=missed[-1] if missed else None,
    )


def _chosen(missed: Missed, due: list[float], now: float) -> list[float]:
    """The due occurrences that count, oldest first. The others are missed."""
    if missed is Missed.ALL:
        return due[-MOST_CAUGHT_UP:]
    late = now - due[-1] > LATE_AFTER
    return [] if missed is Missed.SKIP and late else due[-1:]


def run_key(schedule: Schedule, due_at: float) -> str:
    """The idempotency key of an occurrence."""
    return f"schedule:{schedule.id}:{schedule.secret}:{round(due_at * 1e6)}"
