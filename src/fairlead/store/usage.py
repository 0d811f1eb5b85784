"""Writes, reads and rows of the usage ledger (docs/adr/0028), shared by both engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fairlead.domain.calls import OUTCOMES, CallEnd
from fairlead.domain.prices import Prices
from fairlead.domain.usage_report import CallRecord, UsageQuery, UsageTotal

HOUR, DAY = 3600, 86400
OUTCOME_CODES = {outcome: code for code, outcome in enumerate(OUTCOMES)}
NO_OUTCOME = -1


@dataclass(frozen=True, slots=True)
class RollUpUsage:
    """Add ledger rows that were not added yet, about `limit` of them, to the totals of their hour and day. Returns the
    number of added rows."""

    limit: int


@dataclass(frozen=True, slots=True)
class PruneUsage:
    """Delete ledger rows that are in the totals and ended before `rows_before`, at most `limit`, and the totals of
    hours and days that ended before these times. Returns the number of deleted rows."""

    rows_before: float
    hours_before: float
    days_before: float
    limit: int


KINDS: tuple[type, ...] = (RollUpUsage, PruneUsage)
"""The writes of the ledger, in the order in which a commit applies them, after all moves."""


class UsageReads(Protocol):
    async def usage(self, query: UsageQuery) -> list[UsageTotal]:
        """The totals that the query asks for, ordered by time and then by its groups. Rows that are not rolled up yet
        are included."""
        ...

    async def latest_calls(self, limit: int, *, user_id: str | None = None) -> list[CallRecord]:
        """The ledger rows that were written last, newest first. With `user_id`, only this user's among the last
        `limit` rows."""
        ...


def reported_row(call: CallEnd, prices: Prices) -> tuple[Any, ...] | None:
    """The columns of a ledger row that most calls leave empty: plan, group, model, tokens in, out and cached, units,
    ignored values, price. None if they are all empty."""
    price, usage = prices.amount(call), call.usage
    plan, group = call.job.plan or prices.plans.get(call.job.user_id), call.job.group
    if usage is None:
        empty = price is None and plan is None and group is None
        return None if empty else (plan, group, None, None, None, None, None, None, price)
    return (
        plan,
        group,
        usage.model,
        usage.tokens_in,
        usage.tokens_out,
        usage.tokens_cached,
        usage.units,
        usage.ignored or None,
        price,
    )


NOT_REPORTED = (None,) * 9


def prune_row(prune: PruneUsage) -> tuple[Any, ...]:
    """The times of a PruneUsage as the stores compare them: µs, and numbers of hours and days."""
    hours, days = int(prune.hours_before // HOUR), int(prune.days_before // DAY)
    return round(prune.rows_before * 1e6), hours, days, prune.limit


def query_row(query: UsageQuery) -> tuple[Any, ...]:
    """The parameters of the statement `usage_totals`: span, first and last bucket, how buckets are shown, the grouping
    as bits, filters, and the key of the last row of the previous page."""
    span = HOUR if query.interval == "hour" else DAY
    *filters, outcome = (query.filters.get(name) for name in UsageQuery.GROUPS)
    code = None if outcome is None else OUTCOME_CODES[outcome]
    mask = sum(1 << bit for bit, name in enumerate(UsageQuery.GROUPS) if name in query.group_by)
    after = query.after or (None,) * (1 + len(UsageQuery.GROUPS))
    first, last = int(query.start // span), int(-(-query.end // span))
    return span, first, last, UsageQuery.INTERVALS.index(query.interval), mask, *filters, code, *after, query.limit


def total_of(row: Sequence[Any], query: UsageQuery) -> UsageTotal:
    bucket, *rest = row
    names, sums = rest[: len(UsageQuery.GROUPS)], rest[len(UsageQuery.GROUPS) :]
    calls, waited, slot, tokens_in, tokens_out, tokens_cached, units, ignored, reported, price = sums
    values: dict[str, str] = dict(zip(UsageQuery.GROUPS, names, strict=True))
    if names[-1] != NO_OUTCOME:
        values["outcome"] = OUTCOMES[names[-1]]
    return UsageTotal(
        key=(bucket, *names),
        start=query.start_of(bucket),
        groups={name: values[name] for name in query.group_by},
        calls=calls,
        waited=waited / 1e6,
        seconds=slot / 1e6,
        tokens_in=int(tokens_in),
        tokens_out=int(tokens_out),
        tokens_cached=int(tokens_cached),
        units=units,
        ignored=int(ignored),
        reported=int(reported),
        price=int(price),
    )


def call_of(row: Sequence[Any]) -> CallRecord:
    ended_at, *ids, outcome, waited, slot, plan, group, model, tokens_in, tokens_out, cached, units, ignored, price = (
        row
    )
    job_id, run, step, attempt, user_id, feature_name, service, region = ids
    return CallRecord(
        job_id=job_id,
        run=run,
        step=step,
        attempt=attempt,
        user_id=user_id,
        plan=plan,
        group=group,
        feature_name=feature_name,
        service=service,
        model=model,
        region=region,
        outcome=OUTCOMES[outcome],
        ended_at=ended_at / 1e6,
        waited=waited / 1e6,
        seconds=slot / 1e6,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        tokens_cached=cached,
        units=units,
        ignored=ignored or 0,
        price=price,
    )
