"""What every dispatcher does with the regions of a service."""

from __future__ import annotations

from fairlead.domain.job import RANK_RETRY
from fairlead.domain.limits import Order, ServiceRules, lane_of
from tests.contract.dispatchers import Line

REGIONS = ServiceRules("s", limit=9, regions={"eu": 2, "us": 1}, retries_first=True)


async def test_a_step_bound_to_a_region_runs_there(line: Line) -> None:
    await line.open(REGIONS)
    await line.offer_all(["us0", "us1"], region="us")
    await line.offer("eu0", region="eu")
    assert {(lease.job_id, lease.region) for lease in await line.claim(9)} == {("us0", "us"), ("eu0", "eu")}


async def test_an_unbound_step_goes_to_the_region_with_most_free_slots(line: Line) -> None:
    await line.open(REGIONS)
    await line.offer_all("abcd")
    assert [lease.region for lease in await line.claim(9)] == ["eu", "eu", "us"]


async def test_unbound_work_is_spread_by_the_weights_of_the_regions(line: Line) -> None:
    regions = {"ap": 9, "eu": 9, "us": 9}
    await line.open(ServiceRules("s", limit=9, regions=regions, region_weights={"ap": 1, "eu": 2, "us": 3}))
    await line.offer_all("abcdefgh")
    leases = await line.claim(6)
    assert [lease.region for lease in leases] == ["us", "eu", "us", "ap", "eu", "us"]
    await line.end(leases[1], after=1.0, failed=False)
    assert (await line.take()).region == "eu"  # where there is least to do for its weight, however fast the others are


async def test_among_regions_of_the_same_load_the_faster_one_is_taken(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9, regions={"eu": 9, "us": 9}, region_weights={"eu": 1, "us": 2}))
    await line.offer_all("abcde")
    slow, *_, fast = leases = await line.claim(3)
    assert [lease.region for lease in leases] == ["us", "eu", "us"]
    await line.end(leases[1], after=1.0, failed=False)
    await line.end(slow, after=1.0, failed=False)
    await line.end(fast, failed=False)
    assert [lease.region for lease in await line.claim(2)] == ["us", "eu"]


async def test_a_failing_region_has_nothing_of_its_weight_while_others_have_a_slot(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9, regions={"eu": 2, "us": 9}, region_weights={"eu": 1, "us": 100}))
    await line.offer_all("abcd")
    await line.end(await line.take(), failed=True)
    assert [lease.region for lease in await line.claim(9)] == ["eu", "eu", "us"]


async def test_a_step_for_several_regions_is_spread_by_their_weights_too(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9, regions={"ap": 9, "eu": 9, "us": 9}, region_weights={"us": 2.5}))
    await line.offer_all("abcd", region=lane_of(["eu", "us"]))
    assert [lease.region for lease in await line.claim(9)] == ["us", "us", "eu", "us"]


async def test_weights_may_change_while_calls_run(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9, regions={"eu": 9, "us": 9}))
    await line.offer_all("abcd")
    assert [lease.region for lease in await line.claim(2)] == ["eu", "us"]
    await line.change("s", region_weights={"eu": 1, "us": 4})
    assert [lease.region for lease in await line.claim(2)] == ["us", "us"]
    await line.change("s", region_weights={})


async def test_region_limits_nest_in_the_services_limit(line: Line) -> None:
    await line.open(ServiceRules("s", limit=2, regions={"eu": 2, "us": 2}))
    await line.offer_all("abcd")
    assert [lease.region for lease in await line.claim(9)] == ["eu", "us"]


async def test_a_hold_takes_a_slot_of_its_region(line: Line) -> None:
    await line.open(REGIONS)
    await line.hold("gone", 60, region="us")
    await line.offer("a", region="us")
    assert await line.claimed(9) == []
    await line.dispatcher.end_holds(line.clock.now + 60)
    assert await line.claimed(9) == ["a"]


async def test_a_released_slot_is_free_in_its_region(line: Line) -> None:
    await line.open(REGIONS)
    await line.offer_all("ab", region="us")
    await line.end(await line.take())
    assert await line.claimed(9) == ["b"]


async def test_a_claim_may_be_for_some_regions_only(line: Line) -> None:
    await line.open(REGIONS)
    await line.offer_all("abc")
    await line.offer("e", region="eu")
    leases = await line.claim(9, regions=frozenset({"us"}))
    assert [(lease.job_id, lease.region) for lease in leases] == [("a", "us")]


