"""The reasons of a wait as text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.dispatch.port import Lease, ServiceSnapshot
from fairlead.dispatch.rates import RateUse
from fairlead.domain.fair_share import QueuePosition
from fairlead.domain.groups import GroupAhead, GroupRules
from fairlead.domain.job import Hold, Job, Priority
from fairlead.domain.processes import ProcessRecord
from fairlead.domain.rates import Rate
from fairlead.domain.rules import Order, Rules, ServiceRules
from fairlead.domain.views import WorkerCounts
from fairlead.observe.wait_reasons import SlotUse, queued, rates_full

JOB = Job("job", "s", "ada", ("s",))
REGIONAL = ServiceRules("s", limit=9, regions={"eu": 1, "us": 1})
WORKER = ProcessRecord("w", ("worker",), ("s",), ("high", "medium"), 4, "host", 1, "0.1", 0.0)


def slots(*regions: str, held: str | None = None) -> SlotUse:
    leases = [Lease(f"1:{n}", f"j{n}", 0, 1, "s", "bob", "w", 10.0, 25.0, region) for n, region in enumerate(regions)]
    holds = [Hold("gone", "s", held, 60.0, "h")] if held else []
    return SlotUse.of("s", [ServiceSnapshot("s", 9, 0, 0, False, {}, leases, holds, {}, None)])


def full(job: Job, seen: SlotUse) -> list[str]:
    return [
        reason.details["region"] for reason, _ in seen.full(job, Rules({"s": REGIONAL})) if reason.code == "region_full"
    ]


def test_a_bound_step_waits_for_its_own_region_only() -> None:
    bound = replace(JOB, region="eu")
    assert full(bound, slots("us")) == []
    assert full(bound, slots("eu")) == ["eu"]
    assert full(bound, slots("us", held="eu")) == ["eu"]


def test_any_other_step_waits_when_no_region_has_a_slot() -> None:
    assert full(JOB, slots("eu")) == []
    assert full(JOB, slots("eu", "us")) == ["eu", "us"]
    retry = replace(JOB, region="eu", attempt=1)
    assert full(retry, slots("eu")) == [], "a retry may go anywhere"


def test_a_full_pool_keeps_a_step_from_the_regions_that_count_in_it() -> None:
    partly = replace(REGIONAL, regions={"eu": 1, "us": 2}, pool="gpu", pooled_regions=("us",))
    rules = Rules({"s": partly, "t": ServiceRules("t", limit=9, pool="gpu")}, {"gpu": 1})

    def codes(job: Job, *taken: str) -> list[str]:
        return [reason.code for reason, _ in slots(*taken).full(job, rules)]

    assert codes(JOB, "us") == [], "eu has a slot, and needs none of the pool"
    assert codes(JOB, "eu") == [], "the pool has one"
    assert codes(JOB, "us", "eu") == ["pool_full", "region_full"]
    assert codes(replace(JOB, region="us"), "us") == ["pool_full"]
    assert codes(replace(JOB, region="eu"), "us") == []


def test_a_limit_of_zero_is_named() -> None:
    ((reason, _),) = slots().full(JOB, Rules({"s": ServiceRules("s", limit=0)}))
    assert (reason.code, reason.message) == ("service_full", "the limit of s is 0")


@pytest.mark.parametrize(
    ("band", "more", "code"),
    [
        (Priority.HIGH, {}, None),
        (Priority.LOW, {}, "no_worker"),
        (None, {}, None),
        (Priority.HIGH, {"draining": True}, "no_worker"),
        (Priority.HIGH, {"drain_asked": True}, "no_worker"),
        (Priority.HIGH, {"running": 4}, "workers_full"),
    ],
)
def test_only_workers_that_would_take_the_job_count(
    band: Priority | None, more: dict[str, int], code: str | None
) -> None:
    workers = WorkerCounts([replace(WORKER, **more)], band)  # type: ignore[arg-type]
    reason = workers.reason("s", slots_are_free=True, private=True)
    assert (reason.code if reason is not None else None) == code
    assert "'w'" not in str(reason), "names are hidden from users"


def test_one_worker_with_budget_is_enough() -> None:
    busy = replace(WORKER, running=4)
    assert WorkerCounts([busy, WORKER], None).reason("s", slots_are_free=True, private=False) is None
    assert WorkerCounts([busy], None).reason("s", slots_are_free=False, private=False) is None, (
        "it would be full anyway"
    )


def test_the_jobs_ahead_are_described() -> None:
    place = QueuePosition(9, 0.0, 1, 1.0, ahead_retries=2, ahead_bands=1, ahead_own=1)
    assert queued(JOB, place, ServiceRules("s", 1, order=Order.FIFO)).message == (
        "the job is queued behind 8 jobs: 2 retries, which go first, 1 of higher priority, "
        "4 of other users that came first, 1 of the same user"
    )
    assert queued(JOB, QueuePosition(2, 0.0, 1, 1.0, ahead_own=1), ServiceRules("s", 1)).message == (
        "the job is queued behind 1 job: 1 of the same user"
    )


def test_a_step_that_needs_more_units_than_are_left_waits_for_the_rate() -> None:
    use = RateUse("service", "s", Rate(None, 100.0, 30.0), 1, 60.0)
    seen = ServiceSnapshot("s", 9, 0, 0, False, {}, (), (), {}, None, rates=(use,))
    first = replace(QueuePosition(1, 0.0, 9, 1.0, 9), rate_wait=12.0)
    rules = Rules({"s": ServiceRules("s", limit=9, rate=use.rate, cost_unit="tokens")})
    (reason,) = rates_full(JOB, rules, seen, first, 1000.0)
    assert (reason.code, reason.details["of"]) == ("rate_full", "service")
    assert reason.details["until"] == "1970-01-01T00:16:52.000Z"
    assert "(100 tokens per 30 s) has fewer tokens left than the next step needs" in reason.message
    assert rates_full(JOB, rules, seen, replace(first, free=0), 1000.0) == [], "it waits for a slot"
    assert rates_full(JOB, rules, seen, replace(first, rate_wait=0.0), 1000.0) == []


def test_the_rates_of_the_plan_and_the_group_of_a_user_are_named() -> None:
    groups = {"acme": GroupRules(rate=Rate(5)), "acme/red": GroupRules(), "other": GroupRules(rate=Rate(1))}
    rules = Rules({"s": ServiceRules("s", 9, user_rate=Rate(9))}, groups=groups, plan_rates={"free": Rate(2, per=30.0)})
    full = RateUse("group", "other", Rate(1), 1, 0.0, until=None)
    seen = ServiceSnapshot("s", 9, 0, 0, False, {}, (), (), {}, None, rates=(full,))
    ahead = (GroupAhead("acme", 0, rate_wait=4.0), GroupAhead("acme/red", 0))
    place = replace(QueuePosition(1, 0.0, 9, 1.0, 9), user_rate_wait=2.0, groups=ahead)
    of_plan, of_group = rates_full(replace(JOB, plan="free"), rules, seen, place, 1000.0)
    assert of_plan.message.startswith(
        "the rate of each user of the plan free on s (2 requests per 30 s) is used up for this job until"
    )
    assert (of_plan.details["of"], of_plan.details["plan"]) == ("user", "free")
    assert of_group.message.startswith(
        "the rate of the group acme on s (5 requests per 60 s) is used up for this job until 1970"
    )
    assert of_group.details["until"] == "1970-01-01T00:16:44.000Z"
    (of_user, _) = rates_full(JOB, rules, seen, place, 1000.0)
    assert "each user on s (9 requests per 60 s)" in of_user.message
    assert (place.plain_wait, place.starts_at_once) == (4.0, False)
