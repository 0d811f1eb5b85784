"""Releases jobs that wait for a budget when there is room again, announces thresholds, and frees what is left over."""

from __future__ import annotations

import logging
from time import perf_counter

from fairlead.domain.budgets import Budget, Budgets, limit_of
from fairlead.domain.events import iso
from fairlead.engine.clock import id_at
from fairlead.pacing import DutyCycle, Interval
from fairlead.store.budgets import CounterRow, ReleaseHeld, SweepBudgets, Threshold, WarnBudget
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Done, Store

log = logging.getLogger("fairlead.loops")

LOOKING = DutyCycle(0.02, every=1.0, longest=60.0)
"""How often the budgets that hold jobs are read. That takes long if budgets of very many users hold jobs."""
SWEEP_EVERY = 60.0
MOST_RELEASED = 500
UNKNOWN_SIZE = 10
"""Jobs that are released at once while nothing is known about what their calls use."""
KEEP_COUNTERS = 70 * 86400.0
"""Seconds after the start of its window for which a counter is kept."""
NEVER = 1e18


class BudgetsLoop:
    """Counts the budgets that hold jobs (`scanned`), and the jobs that it released (`queued`)."""

    name = "budgets"

    def __init__(self, store: Store, group_commit: GroupCommit, budgets: Budgets) -> None:
        self._store = store
        self._group_commit = group_commit
        self._budgets = budgets
        self._sweeping = Interval(SWEEP_EVERY)
        self._reading = 0.0
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        more = await self._release(now)
        if not self._budgets and not more:
            return NEVER  # without budgets, nothing holds a job from now on
        await self._warn(now)
        if self._sweeping.due(now):
            await self._group_commit.write(SweepBudgets(now - KEEP_COUNTERS))
        return now if more else now + LOOKING.pause(self._reading)

    async def _release(self, now: float) -> bool:
        """Release as many held jobs as the room in their budgets allows. Returns True if there are more to release at
        once."""
        more, began = False, perf_counter()
        rows = await self._store.holding_budgets()
        self._reading = perf_counter() - began
        for row in rows:
            self.scanned += 1
            if (count := self._room(row, now)) > 0:
                outcome = await self._group_commit.write(ReleaseHeld(*row.key, count))
                assert isinstance(outcome, Done)
                self.queued += outcome.value
                more = more or (row.key[0] not in self._budgets.budgets and outcome.value == MOST_RELEASED)
        return more

    def _room(self, row: CounterRow, now: float) -> int:
        """How many calls may start. All of them if the budget is gone, or no longer concerns anyone."""
        budget = self._budgets.budgets.get(row.key[0])
        if budget is None:
            return MOST_RELEASED
        counter = row.counter.rolled(budget.window(now).start)
        room = limit_of(budget, counter) - counter.used - counter.reserved
        if room <= 0:
            return 0
        return min(MOST_RELEASED, -(-room // counter.estimate)) if counter.estimate else UNKNOWN_SIZE

    async def _warn(self, now: float) -> None:
        """Announce each threshold that a budget has reached, once per window."""
        thresholds = [
            Threshold(budget.name, budget.window(now).start, budget.amount, share, number)
            for budget in self._budgets.budgets.values()
            for number, share in enumerate(budget.warn_at, start=1)
        ]
        rows = await self._store.budgets_to_warn(thresholds) if thresholds else ()
        for row in {row.key: row for row in rows}.values():
            budget = self._budgets.budgets[row.key[0]]
            limit = limit_of(budget, row.counter)
            reached = sum(row.counter.used >= share * limit for share in budget.warn_at)
            for number in range(row.counter.warned + 1, reached + 1):
                await self._announce(budget, row, number, now)

    async def _announce(self, budget: Budget, row: CounterRow, reached: int, now: float) -> None:
        window, limit, share = budget.window(now), limit_of(budget, row.counter), budget.warn_at[reached - 1]
        user_id = budget.user or row.key[1] or None
        about = {
            "budget": budget.name,
            "user_id": user_id,
            "threshold": share,
            "measure": budget.measure,
            "amount": budget.shown(limit),
            "used": budget.shown(row.counter.used),
            "at_end": budget.at_end,
            "window_start": iso(window.start),
            "window_end": iso(window.end),
        }
        warn = WarnBudget(*row.key, row.counter.window_start, reached, id_at(now), about, user_id)
        if isinstance(await self._group_commit.write(warn), Done):
            whose = f" of {user_id}" if user_id else ""
            log.warning("the budget %s%s has reached %g %% of its amount", budget.name, whose, 100 * share)
