"""The contract of every dispatcher: queue positions and snapshots."""

from __future__ import annotations

import pytest

from fairlead.domain.fair_share import SECOND
from fairlead.domain.job import RANK_RETRY
from fairlead.domain.rates import Rate
from fairlead.domain.rules import Order, ServiceRules
from tests.contract.dispatchers import QueueHarness, open_pool

FAIR = ServiceRules("s", limit=1)
FIFO = ServiceRules("s", limit=1, order=Order.FIFO)


async def test_positions_in_a_fifo_queue_are_exact(queue: QueueHarness) -> None:
    await queue.open(FIFO)
    await queue.offer_all("abcde")
    await queue.withdraw("b")
    assert await queue.positions("a", "c", "d", "e") == [1, 2, 3, 4]
    assert await queue.serve(4) == ["a", "c", "d", "e"]


async def test_positions_in_a_fair_queue_are_the_order_of_service(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer_all(["a0", "a1", "a2"], "ann")
    await queue.offer_all(["b0", "b1"], "bob", weight=3.0)
    await queue.offer_all(["c0"], "cleo", band=1)
    await queue.offer_all(["d0", "d1"], "dan", band=3)
    jobs = ["a0", "a1", "a2", "b0", "b1", "c0", "d0", "d1"]
    positions = await queue.positions(*jobs)
    assert sorted(positions) == list(range(1, 9))
    assert await queue.serve(8) == sorted(jobs, key=lambda job: positions[jobs.index(job)])


async def test_a_position_is_the_same_requested_alone_or_with_others(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    jobs = [f"{user}{i}" for user in ("ann", "bob", "cleo") for i in range(7)]
    for job in jobs:
        await queue.offer(job, job[:-1], weight=len(job) / 2)
    together = await queue.dispatcher.positions(jobs)
    for job in jobs:
        assert (await queue.dispatcher.positions([job]))[job] == together[job]


async def test_a_job_that_is_not_queued_has_no_position(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer_all("ab")
    await queue.take()
    assert set(await queue.dispatcher.positions(["a", "b", "c"])) == {"b"}


async def test_there_are_no_positions_during_a_rebuild(queue: QueueHarness) -> None:
    await queue.open(FIFO)
    await queue.dispatcher.close_scope(FIFO.scope, 7)
    await queue.offer("late", seq=9)
    assert await queue.dispatcher.positions(["late"]) == {}, "who was there before is not in it yet"
    await queue.offer("early", seq=1)
    assert await queue.dispatcher.open_scope(FIFO.scope, 7)
    assert await queue.positions("early", "late") == [1, 2]


async def test_first_retries_are_ahead_of_everything(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=1, regions={"us": 1}, retries_first=True))
    await queue.offer("high", band=1)
    await queue.offer("retry", band=3, rank=RANK_RETRY)
    assert await queue.positions("high", "retry") == [2, 1]


@pytest.mark.parametrize("order", Order)
async def test_unbound_retries_are_ahead_of_bound_ones(queue: QueueHarness, order: Order) -> None:
    await queue.open(ServiceRules("s", limit=1, order=order, regions={"eu": 1, "us": 1}, retries_first=True))
    await queue.offer("bound", region="us", rank=RANK_RETRY, user="a")
    await queue.offer("elsewhere", region="eu", rank=RANK_RETRY, user="b")
    await queue.offer("anywhere", rank=RANK_RETRY, user="c")
    await queue.offer("regular", region="us", user="d")
    assert await queue.positions("anywhere", "bound", "elsewhere", "regular") == [1, 2, 2, 3]
    position = (await queue.dispatcher.positions(["bound"]))["bound"]
    assert (position.ahead_retries, position.ahead_bands, position.ahead_own) == (1, 0, 0)


async def test_a_bound_step_does_not_wait_behind_other_regions(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, regions={"eu": 1, "us": 1}))
    await queue.offer_all(["e0", "e1"], "ann", region="eu")
    await queue.offer("u0", "bob", region="us")
    await queue.offer("any", "cleo")
    assert await queue.positions("u0", "any") == [1, 3]


async def test_a_parked_users_steps_count_by_its_virtual_time(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, user_limit=1))
    await queue.offer_all(["a0", "a1"], "ann")
    await queue.offer_all(["b0", "b1", "b2"], "bob")
    await queue.take()
    assert await queue.positions("b0", "a1", "b1") == [1, 2, 3]


