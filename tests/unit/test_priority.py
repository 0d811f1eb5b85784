"""Who decides a job's priority and weight, what is cached, and what happens without an answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from fairlead.app.priority import PriorityHook, PriorityResolver, resolver
from fairlead.app.priority.sources import MOST_THREADS
from fairlead.domain.config import Config
from fairlead.domain.job import Job
from fairlead.domain.submission import Submission, check
from fairlead.engine.clock import SystemClock

PATIENCE = 30.0
TABLE = {
    "plans": {"enterprise": {"priority": "high", "weight": 4}, "free": {"priority": "low"}, "heavy": {"weight": 7}},
    "users": {
        "ada": {"plan": "enterprise"},
        "bob": {"plan": "free", "weight": 2},
        "cleo": {"plan": "enterprise", "priority": "medium"},
        "dan": {"plan": "heavy"},
    },
}


class FakeClock(SystemClock):
    """Advances only when the test sets it."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.0

    def monotonic(self) -> float:
        return self.time


Make = Callable[..., "Setup"]


class Setup:
    """A `PriorityResolver` with a clock, and shortcuts for its calls."""

    def __init__(self, hook: PriorityHook | None, config: dict[str, Any]) -> None:
        self.config = Config.model_validate({"services": {"echo": {"limit": 1, "function": "echo:echo"}}, **config})
        self.clock = FakeClock()
        plans = self.config.plans.values()
        self.priorities = PriorityResolver(self.config, hook, self.clock, lambda: any(plan.rate for plan in plans))

    async def settle(self, *submissions: Submission, lowers_only: bool = False) -> list[Job]:
        submits = [check(each, self.config, now=1.0) for each in submissions]
        return [each.job for each in await self.priorities.settle(submits, lowers_only=lowers_only)]

    async def of(self, user_id: str, priority: str | None = None, *, lowers_only: bool = False) -> tuple[Any, ...]:
        wanted = Submission("echo", user_id=user_id, priority=priority)
        [job] = await self.settle(wanted, lowers_only=lowers_only)
        assert job.original_priority is job.priority
        return job.priority.value, job.weight, job.priority_source


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:

        def make(hook: PriorityHook | None = None, **config: Any) -> Setup:
            priority = {"timeout": PATIENCE, **config.pop("priority", {})}
            setup = Setup(hook, {"priority": priority, **config})
            stack.push_async_callback(setup.priorities.close)
            return setup

        yield make


# ---------------------------------------------------------------- who decides


async def test_without_hook_table_and_service_the_priority_is_medium_and_nothing_needs_settling(make: Make) -> None:
    setup = make()
    assert not setup.priorities.needed
    assert await setup.of("ada") == ("medium", 1.0, "default")


@pytest.mark.parametrize(
    ("user_id", "expected"),
    [
        ("ada", ("high", 4.0, "config")),
        ("bob", ("low", 2.0, "config")),
        ("cleo", ("medium", 4.0, "config")),
        ("dan", ("medium", 7.0, "default")),
        ("eve", ("medium", 1.0, "default")),
    ],
)
async def test_the_table_holds_users_and_their_plans(make: Make, user_id: str, expected: tuple[Any, ...]) -> None:
    setup = make(**TABLE)
    assert setup.priorities.needed
    assert await setup.of(user_id) == expected


