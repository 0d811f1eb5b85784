"""Concurrent callers share one query, and do not wait for a dispatcher that does not answer."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from fairlead.dispatch.port import Unserved
from fairlead.domain.fair_share import QueuePosition
from fairlead.engine import positions
from fairlead.engine.positions import PositionBatcher
from fairlead.errors import Unavailable


class Dispatcher:
    """Answers when `open` is set."""

    def __init__(self) -> None:
        self.asked: list[set[str]] = []
        self.open = asyncio.Event()
        self.error: Exception | None = None

    async def positions(self, job_ids: Sequence[str], unserved: Unserved = frozenset()) -> dict[str, QueuePosition]:
        self.asked.append(set(job_ids))
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return {job_id: QueuePosition(1, 0.0, 1, 1.0) for job_id in job_ids if job_id != "gone"}


@pytest.fixture
def dispatcher() -> Dispatcher:
    return Dispatcher()


def at(dispatcher: Any) -> PositionBatcher:
    return PositionBatcher(dispatcher)


async def test_callers_gather_while_a_query_is_in_progress(dispatcher: Dispatcher) -> None:
    asks = at(dispatcher)
    first = asyncio.create_task(asks.positions(["a"]))
    while not dispatcher.asked:
        await asyncio.sleep(0)
    others = [asyncio.create_task(asks.positions([job_id])) for job_id in ("b", "c", "gone")]
    await asyncio.sleep(0)
    dispatcher.open.set()
    assert set(await first) == {"a"}
    assert [set(await other) for other in others] == [{"b"}, {"c"}, set()]
    assert dispatcher.asked == [{"a"}, {"b", "c", "gone"}]


async def test_a_cancelled_caller_takes_no_answer_from_others(dispatcher: Dispatcher) -> None:
    asks = at(dispatcher)
    leaves, stays = (asyncio.create_task(asks.positions(["a"])) for _ in range(2))
    while not dispatcher.asked:
        await asyncio.sleep(0)
    leaves.cancel()
    await asyncio.sleep(0)
    dispatcher.open.set()
    assert set(await stays) == {"a"}


async def test_an_unreachable_dispatcher_means_no_answer_and_no_error(
    dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = at(dispatcher)
    dispatcher.error = Unavailable("Redis is away")
    dispatcher.open.set()
    assert await asks.positions(["a"]) == {}
    dispatcher.error = None
    dispatcher.open.clear()
    monkeypatch.setattr(positions, "ANSWER_WITHIN", 0.01)
    assert await asks.positions(["a"]) == {}
    dispatcher.open.set()
    while not (found := await asks.positions(["a"])):
        await asyncio.sleep(0.01)
    assert set(found) == {"a"}


async def test_callers_do_not_wait_for_a_dispatcher_that_did_not_answer(
    dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers that joined during the first query do not wait either; one query at a time checks whether it answers
    again."""
    monkeypatch.setattr(positions, "ANSWER_WITHIN", 0.01)
    monkeypatch.setattr(positions, "RETRY_AFTER", 0.0)
    asks = at(dispatcher)
    first = asyncio.create_task(asks.positions(["a"]))
    while not dispatcher.asked:
        await asyncio.sleep(0)
    assert (await asyncio.gather(first, asks.positions(["b"]))) == [{}, {}]
    assert dispatcher.asked == [{"a"}]
    monkeypatch.setattr(positions, "ANSWER_WITHIN", 1000.0)
    for _ in range(3):
        assert await asks.positions(["a"]) == {}
        await asyncio.sleep(0)
    assert len(dispatcher.asked) == 2


async def test_several_dispatchers_are_waited_for_until_all_jobs_are_found() -> None:
    place, never = QueuePosition(1, 0.0, 1, 1.0), asyncio.Event()

    async def hangs() -> dict[str, QueuePosition]:
        await never.wait()
        return {}

    async def answers(*job_ids: str) -> dict[str, QueuePosition]:
        return dict.fromkeys(job_ids, place)

    assert set(await positions.first_complete([hangs(), answers("a", "b")], {"a", "b"})) == {"a", "b"}
    assert set(await positions.first_complete([answers("b"), answers("a")], {"a", "b", "gone"})) == {"a", "b"}
    assert await positions.first_complete([], {"a"}) == {}


async def test_a_receipt_has_no_position_after_a_slow_answer(dispatcher: Dispatcher) -> None:
    asks = at(dispatcher)
    slow = asyncio.create_task(asks.positions(["a"]))
    await asyncio.sleep(0.05)
    dispatcher.open.set()
    assert not asks.expensive
    await slow
    assert asks.expensive
    assert set(await asks.positions(["a"])) == {"a"}  # a caller that asks for the position still gets it
