"""What calls have used: from the usage ledger, the calls that rates still count when a queue is rebuilt; from its
output, a call that is cancelled before its upstream has reported."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence
from dataclasses import replace
from typing import NamedTuple

import orjson

from fairlead.artifacts.files import Files
from fairlead.artifacts.values import load_record
from fairlead.dispatch.output_log import OutputLog
from fairlead.dispatch.rates import Spent
from fairlead.domain.calls import CANCELLED, EXPIRED, HANDED_BACK, LOST, TIMED_OUT
from fairlead.domain.costs import used_units
from fairlead.domain.job import Job
from fairlead.domain.model_stats import StreamCount
from fairlead.domain.openai import estimated_tokens
from fairlead.domain.output import Position
from fairlead.domain.rules import Rules
from fairlead.domain.usage import Usage
from fairlead.domain.usage_report import CallRecord
from fairlead.errors import Unavailable
from fairlead.store.port import Store

FIRST_READ, MOST_READ = 1000, 1_000_000
SKEW = 10.0
"""Seconds by which the ledger's rows may be out of order, because transactions overlap."""
_STOPPED = frozenset({TIMED_OUT, CANCELLED, EXPIRED, LOST, HANDED_BACK})


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


async def spent_of(store: Store, calls: Sequence[CallRecord], rules: Rules) -> list[Spent]:
    """What the rates count for these calls, in the units of their services. A call that reported nothing counts the
    cost of its step, else the mean of the calls of its service that reported something. So does one that was stopped
    before it had reported all that it used, unless it reported more."""
    reports = [(call, _reported(call, rules)) for call in calls]
    needed = {call.job_id for call, units in reports if units is None or call.outcome in _STOPPED}
    jobs = await store.get_jobs(list(needed)) if needed else {}
    whole: dict[str, list[float]] = {}
    for call, units in reports:
        if units is not None and call.outcome not in _STOPPED:
            whole.setdefault(call.service, []).append(units)
    means = {service: sum(units) / len(units) for service, units in whole.items()}

    def units_of(call: CallRecord, reported: float | None) -> float:
        if reported is not None and call.outcome not in _STOPPED:
            return reported
        stated = _stated(jobs.get(call.job_id), call.step)
        return max(reported or 0.0, means.get(call.service, 0.0) if stated is None else stated)

    return [
        Spent(call.service, call.region, call.user_id, call.ended_at, units_of(call, units), call.plan, call.group)
        for call, units in reports
    ]


def _reported(call: CallRecord, rules: Rules) -> float | None:
    """What the call reported in the unit of its service, as when its slot was released."""
    service = rules.services.get(call.service)
    usage = Usage(call.tokens_in, call.tokens_out, units=call.units)
    return None if service is None else used_units(usage, service.cost_unit)


def _stated(job: Job | None, step: int) -> float | None:
    return None if job is None else replace(job, step=step).step_cost


class StreamedUsage(NamedTuple):
    """What this run of a job has used, counted in the output that it has streamed."""

    run: int
    usage: Usage

    def of(self, job: Job) -> Usage | None:
        """None if the job has another run by now."""
        return self.usage if self.run == job.run else None


async def streamed_usage(job_id: str, log: OutputLog, store: Store, files: Files | None) -> StreamedUsage | None:
    """What the newest run of a job of the OpenAI front has used, by the events of its stream and the estimated tokens
    of its prompt. None if no event has come: nothing shows then that the upstream has begun. Also None if the output is
    not available: that must not keep the slot of a client that has disconnected. Raises Unavailable if the database is
    not available."""
    run, count = 0, StreamCount()
    since: Position | None = None
    try:
        while page := await log.read(job_id, since):
            for entry in page:
                if entry.run != run:
                    run, count = entry.run, StreamCount()
                for text in map(orjson.loads, filter(None, entry.chunks)):
                    if isinstance(text, str):
                        count.add(text)
            since = Position(page[-1].run, page[-1].last + 1)
            await asyncio.sleep(0)  # a stream may be long, and the log in memory does not wait
    except Unavailable:
        return None
    usage = count.usage(await _prompt_tokens(job_id, store, files)) if count.began else None
    return None if usage is None else StreamedUsage(run, usage)


async def _prompt_tokens(job_id: str, store: Store, files: Files | None) -> int | None:
    record = await store.get(job_id)
    if record is not None and files is not None:
        record = await load_record(files, record)
    tokens = None if record is None else estimated_tokens(record.input_data, answers=False)
    return None if tokens is None else round(tokens)
