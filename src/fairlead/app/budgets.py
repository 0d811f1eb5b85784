"""`app.admin.budgets`: the state of budgets, and the amounts that operators set (docs/adr/0040)."""

from __future__ import annotations

from dataclasses import replace

from fairlead.app import audit
from fairlead.app.audit import Act, AuditLog
from fairlead.app.budget_gate import BudgetState
from fairlead.app.runtime import Runtime
from fairlead.domain.budgets import MOST, PARTS, Budget, Counter, Key
from fairlead.domain.config_checks import known
from fairlead.domain.costs import TOKENS
from fairlead.domain.submission import MAX_USER_ID
from fairlead.domain.validation import check_text
from fairlead.errors import InvalidInput, NotFound, Unavailable
from fairlead.observe.stats import BudgetUse
from fairlead.store.budgets import CounterRow, SetBudget

MOST_STATES = 1000
"""The states that one answer lists."""


class BudgetAdmin:
    """The state of budgets, and the amounts that operators set."""

    def __init__(self, runtime: Runtime, log: AuditLog) -> None:
        self._runtime = runtime
        self._audit = log

    async def states(self, *, user_id: str | None = None, budget: str | None = None) -> list[BudgetState]:
        """The budgets, or those that concern one user, with what is left of them. Of a budget for each user, the users
        that it has counted, those who used the largest share first."""
        budgets, now = self._runtime.budgets, self._runtime.clock.now()
        named = list(budgets.budgets.values()) if budget is None else [self._budget(budget)]
        if user_id is not None:
            check_text(user_id, "user_id", MAX_USER_ID)
            known = await self._runtime.priorities.of_user(user_id) if named else None
            plan, group = (None, None) if known is None else (known.plan, known.group)
            named = [each for each in named if _is_of(each, user_id, plan, group)]
            keys = [each.key_of(user_id) for each in named]
        else:
            keys = [(each.name, "") for each in named if not each.each_user]
        store = self._runtime.store
        rows = {row.key: row for row in await store.budget_counters(keys)} if keys else {}
        if user_id is None and any(each.each_user for each in named):
            rows |= {row.key: row for row in await store.budget_counters()}
        held = {row.key: row.held for row in await store.held_budgets()}
        found = []
        for each in named:
            for subject in _subjects(each, rows, user_id):
                counter = rows[each.name, subject].counter if (each.name, subject) in rows else Counter(0.0)
                found.append(BudgetState.of(each, subject, counter, now, held.get((each.name, subject), 0)))
        order = {each.name: number for number, each in enumerate(named)}
        return sorted(found, key=lambda state: (order[state.budget], state.share_left))[:MOST_STATES]

    async def uses(self) -> list[BudgetUse]:
        """The budgets as metrics show them. Empty while the database does not answer."""
        budgets, store, now = self._runtime.budgets.budgets, self._runtime.store, self._runtime.clock.now()
        try:
            rows = await store.budget_counters([(each.name, "") for each in budgets.values() if not each.each_user])
            held = await store.held_budgets()
        except Unavailable:
            return []
        counters = {row.key[0]: row.counter for row in rows}
        uses = []
        for each in budgets.values():
            waiting = sum(row.held for row in held if row.key[0] == each.name)
            state = BudgetState.of(each, "", counters.get(each.name, Counter(0.0)), now)
            use = BudgetUse(each.name, each.measure, state.amount, state.used, state.reserved, waiting)
            uses.append(replace(use, amount=None, used=None, reserved=None) if each.each_user else use)
        return uses

    async def set(self, name: str, amount: float | None, *, user_id: str | None = None, who: str) -> BudgetState:
        """Set the amount of a budget until it is reset: of one user, if the budget is for each user, or of all. None
        resets it to the configured amount."""
        budget = self._budget(name)
        if user_id is not None and not budget.each_user:
            raise InvalidInput(f"the budget {name} is not for each user; omit user_id", pointer="/user_id")
        if user_id is not None:
            check_text(user_id, "user_id", MAX_USER_ID)
        subject, parts = user_id or "", None if amount is None else _parts(budget, amount)
        before = await self._state(budget, subject)
        details = {"amount": amount, "was": before.amount, "user_id": user_id}
        act = Act(who, audit.RESET_BUDGET if amount is None else audit.SET_BUDGET, name, details)
        await self._audit.write(act, SetBudget(name, subject, parts))
        return await self._state(budget, subject)

    async def _state(self, budget: Budget, subject: str) -> BudgetState:
        rows = await self._runtime.store.budget_counters([(budget.name, subject)])
        counter = rows[0].counter if rows else Counter(0.0)
        return BudgetState.of(budget, subject, counter, self._runtime.clock.now())

    def _budget(self, name: str) -> Budget:
        budgets = self._runtime.budgets.budgets
        if name not in budgets:
            raise NotFound(f"there is no budget {name[:100]!r}; {known(budgets)}")
        return budgets[name]


def _is_of(budget: Budget, user_id: str, plan: str | None, group: str | None) -> bool:
    """Whether a budget concerns any call of a user."""
    return any(budget.concerns(user_id, plan, group, service) for service in budget.services or ("",))


def _subjects(budget: Budget, rows: dict[Key, CounterRow], user_id: str | None) -> list[str]:
    if not budget.each_user:
        return [""]
    if user_id is not None:
        return [user_id]
    return [subject for name, subject in rows if name == budget.name and subject] or [""]


def _parts(budget: Budget, amount: float) -> int:
    measure, most = budget.measure, MOST[budget.measure]
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 < amount <= most:
        raise InvalidInput(f"amount must be a number of {measure} above 0 and at most {most:g}", pointer="/amount")
    if measure == TOKENS and amount % 1:
        raise InvalidInput("amount must be a whole number of tokens", pointer="/amount")
    return max(1, round(amount * PARTS[measure]))
