"""One manager leads, the others stand by: a lease where the dispatcher is, with a term that only grows in the truth.

Leadership only saves work. Every action of a leader is a conditional write, so one that was stopped, and acts on for a
moment after another took over, does no harm.
"""

from __future__ import annotations

import asyncio
import logging

from fairlead.dispatch.port import Leadership
from fairlead.errors import AlreadyDispatching, Unavailable
from fairlead.runtime.clock import Clock
from fairlead.runtime.loops.scopes import ScopesLoop
from fairlead.runtime.manager import BACKOFF, Manager
from fairlead.runtime.outage import Outage
from fairlead.store.journal import Journal
from fairlead.store.port import Done, RaiseEpoch

log = logging.getLogger(__name__)

LOOK_EVERY = 0.5


class Deposed(Exception):
    """Another may lead now."""


class Leader:
    """Of one shard. Without a `leadership` there is nobody else: the dispatcher is in this process."""

    def __init__(
        self,
        shard: str,
        leadership: Leadership | None,
        *,
        scopes: ScopesLoop,
        manager: Manager,
        journal: Journal,
        clock: Clock,
    ) -> None:
        self._shard = shard
        self._leadership = leadership
        self._journal = journal
        self._clock = clock
        self._outage = Outage(log, f"the election of a leader for {shard}")
        self.scopes = scopes
        self.manager = manager
        self.term: int | None = None
        self.leading = leadership is None

    async def run(self) -> None:
        if self._leadership is None:
            await self._manage()
            return
        while True:
            try:
                if await self._elected(self._leadership):
                    await self._reign(self._leadership)
                self._outage.ended()
            except Unavailable as error:
                self._outage.began(error)
            except Exception:
                log.exception("leading %s failed; standing for election again", self._shard)
            await asyncio.sleep(LOOK_EVERY * (0.5 + self._clock.randomness()))

    async def resign(self) -> None:
        if self._leadership is not None and self.term is not None:
            try:
                await self._leadership.resign()
            except Unavailable as error:
                log.info("could not resign (%s); the lease ends by itself", error)

    async def _elected(self, leadership: Leadership) -> bool:
        if await leadership.leader() is not None:
            return False
        outcome = await self._journal.write(RaiseEpoch(f"leader:{self._shard}"))
        assert isinstance(outcome, Done)
        self.term = int(outcome.value)
        return await leadership.acquire(self.term)

    async def _reign(self, leadership: Leadership) -> None:
        log.info("leading %s, term %d", self._shard, self.term)
        self.leading = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep(leadership))
                group.create_task(self._manage())
        except* Deposed as deposed:
            log.warning("no longer leading %s: %s", self._shard, deposed.exceptions[0])
        finally:
            self.leading = False
        self.term = None

    async def _keep(self, leadership: Leadership) -> None:
        held_at = self._clock.monotonic()
        while True:
            await asyncio.sleep(leadership.ttl / 3)
            asked_at = self._clock.monotonic()
            try:
                if not await leadership.renew():
                    raise Deposed("the lease is another's")
                held_at = asked_at
            except Unavailable as error:
                if self._clock.monotonic() - held_at > leadership.ttl:
                    raise Deposed(f"the lease could not be renewed: {error}") from None

    async def _manage(self) -> None:
        """The other loops begin when the line stands: what they find amiss before that is about to be mended."""
        outage = Outage(log, f"building the line of {self._shard}")
        while not self.scopes.built:
            try:
                await self.scopes.tick(self._clock.now())
                outage.ended()
            except Unavailable as error:
                outage.began(error)
            except AlreadyDispatching:
                raise  # somebody else dispatches from memory: this process is to end
            except Exception:
                log.exception("building the line of %s failed; trying again", self._shard)
            if not self.scopes.built:
                await asyncio.sleep(BACKOFF)
        await self.manager.run()
