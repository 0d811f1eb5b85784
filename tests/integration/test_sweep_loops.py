"""The sweep loops: what they move, what they publish and count, and when they run again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fairlead.domain.config import PromotionConfig
from fairlead.domain.events import Event
from fairlead.domain.job import Job, JobStatus, Priority
from fairlead.domain.rules import Rules, ServiceRules
from fairlead.domain.transitions import Start, submit
from fairlead.engine.clock import SystemClock
from fairlead.engine.loop_runner import LoopRunner
from fairlead.engine.loops import timers as timers_module
from fairlead.engine.loops.timers import PromoteLoop, TimersLoop
from fairlead.engine.parts import RulesRef, RunningNode
from fairlead.engine.transition_writer import TransitionWriter
from fairlead.errors import Unavailable
from fairlead.store.group_commit import GroupCommit
from fairlead.store.sqlite import SqliteStore

NOW = 1_700_000_000.0
RULES = RulesRef(Rules({"draw": ServiceRules("draw", limit=1, wait_timeout=40.0)}))


class RecordedSignals(RunningNode):
    def __init__(self) -> None:
        super().__init__()
        self.timers: list[float] = []
        self.stopped: list[tuple[str, int]] = []

    def timer_set(self, moment: float) -> None:
        self.timers.append(moment)

    def step_stopped(self, job_id: str, run: int) -> None:
        self.stopped.append((job_id, run))


class RecordingHub:
    """A hub in which every job is watched."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def watched(self, job_id: str, user_id: str) -> bool:
        return True

    def awaits_end(self, job_id: str) -> bool:
        return False

    def publish(self, event: Event, user_id: str) -> None:
        self.events.append(event)


@dataclass
class Site:
    store: SqliteStore
    hub: RecordingHub
    recorder: TransitionWriter
    signals: RecordedSignals
    commits: list[int] = field(default_factory=list)  # the number of transitions in each commit

    async def submitted(self, *jobs: Job, now: float = NOW, **given: Any) -> None:
        await self.store.commit([submit(job, "{}", now=now, waits={}, **given) for job in jobs])

    async def job(self, job_id: str) -> Job:
        return (await self.store.get_jobs([job_id]))[job_id]


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    store = SqliteStore(str(tmp_path / "x.db"), clock=lambda: NOW + 9000, synchronous="OFF")
    await store.open()
    group_commit = GroupCommit(store, retry_delays=[])
    group_commit.start()
    hub, signals = RecordingHub(), RecordedSignals()
    site = Site(store, hub, TransitionWriter(group_commit, hub, signals), signals)  # type: ignore[arg-type]
    commit = store.commit

    async def counted(batch: Any, **options: Any) -> Any:
        site.commits.append(len(batch))
        return await commit(batch, **options)

    monkeypatch.setattr(store, "commit", counted)
    yield site
    await group_commit.close()
    await store.close()


def job(job_id: str, **given: Any) -> Job:
    return Job(job_id, "f", "ann", ("draw",), **given)


def counters(loop: TimersLoop | PromoteLoop) -> tuple[int, int]:
    return loop.scanned, loop.queued


async def test_fired_timers_move_their_jobs_and_the_loop_returns_for_the_next(site: Site) -> None:
    await site.submitted(job("a"), job("b"), due_at=NOW + 1)
    await site.submitted(job("c"), due_at=NOW + 10.1)
    loop = TimersLoop(site.store, site.recorder, RULES)
    assert await loop.tick(NOW + 10) == NOW + 10.1
    assert {(await site.job(name)).status for name in "ab"} == {JobStatus.PENDING}
    assert site.signals.timers == [NOW + 50, NOW + 50]  # the waits that begin now end then
    assert counters(loop) == (2, 2)


async def test_watchers_receive_the_moves_of_a_sweep_and_workers_the_stops(site: Site) -> None:
    await site.submitted(job("low", priority=Priority.LOW), job("late", deadline_at=NOW + 60))
    await site.store.commit([Start("late", 0, 0, "0:1", "service:draw", "w1", 300.0)])
    await TimersLoop(site.store, site.recorder, RulesRef()).tick(NOW + 60)
    await PromoteLoop(site.store, site.recorder, PromotionConfig(), RulesRef()).tick(NOW + 1800)
    failed, promoted = site.hub.events
    assert (failed.type, failed.job_id, site.signals.stopped) == ("JOB_FAILED", "late", [("late", 1)])
    assert (promoted.type, promoted.details) == ("JOB_PROMOTED", {"old": "low", "new": "medium"})


async def test_nothing_is_written_while_nothing_is_due(site: Site) -> None:
    await site.submitted(job("a", priority=Priority.LOW), due_at=NOW + 5)
    await site.submitted(job("b", priority=Priority.LOW))
    site.commits.clear()
    timers = TimersLoop(site.store, site.recorder, RulesRef())
    promotion = PromoteLoop(site.store, site.recorder, PromotionConfig(), RulesRef())
    assert await timers.tick(NOW) == NOW + timers_module.LOOK_EVERY
    assert await promotion.tick(NOW) == NOW + timers_module.PROMOTE_EVERY
    assert site.commits == []
    assert counters(timers) == counters(promotion) == (0, 0)


async def test_a_full_batch_is_followed_by_another_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers_module, "BATCH", 2)
    await site.submitted(*(job(f"due-{n}") for n in range(3)), due_at=NOW + 1)
    timers = TimersLoop(site.store, site.recorder, RulesRef())
    assert await timers.tick(NOW + 2) == NOW + 2
    assert counters(timers) == (2, 2)
    assert await timers.tick(NOW + 2) == NOW + 2 + timers_module.LOOK_EVERY
    assert counters(timers) == (3, 3)
    promotion = PromoteLoop(site.store, site.recorder, PromotionConfig(), RulesRef())
    later = NOW + 4000
    assert await promotion.tick(later) == later
    assert await promotion.tick(later) == later + timers_module.PROMOTE_EVERY
    assert counters(promotion) == (3, 3)


async def test_jobs_locked_by_another_process_are_retried_soon_but_not_at_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would commit repeatedly until the other process is done."""

    async def next_timer() -> float:
        return NOW - 1

    monkeypatch.setattr(site.store, "next_timer", next_timer)
    loop = TimersLoop(site.store, site.recorder, RulesRef())
    assert await loop.tick(NOW) == NOW + timers_module.LOOK_AGAIN
    assert counters(loop) == (0, 0)


async def test_failed_sweeps_are_counted_and_logged(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.submitted(job("a", priority=Priority.LOW), due_at=NOW + 1)
    await site.submitted(job("b", priority=Priority.LOW))

    async def full(batch: Any, **options: Any) -> Any:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(site.store, "commit", full)
    timers = TimersLoop(site.store, site.recorder, RulesRef())
    promotion = PromoteLoop(site.store, site.recorder, PromotionConfig(), RulesRef())
    manager = LoopRunner([timers, promotion], LateClock())
    driving = asyncio.create_task(manager.run())
    async with asyncio.timeout(30):
        while not all(counts["failed"] for counts in manager.counts().values()):
            await asyncio.sleep(0.01)
    driving.cancel()
    await asyncio.gather(driving, return_exceptions=True)
    assert counters(timers) == counters(promotion) == (0, 0)


class LateClock(SystemClock):
    """A clock by which everything is due."""

    def now(self) -> float:
        return NOW + 9000
