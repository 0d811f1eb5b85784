"""Watches that the dispatcher is what the truth built: else it is built anew.

It is not when it is new, when it lost its data, when a rebuild was left unfinished, and when another server answers
than the one it was built on: a replica that took over may lack the newest leases, however complete it looks. And an
operator who doubts it may ask for a rebuild.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from fairlead.dispatch.port import Dispatcher, ScopeState
from fairlead.domain.limits import Lanes, Rules
from fairlead.runtime.rebuild import Rebuild
from fairlead.store.port import Epoch, Store

log = logging.getLogger(__name__)

EVERY = 0.5


class ScopesLoop:
    name = "scopes"

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        rebuild: Rebuild,
        rules: Callable[[], Rules],
        lanes: Callable[[], Lanes],
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._rules = rules
        self._lanes = lanes
        self.rebuild = rebuild
        self.built = False
        self.first_built = asyncio.Event()
        self.on_built: Callable[[], None] = lambda: None
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        rules = self._rules()
        # First the truth, then the dispatcher: should another leader rebuild in between, we see its later epoch there
        # and do the work once more, which is harmless.
        epochs = await self._store.epochs()
        states = await self._dispatcher.states(rules.scopes)
        self.scanned += len(states)
        stale = {scope: state.server for scope, state in states.items() if not _stands(state, epochs.get(scope))}
        if stale:
            log.log(
                logging.WARNING if self.built else logging.INFO,
                "building the line of %s from the truth",
                ", ".join(sorted(stale)),
            )
            self.built = False
            if not await self.rebuild.run(rules, self._lanes(), stale):
                log.warning("another rebuild has begun; leaving this one")
                return now + EVERY
            self.queued += len(stale)
            self.on_built()
        self.built = True
        self.first_built.set()
        return now + EVERY


def _stands(state: ScopeState, epoch: Epoch | None) -> bool:
    if epoch is None or epoch.rebuild_asked or not state.open:
        return False
    return state.epoch == epoch.number and state.server == epoch.server
