"""Recurring work is limited to a share of the time, and many callers share one query."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fairlead.errors import Unavailable
from fairlead.pacing import CachedQuery, DutyCycle, Interval
from fairlead.testing.virtual_time import in_virtual_time

HOURLY = DutyCycle(0.5, every=3600.0)


class Query:
    """Counts its calls and returns the count; each call takes `takes` seconds."""

    def __init__(self, takes: float = 0.0, error: Exception | None = None) -> None:
        self.calls = 0
        self.takes = takes
        self.error = error

    async def __call__(self) -> int:
        self.calls += 1
        call = self.calls
        await asyncio.sleep(self.takes)
        if self.error is not None:
            raise self.error
        return call


def test_slow_work_pauses_until_its_share_of_the_time_is_kept() -> None:
    duty = DutyCycle(0.1, every=2.0, longest=30.0)
    assert duty.pause(0.0) == 2.0
    assert duty.pause(1.0) == pytest.approx(9.0)
    assert duty.pause(100.0) == 30.0


def test_an_interval_is_due_once_in_its_length() -> None:
    interval = Interval(2.0)
    assert [interval.due(now) for now in (0.0, 1.9, 2.0, 3.0, 4.5)] == [True, False, True, False, True]


async def test_concurrent_callers_share_one_query_and_its_answer_is_kept() -> None:
    cached = CachedQuery(Query(), HOURLY)
    assert await asyncio.gather(cached.recent(), cached.recent()) == [1, 1]
    assert await cached.recent() == 1
    assert cached.last() == 1


async def test_last_returns_at_once_and_starts_the_query() -> None:
    cached = CachedQuery(Query(), HOURLY)
    assert cached.last() is None
    assert await cached.recent() == 1
    assert cached.last() == 1


@in_virtual_time
async def test_a_slow_answer_is_kept_for_longer_up_to_a_limit() -> None:
    query = Query(takes=10.0)
    cached = CachedQuery(query, DutyCycle(0.02, every=1.0, longest=30.0))
    assert await cached.recent() == 1
    await asyncio.sleep(29)
    assert await cached.recent() == 1
    await asyncio.sleep(1)
    assert await cached.recent() == 2


@in_virtual_time
async def test_a_fresh_answer_comes_from_a_query_that_began_after_the_call() -> None:
    query = Query(takes=1.0)
    cached = CachedQuery(query, HOURLY)
    first = asyncio.create_task(cached.recent())
    await asyncio.sleep(0.5)
    assert await asyncio.gather(*(cached.fresh() for _ in range(5))) == [2] * 5
    assert await first == 1
    assert await cached.fresh() == 3


@in_virtual_time
async def test_an_answer_since_a_moment_is_reused_if_its_query_began_late_enough() -> None:
    query = Query(takes=1.0)
    cached = CachedQuery(query, HOURLY)
    moment = asyncio.get_running_loop().time()
    assert await asyncio.gather(cached.since(moment), cached.since(moment)) == [1, 1]
    assert await cached.since(moment) == 1
    assert await cached.since(moment + 0.5) == 2


@in_virtual_time
async def test_a_query_that_hangs_times_out_for_each_caller_and_is_not_repeated() -> None:
    query = Query(takes=100.0)
    cached = CachedQuery(query, HOURLY, timeout=1.0)
    for ask in (cached.fresh, cached.recent, cached.fresh):
        with pytest.raises(Unavailable, match="within 1 s"):
            await ask()
    assert query.calls == 1
    await cached.close()


async def test_a_caller_that_is_cancelled_leaves_the_answer_to_the_others() -> None:
    cached = CachedQuery(Query(), HOURLY)
    leaving, staying = asyncio.create_task(cached.recent()), asyncio.create_task(cached.recent())
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == 1


@pytest.mark.parametrize("ask", [CachedQuery.recent, CachedQuery.fresh, lambda cached: cached.since(0.0)])
async def test_an_error_reaches_every_caller_and_the_next_call_asks_again(
    ask: Callable[[CachedQuery[int]], Awaitable[int]],
) -> None:
    query = Query(error=Unavailable("down"))
    cached = CachedQuery(query, HOURLY)
    for expected in (1, 2):
        with pytest.raises(Unavailable, match="down"):
            await ask(cached)
        assert query.calls == expected
