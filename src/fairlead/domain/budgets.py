"""Budgets: how much a user, a plan, a group or everyone may use in an hour, a day or a month of the calendar.

A call may start while `used + reserved` is below the amount of every budget that concerns it (docs/adr/0040). Amounts
are integers in the smallest part of their measure, so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple

from fairlead.domain import transitions
from fairlead.domain.calls import CallEnd
from fairlead.domain.costs import MAX_UNITS, TOKENS
from fairlead.domain.events import iso
from fairlead.domain.job import BUDGET_SPENT, Job, JobStatus, Priority
from fairlead.domain.prices import NANO
from fairlead.domain.rules import SECONDS
from fairlead.domain.transition_types import Move
from fairlead.domain.waiting_timers import WaitTimeouts, earliest

UNITS, MONEY = "units", "money"
PARTS = {SECONDS: 1_000_000, UNITS: 1_000_000, TOKENS: 1, MONEY: NANO}
"""The measures of budgets, and the number of parts into which each is divided."""
MOST = {SECONDS: 1e9, UNITS: 1e9, TOKENS: 1e15, MONEY: 1e9}
"""The largest amount of a budget, in its measure."""
MAX_AMOUNT = 9_000_000_000_000_000_000
"""The largest number of parts. The databases store 64 bits."""

HOLD, DEMOTE, REFUSE = "hold", "demote", "refuse"
HOUR, DAY, MONTH = "hour", "day", "month"

Key = tuple[str, str]
"""The name of a budget and its subject: the user, if the budget is for each user, else an empty text."""


class Window(NamedTuple):
    """A window of the calendar, in seconds since the epoch. `end` is exclusive."""

    start: float
    end: float


def window_of(now: float, per: str, zone: tzinfo) -> Window:
    """The hour, day or month of the zone's calendar that contains this moment. Days on which clocks change have 23 or
    25 hours. An hour ends when clocks change: where they change by half an hour, it may have only 30 minutes."""
    if per == HOUR:
        offset = _offset(now, zone)
        start = (now + offset) // 3600 * 3600 - offset
        return Window(_change(start, now, zone) or start, _change(now, start + 3600, zone) or start + 3600)
    local = datetime.fromtimestamp(now, zone)
    first = datetime(local.year, local.month, local.day if per == DAY else 1, tzinfo=zone)
    after = first + timedelta(days=1 if per == DAY else 32)  # a wall clock time: the length of the day does not matter
    last = datetime(after.year, after.month, after.day if per == DAY else 1, tzinfo=zone)
    return Window(first.timestamp(), last.timestamp())


def _offset(moment: float, zone: tzinfo) -> float:
    return (datetime.fromtimestamp(moment, zone).utcoffset() or timedelta()).total_seconds()


def _change(after: float, until: float, zone: tzinfo) -> float | None:
    """When the clocks of the zone change after one moment and not after another, in whole seconds; None if they do
    not."""
    before = _offset(after, zone)
    if _offset(until, zone) == before:
        return None
    first, last = int(after), int(until)
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (middle, last) if _offset(middle, zone) == before else (first, middle)
    return float(last)


@dataclass(frozen=True, slots=True)
class Budget:
    """`amount` parts of `measure` in each window. It concerns the calls of one `user`, of the users of a `plan` or of a
    `group`, or all calls; with `services`, only those of these services. With `each_user`, each of these users has an
    amount of their own."""

    name: str
    measure: str
    amount: int
    per: str = MONTH
    zone: tzinfo = UTC
    at_end: str = HOLD
    user: str | None = None
    plan: str | None = None
    group: str | None = None
    each_user: bool = False
    services: frozenset[str] | None = None
    warn_at: tuple[float, ...] = ()

    def concerns(self, user_id: str, plan: str | None, group: str | None, service: str) -> bool:
        if self.services is not None and service not in self.services:
            return False
        if self.user is not None:
            return user_id == self.user
        if self.plan is not None:
            return plan == self.plan
        return self.group is None or group == self.group or (group or "").startswith(f"{self.group}/")

    def key_of(self, user_id: str) -> Key:
        return self.name, user_id if self.each_user else ""

    def window(self, now: float) -> Window:
        return window_of(now, self.per, self.zone)

    def used_by(self, call: CallEnd, price: int | None) -> int:
        """What a call has used of this budget, as far as that is known."""
        if self.measure == SECONDS:
            return round(call.seconds * PARTS[SECONDS])
        if self.measure == MONEY:
            return price or 0
        usage = call.usage
        if usage is None:
            return 0
        if self.measure == TOKENS:
            return usage.tokens or 0
        return round(min(usage.units or 0.0, MAX_UNITS) * PARTS[UNITS])  # more would not fit into a counter

    def stated_by(self, job: Job, unit: str) -> int | None:
        """What the next call of a job is going to use, if its cost is stated in the measure of this budget. `unit` is
        the unit of its service."""
        measure = unit if unit in (SECONDS, TOKENS) else UNITS
        cost = job.step_cost
        return None if cost is None or measure != self.measure else min(MAX_AMOUNT, round(cost * PARTS[measure]))

    def shown(self, parts: int) -> float:
        """An amount of this budget in its measure."""
        return parts / PARTS[self.measure]


@dataclass(slots=True)
class Counter:
    """The state of one budget for one subject. `calls` have ended in the window that began at `window_start`; `mean` is
    what a call used in the window before. `warned` thresholds were announced. `override` is the amount that an operator
    has set."""

    window_start: float
    used: int = 0
    reserved: int = 0
    calls: int = 0
    mean: int = 0
    warned: int = 0
    override: int | None = None

    @property
    def estimate(self) -> int:
        """What a call is expected to use."""
        return self.used // self.calls if self.calls else self.mean

    def rolled(self, window_start: float) -> Counter:
        """The counter in the window that begins then. A window that is over does not come back, even if a clock is set
        back."""
        if window_start <= self.window_start:
            return self
        return Counter(window_start, 0, self.reserved, 0, self.estimate, 0, self.override)


class Reservation(NamedTuple):
    key: Key
    amount: int


@dataclass(frozen=True, slots=True)
class Spent:
    """A budget that keeps a step from starting, until its next window."""

    budget: Budget
    until: float


@dataclass(frozen=True, slots=True)
class Budgets:
    """The budgets of the configuration, and what is needed to apply them: the plans of users, for jobs that have none
    stored, the units of services, and how long steps may wait."""

    budgets: Mapping[str, Budget] = field(default_factory=dict)
    plans: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    waits: WaitTimeouts = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.budgets)

    def may_concern(self, user_id: str | None, service: str | None) -> bool:
        """Whether a budget may concern the calls of a user to a service, as far as that can be told without the job. A
        None is unknown."""
        return any(
            (budget.services is None or service is None or service in budget.services)
            and (budget.user is None or user_id is None or budget.user == user_id)
            for budget in self.budgets.values()
        )

    def of(self, job: Job) -> list[Budget]:
        """The budgets that concern the current step of a job. Those that demote come last: a job that is held is not
        demoted too."""
        service, plan = job.service, job.plan or self.plans.get(job.user_id)
        found = [each for each in self.budgets.values() if each.concerns(job.user_id, plan, job.group, service)]
        return sorted(found, key=lambda budget: budget.at_end == DEMOTE)

    def keys_of(self, job: Job) -> Iterator[Key]:
        return (budget.key_of(job.user_id) for budget in self.of(job))


NO_BUDGETS = Budgets()


def limit_of(budget: Budget, counter: Counter) -> int:
    return budget.amount if counter.override is None else counter.override


def admit(job: Job, budgets: Budgets, counters: Mapping[Key, Counter], now: float) -> list[Reservation] | Spent:
    """Reserve what the next call of a job is expected to use, in `counters`; or return the budget that is spent."""
    concerned = [(budget, counters[budget.key_of(job.user_id)]) for budget in budgets.of(job)]
    for budget, counter in concerned:
        # Other calls may use less than they reserved. A job can wait for that; the caller of a turn waits already.
        taken = counter.used + (counter.reserved if job.turn is None else 0)
        if taken >= limit_of(budget, counter) and not stays(job, budget):
            return Spent(budget, budget.window(now).end)
    reservations = []
    for budget, counter in concerned:
        stated = budget.stated_by(job, budgets.units.get(job.service, SECONDS))
        amount = counter.estimate if stated is None else stated
        counter.reserved += amount
        reservations.append(Reservation(budget.key_of(job.user_id), amount))
    return reservations


def stays(job: Job, budget: Budget) -> bool:
    """Whether the job may start although the budget is spent: it is in the low band already, or it was promoted from
    there, or by an operator."""
    return budget.at_end == DEMOTE and (job.priority is Priority.LOW or job.promoted_at is not None)


def demoted(job: Job, *, now: float, waits: WaitTimeouts) -> Move:
    """Move a waiting step to the low band."""
    move = transitions.prioritise(job, Priority.LOW, now=now, waits=waits)
    assert isinstance(move, Move)
    return replace(move, verb="demote")


def turned_back(job: Job, spent: Spent, *, now: float, waits: WaitTimeouts) -> Move:
    """The move of a waiting job whose budget is spent: hold it until the next window, or demote it. A turn that would
    be held fails instead, because its caller waits for it."""
    budget = spent.budget
    if budget.at_end == DEMOTE:
        return demoted(job, now=now, waits=waits)
    until = iso(spent.until)
    text = f"the budget {budget.name} is spent until {until}"
    error = {"code": BUDGET_SPENT, "message": text, "budget": budget.name, "until": until}
    if job.turn is not None:
        return transitions.end_turn(job, "fail", error, now=now)
    return Move(
        job.id,
        job.run,
        "hold",
        JobStatus.RETRYING,
        step=job.step,
        attempt=job.attempt,
        round=job.round,
        tells_line=True,
        timer_at=earliest(spent.until, job.deadline_at, job.start_by),
        error=error,
        goes_back=job.goes_back,
    )
