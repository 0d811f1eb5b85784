"""Compares the line with the truth, and repairs and counts the differences."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fairlead.dispatch.port import Dispatcher
from fairlead.domain.limits import Lanes, Rules
from fairlead.runtime.relay import offer_of
from fairlead.store.port import Store

log = logging.getLogger(__name__)

EVERY = 30.0
BATCH = 1000


class ReconcileLoop:
    """Counts first: only when line and truth differ twice in a row is everything offered again, which is harmless."""

    name = "reconcile"

    def __init__(
        self, store: Store, dispatcher: Dispatcher, lanes: Callable[[], Lanes], rules: Callable[[], Rules]
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._lanes = lanes
        self._rules = rules
        self._differed = False
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        waiting = await self._store.count_waiting(self._lanes())
        self.scanned += waiting
        snapshots = await self._dispatcher.snapshot()
        # A step that is claimed and not yet started is still PENDING in the truth, and in line no more.
        in_line = sum(sum(snapshot.waiting.values()) + len(snapshot.leases) for snapshot in snapshots)
        missing = waiting > in_line
        if missing and self._differed:
            await self._offer_all()
        self._differed = missing
        return now + EVERY

    async def _offer_all(self) -> None:
        placed, services = 0, self._rules().services
        async for jobs in self._store.waiting(BATCH, self._lanes()):
            placed += await self._dispatcher.offer([offer_of(job, services) for job in jobs])
        if placed:
            self.queued += placed
            log.warning("%d waiting jobs were missing in the line and are back", placed)
