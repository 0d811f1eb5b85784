"""Budgets: what calls reserve and use, however they end, and what happens to steps whose budget is spent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fairlead.domain import transitions
from fairlead.domain.budgets import DEMOTE, Budget, Budgets, Counter
from fairlead.domain.job import BUDGET_SPENT, Job, JobStatus, Priority
from fairlead.domain.retry import Failure, RetryPolicy
from fairlead.domain.transitions import Move
from fairlead.domain.usage import Usage
from fairlead.domain.webhooks import Endpoint
from fairlead.store import budgets as stored_budgets
from fairlead.store.budgets import ReleaseHeld, SetBudget, SweepBudgets, Threshold, WarnBudget
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Accepted, Done, FireTimers, PromoteWaiting, Refused, Started, TurnedBack
from fairlead.store.webhooks import DeliveryFilter, SaveEndpoint
from tests.contract.stores import StoreHarness

HOUR = 3600.0
TOKENS = Budget("hourly", "tokens", 100, per="hour")


def configure(harness: StoreHarness, *budgets: Budget) -> None:
    stored: Any = harness.store
    stored._budgets = Budgets({budget.name: budget for budget in budgets}, units={"draw": "tokens"})


async def counter(harness: StoreHarness, subject: str = "", budget: str = "hourly") -> Counter:
    (row,) = await harness.store.budget_counters([(budget, subject)])
    return row.counter


async def amounts(harness: StoreHarness, subject: str = "") -> tuple[int, int]:
    found = await counter(harness, subject)
    return found.used, found.reserved


def used(harness: StoreHarness, job: Job, tokens: int) -> Move:
    done = harness.done(job)
    assert done.call is not None
    return replace(done, call=replace(done.call, usage=Usage(tokens_out=tokens)))


async def spend(harness: StoreHarness, tokens: int, **fields: Any) -> None:
    job = await harness.running(**fields)
    assert await harness.one(used(harness, job, tokens)) == Done()


def _failed(harness: StoreHarness, job: Job, *, retryable: bool) -> Move:
    failure = Failure("HTTP_500", "no", retryable=retryable)
    now = harness.clock.now
    return transitions.failed(job, failure, RetryPolicy(), now=now, randomness=0.5, usage=Usage(tokens_in=7))


@pytest.mark.parametrize(
    ("end", "tokens"),
    [
        (lambda h, job: used(h, job, 7), 7),
        (lambda h, job: _failed(h, job, retryable=False), 7),
        (lambda h, job: _failed(h, job, retryable=True), 7),
        (lambda h, job: transitions.hand_back(job, now=h.clock.now, waits={}), 0),
        (lambda h, job: transitions.hand_back(job, now=h.clock.now, waits={}, called=False), 0),
        (lambda h, job: transitions.cancel(job, now=h.clock.now), 0),
        (lambda h, job: transitions.recover(job, now=h.clock.now, waits={}, max_attempts=3, hold=None), 0),
        (lambda h, job: transitions.recover(job, now=h.clock.now, waits={}, max_attempts=1, hold=None), 0),
    ],
)
async def test_a_call_reserves_its_cost_and_is_settled_once_however_it_ends(
    harness: StoreHarness, end: Any, tokens: int
) -> None:
    configure(harness, TOKENS)
    job = await harness.running(cost=30.0)
    assert await amounts(harness) == (0, 30)
    move = end(harness, job)
    assert await harness.one(move) == Done()
    assert await amounts(harness) == (tokens, 0)
    assert isinstance(await harness.one(move), Refused)
    assert isinstance(await harness.one(used(harness, job, 50)), Refused)
    assert await amounts(harness) == (tokens, 0)


async def test_a_deadline_that_ends_a_call_frees_its_reservation(harness: StoreHarness) -> None:
    configure(harness, TOKENS)
    await harness.running(cost=30.0, deadline_at=harness.clock.now + 10)
    harness.clock.forward(11)
    swept = await harness.one(FireTimers(harness.clock.now, 10, {}))
    assert len(swept.value.moves) == 1
    assert await amounts(harness) == (0, 0)


async def test_without_a_stated_cost_the_mean_of_the_calls_is_reserved(harness: StoreHarness) -> None:
    configure(harness, TOKENS)
    for tokens in (10, 20):
        await spend(harness, tokens)
    await harness.running()
    assert await amounts(harness) == (30, 15)
    harness.clock.forward(HOUR)
    await harness.running()  # the mean of the window before
    assert await amounts(harness) == (0, 30)


async def test_a_step_whose_budget_is_spent_is_held_until_the_next_window(harness: StoreHarness) -> None:
    configure(harness, TOKENS)
    await spend(harness, 100)
    job = await harness.submitted()
    outcome = await harness.one(harness.start(job))
    assert isinstance(outcome, TurnedBack)
    held = await harness.job(job.id)
    window = TOKENS.window(harness.clock.now)
    assert (held.status, held.attempt, held.timer_at) == (JobStatus.RETRYING, 0, window.end)
    assert held.is_held
    assert held.error is not None
    assert (held.error["code"], held.error["budget"]) == (BUDGET_SPENT, "hourly")
    assert [each.job_id for each in harness.changes] == [job.id]  # the queue forgets the step
    assert [(each.id, move.verb) for each, move in outcome.moves] == [(job.id, "hold")]
    assert [(row.key, row.held) for row in await harness.store.held_budgets()] == [(("hourly", ""), 1)]
    harness.clock.now = window.end
    await harness.one(FireTimers(harness.clock.now, 10, {}))
    due = await harness.job(job.id)
    assert (due.status, due.error) == (JobStatus.PENDING, None)
    assert await harness.store.held_budgets() == []
    await harness.started(due)


async def test_a_step_that_is_held_takes_the_waiting_steps_of_its_user_along(harness: StoreHarness) -> None:
    configure(harness, replace(TOKENS, each_user=True, services=frozenset({"draw"})))
    await spend(harness, 100)
    jobs = [await harness.submitted() for _ in range(3)]
    other_service = await harness.submitted(steps=("chat",))
    other_user = await harness.submitted(user_id="bob")
    outcome = await harness.one(harness.start(jobs[1]))
    assert isinstance(outcome, TurnedBack)
    assert {each.id for each, _ in outcome.moves} == {job.id for job in jobs}
    assert {(await harness.job(job.id)).status for job in jobs} == {JobStatus.RETRYING}
    for job in (other_service, other_user):
        await harness.started(await harness.job(job.id))


async def test_a_held_job_that_must_start_in_time_fails_in_time(harness: StoreHarness) -> None:
    configure(harness, TOKENS)
    await spend(harness, 100)
    job = await harness.submitted(start_within=60.0)
    assert isinstance(await harness.one(harness.start(job)), TurnedBack)
    harness.clock.forward(61)
    for _ in range(2):  # its timer queues it, and then ends its wait
        await harness.one(FireTimers(harness.clock.now, 10, {}))
    failed = await harness.job(job.id)
    assert (failed.status, (failed.error or {})["start_timeout"]) == (JobStatus.FAILED, 60.0)
    assert await harness.store.held_budgets() == []


async def test_the_time_for_which_a_job_is_held_does_not_promote_it(harness: StoreHarness) -> None:
    configure(harness, TOKENS)
    await spend(harness, 100)
    job = await harness.submitted(priority=Priority.LOW)
    assert isinstance(await harness.one(harness.start(job)), TurnedBack)
    now = harness.clock.now = TOKENS.window(harness.clock.now).end
    await harness.one(FireTimers(now, 10, {}))
    swept = await harness.one(PromoteWaiting(now, now - 60, now - 60, 10, {}))
    assert (swept.value.found, (await harness.job(job.id)).priority) == (0, Priority.LOW)


async def test_starts_of_one_user_take_the_waiting_steps_along_once(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_budgets, "MOST_TURNED_BACK", 2)
    configure(harness, TOKENS)
    await spend(harness, 100)
    jobs = [await harness.submitted() for _ in range(9)]
    outcomes: list[Any] = await harness.commit(*(harness.start(job, lease=f"0:{job.seq}") for job in jobs[:3]))
    assert [len(outcome.moves) for outcome in outcomes] == [3, 1, 1]
    assert sorted(row.held for row in await harness.store.held_budgets()) == [5]


async def test_a_demoted_step_takes_those_along_that_are_not_low_yet(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_budgets, "MOST_TURNED_BACK", 2)
    configure(harness, replace(TOKENS, at_end=DEMOTE))
    await spend(harness, 100)
    for _ in range(3):
        await harness.submitted(priority=Priority.LOW)
    jobs = [await harness.submitted() for _ in range(3)]
    outcome: Any = await harness.one(harness.start(jobs[0]))
    assert {job.id for job, _ in outcome.moves} == {job.id for job in jobs}


async def test_of_starts_in_one_commit_those_that_fit_start(harness: StoreHarness) -> None:
    configure(harness, TOKENS)
    jobs = [await harness.submitted(user_id=f"user-{n}", cost=40.0) for n in range(5)]
    outcomes = await harness.commit(*(harness.start(job, lease=f"0:{n}") for n, job in enumerate(jobs)))
    assert [isinstance(outcome, Started) for outcome in outcomes] == [True] * 3 + [False] * 2
    assert await amounts(harness) == (0, 120)


async def test_a_start_that_is_refused_reserves_nothing(harness: StoreHarness) -> None:
    configure(harness, TOKENS)
    job = await harness.submitted(cost=40.0)
    assert isinstance(await harness.one(harness.start(job, lease="7:1")), Refused)
    assert isinstance(await harness.one(harness.start(job, run=3)), Refused)
    assert await amounts(harness) == (0, 0)


async def test_a_spent_budget_demotes_once_and_lets_low_jobs_start(harness: StoreHarness) -> None:
    configure(harness, replace(TOKENS, at_end=DEMOTE))
    await spend(harness, 100)
    job = await harness.submitted()
    assert isinstance(await harness.one(harness.start(job)), TurnedBack)
    demoted = await harness.job(job.id)
    assert (demoted.status, demoted.priority) == (JobStatus.PENDING, Priority.LOW)
    started = await harness.started(demoted)
    assert (await counter(harness)).reserved == 100  # the mean of a call
    await harness.one(used(harness, started, 1))
    promoted = await harness.submitted(priority=Priority.LOW)
    assert await harness.one(transitions.promote(promoted, now=harness.clock.now, waits={})) == Done()
    await harness.started(await harness.job(promoted.id))


async def test_a_turn_fails_when_its_budget_is_used_up(harness: StoreHarness) -> None:
    configure(harness, TOKENS)
    await harness.running(cost=150.0)
    turn = await harness.submitted("turn-1", turn="p1/w")
    running = await harness.started(turn)  # what is merely reserved does not stop it
    await harness.one(used(harness, running, 100))
    turn = await harness.submitted("turn-2", turn="p1/w")
    assert isinstance(await harness.one(harness.start(turn)), TurnedBack)
    failed = await harness.job("turn-2")
    assert (failed.status, (failed.error or {})["code"]) == (JobStatus.FAILED, BUDGET_SPENT)


async def test_a_job_that_is_accepted_and_started_in_one_commit_is_held(harness: StoreHarness) -> None:
    configure(harness, TOKENS)
    await spend(harness, 100)
    older = await harness.submitted()
    assert isinstance(await harness.one(harness.start(older)), TurnedBack)
    submit = harness.submit()
    accepted, outcome = await harness.commit(submit, harness.start(submit.job))
    assert isinstance(accepted, Accepted)
    assert isinstance(outcome, TurnedBack)
    assert (await harness.job(submit.job.id)).is_held
    await harness.one(ReleaseHeld("hourly", "", 1))  # the oldest first
    assert [(await harness.job(each)).timer_at == harness.clock.now for each in (older.id, submit.job.id)] == [
        True,
        False,
    ]


async def test_a_call_counts_in_the_window_in_which_it_ends(harness: StoreHarness) -> None:
    configure(harness, TOKENS)
    job = await harness.running(cost=30.0)
    await spend(harness, 5)
    harness.clock.forward(HOUR)
    other = await harness.running(cost=10.0)
    assert await amounts(harness) == (0, 40)
    await harness.one(used(harness, job, 20))
    await harness.one(used(harness, other, 3))
    assert await amounts(harness) == (23, 0)
    assert (await counter(harness)).window_start == TOKENS.window(harness.clock.now).start


async def test_an_amount_that_an_operator_sets_applies_at_once(harness: StoreHarness) -> None:
    configure(harness, replace(TOKENS, each_user=True))
    await spend(harness, 100, user_id="ann")
    await spend(harness, 100, user_id="bob")
    await harness.one(SetBudget("hourly", "ann", 200))
    assert (await counter(harness, "ann")).override == 200
    assert (await counter(harness, "bob")).override is None
    await harness.running(user_id="ann")
    assert isinstance(await harness.one(harness.start(await harness.submitted(user_id="bob"))), TurnedBack)
    await harness.one(SetBudget("hourly", "", 300))
    assert (await counter(harness, "ann")).override == 200
    await harness.running(user_id="bob")
    await harness.commit(SetBudget("hourly", "", None))
    assert (await counter(harness, "bob")).override is None


async def test_the_budgets_that_hold_jobs_are_found_without_counting_the_jobs(harness: StoreHarness) -> None:
    assert await harness.store.holding_budgets() == []
    configure(harness, replace(TOKENS, each_user=True), replace(TOKENS, name="all", services=frozenset({"scale"})))
    for user_id in ("ann", "bob", "cyn"):
        await spend(harness, 100, user_id=user_id)
    await spend(harness, 100, user_id="dan", steps=("scale",))
    await harness.commit(SetBudget("hourly", "bob", 50))
    for user_id, step in (("ann", "draw"), ("ann", "draw"), ("bob", "draw"), ("eve", "scale"), ("fay", "scale")):
        await harness.one(harness.start(await harness.submitted(user_id=user_id, steps=(step,))))
    counted = sorted(await harness.store.held_budgets(), key=lambda row: row.key)
    assert [(row.key, row.held) for row in counted] == [
        (("all", ""), 2),
        (("hourly", "ann"), 2),
        (("hourly", "bob"), 1),
    ]
    assert counted[2].counter.override == 50
    found = sorted(await harness.store.holding_budgets(), key=lambda row: row.key)
    assert found == [replace(row, held=0) for row in counted]


async def test_held_jobs_are_released_oldest_first(harness: StoreHarness) -> None:
    configure(harness, TOKENS)
    await spend(harness, 100)
    jobs = [await harness.submitted() for _ in range(3)]
    await harness.one(harness.start(jobs[2]))
    cancelled = await harness.job(jobs[0].id)
    await harness.one(transitions.cancel(cancelled, now=harness.clock.now))
    assert await harness.one(ReleaseHeld("hourly", "", 1)) == Done(1)
    assert [row.held for row in await harness.store.held_budgets()] == [1]
    swept = await harness.one(FireTimers(harness.clock.now, 10, {}))
    assert [job.id for job, _ in swept.value.moves] == [jobs[1].id]


async def test_a_sweep_frees_what_calls_reserved_that_are_not_under_way(harness: StoreHarness) -> None:
    configure(harness, TOKENS)
    lost, running = await harness.running(cost=30.0), await harness.running(cost=20.0)
    configure(harness)  # a process of an earlier release ends the call
    await harness.one(used(harness, lost, 7))
    configure(harness, TOKENS)
    assert await amounts(harness) == (0, 50)
    assert await harness.one(SweepBudgets(0.0)) == Done(1)
    assert await amounts(harness) == (0, 20)
    assert await harness.one(SweepBudgets(harness.clock.now + 1)) == Done(0)
    await harness.one(used(harness, running, 5))
    assert await amounts(harness) == (5, 0)
    await harness.one(SweepBudgets(harness.clock.now + 1))
    assert (await counter(harness)).window_start == 0.0  # the counter is gone


async def test_a_threshold_is_announced_once_to_the_endpoints_that_want_it(harness: StoreHarness) -> None:
    configure(harness, TOKENS)
    await spend(harness, 90)
    for name, user_id, events in (
        ("ops", None, ("budget.threshold",)),
        ("own", "ann", ("budget.threshold",)),
        ("other", "bob", ("budget.threshold",)),
        ("jobs", None, ("job.failed",)),
    ):
        endpoint = Endpoint(name, "https://example.org/", user_id, events, harness.clock.now)
        await harness.one(SaveEndpoint(endpoint, create=True))
    window = TOKENS.window(harness.clock.now).start

    async def to_warn(share: float, **changed: Any) -> list[tuple[str, str]]:
        threshold = Threshold("hourly", window, 100, share, 2)
        return [row.key for row in await harness.store.budgets_to_warn([threshold._replace(**changed)])]

    assert (await to_warn(0.8), await to_warn(0.95)) == ([("hourly", "")], [])
    assert await to_warn(0.8, window_start=window + HOUR) == []
    await harness.one(SetBudget("hourly", "", 200))
    assert (await to_warn(0.8), await to_warn(0.4)) == ([], [("hourly", "")])
    assert await to_warn(0.4, amount=10**9) == [("hourly", "")]
    warn = WarnBudget("hourly", "", window, 1, "event-1", {"budget": "hourly", "threshold": 0.8}, "ann")
    assert await harness.one(replace(warn, window_start=window - HOUR)) != Done()
    assert await harness.one(warn) == Done()
    assert isinstance(await harness.one(replace(warn, event_id="event-2")), Refused)
    found = await harness.store.deliveries(DeliveryFilter(), before=None, limit=10)
    assert {(each.endpoint_id, each.event) for each in found} == {
        ("ops", "budget.threshold"),
        ("own", "budget.threshold"),
    }
    assert found[0].about == {"budget": "hourly", "threshold": 0.8}
    assert (await counter(harness)).warned == 1
    assert (await to_warn(0.4), await to_warn(0.4, number=1)) == ([("hourly", "")], [])


async def test_parallel_starts_and_ends_never_exceed_a_budget_by_more_than_the_calls_under_way(
    harness: StoreHarness,
) -> None:
    """Eight workers of two processes run calls that use up to twice what they reserve. At no time does the budget admit
    a call when it is spent, and in the end the counter equals the ledger."""
    configure(harness, TOKENS, replace(TOKENS, name="each", amount=60, each_user=True))
    jobs = [await harness.submitted(user_id=f"user-{n % 3}", cost=3.0) for n in range(90)]
    async with harness.another() as second:
        second._budgets = harness.store._budgets  # type: ignore[attr-defined]
        writers = [GroupCommit(store, writers=2) for store in (harness.store, second)]
        for writer in writers:
            writer.start()
        held = await _run_all(harness, jobs, writers)
        for writer in writers:
            await writer.close()
    rows = list(await harness.store.latest_calls(1000))
    total = sum(row.tokens_out or 0 for row in rows)
    counters = {row.key: row.counter for row in await harness.store.budget_counters()}
    assert all(each.reserved == 0 for each in counters.values())
    assert counters["hourly", ""].used == total
    for user_id in {row.user_id for row in rows}:
        assert counters["each", user_id].used == sum(row.tokens_out or 0 for row in rows if row.user_id == user_id)
    assert 100 - 8 * 3 <= total <= 100 + 8 * 6  # a step may be held for what others reserved and did not use
    assert held == 90 - len(rows)


async def _run_all(harness: StoreHarness, jobs: Sequence[Job], writers: Sequence[GroupCommit]) -> int:
    """Run the calls in eight workers, and return how many steps were held."""
    waiting, held = list(reversed(jobs)), set()

    async def work(number: int) -> None:
        writer = writers[number % len(writers)]
        while waiting:
            job = waiting.pop()
            outcome = await writer.write(harness.start(job, lease=f"0:{number}", service="draw", user_id=job.user_id))
            if isinstance(outcome, Started):
                await asyncio.sleep(0)
                await writer.write(used(harness, outcome.job, job.seq % 6 + 1))
            elif isinstance(outcome, TurnedBack):
                held.update(each.id for each, _ in outcome.moves)

    await asyncio.gather(*map(work, range(8)))
    return len(held)
