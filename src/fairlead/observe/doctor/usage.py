"""Checks of the usage that calls report: values that were ignored, and prices that need values nobody reports."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.domain.calls import SUCCESS
from fairlead.observe.doctor.facts import Facts
from fairlead.observe.doctor.finding import Finding, Kind, Severity, counted

IGNORED = Kind("usage-ignored", Severity.WARNING, "reported usage is not credible")
MISSING = Kind("usage-missing", Severity.NOTE, "calls with a price do not report their usage")


def check(facts: Facts) -> Iterator[Finding]:
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
        prices = facts.config.prices.get(name)
        silent = total.calls - total.reported
        if prices is None or total.groups["outcome"] != SUCCESS or not silent:
            continue
        tables = (prices, *prices.models.values())
        if any(each.per_unit or each.per_million_tokens_in or each.per_million_tokens_out for each in tables):
            yield MISSING.found(
                f"{silent} of {counted(total.calls, 'call')} of {name} since yesterday reported neither tokens nor "
                "units, so they have no price for them",
                fix=f"let the endpoint report `usage`, or call `call.report_usage` in the handler of {name}",
                about=name,
                service=name,
                calls=total.calls,
                reported=total.reported,
            )
