"""Fair lanes are fair: positions come true, newcomers are served soon, and slot time is shared by weight."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.dispatch.port import Claim, Lease, Offer, Release
from fairlead.domain.groups import GroupRules, levels_of, parent_of
from fairlead.domain.rates import Rate
from fairlead.domain.rules import Order, ServiceRules
from tests.contract.dispatchers import ENGINES, FakeClock, QueueHarness

pytestmark = pytest.mark.parametrize("engine", sorted(ENGINES))

SECONDS = st.integers(1, 640).map(lambda ticks: ticks / 64)
WEIGHTS = st.sampled_from([0.5, 1.0, 1.0, 2.0, 3.0, 7.5])
Bulk: TypeAlias = tuple[int, float, float, float | None]
Newcomer: TypeAlias = tuple[int, str, float, float | None]
USER = st.fixed_dictionaries({"seconds": SECONDS, "weight": WEIGHTS, "bands": st.lists(st.integers(1, 3), min_size=1)})


@asynccontextmanager
async def open_queue(engine: str, rules: ServiceRules) -> AsyncIterator[QueueHarness]:
    clock = FakeClock()
    queue = QueueHarness(await ENGINES[engine](clock), clock)
    await queue.open(rules)
    yield queue
    await queue.dispatcher.close()


def few(engine: str) -> settings:
    """Against a server every step is a round trip, so there are fewer examples."""
    return settings() if engine == "memory" else settings(max_examples=settings().max_examples // 8)


@pytest.mark.parametrize("order", Order)
def test_positions_are_the_order_of_service(engine: str, order: Order) -> None:
    """Nothing more arrives, and every step takes as long as estimated."""

    async def serve(users: list[dict[str, object]]) -> None:
        async with open_queue(engine, ServiceRules("s", limit=1, order=order)) as queue:
            await check(queue, users)

    async def check(queue: QueueHarness, users: list[dict[str, object]]) -> None:
        jobs = []
        for number, user in enumerate(users):
            for band in user["bands"]:  # type: ignore[attr-defined]
                jobs.append(f"job {len(jobs)}")
                await queue.offer(jobs[-1], f"user {number}", band=band, weight=user["weight"])
            # Run one step of each user to set its mean; in the other bands the users stay newcomers.
            await queue.run_first(f"user {number}", user["seconds"], band=1, seq=-1 - number)  # type: ignore[arg-type]
        positions = await queue.dispatcher.positions(jobs)
        work = 0.0
        for position, job in enumerate(sorted(jobs, key=lambda job: positions[job].position), start=1):
            assert positions[job].position == position
            if order is Order.FAIR:
                assert positions[job].work_ahead == pytest.approx(work)
            lease = await queue.take()
            assert lease.job_id == job
            seconds = users[int(lease.user_id.removeprefix("user "))]["seconds"]
            await queue.end(lease, after=seconds)  # type: ignore[arg-type]
            work += seconds  # type: ignore[operator]

    @few(engine)
    @given(users=st.lists(USER, min_size=1, max_size=6))
    def examples(users: list[dict[str, object]]) -> None:
        asyncio.run(serve(users))

    examples()


def test_a_newcomers_first_job_waits_for_at_most_one_grant_per_active_user(engine: str) -> None:
    async def check(queue: QueueHarness, backlogs: list[tuple[int, float]], before: int, slots: int, name: str) -> None:
        for number, (waiting, weight) in enumerate(backlogs):
            await queue.offer_all([f"{number} {i}" for i in range(waiting)], f"user {number}", weight=weight)
        running = await queue.claim(slots)
        for _ in range(before):
            await serve_next(queue, running)
        await queue.offer("new", name)
        granted: Counter[str] = Counter()
        while granted[name] == 0:
            for lease in await serve_next(queue, running):
                granted[lease.user_id] += 1
        assert max(granted.values()) == 1

    async def serve(backlogs: list[tuple[int, float]], before: int, slots: int, name: str) -> None:
        async with open_queue(engine, ServiceRules("s", limit=slots)) as queue:
            await check(queue, backlogs, before, slots, name)

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


DURATIONS = st.sampled_from([0.001, 0.01, 0.1, 1.0, 10.0, 1000.0])
COSTS = st.sampled_from([None, None, 0.001, 1.0, 1000.0])
BULK = st.tuples(st.integers(1, 40), WEIGHTS, DURATIONS, COSTS)
"""A user's number of jobs, weight, real call duration and declared duration."""


