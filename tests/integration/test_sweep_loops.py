"""The loops of what time alone does: what they move, whom they tell, what they count, and when they come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fairlead.domain.config import PromotionConfig
from fairlead.domain.job import Job, JobStatus, Priority
from fairlead.domain.transitions import Start, submit
from fairlead.errors import Unavailable
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.events import Event
from fairlead.runtime.loops import promote as promote_module
from fairlead.runtime.loops import timers as timers_module
from fairlead.runtime.loops.promote import PromoteLoop
from fairlead.runtime.loops.timers import TimersLoop
from fairlead.runtime.manager import Manager
from fairlead.runtime.record import Recorder
from fairlead.store.journal import Journal
from fairlead.store.sqlite import SqliteStore

NOW = 1_700_000_000.0
WAITS = {"draw": 40.0}


class Heard:
    """A hub where every job is watched."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def watched(self, job_id: str, user_id: str) -> bool:
        return True

    def publish(self, event: Event, user_id: str) -> None:
        self.events.append(event)


@dataclass
class Site:
    store: SqliteStore
    heard: Heard
    recorder: Recorder
    commits: list[int] = field(default_factory=list)  # how many transitions each had

    async def submitted(self, *jobs: Job, now: float = NOW, **given: Any) -> None:
        await self.store.commit([submit(job, "{}", now=now, waits={}, **given) for job in jobs])

    async def job(self, job_id: str) -> Job:
        return (await self.store.get_jobs([job_id]))[job_id]


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    store = SqliteStore(str(tmp_path / "x.db"), clock=lambda: NOW, synchronous="OFF")
    await store.open()
    journal = Journal(store, on_commit=lambda changes: None, retry_delays=[])
    journal.start()
    heard = Heard()
    site = Site(store, heard, Recorder(journal, heard))  # type: ignore[arg-type]
    commit = store.commit

    async def counted(batch: Any, **options: Any) -> Any:
        site.commits.append(len(batch))
        return await commit(batch, **options)

    monkeypatch.setattr(store, "commit", counted)
    yield site
    await journal.close()
    await store.close()


def job(job_id: str, **given: Any) -> Job:
    return Job(job_id, "f", "ann", ("draw",), **given)


def counters(loop: TimersLoop | PromoteLoop) -> tuple[int, int]:
    return loop.scanned, loop.queued


async def test_timers_that_rang_move_their_jobs_and_the_loop_comes_back_for_the_next(site: Site) -> None:
    await site.submitted(job("a"), job("b"), due_at=NOW + 1)
    await site.submitted(job("c"), due_at=NOW + 10.1)
    loop = TimersLoop(site.store, site.recorder, lambda: WAITS)
    told: list[float] = []
    site.recorder.on_timer = told.append
    assert await loop.tick(NOW + 10) == NOW + 10.1
    assert {(await site.job(name)).status for name in "ab"} == {JobStatus.PENDING}
    assert told == [NOW + 50, NOW + 50]  # the waits that begin now end then
    assert counters(loop) == (2, 2)


async def test_watchers_hear_of_what_a_sweep_moved_and_workers_of_what_they_must_stop(site: Site) -> None:
    stopped: list[tuple[str, int]] = []
    site.recorder.on_stopped = lambda *job: stopped.append(job)
    await site.submitted(job("low", priority=Priority.LOW), job("late", deadline_at=NOW + 60))
    await site.store.commit([Start("late", 0, 0, "0:1", "service:draw", "w1", 300.0)])
    await TimersLoop(site.store, site.recorder, lambda: {}).tick(NOW + 60)
    await PromoteLoop(site.store, site.recorder, PromotionConfig(), lambda: {}).tick(NOW + 1800)
    failed, promoted = site.heard.events
    assert (failed.type, failed.job_id, stopped) == ("JOB_FAILED", "late", [("late", 1)])
    assert (promoted.type, promoted.details) == ("JOB_PROMOTED", {"old": "low", "new": "medium"})


async def test_as_long_as_nothing_is_due_nothing_is_written(site: Site) -> None:
    await site.submitted(job("a", priority=Priority.LOW), due_at=NOW + 5)
    await site.submitted(job("b", priority=Priority.LOW))
    site.commits.clear()
    timers = TimersLoop(site.store, site.recorder, lambda: {})
    promotion = PromoteLoop(site.store, site.recorder, PromotionConfig(), lambda: {})
    assert await timers.tick(NOW) == NOW + timers_module.LOOK_EVERY
    assert await promotion.tick(NOW) == NOW + 1800
    assert site.commits == []
    assert counters(timers) == counters(promotion) == (0, 0)


async def test_a_full_batch_means_again_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers_module, "BATCH", 2)
    monkeypatch.setattr(promote_module, "BATCH", 2)
    await site.submitted(*(job(f"due-{n}") for n in range(3)), due_at=NOW + 1)
    timers = TimersLoop(site.store, site.recorder, lambda: {})
    assert await timers.tick(NOW + 2) == NOW + 2
    assert counters(timers) == (2, 2)
    assert await timers.tick(NOW + 2) == NOW + 2 + timers_module.LOOK_EVERY
    assert counters(timers) == (3, 3)
    promotion = PromoteLoop(site.store, site.recorder, PromotionConfig(), lambda: {})
    later = NOW + 4000
    assert await promotion.tick(later) == later
    assert await promotion.tick(later) == later + 1800
    assert counters(promotion) == (3, 3)


async def test_what_another_process_is_moving_is_looked_at_again_soon_and_not_at_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would commit over and over until the other is done."""

    async def next_timer() -> float:
        return NOW - 1

    monkeypatch.setattr(site.store, "next_timer", next_timer)
    loop = TimersLoop(site.store, site.recorder, lambda: {})
    assert await loop.tick(NOW) == NOW + timers_module.LOOK_AGAIN
    assert counters(loop) == (0, 0)


async def test_sweeps_that_could_not_be_written_are_counted_and_told(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.submitted(job("a", priority=Priority.LOW), due_at=NOW + 1)
    await site.submitted(job("b", priority=Priority.LOW))

    async def full(batch: Any, **options: Any) -> Any:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(site.store, "commit", full)
    timers = TimersLoop(site.store, site.recorder, lambda: {})
    promotion = PromoteLoop(site.store, site.recorder, PromotionConfig(), lambda: {})
    manager = Manager([timers, promotion], LateClock())
    driving = asyncio.create_task(manager.run())
    async with asyncio.timeout(30):
        while not all(counts["failed"] for counts in manager.counts().values()):
            await asyncio.sleep(0.01)
    driving.cancel()
    await asyncio.gather(driving, return_exceptions=True)
    assert counters(timers) == counters(promotion) == (0, 0)


class LateClock(SystemClock):
    """By which all of it is due."""

    def now(self) -> float:
        return NOW + 9000
