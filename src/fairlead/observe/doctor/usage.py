"""Checks of the usage that calls report, values that were ignored, and prices, rates and budgets that need values which
calls do not report; and of budgets that hold jobs, or soon will."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fairlead.domain.budgets import DEMOTE, HOLD, REFUSE, UNITS, Budget, Counter, limit_of
from fairlead.domain.calls import SUCCESS
from fairlead.domain.config import Config
from fairlead.domain.config_budgets import budgets_of
from fairlead.domain.costs import TOKENS
from fairlead.observe.doctor.finding import Finding, Kind, Severity, counted
from fairlead.store.budgets import CounterRow
from fairlead.store.port import Store

if TYPE_CHECKING:
    from fairlead.observe.doctor.facts import Facts

IGNORED = Kind("usage-ignored", Severity.WARNING, "reported usage is not credible")
MISSING = Kind("usage-missing", Severity.NOTE, "calls do not report the usage that a price, rate or budget counts")
HOLDS = Kind("budget-holds-jobs", Severity.WARNING, "jobs wait for the next window of a budget")
NEARLY_SPENT = Kind("budget-nearly-spent", Severity.NOTE, "a budget is nearly or fully used up")

NEARLY = 0.9
"""The share of its amount from which a budget is nearly used up."""
_AT_END = {HOLD: "jobs wait", DEMOTE: "jobs go to the low band", REFUSE: "new jobs are refused"}
NAMED = 5
"""The users that a finding names."""


async def budget_rows(store: Store, config: Config) -> list[CounterRow]:
    """The counters of all budgets, those that hold jobs with the number of these jobs."""
    if not config.budgets:
        return []
    rows = {row.key: row for row in await store.budget_counters()}
    return list((rows | {row.key: row for row in await store.held_budgets()}).values())


def check(facts: Facts) -> Iterator[Finding]:
    yield from _budgets(facts)
    for total in facts.usage:
        name = total.groups["service"]
        if total.ignored:
            yield IGNORED.found(
                f"{counted(total.ignored, 'value')} that calls of {name} reported since yesterday were negative, too "
                "large or not numbers; they were ignored",
                fix=f"look at `fairlead usage --service {name} --by outcome --from 1d`, and correct what the endpoint "
                "or handler reports",
                about=f"{name} {total.groups['outcome']}",
                service=name,
                ignored=total.ignored,
            )
    yield from _missing(facts)


def _missing(facts: Facts) -> Iterator[Finding]:
    for total in facts.usage:
        name = total.groups["service"]
        silent = total.calls - total.reported
        if total.groups["outcome"] != SUCCESS or not silent:
            continue
        effects = ["they have no price for them"] if _is_priced(name, facts) else []
        effects += ["rates count what was expected of them"] if _is_rated(name, facts) else []
        effects += [f"they use nothing of the budget {budget}" for budget in _budgets_of(name, facts)]
        if effects:
            yield MISSING.found(
                f"{silent} of {counted(total.calls, 'call')} of {name} since yesterday reported neither tokens nor "
                f"units, so {', and '.join(effects)}",
                fix=f"let the endpoint report `usage`, or call `call.report_usage` in the handler of {name}",
                about=name,
                service=name,
                calls=total.calls,
                reported=total.reported,
            )


def _budgets(facts: Facts) -> Iterator[Finding]:
    for name, budget in budgets_of(facts.config).budgets.items():
        window = budget.window(facts.now)
        rows = [row for row in facts.budgets if row.key[0] == name]
        if holding := [row for row in rows if row.held]:
            held, until = sum(row.held for row in holding), datetime.fromtimestamp(window.end, budget.zone)
            yield HOLDS.found(
                f"the budget {name} of {_whose(budget, holding)} holds {counted(held, 'job')} until "
                f"{until:%Y-%m-%d %H:%M %Z}: {_use(budget, holding, window.start)}",
                fix=f"wait for the next {budget.per}, or raise its amount: `fairlead budget {name} AMOUNT"
                f"{' --user ID' if budget.each_user else ''}`; the jobs go on within seconds",
                about=name,
                held=held,
                **_users(budget, holding),
            )
        elif full := [row for row in rows if _share(budget, row, window.start) >= NEARLY]:
            yield NEARLY_SPENT.found(
                f"the budget {name} of {_whose(budget, full)} is nearly or fully used up: "
                f"{_use(budget, full, window.start)}; at its end {_AT_END[budget.at_end]}",
                fix=f"look at `fairlead usage`, or raise its amount: `fairlead budget {name} AMOUNT"
                f"{' --user ID' if budget.each_user else ''}`",
                about=name,
                **_users(budget, full),
            )


def _users(budget: Budget, rows: Sequence[CounterRow]) -> dict[str, Any]:
    return {"users": [row.key[1] for row in rows[:NAMED]]} if budget.each_user else {}


def _whose(budget: Budget, rows: Sequence[CounterRow]) -> str:
    if budget.each_user:
        more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
        return ", ".join(row.key[1] for row in rows[:NAMED]) + more
    if budget.user is not None:
        return budget.user
    kind, members = ("plan", budget.plan) if budget.plan is not None else ("group", budget.group)
    return "everyone" if members is None else f"the {kind} {members}"


def _share(budget: Budget, row: CounterRow, window_start: float) -> float:
    counter = row.counter.rolled(window_start)
    return (counter.used + counter.reserved) / limit_of(budget, counter)


def _use(budget: Budget, rows: Sequence[CounterRow], window_start: float) -> str:
    """What was used, by the one who has used the largest share."""
    most = max(rows, key=lambda row: _share(budget, row, window_start))
    counter: Counter = most.counter.rolled(window_start)
    used, reserved, limit = map(budget.shown, (counter.used, counter.reserved, limit_of(budget, counter)))
    whose = f" by {most.key[1]}" if budget.each_user else ""
    return f"{used:.10g} of {limit:.10g} {budget.measure} are used{whose}, {reserved:.10g} reserved by calls under way"


def _is_priced(service: str, facts: Facts) -> bool:
    """Whether a price counts tokens or units of the service."""
    prices = facts.config.prices.get(service)
    tables = () if prices is None else (prices, *prices.models.values())
    return any(each.per_unit or each.per_million_tokens_in or each.per_million_tokens_out for each in tables)


def _is_rated(service: str, facts: Facts) -> bool:
    """Whether a rate of the service itself or of its pool counts units. Those of plans and groups concern all services,
    also such that have nothing to report."""
    rates = facts.rules.windows_of(service) if service in facts.rules.services else {}
    return any(rate.units is not None and of.kind not in ("plan", "group") for of, rate in rates.items())


def _budgets_of(service: str, facts: Facts) -> list[str]:
    """The budgets that name the service and count its tokens or units. Other services may have nothing to report."""
    budgets = budgets_of(facts.config).budgets.items()
    return [
        name for name, each in budgets if each.measure in (TOKENS, UNITS) and service in (each.services or frozenset())
    ]
