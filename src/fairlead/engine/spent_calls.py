"""Reads from the usage ledger the calls that rates still count when a queue is rebuilt."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from fairlead.dispatch.rates import Spent
from fairlead.domain.job import Job
from fairlead.domain.rules import Rules
from fairlead.domain.usage_report import CallRecord
from fairlead.store.port import Store

FIRST_READ, MOST_READ = 1000, 1_000_000
SKEW = 10.0
"""Seconds by which the ledger's rows may be out of order, because transactions overlap."""


def longest_window(rules: Rules, scopes: Container[str]) -> float:
    """The longest `per` of the rates in these scopes, in seconds; 0 if there is no rate."""
    counted = [rules.windows_of(name) for name, service in rules.services.items() if service.scope in scopes]
    return max((rate.per for rates in counted for rate in rates.values()), default=0.0)


async def calls_since(store: Store, since: float) -> list[CallRecord]:
    """The calls that ended after `since`. The ledger has no index by time, so its newest rows are read, more and more
    of them until they reach back far enough."""
    limit = FIRST_READ
    while True:
        calls = await store.latest_calls(limit)
        if len(calls) < limit or calls[-1].ended_at < since - SKEW or limit >= MOST_READ:
            return [call for call in calls if call.ended_at >= since]
        limit *= 8


async def spent_of(store: Store, calls: Sequence[CallRecord]) -> list[Spent]:
    """What the rates count for these calls. A call that reported nothing, because it failed or was lost, counts the
    cost of its step, else the mean of the calls of its service that reported something."""
    needed = {call.job_id for call in calls if _reported(call) is None}
    jobs = await store.get_jobs(list(needed)) if needed else {}
    reports: dict[str, list[float]] = {}
    for call in calls:
        if (units := _reported(call)) is not None:
            reports.setdefault(call.service, []).append(units)
    means = {service: sum(units) / len(units) for service, units in reports.items()}

    def units_of(call: CallRecord) -> float:
        found = (_reported(call), _stated(jobs.get(call.job_id), call.step), means.get(call.service))
        return next((units for units in found if units is not None), 0.0)

    return [
        Spent(call.service, call.region, call.user_id, call.ended_at, units_of(call), call.plan, call.group)
        for call in calls
    ]


def _reported(call: CallRecord) -> float | None:
    if call.units is None and call.tokens_in is None and call.tokens_out is None:
        return None
    return call.units or float((call.tokens_in or 0) + (call.tokens_out or 0))


def _stated(job: Job | None, step: int) -> float | None:
    return None if job is None else replace(job, step=step).step_cost
