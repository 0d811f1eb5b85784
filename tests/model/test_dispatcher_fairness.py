"""Fair lanes are fair: places come true, newcomers are served soon, and slot time is shared by weight."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.dispatch.port import Claim, Lease, Offer, Release
from fairlead.domain.limits import Order, ServiceRules
from tests.contract.dispatchers import ENGINES, FakeClock, Line, close

pytestmark = pytest.mark.parametrize("engine", sorted(ENGINES))

SECONDS = st.integers(1, 640).map(lambda ticks: ticks / 64)
WEIGHTS = st.sampled_from([0.5, 1.0, 1.0, 2.0, 3.0, 7.5])
USER = st.fixed_dictionaries({"seconds": SECONDS, "weight": WEIGHTS, "bands": st.lists(st.integers(1, 3), min_size=1)})


@asynccontextmanager
async def open_line(engine: str, rules: ServiceRules) -> AsyncIterator[Line]:
    clock = FakeClock()
    line = Line(await ENGINES[engine](clock), clock)
    await line.open(rules)
    yield line
    await close(line.dispatcher)


def few(engine: str) -> settings:
    """Against a server every step is a round trip, so there are fewer examples."""
    return settings(max_examples=150 if engine == "memory" else 8, deadline=None)


@pytest.mark.parametrize("order", Order)
def test_places_are_the_order_then_served(engine: str, order: Order) -> None:
    """When nothing more arrives and everything lasts as long as estimated."""

    async def serve(users: list[dict[str, object]]) -> None:
        async with open_line(engine, ServiceRules("s", limit=1, order=order)) as line:
            await check(line, users)

    async def check(line: Line, users: list[dict[str, object]]) -> None:
        jobs = []
        for number, user in enumerate(users):
            for band in user["bands"]:  # type: ignore[attr-defined]
                jobs.append(f"job {len(jobs)}")
                await line.offer(jobs[-1], f"user {number}", band=band, weight=user["weight"])
        for number, user in enumerate(users):  # one step each, so that every user's mean is known
            await line.run_first(f"user {number}", user["seconds"], band=1, seq=-1 - number)  # type: ignore[arg-type]
        places = await line.dispatcher.places(jobs)
        work = 0.0
        for position, job in enumerate(sorted(jobs, key=lambda job: places[job].position), start=1):
            assert places[job].position == position
            if order is Order.FAIR:
                assert places[job].work_ahead == pytest.approx(work)
            lease = await line.take()
            assert lease.job_id == job
            seconds = users[int(lease.user_id.removeprefix("user "))]["seconds"]
            await line.end(lease, after=seconds)  # type: ignore[arg-type]
            work += seconds  # type: ignore[operator]

    @few(engine)
    @given(users=st.lists(USER, min_size=1, max_size=6))
    def examples(users: list[dict[str, object]]) -> None:
        asyncio.run(serve(users))

    examples()


def test_a_newcomers_first_job_waits_for_at_most_one_grant_per_active_user(engine: str) -> None:
    async def check(line: Line, backlogs: list[tuple[int, float]], before: int, slots: int, name: str) -> None:
        for number, (waiting, weight) in enumerate(backlogs):
            await line.offer_all([f"{number} {i}" for i in range(waiting)], f"user {number}", weight=weight)
        running = await line.claim(slots)
        for _ in range(before):
            await serve_next(line, running)
        await line.offer("new", name)
        granted: Counter[str] = Counter()
        while granted[name] == 0:
            for lease in await serve_next(line, running):
                granted[lease.user_id] += 1
        assert max(granted.values()) == 1

    async def serve(backlogs: list[tuple[int, float]], before: int, slots: int, name: str) -> None:
        async with open_line(engine, ServiceRules("s", limit=slots)) as line:
            await check(line, backlogs, before, slots, name)

    @few(engine)
    @given(
        backlogs=st.lists(st.tuples(st.integers(1, 30), WEIGHTS), min_size=1, max_size=6),
        before=st.integers(0, 20),
        slots=st.integers(1, 4),
        name=st.sampled_from(["a first", "user 2 and a half", "z last"]),
    )
    def examples(backlogs: list[tuple[int, float]], before: int, slots: int, name: str) -> None:
        asyncio.run(serve(backlogs, before, slots, name))

    examples()


async def serve_next(line: Line, running: list[Lease]) -> list[Lease]:
    """The first of the running steps ends, a second after it began, and the next one is taken."""
    releases = []
    if running:
        first = running.pop(0)
        line.clock.now = first.granted_at + 1.0
        releases = [Release(first.name, "s")]
    taken = await line.dispatcher.exchange(Claim("w", 1, frozenset({"s"})), releases)
    running += taken
    return taken


@pytest.mark.parametrize("slots", [1, 4])
async def test_slot_time_is_shared_by_weight_whatever_the_durations_and_backlogs(engine: str, slots: int) -> None:
    """Short steps, long steps, and steps of any length: what counts is the slot time they take together."""
    async with open_line(engine, ServiceRules("s", limit=slots)) as line:
        await share_slot_time(line, slots, 9_000 if engine == "memory" else 3_000)


async def share_slot_time(line: Line, slots: int, seconds: float) -> None:
    chance = random.Random(7)
    weights = {"short": 1.0, "long": 1.0, "any": 1.0, "twice": 2.0, "half": 0.5}
    durations = {"short": (0.1, 0.1), "long": (9, 11), "any": (0.1, 8), "twice": (1, 2), "half": (1, 5)}
    backlogs = {"short": 18_000, "long": 200, "any": 800, "twice": 2_600, "half": 500}
    for user, waiting in backlogs.items():
        jobs = [f"{user} {i}" for i in range(waiting)]
        await line.dispatcher.offer([Offer(job, i, "s", user, 2, 2, 0, 1, weights[user]) for i, job in enumerate(jobs)])
    used: Counter[str] = Counter()
    ends: list[tuple[float, str, Lease]] = []
    began, releases = line.clock.now, []
    while line.clock.now - began < seconds / slots:
        room = slots - len(ends)
        for lease in await line.dispatcher.exchange(Claim("w", room, frozenset({"s"})), releases):
            heappush(ends, (line.clock.now + chance.uniform(*durations[lease.user_id]), lease.name, lease))
        line.clock.now, _, lease = heappop(ends)
        used[lease.user_id] += line.clock.now - lease.granted_at  # type: ignore[assignment]
        releases = [Release(lease.name, "s")]
    share = {user: seconds / weights[user] for user, seconds in used.items()}
    mean = sum(used.values()) / sum(weights.values())
    for user in weights:
        assert share[user] == pytest.approx(mean, rel=0.03), share
