"""What every dispatcher says of a waiting step's place, and of a service."""

from __future__ import annotations

import pytest

from fairlead.domain.job import RANK_RETRY
from fairlead.domain.limits import Order, ServiceRules
from fairlead.domain.order import SECOND
from tests.contract.dispatchers import Line, open_pool

FAIR = ServiceRules("s", limit=1)
FIFO = ServiceRules("s", limit=1, order=Order.FIFO)


async def test_places_in_a_fifo_line_are_exact(line: Line) -> None:
    await line.open(FIFO)
    await line.offer_all("abcde")
    await line.withdraw("b")
    assert await line.positions("a", "c", "d", "e") == [1, 2, 3, 4]
    assert await line.serve(4) == ["a", "c", "d", "e"]


async def test_places_in_a_fair_line_are_the_order_in_which_it_is_served(line: Line) -> None:
    await line.open(FAIR)
    await line.offer_all(["a0", "a1", "a2"], "ann")
    await line.offer_all(["b0", "b1"], "bob", weight=3.0)
    await line.offer_all(["c0"], "cleo", band=1)
    await line.offer_all(["d0", "d1"], "dan", band=3)
    jobs = ["a0", "a1", "a2", "b0", "b1", "c0", "d0", "d1"]
    positions = await line.positions(*jobs)
    assert sorted(positions) == list(range(1, 9))
    assert await line.serve(8) == sorted(jobs, key=lambda job: positions[jobs.index(job)])


async def test_each_place_is_the_same_asked_alone_or_together(line: Line) -> None:
    await line.open(FAIR)
    jobs = [f"{user}{i}" for user in ("ann", "bob", "cleo") for i in range(7)]
    for job in jobs:
        await line.offer(job, job[:-1], weight=len(job) / 2)
    together = await line.dispatcher.places(jobs)
    for job in jobs:
        assert (await line.dispatcher.places([job]))[job] == together[job]


async def test_what_is_not_in_line_has_no_place(line: Line) -> None:
    await line.open(FAIR)
    await line.offer_all("ab")
    await line.take()
    assert set(await line.dispatcher.places(["a", "b", "c"])) == {"b"}


async def test_nobody_has_a_place_in_a_line_that_is_being_built(line: Line) -> None:
    await line.open(FIFO)
    await line.dispatcher.close_scope(FIFO.scope, 7)
    await line.offer("late", seq=9)
    assert await line.dispatcher.places(["late"]) == {}, "who was there before is not in it yet"
    await line.offer("early", seq=1)
    assert await line.dispatcher.open_scope(FIFO.scope, 7)
    assert await line.positions("early", "late") == [1, 2]


async def test_first_retries_are_ahead_of_everything(line: Line) -> None:
    await line.open(ServiceRules("s", limit=1, regions={"us": 1}, retries_first=True))
    await line.offer("high", band=1)
    await line.offer("retry", band=3, rank=RANK_RETRY)
    assert await line.positions("high", "retry") == [2, 1]


@pytest.mark.parametrize("order", Order)
async def test_retries_that_may_run_anywhere_are_ahead_of_those_that_are_bound(line: Line, order: Order) -> None:
    await line.open(ServiceRules("s", limit=1, order=order, regions={"eu": 1, "us": 1}, retries_first=True))
    await line.offer("bound", region="us", rank=RANK_RETRY, user="a")
    await line.offer("elsewhere", region="eu", rank=RANK_RETRY, user="b")
    await line.offer("anywhere", rank=RANK_RETRY, user="c")
    await line.offer("regular", region="us", user="d")
    assert await line.positions("anywhere", "bound", "elsewhere", "regular") == [1, 2, 2, 3]
    place = (await line.dispatcher.places(["bound"]))["bound"]
    assert (place.ahead_retries, place.ahead_bands, place.ahead_own) == (1, 0, 0)


async def test_a_bound_step_does_not_wait_behind_other_regions(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9, regions={"eu": 1, "us": 1}))
    await line.offer_all(["e0", "e1"], "ann", region="eu")
    await line.offer("u0", "bob", region="us")
    await line.offer("any", "cleo")
    assert await line.positions("u0", "any") == [1, 3]


async def test_a_parked_users_steps_count_by_its_virtual_time(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9, user_limit=1))
    await line.offer_all(["a0", "a1"], "ann")
    await line.offer_all(["b0", "b1", "b2"], "bob")
    await line.take()
    assert await line.positions("b0", "a1", "b1") == [1, 2, 3]


