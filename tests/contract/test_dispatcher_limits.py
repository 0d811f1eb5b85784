"""The contract of every dispatcher: limits, holds, leases, a worker's budget, and pools."""

from __future__ import annotations

import threading

import pytest

from fairlead.dispatch.port import Claim, Release, Renewal
from fairlead.domain.fair_share import SECOND
from fairlead.domain.rules import Order, Rules, ServiceRules
from tests.contract.dispatchers import QueueHarness, open_pool

FAIR = ServiceRules("s", limit=1)


# -- limits --------------------------------------------------------------------------------------------------------


async def test_a_claim_takes_no_more_than_its_budget_and_the_limit(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=3))
    await queue.offer_all("abcdef")
    assert await queue.claimed(2) == ["a", "b"]
    assert await queue.claimed(9) == ["c"]
    assert await queue.claimed(9) == []
    assert await queue.claimed(0) == []


async def test_an_exchange_releases_and_claims_in_one_operation(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer_all("ab")
    lease = await queue.take()
    (taken,) = await queue.dispatcher.exchange(Claim("w", 1, frozenset("s")), [Release(lease.name, "s")])
    assert taken.job_id == "b"


async def test_releasing_twice_frees_one_slot(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=2))
    await queue.offer_all("abcd")
    first, _ = await queue.claim(2)
    await queue.end(first)
    await queue.end(first)
    assert await queue.claimed(9) == ["c"]


async def test_a_lowered_limit_stops_new_grants_and_revokes_none(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=3))
    await queue.offer_all("abcdef")
    leases = await queue.claim(3)
    await queue.change("s", limit=1)
    await queue.end(leases[0])
    await queue.end(leases[1])
    assert await queue.claimed(9) == []
    await queue.end(leases[2])
    assert await queue.claimed(9) == ["d"]


async def test_older_rules_are_ignored(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer_all("abc")
    await queue.dispatcher.configure(Rules({"s": ServiceRules("s", limit=3)}, version=queue.version - 1))
    assert await queue.claimed(9) == ["a"]


async def test_nothing_is_granted_from_a_paused_lane(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.change("s", paused=True)
    assert await queue.offer("a")
    assert await queue.claimed() == []
    assert (await queue.see()).paused
    await queue.change("s", paused=False)
    assert await queue.claimed() == ["a"]


@pytest.mark.parametrize("order", Order)
async def test_a_user_at_its_limit_is_parked_and_does_not_block_others(queue: QueueHarness, order: Order) -> None:
    await queue.open(ServiceRules("s", limit=9, order=order, user_limit=2))
    await queue.offer_all(["a0", "a1", "a2", "a3"], "ann")
    await queue.offer_all(["b0"], "bob")
    leases = await queue.claim(9)
    assert {lease.job_id for lease in leases} == {"a0", "a1", "b0"}
    user = await queue.user("ann", band=1 if order is Order.FIFO else 2)
    assert user is not None
    assert (user.parked, user.waiting, user.running) == (True, 2, 2)
    await queue.end(next(lease for lease in leases if lease.user_id == "ann"))
    assert await queue.claimed(9) == ["a2"]


async def test_a_user_that_reaches_its_limit_in_one_band_is_parked_in_all(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, user_limit=1))
    await queue.offer("a1", "ann", band=1)
    await queue.offer("a2", "ann", band=2)
    await queue.offer("b2", "bob", band=2)
    assert await queue.claimed(5) == ["a1", "b2"]


async def test_an_unparked_user_starts_at_the_virtual_time(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=2, user_limit=1))
    await queue.offer_all(["a0", "a1", "a2"], "ann", weight=1000.0)
    await queue.offer_all([f"b{i}" for i in range(9)], "bob")
    a0, b0 = await queue.claim(2)
    assert (a0.job_id, b0.job_id) == ("a0", "b0")
    for _ in range(5):
        await queue.end(b0, after=1.0)
        b0 = await queue.take()
    assert (await queue.see()).virtual_time[2] == 5 * SECOND
    await queue.end(a0)
    assert await queue.tag("ann") == 5.0


async def test_raising_the_user_limit_unparks_users(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, user_limit=1))
    await queue.offer_all("abc")
    await queue.claim(9)
    await queue.change("s", user_limit=2)
    assert await queue.claimed(9) == ["b"]
    await queue.change("s", user_limit=None)
    assert await queue.claimed(9) == ["c"]


