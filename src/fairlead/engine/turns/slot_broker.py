"""The slot broker: claims slots for callers in this process, and passes every slot that was granted to a turn on to the
turn's caller.

The caller may be connected to another process. The slot is then offered to that process, which accepts it by writing
the start of the turn. If the slot is not accepted within `ACCEPT_WITHIN` seconds, the turn is set aside, and the slot
goes to the next job. Both writes require that the row has not changed since the slot was granted, so only one of them
succeeds.

A worker may be granted the slot of a turn too, if it executes the same service. It passes the slot to the broker. Every
process renews a lease under the worker name that claimed the lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

from fairlead.dispatch.port import Claim, Dispatcher, Lease, Release
from fairlead.domain import events, turns
from fairlead.domain.events import Event
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.processes import process_of, worker_name
from fairlead.domain.transitions import Adopt
from fairlead.domain.turns import ACCEPT_WITHIN
from fairlead.engine.claim_loop import CLAIM_BATCH, ClaimLoop, start_of
from fairlead.engine.parts import EngineParts, RulesRef, ShardSignals
from fairlead.engine.turns.held_slots import HeldSlots, SlotHolder
from fairlead.engine.turns.waiters import Waiter
from fairlead.log_fields import about
from fairlead.store.port import Started, TurnedBack

log = logging.getLogger("fairlead.turns")

POOL = "-turns"
"""Takes the place of a worker pool's name in the broker's worker name. No worker pool can have this name."""
OFFER_AGAIN_AFTER = 1.0
CLOSE_WITHIN = 2.0


class SlotBroker(HeldSlots):
    """Claims slots from the dispatcher of one shard for the turns that wait in this process, and passes each slot to
    the turn's caller. `connect` returns that dispatcher."""

    sweep_every = 1.0

    def __init__(
        self,
        parts: EngineParts,
        rules: RulesRef,
        shard: ShardSignals,
        connect: Callable[[], Awaitable[Dispatcher]],
    ) -> None:
        super().__init__(parts, rules, shard)
        self._name = worker_name(parts.process, POOL)
        self._group_commit = parts.group_commit
        self._hub = parts.hub
        self._executed = frozenset(parts.config.services) - parts.config.turns_only
        self._connect = connect
        self._dispatcher: Dispatcher | None = None
        self.claims = ClaimLoop(self, "claiming turns")
        self._offered: dict[str, Lease] = {}
        """The slots that this process claimed and that are not accepted yet."""
        self._waits_for: frozenset[str] = frozenset()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # ------------------------------------------------------------ claiming

    def wake_all(self) -> None:
        """Claim, because a lane has become runnable. Does nothing if no caller in this process waits: wakeups are
        frequent, and usually no caller waits."""
        if self._waiters.wanted:
            self.claims.wake()

    async def exchange(self, releases: list[Release]) -> tuple[int, bool]:
        """Release slots and claim new ones for the waiting callers.

        For services that no worker in this process executes, the broker registers for wakeups. The slots of other
        services are claimed by workers, which pass the slots of turns to the broker. For these services the broker
        itself claims only now and then, in case the workers cannot claim.
        """
        if releases:
            self._shard.releasing(releases)
        services = self._rules.current.services
        wanted = {} if self._group_commit.full else {n: c for n, c in self._waiters.wanted.items() if n in services}
        own = frozenset(wanted) - self._executed
        shared = frozenset(wanted) & self._executed
        if not (own or shared or self._waits_for or releases):
            return 0, False
        if self._dispatcher is None:
            self._dispatcher = await self._connect()
        leases: list[Lease] = []
        try:
            if left := self._waits_for - own:
                # Deregister from the wakeups of these services: no caller waits for them any more.
                await self._exchange(self._claim(left, {}), releases)
            self._waits_for = own
            if own:
                leases += await self._exchange(self._claim(own, wanted), releases)
            if shared:
                leases += await self._exchange(self._claim(shared, wanted, waits=False), releases)
            if releases:
                await self._dispatcher.release(releases)
        finally:
            for lease in leases:
                self.take(lease)
        return len(leases), bool(leases)

    async def _exchange(self, claim: Claim, releases: list[Release]) -> list[Lease]:
        assert self._dispatcher is not None
        leases = await self._dispatcher.exchange(claim, list(releases))
        releases.clear()
        return leases

    def _claim(self, services: frozenset[str], wanted: dict[str, int], *, waits: bool = True) -> Claim:
        limit = min(CLAIM_BATCH, sum(wanted.get(name, 0) for name in services))
        return Claim(self._name, limit, services, turns=True, waits=waits)

    async def start_if_first(self, waiter: Waiter) -> bool:
        """Take a slot for this turn if one is free and no job is ahead of the turn. Returns False otherwise, without
        waiting."""
        if waiter.offered is not None and await self.accept(waiter, waiter.offered):
            return True
        if self._dispatcher is None:
            self._dispatcher = await self._connect()
        claim = Claim(self._name, 1, frozenset({waiter.service}), only=waiter.id, waits=False)
        for lease in await self._dispatcher.exchange(claim):
            self._keep(lease)
            return await self.accept(waiter, lease)
        return False

    # ------------------------------------------------------------ offering

    def take(self, lease: Lease) -> None:
        """Offer this slot, which was granted to a turn, to the turn's caller. The offer ends after `ACCEPT_WITHIN`
        seconds."""
        self._keep(lease)
        self._timers[lease.name] = asyncio.get_running_loop().call_later(ACCEPT_WITHIN, self._overdue, lease)
        waiter = self._waiters.get(lease.job_id)
        if waiter is not None and not waiter.elsewhere:
            self.offer(waiter, lease)
            if not waiter.callers and waiter.adopted_from is not None:
                self._shard.offer_turn(waiter.adopted_from, lease)
        else:
            self._spawn(self._or_expire(lease, self._hand_over(lease)))

    def _keep(self, lease: Lease) -> None:
        self._shard.lease_acquired()
        self._offered[lease.name] = lease

    def offer(self, waiter: Waiter, lease: Lease) -> None:
        """Offer a slot to a turn in this process, and accept it at once if a caller waits for it. An offer replaces an
        earlier one, because the queue may have been rebuilt since."""
        if waiter.lease is not None or (waiter.offered is not None and waiter.offered.name == lease.name):
            return
        waiter.offered = lease
        self._waiters.changed(waiter)
        if waiter.callers:
            self._spawn(self._accept(waiter, lease))

    async def _accept(self, waiter: Waiter, lease: Lease) -> None:
        await self.accept(waiter, lease)

    async def accept(self, waiter: Waiter, lease: Lease) -> bool:
        """Accept an offered slot by writing the start of the turn. Returns False if the turn has moved on, or if the
        start could not be written. In the first case the process that claimed the slot releases it, in the second case
        the lease expires."""
        if waiter.offered is not lease:
            waiter.offered = lease
            self._waiters.changed(waiter)
        timeout = self.timeout_of(waiter.service)
        start = start_of(lease, lease.worker, timeout)
        try:
            outcome = await self._group_commit.write(start)
        except Exception as error:
            # It is unknown whether the start was written. The lease is not renewed; when it expires, recovery decides.
            log.warning("turn %s could not be started (%s); its lease will expire", waiter.id, error)
            self._forget_offer(waiter, lease)
            self._settled(lease)
            return False
        if not isinstance(outcome, Started):
            if isinstance(outcome, TurnedBack):
                self._recorder.publish_all(outcome.moves, self._clock.now())
            self._forget_offer(waiter, lease)
            if lease.name in self._offered:
                self._release(lease)
            return False
        job = outcome.job
        if process_of(job.turn or "") != self._process:
            job = await self._take_back(job)
        self._settled(lease)
        self.hold(waiter, lease, job, within=timeout)
        self._recorder.counters.started(job)
        log.info("turn %s of %s: started", job.id, job.service, extra=about(job))
        self._announce(job)
        return True

    async def _take_back(self, job: Job) -> Job:
        """Make this process the owner of the turn again, if another process adopted the turn while this process
        accepted the slot: the process that holds the slot must be the owner."""
        owner = turns.owner_at(self._process, job)
        await self._group_commit.write(Adopt(job.id, job.run, owner))
        self._shard.turn_adopted_here(process_of(job.turn or ""), job.id)
        return replace(job, turn=owner)

    def _forget_offer(self, waiter: Waiter, lease: Lease) -> None:
        if waiter.offered is lease:
            waiter.offered = None
            self._waiters.changed(waiter)

    async def _hand_over(self, lease: Lease) -> None:
        """Offer the slot to the process that the turn's caller is connected to. The offer is repeated, because a
        message may be lost, or the caller may connect to another process. A call that waits in this process gets the
        slot if the process that owns the turn does not accept it at once."""
        asked = False
        while lease.name in self._offered:
            job = (await self._store.get_jobs([lease.job_id])).get(lease.job_id)
            if job is None or job.turn is None or not _is_offered(lease, job):
                await self._settle(lease)
                return
            owner = process_of(job.turn)
            waiter = self._waiters.get(job.id)
            if waiter is not None and (asked or owner == self._process or not waiter.elsewhere):
                self.offer(waiter, lease)
            elif (
                not turns.is_outside(job.turn)
                if owner == self._process
                else not self._shard.offer_turn(owner, lease)  # only this process can have callers
            ):
                await self._set_aside(lease, job, turns.waiter_gone(job))
                return
            asked = True
            await asyncio.sleep(OFFER_AGAIN_AFTER)

    async def _or_expire(self, lease: Lease, handling: Coroutine[Any, Any, None]) -> None:
        """Await `handling`. If that raises, stop renewing the lease: it expires, and recovery decides what happens to
        the turn."""
        try:
            await handling
        except Exception as error:
            log.warning("turn %s: its lease will expire (%s)", lease.job_id, error)
            self._settled(lease)

    def _overdue(self, lease: Lease) -> None:
        self._timers.pop(lease.name, None)
        if lease.name in self._offered:
            self._spawn(self._or_expire(lease, self._settle(lease)))

    async def _settle(self, lease: Lease) -> None:
        """End the offer of this slot, depending on the turn's row: forget the slot if it was accepted, and release it
        if the turn has moved on or the queue was rebuilt. Otherwise set the turn aside."""
        job = (await self._store.get_jobs([lease.job_id])).get(lease.job_id)
        if job is not None and job.status is JobStatus.RUNNING and job.lease == lease.name:
            self._settled(lease)
        elif job is None or not _is_offered(lease, job) or await self._is_of_another_epoch(lease):
            self._release(lease)
        else:
            await self._set_aside(lease, job, turns.not_taken(job))

    async def _is_of_another_epoch(self, lease: Lease) -> bool:
        """Whether the queue was rebuilt since this slot was granted. If so, the turn is queued again, and the offer is
        void."""
        epoch = (await self._store.epochs()).get(lease.scope)
        return epoch is not None and lease.name.partition(":")[0] != str(epoch.number)

    async def _set_aside(self, lease: Lease, job: Job, error: dict[str, Any]) -> None:
        """Set aside a turn whose caller is absent. The slot goes to the next job, and the turn keeps its place in the
        queue for a while."""
        now = self._clock.now()
        move = turns.set_aside(job, error, now=now, grace=self._config.turns.grace)
        if await self._recorder.record(job, move, now):
            if (waiter := self._waiters.get(job.id)) is not None:
                self._waiters.forget(waiter)
            self._release(lease)
        else:
            await self._settle(lease)  # it was accepted or cancelled at the same moment

    def _announce(self, job: Job) -> None:
        """Publish to watchers and waiting callers that the turn has its slot."""
        details = {**events.step_fields(job.service, 0, 1), "attempt": job.attempt}
        text = f"the slot of {job.service} is taken"
        self._hub.publish(Event(events.STEP_START, job.id, self._clock.now(), text, details), job.user_id)

    # ------------------------------------------------------------ leases

    def __iter__(self) -> Iterator[SlotHolder]:
        """The leases that the heartbeat renews, grouped by worker name. Called from the heartbeat's thread."""
        by_name: dict[str, list[str]] = {}
        for lease in list(self._offered.values()):
            by_name.setdefault(lease.worker, []).append(lease.name)
        for waiter in list(self._held.values()):
            if (held := waiter.lease) is not None and held.name not in self._offered:
                by_name.setdefault(held.worker, []).append(held.name)
        return iter([SlotHolder(name, leases, self._lost) for name, leases in by_name.items()])

    def _lost(self, names: frozenset[str]) -> None:
        for name in names:
            if (lease := self._offered.get(name)) is not None:
                self._settled(lease)
            self._lose(name)

    def _release(self, lease: Lease) -> None:
        if lease.name in self._offered:
            self._settled(lease)
            self.claims.release(Release(lease.name, lease.service, True, lease.scope))

    def _settled(self, lease: Lease) -> None:
        """Forget an offered slot that was accepted, released or lost."""
        self._offered.pop(lease.name, None)
        if (timer := self._timers.pop(lease.name, None)) is not None:
            timer.cancel()

    # ------------------------------------------------------------ stopping

    async def close(self) -> None:
        """Stop offering slots; the leases of offered slots expire. Slots that callers have left are released, if the
        dispatcher answers soon."""
        for timer in self._timers.values():
            timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_WITHIN)
        if self._dispatcher is not None:
            await self.claims.release_rest(self._dispatcher)


def _is_offered(lease: Lease, job: Job) -> bool:
    """Whether the turn still waits, in the same run as when the slot was granted."""
    return job.status is JobStatus.PENDING and job.run == lease.run
