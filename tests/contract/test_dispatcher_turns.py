"""The contract of every dispatcher: claims of turns only, and of a single job."""

from __future__ import annotations

from fairlead.domain.rules import Order, ServiceRules
from tests.contract.dispatchers import QueueHarness, open_pool

FIFO = ServiceRules("s", limit=2, order=Order.FIFO)
TURN_A, TURN_B, TURN_C = (f"01890000-0000-8000-8000-{number:012}" for number in range(3))


async def test_a_claim_of_turns_takes_as_many_as_are_next_and_stops_at_a_job(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9, order=Order.FIFO))
    await queue.offer_all([TURN_A, TURN_B, "job", TURN_C])
    assert await queue.claimed(9, turns=True) == [TURN_A, TURN_B]
    assert await queue.claimed(9, turns=True) == []
    assert await queue.claimed(1) == ["job"]
    assert await queue.claimed(9, turns=True) == [TURN_C]


async def test_a_claim_of_turns_goes_by_the_order_of_the_lane(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=9))
    await queue.offer(TURN_A, band=3)
    await queue.offer("job", band=2)
    assert await queue.claimed(9, turns=True) == []
    await queue.offer(TURN_B, band=1)
    assert await queue.claimed(9, turns=True) == [TURN_B]


async def test_a_claim_of_one_job_is_granted_only_if_it_is_next(queue: QueueHarness) -> None:
    await queue.open(FIFO)
    await queue.offer_all([TURN_A, TURN_B])
    assert await queue.claimed(1, only=TURN_B) == []
    assert await queue.claimed(1, only=TURN_A) == [TURN_A]
    assert await queue.claimed(1, only=TURN_A) == [], "it is not in the queue any more"
    assert await queue.claimed(1, only=TURN_B) == [TURN_B]


async def test_a_claim_of_one_job_needs_a_free_slot(queue: QueueHarness) -> None:
    await queue.open(ServiceRules("s", limit=1, order=Order.FIFO))
    await queue.offer_all([TURN_A, TURN_B])
    lease = await queue.take(only=TURN_A)
    assert await queue.claimed(1, only=TURN_B) == []
    await queue.end(lease)
    assert await queue.claimed(1, only=TURN_B) == [TURN_B]


async def test_a_claim_of_one_job_takes_no_other(queue: QueueHarness) -> None:
    await queue.open(FIFO)
    await queue.offer_all([TURN_A, TURN_B])
    assert await queue.claimed(9, only=TURN_A) == [TURN_A]


async def test_in_a_pool_a_turn_is_granted_when_it_is_the_best_head(queue: QueueHarness) -> None:
    await open_pool(queue, 1, "a", "b")
    await queue.offer("job", service="a", band=1)
    await queue.offer(TURN_A, service="b", band=2)
    assert await queue.claimed(1, "a", "b", turns=True) == []
    lease = await queue.take("a", "b")
    assert await queue.claimed(1, "b", turns=True) == []
    await queue.end(lease)
    assert await queue.claimed(1, "b", only=TURN_A) == [TURN_A]


async def test_no_slot_of_a_pool_is_reserved_for_a_claim_that_does_not_wait(queue: QueueHarness) -> None:
    await open_pool(queue, 1, "a", "b")
    assert await queue.claimed(5, "b", worker="passer-by", waits=False) == []
    await queue.offer("of b", service="b", band=1)
    await queue.offer("of a", service="a", band=2)
    assert await queue.claimed(1, "a", worker="w") == ["of a"], "no worker waits with budget for b"
