"""Claims that look at who is next: of turns alone, and of one alone."""

from __future__ import annotations

from fairlead.domain.limits import Order, ServiceRules
from tests.contract.dispatchers import Line, open_pool

FIFO = ServiceRules("s", limit=2, order=Order.FIFO)
TURN_A, TURN_B, TURN_C = (f"01890000-0000-8000-8000-{number:012}" for number in range(3))


async def test_a_claim_of_turns_takes_as_many_as_are_next_and_stops_at_a_job(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9, order=Order.FIFO))
    await line.offer_all([TURN_A, TURN_B, "job", TURN_C])
    assert await line.claimed(9, turns=True) == [TURN_A, TURN_B]
    assert await line.claimed(9, turns=True) == []
    assert await line.claimed(1) == ["job"]
    assert await line.claimed(9, turns=True) == [TURN_C]


async def test_a_claim_of_turns_goes_by_the_order_of_the_lane(line: Line) -> None:
    await line.open(ServiceRules("s", limit=9))
    await line.offer(TURN_A, band=3)
    await line.offer("job", band=2)
    assert await line.claimed(9, turns=True) == []
    await line.offer(TURN_B, band=1)
    assert await line.claimed(9, turns=True) == [TURN_B]


async def test_a_claim_of_one_alone_is_granted_only_to_the_first_in_line(line: Line) -> None:
    await line.open(FIFO)
    await line.offer_all([TURN_A, TURN_B])
    assert await line.claimed(1, only=TURN_B) == []
    assert await line.claimed(1, only=TURN_A) == [TURN_A]
    assert await line.claimed(1, only=TURN_A) == [], "it is not in line any more"
    assert await line.claimed(1, only=TURN_B) == [TURN_B]


async def test_a_claim_of_one_alone_needs_a_free_slot(line: Line) -> None:
    await line.open(ServiceRules("s", limit=1, order=Order.FIFO))
    await line.offer_all([TURN_A, TURN_B])
    lease = await line.take(only=TURN_A)
    assert await line.claimed(1, only=TURN_B) == []
    await line.end(lease)
    assert await line.claimed(1, only=TURN_B) == [TURN_B]


async def test_a_claim_of_one_alone_takes_no_more_than_that_one(line: Line) -> None:
    await line.open(FIFO)
    await line.offer_all([TURN_A, TURN_B])
    assert await line.claimed(9, only=TURN_A) == [TURN_A]


async def test_in_a_pool_a_turn_is_granted_when_it_is_the_best_head(line: Line) -> None:
    await open_pool(line, 1, "a", "b")
    await line.offer("job", service="a", band=1)
    await line.offer(TURN_A, service="b", band=2)
    assert await line.claimed(1, "a", "b", turns=True) == []
    lease = await line.take("a", "b")
    assert await line.claimed(1, "b", turns=True) == []
    await line.end(lease)
    assert await line.claimed(1, "b", only=TURN_A) == [TURN_A]


async def test_who_claims_without_waiting_is_no_rival_for_the_slots_of_a_pool(line: Line) -> None:
    await open_pool(line, 1, "a", "b")
    assert await line.claimed(5, "b", worker="passer-by", waits=False) == []
    await line.offer("of b", service="b", band=1)
    await line.offer("of a", service="a", band=2)
    assert await line.claimed(1, "a", worker="w") == ["of a"], "nobody waits with room for b"
