"""Elects one manager per shard as leader, by a lease in the dispatcher and a term in the database that only grows.

The election only keeps several managers from doing the same work; correctness does not depend on it. Every action of a
leader is a conditional write. A leader that was suspended, and acts for a moment after another has taken over,
therefore does no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fairlead.dispatch.port import Leadership
from fairlead.engine.clock import Clock
from fairlead.engine.loop_runner import BACKOFF, LoopRunner
from fairlead.engine.rebuild import EnsureBuiltLoop
from fairlead.errors import AlreadyDispatching, Unavailable
from fairlead.outage import Outage
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Done, RaiseEpoch

log = logging.getLogger("fairlead.leader")

LOOK_EVERY = 0.5
LOOPS_WORK_WITHIN = 30.0
"""Seconds for which a loop may fail before its leader resigns."""


class DatabaseProbe:
    """Checks in the background whether the database answers. A ping may hang for as long as the server does, so no
    caller waits for one."""

    def __init__(self, ping: Callable[[], Awaitable[None]], monotonic: Callable[[], float]) -> None:
        self._ping = ping
        self._monotonic = monotonic
        self._unanswered_since: float | None = None
        self._ping_task: asyncio.Task[None] | None = None

    def silent_for(self) -> float:
        """Seconds since the first ping that was sent after the database's last answer; 0 if the database has answered
        every ping. Also sends the next ping, unless the last one is still unanswered."""
        now = self._monotonic()
        if self._unanswered_since is None:
            self._unanswered_since = now
        if self._ping_task is None or self._ping_task.done():
            self._ping_task = asyncio.get_running_loop().create_task(self._ask(), name="fairlead-database-probe")
        return now - self._unanswered_since

    async def _ask(self) -> None:
        try:
            await self._ping()
        except Exception as error:
            log.debug("the database does not answer: %s", error)
        else:
            self._unanswered_since = None


class LostLeadership(Exception):
    """This process no longer leads: it could not renew the leader's lease, or it gave the lease up."""


class Leader:
    """Makes this process the leader of one shard when no other manager leads, and runs the leader's loops while it
    leads. Without a `leadership` this process always leads, because the dispatcher is in its own memory."""

    def __init__(
        self,
        shard: str,
        leadership: Leadership | None,
        *,
        scopes: EnsureBuiltLoop,
        manager: LoopRunner,
        group_commit: GroupCommit,
        clock: Clock,
    ) -> None:
        self._shard = shard
        self._leadership = leadership
        self._group_commit = group_commit
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
                    await self._lead(self._leadership)
                self._outage.ended()
            except Unavailable as error:
                self._outage.began(error)
            except Exception:
                log.exception("leading %s failed; standing for election again", self._shard)
            await self._leadership.wait_to_retry(LOOK_EVERY * (0.5 + self._clock.randomness()))

    async def resign(self) -> None:
        if self._leadership is not None and self.term is not None:
            try:
                await self._leadership.resign()
            except Unavailable as error:
                log.info("could not resign (%s); the lease will expire", error)

    async def _elected(self, leadership: Leadership) -> bool:
        if await leadership.leader() is not None:
            return False
        outcome = await self._group_commit.write(RaiseEpoch(f"leader:{self._shard}"))
        assert isinstance(outcome, Done)
        self.term = int(outcome.value)
        return await leadership.acquire(self.term)

    async def _lead(self, leadership: Leadership) -> None:
        log.info("leading %s, term %d", self._shard, self.term)
        self.leading = True
        # Not a task group: before Python 3.13, one that is cancelled while a child fails swallows the cancellation.
        tasks = [asyncio.create_task(self._keep(leadership)), asyncio.create_task(self._manage())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.leading = False
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self.term = None
        try:
            for task in done:
                task.result()
        except LostLeadership as lost:
            log.warning("no longer leading %s: %s", self._shard, lost)

    async def _keep(self, leadership: Leadership) -> None:
        """Renew the leader's lease, and raise LostLeadership when that fails. Also give the lease up if the database
        does not answer or the loops keep failing: such a leader would keep all other managers from leading."""
        database = DatabaseProbe(self._group_commit.ping, self._clock.monotonic)
        held_at = self._clock.monotonic()
        await asyncio.sleep(leadership.ttl / 3)
        while True:
            asked_at = self._clock.monotonic()
            try:
                if not await leadership.renew():
                    raise LostLeadership("another manager holds the lease, or Redis has lost it")
                held_at = asked_at
            except Unavailable as error:
                if self._clock.monotonic() - held_at > leadership.ttl:
                    raise LostLeadership(f"the lease could not be renewed: {error}") from None
            if reason := self._cannot_work(database.silent_for(), leadership.ttl):
                # Resign before the loops have ended: they may be waiting for a database that never answers.
                self.leading = False
                await self.resign()
                raise LostLeadership(reason)
            if held_at == asked_at:
                await asyncio.sleep(leadership.ttl / 3)
            else:
                await leadership.wait_to_retry(leadership.ttl / 3)

    def _cannot_work(self, silence: float, patience: float) -> str | None:
        if silence > patience:
            return f"the database has not answered for {silence:.1f} s"
        failing = self.manager.failing(LOOPS_WORK_WITHIN)
        return f"loops have failed for {LOOPS_WORK_WITHIN:g} s: {', '.join(failing)}" if failing else None

    async def _manage(self) -> None:
        """Run the loops of the leader. The first of them builds the queue; the others start after that. Before that
        they would find errors, because the queue is not complete."""
        outage = Outage(log, f"building the queue of {self._shard}")
        while not self.scopes.built:
            try:
                await self.scopes.tick(self._clock.now())
                outage.ended()
            except Unavailable as error:
                outage.began(error)
            except AlreadyDispatching:
                raise  # another process dispatches from memory: this one must exit
            except Exception:
                log.exception("building the queue of %s failed; trying again", self._shard)
            if not self.scopes.built:
                await asyncio.sleep(BACKOFF)
        await self.manager.run()
