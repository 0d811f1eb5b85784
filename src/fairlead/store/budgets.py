"""Writes, reads and rows of budgets (docs/adr/0040), shared by both engines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from fairlead.domain.budgets import DEMOTE, Budgets, Counter, Key, Reservation, Spent, admit, stays, turned_back
from fairlead.domain.job import Job, JobStatus, Priority
from fairlead.domain.prices import Prices
from fairlead.domain.transitions import Move, Start

MOST_TURNED_BACK = 500
"""The waiting steps of one user that are held or demoted together, when one of them finds a budget spent."""
MOST_WARNED = 100
"""The counters whose thresholds are announced at a time."""
MOST_COUNTERS = 10_000
"""The counters that one read returns."""


@dataclass(frozen=True, slots=True)
class SetBudget:
    """Set the amount of a budget, for one subject or for all (an empty subject). None lifts what was set."""

    budget: str
    subject: str
    amount: int | None


@dataclass(frozen=True, slots=True)
class ReleaseHeld:
    """Fire the timers of jobs that this budget holds, the oldest first, at most `limit`. Returns how many."""

    budget: str
    subject: str
    limit: int


@dataclass(frozen=True, slots=True)
class SweepBudgets:
    """Free the reservations of calls that are not under way, and forget jobs that are no longer held. Also deletes
    counters whose window began before `before` and that have no reservations. Returns the number of freed
    reservations."""

    before: float


@dataclass(frozen=True, slots=True)
class WarnBudget:
    """Record that `warned` thresholds of a budget were reached, and write the event `budget.threshold` for endpoints.
    Refused if that was recorded before, or if the window is over."""

    budget: str
    subject: str
    window_start: float
    warned: int
    event_id: str
    about: Mapping[str, Any]
    user_id: str | None = None
    """The user whose endpoints get the event, beside those of the whole system."""


KINDS: tuple[type, ...] = (SetBudget, ReleaseHeld, SweepBudgets, WarnBudget)
"""The writes of budgets, in the order in which a commit applies them, after all moves."""


@dataclass(frozen=True, slots=True)
class CounterRow:
    """A counter as it is stored. Its window may be over."""

    key: Key
    counter: Counter
    held: int = 0
    """The number of jobs that this budget holds."""


class Threshold(NamedTuple):
    """A threshold that a budget announces: the start of its window, its configured amount, the threshold as a share of
    the amount, and its number among those of the budget, from 1."""

    budget: str
    window_start: float
    amount: int
    share: float
    number: int

    def row(self) -> tuple[Any, ...]:
        return self.budget, round(self.window_start * 1e6), self.amount, self.share, self.number


class BudgetReads(Protocol):
    async def budget_counters(self, keys: Sequence[Key] | None = None) -> list[CounterRow]:
        """The counters with these keys, or the first `MOST_COUNTERS` of all. Keys that have none yet are included, as
        if their window were over."""
        ...

    async def budgets_to_warn(self, thresholds: Sequence[Threshold]) -> list[CounterRow]:
        """The counters of current windows that have reached a threshold that was not announced yet, once for each such
        threshold, at most `MOST_WARNED`."""
        ...

    async def held_budgets(self) -> list[CounterRow]:
        """The counters of the budgets that hold jobs, with the number of these jobs. Counts all of them."""
        ...

    async def holding_budgets(self) -> list[CounterRow]:
        """The counters of the budgets that hold jobs, without the number of these jobs. Cheap however many there
        are."""
        ...


def counter_of(row: Sequence[Any]) -> CounterRow:
    budget, subject, window_start, used, reserved, calls, mean, warned, override, held = row
    counter = Counter((window_start or 0) / 1e6, used or 0, reserved or 0, calls or 0, mean or 0, warned or 0, override)
    return CounterRow((budget, subject), counter, held or 0)


@dataclass(slots=True)
class SpentStart:
    """A start whose budget is spent: the job that it would have started, and the other steps that are moved with it."""

    job: Job
    spent: Spent
    others: list[Job] = field(default_factory=list)


class Charges:
    """What the transitions of one commit mean for budgets. `now` is the time of the commit."""

    def __init__(self, budgets: Budgets, prices: Prices, now: float) -> None:
        self.budgets = budgets
        self.now = now
        self._prices = prices
        self._counters: dict[Key, Counter] = {}
        self._reservations: dict[str, list[Reservation]] = {}
        self._windows: dict[str, int] = {}
        self._taken_along: set[tuple[str, str]] = set()

    def window_start(self, budget: str) -> int:
        """The start of the current window, in microseconds."""
        if budget not in self._windows:
            self._windows[budget] = round(self.budgets.budgets[budget].window(self.now).start * 1e6)
        return self._windows[budget]

    def may_concern(self, start: Start) -> bool:
        return self.budgets.may_concern(start.user_id, start.service)

    def missing(self, jobs: Iterable[Job]) -> list[Key]:
        """The keys of the counters that concern these jobs and were not loaded yet, sorted. All processes lock them in
        this order."""
        keys = {key for job in jobs for key in self.budgets.keys_of(job)}
        return sorted(keys.difference(self._counters))

    def load(self, keys: Iterable[Key], rows: Iterable[CounterRow]) -> None:
        found = {row.key: row.counter for row in rows}
        for key in keys:
            start = self.window_start(key[0]) / 1e6
            counter = found.get(key)
            self._counters[key] = Counter(start) if counter is None else counter.rolled(start)

    def admit(self, starts: Iterable[Start], jobs: Mapping[str, Job]) -> dict[str, SpentStart]:
        """Decide which of these steps may start, once the counters of their jobs are loaded. Returns those whose budget
        is spent, by job id; the reservations of the others are kept."""
        spent: dict[str, SpentStart] = {}
        for start in starts:
            job = jobs.get(start.job_id)
            if job is None or job.run != start.run or job.status is not JobStatus.PENDING:
                continue  # the start is refused in any case
            decision = admit(job, self.budgets, self._counters, self.now)
            if isinstance(decision, Spent):
                spent[job.id] = SpentStart(job, decision)
            else:
                self._reservations[job.id] = decision
        return spent

    def reserved(self, job_id: str) -> Sequence[Reservation]:
        """What a step that this commit starts reserves."""
        return self._reservations.get(job_id, ())

    def waiting_with(self, one: SpentStart) -> tuple[list[str] | None, int | None, int]:
        """Which other steps of the user are moved with this start: those of these services, or of all, except those
        of this band and promoted ones, at most so many: none if an earlier start of this commit has moved them."""
        budget, key = one.spent.budget, (one.job.user_id, one.spent.budget.name)
        services = None if budget.services is None else sorted(budget.services)
        limit = 0 if key in self._taken_along else MOST_TURNED_BACK
        self._taken_along.add(key)
        return services, Priority.LOW.band if budget.at_end == DEMOTE else None, limit

    def turned_back(self, one: SpentStart) -> list[tuple[Job, Move]]:
        """The moves of a start whose budget is spent, and of the other waiting steps that the budget concerns."""
        budget, waits = one.spent.budget, self.budgets.waits
        others = [job for job in one.others if job.turn is None and not stays(job, budget)]
        jobs = [one.job, *(job for job in others if budget in self.budgets.of(job))]
        return [(job, turned_back(job, one.spent, now=self.now, waits=waits)) for job in jobs]

    def used_rows(self, moves: Iterable[tuple[int, Move]]) -> list[tuple[int, str, str, int, int]]:
        """What the calls that these moves end have used: number of the move, budget, subject, window, amount."""
        rows = []
        for n, move in moves:
            if (call := move.call) is None or not self.budgets.may_concern(call.job.user_id, call.job.service):
                continue
            price = self._prices.amount(call)
            for budget in self.budgets.of(call.job):
                name, subject = budget.key_of(call.job.user_id)
                rows.append((n, name, subject, self.window_start(name), budget.used_by(call, price)))
        return rows

    def is_charged(self, move: Move) -> bool:
        """Whether the move ends a call that a budget concerns."""
        return move.call is not None and bool(self.budgets.of(move.call.job))


FREES = frozenset({"hand_back", "due", "cancel", "expire", "give_up", "fail"})
"""The moves that may end a call without a row in the ledger, or the hold of a job."""


def hold_row(job: Job, move: Move, spent: Spent) -> tuple[Any, ...]:
    """The row of a job that is held: its id, its `run` while it is held, the budget, the subject, and its seq."""
    return (job.id, move.run + 1, *spent.budget.key_of(job.user_id), job.seq)


def is_hold(move: Move) -> bool:
    return move.status is JobStatus.RETRYING and move.verb == "hold"
