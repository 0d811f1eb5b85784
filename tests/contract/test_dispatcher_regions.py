"""The contract of every dispatcher: regions of a service."""

from __future__ import annotations

from fairlead.domain.job import RANK_RETRY
from fairlead.domain.rules import Order, ServiceRules, lane_of
from tests.contract.dispatchers import QueueHarness

REGIONS = ServiceRules("s", limit=9, regions={"eu": 2, "us": 1}, retries_first=True)


async def test_a_step_bound_to_a_region_runs_there(queue: QueueHarness) -> None:
    await queue.open(REGIONS)
    await queue.offer_all(["us0", "us1"], region="us")
    await queue.offer("eu0", region="eu")
    assert {(lease.job_id, lease.region) for lease in await queue.claim(9)} == {("us0", "us"), ("eu0", "eu")}


async def test_an_unbound_step_goes_to_the_region_with_most_free_slots(queue: QueueHarness) -> None:
    await queue.open(REGIONS)
    await queue.offer_all("abcd")
    assert [lease.region for lease in await queue.claim(9)] == ["eu", "eu", "us"]


async def test_unbound_work_is_spread_by_the_weights_of_the_regions(queue: QueueHarness) -> None:
    regions = {"ap": 9, "eu": 9, "us": 9}
    await queue.open(ServiceRules("s", limit=9, regions=regions, region_weights={"ap": 1, "eu": 2, "us": 3}))
    await queue.offer_all("abcdefgh")
    leases = await queue.claim(6)
    assert [lease.region for lease in leases] == ["us", "eu", "us", "ap", "eu", "us"]
    await queue.end(leases[1], after=1.0, failed=False)
    assert (await queue.take()).region == "eu"  # the least loaded for its weight, even if others are faster


async def test_among_regions_of_the_same_load_the_faster_one_is_taken(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, regions={"eu": 9, "us": 9}, region_weights={"eu": 1, "us": 2}))
    await queue.offer_all("abcde")
    slow, *_, fast = leases = await queue.claim(3)
    assert [lease.region for lease in leases] == ["us", "eu", "us"]
    await queue.end(leases[1], after=1.0, failed=False)
    await queue.end(slow, after=1.0, failed=False)
    await queue.end(fast, failed=False)
    assert [lease.region for lease in await queue.claim(2)] == ["us", "eu"]


async def test_a_failing_region_gets_no_work_while_others_have_a_slot(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, regions={"eu": 2, "us": 9}, region_weights={"eu": 1, "us": 100}))
    await queue.offer_all("abcd")
    await queue.end(await queue.take(), failed=True)
    assert [lease.region for lease in await queue.claim(9)] == ["eu", "eu", "us"]


async def test_a_step_for_several_regions_is_spread_by_their_weights_too(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, regions={"ap": 9, "eu": 9, "us": 9}, region_weights={"us": 2.5}))
    await queue.offer_all("abcd", region=lane_of(["eu", "us"]))
    assert [lease.region for lease in await queue.claim(9)] == ["us", "us", "eu", "us"]


async def test_weights_may_change_while_calls_run(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, regions={"eu": 9, "us": 9}))
    await queue.offer_all("abcd")
    assert [lease.region for lease in await queue.claim(2)] == ["eu", "us"]
    await queue.change("s", region_weights={"eu": 1, "us": 4})
    assert [lease.region for lease in await queue.claim(2)] == ["us", "us"]
    await queue.change("s", region_weights={})


async def test_region_limits_nest_in_the_services_limit(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=2, regions={"eu": 2, "us": 2}))
    await queue.offer_all("abcd")
    assert [lease.region for lease in await queue.claim(9)] == ["eu", "us"]


async def test_a_hold_takes_a_slot_of_its_region(queue: QueueHarness) -> None:
    await queue.open(REGIONS)
    await queue.hold("gone", 60, region="us")
    await queue.offer("a", region="us")
    assert await queue.claimed(9) == []
    await queue.dispatcher.end_holds(queue.clock.now + 60)
    assert await queue.claimed(9) == ["a"]


async def test_a_released_slot_is_free_in_its_region(queue: QueueHarness) -> None:
    await queue.open(REGIONS)
    await queue.offer_all("ab", region="us")
    await queue.end(await queue.take())
    assert await queue.claimed(9) == ["b"]


async def test_a_claim_may_be_for_some_regions_only(queue: QueueHarness) -> None:
    await queue.open(REGIONS)
    await queue.offer_all("abc")
    await queue.offer("e", region="eu")
    leases = await queue.claim(9, regions=frozenset({"us"}))
    assert [(lease.job_id, lease.region) for lease in leases] == [("a", "us")]


async def test_global_retries_go_before_a_regions_own_and_those_before_all_priorities(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, regions={"us": 1}, retries_first=True))
    await queue.offer("high", "ann", band=1)
    await queue.offer("own retry", "ann", band=3, rank=RANK_RETRY, region="us")
    await queue.offer("global retry", "bob", band=3, rank=RANK_RETRY)
    await queue.offer("medium", "bob", band=2, region="us")
    assert await queue.serve(4) == ["global retry", "own retry", "high", "medium"]