async def test_a_given_priority_is_used_with_the_weight_of_the_table(make: Make) -> None:
    def hook(user_id: str) -> str:
        raise AssertionError("the hook is not called when the priority is given")

    setup = make(hook, **TABLE)
    assert await setup.of("ada", "low") == ("low", 4.0, "given")
    assert await setup.of("eve", "high") == ("high", 1.0, "given")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("low", ("low", 4.0, "hook")),
        ({"priority": "low"}, ("low", 4.0, "hook")),
        ({"priority": "low", "weight": 9}, ("low", 9.0, "hook")),
        ({"plan": "free"}, ("low", 4.0, "hook")),
        ({"plan": "heavy"}, ("high", 7.0, "config")),
        ({"plan": "free", "priority": "medium", "weight": 0.5}, ("medium", 0.5, "hook")),
        ({"weight": 3}, ("high", 3.0, "config")),
        (None, ("high", 4.0, "config")),
    ],
)
async def test_the_hook_precedes_the_table_which_fills_what_the_hook_leaves_open(
    make: Make, answer: Any, expected: tuple[Any, ...]
) -> None:
    async def hook(user_id: str) -> Any:
        return answer

    assert await make(hook, **TABLE).of("ada") == expected


@pytest.mark.parametrize(
    "answer",
    [
        "urgent", "HIGH", "", 1, True, ["high"], {}, {"tier": "gold"}, {"priority": 1}, {"priority": ["high"]},
        {"plan": "gold"}, {"plan": {}}, {"weight": 0}, {"weight": -1}, {"weight": 1000.5}, {"weight": True},
        {"weight": float("nan")}, {"weight": float("inf")}, {"weight": "2"}, {"weight": 10**400}, object(),
    ],
)  # fmt: skip
async def test_an_invalid_answer_is_a_fallback_with_the_weight_of_the_table(make: Make, answer: Any) -> None:
    assert await make(lambda user_id: answer, **TABLE).of("ada") == ("medium", 4.0, "fallback")


@pytest.mark.parametrize(
    ("answer", "plan"),
    [({"plan": "free"}, "free"), ({"weight": 2}, "enterprise"), ("low", "enterprise"), ("!", "enterprise")],
)
async def test_the_plan_comes_from_the_first_source_that_knows_it(make: Make, answer: Any, plan: str) -> None:
    setup = make(lambda user_id: answer, **TABLE)
    [job] = await setup.settle(Submission("echo", user_id="ada"))
    assert job.plan == plan
    [given] = await setup.settle(Submission("echo", user_id="ada", priority="high"))
    assert (given.priority_source, given.plan) == ("given", "enterprise"), "the table precedes what was cached"


async def test_users_are_always_looked_up_if_plans_have_rates(make: Make) -> None:
    plans = {"free": {"priority": "low", "rate": {"requests": 1}}}
    setup = make(lambda user_id: {"plan": "free"}, plans=plans)
    [given] = await setup.settle(Submission("echo", user_id="eve", priority="high"))
    assert (given.priority.value, given.priority_source, given.plan) == ("high", "given", "free")


async def test_a_given_priority_keeps_the_plan_of_the_last_answer(make: Make) -> None:
    setup = make(lambda user_id: {"plan": "free"}, **TABLE)
    given = Submission("echo", user_id="eve", priority="high")
    assert [job.plan for job in await setup.settle(given)] == [None]
    assert [job.plan for job in await setup.settle(Submission("echo", user_id="eve"))] == ["free"]
    assert [job.plan for job in await setup.settle(given)] == ["free"]


async def test_a_hook_that_raises_is_a_fallback_and_is_called_again(make: Make) -> None:
    asked = []

    async def hook(user_id: str) -> str:
        asked.append(user_id)
        raise KeyError(user_id)

    setup = make(hook, priority={"breaker_after": 2})
    for user_id in ("ada", "ada", "bob", "cleo"):
        assert await setup.of(user_id) == ("medium", 1.0, "fallback")
    assert asked == ["ada", "ada", "bob", "cleo"], "an error for one user must not affect the others"


async def test_a_plain_function_runs_in_a_thread_and_may_return_an_awaitable(make: Make) -> None:
    threads = []

    async def later() -> str:
        return "high"

    def hook(user_id: str) -> Awaitable[str]:
        threads.append(threading.current_thread())
        return later()

    assert await make(hook).of("ada") == ("high", 1.0, "hook")
    assert threads != [threading.current_thread()]


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration(), asyncio.CancelledError()])
async def test_no_exception_of_a_hook_in_a_thread_reaches_the_submitter(make: Make, error: BaseException) -> None:
    def hook(user_id: str) -> str:
        raise error

    assert await make(hook).of("ada") == ("medium", 1.0, "fallback")


