"""Raises the priority of those who wait long, so that nobody starves. A promotion moves the waiting step, it never
copies."""

from __future__ import annotations

from collections.abc import Callable

from fairlead.domain import transitions
from fairlead.domain.config import PromotionConfig
from fairlead.domain.transitions import WaitTimeouts
from fairlead.runtime.record import Recorder
from fairlead.store.port import Store

BATCH = 500


class PromoteLoop:
    name = "promote"

    def __init__(
        self, store: Store, recorder: Recorder, config: PromotionConfig, waits: Callable[[], WaitTimeouts]
    ) -> None:
        self._store = store
        self._recorder = recorder
        self._config = config
        self._waits = waits
        self.promoted = 0

    async def tick(self, now: float) -> float:
        low, medium = self._config.low_to_medium_after, self._config.medium_to_high_after
        jobs = await self._store.promotable(low_before=now - low, medium_before=now - medium, limit=BATCH)
        if jobs:
            waits = self._waits()
            moves = [(job, transitions.promote(job, now=now, waits=waits)) for job in jobs]
            self.promoted += len(await self._recorder.record_each(moves, now))
        if len(jobs) == BATCH:
            return now
        # Whoever arrives from now on is not due before the shorter of the two times has passed.
        following = await self._store.next_promotion(low_after=low, medium_after=medium)
        soonest = now + min(low, medium)
        return soonest if following is None else max(now + 0.05, min(soonest, following))
