"""Many askers are one question; a dispatcher that does not answer keeps nobody waiting."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from fairlead.domain.order import Place
from fairlead.errors import Unavailable
from fairlead.runtime import desk
from fairlead.runtime.desk import Desk


class Dispatcher:
    """Answers when `open` is set."""

    def __init__(self) -> None:
        self.asked: list[set[str]] = []
        self.open = asyncio.Event()
        self.error: Exception | None = None

    async def places(self, job_ids: Sequence[str]) -> dict[str, Place]:
        self.asked.append(set(job_ids))
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return {job_id: Place(1, 0.0, 1, 1.0) for job_id in job_ids if job_id != "gone"}


@pytest.fixture
def dispatcher() -> Dispatcher:
    return Dispatcher()


def at(dispatcher: Any) -> Desk:
    return Desk(dispatcher)


async def test_askers_gather_while_a_question_is_under_way(dispatcher: Dispatcher) -> None:
    asks = at(dispatcher)
    first = asyncio.create_task(asks.places(["a"]))
    while not dispatcher.asked:
        await asyncio.sleep(0)
    others = [asyncio.create_task(asks.places([job_id])) for job_id in ("b", "c", "gone")]
    await asyncio.sleep(0)
    dispatcher.open.set()
    assert set(await first) == {"a"}
    assert [set(await other) for other in others] == [{"b"}, {"c"}, set()]
    assert dispatcher.asked == [{"a"}, {"b", "c", "gone"}]


async def test_an_asker_that_goes_away_takes_nobodys_answer(dispatcher: Dispatcher) -> None:
    asks = at(dispatcher)
    leaves, stays = (asyncio.create_task(asks.places(["a"])) for _ in range(2))
    while not dispatcher.asked:
        await asyncio.sleep(0)
    leaves.cancel()
    await asyncio.sleep(0)
    dispatcher.open.set()
    assert set(await stays) == {"a"}


async def test_away_means_no_answer_and_no_error(dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    asks = at(dispatcher)
    dispatcher.error = Unavailable("Redis is away")
    dispatcher.open.set()
    assert await asks.places(["a"]) == {}
    dispatcher.error = None
    dispatcher.open.clear()
    monkeypatch.setattr(desk, "ANSWERS_WITHIN", 0.01)
    assert await asks.places(["a"]) == {}
    dispatcher.open.set()
    assert set(await asks.places(["a"])) == {"a"}


async def test_a_receipt_does_without_after_a_dear_answer(dispatcher: Dispatcher) -> None:
    asks = at(dispatcher)
    slow = asyncio.create_task(asks.places(["a"]))
    await asyncio.sleep(0.05)
    dispatcher.open.set()
    assert not asks.dear
    await slow
    assert asks.dear
    assert set(await asks.places(["a"])) == {"a"}  # whoever looks at a job is told all the same