@pytest.mark.parametrize("order", Order)
async def test_a_position_includes_the_users_limit_and_free_slots(queue: QueueHarness, order: Order) -> None:
    await queue.open(ServiceRules("s", limit=10, user_limit=2, order=order, cost=4.0))
    await queue.offer_all("abcd")
    await queue.offer("other", "bob")
    await queue.take()
    queue.clock.advance(1)
    positions = await queue.dispatcher.positions(["b", "d", "other"])
    own = [
        (positions[job].user_slots, positions[job].user_free, positions[job].user_running)
        for job in ("b", "d", "other")
    ]
    assert own == [(2, 1, 3.0), (2, 1, 3.0), (2, 2, 0.0)]
    assert [positions[job].plain_wait for job in ("b", "other")] == [0.0, 0.0]
    assert positions["d"].plain_wait == 5.0, "two of four seconds and what runs, by two slots"


async def test_without_a_user_limit_a_position_has_no_user_slots(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a")
    assert (await queue.dispatcher.positions(["a"]))["a"].user_slots is None


@pytest.mark.parametrize("order", Order)
async def test_the_work_ahead_is_that_of_queued_steps_and_the_rest_of_running_ones(
    queue: QueueHarness, order: Order
) -> None:
    await queue.open(ServiceRules("s", limit=2, order=order, cost=4.0))
    await queue.offer_all("abcd")
    await queue.take()
    queue.clock.advance(1)
    position = (await queue.dispatcher.positions(["d"]))["d"]
    assert (position.position, position.slots, position.mean, position.work_ahead) == (3, 2, 4.0, 3.0 + 2 * 4.0)
    assert position.running == 3.0
    queue.clock.advance(50)
    assert (await queue.dispatcher.positions(["d"]))["d"].work_ahead == 8.0


async def test_the_work_ahead_counts_each_users_own_durations(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer("a0", "ann", band=1)
    await queue.run_first("ann", 6.0, band=1)
    await queue.offer_all(["b0", "b1"], "bob")
    await queue.run_first("bob", 2.0, band=1)
    assert (await queue.dispatcher.positions(["b1"]))["b1"].work_ahead == 6.0 + 2.0


async def test_a_pools_limit_bounds_the_slots_of_a_position(queue: QueueHarness) -> None:
    await open_pool(queue, 3, "x", "y")
    await queue.offer("a", service="x")
    assert (await queue.dispatcher.positions(["a"]))["a"].slots == 3


async def test_a_position_counts_the_steps_ahead_by_kind(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=1, retries_first=True))
    await queue.offer_all(["r0", "r1"], "ann", rank=RANK_RETRY)
    await queue.offer_all(["h0", "h1", "h2"], "bob", band=1)
    await queue.offer_all(["c0", "c1"], "cleo")
    await queue.offer_all(["d0", "d1"], "dan")
    await queue.offer("low", "bob", band=3)
    position = (await queue.dispatcher.positions(["d1"]))["d1"]
    assert (position.service, position.band) == ("s", 2)
    assert (position.ahead_retries, position.ahead_bands, position.ahead_own) == (2, 3, 1)
    assert position.position == 9
    assert position.ahead_users == 2
    first = (await queue.dispatcher.positions(["r1"]))["r1"]
    assert (first.band, first.ahead_retries, first.ahead_bands, first.ahead_own, first.position) == (0, 0, 0, 1, 2)


async def test_a_fifo_position_counts_the_steps_ahead_by_kind(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=1, order=Order.FIFO, retries_first=True))
    await queue.offer("h0", "bob", band=1)
    await queue.offer("a0", "ann", band=3)
    await queue.offer("r0", "bob", rank=RANK_RETRY)
    await queue.offer("a1", "ann", band=3)
    position = (await queue.dispatcher.positions(["a1"]))["a1"]
    assert (position.position, position.ahead_retries, position.ahead_bands, position.ahead_own) == (4, 1, 0, 1)
    assert (position.ahead_users, position.newcomer) == (1, False)