async def test_global_retries_go_before_a_regions_own_and_those_before_all_priorities(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9, regions={"us": 1}, retries_first=True))
    await line.offer("high", "ann", band=1)
    await line.offer("own retry", "ann", band=3, rank=RANK_RETRY, region="us")
    await line.offer("global retry", "bob", band=3, rank=RANK_RETRY)
    await line.offer("medium", "bob", band=2, region="us")
    assert await line.serve(4) == ["global retry", "own retry", "high", "medium"]


async def test_first_retries_are_open_to_workers_bound_to_any_band(line: Line) -> None:
    await line.open(REGIONS)
    await line.offer("retry", band=3, rank=RANK_RETRY)
    assert await line.claimed(bands=frozenset({1})) == ["retry"]


async def test_the_lanes_of_a_service_share_one_virtual_time_per_user(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9, regions={"us": 1}))
    await line.offer_all(["a0", "a2"], "ann")
    await line.offer_all(["a1", "a3"], "ann", region="us")
    await line.offer_all(["b0", "b1", "b2", "b3"], "bob", region="us")
    assert await line.serve(4) == ["a0", "b0", "a2", "b1"]
    assert await line.serve(4) == ["a1", "b2", "a3", "b3"]


async def test_a_user_that_waits_in_another_lane_does_not_enter_the_band_anew(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9, regions={"eu": 1, "us": 0}))
    await line.offer("u", "ann", region="us")
    await line.offer_all([f"b{i}" for i in range(5)], "bob", region="eu")
    await line.serve(3)
    await line.offer("e", "ann", region="eu")
    assert await line.tag("ann") == 0.0


async def test_a_bound_step_waits_in_the_only_lane_of_a_service_without_regions(line: Line) -> None:
    await line.open(ServiceRules("s", limit=1))
    await line.offer("a", region="us")
    assert (await line.take()).region is None


async def test_regions_given_later_take_their_own_lanes(line: Line) -> None:
    await line.open(ServiceRules("s", limit=1))
    await line.offer("e", region="eu")
    await line.offer("u", region="us")
    await line.change("s", regions={"us": 1}, limit=9)
    assert await line.claimed(9) == ["u"]


async def test_a_step_bound_to_several_regions_runs_in_the_first_of_them_that_has_a_slot(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9, regions={"ap": 9, "eu": 1, "us": 1}))
    await line.offer_all("abc", region=lane_of(["us", "eu"]))
    assert [(lease.job_id, lease.region) for lease in await line.claim(9)] == [("a", "eu"), ("b", "us")]


async def test_a_region_whose_name_begins_another_ones_is_another_region(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9, regions={"east": 1, "eas": 1, "t": 1, "us": 1}))
    await line.offer_all("ab", region=lane_of(["east", "us"]))
    await line.offer("c", region="t")
    leases = await line.claim(9)
    assert {(lease.job_id, lease.region) for lease in leases} == {("a", "east"), ("b", "us"), ("c", "t")}
    await line.offer("d", region=lane_of(["east", "us"]))
    assert await line.claimed(9) == []


async def test_lanes_of_several_regions_share_fairly_with_the_others(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9, regions={"eu": 1}))
    await line.offer_all(["a0", "a1"], "ann", region=lane_of(["eu", "us"]))
    await line.offer_all(["b0", "b1"], "bob")
    await line.offer_all(["c0", "c1"], "cleo", region="eu")
    assert await line.serve(6) == ["a0", "b0", "c0", "a1", "b1", "c1"]


async def test_retries_bound_to_several_regions_go_behind_global_ones_and_before_all_priorities(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9, regions={"eu": 1, "us": 0}, retries_first=True))
    await line.offer("high", "ann", band=1)
    await line.offer("own retry", "ann", band=3, rank=RANK_RETRY, region=lane_of(["eu", "us"]))
    await line.offer("anothers retry", "ann", band=3, rank=RANK_RETRY, region="us")
    await line.offer("global retry", "bob", band=3, rank=RANK_RETRY)
    assert await line.serve(3) == ["global retry", "own retry", "high"]
    assert await line.claimed(9) == []


async def test_a_bound_step_stands_behind_those_that_may_take_its_slots(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9, order=Order.FIFO, regions={"ap": 1, "eu": 1, "us": 2}))
    await line.offer("any")
    await line.offer("us", region="us")
    await line.offer("eu or us", region=lane_of(["eu", "us"]))
    await line.offer("eu", region="eu")
    await line.offer("ap", region="ap")
    assert await line.positions("any", "us", "eu or us", "eu", "ap") == [1, 2, 3, 3, 2]
    places = await line.dispatcher.places(["any", "us", "eu or us", "eu"])
    assert [places[job].slots for job in ("any", "us", "eu or us", "eu")] == [4, 2, 3, 1]
