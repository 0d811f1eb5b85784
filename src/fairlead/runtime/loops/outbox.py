"""Brings to the line what other processes committed, and what this one committed but did not get to relay."""

from __future__ import annotations

from fairlead.runtime.relay import Relay
from fairlead.store.journal import Journal
from fairlead.store.port import Store

EVERY = 0.2
OWN_ROWS_AFTER = 5.0
BATCH = 1000


class OutboxLoop:
    name = "outbox"

    def __init__(self, store: Store, journal: Journal, relay: Relay) -> None:
        self._store = store
        self._journal = journal
        self._relay = relay
        self.relayed = 0

    async def tick(self, now: float) -> float:
        changes = await self._store.outbox(older_than=now - OWN_ROWS_AFTER, limit=BATCH)
        if changes:
            await self._relay.relay(changes, self._journal)
            self.relayed += len(changes)
            # The rows are gone only with the next commit; looking again before that would find them again.
            await self._journal.flush()
        return now if len(changes) == BATCH else now + EVERY