async def test_only_a_newcomers_first_step_is_marked_as_such(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    await queue.offer_all(["a0", "a1"], "ann")
    positions = await queue.dispatcher.positions(["a0", "a1"])
    assert [positions[job].newcomer for job in ("a0", "a1")] == [True, False]
    await queue.take()
    assert not (await queue.dispatcher.positions(["a1"]))["a1"].newcomer


async def test_a_position_includes_the_number_of_free_slots(queue: QueueHarness) -> None:
    async def free(job: str) -> int:
        return (await queue.dispatcher.positions([job]))[job].free

    await queue.open(ServiceRules("s", limit=3))
    await queue.offer_all("abc")
    assert await free("c") == 3
    await queue.take()
    await queue.hold("held", 8.0)
    assert await free("c") == 1
    await queue.change("s", paused=True)
    assert await free("c") == 0, "a paused lane grants nothing"
    await queue.change("s", paused=False)
    queue.clock.advance(8.0)
    assert await free("c") == 2, "a hold that is over counts no more"


async def test_a_pools_free_slots_bound_those_of_a_position(queue: QueueHarness) -> None:
    await open_pool(queue, 3, "x", "y")
    await queue.offer_all(["x0", "x1"], service="x")
    await queue.offer("y0", service="y")
    await queue.claim(2, "x")
    position = (await queue.dispatcher.positions(["y0"]))["y0"]
    assert (position.slots, position.free) == (3, 1)


async def test_a_bound_steps_slots_are_its_regions(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, regions={"eu": 2, "us": 3}, cost=4.0))
    await queue.offer("e0", region="eu")
    await queue.take()
    await queue.hold("held", 8.0, region="eu")
    await queue.offer_all(["e1"], region="eu")
    await queue.offer_all(["u1"], region="us")
    await queue.offer("any")
    positions = await queue.dispatcher.positions(["e1", "u1", "any"])
    assert [(positions[job].slots, positions[job].free) for job in ("e1", "u1", "any")] == [(1, 0), (3, 3), (4, 3)]
    assert [positions[job].work_ahead for job in ("e1", "u1")] == [4.0, 0.0], "what runs elsewhere is not ahead of it"


async def test_held_slots_count_in_the_estimated_wait(queue: QueueHarness) -> None:
    async def wait(job: str) -> tuple[float, float] | None:
        return (await queue.dispatcher.positions([job]))[job].estimated_wait()

    await queue.open(ServiceRules("s", limit=2, cost=4.0))
    await queue.offer("a")
    await queue.hold("first", 60.0)
    await queue.hold("second", 90.0)
    assert await wait("a") == (60.0, 64.0), "a slot is free when the first hold ends"
    queue.clock.advance(60.0)
    assert await wait("a") == (0.0, 0.0)
    await queue.take()
    await queue.offer_all("bc")
    assert await wait("c") == (8.0, 12.0), "one slot serves them all until the second hold ends"
    queue.clock.advance(30.0)
    position = (await queue.dispatcher.positions(["c"]))["c"]
    assert (position.slots, position.rests) == (2, 0.0)


async def test_a_services_mean_covers_all_calls_and_then_a_moving_window(queue: QueueHarness) -> None:
    await queue.open(FAIR)
    for seconds in (1.0, 2.0, 6.0):
        await queue.run_first("ann", seconds)
    assert (await queue.see()).mean_duration == 3.0


