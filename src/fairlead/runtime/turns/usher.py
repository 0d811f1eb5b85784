"""The usher: claims slots for those who wait in this process, and brings every slot to the caller whose turn it is.

Who is next may be another process's caller: the slot is handed over to that process, which accepts it by writing the
start. Nobody waits long for that: what is not accepted within `ACCEPT_WITHIN` seconds is ended, and the slot goes to
the next in line. Of acceptance and end each requires the row as it was offered, so there is only ever one of them.

A worker that is granted a turn of a service that it executes hands it to the usher too. A lease is renewed under the
name that it was claimed by, whoever has it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

from fairlead.dispatch.port import Claim, Dispatcher, Lease, Release
from fairlead.domain import transitions, turns
from fairlead.domain.config import Config
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.limits import Rules
from fairlead.domain.processes import process_of, worker_name
from fairlead.domain.transitions import Adopt, Start
from fairlead.domain.turns import ACCEPT_WITHIN
from fairlead.errors import Unavailable
from fairlead.runtime import events
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import Event, Hub
from fairlead.runtime.outage import Outage
from fairlead.runtime.record import Recorder
from fairlead.runtime.turns.holding import Holder, Holding
from fairlead.runtime.turns.tickets import Ticket, Tickets
from fairlead.store.journal import Journal
from fairlead.store.port import Started, Store

log = logging.getLogger(__name__)

POOL = "-turns"
"""No pool of workers can have this name."""
WAVE = 250
SWEEP_EVERY = 1.0
RETRY_EVERY = 0.5
SAY_AGAIN_AFTER = 1.0


class Usher(Holding):
    """Of one line. `connect` gives a dispatcher of its own to claim from; `send` brings a lease to another process, and
    is None where there is no other."""

    def __init__(
        self,
        process: str,
        config: Config,
        *,
        tickets: Tickets,
        store: Store,
        journal: Journal,
        recorder: Recorder,
        hub: Hub,
        clock: Clock,
        rules: Callable[[], Rules],
        executed: frozenset[str],
        connect: Callable[[], Awaitable[Dispatcher]],
        send: Callable[[str, Lease], None] | None,
    ) -> None:
        super().__init__(process, config, tickets=tickets, store=store, recorder=recorder, clock=clock, rules=rules)
        self._name = worker_name(process, POOL)
        self._journal = journal
        self._hub = hub
        self._executed = executed
        self._connect = connect
        self._send = send
        self._dispatcher: Dispatcher | None = None
        self._offered: dict[str, Lease] = {}
        """Slots that were claimed here and are not accepted yet."""
        self._waits_for: frozenset[str] = frozenset()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._outage = Outage(log, "claiming turns")
        self.on_adopted: Callable[[str, str], None] = lambda process, turn_id: None
        """Called with a process that owned a turn, and the turn, when this one owns it."""

    # ------------------------------------------------------------ claiming

    def ring(self) -> None:
        """There may be a slot to claim, or one to give back."""
        self._bell.set()

    def wake(self) -> None:
        """A lane has turned runnable. Mostly nobody waits here, and workers are woken all the time."""
        if self._tickets.wanted:
            self._bell.set()

    async def run(self) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            try:
                while await self._exchange():
                    pass
                self._outage.ended()
            except Exception as error:
                if not isinstance(error, Unavailable):
                    log.exception("the dispatcher could not be asked for turns")
                self._outage.began(error)
                await asyncio.sleep(RETRY_EVERY)
                self._bell.set()

    async def sweep(self) -> None:
        """The safety net under the wake-ups, once for all who wait here."""
        while True:
            await asyncio.sleep(SWEEP_EVERY)
            if self._tickets.wanted:
                self._bell.set()

    async def _exchange(self) -> bool:
        """Give back what is left, and claim for those who wait. True: there may be more.

        For a service that nobody executes, this process is among those who are woken. One that has workers is theirs:
        they bring turns here, and it is only asked now and then, should none be alive."""
        releases, self._released = self._released, []
        known = self._rules().services
        wanted = {} if self._journal.full else {name: n for name, n in self._tickets.wanted.items() if name in known}
        own = frozenset(wanted) - self._executed
        shared = frozenset(wanted) & self._executed
        if not (own or shared or self._waits_for or releases):
            return False
        if self._dispatcher is None:
            self._dispatcher = await self._connect()
        leases: list[Lease] = []
        try:
            if left := self._waits_for - own:
                # Nobody is to count on this process there, or a wake would be in vain.
                await self._dispatcher.exchange(self._claim(left, {}), releases)
                releases = []
            self._waits_for = own
            if own:
                leases += await self._dispatcher.exchange(self._claim(own, wanted), releases)
                releases = []
            if shared:
                leases += await self._dispatcher.exchange(self._claim(shared, wanted, waits=False), releases)
                releases = []
            if releases:
                await self._dispatcher.release(releases)
                releases = []
        finally:
            self._released[:0] = releases  # releasing twice is harmless
            for lease in leases:
                self.take(lease)
        return bool(leases)

    def _claim(self, services: frozenset[str], wanted: dict[str, int], *, waits: bool = True) -> Claim:
        room = min(WAVE, sum(wanted.get(name, 0) for name in services))
        return Claim(self._name, room, services, turns=True, waits=waits)

    async def start_if_first(self, ticket: Ticket) -> bool:
        """Take a slot for this one, if one is free and nobody is before it: at once, or not at all."""
        if ticket.offered is not None:
            return await self.accept(ticket, ticket.offered)
        if self._dispatcher is None:
            self._dispatcher = await self._connect()
        claim = Claim(self._name, 1, frozenset({ticket.service}), only=ticket.id, waits=False)
        for lease in await self._dispatcher.exchange(claim):
            self._keep(lease)
            return await self.accept(ticket, lease)
        return False

    # ------------------------------------------------------------ handing over

    def take(self, lease: Lease) -> None:
        """A slot was granted to a turn: it has this long to be taken."""
        self._keep(lease)
        self._timers[lease.name] = asyncio.get_running_loop().call_later(ACCEPT_WITHIN, self._overdue, lease)
        ticket = self._tickets.get(lease.job_id)
        if ticket is not None:
            self.offer(ticket, lease)
        else:
            self._spawn(self._or_expire(lease, self._hand_over(lease)))

    def _keep(self, lease: Lease) -> None:
        self.on_lease()
        self._offered[lease.name] = lease

    def offer(self, ticket: Ticket, lease: Lease) -> None:
        """To a caller of this process: at once if it waits, else it may ask soon. A later offer is the one that counts:
        the line may have been built anew since."""
        if ticket.lease is not None or (ticket.offered is not None and ticket.offered.name == lease.name):
            return
        ticket.offered = lease
        self._tickets.changed(ticket)
        if ticket.waiters:
            self._spawn(self._accept(ticket, lease))

    async def _accept(self, ticket: Ticket, lease: Lease) -> None:
        await self.accept(ticket, lease)

    async def accept(self, ticket: Ticket, lease: Lease) -> bool:
        """Write the start. False: it has moved on meanwhile, and the slot is given back by whoever claimed it."""
        if ticket.offered is not lease:
            ticket.offered = lease
            self._tickets.changed(ticket)
        timeout = self.timeout_of(ticket.service)
        start = Start(lease.job_id, lease.step, lease.run, lease.name, lease.scope, lease.worker, timeout, lease.region)
        try:
            outcome = await self._journal.write(start)
        except Exception as error:
            # Whether it was written is not known. Unrenewed, the lease expires, and recovery settles it.
            log.warning("turn %s could not be started (%s); its slot is left to expire", ticket.id, error)
            self._forget_offer(ticket, lease)
            self._settled(lease)
            return False
        if not isinstance(outcome, Started):
            self._forget_offer(ticket, lease)
            if lease.name in self._offered:
                self._give_back(lease, refund=True)
            return False
        job = outcome.job
        if process_of(job.turn or "") != self._process:
            job = await self._take_back(job)
        self._settled(lease)
        self.hold(ticket, lease, job, within=timeout)
        self._recorder.observations.started(job)
        self._announce(job)
        return True

    async def _take_back(self, job: Job) -> Job:
        """Another process has adopted it in this very moment. Who has the slot is its owner."""
        owner = turns.owner_at(self._process, job)
        await self._journal.write(Adopt(job.id, job.run, owner))
        self.on_adopted(process_of(job.turn or ""), job.id)
        return replace(job, turn=owner)

    def _forget_offer(self, ticket: Ticket, lease: Lease) -> None:
        if ticket.offered is lease:
            ticket.offered = None
            self._tickets.changed(ticket)

    async def _hand_over(self, lease: Lease) -> None:
        """To the process whose caller it is; and again, as it may not have been heard, or its caller be at another."""
        while lease.name in self._offered:
            job = (await self._store.get_jobs([lease.job_id])).get(lease.job_id)
            if job is None or job.turn is None or not _is_offered(lease, job):
                await self._settle(lease)
                return
            owner = process_of(job.turn)
            if (ticket := self._tickets.get(job.id)) is not None:
                self.offer(ticket, lease)
            elif owner != self._process and self._send is not None:
                self._send(owner, lease)
            elif not turns.is_outside(job.turn):
                # The caller was here, or in a process that used this line before: it is there no more.
                await self._end_offered(lease, job, turns.waiter_gone(job))
                return
            await asyncio.sleep(SAY_AGAIN_AFTER)

    async def _or_expire(self, lease: Lease, dealing: Coroutine[Any, Any, None]) -> None:
        """Without the truth nothing can be done with it: unrenewed, it expires, and recovery settles it."""
        try:
            await dealing
        except Exception as error:
            log.warning("turn %s: its slot is left to expire (%s)", lease.job_id, error)
            self._settled(lease)

    def _overdue(self, lease: Lease) -> None:
        self._timers.pop(lease.name, None)
        if lease.name in self._offered:
            self._spawn(self._or_expire(lease, self._settle(lease)))

    async def _settle(self, lease: Lease) -> None:
        """Accepted by another process, or not by anybody."""
        job = (await self._store.get_jobs([lease.job_id])).get(lease.job_id)
        if job is not None and job.status is JobStatus.RUNNING and job.lease == lease.name:
            self._settled(lease)
        elif job is None or not _is_offered(lease, job) or await self._is_of_another_epoch(lease):
            self._give_back(lease, refund=True)
        else:
            await self._end_offered(lease, job, turns.not_taken(job))

    async def _is_of_another_epoch(self, lease: Lease) -> bool:
        """The line was built anew: it is in line again, and this offer counts no more."""
        epoch = (await self._store.epochs()).get(lease.scope)
        return epoch is not None and lease.name.partition(":")[0] != str(epoch.number)

    async def _end_offered(self, lease: Lease, job: Job, error: dict[str, Any]) -> None:
        now = self._clock.now()
        if await self._recorder.record(job, transitions.end_turn(job, "not_taken", error, now=now), now):
            log.info("turn %s: %s", job.id, error["message"])
            if (ticket := self._tickets.get(job.id)) is not None:
                self._tickets.forget(ticket)
            self._give_back(lease, refund=True)
        else:
            await self._settle(lease)  # it was accepted in this very moment, or cancelled

    def _announce(self, job: Job) -> None:
        """Those who watch it hear it, and so does whoever waits for it."""
        details = {"service": job.service, "step": 1, "total": 1, "attempt": job.attempt}
        text = f"the slot of {job.service} is taken"
        self._hub.publish(Event(events.STEP_START, job.id, self._clock.now(), text, details), job.user_id)

    # ------------------------------------------------------------ leases

    def __iter__(self) -> Iterator[Holder]:
        """What the heartbeat renews. Called from its thread."""
        by_name: dict[str, list[str]] = {}
        for lease in list(self._offered.values()):
            by_name.setdefault(lease.worker, []).append(lease.name)
        for ticket in list(self._held.values()):
            if (held := ticket.lease) is not None and held.name not in self._offered:
                by_name.setdefault(held.worker, []).append(held.name)
        return iter([Holder(name, leases, self._lost) for name, leases in by_name.items()])

    def _lost(self, names: frozenset[str]) -> None:
        for name in names:
            if (lease := self._offered.get(name)) is not None:
                self._settled(lease)
            self._lose(name)

    def _give_back(self, lease: Lease, *, refund: bool) -> None:
        if lease.name in self._offered:
            self._settled(lease)
            self._released.append(Release(lease.name, lease.service, refund, lease.scope))
            self._bell.set()

    def _settled(self, lease: Lease) -> None:
        """It is no longer on offer."""
        self._offered.pop(lease.name, None)
        if (timer := self._timers.pop(lease.name, None)) is not None:
            timer.cancel()

    # ------------------------------------------------------------ stopping

    async def close(self) -> None:
        """What is on offer is left to expire; what was left is given back, if the dispatcher can be told soon."""
        for timer in self._timers.values():
            timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)
        if self._released and self._dispatcher is not None:
            try:
                async with asyncio.timeout(1.0):
                    await self._dispatcher.release(self._released)
            except (Unavailable, TimeoutError) as error:
                log.info("slots could not be given back (%s); they are when their leases expire", error)


def _is_offered(lease: Lease, job: Job) -> bool:
    """Whether the truth is still as it was when the slot was granted."""
    return job.status is JobStatus.PENDING and job.run == lease.run
