"""What time alone does: releases scheduled jobs and retries at the due moment, ends waits and deadlines."""

from __future__ import annotations

from collections.abc import Callable

from fairlead.domain import transitions
from fairlead.domain.transitions import WaitTimeouts
from fairlead.runtime.record import Recorder
from fairlead.store.port import Store

BATCH = 500
LOOK_EVERY = 0.25


class TimersLoop:
    name = "timers"

    def __init__(self, store: Store, recorder: Recorder, waits: Callable[[], WaitTimeouts]) -> None:
        self._store = store
        self._recorder = recorder
        self._waits = waits
        self.rung = 0

    async def tick(self, now: float) -> float:
        jobs = await self._store.timers(now, BATCH)
        waits = self._waits()
        moves = [(job, transitions.timer_rang(job, now=now, waits=waits)) for job in jobs]
        if moves:
            self.rung += len(await self._recorder.record_each([(job, move) for job, move in moves if move], now))
        if len(jobs) == BATCH:
            return now
        # Jobs of other processes give no hint of their timers. A look now and then sees them before they ring.
        following = await self._store.next_timer()
        return now + LOOK_EVERY if following is None else min(now + LOOK_EVERY, following)
