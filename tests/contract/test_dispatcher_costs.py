"""Costs in the service's own unit: what they are charged, what is learned from calls, and the waits that follow."""

from __future__ import annotations

import pytest

from fairlead.domain.fair_share import SECOND
from fairlead.domain.rates import Rate
from fairlead.domain.rules import Order, ServiceRules
from tests.contract.dispatchers import QueueHarness

TOKENS = ServiceRules("s", limit=1, cost_unit="tokens")


async def run(queue: QueueHarness, job: str, cost: float | None, seconds: float, **more: object) -> None:
    """Run one step alone."""
    await queue.offer(job, "first", cost=cost, **{k: v for k, v in more.items() if k == "region"})
    await queue.end(await queue.take(), after=seconds, **{k: v for k, v in more.items() if k != "region"})


async def charges(queue: QueueHarness, *costs: float | None, **more: object) -> list[float]:
    """What steps of new users with these costs are charged, in seconds. Their slots are given back unused."""
    for cost in costs:
        await queue.offer(f"job {queue.seq}", f"user {queue.seq}", cost=cost, **more)
    leases = await queue.claim(len(costs))
    for lease in leases:
        await queue.end(lease, refund=True)
    return [lease.charged / SECOND for lease in leases]


async def test_a_stated_cost_counts_also_after_calls_were_measured(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9))
    await run(queue, "plain", None, 8.0)
    assert await charges(queue, 2.0, None, 0.5) == [2.0, 8.0, 0.5], "a unit is a second until one is measured"


async def test_seconds_per_unit_are_learned_from_calls_by_their_size(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, cost_unit="tokens", cost=3.0))
    assert await charges(queue, 100.0) == [3.0], "nothing is known about tokens yet"
    for number, (tokens, seconds) in enumerate([(100.0, 1.0), (900.0, 4.0)]):
        await run(queue, str(number), tokens, seconds)
    assert await charges(queue, 100.0, 4000.0, None) == [0.5, 20.0, 2.5], "5 s for 1,000 tokens; else the mean"


async def test_one_absurd_cost_does_not_decide_what_a_unit_takes(queue: QueueHarness) -> None:
    await queue.open(TOKENS)
    for number in range(64):
        await run(queue, str(number), 10.0, 4.0)
    await run(queue, "absurd", 1e9, 1.0)
    assert 3.0 < (await charges(queue, 10.0))[0] < 4.0
    for number in range(64):
        await run(queue, f"later {number}", 10.0, 4.0)
    assert await charges(queue, 10.0) == [pytest.approx(4.0, rel=0.1)]


async def test_a_region_has_its_own_seconds_per_unit_after_eight_calls(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, cost_unit="tokens", regions={"eu": 4, "us": 4}))
    for number in range(7):
        await run(queue, f"eu {number}", 10.0, 1.0, region="eu")
    await run(queue, "us", 10.0, 9.0, region="us")
    assert await charges(queue, 10.0, region="eu") == [2.0], "the service: 16 s for 80"
    await run(queue, "eu 7", 10.0, 1.0, region="eu")
    assert await charges(queue, 10.0, region="eu") == [1.0]
    assert await charges(queue, 9.0, region="us") == [pytest.approx(1.7)], "17 s for 90"


async def test_what_is_settled_is_slot_time_unless_calls_are_charged_by_use(queue: QueueHarness) -> None:
    for name, charge, tag in (("s", "seconds", 4.0), ("t", "tokens", 20.0)):
        await queue.open(ServiceRules(name, limit=1, cost_unit="tokens", charge=charge))
        await queue.offer("teacher", "first", name, cost=10.0)
        await queue.end(await queue.take(name), after=6.0, used=15.0)
        await queue.offer_all([f"{name}1", f"{name}2"], "ann", name, cost=10.0)
        await queue.end(await queue.take(name), after=4.0, used=85.0)
        # 10 s for 100 tokens, so 85 tokens are 8.5 s; in slot time it was 4 s.
        assert await queue.tag("ann", name) == {"seconds": 4.0, "tokens": 8.5}[charge], tag


async def test_a_call_without_reported_use_is_settled_to_its_slot_time(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=1, cost_unit="tokens", charge="tokens"))
    await run(queue, "teacher", 10.0, 6.0, used=60.0)
    await queue.offer_all(["a1", "a2", "a3"], "ann", cost=10.0)
    await queue.end(await queue.take(), after=4.0)
    assert await queue.tag("ann") == 4.0
    await queue.end(await queue.take(), after=2.0, used=0.0)
    assert await queue.tag("ann") == 4.000001, "nothing was used, and every grant moves its user"


async def test_learned_costs_are_shown_and_start_over_with_a_rebuild(queue: QueueHarness) -> None:
    await queue.open(TOKENS)
    assert ((await queue.see()).seconds_per_unit, (await queue.see()).used_per_unit) == (None, None)
    await run(queue, "teacher", 10.0, 6.0, used=25.0)
    assert ((await queue.see()).seconds_per_unit, (await queue.see()).used_per_unit) == (0.6, 2.5)
    await queue.dispatcher.close_scope(TOKENS.scope, epoch=2)
    await queue.dispatcher.open_scope(TOKENS.scope, epoch=2)
    assert (await queue.see()).seconds_per_unit is None
    assert await charges(queue, 10.0) == [1.0], "a step of an unknown cost"


