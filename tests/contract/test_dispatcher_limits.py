"""What every dispatcher does: is there a free slot, and for whom? Limits, holds, leases, a worker's room, pools."""

from __future__ import annotations

import threading

import pytest

from fairlead.dispatch.port import Claim, Release, Renewal
from fairlead.domain.limits import Order, Rules, ServiceRules
from fairlead.domain.order import SECOND
from tests.contract.dispatchers import Line, open_pool

FAIR = ServiceRules("s", limit=1)


# -- limits --------------------------------------------------------------------------------------------------------


async def test_a_claim_takes_no_more_than_its_room_and_the_limit(line: Line) -> None:
    await line.open(ServiceRules("s", limit=3))
    await line.offer_all("abcdef")
    assert await line.claimed(2) == ["a", "b"]
    assert await line.claimed(9) == ["c"]
    assert await line.claimed(9) == []
    assert await line.claimed(0) == []


async def test_giving_back_and_taking_is_one_operation(line: Line) -> None:
    await line.open(FAIR)
    await line.offer_all("ab")
    lease = await line.take()
    (taken,) = await line.dispatcher.exchange(Claim("w", 1, frozenset("s")), [Release(lease.name, "s")])
    assert taken.job_id == "b"


async def test_releasing_twice_frees_one_slot(line: Line) -> None:
    await line.open(ServiceRules("s", limit=2))
    await line.offer_all("abcd")
    first, _ = await line.claim(2)
    await line.end(first)
    await line.end(first)
    assert await line.claimed(9) == ["c"]


async def test_a_lowered_limit_stops_new_grants_and_takes_nothing_back(line: Line) -> None:
    await line.open(ServiceRules("s", limit=3))
    await line.offer_all("abcdef")
    leases = await line.claim(3)
    await line.change("s", limit=1)
    await line.end(leases[0])
    await line.end(leases[1])
    assert await line.claimed(9) == []
    await line.end(leases[2])
    assert await line.claimed(9) == ["d"]


async def test_older_rules_do_nothing(line: Line) -> None:
    await line.open(FAIR)
    await line.offer_all("abc")
    await line.dispatcher.configure(Rules({"s": ServiceRules("s", limit=3)}, version=line.version - 1))
    assert await line.claimed(9) == ["a"]


async def test_nothing_is_granted_from_a_paused_lane(line: Line) -> None:
    await line.open(FAIR)
    await line.change("s", paused=True)
    assert await line.offer("a")
    assert await line.claimed() == []
    assert (await line.see()).paused
    await line.change("s", paused=False)
    assert await line.claimed() == ["a"]


@pytest.mark.parametrize("order", Order)
async def test_a_user_at_its_limit_is_set_aside_and_blocks_nobody(line: Line, order: Order) -> None:
    await line.open(ServiceRules("s", limit=9, order=order, user_limit=2))
    await line.offer_all(["a0", "a1", "a2", "a3"], "ann")
    await line.offer_all(["b0"], "bob")
    leases = await line.claim(9)
    assert {lease.job_id for lease in leases} == {"a0", "a1", "b0"}
    user = await line.user("ann", band=1 if order is Order.FIFO else 2)
    assert user is not None
    assert (user.parked, user.waiting, user.running) == (True, 2, 2)
    await line.end(next(lease for lease in leases if lease.user_id == "ann"))
    assert await line.claimed(9) == ["a2"]


async def test_who_reaches_its_limit_in_one_band_is_set_aside_in_all(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9, user_limit=1))
    await line.offer("a1", "ann", band=1)
    await line.offer("a2", "ann", band=2)
    await line.offer("b2", "bob", band=2)
    assert await line.claimed(5) == ["a1", "b2"]


async def test_who_is_unparked_starts_at_the_virtual_time(line: Line) -> None:
    await line.open(ServiceRules("s", limit=2, user_limit=1))
    await line.offer_all(["a0", "a1", "a2"], "ann", weight=1000.0)
    await line.offer_all([f"b{i}" for i in range(9)], "bob")
    a0, b0 = await line.claim(2)
    assert (a0.job_id, b0.job_id) == ("a0", "b0")
    for _ in range(5):
        await line.end(b0, after=1.0)
        b0 = await line.take()
    assert (await line.see()).virtual_time[2] == 5 * SECOND
    await line.end(a0)
    assert await line.tag("ann") == 5.0


