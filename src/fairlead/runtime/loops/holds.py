"""Ends the holds whose call can no longer be computing."""

from __future__ import annotations

from fairlead.dispatch.port import Dispatcher
from fairlead.store.journal import Journal
from fairlead.store.port import EndHolds, Store

EVERY = 1.0


class HoldsLoop:
    name = "holds"

    def __init__(self, store: Store, journal: Journal, dispatcher: Dispatcher) -> None:
        self._store = store
        self._journal = journal
        self._dispatcher = dispatcher
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        holds = await self._store.holds()
        self.scanned += len(holds)
        if any(hold.until <= now for hold in holds):
            await self._journal.write(EndHolds(now))
        # Whether or not we ended them: another shard's leader may have been faster with the rows.
        self.queued += await self._dispatcher.end_holds(now)
        return now + EVERY