async def waits(queue: QueueHarness, *jobs: str) -> list[float]:
    positions = await queue.dispatcher.positions(jobs)
    return [positions[job].plain_wait for job in jobs]


@pytest.mark.parametrize("order", [Order.FAIR, Order.FIFO])
async def test_waits_are_the_sum_of_the_costs_ahead(queue: QueueHarness, order: Order) -> None:
    await queue.open(ServiceRules("s", limit=1, order=order, cost_unit="tokens"))
    await run(queue, "teacher", 100.0, 1.0)
    await queue.offer("running", "zoe", cost=500.0)
    await queue.take()
    queue.clock.advance(2.0)
    for job, tokens in (("a", 100.0), ("b", 2000.0), ("c", 300.0)):
        await queue.offer(job, job, cost=tokens)
    await queue.offer("d", "d")
    await queue.offer("e", "e", cost=100.0)
    expected = {"a": 3.0, "c": 24.0, "d": 27.0, "e": 28.0}
    if order is Order.FAIR:
        assert await waits(queue, *expected) == list(expected.values())
    else:
        assert await waits(queue, "a", "e") == [3.0, 28.0], "in the middle, each counts with the mean of its lane"
    await queue.withdraw("b")
    await queue.promote("c", band=1)
    assert await waits(queue, "e") == [pytest.approx(8.0, abs=1e-5)]


async def test_waits_follow_the_ends_of_the_running_calls(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=3))
    for number, seconds in enumerate((2.0, 10.0, 30.0)):
        await queue.offer(f"running {number}", f"user {number}", cost=seconds)
    await queue.claim(3)
    await queue.offer("a", "ann", cost=5.0)
    await queue.offer("b", "bob", cost=5.0)
    await queue.offer("c", "cleo", cost=5.0)
    assert await waits(queue, "a", "b", "c") == [2.0, 7.0, 10.0], "slots are free after 2, 7 and 10 s"


async def test_the_costs_that_wait_stay_right_when_the_order_changes(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=1))
    await queue.offer("running", "zoe", cost=1.0)
    await queue.take()
    for job, cost in (("a", 2.0), ("b", 4.0), ("c", 8.0)):
        await queue.offer(job, job, cost=cost)
    for order in (Order.FIFO, Order.FAIR, Order.FIFO):
        await queue.change("s", order=order)
        assert await waits(queue, "c") == [7.0]
    await queue.offer("a", "a", cost=3.0, run=2, seq=2)
    assert await waits(queue, "c") == [8.0], "the newer run of the same step"


AHEAD = {
    "one larger than the window": [300.0, 300.0, 300.0, 5000.0, 100.0],
    "large ones ahead of a small one": [*[500.0] * 8, 100.0],
    "all sizes": [50.0, 400.0, 900.0, 120.0, 300.0, 700.0, 30.0, 210.0, 500.0, 600.0],
}


@pytest.mark.parametrize("of_one_user", [True, False], ids=["of one user", "of many users"])
@pytest.mark.parametrize("learned", [True, False], ids=["learned", "unknown"])
@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("ahead", AHEAD)
async def test_the_wait_for_a_token_rate_counts_the_costs_of_those_ahead(
    queue: QueueHarness, ahead: str, order: Order, learned: bool, of_one_user: bool
) -> None:
    """Calls use what they state: 1,000 tokens in 10 s. Those before took 100."""
    rate = Rate(None, 1000.0, 10.0)
    await queue.open(ServiceRules("s", limit=50, order=order, rate=rate, cost_unit="tokens"))
    started: dict[str, float] = {}

    async def go_on() -> None:
        """Calls end at once, so that only the rate makes steps wait."""
        for lease in await queue.claim(50):
            started[lease.job_id] = queue.clock.now
            await queue.end(lease, used=lease.cost, sent=0.0)
        queue.clock.advance(0.1)

    for number in range(3 if learned else 0):
        await queue.offer(f"before {number}", "first", cost=100.0)
        await queue.end(await queue.take(), after=1.0, used=100.0, sent=0.0)
    queue.clock.advance(30.0)
    jobs = [f"job {number}" for number in range(len(AHEAD[ahead]))]
    for number, cost in enumerate(AHEAD[ahead]):
        await queue.offer(jobs[number], "ann" if of_one_user else f"user {number}", cost=cost)
    await go_on()
    asked_at, places = queue.clock.now, await queue.dispatcher.positions(jobs)
    assert places
    while len(started) < len(jobs):
        await go_on()
    ratios = [(place.rate_wait + 5.0) / (started[job] - asked_at + 5.0) for job, place in places.items()]
    near = [ratio for ratio in ratios if 0.5 <= ratio <= 2.0]
    assert len(near) >= 0.8 * len(ratios), ratios
