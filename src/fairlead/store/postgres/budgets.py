"""Budgets in the commits of PostgreSQL, and their reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from fairlead.domain.budgets import Budgets, Key
from fairlead.domain.job import Job
from fairlead.domain.prices import Prices
from fairlead.domain.transitions import Move, Start
from fairlead.store.budgets import (
    FREES,
    MOST_COUNTERS,
    MOST_WARNED,
    Charges,
    CounterRow,
    ReleaseHeld,
    SetBudget,
    SpentStart,
    SweepBudgets,
    Threshold,
    WarnBudget,
    counter_of,
    hold_row,
    is_hold,
)
from fairlead.store.port import Done, Outcome
from fairlead.store.postgres.encode import columns
from fairlead.store.postgres.queries import READS, Ask
from fairlead.store.records import WARNED
from fairlead.store.rows import job_of, micros


class CommitBudgets:
    """Applies budgets to the starts and moves of one commit, within its open transaction."""

    def __init__(self, ask: Ask, budgets: Budgets, prices: Prices, now: int) -> None:
        self._ask = ask
        self._charges = Charges(budgets, prices, now / 1e6)

    async def lock(self, jobs: Iterable[Job]) -> None:
        """Lock the counters that concern the current steps of these jobs, unless they are locked already."""
        if keys := self._charges.missing(jobs):
            windows = [self._charges.window_start(budget) for budget, _ in keys]
            rows = ((*key, window) for key, window in zip(keys, windows, strict=True))
            found = await self._ask("lock_counters", *columns(rows))
            self._charges.load(keys, map(counter_of, found))

    async def admit(self, starts: Sequence[Start], ending: Sequence[Job]) -> dict[str, SpentStart]:
        """Decide which of these steps may start. Returns those whose budget is spent, by job id. The counters of the
        calls that the same commit ends are locked too: all commits lock counters in one order, before jobs."""
        concerned = [start for start in starts if self._charges.may_concern(start)]
        if not concerned:
            await self.lock(ending)
            return {}
        rows = await self._ask("jobs_to_start", [start.job_id for start in concerned])
        jobs = {job.id: job for job in map(job_of, rows)}
        await self.lock([*jobs.values(), *ending])
        return self._charges.admit(concerned, jobs)

    async def started(self, jobs: Iterable[Job]) -> None:
        """Write the reservations of steps that have started."""
        rows = [
            (job.id, job.run, *reservation.key, reservation.amount)
            for job in jobs
            for reservation in self._charges.reserved(job.id)
        ]
        if rows:
            await self._ask("reserve", *columns(rows))

    async def moved(self, moves: Sequence[Move]) -> None:
        """Free what the calls that these moves ended had reserved, and add what they used."""
        charged = [move for move in moves if self._charges.is_charged(move)]
        freed = [*charged, *(move for move in moves if move.verb in FREES and move.call is None)]
        if not freed:
            return
        await self.lock([move.call.job for move in charged if move.call is not None])
        used = [
            (budget, subject, amount) for _, budget, subject, _, amount in self._charges.used_rows(enumerate(charged))
        ]
        await self._ask("charge", sorted({move.job_id for move in freed}), *(columns(used) or (None, None, None)))

    async def turned_back(self, one: SpentStart, taken: Sequence[str]) -> list[tuple[Job, Move]]:
        """The moves of a step whose budget is spent, and of other waiting steps of the same user, except those of the
        jobs in `taken`."""
        services, low, limit = self._charges.waiting_with(one)
        if limit:
            rows = await self._ask("waiting_of_user", one.job.user_id, services, taken, limit, low)
            one.others = [job_of(row) for row in rows]
        return self._charges.turned_back(one)

    async def held(self, one: SpentStart, moves: Iterable[tuple[Job, Move]]) -> None:
        rows = [hold_row(job, move, one.spent) for job, move in moves if is_hold(move)]
        if rows:
            await self._ask("hold_jobs", *columns(rows))


async def apply(transition: Any, ask: Ask, now: int) -> Outcome:
    """Apply one write of budgets within an open transaction."""
    match transition:
        case SetBudget(budget, subject, None):
            await ask("lift_budget", budget, subject)
            return Done()
        case SetBudget(budget, subject, amount):
            await ask("set_budget", budget, subject, amount)
            return Done()
        case ReleaseHeld(budget, subject, limit):
            ((released,),) = await ask("release_held", budget, subject, limit, now)
            return Done(released)
        case SweepBudgets(before):
            ((freed,),) = await ask("sweep_reservations")
            await ask("sweep_holds")
            await ask("sweep_counters", micros(before))
            return Done(freed)
        case WarnBudget(budget, subject, window_start, warned, event_id, about, user_id):
            if not await ask("warn_budget", budget, subject, micros(window_start), warned):
                return WARNED
            await ask("record_threshold", event_id, user_id or "", orjson.dumps(about).decode(), now)
            return Done()
        case _:
            raise TypeError(f"not a write of budgets: {transition!r}")


class PostgresBudgetReads:
    """The reads of budgets; `Reads` inherits them."""

    async def _ask(self, sql: str, *parameters: Any) -> list[Any]:
        raise NotImplementedError

    async def budget_counters(self, keys: Sequence[Key] | None = None) -> list[CounterRow]:
        budgets = None if keys is None else [budget for budget, _ in keys]
        subjects = None if keys is None else [subject for _, subject in keys]
        rows = await self._ask(READS["budget_counters"], budgets, subjects, MOST_COUNTERS)
        return [counter_of(row) for row in rows]

    async def budgets_to_warn(self, thresholds: Sequence[Threshold]) -> list[CounterRow]:
        rows = columns(each.row() for each in thresholds)
        return [counter_of(row) for row in await self._ask(READS["budgets_to_warn"], *rows, MOST_WARNED)]

    async def held_budgets(self) -> list[CounterRow]:
        return [counter_of(row) for row in await self._ask(READS["held_budgets"])]

    async def holding_budgets(self) -> list[CounterRow]:
        return [counter_of(row) for row in await self._ask(READS["holding_budgets"])]
