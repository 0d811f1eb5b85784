"""The slots that callers of this process have: kept alive, given back, and lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.dispatch.port import Lease, Release
from fairlead.domain import transitions, turns
from fairlead.domain.config import Config, ServiceConfig
from fairlead.domain.job import Job
from fairlead.domain.limits import Rules
from fairlead.domain.processes import process_of
from fairlead.runtime.clock import Clock
from fairlead.runtime.record import Recorder
from fairlead.runtime.turns.tickets import Ticket, Tickets
from fairlead.store.port import Store

log = logging.getLogger(__name__)

LEAVE_WITHIN = 3.0
"""Who was told that its slot is lost has so many seconds to leave before the slot is given to another."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Leases that this process keeps alive, by the name that they were claimed under."""

    name: str
    names: Sequence[str]
    lost: Callable[[frozenset[str]], None]

    def leases(self) -> Sequence[str]:
        return self.names


class Holding:
    """Of one line."""

    def __init__(
        self,
        process: str,
        config: Config,
        *,
        tickets: Tickets,
        store: Store,
        recorder: Recorder,
        clock: Clock,
        rules: Callable[[], Rules],
    ) -> None:
        self._process = process
        self._config = config
        self._tickets = tickets
        self._store = store
        self._recorder = recorder
        self._clock = clock
        self._rules = rules
        self._held: dict[str, Ticket] = {}
        self._released: list[Release] = []
        self._bell = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_lease: Callable[[], None] = lambda: None
        """Called before there is something to renew."""

    def scope_of(self, service: str) -> str:
        return self._rules().services[service].scope

    def timeout_of(self, service: str) -> float:
        """How long a slot may be kept."""
        config = self._config.services.get(service)
        return ServiceConfig.model_fields["timeout"].default if config is None else config.timeout

    def hold(self, ticket: Ticket, lease: Lease, job: Job, *, within: float) -> None:
        """From now on, and for so many seconds at most."""
        self.on_lease()
        self._tickets.keep(ticket)
        ticket.hold(lease, job)
        self._held[lease.name] = ticket
        self._tickets.changed(ticket)
        ticket.timer = asyncio.get_running_loop().call_later(within, self._overran, ticket, job)

    def _lose(self, name: str) -> None:
        """The dispatcher says that this lease is nobody's any more."""
        if (ticket := self._held.pop(name, None)) is not None:
            log.warning("turn %s: the lease %s is lost", ticket.id, name)
            ticket.lose("the lease expired, or was taken back")

    def stop(self, turn_id: str, run: int | None = None) -> None:
        """The turn was cancelled, has expired or was taken back: its caller is to leave. Who waits looks itself."""
        ticket = self._tickets.get(turn_id)
        if ticket is None:
            return
        if ticket.lease is None:
            if run is None:
                self._tickets.forget(ticket)
        elif ticket.lease.name in self._held and run in (None, ticket.job.run):
            self._stop(ticket, "the turn was ended by somebody else")

    def _stop(self, ticket: Ticket, why: str) -> None:
        """Its slot stays taken until it has left, or should have."""
        if ticket.held and not ticket.leaving:
            ticket.lose(why)
            asyncio.get_running_loop().call_later(LEAVE_WITHIN, self.leave, ticket)

    def _overran(self, ticket: Ticket, job: Job) -> None:
        if ticket.held and ticket.job is job:
            self._spawn(self._end_overrun(ticket, job))

    async def _end_overrun(self, ticket: Ticket, job: Job) -> None:
        now, error = self._clock.now(), turns.overran(job, self.timeout_of(job.service))
        ticket.why_lost = error["message"]
        await self._recorder.record(job, transitions.end_turn(job, "time_out", error, now=now), now)
        self._stop(ticket, error["message"])

    async def stop_strays(self) -> None:
        """Those that somebody else has ended or adopted: the message that said so may have been lost."""
        mine = {ticket.id: ticket for ticket in self._held.values() if ticket.held}
        jobs = await self._store.get_jobs(list(mine)) if mine else {}
        for turn_id, ticket in mine.items():
            job = jobs.get(turn_id)
            if job is not None and job.run == ticket.job.run and process_of(job.turn or "") != self._process:
                self.drop(ticket)
            elif job is None or job.run != ticket.job.run:
                self.stop(turn_id, ticket.job.run)

    def drop(self, ticket: Ticket) -> None:
        """Another process has it from now on, and renews its lease."""
        if ticket.lease is not None:
            self._held.pop(ticket.lease.name, None)
        self._tickets.forget(ticket)

    def leave(self, ticket: Ticket, *, failed: bool | None = None) -> None:
        """The caller is done: the slot goes to the next."""
        self._tickets.forget(ticket)
        lease = ticket.lease
        if lease is not None and self._held.pop(lease.name, None) is not None:
            verdict = failed if lease.region is not None else None
            self._released.append(Release(lease.name, lease.service, scope=lease.scope, failed=verdict))
            self._bell.set()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("handing over a turn failed; its lease is left to expire", exc_info=error)
