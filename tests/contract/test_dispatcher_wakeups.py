"""The contract of every dispatcher: workers are woken whenever needed, and at most once per operation."""

from __future__ import annotations

import pytest

from fairlead.dispatch.port import Claim, Release
from fairlead.domain.rates import Rate
from fairlead.domain.rules import ServiceRules
from tests.contract.dispatchers import QueueHarness, open_pool

FAIR = ServiceRules("s", limit=1)


async def test_an_offer_wakes_once_when_its_lane_becomes_runnable(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a")
    assert queue.wakeups() == [{"s"}]
    await queue.offer("b")
    assert queue.wakeups() == []


async def test_an_offer_to_a_lane_without_a_free_slot_wakes_no_worker(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a")
    await queue.take()
    queue.wakeups()
    await queue.offer("b")
    assert queue.wakeups() == []


async def test_a_release_wakes_if_something_waits(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer_all("ab")
    lease = await queue.take()
    queue.wakeups()
    await queue.end(lease)
    assert queue.wakeups() == [{"s"}]
    await queue.end(await queue.take())
    assert queue.wakeups() == []


async def test_an_exchange_that_claims_what_it_frees_wakes_no_worker(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer_all("abc")
    lease = await queue.take()
    queue.wakeups()
    await queue.dispatcher.exchange(Claim("w", 1, frozenset("s")), [Release(lease.name, "s")])
    assert queue.wakeups() == []


async def test_an_exchange_that_only_releases_wakes_for_the_freed_slots(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer_all("ab")
    lease = await queue.take()
    queue.wakeups()
    await queue.dispatcher.exchange(Claim("w", 0, frozenset("s")), [Release(lease.name, "s")])
    assert queue.wakeups() == [{"s"}]


async def test_a_claim_that_leaves_a_lane_runnable_wakes_the_next_worker(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9), ServiceRules("t", limit=9))
    await queue.offer_all("abc")
    await queue.offer("t0", service="t")
    queue.wakeups()
    await queue.claim(1)
    assert queue.wakeups() == [{"s", "t"}], "the claimer is full: both are for the next"
    await queue.claim(9)
    assert queue.wakeups() == []


async def test_an_empty_claim_wakes_no_worker(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9))
    await queue.offer("low", band=3)
    queue.wakeups()
    assert await queue.claimed(5, bands=frozenset({1})) == []
    assert queue.wakeups() == []


async def test_one_operation_wakes_at_most_once(queue: QueueHarness) -> None:
    await queue.open(*(ServiceRules(name, limit=1) for name in "xyz"))
    for name in "xyz":
        await queue.offer_all([f"{name}0", f"{name}1"], service=name)
    leases = await queue.claim(3)
    queue.wakeups()
    await queue.dispatcher.release([Release(lease.name, lease.service) for lease in leases])
    assert queue.wakeups() == [{"x", "y", "z"}]


@pytest.mark.parametrize(
    ("before", "after"), [({"limit": 1}, {"limit": 2}), ({"paused": True}, {"paused": False}), ({"user_limit": 1}, {})]
)
async def test_changed_rules_wake_for_the_services_they_make_runnable(
    queue: QueueHarness, before: dict[str, int], after: dict[str, int]
) -> None:
    open_rules = {"limit": 9, "paused": False, "user_limit": None}
    await queue.open(ServiceRules("s", limit=9))
    await queue.offer_all("abc")
    await queue.take()
    await queue.change("s", **open_rules | before)
    queue.wakeups()
    await queue.change("s", **open_rules | after)
    assert queue.wakeups() == [{"s"}]


async def test_the_end_of_a_hold_wakes(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.hold("gone", 60)
    await queue.offer("a")
    assert queue.wakeups() == []
    await queue.dispatcher.end_holds(queue.clock.now + 60)
    assert queue.wakeups() == [{"s"}]


async def test_a_promotion_and_a_withdrawal_wake_no_worker(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer_all("ab", band=3)
    queue.wakeups()
    await queue.promote("a", band=2)
    await queue.withdraw("b")
    assert queue.wakeups() == []


async def test_an_emptied_lane_wakes_again_on_the_next_offer(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a")
    await queue.withdraw("a")
    queue.wakeups()
    await queue.offer("b")
    assert queue.wakeups() == [{"s"}]


async def test_unparking_a_user_wakes(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, user_limit=1))
    await queue.offer_all("ab")
    (lease,) = await queue.claim(9)
    queue.wakeups()
    await queue.end(lease)
    assert queue.wakeups() == [{"s"}]


async def test_a_pools_free_slot_wakes_all_its_services_that_wait(queue: QueueHarness) -> None:
    await open_pool(queue, 1, "x", "y", "z")
    await queue.offer_all(["x0", "x1"], service="x")
    lease = await queue.take()
    await queue.offer("y0", service="y")
    queue.wakeups()
    await queue.end(lease)
    assert queue.wakeups() == [{"x", "y"}]


async def test_a_worker_is_woken_for_a_large_step_that_was_offered_while_others_were_runnable(
    queue: QueueHarness,
) -> None:
    """It does not fit, and none of the others goes before it."""
    await queue.open(ServiceRules("s", limit=9, rate=Rate(units=4.0, per=64.0)))
    await queue.offer("a", cost=2.0)
    await queue.end(await queue.take())
    await queue.offer("small", "bob", cost=2.0, band=3)
    await queue.offer("large", cost=3.0)
    assert await queue.claimed() == []
    queue.wakeups()
    queue.clock.advance(65.0)
    await queue.dispatcher.end_holds()
    assert queue.wakeups() == [{"s"}]
    assert await queue.claimed() == ["large"]


HIGH, LOW = frozenset({1}), frozenset({3})


async def runnable_for_low_only(queue: QueueHarness, **rules: int) -> None:
    """A step of the low band waits beside free slots, and a worker that is bound to the high band waits too."""
    await queue.open(ServiceRules("s", limit=9, **rules))  # type: ignore[arg-type]
    await queue.offer("low", "bob", band=3)
    assert await queue.claimed(5, bands=HIGH) == []
    queue.wakeups()


async def test_an_offer_wakes_a_worker_bound_to_its_band_though_others_are_runnable(queue: QueueHarness) -> None:
    await runnable_for_low_only(queue)
    await queue.offer("high", band=1)
    assert queue.wakeups() == [{"s"}]
    await queue.offer("another", band=1)
    assert queue.wakeups() == [], "one wakeup is enough until a claim has found nothing again"
    assert await queue.claimed(5, bands=HIGH) == ["high", "another"]
    queue.wakeups()
    await queue.offer("later", band=1)
    assert queue.wakeups() == [{"s"}]


async def test_an_offer_of_another_band_does_not_wake_a_bound_worker(queue: QueueHarness) -> None:
    await runnable_for_low_only(queue)
    await queue.offer("low2", "bob", band=3)
    await queue.offer("medium", band=2)
    assert queue.wakeups() == []


async def test_a_worker_bound_to_a_band_is_woken_when_a_user_of_that_band_is_unparked(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, user_limit=1))
    await queue.offer_all(["a", "b"], band=1)
    await queue.offer("low", "bob", band=3)
    (lease,) = await queue.claim(5, bands=HIGH)
    queue.wakeups()
    await queue.end(lease)
    assert queue.wakeups() == [{"s"}]
    assert await queue.claimed(5, bands=HIGH) == ["b"]


async def test_a_promotion_wakes_a_worker_bound_to_the_new_band(queue: QueueHarness) -> None:
    await runnable_for_low_only(queue)
    await queue.promote("low", band=1)
    assert queue.wakeups() == [{"s"}]


async def test_a_service_of_a_pool_wakes_a_worker_bound_to_a_band(queue: QueueHarness) -> None:
    await open_pool(queue, 5, "x", "y")
    await queue.offer("low", service="x", band=3)
    assert await queue.claimed(5, bands=HIGH) == []
    queue.wakeups()
    await queue.offer("high", "bob", service="x", band=1)
    assert queue.wakeups() == [{"x"}]
