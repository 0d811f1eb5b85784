"""The usage ledger: one row for each call, however it ends, and totals by hour and day that lose and repeat nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fairlead.domain import calls, transitions
from fairlead.domain.job import Job
from fairlead.domain.prices import NO_PRICES, Price, Prices, ServicePrices
from fairlead.domain.retry import Failure, RetryPolicy
from fairlead.domain.transitions import Move
from fairlead.domain.usage import Usage
from fairlead.domain.usage_report import CallRecord, UsageQuery, UsageTotal
from fairlead.store.port import Done, FireTimers, PruneUsage, Refused, RollUpUsage, Started
from tests.contract.stores import START_OF_TIME, StoreHarness

DAY = 86400.0
MIDNIGHT = START_OF_TIME // DAY * DAY


async def ledger(harness: StoreHarness) -> list[CallRecord]:
    return list(reversed(await harness.store.latest_calls(1000)))


async def started(harness: StoreHarness, *, waits: float = 2.0, runs: float = 3.0, **fields: Any) -> Job:
    """A job that has waited and whose call has run for these seconds."""
    submitted = await harness.submitted(**fields)
    harness.clock.forward(waits)
    job = await harness.started(submitted, region=None)
    harness.clock.forward(runs)
    return job


def succeeded(harness: StoreHarness, job: Job, usage: Usage | None = None) -> Move:
    done = harness.done(job)
    assert done.call is not None
    return replace(done, call=replace(done.call, usage=usage))


async def totals(harness: StoreHarness, **query: Any) -> list[UsageTotal]:
    span = {"start": MIDNIGHT - 40 * DAY, "end": MIDNIGHT + 40 * DAY}
    return await harness.store.usage(UsageQuery(**{**span, **query}))


async def roll_up(harness: StoreHarness, count: int, limit: int = 1000) -> list[int]:
    """Roll up until this many rows were added, and return how many each time. On PostgreSQL, transactions of the server
    itself can delay the rows for a moment."""
    added: list[int] = []
    async with asyncio.timeout(30):
        while sum(added) < count:
            outcome = await harness.one(RollUpUsage(limit))
            assert isinstance(outcome, Done)
            if outcome.value:
                added.append(outcome.value)
            else:
                await asyncio.sleep(0.01)
    assert sum(added) == count
    assert await harness.one(RollUpUsage(limit)) == Done(0)
    return added


async def test_a_call_that_succeeds_has_one_row_with_its_times_and_what_it_reported(harness: StoreHarness) -> None:
    job = await started(harness, user_id="ann", feature_name="image", steps=("draw",))
    assert await harness.one(succeeded(harness, job, Usage(10, 20, 5, 1.5, "flux", 2))) == Done()
    (row,) = await ledger(harness)
    assert row == CallRecord(
        job_id=job.id,
        run=job.run,
        step=0,
        attempt=1,
        user_id="ann",
        plan=None,
        group=None,
        feature_name="image",
        service="draw",
        model="flux",
        region=None,
        outcome="success",
        ended_at=harness.clock.now,
        waited=2.0,
        seconds=3.0,
        tokens_in=10,
        tokens_out=20,
        tokens_cached=5,
        units=1.5,
        ignored=2,
        price=None,
    )


async def test_every_step_of_a_pipeline_is_a_call_of_its_own(harness: StoreHarness) -> None:
    job = await started(harness, steps=("draft", "draw"))
    await harness.one(succeeded(harness, job, Usage(1)))
    harness.clock.forward(7.0)
    job = await harness.started(await harness.job(job.id), region="eu")
    harness.clock.forward(1.0)
    await harness.one(succeeded(harness, job))
    first, second = await ledger(harness)
    assert (first.service, first.step, first.tokens_in, first.waited) == ("draft", 0, 1, 2.0)
    assert (second.service, second.step, second.region, second.waited) == ("draw", 1, "eu", 7.0)


def _failed(harness: StoreHarness, job: Job, code: str, *, retryable: bool) -> Move:
    failure = Failure(code, "no", retryable=retryable)
    now = harness.clock.now
    return transitions.failed(job, failure, RetryPolicy(), now=now, randomness=0.5, usage=Usage(tokens_in=4))


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (lambda h, job: _failed(h, job, "HTTP_500", retryable=False), calls.FAILED),
        (lambda h, job: _failed(h, job, "TIMEOUT", retryable=True), calls.TIMED_OUT),
        (lambda h, job: transitions.hand_back(job, now=h.clock.now, waits={}), calls.HANDED_BACK),
        (lambda h, job: transitions.cancel(job, now=h.clock.now), calls.CANCELLED),
        (
            lambda h, job: transitions.recover(job, now=h.clock.now, waits={}, max_attempts=3, hold=None),
            calls.LOST,
        ),
        (
            lambda h, job: transitions.recover(job, now=h.clock.now, waits={}, max_attempts=1, hold=None),
            calls.LOST,
        ),
    ],
)
async def test_a_call_has_one_row_however_it_ends(harness: StoreHarness, end: Any, outcome: str) -> None:
    job = await started(harness)
    move = end(harness, job)
    assert await harness.one(move) == Done()
    assert isinstance(await harness.one(move), Refused)
    assert isinstance(await harness.one(succeeded(harness, job)), Refused)
    (row,) = await ledger(harness)
    assert (row.outcome, row.seconds, row.run) == (outcome, 3.0, job.run)
    assert row.tokens_in == (None if move.call.usage is None else 4)


async def test_the_end_of_a_call_by_its_deadline_is_recorded_by_the_sweep(harness: StoreHarness) -> None:
    job = await started(harness, deadline_at=START_OF_TIME + 4)
    await harness.one(FireTimers(harness.clock.now, 10, {}))
    (row,) = await ledger(harness)
    assert (row.job_id, row.outcome, row.seconds) == (job.id, calls.EXPIRED, 3.0)


async def test_a_turn_is_a_call(harness: StoreHarness) -> None:
    job = await started(harness, turn="api/outside")
    died = {"code": "HOLDER_DIED", "message": "gone"}
    await harness.one(transitions.end_turn(job, "recover", died, now=harness.clock.now, usage=Usage(units=2.0)))
    (row,) = await ledger(harness)
    assert (row.outcome, row.units) == (calls.LOST, 2.0)


async def test_what_is_not_a_call_has_no_row(harness: StoreHarness) -> None:
    waiting = await harness.submitted()
    await harness.one(transitions.cancel(waiting, now=harness.clock.now))
    job = await started(harness)
    await harness.one(transitions.hand_back(job, now=harness.clock.now, waits={}, called=False))
    assert await ledger(harness) == []


async def test_many_calls_that_end_in_one_commit_have_a_row_each(harness: StoreHarness) -> None:
    jobs = [await harness.submitted(user_id=f"u{n}", steps=("draw", "print")[: 1 + n % 2]) for n in range(9)]
    outcomes = await harness.commit(*(harness.start(job) for job in jobs))
    running = [outcome.job for outcome in outcomes if isinstance(outcome, Started)]
    moves = [succeeded(harness, job, Usage(n) if n % 3 else None) for n, job in enumerate(running)]
    late = replace(moves[4], run=99)
    await harness.commit(*moves[:4], late, *moves[5:])
    rows = {row.user_id: row.tokens_in for row in await ledger(harness)}
    assert rows == {f"u{n}": n if n % 3 else None for n in range(9) if n != 4}


async def test_the_price_and_the_plan_are_frozen_in_the_row(harness: StoreHarness) -> None:
    flux = Price(per_call=0.5, per_million_tokens_in=2.0, per_million_tokens_cached=1.0)
    prices = Prices({"draw": ServicePrices(Price(per_second=0.01), {"flux": flux})}, {"ann": "gold"})
    stored: Any = harness.store
    for price in (prices, NO_PRICES):
        stored._prices = price
        for usage in (None, Usage(tokens_in=1_000_000, tokens_cached=250_000, model="flux")):
            await harness.one(succeeded(harness, await started(harness), usage))
    assert [row.price for row in await ledger(harness)] == [30_000_000, 2_250_000_000, None, None]
    assert [row.plan for row in await ledger(harness)] == ["gold", "gold", None, None]
    (total,) = await totals(harness, interval="total")
    assert [t.calls for t in await totals(harness, interval="total", filters={"plan": "gold"})] == [2]
    assert total.price == 2_280_000_000
    assert total.as_dict()["price"] == 2.28


async def test_the_plan_of_the_job_precedes_the_plan_of_its_user_in_the_configuration(harness: StoreHarness) -> None:
    stored: Any = harness.store
    stored._prices = Prices({}, {"ann": "gold"})
    for plan in ("silver", None):
        await harness.one(succeeded(harness, await started(harness, user_id="ann", plan=plan), Usage(tokens_in=1)))
    await harness.one(succeeded(harness, await started(harness, user_id="bob", plan="silver")))
    assert [row.plan for row in await ledger(harness)] == ["silver", "gold", "silver"]
    assert [t.calls for t in await totals(harness, interval="total", filters={"plan": "silver"})] == [2]


async def test_the_group_of_the_job_is_in_its_row_and_in_the_totals(harness: StoreHarness) -> None:
    for group in ("acme", "acme/red", "acmes", None):
        await harness.one(succeeded(harness, await started(harness, user_id="ann", group=group)))
        if group == "acme/red":
            await roll_up(harness, 2)
    lost = await started(harness, user_id="ann", group="acme/red")
    await harness.one(transitions.recover(lost, now=harness.clock.now, waits={}, max_attempts=1, hold=None))
    assert [row.group for row in await ledger(harness)] == ["acme", "acme/red", "acmes", None, "acme/red"]
    for _ in ("in rows and totals", "in totals only"):
        found = await totals(harness, interval="total", group_by=("group",))
        assert [(t.groups["group"], t.calls) for t in found] == [("", 1), ("acme", 1), ("acme/red", 2), ("acmes", 1)]
        for group, count in {"acme": 3, "acme/red": 2, "acmes": 1, "acme/": None, "red": None}.items():
            found = await totals(harness, interval="total", filters={"group": group})
            assert [t.calls for t in found] == ([] if count is None else [count]), group
        pages = [await totals(harness, group_by=("group",), limit=1)]
        while pages[-1]:
            pages.append(await totals(harness, group_by=("group",), limit=1, after=pages[-1][-1].key))
        assert [t.groups["group"] for page in pages for t in page] == ["", "acme", "acme/red", "acmes"]
        await harness.one(RollUpUsage(1000))


# ---------------------------------------------------------------- totals


async def calls_at(harness: StoreHarness, moments: Sequence[float], **fields: Any) -> None:
    for moment in moments:
        harness.clock.now = moment - 5.0
        await harness.one(succeeded(harness, await started(harness, **fields), Usage(1, 2)))


async def test_totals_are_the_same_before_and_after_the_roll_up(harness: StoreHarness) -> None:
    hour = 3600.0
    await calls_at(harness, [MIDNIGHT + 10, MIDNIGHT + hour, MIDNIGHT + DAY], user_id="ann")
    await calls_at(harness, [MIDNIGHT + DAY + 1, MIDNIGHT + 11], user_id="bob")
    by_day = [
        {"start": MIDNIGHT, "user": "ann", "calls": 2, "tokens_in": 2, "seconds": 6.0},
        {"start": MIDNIGHT, "user": "bob", "calls": 1, "tokens_in": 1, "seconds": 3.0},
        {"start": MIDNIGHT + DAY, "user": "ann", "calls": 1, "tokens_in": 1, "seconds": 3.0},
        {"start": MIDNIGHT + DAY, "user": "bob", "calls": 1, "tokens_in": 1, "seconds": 3.0},
    ]

    async def shown() -> list[dict[str, Any]]:
        return [
            {"start": t.start, **t.groups, "calls": t.calls, "tokens_in": t.tokens_in, "seconds": t.seconds}
            for t in await totals(harness, group_by=("user",))
        ]

    assert await shown() == by_day
    assert len(await roll_up(harness, 5, limit=2)) > 1
    assert await shown() == by_day
    # A row that comes late is added to the day in which its call ended.
    await calls_at(harness, [MIDNIGHT + 12], user_id="ann")
    by_day[0] |= {"calls": 3, "tokens_in": 3, "seconds": 9.0}
    assert await shown() == by_day
    async with harness.another() as other:
        both = StoreHarness(other, harness.clock, harness.another)
        await asyncio.gather(*(each.commit(RollUpUsage(100)) for each in (harness, both)))
    assert await shown() == by_day
    hours = [t.start for t in await totals(harness, interval="hour", filters={"user": "ann"})]
    assert hours == [MIDNIGHT, MIDNIGHT + hour, MIDNIGHT + DAY]


async def test_totals_are_filtered_grouped_and_paged(harness: StoreHarness) -> None:
    for n in range(6):
        await calls_at(harness, [MIDNIGHT + n * DAY], user_id=f"u{n % 3}", steps=(f"s{n % 2}",), feature_name="f")
        if n == 3:
            await roll_up(harness, 4)
    query = {"interval": "total", "group_by": ("user", "service", "outcome")}
    everything = await totals(harness, **query)
    assert [(t.start, t.groups, t.calls) for t in everything] == [
        (None, {"user": user, "service": service, "outcome": "success"}, 1)
        for user in ("u0", "u1", "u2")
        for service in ("s0", "s1")
    ]
    paged: list[UsageTotal] = []
    while page := await totals(harness, **query, limit=2, after=paged[-1].key if paged else None):
        paged += page
    assert paged == everything
    (one,) = await totals(harness, interval="total", filters={"user": "u1", "service": "s1", "outcome": "success"})
    assert (one.calls, one.reported, one.tokens_out) == (1, 1, 2)
    assert await totals(harness, filters={"outcome": "failed"}) == []
    assert await totals(harness, filters={"model": "none", "region": "eu", "plan": "gold", "feature": "f"}) == []
    part = await totals(harness, interval="total", start=MIDNIGHT + DAY, end=MIDNIGHT + 2 * DAY + 1)
    assert [t.calls for t in part] == [2]
    months = await totals(harness, interval="month", start=MIDNIGHT - 400 * DAY)
    assert [(t.start, t.calls) for t in months] == [(1698796800.0, 6)]


async def test_pruning_deletes_rows_that_are_in_the_totals_and_keeps_the_totals(harness: StoreHarness) -> None:
    await calls_at(harness, [MIDNIGHT + n for n in range(4)])
    prune = PruneUsage(rows_before=MIDNIGHT + 2, hours_before=0, days_before=0, limit=100)
    assert await harness.one(prune) == Done(0)
    await roll_up(harness, 4)
    assert await harness.one(replace(prune, limit=1)) == Done(1)
    assert await harness.one(prune) == Done(1)
    assert len(await ledger(harness)) == 2
    assert [t.calls for t in await totals(harness)] == [4]
    await harness.one(replace(prune, rows_before=MIDNIGHT + DAY, hours_before=MIDNIGHT + DAY))
    assert await ledger(harness) == []
    assert await totals(harness, interval="hour") == []
    assert [t.calls for t in await totals(harness)] == [4]
    # The ids of deleted rows are not used again: the watermark refers to them.
    await calls_at(harness, [MIDNIGHT + 9])
    await roll_up(harness, 1)
    await harness.one(replace(prune, days_before=MIDNIGHT + DAY))
    assert await totals(harness) == []
