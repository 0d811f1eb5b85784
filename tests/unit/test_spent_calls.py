"""What the rates count for earlier calls when a queue is rebuilt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from fairlead.domain.job import Job
from fairlead.domain.rules import Rules, ServiceRules
from fairlead.domain.usage_report import CallRecord
from fairlead.engine.spent_calls import spent_of
from fairlead.store.port import Store


class Jobs:
    async def get_jobs(self, job_ids: Sequence[str]) -> dict[str, Job]:
        stated = Job("stated", "s", "ada", ("s",), cost=50.0)
        computed = Job("computed", "s", "ada", ("s", "t"), step=1, costs=(70.0, 5.0))
        return {job.id: job for job in (stated, computed) if job.id in job_ids}


def call(job_id: str, outcome: str, **used: Any) -> CallRecord:
    fields: dict[str, Any] = {"tokens_in": None, "tokens_out": None, "tokens_cached": None, "units": None} | used
    return CallRecord(
        job_id,
        1,
        0,
        1,
        "ada",
        None,
        None,
        "s",
        "s",
        None,
        None,
        outcome,
        9.0,
        0.0,
        1.0,
        **fields,
        ignored=0,
        price=None,
    )


async def units(*calls: CallRecord, unit: str = "tokens") -> list[float]:
    rules = Rules({"s": ServiceRules("s", 1, cost_unit=unit)})
    return [spent.units for spent in await spent_of(cast("Store", Jobs()), calls, rules)]


async def test_a_call_that_reported_nothing_counts_what_it_had_reserved() -> None:
    reported = [call("a", "success", tokens_in=30, tokens_out=10), call("b", "success", tokens_out=20)]
    assert await units(*reported) == [40.0, 20.0]
    assert await units(call("stated", "lost"), *reported) == [50.0, 40.0, 20.0]
    assert await units(call("computed", "lost"), *reported) == [70.0, 40.0, 20.0], "the cost of that step"
    assert await units(call("gone", "lost"), *reported) == [30.0, 40.0, 20.0], "the mean, if the job is not known"
    assert await units(call("gone", "lost")) == [0.0]
    assert await units(call("stated", "success", tokens_in=0, tokens_out=0)) == [0.0], "nothing was used"


async def test_a_call_counts_what_it_reported_in_the_unit_of_its_service() -> None:
    both = call("a", "success", tokens_in=30, tokens_out=10, units=2.0)
    assert await units(both) == [40.0]
    assert await units(both, unit="images") == [2.0]
    assert await units(call("a", "success", units=2.0), both) == [40.0, 40.0], "no tokens: the mean"
    assert await units(call("stated", "success", tokens_out=9000), both, unit="images") == [50.0, 2.0], "no images"
    assert await units(call("a", "success", tokens_out=9, units=0.0), unit="images") == [0.0]


async def test_a_call_that_was_stopped_counts_at_least_what_it_had_reserved() -> None:
    for outcome in ("cancelled", "timeout", "expired", "lost", "handed_back"):
        assert await units(call("stated", outcome, tokens_out=3)) == [50.0], outcome
        assert await units(call("stated", outcome, tokens_out=60)) == [60.0], outcome
    whole, part = call("a", "success", tokens_out=40), call("gone", "cancelled", tokens_out=2)
    assert await units(whole, part) == [40.0, 40.0], "the part does not count in the mean"
    assert await units(call("stated", "failed", tokens_out=3)) == [3.0]