async def test_hooks_that_hang_use_a_bounded_number_of_threads(make: Make) -> None:
    go_on = threading.Event()
    running = []

    def hook(user_id: str) -> str:
        running.append(user_id)
        go_on.wait(PATIENCE)
        return "high"

    setup = make(hook, priority={"timeout": 0.2, "breaker_after": 1000})
    try:
        users = [Submission("echo", user_id=f"u{n}") for n in range(3 * MOST_THREADS)]
        jobs = await asyncio.gather(*(setup.settle(each) for each in users))
        assert {job.priority_source for [job] in jobs} == {"fallback"}
        assert len(running) <= MOST_THREADS
    finally:
        go_on.set()


# ---------------------------------------------------------------- a user's own choice


@pytest.mark.parametrize(
    ("user_id", "chosen", "expected"),
    [
        ("ada", "low", ("low", 4.0, "given")),
        ("ada", "medium", ("medium", 4.0, "given")),
        ("ada", "high", ("high", 4.0, "config")),
        ("bob", "high", ("low", 2.0, "config")),
        ("eve", "high", ("medium", 1.0, "default")),
        ("eve", "low", ("low", 1.0, "given")),
        ("eve", None, ("medium", 1.0, "default")),
    ],
)
async def test_a_user_can_only_lower_the_priority(
    make: Make, user_id: str, chosen: str | None, expected: tuple[Any, ...]
) -> None:
    assert await make(**TABLE).of(user_id, chosen, lowers_only=True) == expected


async def test_a_user_cannot_raise_the_priority_without_configuration_either(make: Make) -> None:
    assert await make().of("ada", "high", lowers_only=True) == ("medium", 1.0, "default")


# ---------------------------------------------------------------- the cache


class Counting:
    """A hook that counts its calls."""

    def __init__(self, answer: Any = "high") -> None:
        self.asked: list[str] = []
        self.answer = answer

    async def __call__(self, user_id: str) -> Any:
        self.asked.append(user_id)
        return self.answer


async def test_an_answer_is_cached_for_as_long_as_the_config_says(make: Make) -> None:
    hook = Counting()
    setup = make(hook, priority={"cache": 60})
    await setup.of("ada")
    setup.clock.time += 59
    hook.answer = "low"
    assert await setup.of("ada") == ("high", 1.0, "hook")
    setup.clock.time += 1
    assert await setup.of("ada") == ("low", 1.0, "hook")
    assert hook.asked == ["ada", "ada"]


async def test_with_a_cache_of_0_nothing_is_cached(make: Make) -> None:
    hook = Counting()
    setup = make(hook, priority={"cache": 0})
    await setup.of("ada")
    await setup.of("ada")
    assert hook.asked == ["ada", "ada"]


async def test_an_answer_that_cannot_be_used_is_cached_too(make: Make) -> None:
    hook = Counting("urgent")
    setup = make(hook)
    await setup.of("ada")
    assert await setup.of("ada") == ("medium", 1.0, "fallback")
    assert hook.asked == ["ada"]


async def test_only_the_most_recent_users_are_cached(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "MAX_CACHED", 2)
    hook = Counting()
    setup = make(hook)
    for user_id in ("ada", "bob", "ada", "cleo", "ada", "bob"):
        await setup.of(user_id)
    assert hook.asked == ["ada", "bob", "cleo", "bob"]


