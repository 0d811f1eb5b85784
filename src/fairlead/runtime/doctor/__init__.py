"""The doctor: what is wrong with this line, how one can tell, and which command mends it.

`gather.py` collects the facts of one moment; each topic's file has checks that read nothing but those. What a line that
is well may show for a moment (a leader that is just being elected) counts only if it is there at a second look too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from fairlead.runtime.doctor import (
    access,
    celery,
    clocks,
    database,
    lines,
    managers,
    messages,
    redis,
    settings,
    unreached,
    workers,
)
from fairlead.runtime.doctor.facts import Facts
from fairlead.runtime.doctor.finding import Finding, Kind, Severity
from fairlead.runtime.doctor.gather import Sources, facts_of

TOPICS: tuple[ModuleType, ...] = (
    database,
    redis,
    managers,
    workers,
    lines,
    celery,
    messages,
    clocks,
    settings,
    access,
)
CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = tuple(topic.check for topic in TOPICS)
KINDS: dict[str, Kind] = {
    kind.code: kind for topic in (unreached, *TOPICS) for kind in vars(topic).values() if isinstance(kind, Kind)
}

SECOND_LOOK = 1.2
"""Seconds: longer than a worker sleeps, an election lasts, or a leader takes to see that a line must be rebuilt."""

_WORST_FIRST = tuple(Severity)


async def consult(sources: Sources) -> list[Finding]:
    """Look, and look again if what was seen may have been passing."""
    first = examine(await facts_of(sources))
    if not needs_second_look(first):
        return first
    await asyncio.sleep(SECOND_LOOK)
    return confirmed(first, examine(await facts_of(sources)))


def examine(facts: Facts) -> list[Finding]:
    """Everything that these facts show, worst first."""
    return in_order(finding for check in CHECKS for finding in check(facts))


def confirmed(first: Iterable[Finding], second: Iterable[Finding]) -> list[Finding]:
    """Of two looks at the same line: what the second saw, without what was passing."""
    seen = {finding.identity for finding in first}
    return [finding for finding in second if not KINDS[finding.code].passing or finding.identity in seen]


def needs_second_look(findings: Iterable[Finding]) -> bool:
    return any(KINDS[finding.code].passing for finding in findings)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: _WORST_FIRST.index(finding.severity))


def report(findings: Iterable[Finding]) -> dict[str, Any]:
    """As the gateway and the command line answer. Notes are worth knowing, and no trouble."""
    ordered = in_order(findings)
    errors, warnings, notes = (sum(each.severity is severity for each in ordered) for severity in _WORST_FIRST)
    return {
        "well": not errors and not warnings,
        "errors": errors,
        "warnings": warnings,
        "notes": notes,
        "findings": [finding.as_dict() for finding in ordered],
    }
