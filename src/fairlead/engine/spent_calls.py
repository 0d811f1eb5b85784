"""Reads from the usage ledger the calls that rates still count when a queue is rebuilt."""

from __future__ import annotations

from collections.abc import Container

from fairlead.dispatch.rates import Spent
from fairlead.domain.rates import Rate
from fairlead.domain.rules import Rules
from fairlead.domain.usage_report import CallRecord
from fairlead.store.port import Store

FIRST_READ, MOST_READ = 1000, 1_000_000
SKEW = 10.0
"""Seconds by which the ledger's rows may be out of order, because transactions overlap."""


def longest_window(rules: Rules, scopes: Container[str]) -> float:
    """The longest `per` of the rates in these scopes, in seconds; 0 if there is no rate."""
    rates: list[Rate | None] = []
    for service in rules.services.values():
        if service.scope in scopes:
            rates += [service.rate, service.user_rate, *service.region_rates.values()]
            rates.append(rules.pool_rates.get(service.pool or ""))
    return max((rate.per for rate in rates if rate is not None), default=0.0)


async def calls_since(store: Store, since: float) -> list[CallRecord]:
    """The calls that ended after `since`. The ledger has no index by time, so its newest rows are read, more and more
    of them until they reach back far enough."""
    limit = FIRST_READ
    while True:
        calls = await store.latest_calls(limit)
        if len(calls) < limit or calls[-1].ended_at < since - SKEW or limit >= MOST_READ:
            return [call for call in calls if call.ended_at >= since]
        limit *= 8


def spent_of(call: CallRecord) -> Spent:
    tokens = (call.tokens_in or 0) + (call.tokens_out or 0)
    return Spent(call.service, call.region, call.user_id, call.ended_at, call.units or float(tokens))