async def test_concurrent_submits_of_one_user_share_one_query(make: Make) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()
    hook = Counting()

    async def slow(user_id: str) -> Any:
        asked.set()
        await answer.wait()
        return await hook(user_id)

    setup = make(slow, priority={"cache": 0})
    waiting = [asyncio.create_task(setup.of("ada")) for _ in range(50)]
    await asked.wait()
    waiting[0].cancel()  # the first caller gives up; the others still get their answer
    await asyncio.wait([waiting[0]])
    answer.set()
    assert set(await asyncio.gather(*waiting[1:])) == {("high", 1.0, "hook")}
    assert hook.asked == ["ada"]


async def test_a_bulk_asks_once_per_user_and_several_users_at_a_time(make: Make) -> None:
    inside = most = 0
    all_in = asyncio.Event()
    asked = []

    async def hook(user_id: str) -> str:
        nonlocal inside, most
        asked.append(user_id)
        inside += 1
        most = max(most, inside)
        if inside == resolver.AT_ONCE:
            all_in.set()
        await all_in.wait()
        inside -= 1
        return "high"

    setup = make(hook)
    wanted = [Submission("echo", user_id=f"u{n % 100}") for n in range(300)]
    jobs = await setup.settle(*wanted, Submission("echo", user_id="given", priority="low"))
    assert sorted(asked) == sorted({each.user_id for each in wanted})
    assert most == resolver.AT_ONCE
    assert [job.user_id for job in jobs] == [*(each.user_id for each in wanted), "given"]
    assert [job.priority_source for job in jobs] == ["hook"] * 300 + ["given"]


async def test_a_bulk_waits_for_a_bounded_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "BULK_PATIENCE", 0.01)

    async def hook(user_id: str) -> str:
        if user_id == "quick":
            return "high"
        await asyncio.Event().wait()
        return "high"

    setup = make(hook, priority={"timeout": 0.5})
    assert await setup.of("quick") == ("high", 1.0, "hook")
    jobs = await setup.settle(*(Submission("echo", user_id=user_id) for user_id in ("quick", "a", "b")))
    assert [job.priority_source for job in jobs] == ["hook", "fallback", "fallback"]


# ---------------------------------------------------------------- the breaker


async def test_a_source_that_times_out_rests_and_is_then_probed_once(make: Make) -> None:
    asked: list[str] = []
    works = False

    async def hook(user_id: str) -> str:
        asked.append(user_id)
        if not works:
            raise TimeoutError
        return "high"

    setup = make(hook, priority={"breaker_after": 3, "breaker_rest": 10, "cache": 0})
    for user_id in "abcde":
        assert await setup.of(user_id) == ("medium", 1.0, "fallback")
    assert asked == ["a", "b", "c"]
    assert setup.priorities.resting == {"hook": True}

    setup.clock.time += 10
    await asyncio.gather(setup.of("f"), setup.of("g"), setup.of("h"))
    assert asked == ["a", "b", "c", "f"], "one probe, and it failed"

    setup.clock.time += 9
    await setup.of("i")
    assert asked == ["a", "b", "c", "f"]

    setup.clock.time += 1
    works = True
    assert await setup.of("j") == ("high", 1.0, "hook")
    assert await setup.of("k") == ("high", 1.0, "hook")
    assert setup.priorities.resting == {"hook": False}


async def test_only_failures_in_a_row_open_the_breaker(make: Make) -> None:
    async def hook(user_id: str) -> str:
        if user_id.startswith("slow"):
            raise TimeoutError
        return "high"

    setup = make(hook, priority={"breaker_after": 2, "cache": 0})
    for n in range(5):
        assert await setup.of(f"slow{n}") == ("medium", 1.0, "fallback")
        assert await setup.of("ada") == ("high", 1.0, "hook")


async def test_decisions_are_counted_by_source(make: Make) -> None:
    setup = make(**TABLE)
    await setup.settle(*(Submission("echo", user_id=user_id) for user_id in ("ada", "bob", "eve")))
    await setup.of("ada", "low")
    assert setup.priorities.decided == {"config": 2, "default": 1, "given": 1}