@pytest.mark.parametrize("order", Order)
async def test_a_place_says_what_its_users_own_limit_leaves(line: Line, order: Order) -> None:
    await line.open(ServiceRules("s", limit=10, user_limit=2, order=order, cost=4.0))
    await line.offer_all("abcd")
    await line.offer("other", "bob")
    await line.take()
    line.clock.advance(1)
    places = await line.dispatcher.places(["b", "d", "other"])
    own = [(places[job].user_slots, places[job].user_free, places[job].user_running) for job in ("b", "d", "other")]
    assert own == [(2, 1, 3.0), (2, 1, 3.0), (2, 2, 0.0)]
    assert [places[job].plain_wait for job in ("b", "other")] == [0.0, 0.0]
    assert places["d"].plain_wait == 5.0, "two of four seconds and what runs, by two slots"


async def test_without_a_limit_of_its_own_a_user_may_have_every_slot(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("a")
    assert (await line.dispatcher.places(["a"]))["a"].user_slots is None


@pytest.mark.parametrize("order", Order)
async def test_the_work_ahead_is_what_waits_before_and_what_is_left_of_what_runs(line: Line, order: Order) -> None:
    await line.open(ServiceRules("s", limit=2, order=order, cost=4.0))
    await line.offer_all("abcd")
    await line.take()
    line.clock.advance(1)
    place = (await line.dispatcher.places(["d"]))["d"]
    assert (place.position, place.slots, place.mean, place.work_ahead) == (3, 2, 4.0, 3.0 + 2 * 4.0)
    assert place.running == 3.0
    line.clock.advance(50)
    assert (await line.dispatcher.places(["d"]))["d"].work_ahead == 8.0


async def test_the_work_ahead_counts_each_users_own_durations(line: Line) -> None:
    await line.open(FAIR)
    await line.offer("a0", "ann", band=1)
    await line.run_first("ann", 6.0, band=1)
    await line.offer_all(["b0", "b1"], "bob")
    await line.run_first("bob", 2.0, band=1)
    assert (await line.dispatcher.places(["b1"]))["b1"].work_ahead == 6.0 + 2.0


async def test_a_pools_limit_bounds_the_slots_of_a_place(line: Line) -> None:
    await open_pool(line, 3, "x", "y")
    await line.offer("a", service="x")
    assert (await line.dispatcher.places(["a"]))["a"].slots == 3


async def test_a_place_says_who_is_ahead(line: Line) -> None:
    await line.open(ServiceRules("s", limit=1, retries_first=True))
    await line.offer_all(["r0", "r1"], "ann", rank=RANK_RETRY)
    await line.offer_all(["h0", "h1", "h2"], "bob", band=1)
    await line.offer_all(["c0", "c1"], "cleo")
    await line.offer_all(["d0", "d1"], "dan")
    await line.offer("low", "bob", band=3)
    place = (await line.dispatcher.places(["d1"]))["d1"]
    assert (place.service, place.band) == ("s", 2)
    assert (place.ahead_retries, place.ahead_bands, place.ahead_own) == (2, 3, 1)
    assert place.position == 9
    assert place.ahead_users == 2
    first = (await line.dispatcher.places(["r1"]))["r1"]
    assert (first.band, first.ahead_retries, first.ahead_bands, first.ahead_own, first.position) == (0, 0, 0, 1, 2)


async def test_a_place_in_a_fifo_line_says_who_is_ahead(line: Line) -> None:
    await line.open(ServiceRules("s", limit=1, order=Order.FIFO, retries_first=True))
    await line.offer("h0", "bob", band=1)
    await line.offer("a0", "ann", band=3)
    await line.offer("r0", "bob", rank=RANK_RETRY)
    await line.offer("a1", "ann", band=3)
    place = (await line.dispatcher.places(["a1"]))["a1"]
    assert (place.position, place.ahead_retries, place.ahead_bands, place.ahead_own) == (4, 1, 0, 1)
    assert (place.ahead_users, place.newcomer) == (1, False)


async def test_a_newcomers_first_step_is_told_from_the_others(line: Line) -> None:
    await line.open(FAIR)
    await line.offer_all(["a0", "a1"], "ann")
    places = await line.dispatcher.places(["a0", "a1"])
    assert [places[job].newcomer for job in ("a0", "a1")] == [True, False]
    await line.take()
    assert not (await line.dispatcher.places(["a1"]))["a1"].newcomer


async def test_a_place_says_how_many_slots_nobody_has(line: Line) -> None:
    async def free(job: str) -> int:
        return (await line.dispatcher.places([job]))[job].free

    await line.open(ServiceRules("s", limit=3))
    await line.offer_all("abc")
    assert await free("c") == 3
    await line.take()
    await line.hold("held", 8.0)
    assert await free("c") == 1
    await line.change("s", paused=True)
    assert await free("c") == 0, "a paused lane grants nothing"
    await line.change("s", paused=False)
    line.clock.advance(8.0)
    assert await free("c") == 2, "a hold that is over counts no more"


async def test_a_pools_free_slots_bound_those_of_a_place(line: Line) -> None:
    await open_pool(line, 3, "x", "y")
    await line.offer_all(["x0", "x1"], service="x")
    await line.offer("y0", service="y")
    await line.claim(2, "x")
    place = (await line.dispatcher.places(["y0"]))["y0"]
    assert (place.slots, place.free) == (3, 1)


async def test_a_bound_steps_slots_are_its_regions(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9, regions={"eu": 2, "us": 3}, cost=4.0))
    await line.offer("e0", region="eu")
    await line.take()
    await line.hold("held", 8.0, region="eu")
    await line.offer_all(["e1"], region="eu")
    await line.offer_all(["u1"], region="us")
    await line.offer("any")
    places = await line.dispatcher.places(["e1", "u1", "any"])
    assert [(places[job].slots, places[job].free) for job in ("e1", "u1", "any")] == [(2, 0), (3, 3), (5, 3)]
    assert [places[job].work_ahead for job in ("e1", "u1")] == [4.0, 0.0], "what runs elsewhere is not ahead of it"


