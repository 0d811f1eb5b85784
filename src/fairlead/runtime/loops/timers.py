"""What time alone does: releases scheduled jobs and retries at the due moment, ends waits and deadlines."""

from __future__ import annotations

from collections.abc import Callable

from fairlead.domain.transitions import WaitTimeouts
from fairlead.runtime.record import Recorder
from fairlead.store.port import RingTimers, Rung, Store

BATCH = 500
LOOK_EVERY = 0.25
# What is due and was not found is being moved by another process, which may fail.
LOOK_AGAIN = 0.05


class TimersLoop:
    """Counts the jobs that it found due (`scanned`), and those of them that it moved (`queued`)."""

    name = "timers"

    def __init__(self, store: Store, recorder: Recorder, waits: Callable[[], WaitTimeouts]) -> None:
        self._store = store
        self._recorder = recorder
        self._waits = waits
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        # A look costs no commit, and mostly there is nothing to do.
        following = await self._store.next_timer()
        if following is not None and following <= now:
            if (await self._sweep(now)).found == BATCH:
                return now
            following = await self._store.next_timer()
        # Jobs of other processes give no hint of their timers. A look now and then sees them before they ring.
        soonest = now + LOOK_EVERY
        if following is None:
            return soonest
        return min(soonest, following) if following > now else now + LOOK_AGAIN

    async def _sweep(self, now: float) -> Rung:
        rung = await self._recorder.sweep(RingTimers(now, BATCH, self._waits()), now)
        self.scanned += rung.found
        self.queued += len(rung.moves)
        return rung
