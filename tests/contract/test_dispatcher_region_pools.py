"""The contract of every dispatcher: pools in which only some regions of a service count."""

from __future__ import annotations

from fairlead.dispatch.port import Lease
from fairlead.domain.rules import ServiceRules, lane_of
from tests.contract.dispatchers import QueueHarness

MIXED = ServiceRules("s", limit=9, pool="gpu", regions={"eu": 3, "us": 3}, pooled_regions=("us",))
WHOLE = ServiceRules("t", limit=9, pool="gpu")


def where(leases: list[Lease]) -> list[tuple[str, str | None]]:
    return [(lease.service, lease.region) for lease in leases]


async def in_pool(queue: QueueHarness) -> int:
    """The number of running calls that count in the pool."""
    seen = [await queue.see(name) for name in queue.rules]
    return sum(queue.rules[each.service].in_pool(lease.region) for each in seen for lease in each.leases)


async def test_only_calls_in_those_regions_take_a_slot_of_the_pool(queue: QueueHarness) -> None:
    await queue.open(MIXED, WHOLE, pools={"gpu": 2})
    await queue.offer_all("abc", region="us")
    await queue.offer_all("def", region="eu")
    await queue.offer_all("gh", service="t")
    leases = await queue.claim(20)
    assert sorted(map(str, where(leases))) == sorted(
        map(str, [("s", "eu"), ("s", "eu"), ("s", "eu"), ("s", "us"), ("t", None)])
    )
    assert await in_pool(queue) == 2


async def test_a_full_pool_does_not_block_regions_outside_it(queue: QueueHarness) -> None:
    await queue.open(MIXED, WHOLE, pools={"gpu": 1})
    await queue.offer("t", service="t")
    held = await queue.take("t")
    await queue.offer_all("ab")
    await queue.offer("u", region="us")
    await queue.offer("either", region=lane_of(["eu", "us"]))
    assert where(await queue.claim(9)) == [("s", "eu")] * 3
    await queue.end(held)
    assert [(lease.job_id, lease.region) for lease in await queue.claim(9)] == [("u", "us")]


async def test_a_claim_takes_a_slot_of_every_limit_or_none(queue: QueueHarness) -> None:
    """The region, the service and the pool are full in turn."""
    await queue.open(MIXED, WHOLE, pools={"gpu": 2})
    await queue.offer_all("abcd", region="us")
    await queue.offer("t", service="t")
    for full in ({"regions": {"eu": 3, "us": 0}}, {"limit": 0}):
        before = queue.rules["s"]
        await queue.change("s", **full)
        assert where(await queue.claim(9, "s")) == []
        await queue.configure(before)
    await queue.configure(pools={"gpu": 0})
    assert where(await queue.claim(9)) == []
    await queue.configure(pools={"gpu": 2})
    assert len(await queue.claim(9)) == 2
    assert await in_pool(queue) == 2


async def test_a_grant_outside_the_pool_costs_the_service_no_turn_in_it(queue: QueueHarness) -> None:
    await queue.open(MIXED, WHOLE, pools={"gpu": 1})
    await queue.offer_all([f"e{n}" for n in range(9)], region="eu")
    for _ in range(3):
        lease = await queue.take("s")
        assert lease.region == "eu"
        await queue.end(lease, after=10.0)
    await queue.change("s", regions={"eu": 0, "us": 3})
    await queue.offer_all([f"u{n}" for n in range(4)], "bob", region="us")
    await queue.offer_all([f"t{n}" for n in range(4)], "bob", service="t")
    assert await queue.serve(6) == ["u0", "t0", "u1", "t1", "u2", "t2"]