async def test_a_snapshot_shows_a_service(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=3), ServiceRules("t", limit=1))
    await queue.offer_all(["a0", "a1", "a2"], "ann", weight=2.0)
    await queue.offer("b0", "bob", band=3)
    await queue.end(await queue.take("s"), after=4.0)
    lease = await queue.take("s")
    seen = await queue.see()
    assert (seen.service, seen.limit, seen.in_use, seen.held, seen.paused) == ("s", 3, 1, 0, False)
    assert seen.waiting == {1: 0, 2: 1, 3: 1}
    assert [running.name for running in seen.leases] == [lease.name]
    assert (seen.virtual_time, seen.mean_duration) == ({1: 0, 2: 2 * SECOND, 3: 0}, 4.0)
    ann, bob = seen.users
    assert (ann.user_id, ann.band, ann.waiting, ann.running, ann.tag) == ("ann", 2, 1, 1, 4 * SECOND)
    assert (bob.user_id, bob.band, bob.waiting, bob.running, bob.weight, bob.parked) == ("bob", 3, 1, 0, 1.0, False)
    assert [each.service for each in await queue.dispatcher.snapshot()] == ["s", "t"]
    assert (await queue.dispatcher.snapshot(["s"]))[0].users == ()


async def test_a_snapshot_tells_newcomers_by_arrival_until_their_first_grant(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=1))
    for user in ("zoe", "bob", "ann"):
        await queue.offer(f"{user} 0", user)
        await queue.offer(f"{user} 1", user)
    new = [each for each in (await queue.see()).users if each.arrival]
    assert [each.user_id for each in sorted(new, key=lambda each: each.arrival)] == ["zoe", "bob", "ann"]
    assert (await queue.take("s")).job_id == "zoe 0"
    assert {each.user_id for each in (await queue.see()).users if each.arrival} == {"ann", "bob"}


async def test_a_snapshot_of_a_fifo_service_counts_by_the_band_that_was_offered(queue: QueueHarness) -> None:
    await queue.open(FIFO)
    await queue.offer_all("ab", band=3)
    await queue.offer("c", band=1)
    assert (await queue.see()).waiting == {1: 1, 2: 0, 3: 2}
    await queue.take()
    assert (await queue.see()).waiting == {1: 1, 2: 0, 3: 1}


@pytest.mark.parametrize(("used", "waits"), [(None, [64.0, 64.0, 128.0]), (500.0, [64.0])])
async def test_the_wait_behind_a_step_larger_than_the_window_is_one_window(
    queue: QueueHarness, used: float | None, waits: list[float]
) -> None:
    await queue.open(ServiceRules("s", limit=9, order=Order.FIFO, rate=Rate(units=100.0, per=64.0)))
    await queue.offer("huge", cost=500.0)
    await queue.offer_all("abc", cost=50.0)
    huge = await queue.take()
    queue.clock.advance(16.0)
    await queue.end(huge, used=used)
    places = await queue.dispatcher.positions("abc"[: len(waits)])
    assert [place.plain_wait for place in places.values()] == pytest.approx(waits, abs=2.0)
    queue.clock.advance(65.0)
    assert await queue.claimed(9) == ["a", "b"]


async def test_the_wait_for_a_lowered_rate_ends_with_the_calls_that_were_made_before(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=20, order=Order.FIFO, rate=Rate(requests=20, per=64.0)))
    await queue.offer_all("abcdefghijklmnopqrst")
    for lease in await queue.claim(20):
        await queue.end(lease)
    await queue.offer_all("uvw")
    await queue.change("s", rate=Rate(requests=2, per=64.0))
    waits = [place.plain_wait for place in (await queue.dispatcher.positions("uvw")).values()]
    assert waits == pytest.approx([64.0, 64.0, 128.0], abs=2.0)
