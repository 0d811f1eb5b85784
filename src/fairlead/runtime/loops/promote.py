"""Raises the priority of those who wait long, so that nobody starves. A promotion moves the waiting step, it never
copies."""

from __future__ import annotations

from collections.abc import Callable

from fairlead.domain.config import PromotionConfig
from fairlead.domain.transitions import WaitTimeouts
from fairlead.runtime.record import Recorder
from fairlead.store.port import PromoteWaiting, Rung, Store

BATCH = 500
LOOK_AGAIN = 0.05


class PromoteLoop:
    """Counts the jobs that it found waiting long enough (`scanned`), and those of them that it promoted (`queued`)."""

    name = "promote"

    def __init__(
        self, store: Store, recorder: Recorder, config: PromotionConfig, waits: Callable[[], WaitTimeouts]
    ) -> None:
        self._store = store
        self._recorder = recorder
        self._config = config
        self._waits = waits
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        # A look costs no commit.
        following = await self._next()
        if following is not None and following <= now:
            if (await self._sweep(now)).found == BATCH:
                return now
            following = await self._next()
        # Whoever arrives from now on is not due before the shorter of the two times has passed.
        soonest = now + min(self._config.low_to_medium_after, self._config.medium_to_high_after)
        return soonest if following is None else max(now + LOOK_AGAIN, min(soonest, following))

    async def _next(self) -> float | None:
        low, medium = self._config.low_to_medium_after, self._config.medium_to_high_after
        return await self._store.next_promotion(low_after=low, medium_after=medium)

    async def _sweep(self, now: float) -> Rung:
        low, medium = self._config.low_to_medium_after, self._config.medium_to_high_after
        rung = await self._recorder.sweep(PromoteWaiting(now, now - low, now - medium, BATCH, self._waits()), now)
        self.scanned += rung.found
        self.queued += len(rung.moves)
        return rung