async def test_workers_of_any_band_serve_retries_that_go_first(queue: QueueHarness) -> None:
    await queue.open(REGIONS)
    await queue.offer("retry", band=3, rank=RANK_RETRY)
    assert await queue.claimed(bands=frozenset({1})) == ["retry"]


async def test_the_lanes_of_a_service_share_one_virtual_time_per_user(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, regions={"us": 1}))
    await queue.offer_all(["a0", "a2"], "ann")
    await queue.offer_all(["a1", "a3"], "ann", region="us")
    await queue.offer_all(["b0", "b1", "b2", "b3"], "bob", region="us")
    assert await queue.serve(4) == ["a0", "b0", "a2", "b1"]
    assert await queue.serve(4) == ["a1", "b2", "a3", "b3"]


async def test_a_user_that_waits_in_another_lane_does_not_re_enter_the_band(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, regions={"eu": 1, "us": 0}))
    await queue.offer("u", "ann", region="us")
    await queue.offer_all([f"b{i}" for i in range(5)], "bob", region="eu")
    await queue.serve(3)
    await queue.offer("e", "ann", region="eu")
    assert await queue.tag("ann") == 0.0


async def test_a_bound_step_waits_in_the_only_lane_of_a_service_without_regions(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=1))
    await queue.offer("a", region="us")
    assert (await queue.take()).region is None


async def test_regions_added_later_get_lanes_of_their_own(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=1))
    await queue.offer("e", region="eu")
    await queue.offer("u", region="us")
    await queue.change("s", regions={"us": 1}, limit=9)
    assert await queue.claimed(9) == ["u"]


async def test_a_step_bound_to_several_regions_runs_in_the_first_of_them_that_has_a_slot(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, regions={"ap": 9, "eu": 1, "us": 1}))
    await queue.offer_all("abc", region=lane_of(["us", "eu"]))
    assert [(lease.job_id, lease.region) for lease in await queue.claim(9)] == [("a", "eu"), ("b", "us")]


async def test_a_region_whose_name_is_a_prefix_of_another_is_distinct(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, regions={"east": 1, "eas": 1, "t": 1, "us": 1}))
    await queue.offer_all("ab", region=lane_of(["east", "us"]))
    await queue.offer("c", region="t")
    leases = await queue.claim(9)
    assert {(lease.job_id, lease.region) for lease in leases} == {("a", "east"), ("b", "us"), ("c", "t")}
    await queue.offer("d", region=lane_of(["east", "us"]))
    assert await queue.claimed(9) == []


async def test_lanes_of_several_regions_share_fairly_with_the_others(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, regions={"eu": 1}))
    await queue.offer_all(["a0", "a1"], "ann", region=lane_of(["eu", "us"]))
    await queue.offer_all(["b0", "b1"], "bob")
    await queue.offer_all(["c0", "c1"], "cleo", region="eu")
    assert await queue.serve(6) == ["a0", "b0", "c0", "a1", "b1", "c1"]


async def test_retries_bound_to_several_regions_go_behind_global_ones_and_before_all_priorities(
    queue: QueueHarness,
) -> None:
    await queue.open(ServiceRules("s", limit=9, regions={"eu": 1, "us": 0}, retries_first=True))
    await queue.offer("high", "ann", band=1)
    await queue.offer("own retry", "ann", band=3, rank=RANK_RETRY, region=lane_of(["eu", "us"]))
    await queue.offer("anothers retry", "ann", band=3, rank=RANK_RETRY, region="us")
    await queue.offer("global retry", "bob", band=3, rank=RANK_RETRY)
    assert await queue.serve(3) == ["global retry", "own retry", "high"]
    assert await queue.claimed(9) == []


async def test_a_bound_step_is_behind_the_steps_that_may_take_its_slots(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, order=Order.FIFO, regions={"ap": 1, "eu": 1, "us": 2}))
    await queue.offer("any")
    await queue.offer("us", region="us")
    await queue.offer("eu or us", region=lane_of(["eu", "us"]))
    await queue.offer("eu", region="eu")
    await queue.offer("ap", region="ap")
    assert await queue.positions("any", "us", "eu or us", "eu", "ap") == [1, 2, 3, 3, 2]
    positions = await queue.dispatcher.positions(["any", "us", "eu or us", "eu"])
    assert [positions[job].slots for job in ("any", "us", "eu or us", "eu")] == [4, 2, 3, 1]


async def test_the_slots_of_a_region_without_workers_are_not_expected(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, order=Order.FIFO, regions={"eu": 1, "us": 2}))
    await queue.offer("bound", region="us")
    await queue.offer("any")
    await queue.offer("prefers us", region="us>")
    await queue.offer("eu", region="eu")
    jobs = ["bound", "any", "prefers us", "eu"]
    found = await queue.dispatcher.positions(jobs, frozenset({("s", "us"), ("other", "eu")}))
    assert [(found[job].position, found[job].slots, found[job].free) for job in jobs] == [
        (1, 0, 0),
        (2, 1, 1),
        (3, 1, 1),
        (3, 1, 1),
    ]
    assert found["bound"].estimated_wait() is None
    found = await queue.dispatcher.positions(jobs)
    assert [(found[job].position, found[job].slots) for job in jobs] == [(1, 2), (2, 3), (3, 2), (2, 1)]
