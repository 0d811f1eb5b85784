"""Applies budgets to jobs when they are submitted (docs/adr/0040)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fairlead.domain.budgets import DEMOTE, HOLD, REFUSE, Budget, Budgets, Counter, Key, limit_of
from fairlead.domain.events import iso
from fairlead.domain.job import Job, Priority
from fairlead.domain.transitions import Submit
from fairlead.engine.counters import Counters
from fairlead.errors import BudgetSpent
from fairlead.store.port import Store


@dataclass(frozen=True, slots=True)
class BudgetState:
    """A budget and how much of it is left in the current window, for one user or for all that it concerns (`user_id` is
    None). Amounts are in its `measure`. `reserved` is what the calls under way are expected to use, `held` the number
    of jobs that wait for the next window."""

    budget: str
    user_id: str | None
    plan: str | None
    group: str | None
    each_user: bool
    services: tuple[str, ...] | None
    measure: str
    amount: float
    declared_amount: float
    used: float
    reserved: float
    remaining: float
    spent: bool
    per: str
    window_start: str
    window_end: str
    at_end: str
    held: int

    @classmethod
    def of(cls, budget: Budget, subject: str, counter: Counter, now: float, held: int = 0) -> BudgetState:
        window = budget.window(now)
        counter = counter.rolled(window.start)
        limit = limit_of(budget, counter)
        return cls(
            budget.name,
            budget.user or subject or None,
            budget.plan,
            budget.group,
            budget.each_user,
            None if budget.services is None else tuple(sorted(budget.services)),
            budget.measure,
            budget.shown(limit),
            budget.shown(budget.amount),
            budget.shown(counter.used),
            budget.shown(counter.reserved),
            budget.shown(max(0, limit - counter.used - counter.reserved)),
            counter.used >= limit,
            budget.per,
            iso(window.start) or "",
            iso(window.end) or "",
            budget.at_end,
            held,
        )

    @property
    def share_left(self) -> float:
        return self.remaining / self.amount


class BudgetGate:
    """Applies budgets to jobs when they are submitted. What calls use is decided when they start; here, jobs are
    refused or demoted only if a budget is used up for certain, not merely reserved."""

    def __init__(self, budgets: Budgets, store: Callable[[], Store], counters: Counters) -> None:
        self._budgets = budgets
        self._store = store
        self._counters = counters

    async def admit(
        self, submits: Sequence[Submit], now: float, *, turn: bool = False
    ) -> tuple[list[Submit], BudgetState | None]:
        """Return the submits, demoted where a budget says so, and the budget of the first job of which the smallest
        share is left. Raises BudgetSpent. Turns cannot be held, so they are refused instead."""
        concerned = [self._of(submit.job) for submit in submits]
        keys = {key for pairs in concerned for _, key in pairs}
        if not keys:
            return list(submits), None
        counters = {row.key: row.counter for row in await self._store().budget_counters(sorted(keys))}
        admitted = []
        for number, (submit, pairs) in enumerate(zip(submits, concerned, strict=True)):
            states = [BudgetState.of(budget, key[1], counters.get(key, Counter(0.0)), now) for budget, key in pairs]
            spent = [state for state in states if state.spent]
            refusing = (REFUSE, HOLD) if turn else (REFUSE,)
            refused = next((state for state in spent if state.at_end in refusing), None)
            if refused is not None and not await self._is_known(submit):
                self._counters.turned_back[REFUSE] += 1
                raise _spent(refused, {"index": number} if len(submits) > 1 else {})
            demoted = any(state.at_end == DEMOTE for state in spent)
            admitted.append(_demoted(submit) if demoted else submit)
        first = (BudgetState.of(budget, key[1], counters.get(key, Counter(0.0)), now) for budget, key in concerned[0])
        return admitted, min(first, key=lambda state: state.share_left, default=None)

    def _of(self, job: Job) -> list[tuple[Budget, Key]]:
        """The budgets that concern any step of a job."""
        found = {b.name: b for step in range(len(job.steps)) for b in self._budgets.of(replace(job, step=step))}
        return [(budget, budget.key_of(job.user_id)) for budget in found.values()]

    async def _is_known(self, submit: Submit) -> bool:
        """Whether the submit is a repetition, which returns the job of the first one."""
        key = submit.idempotency_key
        return key is not None and await self._store().was_submitted(submit.job.user_id, key)


def _spent(state: BudgetState, more: dict[str, Any]) -> BudgetSpent:
    text = f"the budget {state.budget} is spent until {state.window_end}"
    details = {"budget": state.budget, "measure": state.measure, "amount": state.amount, "used": state.used}
    return BudgetSpent(text, details={**details, "until": state.window_end, **more})


def _demoted(submit: Submit) -> Submit:
    return replace(submit, job=replace(submit.job, priority=Priority.LOW))
