"""What the rates count for earlier calls when a queue is rebuilt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from fairlead.domain.job import Job
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


async def units(*calls: CallRecord) -> list[float]:
    return [spent.units for spent in await spent_of(cast("Store", Jobs()), calls)]


async def test_a_call_that_reported_nothing_counts_what_it_had_reserved() -> None:
    reported = [call("a", "success", tokens_in=30, tokens_out=10), call("b", "success", units=20.0)]
    assert await units(*reported) == [40.0, 20.0]
    assert await units(call("stated", "lost"), *reported) == [50.0, 40.0, 20.0]
    assert await units(call("computed", "lost"), *reported) == [70.0, 40.0, 20.0], "the cost of that step"
    assert await units(call("gone", "lost"), *reported) == [30.0, 40.0, 20.0], "the mean, if the job is not known"
    assert await units(call("gone", "lost")) == [0.0]
    assert await units(call("stated", "success", tokens_in=0, tokens_out=0)) == [0.0], "nothing was used"