async def test_a_raised_user_limit_lets_users_back_in(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9, user_limit=1))
    await line.offer_all("abc")
    await line.claim(9)
    await line.change("s", user_limit=2)
    assert await line.claimed(9) == ["b"]
    await line.change("s", user_limit=None)
    assert await line.claimed(9) == ["c"]


async def test_a_lowered_user_limit_sets_users_aside(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9))
    await line.offer_all("abc")
    first, second = await line.claim(2)
    await line.change("s", user_limit=1)
    await line.end(first)
    assert await line.claimed(9) == []
    await line.end(second)
    assert await line.claimed(9) == ["c"]


# -- holds ---------------------------------------------------------------------------------------------------------


async def test_a_hold_keeps_a_slot_taken_until_it_ends(line: Line) -> None:
    await line.open(ServiceRules("s", limit=2))
    await line.offer_all("abc")
    await line.hold("gone", seconds=60)
    seen = await line.see()
    assert (seen.in_use, seen.held, [hold.job_id for hold in seen.holds]) == (1, 1, ["gone"])
    assert await line.claimed(9) == ["a"]
    assert await line.dispatcher.end_holds(line.clock.now + 59) == 0
    assert await line.dispatcher.end_holds(line.clock.now + 60) == 1
    assert await line.claimed(9) == ["b"]


async def test_a_hold_ends_by_the_clock_even_if_nobody_ends_it(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("a")
    await line.hold("gone", seconds=60)
    line.clock.advance(59)
    assert await line.claimed() == []
    line.clock.advance(1)
    assert await line.claimed() == ["a"]


@pytest.mark.parametrize("hold_id", ["", "h1"])
async def test_a_hold_said_twice_is_counted_once(line: Line, hold_id: str) -> None:
    await line.open(ServiceRules("s", limit=2))
    await line.hold("gone", seconds=60, hold_id=hold_id)
    await line.hold("gone", seconds=60, hold_id=hold_id)
    assert (await line.see()).held == 1


async def test_two_holds_of_one_job_are_two(line: Line) -> None:
    await line.open(ServiceRules("s", limit=3))
    await line.hold("gone", seconds=60)
    await line.hold("gone", seconds=70)
    assert (await line.see()).held == 2


async def test_a_hold_whose_time_has_passed_is_not_taken(line: Line) -> None:
    await line.open(FAIR)
    await line.hold("gone", seconds=0)
    assert (await line.see()).held == 0


# -- leases --------------------------------------------------------------------------------------------------------


async def test_leases_are_named_by_epoch_and_counter(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9), ServiceRules("t", limit=9))
    await line.offer_all("ab")
    await line.offer_all("cd", service="t")
    names = [lease.name for lease in await line.claim(9)]
    assert len(set(names)) == 4
    assert all(epoch == "1" and counter.isdigit() for epoch, counter in (name.split(":") for name in names))


async def test_a_lease_expires_unless_renewed_and_keeps_its_slot_until_released(line: Line) -> None:
    await line.open(ServiceRules("s", limit=1, lease_ttl=10))
    await line.offer_all("ab")
    lease = await line.take(worker="w")
    line.clock.advance(9)
    assert line.dispatcher.renew("w", [lease.name]) == Renewal()
    line.clock.advance(9)
    assert await line.dispatcher.expired() == []
    line.clock.advance(1)
    assert [past.name for past in await line.dispatcher.expired()] == [lease.name]
    assert await line.claimed() == []
    await line.end(lease)
    assert await line.dispatcher.expired() == []
    assert await line.claimed() == ["b"]


