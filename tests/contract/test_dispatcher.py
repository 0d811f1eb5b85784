"""The contract of every dispatcher: queued steps and their order."""

from __future__ import annotations

import pytest

from fairlead.dispatch.memory import MemoryDispatcher
from fairlead.dispatch.memory.service import MOST_IDLE
from fairlead.dispatch.port import Offer, Release
from fairlead.domain.fair_share import SECOND
from fairlead.domain.job import RANK_ARRIVAL, RANK_RETRY, RANK_UNDER_WAY
from fairlead.domain.rules import Order, Rules, ServiceRules
from tests.contract.dispatchers import QueueHarness

FAIR = ServiceRules("s", limit=1)
FIFO = ServiceRules("s", limit=1, order=Order.FIFO)


# -- queued steps -----------------------------------------------------------------------------------------------------


async def test_an_offered_step_is_granted_with_its_step_and_run(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    assert await queue.offer("a", "ann", step=3, run=7)
    lease = await queue.take(worker="w1")
    assert (lease.job_id, lease.step, lease.run, lease.user_id) == ("a", 3, 7, "ann")
    assert (lease.service, lease.worker, lease.region) == ("s", "w1", None)
    assert (lease.granted_at, lease.expires_at) == (queue.clock.now, queue.clock.now + FAIR.lease_ttl)


async def test_an_offer_that_is_not_newer_than_the_queued_step_is_ignored(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a", run=5)
    assert not await queue.offer("a", run=5)
    assert not await queue.offer("a", run=4, band=1)
    assert (await queue.see()).waiting == {1: 0, 2: 1, 3: 0}


async def test_a_newer_offer_moves_the_step_and_never_adds_a_second_copy(queue: QueueHarness) -> None:
    await queue.open(FAIR, ServiceRules("t", limit=1))
    await queue.offer("a", run=1)
    assert await queue.offer("a", service="t", run=2, step=1, band=1)
    assert await queue.claimed(5, "s") == []
    assert await queue.claimed(5, "t") == ["a"]


async def test_a_job_that_returns_to_an_earlier_step_is_queued_for_that_step_only(queue: QueueHarness) -> None:
    await queue.open(FAIR, ServiceRules("t", limit=1), ServiceRules("u", limit=1))
    await queue.offer("a", service="t", run=3, step=1, steps=("s", "t"))
    assert not await queue.offer("a", run=3, steps=("s", "t")), "not newer than what waits for another service"
    assert await queue.offer("a", run=4, steps=("s", "t"))
    assert await queue.claimed(5, "t") == []
    assert await queue.claimed(5, "s") == ["a"]


async def test_an_offer_that_is_not_newer_than_a_lease_is_ignored(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a", run=3)
    await queue.take()
    assert not await queue.offer("a", run=3)
    assert not await queue.offer("a", run=2)


async def test_a_newer_offer_is_queued_while_the_older_lease_still_exists(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=2))
    await queue.offer("a", run=3)
    old = await queue.take()
    assert await queue.offer("a", run=5)
    new = await queue.take()
    assert (old.run, new.run) == (3, 5)
    await queue.end(new)
    assert not await queue.offer("a", run=3), "the older lease is still out"
    await queue.end(old)
    assert await queue.offer("a", run=3)


async def test_offer_returns_the_number_of_newer_offers(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a")
    offers = [Offer(job, seq, "s", "ann", 2, 2, 0, 1) for seq, job in enumerate("abcb")]
    assert await queue.dispatcher.offer(offers) == 2, "a was queued before, b the second time"


async def test_a_step_is_missing_if_it_is_neither_queued_nor_leased(queue: QueueHarness) -> None:
    await queue.open(FAIR, ServiceRules("t", limit=1))
    await queue.offer("leased", run=2)
    await queue.take()
    await queue.offer("waits", run=2)
    await queue.offer("elsewhere", service="t", run=2)

    def step(job: str, run: int, service: str = "s") -> Offer:
        return Offer(job, 1, service, "ann", 2, RANK_ARRIVAL, 0, run)

    offers = [
        step("leased", 2), step("waits", 1), step("waits", 2), step("elsewhere", 2, "t"), step("waits", 3),
        step("leased", 3), step("never", 1), step("never", 1, "t"),
    ]  # fmt: skip
    assert sorted(await queue.dispatcher.missing(offers), key=offers.index) == offers[4:]
    assert await queue.dispatcher.missing([]) == []
    assert (await queue.see()).waiting == {1: 0, 2: 1, 3: 0}


async def test_a_step_of_an_unknown_service_waits_until_the_service_is_configured(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a", service="later")
    assert (await queue.see("later")).limit == 0
    assert await queue.claimed(1, "later") == []
    await queue.configure(ServiceRules("later", limit=1))
    assert await queue.claimed(1, "later") == [], "its scope was not opened yet"
    await queue.dispatcher.close_scope("service:later", epoch=1)
    await queue.offer("a", service="later")
    await queue.dispatcher.open_scope("service:later", epoch=1)
    assert await queue.claimed(1, "later") == ["a"]


async def test_a_removed_service_keeps_its_queued_steps(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a")
    await queue.dispatcher.configure(Rules({}, version=9))
    assert await queue.claimed(1, "s") == []
    await queue.dispatcher.configure(Rules({"s": FAIR}, version=10))
    assert await queue.claimed(1, "s") == ["a"]


async def test_a_withdrawn_job_is_never_granted(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer_all(["a", "b"])
    assert await queue.withdraw("a", run=2) == 1
    assert await queue.withdraw("a", run=2) == 0
    assert await queue.claimed(5) == ["b"]


async def test_a_withdrawal_older_than_the_queued_step_is_ignored(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a", run=4)
    assert await queue.withdraw("a", run=3) == 0
    assert await queue.claimed(5) == ["a"]


async def test_a_promotion_moves_the_step_and_carries_its_run(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("high", "ann", band=1)
    await queue.offer("low", "bob", band=3)
    assert await queue.promote("low", band=2, run=2) == 1
    assert (await queue.see()).waiting == {1: 1, 2: 1, 3: 0}
    await queue.serve(1)
    assert (await queue.take()).run == 2


async def test_a_promotion_of_a_newer_or_absent_step_is_ignored(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a", band=3, run=5)
    assert await queue.promote("a", band=2, run=4) == 0
    assert await queue.promote("b", band=2) == 0
    assert await queue.promote("a", band=2, run=6) == 1
    assert await queue.promote("a", band=2, run=6) == 0, "repeated"
    assert not await queue.offer("a", band=3, run=5), "a late offer does not undo it"


# -- who goes next: bands and users --------------------------------------------------------------------------------


async def test_higher_bands_go_first(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("low", band=3)
    await queue.offer("medium", band=2)
    await queue.offer("high", band=1)
    assert await queue.serve(3) == ["high", "medium", "low"]


async def test_a_user_with_many_jobs_and_a_user_with_one_alternate(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer_all([f"a{i}" for i in range(100)], "ann")
    await queue.serve(10)
    await queue.offer("b0", "bob")
    assert "b0" in await queue.serve(2)


async def test_newcomers_go_by_arrival_and_then_users_with_equal_virtual_times_by_their_id(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    for user in ("cleo", "ann", "bob"):
        await queue.offer_all([f"{user}{i}" for i in range(2)], user)
    assert await queue.serve(6) == ["cleo0", "ann0", "bob0", "ann1", "bob1", "cleo1"]


async def test_within_one_user_retries_go_first_then_jobs_under_way_then_arrivals(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("arrival", rank=RANK_ARRIVAL)
    await queue.offer("under way", rank=RANK_UNDER_WAY)
    await queue.offer("retry", rank=RANK_RETRY)
    await queue.offer("older arrival", rank=RANK_ARRIVAL, seq=0)
    assert await queue.serve(4) == ["retry", "under way", "older arrival", "arrival"]


async def test_a_retry_of_one_user_does_not_go_before_the_turn_of_another(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer_all(["a0", "a1"], "ann")
    await queue.offer_all(["b0", "b1"], "bob")
    await queue.serve(2)
    await queue.offer("b2", "bob", rank=RANK_RETRY)
    assert await queue.serve(3) == ["a1", "b2", "b1"]


async def test_twice_the_weight_is_twice_the_share(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer_all([f"a{i}" for i in range(30)], "ann", weight=2.0)
    await queue.offer_all([f"b{i}" for i in range(30)], "bob")
    served = await queue.serve(30)
    assert sum(job.startswith("a") for job in served) == 20


async def test_the_last_weight_offered_is_the_one_that_counts(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a0", "ann", weight=1.0)
    await queue.offer("a1", "ann", weight=4.0)
    lease = await queue.take()
    assert (lease.job_id, lease.weight, lease.charged) == ("a0", 4.0, SECOND // 4)


@pytest.mark.parametrize("weight", [5e-324, 1e-300, 1e-12])
async def test_a_user_of_a_tiny_weight_is_last_and_does_not_block_the_queue(queue: QueueHarness, weight: float) -> None:
    await queue.open(ServiceRules("s", limit=9))
    await queue.offer_all([f"a{i}" for i in range(3)], "ann", weight=weight)
    await queue.offer_all([f"b{i}" for i in range(3)], "bob")
    first = await queue.claim(3)
    assert [lease.job_id for lease in first] == ["a0", "b0", "b1"]
    queue.clock.advance(2.0)
    await queue.dispatcher.release([Release(lease.name, "s") for lease in first])
    assert await queue.claimed(3) == ["b2", "a1", "a2"]


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
async def test_an_invalid_weight_does_not_block_the_queue(queue: QueueHarness, weight: float) -> None:
    await queue.open(FAIR)
    await queue.offer("a", weight=weight)
    lease = await queue.take()
    assert (lease.job_id, lease.charged) == ("a", SECOND)
    await queue.end(lease)


@pytest.mark.parametrize("order", Order)
async def test_a_backlog_of_thousands_keeps_its_order(queue: QueueHarness, order: Order) -> None:
    await queue.open(ServiceRules("s", limit=1, order=order))
    for user in ("ann", "bob"):
        for i in reversed(range(1500)):
            await queue.offer(f"{user}{i:04}", user, seq=2 * i + (user == "bob"))
    withdrawn = {f"ann{i:04}" for i in range(0, 1500, 7)}
    for job in withdrawn:
        await queue.withdraw(job)
    jobs = [f"{user}{i:04}" for user in ("ann", "bob") for i in range(1500) if f"{user}{i:04}" not in withdrawn]
    positions = await queue.dispatcher.positions(jobs)
    assert await queue.serve(len(jobs)) == sorted(jobs, key=lambda job: positions[job].position)


async def test_worker_pools_may_be_bound_to_bands(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9))
    await queue.offer("high", band=1)
    await queue.offer("low", band=3)
    assert await queue.claimed(5, bands=frozenset({3})) == ["low"]
    assert await queue.claimed(5, bands=frozenset({2, 3})) == []
    assert await queue.claimed(5, bands=frozenset({1})) == ["high"]


# -- who goes next: virtual time -----------------------------------------------------------------------------------


async def test_a_grant_is_charged_by_the_declared_cost_until_something_is_measured(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9), ServiceRules("t", limit=9, cost=4.0))
    await queue.offer("a", "ann", cost=3.0)
    await queue.offer("b", "bob")
    await queue.offer("c", "cleo", service="t")
    await queue.offer("d", "dan", service="t", cost=5.0)
    charged = {lease.job_id: lease.charged for lease in await queue.claim(9)}
    assert charged == {"a": 3 * SECOND, "b": SECOND, "c": 4 * SECOND, "d": 5 * SECOND}


async def test_a_grant_is_charged_by_the_users_mean_duration_else_by_the_services(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, cost=1.0))
    await queue.offer("a1", "ann")
    await queue.run_first("ann", 8.0)
    await queue.offer("b", "bob")
    await queue.run_first("bob", 16.0)
    await queue.offer("c", "cleo")
    charged = {lease.job_id: lease.charged for lease in await queue.claim(9)}
    assert charged == {"a1": 8 * SECOND, "b": 16 * SECOND, "c": 12 * SECOND}, "the service: (8 + 16) / 2"


@pytest.mark.parametrize(("seconds", "weight"), [(5.0, 1.0), (0.25, 1.0), (7.0, 3.0), (0.0, 2.0)])
async def test_the_charge_is_settled_to_the_slot_time_actually_used(
    queue: QueueHarness, seconds: float, weight: float
) -> None:
    await queue.open(FAIR)
    await queue.offer_all(["a0", "a1"], "ann", weight=weight)
    await queue.end(await queue.take(), after=seconds)
    assert (await queue.see()).users[0].tag == max(1, int(seconds * SECOND / weight))


async def test_settling_moves_everything_that_the_user_has_waiting(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer_all([f"a{i}" for i in range(4)], "ann")
    await queue.offer_all([f"b{i}" for i in range(4)], "bob")
    assert await queue.serve(1, seconds=3.5) == ["a0"]
    assert await queue.serve(3, seconds=1.0) == ["b0", "b1", "b2"]


async def test_an_expired_lease_is_settled_like_any_other(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer_all(["a0", "a1"], "ann")
    await queue.take()
    queue.clock.advance(20)
    (lease,) = await queue.dispatcher.expired()
    await queue.end(lease)
    assert await queue.tag("ann") == 20.0


async def test_a_refund_returns_the_charge_and_measures_nothing(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer_all(["a0", "a1"], "ann", cost=4.0)
    await queue.end(await queue.take(), after=9.0, refund=True)
    assert await queue.tag("ann") == 0.0
    assert (await queue.see()).mean_duration is None


async def test_a_charge_is_settled_with_the_weight_at_grant(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a0", "ann", weight=2.0)
    lease = await queue.take()
    await queue.offer("a1", "ann", weight=1.0)
    await queue.end(lease, after=8.0)
    assert await queue.tag("ann") == 4.0


async def test_an_arriving_user_starts_at_the_virtual_time_without_credit(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer_all([f"a{i}" for i in range(20)], "ann")
    await queue.serve(10)
    await queue.offer_all([f"b{i}" for i in range(9)], "bob")
    assert (await queue.see()).virtual_time[2] == 9 * SECOND
    assert await queue.tag("bob") == 9.0
    assert await queue.serve(4) == ["b0", "a10", "b1", "a11"]


async def test_a_returning_user_keeps_its_debt(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a0", "ann")
    await queue.offer_all([f"b{i}" for i in range(9)], "bob")
    await queue.serve(1, seconds=5.0)  # ann has nothing queued, but a debt
    await queue.offer("a1", "ann")
    assert await queue.tag("ann") == 5.0
    assert await queue.serve(6) == ["b0", "b1", "b2", "b3", "b4", "a1"]


async def test_a_newcomer_goes_before_a_user_whose_charge_was_partly_refunded(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=4))
    await queue.offer_all([f"a{i}" for i in range(20)], "ann")
    leases = await queue.claim(4)
    await queue.offer("b", "bob")
    for lease in leases:
        await queue.end(lease, after=1 / 64)
    assert await queue.tag("ann") < await queue.tag("bob")
    assert await queue.claimed(2) == ["b", "a4"]


async def test_the_virtual_time_decreases_with_a_user_that_was_overcharged(queue: QueueHarness) -> None:
    """Otherwise later users would start at a peak that no user really reached, and debts below it would be
    forgotten."""
    await queue.open(ServiceRules("s", limit=4))
    await queue.offer_all([f"a{i}" for i in range(20)], "ann")
    leases = await queue.claim(4)
    assert (await queue.see()).virtual_time[2] == 3 * SECOND
    for lease in leases:
        await queue.end(lease)
    await queue.take()
    assert (await queue.see()).virtual_time[2] == 4


async def test_a_newcomer_with_a_debt_found_later_waits_for_its_turn(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=2))
    await queue.offer("a0", "ann")
    await queue.offer_all([f"b{i}" for i in range(9)], "bob")
    long = (await queue.claim(2))[0]
    for lease in [lease for lease in (await queue.see()).leases if lease.user_id == "bob"]:
        await queue.end(lease, after=1.0)
    await queue.end(await queue.take(), after=0.5)
    await queue.offer("a1", "ann")
    assert (await queue.positions("a1")) == [1]
    await queue.end(long, after=2.0)
    assert await queue.tag("ann") == 3.5
    assert (await queue.positions("a1")) == [4], "bob starts at 1.5, 2.4375 and 3.375"


async def test_an_idle_user_is_forgotten_when_the_virtual_time_reaches_its_tag(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a0", "ann")
    await queue.offer_all([f"b{i}" for i in range(9)], "bob")
    await queue.serve(1, seconds=3.0)
    await queue.serve(3)
    assert await queue.user("ann") is not None, "virtual time 2, ann at 3"
    await queue.serve(1)
    assert await queue.user("ann") is None


async def test_a_user_is_remembered_for_a_debt_in_any_band(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a0", "ann", band=1)
    await queue.serve(1, seconds=3.0)
    await queue.offer("a1", "ann", band=2)
    await queue.serve(1)
    await queue.offer_all(["b0", "b1", "b2", "b3"], "bob", band=2)
    await queue.serve(4, seconds=4.0)
    assert await queue.tag("ann", band=1) == 3.0
    await queue.offer_all(["c0", "c1"], "cleo", band=1)
    await queue.serve(2, seconds=3.0)
    assert await queue.user("ann", band=1) is None


async def test_the_number_of_idle_users_remembered_for_a_debt_is_limited(queue: QueueHarness) -> None:
    """The virtual time does not move while all users are new, so it overtakes none of their debts."""
    await queue.open(ServiceRules("s", limit=1000))
    await queue.offer("rich", "most in debt")
    await queue.end(await queue.take(), after=1000.0)
    await queue.offer("a", "ann", band=1)
    await queue.end(await queue.take(), after=1.0)
    rounds, users = MOST_IDLE // 1000 + 1, 0
    for number in range(rounds):
        ids = [f"{number * 1000 + index:05}" for index in range(1000)]
        await queue.dispatcher.offer([Offer(f"of {user}", int(user) + 9, "s", user, 2, 1, 0, 1) for user in ids])
        leases = await queue.claim(1000)
        assert len(leases) == 1000
        queue.clock.advance(1 / 64)
        await queue.dispatcher.release([Release(lease.name, "s") for lease in leases])
        users = len({user.user_id for user in (await queue.see()).users})
        assert users <= MOST_IDLE
    assert users == MOST_IDLE
    assert await queue.user("00000") is None, "a debt among the least was forgotten"
    assert await queue.user(f"{rounds * 1000 - 1:05}") is not None
    assert await queue.user("most in debt") is not None
    assert await queue.user("ann", band=1) is not None


async def test_a_user_that_joins_and_leaves_repeatedly_is_remembered_once(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a", "ann")
    await queue.serve(1, seconds=5.0)
    for number in range(30):
        await queue.offer(f"a{number}", "ann")
        assert await queue.withdraw(f"a{number}") == 1
    assert await queue.tag("ann") == 5.0
    if isinstance(queue.dispatcher, MemoryDispatcher):
        assert len(queue.dispatcher._topology.services["s"].bands[2].idle) == 1


async def test_a_promoted_user_starts_at_the_virtual_time_of_the_new_band(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer_all([f"a{i}" for i in range(20)], "ann")
    await queue.offer("b0", "bob", band=3)
    await queue.serve(10)
    await queue.promote("b0", band=2)
    assert await queue.tag("bob") == 9.0


async def test_a_step_moved_within_its_band_does_not_re_enter_the_band(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9))
    await queue.offer_all(["a0", "a1"], "ann")
    await queue.offer_all(["b0", "b1"], "bob")
    leases = {lease.job_id: lease for lease in await queue.claim(3)}
    await queue.end(leases["b0"], refund=True)
    assert (await queue.see()).virtual_time[2] == SECOND
    await queue.offer("b1", "bob", run=2)
    assert await queue.tag("bob") == 0.0


# -- FIFO ----------------------------------------------------------------------------------------------------------


async def test_fifo_orders_by_seq_regardless_of_band_rank_user_and_arrival(queue: QueueHarness) -> None:
    await queue.open(FIFO)
    await queue.offer("c", "ann", seq=30, band=1)
    await queue.offer("a", "bob", seq=10, band=3)
    await queue.offer("d", "ann", seq=40, rank=RANK_RETRY)
    await queue.offer("b", "ann", seq=20, band=2)
    assert await queue.serve(4) == ["a", "b", "c", "d"]


async def test_fifo_ignores_weights_and_charges_nothing(queue: QueueHarness) -> None:
    await queue.open(FIFO)
    await queue.offer_all(["a0", "a1"], "ann", weight=9.0)
    await queue.offer("b0", "bob")
    assert (await queue.take()).charged == 0
    assert (await queue.see()).virtual_time == {}


async def test_workers_of_any_band_serve_fifo_services(queue: QueueHarness) -> None:
    await queue.open(FIFO)
    await queue.offer("a", band=3)
    assert await queue.claimed(bands=frozenset({1})) == ["a"]


async def test_a_retry_keeps_its_position_in_a_fifo_queue(queue: QueueHarness) -> None:
    await queue.open(FIFO)
    await queue.offer("a", seq=1, run=1)
    await queue.offer("b", seq=2)
    await queue.end(await queue.take())
    await queue.offer("a", seq=1, run=3, rank=RANK_RETRY)
    assert await queue.serve(2) == ["a", "b"]


async def test_a_service_can_change_its_order_while_jobs_are_queued(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer_all(["a0", "a1", "a2"], "ann")
    await queue.offer("b0", "bob", rank=RANK_RETRY)
    await queue.configure(FIFO)
    assert await queue.serve(2) == ["a0", "a1"]
    await queue.configure(FAIR)
    await queue.offer_all(["b1"], "bob")
    assert await queue.serve(3) == ["a2", "b0", "b1"]
