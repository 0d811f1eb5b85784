"""Brings to the line what other processes committed, and what this one committed but did not get to relay."""

from __future__ import annotations

from collections.abc import Callable

from fairlead.domain.limits import Lanes
from fairlead.runtime.relay import Relay
from fairlead.store.journal import Journal
from fairlead.store.port import Store

EVERY = 0.2
# Whoever commits relays at once; what is older was left behind by a process that died, or could not.
LEFT_AFTER = 2.0
BATCH = 1000


class OutboxLoop:
    name = "outbox"

    def __init__(self, store: Store, journal: Journal, relay: Relay, lanes: Callable[[], Lanes]) -> None:
        self._store = store
        self._journal = journal
        self._relay = relay
        self._lanes = lanes
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        changes = await self._store.outbox(older_than=now - LEFT_AFTER, limit=BATCH, lanes=self._lanes())
        self.scanned += len(changes)
        if changes:
            await self._relay.relay(changes, self._journal)
            self.queued += len(changes)
            # The rows are gone only with the next commit; looking again before that would find them again.
            await self._journal.flush()
        return now if len(changes) >= BATCH else now + EVERY
