"""Loops that act when a time has come: they queue scheduled jobs and retries, end jobs that have waited too long or
passed their deadline, and promote jobs that have waited long, so that no job starves."""

from __future__ import annotations

import asyncio

from fairlead.domain.config import PromotionConfig
from fairlead.domain.job import JobStatus
from fairlead.domain.stats import SECONDS, Histogram
from fairlead.engine.parts import RulesRef
from fairlead.engine.transition_writer import TransitionWriter
from fairlead.store.port import FireTimers, PromoteWaiting, Store, SweepResult

BATCH = 500
LOOK_EVERY = 0.25
PROMOTE_EVERY = 1.0
# Jobs that are due but were not found are being moved by another process. It may fail, so look again soon.
LOOK_AGAIN = 0.05


class TimersLoop:
    """Moves the jobs whose time has come. Counts the jobs that were due (`scanned`), and the ones that it moved
    (`queued`). `latency` is the time from a job's `scheduled_at` to its entry in the queue."""

    name = "timers"

    def __init__(self, store: Store, recorder: TransitionWriter, rules: RulesRef) -> None:
        self._store = store
        self._recorder = recorder
        self._rules = rules
        self.scanned = self.queued = 0
        self.latency = Histogram(SECONDS)

    async def tick(self, now: float) -> float:
        # Reading costs no commit, and usually nothing is due.
        following = await self._store.next_timer()
        if following is not None and following <= now:
            if (await self._sweep(now)).found == BATCH:
                return now
            following = await self._store.next_timer()
        # Timers set by other processes send no wakeup. Reading regularly finds them before they are due.
        soonest = now + LOOK_EVERY
        if following is None:
            return soonest
        return min(soonest, following) if following > now else now + LOOK_AGAIN

    async def _sweep(self, now: float) -> SweepResult:
        rules, timer = self._rules.current, asyncio.get_running_loop().time
        began = timer()
        result = await self._recorder.sweep(FireTimers(now, BATCH, rules.wait_timeouts, rules.auto_resumes), now)
        self.scanned += result.found
        self.queued += len(result.moves)
        done_at = now + timer() - began
        for job, move in result.moves:
            if job.status is JobStatus.SCHEDULED and move.status is JobStatus.PENDING and job.scheduled_at is not None:
                self.latency.observe(max(0.0, done_at - job.scheduled_at))
        return result


class PromoteLoop:
    """Promotes jobs that have waited long to the next higher band. The waiting step is moved, never copied. Counts the
    jobs that have waited long enough (`scanned`), and the ones that it promoted (`queued`)."""

    name = "promote"

    def __init__(self, store: Store, recorder: TransitionWriter, config: PromotionConfig, rules: RulesRef) -> None:
        self._store = store
        self._recorder = recorder
        self._config = config
        self._rules = rules
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        # Reading costs no commit.
        following = await self._next()
        if following is not None and following <= now:
            if (await self._sweep(now)).found == BATCH:
                return now
            following = await self._next()
        # A new job is not due before the shorter of the two times has passed. A job that is queued again after a
        # failure or a backoff may be due at once, because the time that it waited before still counts.
        soonest = now + min(PROMOTE_EVERY, self._config.low_to_medium_after, self._config.medium_to_high_after)
        return soonest if following is None else max(now + LOOK_AGAIN, min(soonest, following))

    async def _next(self) -> float | None:
        low, medium = self._config.low_to_medium_after, self._config.medium_to_high_after
        return await self._store.next_promotion(low_after=low, medium_after=medium)

    async def _sweep(self, now: float) -> SweepResult:
        low, medium = self._config.low_to_medium_after, self._config.medium_to_high_after
        rung = await self._recorder.sweep(
            PromoteWaiting(now, now - low, now - medium, BATCH, self._rules.current.wait_timeouts), now
        )
        self.scanned += rung.found
        self.queued += len(rung.moves)
        return rung