def test_a_newcomer_waits_for_one_grant_per_active_user_whatever_was_estimated(engine: str) -> None:
    """Estimates of any kind (default, declared, measured), and calls up to a million times as short or long as those.

    New users arrive one after the other. Grants that are running when one arrives are not counted. Later grants are
    counted, and only users that were active then may have any: a user that arrives later never goes first.
    """

    async def check(
        queue: QueueHarness, warm: list[float], bulks: list[Bulk], before: int, newcomers: list[Newcomer], at_once: int
    ) -> None:
        seconds: dict[str, float] = {}
        running: list[tuple[float, int, Lease]] = []
        for number, duration in enumerate(warm):
            await queue.offer(f"warm {number}", f"warm {number}")
            await queue.end(await queue.take(), after=duration)
        for number, (jobs, weight, duration, cost) in enumerate(bulks):
            seconds[f"user {number}"] = duration
            await queue.offer_all([f"{number} {i}" for i in range(jobs)], f"user {number}", weight=weight, cost=cost)
        for _ in range(before):
            await go_on(queue, running, seconds, at_once)
        waits: dict[str, Counter[str]] = {}
        active: dict[str, set[str]] = {}
        for number, (gap, user, duration, cost) in enumerate(newcomers):
            name = f"{user} {number}"
            seconds[name], waits[name] = duration, Counter()
            active[name] = {user.user_id for user in (await queue.see()).users if user.waiting or user.running}
            await queue.offer_all([f"{name} {i}" for i in range(3)], name, cost=cost)
            for _ in range(gap):
                count(waits, active, await go_on(queue, running, seconds, at_once))
        while waits:
            granted = await go_on(queue, running, seconds, at_once)
            assert granted or running
            count(waits, active, granted)

    def count(waits: dict[str, Counter[str]], active: dict[str, set[str]], granted: list[Lease]) -> None:
        for lease in granted:
            waits.pop(lease.user_id, None)
            for name, ahead in waits.items():
                ahead[lease.user_id] += 1
                assert ahead[lease.user_id] == 1, f"{lease.user_id} twice before {name}"
                assert lease.user_id in active[name], f"{lease.user_id} arrived after {name}"

    async def go_on(
        queue: QueueHarness, running: list[tuple[float, int, Lease]], seconds: dict[str, float], at_once: int
    ) -> list[Lease]:
        """End the first calls, some at once, and claim as many others."""
        ended = [heappop(running) for _ in range(min(at_once, len(running)))]
        queue.clock.now = max([queue.clock.now, *(end for end, _, _ in ended)])
        releases = [Release(lease.name, "s") for _, _, lease in ended]
        granted = await queue.dispatcher.exchange(Claim("w", 9, frozenset({"s"})), releases)
        for lease in granted:
            queue.seq += 1
            heappush(running, (queue.clock.now + seconds[lease.user_id], queue.seq, lease))
        return granted

    async def serve(slots: int, user_limit: int | None, *more: Any) -> None:
        async with open_queue(engine, ServiceRules("s", limit=slots, user_limit=user_limit)) as queue:
            await check(queue, *more)

    @few(engine)
    @given(
        slots=st.integers(1, 8),
        user_limit=st.sampled_from([None, None, 1, 3]),
        warm=st.lists(DURATIONS, max_size=2),
        bulks=st.lists(BULK, min_size=1, max_size=5),
        before=st.integers(0, 20),
        newcomers=st.lists(
            st.tuples(st.integers(0, 2), st.sampled_from(["a first", "z last"]), DURATIONS, COSTS),
            min_size=1,
            max_size=4,
        ),
        at_once=st.integers(1, 8),
    )
    def examples(
        slots: int,
        user_limit: int | None,
        warm: list[float],
        bulks: list[Bulk],
        before: int,
        newcomers: list[Newcomer],
        at_once: int,
    ) -> None:
        asyncio.run(serve(slots, user_limit, warm, bulks, before, newcomers, at_once))

    examples()


