"""The doctor finds problems of a running system. For each problem it names the evidence and the command that fixes it.

`facts.py` collects the facts, and the checks of each topic read only these facts. Some findings may appear in a healthy
system for a moment, for example while a leader is being elected. Such a finding is reported only if a second
examination confirms it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fairlead.observe.doctor import database, managers, queues, schedules, servers, settings, usage, webhooks, workers
from fairlead.observe.doctor.facts import Facts, Sources, facts_of
from fairlead.observe.doctor.finding import Finding, Kind, Severity

CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    database.check,
    servers.check_redis,
    servers.check_objects,
    managers.check,
    workers.check,
    queues.check,
    servers.check_celery,
    servers.check_pubsub,
    servers.check_clocks,
    settings.check,
    settings.check_access,
    usage.check,
    webhooks.check,
    schedules.check,
)
TOPICS = (database, servers, managers, workers, queues, settings, usage, webhooks, schedules)
KINDS: dict[str, Kind] = {
    kind.code: kind for topic in TOPICS for kind in vars(topic).values() if isinstance(kind, Kind)
}

SECOND_LOOK = 1.2
"""Seconds until the second examination. Longer than an idle worker's pause, an election, or the start of a rebuild."""

_WORST_FIRST = tuple(Severity)


async def consult(sources: Sources) -> list[Finding]:
    """Examine the system, and examine it again if a finding may be transient. Returns the findings."""
    first = examine(await facts_of(sources))
    if not needs_second_look(first):
        return first
    await asyncio.sleep(SECOND_LOOK)
    return confirmed(first, examine(await facts_of(sources)))


def examine(facts: Facts) -> list[Finding]:
    """Run all checks on these facts. Returns the findings, most severe first."""
    return in_order(finding for check in CHECKS for finding in check(facts))


def confirmed(first: Iterable[Finding], second: Iterable[Finding]) -> list[Finding]:
    """The findings of the second examination, except transient findings that the first examination did not have."""
    seen = {finding.identity for finding in first}
    return [finding for finding in second if not KINDS[finding.code].passing or finding.identity in seen]


def needs_second_look(findings: Iterable[Finding]) -> bool:
    return any(KINDS[finding.code].passing for finding in findings)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: _WORST_FIRST.index(finding.severity))


def report(findings: Iterable[Finding]) -> dict[str, Any]:
    """The findings as the gateway and the command line return them. Notes do not count as problems."""
    ordered = in_order(findings)
    errors, warnings, notes = (sum(each.severity is severity for each in ordered) for severity in _WORST_FIRST)
    return {
        "well": not errors and not warnings,
        "errors": errors,
        "warnings": warnings,
        "notes": notes,
        "findings": [finding.as_dict() for finding in ordered],
    }
