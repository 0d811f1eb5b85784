"""Schedules in the store: a commit submits a job and moves its schedule forward, or does neither."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from fairlead.domain import transitions
from fairlead.domain.job import Job
from fairlead.domain.schedules import RunOutcome, Schedule, ScheduleRun, Timing
from fairlead.domain.transitions import Submit
from fairlead.engine.clock import id_at
from fairlead.errors import TooManyWaiting
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Accepted, Done, Refused
from fairlead.store.schedules import (
    KEPT_RUNS,
    DeclareSchedules,
    DeleteSchedule,
    FireSchedule,
    SaveSchedule,
    ScheduleMoved,
)
from tests.contract.stores import StoreHarness

JOB = {"feature_name": "draw", "input_data": {"prompt": "a harbour"}}


def new(harness: StoreHarness, id_: str = "nightly", **changed: Any) -> Schedule:
    now = harness.clock.now
    schedule = Schedule(id_, "ada", Timing(every=60.0), JOB, created_at=now, next_at=now + 60, secret="s")
    return replace(schedule, **changed)


async def saved(harness: StoreHarness, schedule: Schedule, was: int | None = None) -> Schedule:
    outcome = await harness.one(SaveSchedule(schedule, was))
    assert isinstance(outcome, Done)
    assert isinstance(outcome.value, Schedule)
    return outcome.value


def submit(harness: StoreHarness, key: str, **changed: Any) -> Submit:
    job = Job(id_at(harness.clock.now), "draw", "ada", ("draw",))
    return replace(transitions.submit(job, "{}", now=harness.clock.now, waits={}), idempotency_key=key, **changed)


def fire(schedule: Schedule, due_at: float, job_id: str | None = None, **changed: Any) -> FireSchedule:
    run = ScheduleRun(RunOutcome.SUBMITTED, due_at, due_at, job_id)
    return replace(
        FireSchedule(schedule.id, schedule.revision, (run,), job_id, due_at + 60, due_at, schedule.waiting_at),
        **changed,
    )


async def test_a_schedule_is_read_as_it_was_written(harness: StoreHarness) -> None:
    timing = Timing("*/5 * * * *", timezone="Europe/Berlin")
    written = new(harness, "a", timing=timing, name="five", waiting_at=harness.clock.now, lowers_only=True)
    stored = await saved(harness, written)
    assert stored == replace(written, revision=1)
    assert await harness.store.schedules() == [stored]
    await saved(harness, new(harness, "b", user_id="bob"))
    assert [each.id for each in await harness.store.schedules("bob")] == ["b"]
    assert [each.id for each in await harness.store.schedules(ids=["a", "c"])] == ["a"]


async def test_a_schedule_is_created_once_and_changed_only_at_its_revision(harness: StoreHarness) -> None:
    stored = await saved(harness, new(harness))
    assert isinstance(await harness.one(SaveSchedule(new(harness))), Refused)
    changed = await saved(harness, replace(stored, paused_at=harness.clock.now), stored.revision)
    assert changed.revision == stored.revision + 1
    assert isinstance(await harness.one(SaveSchedule(stored, stored.revision)), Refused)
    assert await harness.store.schedules() == [changed]


async def test_the_next_schedule_is_the_first_that_is_not_paused(harness: StoreHarness) -> None:
    now = harness.clock.now
    assert await harness.store.next_schedule() == (None, False)
    await saved(harness, new(harness, "paused", next_at=now + 1, paused_at=now))
    await saved(harness, new(harness, "late", next_at=now + 9))
    await saved(harness, new(harness, "early", next_at=now + 5))
    assert await harness.store.next_schedule() == (now + 5, False)
    assert [each.id for each in await harness.store.due_schedules(now + 8)] == ["early"]
    await saved(harness, new(harness, "waits", next_at=now + 100, waiting_at=now))
    assert await harness.store.next_schedule() == (now + 5, True)
    assert [each.id for each in await harness.store.due_schedules(now + 9)] == ["early", "late", "waits"]


async def test_a_job_and_its_schedule_move_together(harness: StoreHarness) -> None:
    schedule = await saved(harness, new(harness))
    due_at = harness.clock.forward(60)
    job = submit(harness, "k1")
    accepted, fired = (await harness.store.commit([job, fire(schedule, due_at, job.job.id)])).outcomes
    assert isinstance(accepted, Accepted)
    assert isinstance(fired, Done)
    (moved,) = await harness.store.schedules()
    assert (moved.revision, moved.next_at, moved.last_at) == (schedule.revision + 1, due_at + 60, due_at)
    (run,) = await harness.store.schedule_runs(schedule.id, before=None, limit=9)
    assert (run.outcome, run.due_at, run.job_id) == (RunOutcome.SUBMITTED, due_at, job.job.id)
    assert await harness.store.has_open_run(schedule.id)
    stored = (await harness.store.get_jobs([job.job.id]))[job.job.id]
    await harness.one(transitions.cancel(stored, now=harness.clock.now))
    assert not await harness.store.has_open_run(schedule.id)


@pytest.mark.parametrize("change", ["moved", "changed", "paused", "deleted", "early"])
async def test_nothing_is_stored_if_the_schedule_has_changed(harness: StoreHarness, change: str) -> None:
    schedule = await saved(harness, new(harness))
    due_at = harness.clock.now + 60
    harness.clock.forward(59 if change == "early" else 600)  # so that the next occurrence is due too
    if change == "changed":
        await saved(harness, replace(schedule, user_id="bob"), schedule.revision)
    elif change == "moved":
        await harness.one(fire(schedule, due_at))
    elif change == "paused":
        await saved(harness, replace(schedule, paused_at=due_at), schedule.revision)
    elif change == "deleted":
        await harness.one(DeleteSchedule(schedule.id))
    before = await harness.store.schedules()
    job = submit(harness, "k1")
    with pytest.raises(ScheduleMoved):
        await harness.store.commit([job, fire(schedule, due_at, job.job.id)], all_or_nothing=True)
    assert await harness.store.get_jobs([job.job.id]) == {}
    assert await harness.store.schedules() == before


async def test_a_schedule_does_not_move_if_its_job_is_refused(harness: StoreHarness) -> None:
    schedule = await saved(harness, new(harness))
    due_at = harness.clock.forward(60)
    await harness.one(submit(harness, "other"))
    job = submit(harness, "k1", max_waiting=1)
    outcomes = (await harness.store.commit([job, fire(schedule, due_at, job.job.id)], all_or_nothing=True)).outcomes
    assert isinstance(outcomes[0], TooManyWaiting)
    assert await harness.store.schedules() == [schedule]
    assert await harness.store.schedule_runs(schedule.id, before=None, limit=9) == []


async def test_a_key_that_was_used_refuses_the_move(harness: StoreHarness) -> None:
    schedule = await saved(harness, new(harness))
    due_at = harness.clock.forward(60)
    await harness.one(submit(harness, "k1", body_hash="h"))
    job = submit(harness, "k1", body_hash="h")
    accepted, fired = (await harness.store.commit([job, fire(schedule, due_at, job.job.id)])).outcomes
    assert isinstance(accepted, Accepted)
    assert accepted.replayed
    assert isinstance(fired, Refused)
    assert await harness.store.schedules() == [schedule]


async def test_of_many_managers_one_submits_an_occurrence(harness: StoreHarness) -> None:
    """Each has its own connection and its own key, and the next occurrence is due too, so that only the revision keeps
    them apart."""
    schedule = await saved(harness, new(harness))
    due_at = harness.clock.now + 60
    harness.clock.forward(600)

    async def manage(number: int) -> bool:
        async with harness.another() as store:
            group_commit = GroupCommit(store)
            group_commit.start()
            job = submit(harness, f"k{number}")
            try:
                await group_commit.write_all([job, fire(schedule, due_at, job.job.id)])
            except ScheduleMoved:
                return False
            finally:
                await group_commit.close()
            return True

    assert sorted(await asyncio.gather(*(manage(number) for number in range(5)))) == [False] * 4 + [True]
    assert len(await harness.store.schedule_runs(schedule.id, before=None, limit=9)) == 1


async def test_a_run_by_hand_leaves_the_schedule_as_it_is(harness: StoreHarness) -> None:
    schedule = await saved(harness, new(harness, paused_at=harness.clock.now))
    job = submit(harness, "k1")
    by_hand = FireSchedule(schedule.id, None, (ScheduleRun(RunOutcome.SUBMITTED, 1.0, job_id=job.job.id),), job.job.id)
    await harness.store.commit([job, by_hand])
    assert await harness.store.schedules() == [schedule]
    (run,) = await harness.store.schedule_runs(schedule.id, before=None, limit=9)
    assert (run.due_at, run.job_id) == (None, job.job.id)


async def test_old_runs_are_deleted_and_the_others_paged(harness: StoreHarness) -> None:
    schedule = await saved(harness, new(harness))
    for n in range(KEPT_RUNS + 3):
        run = ScheduleRun(RunOutcome.REFUSED, float(n), detail=f"no\0 {n}")
        await harness.one(FireSchedule(schedule.id, None, (run,)))
    runs = await harness.store.schedule_runs(schedule.id, before=None, limit=1000)
    assert [run.at for run in runs] == [float(n) for n in range(KEPT_RUNS + 2, 2, -1)]
    assert runs[0].detail == f"no {KEPT_RUNS + 2}"
    page = await harness.store.schedule_runs(schedule.id, before=runs[1].seq, limit=2)
    assert page == runs[2:4]


async def test_declaring_keeps_what_is_unchanged_and_deletes_what_is_gone(harness: StoreHarness) -> None:
    now = harness.clock.now
    await saved(harness, new(harness, "by_api"))
    same, other, gone = (new(harness, id_, declared=True) for id_ in ("same", "other", "gone"))
    await harness.one(DeclareSchedules((same, other, gone)))
    stored = {each.id: each for each in await harness.store.schedules()}
    assert stored["same"].declared
    await saved(harness, replace(stored["same"], paused_at=now), stored["same"].revision)
    harness.clock.forward(1000)
    again = replace(same, next_at=now + 1060, secret="new")
    changed = replace(other, timing=Timing("0 * * * *"), next_at=now + 1060)
    await harness.one(DeclareSchedules((again, changed)))
    after = {each.id: each for each in await harness.store.schedules()}
    assert set(after) == {"by_api", "same", "other"}
    assert after["same"] == replace(stored["same"], paused_at=now, revision=2)
    assert (after["other"].next_at, after["other"].timing) == (now + 1060, Timing("0 * * * *"))
    await harness.one(DeclareSchedules(()))
    assert [each.id for each in await harness.store.schedules()] == ["by_api"]