async def test_lowering_the_user_limit_parks_users(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9))
    await queue.offer_all("abc")
    first, second = await queue.claim(2)
    await queue.change("s", user_limit=1)
    await queue.end(first)
    assert await queue.claimed(9) == []
    await queue.end(second)
    assert await queue.claimed(9) == ["c"]


# -- holds ---------------------------------------------------------------------------------------------------------


async def test_a_hold_keeps_a_slot_taken_until_it_ends(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=2))
    await queue.offer_all("abc")
    await queue.hold("gone", seconds=60)
    seen = await queue.see()
    assert (seen.in_use, seen.held, [hold.job_id for hold in seen.holds]) == (1, 1, ["gone"])
    assert await queue.claimed(9) == ["a"]
    assert await queue.dispatcher.end_holds(queue.clock.now + 59) == 0
    assert await queue.dispatcher.end_holds(queue.clock.now + 60) == 1
    assert await queue.claimed(9) == ["b"]


async def test_a_hold_ends_by_the_clock_without_end_holds(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a")
    await queue.hold("gone", seconds=60)
    queue.clock.advance(59)
    assert await queue.claimed() == []
    queue.clock.advance(1)
    assert await queue.claimed() == ["a"]


@pytest.mark.parametrize("hold_id", ["", "h1"])
async def test_a_repeated_hold_is_counted_once(queue: QueueHarness, hold_id: str) -> None:
    await queue.open(ServiceRules("s", limit=2))
    await queue.hold("gone", seconds=60, hold_id=hold_id)
    await queue.hold("gone", seconds=60, hold_id=hold_id)
    assert (await queue.see()).held == 1


async def test_two_holds_of_one_job_are_counted_separately(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=3))
    await queue.hold("gone", seconds=60)
    await queue.hold("gone", seconds=70)
    assert (await queue.see()).held == 2


async def test_a_hold_that_is_already_over_is_ignored(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.hold("gone", seconds=0)
    assert (await queue.see()).held == 0


# -- leases --------------------------------------------------------------------------------------------------------


async def test_leases_are_named_by_epoch_and_counter(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9), ServiceRules("t", limit=9))
    await queue.offer_all("ab")
    await queue.offer_all("cd", service="t")
    names = [lease.name for lease in await queue.claim(9)]
    assert len(set(names)) == 4
    assert all(epoch == "1" and counter.isdigit() for epoch, counter in (name.split(":") for name in names))


async def test_a_lease_expired_by_its_worker_is_listed_at_once_and_keeps_its_slot(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=2, lease_ttl=10))
    await queue.offer_all("abc")
    given_up, kept = await queue.take(worker="w"), await queue.take(worker="w")
    queue.clock.advance(1)
    await queue.dispatcher.expire([given_up])
    (past,) = await queue.dispatcher.expired()
    assert (past.name, past.job_id, past.worker) == (given_up.name, "a", "w")
    assert await queue.claimed() == []
    await queue.end(given_up)
    assert await queue.claimed() == ["c"]
    await queue.dispatcher.expire([given_up])
    assert await queue.dispatcher.expired() == []
    assert queue.dispatcher.renew("w", [kept.name]) == Renewal()


async def test_a_lease_expires_unless_renewed_and_keeps_its_slot_until_released(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=1, lease_ttl=10))
    await queue.offer_all("ab")
    lease = await queue.take(worker="w")
    queue.clock.advance(9)
    assert queue.dispatcher.renew("w", [lease.name]) == Renewal()
    queue.clock.advance(9)
    assert await queue.dispatcher.expired() == []
    queue.clock.advance(1)
    assert [past.name for past in await queue.dispatcher.expired()] == [lease.name]
    assert await queue.claimed() == []
    await queue.end(lease)
    assert await queue.dispatcher.expired() == []
    assert await queue.claimed() == ["b"]


async def test_an_expired_lease_can_be_renewed_until_it_is_released(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a")
    lease = await queue.take(worker="w")
    queue.clock.advance(100)
    assert queue.dispatcher.renew("w", [lease.name]) == Renewal()
    assert await queue.dispatcher.expired() == []


async def test_a_shorter_ttl_applies_to_leases_granted_or_renewed_afterwards(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=3, lease_ttl=100.0))
    await queue.offer_all("abc")
    renewed, long = await queue.claim(2)
    assert await queue.dispatcher.expired() == []
    await queue.change("s", lease_ttl=5.0)
    short = await queue.take()
    queue.clock.advance(5)
    assert [past.name for past in await queue.dispatcher.expired()] == [short.name]
    await queue.end(short)
    assert queue.dispatcher.renew("w", [renewed.name]) == Renewal()
    assert await queue.dispatcher.expired() == []
    queue.clock.advance(5)
    assert [past.name for past in await queue.dispatcher.expired()] == [renewed.name]
    queue.clock.advance(90)
    assert {past.name for past in await queue.dispatcher.expired()} == {renewed.name, long.name}