async def test_a_lease_past_its_expiry_may_be_renewed_while_it_is_there(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("a")
    lease = await line.take(worker="w")
    line.clock.advance(100)
    assert line.dispatcher.renew("w", [lease.name]) == Renewal()
    assert await line.dispatcher.expired() == []


async def test_a_shorter_ttl_counts_for_the_leases_granted_or_renewed_from_then_on(line: Line) -> None:
    await line.open(ServiceRules("s", limit=3, lease_ttl=100.0))
    await line.offer_all("abc")
    renewed, long = await line.claim(2)
    assert await line.dispatcher.expired() == []
    await line.change("s", lease_ttl=5.0)
    short = await line.take()
    line.clock.advance(5)
    assert [past.name for past in await line.dispatcher.expired()] == [short.name]
    await line.end(short)
    assert line.dispatcher.renew("w", [renewed.name]) == Renewal()
    assert await line.dispatcher.expired() == []
    line.clock.advance(5)
    assert [past.name for past in await line.dispatcher.expired()] == [renewed.name]
    line.clock.advance(90)
    assert {past.name for past in await line.dispatcher.expired()} == {renewed.name, long.name}


async def test_a_lease_that_was_taken_back_or_is_anothers_is_lost(line: Line) -> None:
    await line.open(ServiceRules("s", limit=2))
    await line.offer_all("ab")
    mine, gone = await line.claim(2, worker="w")
    await line.end(gone)
    assert line.dispatcher.renew("w", [mine.name, gone.name]).lost == {gone.name}
    assert line.dispatcher.renew("v", [mine.name]).lost == {mine.name}


async def test_a_heartbeat_may_come_from_another_thread(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("a")
    lease = await line.take(worker="w")
    line.clock.advance(14)
    answers: list[Renewal] = []
    thread = threading.Thread(target=lambda: answers.append(line.dispatcher.renew("w", [lease.name])))
    thread.start()
    thread.join()
    line.clock.advance(14)
    assert answers == [Renewal()]
    assert await line.dispatcher.expired() == []


# -- many services in one claim ------------------------------------------------------------------------------------


async def test_services_take_turns_in_a_workers_room(line: Line) -> None:
    await line.open(*(ServiceRules(name, limit=9) for name in "xyz"))
    for name in "xyz":
        await line.offer_all([f"{name}{i}" for i in range(9)], service=name)
    assert await line.claimed(5) == ["x0", "y0", "z0", "x1", "y1"]
    assert await line.claimed(2) == ["z1", "x2"]


async def test_turns_are_each_workers_own(line: Line) -> None:
    await line.open(*(ServiceRules(name, limit=99) for name in "wxyz"))
    for name in "wxyz":
        await line.offer_all([f"{name}{i}" for i in range(9)], service=name)
    mine, theirs = [], []
    for _ in range(3):
        mine += await line.claimed(1, "w", "x", worker="mine")
        theirs += await line.claimed(1, "y", "z", worker="theirs")
    assert mine == ["w0", "x0", "w1"]
    assert theirs == ["y0", "z0", "y1"]


async def test_room_that_one_service_cannot_fill_goes_to_the_others(line: Line) -> None:
    await line.open(ServiceRules("x", limit=1), ServiceRules("y", limit=9))
    await line.offer_all(["x0", "x1"], service="x")
    await line.offer_all(["y0", "y1", "y2"], service="y")
    assert await line.claimed(3) == ["x0", "y0", "y1"]


# -- pools ---------------------------------------------------------------------------------------------------------


async def test_a_pools_limit_counts_the_leases_and_holds_of_all_its_services(line: Line) -> None:
    await open_pool(line, 3, "x", "y")
    await line.offer_all(["x0", "x1", "x2"], service="x")
    await line.offer_all(["y0", "y1", "y2"], service="y")
    await line.hold("gone", 60, service="y")
    assert len(await line.claim(9)) == 2
    assert await line.claim(9) == []
    await line.configure(pools={"gpu": 4})
    assert len(await line.claim(9)) == 1


async def test_a_service_within_a_pool_keeps_its_own_limit(line: Line) -> None:
    await line.open(ServiceRules("x", limit=1, pool="gpu"), ServiceRules("y", limit=9, pool="gpu"), pools={"gpu": 3})
    await line.offer_all(["x0", "x1", "x2"], service="x", band=1)
    await line.offer_all(["y0", "y1", "y2"], service="y", band=3)
    assert await line.claimed(9) == ["x0", "y0", "y1"]


async def test_a_pools_slot_goes_to_the_best_band_among_its_services(line: Line) -> None:
    await open_pool(line, 1, "x", "y")
    await line.offer("low", service="x", band=3)
    await line.offer("high", service="y", band=1)
    assert await line.serve(2, "x", "y") == ["high", "low"]


async def test_services_of_a_pool_share_it_in_turn_by_slot_time(line: Line) -> None:
    await open_pool(line, 1, "x", "y")
    await line.offer_all([f"x{i}" for i in range(9)], service="x")
    await line.offer_all([f"y{i}" for i in range(9)], service="y")
    served = []
    for _ in range(9):
        lease = await line.take()
        await line.end(lease, after=4.0 if lease.service == "x" else 1.0)
        served.append(lease.service)
    assert served.count("x") == 2
    assert served.count("y") == 7


async def test_a_service_saves_up_no_turns_while_it_has_nothing_waiting(line: Line) -> None:
    await open_pool(line, 1, "x", "y")
    await line.offer_all([f"x{i}" for i in range(20)], service="x")
    await line.serve(10, "x", "y")
    await line.offer_all([f"y{i}" for i in range(20)], service="y")
    assert await line.serve(4, "x", "y") == ["y0", "x10", "y1", "x11"]


async def test_a_fifo_service_counts_as_high_in_its_pool(line: Line) -> None:
    await line.open(
        ServiceRules("x", limit=9, pool="gpu"),
        ServiceRules("y", limit=9, pool="gpu", order=Order.FIFO),
        pools={"gpu": 1},
    )
    await line.offer("x0", service="x", band=2)
    await line.offer("y0", service="y", band=3)
    assert await line.serve(2, "x", "y") == ["y0", "x0"]


async def test_a_slot_whose_best_head_is_for_another_workers_service_is_left_to_it(line: Line) -> None:
    await open_pool(line, 1, "x", "y")
    assert await line.claimed(1, "y", worker="other") == []
    await line.offer("x0", service="x", band=2)
    await line.offer("y0", service="y", band=1)
    line.woken()
    assert await line.claimed(1, "x", worker="mine") == []
    assert line.woken() == [{"y"}]
    assert await line.claimed(1, "y", worker="other") == ["y0"]


async def test_as_many_slots_are_left_as_the_other_worker_can_use(line: Line) -> None:
    await open_pool(line, 4, "x", "y")
    assert await line.claimed(2, "y", worker="other") == []
    await line.offer_all([f"x{i}" for i in range(9)], service="x", band=2)
    await line.offer_all([f"y{i}" for i in range(9)], service="y", band=1)
    assert await line.claimed(9, "x", worker="mine") == ["x0", "x1"]
    assert await line.claimed(2, "y", worker="other") == ["y0", "y1"]


async def test_no_slot_is_left_to_a_worker_without_room(line: Line) -> None:
    await open_pool(line, 4, "x", "y")
    await line.offer_all(["y0", "y1"], service="y", band=1)
    assert await line.claimed(1, "y", worker="full") == ["y0"]
    await line.offer_all(["x0", "x1", "x2"], service="x", band=2)
    assert await line.claimed(9, "x", worker="mine") == ["x0", "x1", "x2"]


async def test_a_slot_that_both_workers_could_use_goes_to_who_asks(line: Line) -> None:
    await open_pool(line, 1, "x", "y")
    assert await line.claimed(1, "x", "y", worker="other") == []
    await line.offer("y0", service="y", band=1)
    assert await line.claimed(1, "y", worker="mine") == ["y0"]


async def test_a_worker_that_fell_silent_is_not_waited_for(line: Line) -> None:
    await open_pool(line, 1, "x", "y")
    assert await line.claimed(1, "y", worker="silent") == []
    await line.offer("y0", service="y", band=1)
    await line.offer("x0", service="x", band=2)
    line.clock.advance(31)
    assert await line.claimed(1, "x", worker="mine") == ["x0"]


async def test_who_was_passed_over_is_woken_when_the_slot_is_not_used_after_all(line: Line) -> None:
    await open_pool(line, 1, "x", "y")
    assert await line.claimed(1, "y", worker="other") == []
    await line.offer("x0", service="x", band=2)
    await line.offer("y0", service="y", band=1)
    assert await line.claimed(1, "x", worker="mine") == []
    line.woken()
    await line.withdraw("y0", service="y")
    assert line.woken() == [{"x"}]
    assert await line.claimed(1, "x", worker="mine") == ["x0"]


async def test_a_claim_in_vain_does_not_wake_its_own_worker_again(line: Line) -> None:
    await open_pool(line, 1, "x", "y")
    assert await line.claimed(1, "y", worker="other") == []
    await line.offer("x0", service="x", band=2)
    await line.offer("y0", service="y", band=1)
    await line.claim(1, "x", worker="mine")
    line.woken()
    await line.claim(1, "x", worker="mine")
    assert line.woken() == [{"y"}]
