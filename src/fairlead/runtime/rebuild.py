"""Makes the dispatcher anew from the truth: the epoch is raised, then running steps, holds and lines come back.

This is the rebuild of a dispatcher in memory, which dies with its process: whoever holds the dispatch lock knows that
every worker of the earlier process is gone, so its running steps are recovered at once and not after a lease TTL.
"""

from __future__ import annotations

import asyncio
import logging

from fairlead.dispatch.port import Dispatcher
from fairlead.domain.limits import Rules
from fairlead.runtime.clock import Clock
from fairlead.runtime.loops.recover import RecoverLoop
from fairlead.runtime.relay import offer_of
from fairlead.store.journal import Journal
from fairlead.store.port import Done, RaiseEpoch, Store

log = logging.getLogger(__name__)

BATCH = 1000
SAY_EVERY = 100_000


class Rebuild:
    def __init__(
        self, store: Store, journal: Journal, dispatcher: Dispatcher, recovery: RecoverLoop, clock: Clock
    ) -> None:
        self._store = store
        self._journal = journal
        self._dispatcher = dispatcher
        self._recovery = recovery
        self._clock = clock
        self.restored = 0
        self.done = False

    async def close_scopes(self, rules: Rules) -> None:
        """Raise the epochs and forget everything; from here on nothing is granted."""
        for scope in sorted(rules.scopes):
            outcome = await self._journal.write(RaiseEpoch(scope))
            assert isinstance(outcome, Done)
            await self._dispatcher.close_scope(scope, int(outcome.value))

    async def run(self, rules: Rules) -> None:
        await self._recovery.recover(await self._store.running(), self._clock.now())
        holds = await self._store.holds()
        for scope in rules.scopes:
            members = [hold for hold in holds if _scope_of(hold.service, rules) == scope]
            await self._dispatcher.restore(scope, (), members)
        undeclared: set[str] = set()
        async for jobs in self._store.waiting(BATCH):
            await self._dispatcher.offer([offer_of(job) for job in jobs])
            undeclared.update({job.service for job in jobs} - rules.services.keys())
            self._progress(len(jobs))
            await asyncio.sleep(0)  # requests are answered meanwhile
        for scope in sorted(rules.scopes):
            await self._dispatcher.open_scope(scope)
        self.done = True
        for service in sorted(undeclared):
            log.warning(
                "jobs wait for the service %s, which is not configured any more; they wait until it is", service
            )
        if self.restored:
            log.info("the line is rebuilt: %d jobs wait", self.restored)

    def _progress(self, count: int) -> None:
        before, self.restored = self.restored, self.restored + count
        if before // SAY_EVERY != self.restored // SAY_EVERY:
            log.info("rebuilding the line: %d waiting jobs restored", self.restored)


def _scope_of(service: str, rules: Rules) -> str | None:
    known = rules.services.get(service)
    return known.scope if known is not None else None