async def test_a_services_mean_is_of_all_its_calls_until_it_forgets_the_oldest(line: Line) -> None:
    await line.open(FAIR)
    for seconds in (1.0, 2.0, 6.0):
        await line.run_first("ann", seconds)
    assert (await line.see()).mean_duration == 3.0


async def test_a_snapshot_shows_a_service(line: Line) -> None:
    await line.open(ServiceRules("s", limit=3), ServiceRules("t", limit=1))
    await line.offer_all(["a0", "a1", "a2"], "ann", weight=2.0)
    await line.offer("b0", "bob", band=3)
    await line.end(await line.take("s"), after=4.0)
    lease = await line.take("s")
    seen = await line.see()
    assert (seen.service, seen.limit, seen.in_use, seen.held, seen.paused) == ("s", 3, 1, 0, False)
    assert seen.waiting == {1: 0, 2: 1, 3: 1}
    assert [running.name for running in seen.leases] == [lease.name]
    assert (seen.virtual_time, seen.mean_duration) == ({1: 0, 2: 2 * SECOND, 3: 0}, 4.0)
    ann, bob = seen.users
    assert (ann.user_id, ann.band, ann.waiting, ann.running, ann.tag) == ("ann", 2, 1, 1, 4 * SECOND)
    assert (bob.user_id, bob.band, bob.waiting, bob.running, bob.weight, bob.parked) == ("bob", 3, 1, 0, 1.0, False)
    assert [each.service for each in await line.dispatcher.snapshot()] == ["s", "t"]
    assert (await line.dispatcher.snapshot(["s"]))[0].users == ()


async def test_a_snapshot_tells_newcomers_by_arrival_until_their_first_grant(line: Line) -> None:
    await line.open(ServiceRules("s", limit=1))
    for user in ("zoe", "bob", "ann"):
        await line.offer(f"{user} 0", user)
        await line.offer(f"{user} 1", user)
    new = [each for each in (await line.see()).users if each.arrival]
    assert [each.user_id for each in sorted(new, key=lambda each: each.arrival)] == ["zoe", "bob", "ann"]
    assert (await line.take("s")).job_id == "zoe 0"
    assert {each.user_id for each in (await line.see()).users if each.arrival} == {"ann", "bob"}


async def test_a_snapshot_of_a_fifo_service_counts_by_the_band_that_was_offered(line: Line) -> None:
    await line.open(FIFO)
    await line.offer_all("ab", band=3)
    await line.offer("c", band=1)
    assert (await line.see()).waiting == {1: 1, 2: 0, 3: 2}
    await line.take()
    assert (await line.see()).waiting == {1: 1, 2: 0, 3: 1}