async def test_a_worker_with_a_small_budget_serves_the_pool_and_steps_outside_it_in_turn(queue: QueueHarness) -> None:
    other = ServiceRules("r", limit=9, pool="gpu", regions={"eu": 3, "us": 3}, pooled_regions=("us",))
    await queue.open(other, MIXED, WHOLE, pools={"gpu": 9})
    for name in ("r", "s"):
        await queue.offer_all([f"{name}{n}" for n in range(9)], service=name, region="eu")
    await queue.offer_all([f"t{n}" for n in range(9)], service="t")
    assert await queue.serve(9) == ["r0", "s0", "t0", "r1", "s1", "t1", "r2", "s2", "t2"]
    await queue.configure(pools={"gpu": 0})
    assert await queue.serve(4) == ["r3", "s3", "r4", "s4"]


async def test_a_reserved_slot_does_not_block_regions_outside_the_pool(queue: QueueHarness) -> None:
    await queue.open(MIXED, WHOLE, pools={"gpu": 1})
    assert await queue.claimed(1, "t", worker="rival") == []
    await queue.offer("t", "ann", "t", band=1)
    await queue.offer("u", "bob", band=2, region="us")
    await queue.offer("e", "bob", band=2, region="eu")
    assert [(lease.job_id, lease.region) for lease in await queue.claim(9, "s", worker="w")] == [("e", "eu")]
    assert await queue.claimed(9, "t", worker="rival") == ["t"]


async def test_a_hold_takes_a_slot_of_the_pool_if_its_region_is_in_it(queue: QueueHarness) -> None:
    await queue.open(MIXED, WHOLE, pools={"gpu": 1})
    await queue.hold("gone", 60, region="eu")
    await queue.offer_all("ab", service="t")
    await queue.end(await queue.take("t"))
    await queue.hold("lost", 60, region="us")
    assert await queue.claimed(9) == []
    await queue.dispatcher.end_holds(queue.clock.now + 60)
    assert await queue.claimed(9) == ["b"]


async def test_restored_leases_count_in_the_pool_if_their_region_is_in_it(queue: QueueHarness) -> None:
    await queue.open(MIXED, WHOLE, pools={"gpu": 2})
    await queue.offer("u", region="us")
    await queue.offer("e", region="eu")
    leases = await queue.claim(9)
    assert len(leases) == 2
    await queue.dispatcher.close_scope(MIXED.scope, 2)
    await queue.dispatcher.restore(MIXED.scope, 2, leases, [])
    await queue.dispatcher.open_scope(MIXED.scope, 2)
    await queue.offer_all("tuvw", service="t")
    assert len(await queue.claim(9)) == 1
    assert await in_pool(queue) == 2


async def test_workers_are_woken_for_work_outside_a_full_pool_and_for_its_free_slot(queue: QueueHarness) -> None:
    await queue.open(MIXED, WHOLE, pools={"gpu": 1})
    await queue.offer("t", service="t")
    held = await queue.take("t")
    queue.wakeups()
    await queue.offer("u", region="us")
    assert queue.wakeups() == []
    await queue.offer("e", region="eu")
    assert queue.wakeups() == [{"s"}]
    assert await queue.claimed(9) == ["e"]
    queue.wakeups()
    await queue.end(held)
    assert queue.wakeups() == [{"s"}]


async def test_positions_include_slots_and_free_slots(queue: QueueHarness) -> None:
    await queue.open(MIXED, WHOLE, pools={"gpu": 2})
    await queue.offer_all("ab", service="t")
    assert len(await queue.claim(9)) == 2
    await queue.offer("any")
    await queue.offer("us", region="us")
    await queue.offer("eu", region="eu")
    positions = await queue.dispatcher.positions(["any", "us", "eu"])
    assert [(positions[job].slots, positions[job].free) for job in ("any", "us", "eu")] == [(5, 3), (2, 0), (3, 3)]


async def test_a_region_can_join_and_leave_the_pool(queue: QueueHarness) -> None:
    await queue.open(MIXED, WHOLE, pools={"gpu": 2})
    await queue.offer_all("abcd", region="eu")
    assert len(await queue.claim(2)) == 2
    await queue.change("s", pooled_regions=("eu", "us"))
    assert await queue.claimed(9) == []
    await queue.change("s", pooled_regions=("us",))
    assert len(await queue.claim(9)) == 1
