"""The contract of every dispatcher: failing regions, and the choice among regions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.dispatch.port import Lease, RegionSnapshot
from fairlead.domain.rates import Rate
from fairlead.domain.rules import ServiceRules, lane_of
from tests.contract.dispatchers import QueueHarness

RULES = ServiceRules("s", limit=9, regions={"eu": 2, "us": 2}, retries_first=True, breaker_failures=2, breaker_rest=8.0)


async def opened(queue: QueueHarness, rules: ServiceRules = RULES) -> None:
    await queue.open(rules)


async def call(queue: QueueHarness, region: str) -> Lease:
    """Start a call in this region."""
    await queue.offer(f"job {queue.seq}", region=region)
    (lease,) = await queue.claim(1, regions=frozenset({region}))
    assert lease.region == region
    return lease


async def fail(queue: QueueHarness, region: str, times: int = 1) -> None:
    for _ in range(times):
        await queue.end(await call(queue, region), after=1.0, failed=True)


async def region(queue: QueueHarness, name: str) -> RegionSnapshot:
    return next(each for each in (await queue.see()).regions if each.region == name)


async def test_a_region_that_keeps_failing_rests_and_others_take_the_work(queue: QueueHarness) -> None:
    await opened(queue)
    await fail(queue, "us", 2)
    assert (await region(queue, "us")).resting_until == queue.clock.now + 8
    await queue.offer_all("abc")
    await queue.offer("bound", region="us")
    assert [(lease.job_id, lease.region) for lease in await queue.claim(9)] == [("a", "eu"), ("b", "eu")]
    assert (await queue.dispatcher.positions(["bound"]))["bound"].free == 0


async def test_a_success_resets_the_failure_count(queue: QueueHarness) -> None:
    await opened(queue)
    await fail(queue, "us")
    await queue.end(await call(queue, "us"), failed=False)
    await fail(queue, "us")
    seen = await region(queue, "us")
    assert (seen.failures, seen.resting_until, seen.probing) == (1, None, False)


async def test_an_unknown_outcome_is_not_a_failure(queue: QueueHarness) -> None:
    await opened(queue)
    for refund in (False, True, False):
        await queue.end(await call(queue, "us"), refund=refund, failed=True if refund else None)
    assert (await region(queue, "us")).failures == 0


@pytest.mark.parametrize("rate", [None, Rate(requests=99, per=640.0)])
async def test_after_its_rest_exactly_one_call_probes_a_region(queue: QueueHarness, rate: Rate | None) -> None:
    await opened(queue, replace(RULES, rate=rate))
    await fail(queue, "us", 2)
    await queue.offer_all("abc", region="us")
    queue.clock.advance(8 - 1 / 64)
    assert await queue.claimed(9) == []
    queue.clock.advance(1 / 64)
    (probe,) = await queue.claim(9)
    assert (await region(queue, "us")).probing
    assert await queue.claimed(9) == []
    await queue.end(probe, failed=False)
    assert (await region(queue, "us")).resting_until is None
    assert await queue.claimed(9) == ["b", "c"]


async def test_a_region_whose_probe_fails_rests_twice_as_long_up_to_ten_times(queue: QueueHarness) -> None:
    await opened(queue)
    await fail(queue, "us", 2)
    for rest in (16, 32, 64, 80, 80):
        until = (await region(queue, "us")).resting_until
        assert until is not None
        queue.clock.advance(until - queue.clock.now)
        await fail(queue, "us")
        assert (await region(queue, "us")).resting_until == queue.clock.now + rest
    queue.clock.advance(80)
    await queue.end(await call(queue, "us"), failed=False)
    await fail(queue, "us", 2)
    assert (await region(queue, "us")).resting_until == queue.clock.now + 8


async def test_calls_that_began_before_the_rest_do_not_count(queue: QueueHarness) -> None:
    await opened(queue, ServiceRules("s", limit=9, regions={"us": 4}, breaker_failures=2, breaker_rest=8.0))
    late = [await call(queue, "us"), await call(queue, "us")]
    await fail(queue, "us", 2)
    until = (await region(queue, "us")).resting_until
    await queue.end(late[0], after=1.0, failed=True)
    await queue.end(late[1], after=1.0, failed=False)
    assert (await region(queue, "us")).resting_until == until


async def test_another_call_probes_if_the_outcome_of_the_probe_is_unknown(queue: QueueHarness) -> None:
    await opened(queue)
    await fail(queue, "us", 2)
    await queue.offer_all("ab", region="us")
    queue.clock.advance(8)
    await queue.end(await queue.take())
    assert await queue.claimed(9) == ["b"]


async def test_a_lane_turns_runnable_when_the_rest_is_over(queue: QueueHarness) -> None:
    await opened(queue)
    await fail(queue, "us", 2)
    await queue.offer("a", region="us")
    queue.wakeups()
    queue.clock.advance(8)
    assert await queue.claimed(9) == ["a"]


async def test_without_a_breaker_no_region_rests(queue: QueueHarness) -> None:
    await opened(queue, ServiceRules("s", limit=9, regions={"us": 1}))
    await fail(queue, "us", 9)
    assert await queue.offer("a")
    assert await queue.claimed() == ["a"]


async def test_removing_the_breaker_ends_the_rest(queue: QueueHarness) -> None:
    await opened(queue)
    await fail(queue, "us", 2)
    await queue.offer_all("ab", region="us")
    await queue.change("s", breaker_failures=0)
    assert await queue.claimed(9) == ["a", "b"]


async def test_other_rule_changes_do_not_end_a_rest(queue: QueueHarness) -> None:
    await opened(queue)
    await fail(queue, "us", 2)
    await queue.offer("a", region="us")
    await queue.change("s", limit=4)
    assert await queue.claimed(9) == []


async def test_a_rebuild_forgets_rests(queue: QueueHarness) -> None:
    await opened(queue)
    await fail(queue, "us", 2)
    await queue.dispatcher.close_scope("service:s", 2)
    await queue.dispatcher.open_scope("service:s", 2)
    await fail(queue, "us", 2)
    assert (await region(queue, "us")).resting_until == queue.clock.now + 8


# ---------------------------------------------------------------- which region


async def test_unbound_work_prefers_the_faster_region(queue: QueueHarness) -> None:
    await opened(queue)
    await queue.end(await call(queue, "eu"), after=4.0, failed=False)
    await queue.end(await call(queue, "us"), after=1.0, failed=False)
    await queue.offer_all("abc")
    assert [lease.region for lease in await queue.claim(9)] == ["us", "us", "eu"]
    assert [(await region(queue, name)).latency for name in ("eu", "us")] == [4.0, 1.0]


async def test_unbound_work_prefers_a_healthy_region_to_a_fast_one(queue: QueueHarness) -> None:
    await opened(queue)
    await queue.end(await call(queue, "eu"), after=4.0, failed=False)
    await queue.end(await call(queue, "us"), after=1.0, failed=False)
    await fail(queue, "us")
    await queue.offer_all("abc")
    assert [lease.region for lease in await queue.claim(9)] == ["eu", "eu", "us"]


async def test_a_region_that_failed_once_is_avoided_no_longer_than_a_rest(queue: QueueHarness) -> None:
    await opened(queue)
    await queue.end(await call(queue, "eu"), after=4.0, failed=False)
    await queue.end(await call(queue, "us"), after=1.0, failed=False)
    await fail(queue, "us")
    await queue.offer_all("ab")
    queue.clock.advance(8 - 1 / 64)
    assert (await queue.take()).region == "eu"
    queue.clock.advance(1 / 64)
    assert (await queue.take()).region == "us"


async def test_a_success_makes_an_avoided_region_eligible_at_once(queue: QueueHarness) -> None:
    await opened(queue)
    await queue.end(await call(queue, "eu"), after=4.0, failed=False)
    await fail(queue, "us")
    await queue.end(await call(queue, "us"), after=1.0, failed=False)
    await queue.offer("a")
    assert (await queue.take()).region == "us"


async def test_the_first_call_after_a_rest_probes_the_region_though_others_have_slots(queue: QueueHarness) -> None:
    await opened(queue)
    await queue.end(await call(queue, "eu"), after=1.0, failed=False)
    await fail(queue, "us", 2)
    queue.clock.advance(8)
    await queue.offer_all("abc")
    assert [lease.region for lease in await queue.claim(2)] == ["us", "eu"]
    assert (await region(queue, "us")).probing


async def test_a_retry_probes_a_region_only_when_no_other_has_a_slot(queue: QueueHarness) -> None:
    await opened(queue)
    await fail(queue, "us", 2)
    queue.clock.advance(8)
    await queue.offer_all("abc", rank=0)
    assert [lease.region for lease in await queue.claim(9)] == ["eu", "eu", "us"]


async def test_failed_calls_do_not_count_towards_the_latency(queue: QueueHarness) -> None:
    await opened(queue)
    await queue.end(await call(queue, "us"), after=4.0, failed=False)
    await fail(queue, "us")
    assert (await region(queue, "us")).latency == 4.0


async def test_a_region_snapshot_counts_the_steps_waiting_for_it(queue: QueueHarness) -> None:
    await opened(queue, ServiceRules("s", limit=0, regions={"eu": 1, "us": 2}, retries_first=True))
    await queue.offer_all("ab", region="us")
    await queue.offer("c", region="eu+us")
    await queue.offer("d", region="us", rank=0)
    await queue.offer_all("efg")
    await queue.offer("h", rank=0)
    seen = await queue.see()
    assert [(each.region, each.limit, each.waiting, each.retrying) for each in seen.regions] == [
        ("eu", 1, 1, 0),
        ("us", 2, 3, 1),
    ]
    assert seen.unbound == (3, 1)


PREFERS_US = lane_of(None, prefers="us")


async def test_a_step_waits_for_the_region_it_prefers_while_that_one_works(queue: QueueHarness) -> None:
    await opened(queue)
    await queue.offer_all("abc", region=PREFERS_US)
    assert [(lease.job_id, lease.region) for lease in await queue.claim(9)] == [("a", "us"), ("b", "us")]
    assert (await queue.dispatcher.positions(["c"]))["c"].free == 0
    assert (await region(queue, "us")).waiting == 1


async def test_a_step_that_prefers_a_region_goes_elsewhere_at_once_while_that_one_rests(queue: QueueHarness) -> None:
    await opened(queue)
    await queue.offer_all("abcd", region=PREFERS_US)
    await queue.offer("strict", region="us")
    for lease in await queue.claim(2):
        await queue.end(lease, after=1.0, failed=True)
    position = (await queue.dispatcher.positions(["c", "strict"]))["c"]
    assert (position.free, position.slots) == (2, 4)
    assert ((await region(queue, "us")).waiting, (await queue.see()).unbound) == (1, (2, 0))
    assert [(lease.job_id, lease.region) for lease in await queue.claim(9)] == [("c", "eu"), ("d", "eu")]
    strict = (await queue.dispatcher.positions(["strict"]))["strict"]
    assert (strict.free, strict.rests) == (0, 8.0)
    wait = strict.estimated_wait()
    assert wait is not None
    assert wait[0] >= 7.0


async def test_workers_are_woken_for_steps_that_may_go_elsewhere_when_their_region_rests(queue: QueueHarness) -> None:
    await opened(queue)
    await queue.offer_all("abc", region=PREFERS_US)
    leases = await queue.claim(9)
    queue.wakeups()
    for lease in leases:
        await queue.end(lease, after=1.0, failed=True)
    assert {"s"} in queue.wakeups()


async def test_one_step_probes_its_preferred_region_after_the_rest_and_the_next_avoids_it(queue: QueueHarness) -> None:
    await opened(queue)
    await fail(queue, "us", 2)
    queue.clock.now += 8
    await queue.offer_all("ab", region=PREFERS_US)
    assert [(lease.job_id, lease.region) for lease in await queue.claim(9)] == [("a", "us"), ("b", "eu")]


async def test_a_step_that_prefers_a_region_stays_within_the_allowed_ones(queue: QueueHarness) -> None:
    await opened(queue, replace(RULES, regions={"ap": 2, "eu": 2, "us": 2}))
    await fail(queue, "us", 2)
    await queue.offer_all("ab", region=lane_of(["us", "ap"], prefers="us"))
    assert [(lease.job_id, lease.region) for lease in await queue.claim(9)] == [("a", "ap"), ("b", "ap")]


async def test_a_step_that_prefers_a_removed_region_goes_elsewhere(queue: QueueHarness) -> None:
    await opened(queue)
    await queue.offer("a", region=PREFERS_US)
    await queue.configure(replace(RULES, regions={"eu": 2}))
    assert [(lease.job_id, lease.region) for lease in await queue.claim(9)] == [("a", "eu")]


async def test_a_worker_of_another_region_takes_steps_that_prefer_a_region_without_workers(queue: QueueHarness) -> None:
    await opened(queue)
    await queue.offer_all("ab", region=PREFERS_US)
    await queue.offer("strict", region="us")
    bound = {"regions": frozenset({"eu"})}
    assert await queue.claim(9, **bound) == []
    assert await queue.claim(9, **bound, unserved=frozenset({("other", "us"), ("s", "eu")})) == []
    leases = await queue.claim(9, **bound, unserved=frozenset({("s", "us"), ("other", "us")}))
    assert [(lease.job_id, lease.region) for lease in leases] == [("a", "eu"), ("b", "eu")]


async def test_steps_that_prefer_a_full_region_without_workers_go_to_another_one(queue: QueueHarness) -> None:
    await opened(queue)
    await queue.change("s", regions={"us": 1, "eu": 2})
    await queue.offer_all("ab", region=PREFERS_US)
    assert [lease.region for lease in await queue.claim(9, worker="lost")] == ["us"]
    leases = await queue.claim(9, regions=frozenset({"eu"}), unserved=frozenset({("s", "us")}))
    assert [(lease.job_id, lease.region) for lease in leases] == [("b", "eu")]