def test_a_user_that_leaves_and_returns_gets_no_more_than_its_share(engine: str) -> None:
    """One user always has jobs waiting; another brings a few whenever it has none queued, or leaves for good."""

    async def check(
        queue: QueueHarness, slots: int, batch: int, seconds: dict[str, float], cost: float, idle: bool
    ) -> None:
        rounds = 400 if engine == "memory" else 150
        await queue.dispatcher.offer(
            [Offer(f"b{i}", i, "s", "stays", 2, 2, 0, 1, cost=cost) for i in range(9 * rounds)]
        )
        running: list[tuple[float, int, Lease]] = []
        used = dict.fromkeys(seconds, 0.0)
        releases: list[Release] = []
        for number in range(rounds):
            for lease in await queue.dispatcher.exchange(Claim("w", slots, frozenset({"s"})), releases):
                queue.seq += 1
                heappush(running, (queue.clock.now + seconds[lease.user_id], queue.seq, lease))
            returns = await queue.user("returns")
            if returns is None or not (returns.waiting or (idle and returns.running)):
                await queue.offer_all([f"r{number} {i}" for i in range(batch)], "returns", cost=cost)
            queue.clock.now, _, lease = heappop(running)
            releases = [Release(lease.name, "s")]
            used[lease.user_id] += seconds[lease.user_id]
        # Only the first round of grants was charged by estimates.
        most = 2 * slots * max(cost, *seconds.values())
        assert used["returns"] <= used["stays"] + most, used

    async def serve(slots: int, *more: Any) -> None:
        async with open_queue(engine, ServiceRules("s", limit=slots)) as queue:
            await check(queue, slots, *more)

    @few(engine)
    @given(
        slots=st.integers(1, 4),
        batch=st.integers(1, 5),
        seconds=st.fixed_dictionaries({"stays": st.sampled_from([0.01, 0.1]), "returns": st.sampled_from([0.1, 1.0])}),
        cost=st.sampled_from([0.001, 1.0, 10.0]),
        idle=st.booleans(),
    )
    def examples(slots: int, batch: int, seconds: dict[str, float], cost: float, idle: bool) -> None:
        asyncio.run(serve(slots, batch, seconds, cost, idle))

    examples()


async def serve_next(queue: QueueHarness, running: list[Lease]) -> list[Lease]:
    """End the first running step a second after its start, and claim the next."""
    releases = []
    if running:
        first = running.pop(0)
        queue.clock.now = first.granted_at + 1.0
        releases = [Release(first.name, "s")]
    taken = await queue.dispatcher.exchange(Claim("w", 1, frozenset({"s"})), releases)
    running += taken
    return taken


@pytest.mark.parametrize("slots", [1, 4])
async def test_slot_time_is_shared_by_weight_whatever_the_durations_and_backlogs(engine: str, slots: int) -> None:
    """Short steps, long steps and steps of random length: the total slot time is shared."""
    async with open_queue(engine, ServiceRules("s", limit=slots)) as queue:
        await share_slot_time(queue, slots, 9_000 if engine == "memory" else 3_000)


async def share_slot_time(queue: QueueHarness, slots: int, seconds: float) -> None:
    chance = random.Random(7)
    weights = {"short": 1.0, "long": 1.0, "any": 1.0, "twice": 2.0, "half": 0.5}
    durations = {"short": (0.1, 0.1), "long": (9, 11), "any": (0.1, 8), "twice": (1, 2), "half": (1, 5)}
    backlogs = {"short": 18_000, "long": 200, "any": 800, "twice": 2_600, "half": 500}
    for user, waiting in backlogs.items():
        jobs = [f"{user} {i}" for i in range(waiting)]
        await queue.dispatcher.offer(
            [Offer(job, i, "s", user, 2, 2, 0, 1, weights[user]) for i, job in enumerate(jobs)]
        )
    used: Counter[str] = Counter()
    ends: list[tuple[float, str, Lease]] = []
    began, releases = queue.clock.now, []
    while queue.clock.now - began < seconds / slots:
        budget = slots - len(ends)
        for lease in await queue.dispatcher.exchange(Claim("w", budget, frozenset({"s"})), releases):
            heappush(ends, (queue.clock.now + chance.uniform(*durations[lease.user_id]), lease.name, lease))
        queue.clock.now, _, lease = heappop(ends)
        used[lease.user_id] += queue.clock.now - lease.granted_at  # type: ignore[assignment]
        releases = [Release(lease.name, "s")]
    share = {user: seconds / weights[user] for user, seconds in used.items()}
    mean = sum(used.values()) / sum(weights.values())
    for user in weights:
        assert share[user] == pytest.approx(mean, rel=0.03), share


