"""Budgets in the commits of SQLite, and their reads.

Only one connection writes, so a commit decides from what it has read in its transaction which steps may start. The
triggers in budgets.sql then count what was really started and moved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from fairlead.domain.budgets import Budgets, Key
from fairlead.domain.job import Job
from fairlead.domain.prices import Prices
from fairlead.domain.transitions import Move, Start
from fairlead.store.budgets import (
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
from fairlead.store.records import WARNED
from fairlead.store.rows import jobs_of, micros
from fairlead.store.sqlite.encode import Row, json_body

Read = Callable[..., Any]
"""Runs a named query on the writing connection and returns its value."""


class CommitBudgets:
    """Applies budgets to the starts and moves of one commit."""

    def __init__(self, budgets: Budgets, prices: Prices, now: int) -> None:
        self.charges = Charges(budgets, prices, now / 1e6)

    def admit(self, starts: Sequence[Start], new: Mapping[str, Job], read: Read) -> dict[str, SpentStart]:
        """Decide which of these steps may start. Returns those whose budget is spent, by job id. `new` are the jobs
        that the same commit inserts."""
        concerned = [start for start in starts if self.charges.may_concern(start)]
        if not concerned:
            return {}
        jobs = {job.id: job for job in jobs_of(read("get_jobs", _json([start.job_id for start in concerned])))}
        jobs |= new
        keys = self.charges.missing(jobs[start.job_id] for start in concerned if start.job_id in jobs)
        self.charges.load(keys, counters_of(read("budget_counters", _json(keys), MOST_COUNTERS)) if keys else ())
        return self.charges.admit(concerned, jobs)

    def reserve_rows(self, starts: Sequence[Start]) -> list[Row]:
        """The row that follows those of the starts."""
        rows = [
            (n, start.job_id, start.run + 1, *one.key, self.charges.window_start(one.key[0]), one.amount)
            for n, start in enumerate(starts)
            for one in self.charges.reserved(start.job_id)
        ]
        return [("reserve", json_body(rows))] if rows else []

    def rows_of_moves(self, moves: Sequence[Move], held: Sequence[tuple[int, Job, SpentStart]]) -> list[Row]:
        """The rows that follow those of the moves. `held` are the moves of steps whose budget is spent: the number of
        the move, the job and the start."""
        rows: list[Row] = [("charge", json_body(self.charges.used_rows(enumerate(moves))))]
        holds = [(n, *hold_row(job, moves[n], one.spent)) for n, job, one in held if is_hold(moves[n])]
        return [*rows, ("held", json_body(holds))] if holds else rows


def budget_rows(transitions: Sequence[Any]) -> list[Row]:
    return [_row(transition) for transition in transitions]


def _row(transition: Any) -> Row:
    match transition:
        case SetBudget(budget, subject, amount):
            return "set_budget", json_body((budget, subject, amount))
        case ReleaseHeld(budget, subject, limit):
            return "release_held", json_body((budget, subject, limit))
        case SweepBudgets(before):
            return "sweep_budgets", micros(before)
        case WarnBudget(budget, subject, window_start, warned, event_id, about, user_id):
            text = orjson.dumps(about).decode()
            values = (budget, subject, micros(window_start), warned, event_id, text, user_id or "")
            return "warn_budget", json_body(values)
        case _:
            raise TypeError(f"not a write of budgets: {transition!r}")


OUTCOMES: dict[type, tuple[str, Callable[[Any], Outcome]]] = {
    ReleaseHeld: ("released_held", Done),
    SweepBudgets: ("swept_budgets", Done),
    WarnBudget: ("warned", lambda recorded: Done() if recorded else WARNED),
}


def counters_of(answer: str) -> list[CounterRow]:
    return [counter_of(row) for row in orjson.loads(answer)]


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


class SqliteBudgetReads:
    """The reads of budgets; `Reads` inherits them."""

    _sql: dict[str, str]

    async def _ask(self, sql: str, *parameters: Any) -> Any:
        raise NotImplementedError

    async def budget_counters(self, keys: Sequence[Key] | None = None) -> list[CounterRow]:
        named = None if keys is None else _json(keys)
        return counters_of(await self._ask(self._sql["budget_counters"], named, MOST_COUNTERS))

    async def budgets_to_warn(self, thresholds: Sequence[Threshold]) -> list[CounterRow]:
        rows = _json([each.row() for each in thresholds])
        return counters_of(await self._ask(self._sql["budgets_to_warn"], rows, MOST_WARNED))

    async def held_budgets(self) -> list[CounterRow]:
        return counters_of(await self._ask(self._sql["held_budgets"]))

    async def holding_budgets(self) -> list[CounterRow]:
        return counters_of(await self._ask(self._sql["holding_budgets"]))
