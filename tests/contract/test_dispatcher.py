"""What every dispatcher does: what is in line, and who goes next."""

from __future__ import annotations

import pytest

from fairlead.dispatch.port import Offer
from fairlead.domain.job import RANK_ARRIVAL, RANK_RETRY, RANK_UNDER_WAY
from fairlead.domain.limits import Order, Rules, ServiceRules
from fairlead.domain.order import SECOND
from tests.contract.dispatchers import Line

FAIR = ServiceRules("s", limit=1)
FIFO = ServiceRules("s", limit=1, order=Order.FIFO)


# -- what is in line -----------------------------------------------------------------------------------------------


async def test_what_is_offered_is_granted_with_its_step_and_run(line: Line) -> None:
    await line.open(FAIR)
    assert await line.offer("a", "ann", step=3, run=7)
    lease = await line.take(worker="w1")
    assert (lease.job_id, lease.step, lease.run, lease.user_id) == ("a", 3, 7, "ann")
    assert (lease.service, lease.worker, lease.region) == ("s", "w1", None)
    assert (lease.granted_at, lease.expires_at) == (line.clock.now, line.clock.now + FAIR.lease_ttl)


async def test_an_offer_that_is_not_newer_than_what_waits_does_nothing(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("a", run=5)
    assert not await line.offer("a", run=5)
    assert not await line.offer("a", run=4, band=1)
    assert (await line.see()).waiting == {1: 0, 2: 1, 3: 0}


async def test_a_newer_offer_moves_the_step_and_never_adds_a_second_copy(line: Line) -> None:
    await line.open(FAIR, ServiceRules("t", limit=1))
    await line.offer("a", run=1)
    assert await line.offer("a", service="t", run=2, step=1, band=1)
    assert await line.claimed(5, "s") == []
    assert await line.claimed(5, "t") == ["a"]


async def test_a_job_that_goes_back_to_a_step_before_waits_for_that_one_only(line: Line) -> None:
    await line.open(FAIR, ServiceRules("t", limit=1), ServiceRules("u", limit=1))
    await line.offer("a", service="t", run=3, step=1, steps=("s", "t"))
    assert not await line.offer("a", run=3, steps=("s", "t")), "not newer than what waits for another service"
    assert await line.offer("a", run=4, steps=("s", "t"))
    assert await line.claimed(5, "t") == []
    assert await line.claimed(5, "s") == ["a"]


async def test_an_offer_that_is_not_newer_than_a_lease_does_nothing(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("a", run=3)
    await line.take()
    assert not await line.offer("a", run=3)
    assert not await line.offer("a", run=2)


async def test_a_newer_offer_waits_in_line_while_the_older_lease_is_still_out(line: Line) -> None:
    await line.open(ServiceRules("s", limit=2))
    await line.offer("a", run=3)
    old = await line.take()
    assert await line.offer("a", run=5)
    new = await line.take()
    assert (old.run, new.run) == (3, 5)
    await line.end(new)
    assert not await line.offer("a", run=3), "the older lease is still out"
    await line.end(old)
    assert await line.offer("a", run=3)


async def test_the_number_of_newer_offers_is_told(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("a")
    offers = [Offer(job, seq, "s", "ann", 2, 2, 0, 1) for seq, job in enumerate("abcb")]
    assert await line.dispatcher.offer(offers) == 2, "a was there before, b the second time"


async def test_what_is_offered_for_an_unknown_service_waits_until_it_is_configured(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("a", service="later")
    assert (await line.see("later")).limit == 0
    assert await line.claimed(1, "later") == []
    await line.configure(ServiceRules("later", limit=1))
    assert await line.claimed(1, "later") == [], "its scope was not opened yet"
    await line.dispatcher.close_scope("service:later", epoch=1)
    await line.offer("a", service="later")
    await line.dispatcher.open_scope("service:later", epoch=1)
    assert await line.claimed(1, "later") == ["a"]


async def test_a_service_that_is_no_longer_there_keeps_what_waits(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("a")
    await line.dispatcher.configure(Rules({}, version=9))
    assert await line.claimed(1, "s") == []
    await line.dispatcher.configure(Rules({"s": FAIR}, version=10))
    assert await line.claimed(1, "s") == ["a"]


async def test_a_withdrawn_job_is_never_granted(line: Line) -> None:
    await line.open(FAIR)
    await line.offer_all(["a", "b"])
    assert await line.withdraw("a", run=2) == 1
    assert await line.withdraw("a", run=2) == 0
    assert await line.claimed(5) == ["b"]


async def test_a_withdrawal_older_than_what_waits_does_nothing(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("a", run=4)
    assert await line.withdraw("a", run=3) == 0
    assert await line.claimed(5) == ["a"]


async def test_a_promotion_moves_the_step_and_carries_its_run(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("high", "ann", band=1)
    await line.offer("low", "bob", band=3)
    assert await line.promote("low", band=2, run=2) == 1
    assert (await line.see()).waiting == {1: 1, 2: 1, 3: 0}
    await line.serve(1)
    assert (await line.take()).run == 2


async def test_a_promotion_of_what_is_newer_or_gone_does_nothing(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("a", band=3, run=5)
    assert await line.promote("a", band=2, run=4) == 0
    assert await line.promote("b", band=2) == 0
    assert await line.promote("a", band=2, run=6) == 1
    assert await line.promote("a", band=2, run=6) == 0, "said twice"
    assert not await line.offer("a", band=3, run=5), "a late offer does not undo it"


# -- who goes next: bands and users --------------------------------------------------------------------------------


async def test_higher_bands_go_first(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("low", band=3)
    await line.offer("medium", band=2)
    await line.offer("high", band=1)
    assert await line.serve(3) == ["high", "medium", "low"]


async def test_a_user_with_many_jobs_and_a_user_with_one_alternate(line: Line) -> None:
    await line.open(FAIR)
    await line.offer_all([f"a{i}" for i in range(100)], "ann")
    await line.serve(10)
    await line.offer("b0", "bob")
    assert "b0" in await line.serve(2)


async def test_newcomers_go_by_arrival_and_then_users_with_equal_virtual_times_by_their_id(line: Line) -> None:
    await line.open(FAIR)
    for user in ("cleo", "ann", "bob"):
        await line.offer_all([f"{user}{i}" for i in range(2)], user)
    assert await line.serve(6) == ["cleo0", "ann0", "bob0", "ann1", "bob1", "cleo1"]


async def test_within_one_user_retries_go_first_then_jobs_under_way_then_arrivals(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("arrival", rank=RANK_ARRIVAL)
    await line.offer("under way", rank=RANK_UNDER_WAY)
    await line.offer("retry", rank=RANK_RETRY)
    await line.offer("older arrival", rank=RANK_ARRIVAL, seq=0)
    assert await line.serve(4) == ["retry", "under way", "older arrival", "arrival"]


async def test_a_retry_of_one_user_does_not_go_before_the_turn_of_another(line: Line) -> None:
    await line.open(FAIR)
    await line.offer_all(["a0", "a1"], "ann")
    await line.offer_all(["b0", "b1"], "bob")
    await line.serve(2)
    await line.offer("b2", "bob", rank=RANK_RETRY)
    assert await line.serve(3) == ["a1", "b2", "b1"]


async def test_twice_the_weight_is_twice_the_share(line: Line) -> None:
    await line.open(FAIR)
    await line.offer_all([f"a{i}" for i in range(30)], "ann", weight=2.0)
    await line.offer_all([f"b{i}" for i in range(30)], "bob")
    served = await line.serve(30)
    assert sum(job.startswith("a") for job in served) == 20


async def test_the_last_weight_offered_is_the_one_that_counts(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("a0", "ann", weight=1.0)
    await line.offer("a1", "ann", weight=4.0)
    lease = await line.take()
    assert (lease.job_id, lease.weight, lease.charged) == ("a0", 4.0, SECOND // 4)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
async def test_a_weight_that_is_none_does_not_stop_the_line(line: Line, weight: float) -> None:
    await line.open(FAIR)
    await line.offer("a", weight=weight)
    lease = await line.take()
    assert (lease.job_id, lease.charged) == ("a", SECOND)
    await line.end(lease)


@pytest.mark.parametrize("order", Order)
async def test_a_backlog_of_thousands_keeps_its_order(line: Line, order: Order) -> None:
    await line.open(ServiceRules("s", limit=1, order=order))
    for user in ("ann", "bob"):
        for i in reversed(range(1500)):
            await line.offer(f"{user}{i:04}", user, seq=2 * i + (user == "bob"))
    withdrawn = {f"ann{i:04}" for i in range(0, 1500, 7)}
    for job in withdrawn:
        await line.withdraw(job)
    jobs = [f"{user}{i:04}" for user in ("ann", "bob") for i in range(1500) if f"{user}{i:04}" not in withdrawn]
    places = await line.dispatcher.places(jobs)
    assert await line.serve(len(jobs)) == sorted(jobs, key=lambda job: places[job].position)


async def test_worker_pools_may_be_bound_to_bands(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9))
    await line.offer("high", band=1)
    await line.offer("low", band=3)
    assert await line.claimed(5, bands=frozenset({3})) == ["low"]
    assert await line.claimed(5, bands=frozenset({2, 3})) == []
    assert await line.claimed(5, bands=frozenset({1})) == ["high"]


# -- who goes next: virtual time -----------------------------------------------------------------------------------


async def test_a_grant_is_charged_by_the_declared_cost_until_something_is_measured(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9), ServiceRules("t", limit=9, cost=4.0))
    await line.offer("a", "ann", cost=3.0)
    await line.offer("b", "bob")
    await line.offer("c", "cleo", service="t")
    await line.offer("d", "dan", service="t", cost=5.0)
    charged = {lease.job_id: lease.charged for lease in await line.claim(9)}
    assert charged == {"a": 3 * SECOND, "b": SECOND, "c": 4 * SECOND, "d": 5 * SECOND}


async def test_a_grant_is_charged_by_the_users_mean_duration_else_by_the_services(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9, cost=1.0))
    await line.offer("a1", "ann", cost=2.0)
    await line.run_first("ann", 8.0)
    await line.offer("b", "bob", cost=2.0)
    await line.run_first("bob", 16.0)
    await line.offer("c", "cleo", cost=2.0)
    charged = {lease.job_id: lease.charged for lease in await line.claim(9)}
    assert charged == {"a1": 8 * SECOND, "b": 16 * SECOND, "c": 12 * SECOND}, "the service: (8 + 16) / 2"


@pytest.mark.parametrize(("seconds", "weight"), [(5.0, 1.0), (0.25, 1.0), (7.0, 3.0), (0.0, 2.0)])
async def test_the_charge_is_settled_to_the_slot_time_really_used(line: Line, seconds: float, weight: float) -> None:
    await line.open(FAIR)
    await line.offer_all(["a0", "a1"], "ann", weight=weight)
    await line.end(await line.take(), after=seconds)
    assert (await line.see()).users[0].tag == max(1, int(seconds * SECOND / weight))


async def test_settling_moves_everything_that_the_user_has_waiting(line: Line) -> None:
    await line.open(FAIR)
    await line.offer_all([f"a{i}" for i in range(4)], "ann")
    await line.offer_all([f"b{i}" for i in range(4)], "bob")
    assert await line.serve(1, seconds=3.5) == ["a0"]
    assert await line.serve(3, seconds=1.0) == ["b0", "b1", "b2"]


async def test_a_lease_that_expired_is_settled_as_any_other(line: Line) -> None:
    await line.open(FAIR)
    await line.offer_all(["a0", "a1"], "ann")
    await line.take()
    line.clock.advance(20)
    (lease,) = await line.dispatcher.expired()
    await line.end(lease)
    assert await line.tag("ann") == 20.0


async def test_a_refund_gives_the_charge_back_and_measures_nothing(line: Line) -> None:
    await line.open(FAIR)
    await line.offer_all(["a0", "a1"], "ann", cost=4.0)
    await line.end(await line.take(), after=9.0, refund=True)
    assert await line.tag("ann") == 0.0
    assert (await line.see()).mean_duration is None


async def test_the_weight_at_grant_is_the_one_that_settles(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("a0", "ann", weight=2.0)
    lease = await line.take()
    await line.offer("a1", "ann", weight=1.0)
    await line.end(lease, after=8.0)
    assert await line.tag("ann") == 4.0


async def test_who_arrives_starts_at_the_virtual_time_and_gains_no_credit(line: Line) -> None:
    await line.open(FAIR)
    await line.offer_all([f"a{i}" for i in range(20)], "ann")
    await line.serve(10)
    await line.offer_all([f"b{i}" for i in range(9)], "bob")
    assert (await line.see()).virtual_time[2] == 9 * SECOND
    assert await line.tag("bob") == 9.0
    assert await line.serve(4) == ["b0", "a10", "b1", "a11"]


async def test_who_returns_has_no_debt_forgotten(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("a0", "ann")
    await line.offer_all([f"b{i}" for i in range(9)], "bob")
    await line.serve(1, seconds=5.0)  # ann has nothing left, and a debt
    await line.offer("a1", "ann")
    assert await line.tag("ann") == 5.0
    assert await line.serve(6) == ["b0", "b1", "b2", "b3", "b4", "a1"]


async def test_a_newcomer_goes_before_a_user_that_is_given_back_what_its_calls_did_not_take(line: Line) -> None:
    await line.open(ServiceRules("s", limit=4))
    await line.offer_all([f"a{i}" for i in range(20)], "ann")
    leases = await line.claim(4)
    await line.offer("b", "bob")
    for lease in leases:
        await line.end(lease, after=1 / 64)
    assert await line.tag("ann") < await line.tag("bob")
    assert await line.claimed(2) == ["b", "a4"]


async def test_the_virtual_time_falls_with_a_user_that_was_charged_too_much(line: Line) -> None:
    """Else who comes after would start, and have debts forgotten, at a peak that nobody really reached."""
    await line.open(ServiceRules("s", limit=4))
    await line.offer_all([f"a{i}" for i in range(20)], "ann")
    leases = await line.claim(4)
    assert (await line.see()).virtual_time[2] == 3 * SECOND
    for lease in leases:
        await line.end(lease)
    await line.take()
    assert (await line.see()).virtual_time[2] == 4


async def test_a_newcomer_that_turns_out_to_have_a_debt_waits_for_its_turn(line: Line) -> None:
    await line.open(ServiceRules("s", limit=2))
    await line.offer("a0", "ann")
    await line.offer_all([f"b{i}" for i in range(9)], "bob")
    long = (await line.claim(2))[0]
    for lease in [lease for lease in (await line.see()).leases if lease.user_id == "bob"]:
        await line.end(lease, after=1.0)
    await line.end(await line.take(), after=0.5)
    await line.offer("a1", "ann")
    assert (await line.positions("a1")) == [1]
    await line.end(long, after=2.0)
    assert await line.tag("ann") == 3.5
    assert (await line.positions("a1")) == [4], "bob starts at 1.5, 2.4375 and 3.375"


async def test_a_user_with_nothing_to_do_is_forgotten_when_the_virtual_time_reaches_it(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("a0", "ann")
    await line.offer_all([f"b{i}" for i in range(9)], "bob")
    await line.serve(1, seconds=3.0)
    await line.serve(3)
    assert await line.user("ann") is not None, "virtual time 2, ann at 3"
    await line.serve(1)
    assert await line.user("ann") is None


async def test_a_user_is_remembered_for_a_debt_in_any_band(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("a0", "ann", band=1)
    await line.serve(1, seconds=3.0)
    await line.offer("a1", "ann", band=2)
    await line.serve(1)
    await line.offer_all(["b0", "b1", "b2", "b3"], "bob", band=2)
    await line.serve(4, seconds=4.0)
    assert await line.tag("ann", band=1) == 3.0
    await line.offer_all(["c0", "c1"], "cleo", band=1)
    await line.serve(2, seconds=3.0)
    assert await line.user("ann", band=1) is None


async def test_who_is_promoted_into_a_band_starts_at_its_virtual_time(line: Line) -> None:
    await line.open(FAIR)
    await line.offer_all([f"a{i}" for i in range(20)], "ann")
    await line.offer("b0", "bob", band=3)
    await line.serve(10)
    await line.promote("b0", band=2)
    assert await line.tag("bob") == 9.0


async def test_a_step_that_is_moved_within_its_band_does_not_enter_it_anew(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9))
    await line.offer_all(["a0", "a1"], "ann")
    await line.offer_all(["b0", "b1"], "bob")
    leases = {lease.job_id: lease for lease in await line.claim(3)}
    await line.end(leases["b0"], refund=True)
    assert (await line.see()).virtual_time[2] == SECOND
    await line.offer("b1", "bob", run=2)
    assert await line.tag("bob") == 0.0


# -- FIFO ----------------------------------------------------------------------------------------------------------


async def test_fifo_is_by_seq_whatever_the_band_rank_user_or_order_of_arrival(line: Line) -> None:
    await line.open(FIFO)
    await line.offer("c", "ann", seq=30, band=1)
    await line.offer("a", "bob", seq=10, band=3)
    await line.offer("d", "ann", seq=40, rank=RANK_RETRY)
    await line.offer("b", "ann", seq=20, band=2)
    assert await line.serve(4) == ["a", "b", "c", "d"]


async def test_fifo_knows_no_weight_and_charges_nothing(line: Line) -> None:
    await line.open(FIFO)
    await line.offer_all(["a0", "a1"], "ann", weight=9.0)
    await line.offer("b0", "bob")
    assert (await line.take()).charged == 0
    assert (await line.see()).virtual_time == {}


async def test_fifo_is_open_to_workers_bound_to_any_band(line: Line) -> None:
    await line.open(FIFO)
    await line.offer("a", band=3)
    assert await line.claimed(bands=frozenset({1})) == ["a"]


async def test_a_retry_keeps_its_place_in_a_fifo_line(line: Line) -> None:
    await line.open(FIFO)
    await line.offer("a", seq=1, run=1)
    await line.offer("b", seq=2)
    await line.end(await line.take())
    await line.offer("a", seq=1, run=3, rank=RANK_RETRY)
    assert await line.serve(2) == ["a", "b"]


async def test_a_lane_may_change_its_order_with_its_jobs_in_line(line: Line) -> None:
    await line.open(FAIR)
    await line.offer_all(["a0", "a1", "a2"], "ann")
    await line.offer("b0", "bob", rank=RANK_RETRY)
    await line.configure(FIFO)
    assert await line.serve(2) == ["a0", "a1"]
    await line.configure(FAIR)
    await line.offer_all(["b1"], "bob")
    assert await line.serve(3) == ["a2", "b0", "b1"]
