"""What every dispatcher does with a pool that only some regions of its services count in."""

from __future__ import annotations

from fairlead.dispatch.port import Lease
from fairlead.domain.limits import ServiceRules, lane_of
from tests.contract.dispatchers import Line

MIXED = ServiceRules("s", limit=9, pool="gpu", regions={"eu": 3, "us": 3}, pooled_regions=("us",))
WHOLE = ServiceRules("t", limit=9, pool="gpu")


def where(leases: list[Lease]) -> list[tuple[str, str | None]]:
    return [(lease.service, lease.region) for lease in leases]


async def in_pool(line: Line) -> int:
    """As counted from what runs."""
    seen = [await line.see(name) for name in line.rules]
    return sum(line.rules[each.service].in_pool(lease.region) for each in seen for lease in each.leases)


async def test_only_calls_in_those_regions_take_a_slot_of_the_pool(line: Line) -> None:
    await line.open(MIXED, WHOLE, pools={"gpu": 2})
    await line.offer_all("abc", region="us")
    await line.offer_all("def", region="eu")
    await line.offer_all("gh", service="t")
    leases = await line.claim(20)
    assert sorted(map(str, where(leases))) == sorted(
        map(str, [("s", "eu"), ("s", "eu"), ("s", "eu"), ("s", "us"), ("t", None)])
    )
    assert await in_pool(line) == 2


async def test_a_pool_that_is_full_keeps_nothing_from_the_other_regions(line: Line) -> None:
    await line.open(MIXED, WHOLE, pools={"gpu": 1})
    await line.offer("t", service="t")
    held = await line.take("t")
    await line.offer_all("ab")
    await line.offer("u", region="us")
    await line.offer("either", region=lane_of(["eu", "us"]))
    assert where(await line.claim(9)) == [("s", "eu")] * 3
    await line.end(held)
    assert [(lease.job_id, lease.region) for lease in await line.claim(9)] == [("u", "us")]


async def test_a_claim_takes_every_limit_that_it_needs_or_none(line: Line) -> None:
    """Region, service and pool each in turn is the one that is full."""
    await line.open(MIXED, WHOLE, pools={"gpu": 2})
    await line.offer_all("abcd", region="us")
    await line.offer("t", service="t")
    for full in ({"regions": {"eu": 3, "us": 0}}, {"limit": 0}):
        before = line.rules["s"]
        await line.change("s", **full)
        assert where(await line.claim(9, "s")) == []
        await line.configure(before)
    await line.configure(pools={"gpu": 0})
    assert where(await line.claim(9)) == []
    await line.configure(pools={"gpu": 2})
    assert len(await line.claim(9)) == 2
    assert await in_pool(line) == 2


async def test_what_is_granted_beside_the_pool_costs_the_service_no_turn_in_it(line: Line) -> None:
    await line.open(MIXED, WHOLE, pools={"gpu": 1})
    await line.offer_all([f"e{n}" for n in range(9)], region="eu")
    for _ in range(3):
        lease = await line.take("s")
        assert lease.region == "eu"
        await line.end(lease, after=10.0)
    await line.change("s", regions={"eu": 0, "us": 3})
    await line.offer_all([f"u{n}" for n in range(4)], "bob", region="us")
    await line.offer_all([f"t{n}" for n in range(4)], "bob", service="t")
    assert await line.serve(6) == ["u0", "t0", "u1", "t1", "u2", "t2"]


async def test_a_worker_with_little_room_serves_the_pool_and_what_is_beside_it_in_turn(line: Line) -> None:
    other = ServiceRules("r", limit=9, pool="gpu", regions={"eu": 3, "us": 3}, pooled_regions=("us",))
    await line.open(other, MIXED, WHOLE, pools={"gpu": 9})
    for name in ("r", "s"):
        await line.offer_all([f"{name}{n}" for n in range(9)], service=name, region="eu")
    await line.offer_all([f"t{n}" for n in range(9)], service="t")
    assert await line.serve(9) == ["r0", "s0", "t0", "r1", "s1", "t1", "r2", "s2", "t2"]
    await line.configure(pools={"gpu": 0})
    assert await line.serve(4) == ["r3", "s3", "r4", "s4"]


async def test_a_slot_that_is_left_to_another_worker_keeps_none_from_the_other_regions(line: Line) -> None:
    await line.open(MIXED, WHOLE, pools={"gpu": 1})
    assert await line.claimed(1, "t", worker="rival") == []
    await line.offer("t", "ann", "t", band=1)
    await line.offer("u", "bob", band=2, region="us")
    await line.offer("e", "bob", band=2, region="eu")
    assert [(lease.job_id, lease.region) for lease in await line.claim(9, "s", worker="w")] == [("e", "eu")]
    assert await line.claimed(9, "t", worker="rival") == ["t"]


async def test_a_hold_takes_a_slot_of_the_pool_where_its_region_counts(line: Line) -> None:
    await line.open(MIXED, WHOLE, pools={"gpu": 1})
    await line.hold("gone", 60, region="eu")
    await line.offer_all("ab", service="t")
    await line.end(await line.take("t"))
    await line.hold("lost", 60, region="us")
    assert await line.claimed(9) == []
    await line.dispatcher.end_holds(line.clock.now + 60)
    assert await line.claimed(9) == ["b"]


async def test_restored_leases_count_in_the_pool_again_where_their_region_does(line: Line) -> None:
    await line.open(MIXED, WHOLE, pools={"gpu": 2})
    await line.offer("u", region="us")
    await line.offer("e", region="eu")
    leases = await line.claim(9)
    assert len(leases) == 2
    await line.dispatcher.close_scope(MIXED.scope, 2)
    await line.dispatcher.restore(MIXED.scope, 2, leases, [])
    await line.dispatcher.open_scope(MIXED.scope, 2)
    await line.offer_all("tuvw", service="t")
    assert len(await line.claim(9)) == 1
    assert await in_pool(line) == 2


async def test_workers_hear_of_work_beside_a_full_pool_and_of_its_free_slot(line: Line) -> None:
    await line.open(MIXED, WHOLE, pools={"gpu": 1})
    await line.offer("t", service="t")
    held = await line.take("t")
    line.woken()
    await line.offer("u", region="us")
    assert line.woken() == []
    await line.offer("e", region="eu")
    assert line.woken() == [{"s"}]
    assert await line.claimed(9) == ["e"]
    line.woken()
    await line.end(held)
    assert line.woken() == [{"s"}]


async def test_places_know_how_many_slots_there_are_and_how_many_are_free(line: Line) -> None:
    await line.open(MIXED, WHOLE, pools={"gpu": 2})
    await line.offer_all("ab", service="t")
    assert len(await line.claim(9)) == 2
    await line.offer("any")
    await line.offer("us", region="us")
    await line.offer("eu", region="eu")
    places = await line.dispatcher.places(["any", "us", "eu"])
    assert [(places[job].slots, places[job].free) for job in ("any", "us", "eu")] == [(5, 3), (2, 0), (3, 3)]


async def test_a_region_may_come_to_count_in_the_pool_and_cease_to(line: Line) -> None:
    await line.open(MIXED, WHOLE, pools={"gpu": 2})
    await line.offer_all("abcd", region="eu")
    assert len(await line.claim(2)) == 2
    await line.change("s", pooled_regions=("eu", "us"))
    assert await line.claimed(9) == []
    await line.change("s", pooled_regions=("us",))
    assert len(await line.claim(9)) == 1
