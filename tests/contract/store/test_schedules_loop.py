"""The loop that submits recurring jobs, on both engines, with a clock that tests move by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from fairlead.domain import transitions
from fairlead.domain.job import Job
from fairlead.domain.schedules import Missed, Overlap, RunOutcome, Schedule, ScheduleRun, Timing
from fairlead.domain.submission import Submission
from fairlead.domain.transitions import Delete, Submit
from fairlead.engine.clock import id_at
from fairlead.engine.loops.schedules import SchedulesLoop
from fairlead.errors import UnknownFeature
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import JobFilter, Store
from fairlead.store.schedules import SaveSchedule
from tests.contract.stores import StoreHarness

EVERY_MINUTE = Timing(every=60.0)


class Prepared:
    """Prepares jobs without a configuration. Features in `unknown` are unknown; `max_waiting` bounds waiting jobs."""

    def __init__(self, harness: StoreHarness) -> None:
        self._harness = harness
        self.unknown: set[str] = set()
        self.max_waiting = 0
        self.due: list[str] = []

    async def prepare(self, submission: Submission, *, key: str | None, lowers_only: bool) -> Submit:
        if submission.feature_name in self.unknown:
            raise UnknownFeature(f"there is no {submission.feature_name}")
        now = self._harness.clock.now
        job = Job(id_at(now), submission.feature_name, submission.user_id, (submission.feature_name,))
        new = transitions.submit(job, "{}", now=now, waits={})
        return replace(new, idempotency_key=key, body_hash=key, max_waiting=self.max_waiting)

    async def accepted(self, submit: Submit) -> None:
        self.due.append(submit.job.id)


@asynccontextmanager
async def managing(harness: StoreHarness, store: Store | None = None) -> AsyncIterator[tuple[SchedulesLoop, Prepared]]:
    group_commit, prepared = GroupCommit(store or harness.store), Prepared(harness)
    group_commit.start()
    try:
        yield SchedulesLoop(store or harness.store, group_commit, prepared), prepared
    finally:
        await group_commit.close()


async def created(harness: StoreHarness, timing: Timing = EVERY_MINUTE, **changed: Any) -> Schedule:
    now = harness.clock.now
    schedule = Schedule("s", "ada", timing, {"feature_name": "draw"}, next_at=timing.after(now), secret="x")
    await harness.one(SaveSchedule(replace(schedule, **changed)))
    return schedule


async def runs(harness: StoreHarness) -> list[ScheduleRun]:
    """Oldest first."""
    return (await harness.store.schedule_runs("s", before=None, limit=1000))[::-1]


async def due_times(harness: StoreHarness, outcome: RunOutcome = RunOutcome.SUBMITTED) -> list[float | None]:
    return [run.due_at for run in await runs(harness) if run.outcome is outcome]


async def end_jobs(harness: StoreHarness) -> None:
    for job in await harness.store.list_jobs(JobFilter(), before_seq=None, limit=1000):
        if not job.status.finished:
            await harness.one(transitions.cancel(job, now=harness.clock.now))


async def test_each_occurrence_is_submitted_when_it_is_due(harness: StoreHarness) -> None:
    schedule = await created(harness)
    async with managing(harness) as (loop, prepared):
        assert await loop.tick(harness.clock.now) == harness.clock.now + 1.0
        for _ in range(3):
            harness.clock.forward(60)
            await loop.tick(harness.clock.now)
            await loop.tick(harness.clock.now)
        assert schedule.next_at is not None
        assert await due_times(harness) == [schedule.next_at + n * 60 for n in range(3)]
        assert len(prepared.due) == 3
        assert loop.queued == 3


@pytest.mark.parametrize("day", ["2026-03-28", "2026-10-24"])
async def test_every_night_has_one_run_across_the_change_of_clocks(harness: StoreHarness, day: str) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    start = datetime.fromisoformat(day).replace(tzinfo=berlin)
    harness.clock.now = start.timestamp()
    await created(harness, Timing("30 2 * * *", timezone="Europe/Berlin"))
    async with (
        harness.another() as second,
        harness.another() as third,
        managing(harness) as (one, _),
        managing(harness, second) as (two, _),
        managing(harness, third) as (three, _),
    ):
        while harness.clock.now < (start + timedelta(days=4)).timestamp():
            await asyncio.gather(*(loop.tick(harness.clock.now) for loop in (one, two, three)))
            harness.clock.forward(1800)
        assert await harness.store.count(JobFilter(user_id="ada")) == 4
    days = [datetime.fromtimestamp(at or 0.0, berlin).date() for at in await due_times(harness)]
    assert days == [(start + timedelta(days=n)).date() for n in range(4)]


@pytest.mark.parametrize(
    ("missed", "late", "submitted", "counted"),
    [
        (Missed.SKIP, 61.0, [], 10),
        (Missed.SKIP, 30.0, [9], 9),
        (Missed.ONCE, 61.0, [9], 9),
        (Missed.ALL, 61.0, list(range(10)), 0),
    ],
)
async def test_missed_occurrences_follow_the_policy(
    harness: StoreHarness, missed: Missed, late: float, submitted: list[int], counted: int
) -> None:
    """Ten occurrences are due, the last of them since `late` seconds."""
    schedule = await created(harness, Timing(every=300.0), missed=missed)
    assert schedule.next_at is not None
    harness.clock.now = schedule.next_at + 9 * 300 + late
    async with managing(harness) as (loop, _):
        await loop.tick(harness.clock.now)
        await loop.tick(harness.clock.now)
    assert await due_times(harness) == [schedule.next_at + n * 300 for n in submitted]
    assert sum(run.count for run in await runs(harness) if run.outcome is RunOutcome.MISSED) == counted
    (stored,) = await harness.store.schedules()
    assert stored.next_at == schedule.next_at + 10 * 300


async def test_no_more_than_a_hundred_missed_occurrences_are_caught_up(harness: StoreHarness) -> None:
    schedule = await created(harness, missed=Missed.ALL)
    assert schedule.next_at is not None
    harness.clock.now = schedule.next_at + 86400.0
    async with managing(harness) as (loop, _):
        await loop.tick(harness.clock.now)
        assert loop.queued == 100
        assert (await due_times(harness))[-1] == harness.clock.now


async def test_an_occurrence_is_skipped_while_an_earlier_run_is_open(harness: StoreHarness) -> None:
    await created(harness, overlap=Overlap.SKIP)
    async with managing(harness) as (loop, _):
        for _ in range(2):
            harness.clock.forward(60)
            await loop.tick(harness.clock.now)
        assert [run.outcome for run in await runs(harness)] == [RunOutcome.SUBMITTED, RunOutcome.SKIPPED]
        await end_jobs(harness)
        harness.clock.forward(60)
        await loop.tick(harness.clock.now)
        assert (await runs(harness))[-1].outcome is RunOutcome.SUBMITTED


async def test_one_occurrence_waits_for_an_earlier_run(harness: StoreHarness) -> None:
    schedule = await created(harness, overlap=Overlap.WAIT)
    assert schedule.next_at is not None
    async with managing(harness) as (loop, _):
        for _ in range(3):
            harness.clock.forward(60)
            await loop.tick(harness.clock.now)
        assert await due_times(harness) == [schedule.next_at]
        assert await due_times(harness, RunOutcome.SKIPPED) == [schedule.next_at + 120]
        await end_jobs(harness)
        await loop.tick(harness.clock.forward(1))
        assert await due_times(harness) == [schedule.next_at, schedule.next_at + 60]
        (stored,) = await harness.store.schedules()
        assert (stored.waiting_at, stored.next_at) == (None, schedule.next_at + 180)


async def test_a_clock_that_is_set_back_repeats_nothing(harness: StoreHarness) -> None:
    schedule = await created(harness)
    async with managing(harness) as (loop, _):
        await loop.tick(harness.clock.forward(60))
        harness.clock.forward(-3600)
        for _ in range(60):
            await loop.tick(harness.clock.forward(59))
        assert await due_times(harness) == [schedule.next_at]
        await loop.tick(harness.clock.forward(120))
        assert len(await due_times(harness)) == 2


async def test_a_schedule_of_an_unknown_feature_waits_and_holds_up_no_other(harness: StoreHarness) -> None:
    await created(harness)
    await created(harness, id="t", job={"feature_name": "paint"})
    async with managing(harness) as (loop, prepared):
        prepared.unknown.add("draw")
        harness.clock.forward(60)
        await loop.tick(harness.clock.now)
        assert await runs(harness) == []
        assert loop.queued == 1
        prepared.unknown.clear()
        await loop.tick(harness.clock.now)
        assert len(await due_times(harness)) == 1


async def test_a_refused_run_is_recorded_and_the_schedule_goes_on(harness: StoreHarness) -> None:
    schedule = await created(harness)
    assert schedule.next_at is not None
    async with managing(harness) as (loop, prepared):
        prepared.max_waiting = 1
        for _ in range(2):
            await loop.tick(harness.clock.forward(60))
        outcomes = [run.outcome for run in await runs(harness)]
        assert outcomes == [RunOutcome.SUBMITTED, RunOutcome.REFUSED]
        assert "too_many_waiting" in str((await runs(harness))[-1].detail)
        await end_jobs(harness)
        await loop.tick(harness.clock.forward(60))
        assert await due_times(harness) == [schedule.next_at, schedule.next_at + 120]


async def test_three_managers_submit_each_occurrence_once(harness: StoreHarness) -> None:
    """Also if one of them was suspended after it read the schedule, and its job was deleted meanwhile."""
    schedule = await created(harness)
    assert schedule.next_at is not None
    async with (
        harness.another() as second,
        harness.another() as third,
        managing(harness) as (one, _),
        managing(harness, second) as (two, _),
        managing(harness, third) as (three, _),
    ):
        for _ in range(5):
            now = harness.clock.forward(60)
            await asyncio.gather(*(loop.tick(now) for loop in (one, two, three)))
        assert await due_times(harness) == [schedule.next_at + n * 60 for n in range(5)]
        assert one.queued + two.queued + three.queued == 5
        assert await harness.store.count(JobFilter(user_id="ada")) == 5
        await end_jobs(harness)
        for job in await harness.store.list_jobs(JobFilter(), before_seq=None, limit=100):
            await harness.one(Delete(job.id))
        assert await two._advance(replace(schedule, revision=1), now)  # as it read the schedule before all this
        assert await harness.store.count(JobFilter(user_id="ada")) == 0