TEAM = st.tuples(st.integers(1, 4), st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from(["acme", "globex", None]))
"""A team's number of users, its weight, and its organisation."""


def test_no_group_and_no_user_gets_more_than_its_share_and_one_call_per_slot(engine: str) -> None:
    """While all of them have jobs waiting, two groups or users beside each other never differ by more than the longest
    call of each for every slot, and their first calls, charged by weight; also if a rate decides when calls start."""

    async def check(queue: QueueHarness, slots: int, teams: list[tuple[int, float, str | None]], seed: int) -> None:
        chance, members = random.Random(seed), dict[str, str]()
        rounds = 300 if engine == "memory" else 100
        for number, (users, _, outer) in enumerate(teams):
            path = f"team-{number}" if outer is None else f"{outer}/team-{number}"
            members |= {f"{number}-{user}": path for user in range(users)}
        for user, path in members.items():
            await queue.dispatcher.offer(
                [Offer(f"{user} {i}", i, "s", user, 2, 2, 0, 1, group=path) for i in range(rounds)]
            )
        running: list[tuple[float, int, Lease]] = []
        used: Counter[str] = Counter()
        releases: list[Release] = []
        for _ in range(rounds):
            for lease in await queue.dispatcher.exchange(Claim("w", slots, frozenset({"s"})), releases):
                queue.seq += 1
                heappush(running, (queue.clock.now + chance.choice([0.5, 1.0, 4.0]), queue.seq, lease))
            releases = []
            if not running:
                queue.clock.advance(0.5)  # all wait for the rate
                continue
            queue.clock.now, _, lease = heappop(running)
            releases = [Release(lease.name, "s")]
            for node in (lease.user_id, *levels_of(members[lease.user_id])):
                used[node] += queue.clock.now - lease.granted_at  # type: ignore[assignment]
        weights = {path: rules.weight for path, rules in queue.groups.items()}
        nodes = [*members, *{each for path in members.values() for each in levels_of(path)}]
        for one, other in itertools.combinations(nodes, 2):
            if parents(one, members) == parents(other, members):
                shares = used[one] / weights.get(one, 1.0), used[other] / weights.get(other, 1.0)
                most = (slots + 1) * 4.0 * (1 / weights.get(one, 1.0) + 1 / weights.get(other, 1.0))
                assert abs(shares[0] - shares[1]) <= most, (one, other, used)

    def parents(node: str, members: dict[str, str]) -> str | None:
        return members[node] if node in members else parent_of(node)

    async def serve(slots: int, teams: list[tuple[int, float, str | None]], seed: int, rate: Rate | None) -> None:
        groups = {
            f"team-{number}" if outer is None else f"{outer}/team-{number}": GroupRules(weight)
            for number, (_, weight, outer) in enumerate(teams)
        }
        async with open_queue(engine, ServiceRules("s", limit=slots, rate=rate)) as queue:
            await queue.configure(groups=groups)
            await check(queue, slots, teams, seed)

    @few(engine)
    @given(
        slots=st.integers(1, 3),
        teams=st.lists(TEAM, min_size=2, max_size=4),
        seed=st.integers(0, 99),
        rate=st.sampled_from([None, Rate(4, None, 8.0)]),
    )
    def examples(slots: int, teams: list[tuple[int, float, str | None]], seed: int, rate: Rate | None) -> None:
        asyncio.run(serve(slots, teams, seed, rate))

    examples()