async def test_a_released_lease_and_another_workers_lease_are_lost(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=2))
    await queue.offer_all("ab")
    mine, gone = await queue.claim(2, worker="w")
    await queue.end(gone)
    assert queue.dispatcher.renew("w", [mine.name, gone.name]).lost == {gone.name}
    assert queue.dispatcher.renew("v", [mine.name]).lost == {mine.name}


async def test_a_heartbeat_may_come_from_another_thread(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a")
    lease = await queue.take(worker="w")
    queue.clock.advance(14)
    answers: list[Renewal] = []
    thread = threading.Thread(target=lambda: answers.append(queue.dispatcher.renew("w", [lease.name])))
    thread.start()
    thread.join()
    queue.clock.advance(14)
    assert answers == [Renewal()]
    assert await queue.dispatcher.expired() == []


# -- many services in one claim ------------------------------------------------------------------------------------


async def test_services_share_a_workers_budget_in_turn(queue: QueueHarness) -> None:
    await queue.open(*(ServiceRules(name, limit=9) for name in "xyz"))
    for name in "xyz":
        await queue.offer_all([f"{name}{i}" for i in range(9)], service=name)
    assert await queue.claimed(5) == ["x0", "y0", "z0", "x1", "y1"]
    assert await queue.claimed(2) == ["z1", "x2"]


async def test_turns_are_each_workers_own(queue: QueueHarness) -> None:
    await queue.open(*(ServiceRules(name, limit=99) for name in "wxyz"))
    for name in "wxyz":
        await queue.offer_all([f"{name}{i}" for i in range(9)], service=name)
    mine, theirs = [], []
    for _ in range(3):
        mine += await queue.claimed(1, "w", "x", worker="mine")
        theirs += await queue.claimed(1, "y", "z", worker="theirs")
    assert mine == ["w0", "x0", "w1"]
    assert theirs == ["y0", "z0", "y1"]


async def test_budget_that_one_service_cannot_use_goes_to_the_others(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("x", limit=1), ServiceRules("y", limit=9))
    await queue.offer_all(["x0", "x1"], service="x")
    await queue.offer_all(["y0", "y1", "y2"], service="y")
    assert await queue.claimed(3) == ["x0", "y0", "y1"]


# -- pools ---------------------------------------------------------------------------------------------------------


async def test_a_pools_limit_counts_the_leases_and_holds_of_all_its_services(queue: QueueHarness) -> None:
    await open_pool(queue, 3, "x", "y")
    await queue.offer_all(["x0", "x1", "x2"], service="x")
    await queue.offer_all(["y0", "y1", "y2"], service="y")
    await queue.hold("gone", 60, service="y")
    assert len(await queue.claim(9)) == 2
    assert await queue.claim(9) == []
    await queue.configure(pools={"gpu": 4})
    assert len(await queue.claim(9)) == 1


async def test_a_service_within_a_pool_keeps_its_own_limit(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("x", limit=1, pool="gpu"), ServiceRules("y", limit=9, pool="gpu"), pools={"gpu": 3})
    await queue.offer_all(["x0", "x1", "x2"], service="x", band=1)
    await queue.offer_all(["y0", "y1", "y2"], service="y", band=3)
    assert await queue.claimed(9) == ["x0", "y0", "y1"]


async def test_a_pools_slot_goes_to_the_best_band_among_its_services(queue: QueueHarness) -> None:
    await open_pool(queue, 1, "x", "y")
    await queue.offer("low", service="x", band=3)
    await queue.offer("high", service="y", band=1)
    assert await queue.serve(2, "x", "y") == ["high", "low"]


async def test_services_of_a_pool_share_it_in_turn_by_slot_time(queue: QueueHarness) -> None:
    await open_pool(queue, 1, "x", "y")
    await queue.offer_all([f"x{i}" for i in range(9)], service="x")
    await queue.offer_all([f"y{i}" for i in range(9)], service="y")
    served = []
    for _ in range(9):
        lease = await queue.take()
        await queue.end(lease, after=4.0 if lease.service == "x" else 1.0)
        served.append(lease.service)
    assert served.count("x") == 2
    assert served.count("y") == 7


async def test_a_service_saves_up_no_turns_while_it_has_nothing_waiting(queue: QueueHarness) -> None:
    await open_pool(queue, 1, "x", "y")
    await queue.offer_all([f"x{i}" for i in range(20)], service="x")
    await queue.serve(10, "x", "y")
    await queue.offer_all([f"y{i}" for i in range(20)], service="y")
    assert await queue.serve(4, "x", "y") == ["y0", "x10", "y1", "x11"]


async def test_a_fifo_service_counts_as_high_in_its_pool(queue: QueueHarness) -> None:
    await queue.open(
        ServiceRules("x", limit=9, pool="gpu"),
        ServiceRules("y", limit=9, pool="gpu", order=Order.FIFO),
        pools={"gpu": 1},
    )
    await queue.offer("x0", service="x", band=2)
    await queue.offer("y0", service="y", band=3)
    assert await queue.serve(2, "x", "y") == ["y0", "x0"]


async def test_a_slot_whose_best_head_only_another_worker_can_execute_is_reserved_for_it(queue: QueueHarness) -> None:
    await open_pool(queue, 1, "x", "y")
    assert await queue.claimed(1, "y", worker="other") == []
    await queue.offer("x0", service="x", band=2)
    await queue.offer("y0", service="y", band=1)
    queue.wakeups()
    assert await queue.claimed(1, "x", worker="mine") == []
    assert queue.wakeups() == [{"y"}]
    assert await queue.claimed(1, "y", worker="other") == ["y0"]


async def test_no_more_slots_are_reserved_than_the_other_worker_can_use(queue: QueueHarness) -> None:
    await open_pool(queue, 4, "x", "y")
    assert await queue.claimed(2, "y", worker="other") == []
    await queue.offer_all([f"x{i}" for i in range(9)], service="x", band=2)
    await queue.offer_all([f"y{i}" for i in range(9)], service="y", band=1)
    assert await queue.claimed(9, "x", worker="mine") == ["x0", "x1"]
    assert await queue.claimed(2, "y", worker="other") == ["y0", "y1"]


async def test_no_slot_is_reserved_for_a_worker_without_budget(queue: QueueHarness) -> None:
    await open_pool(queue, 4, "x", "y")
    await queue.offer_all(["y0", "y1"], service="y", band=1)
    assert await queue.claimed(1, "y", worker="full") == ["y0"]
    await queue.offer_all(["x0", "x1", "x2"], service="x", band=2)
    assert await queue.claimed(9, "x", worker="mine") == ["x0", "x1", "x2"]


async def test_a_slot_that_both_workers_could_use_goes_to_the_claiming_one(queue: QueueHarness) -> None:
    await open_pool(queue, 1, "x", "y")
    assert await queue.claimed(1, "x", "y", worker="other") == []
    await queue.offer("y0", service="y", band=1)
    assert await queue.claimed(1, "y", worker="mine") == ["y0"]


async def test_no_slot_is_reserved_for_a_worker_that_stopped_claiming(queue: QueueHarness) -> None:
    await open_pool(queue, 1, "x", "y")
    assert await queue.claimed(1, "y", worker="silent") == []
    await queue.offer("y0", service="y", band=1)
    await queue.offer("x0", service="x", band=2)
    queue.clock.advance(31)
    assert await queue.claimed(1, "x", worker="mine") == ["x0"]


async def test_a_passed_over_worker_is_woken_if_the_reserved_slot_stays_unused(queue: QueueHarness) -> None:
    await open_pool(queue, 1, "x", "y")
    assert await queue.claimed(1, "y", worker="other") == []
    await queue.offer("x0", service="x", band=2)
    await queue.offer("y0", service="y", band=1)
    assert await queue.claimed(1, "x", worker="mine") == []
    queue.wakeups()
    await queue.withdraw("y0", service="y")
    assert queue.wakeups() == [{"x"}]
    assert await queue.claimed(1, "x", worker="mine") == ["x0"]


async def test_an_empty_claim_does_not_wake_its_own_worker(queue: QueueHarness) -> None:
    await open_pool(queue, 1, "x", "y")
    assert await queue.claimed(1, "y", worker="other") == []
    await queue.offer("x0", service="x", band=2)
    await queue.offer("y0", service="y", band=1)
    await queue.claim(1, "x", worker="mine")
    queue.wakeups()
    await queue.claim(1, "x", worker="mine")
    assert queue.wakeups() == [{"y"}]
