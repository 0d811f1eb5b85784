"""What callers ask of turns: `app.turns`. All that `async with app.turn(...)`, the gateway and the requests of
`fairlead.turning` do is done by these."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Any, Protocol

from uuid_utils import uuid7

from fairlead.domain import transitions, turns
from fairlead.domain.adapt import ending_of
from fairlead.domain.config import Config, known
from fairlead.domain.job import Job, JobStatus, StepResult
from fairlead.domain.processes import process_of
from fairlead.domain.retry import EXCEPTION, Failure
from fairlead.domain.transitions import Adopt, Move, Submit
from fairlead.domain.wire import to_json
from fairlead.errors import NotFound, TurnLost, Unavailable, UnknownFeature, WrongState
from fairlead.runtime import audit, events
from fairlead.runtime.audit import Act, act_of
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import Dismissed, Hub, Subscription, TooSlow
from fairlead.runtime.operations import Build, Operations, check_id
from fairlead.runtime.process import Process
from fairlead.runtime.rebuild import lease_of
from fairlead.runtime.record import Recorder
from fairlead.runtime.submission import Submission, check
from fairlead.runtime.turns.checks import patience_of, result_json, user_of
from fairlead.runtime.turns.looking import Looking
from fairlead.runtime.turns.telling import OnPosition, Teller
from fairlead.runtime.turns.tickets import Ticket, Tickets
from fairlead.runtime.turns.usher import Usher
from fairlead.runtime.turns.view import TurnView
from fairlead.store.journal import Journal
from fairlead.store.port import Accepted, Done, Store

log = logging.getLogger(__name__)

TRIES = 20
RECORD_WITHIN = 30.0


class Settle(Protocol):
    """Decides who goes first, as for jobs."""

    async def __call__(self, submit: Submit, *, lowers_only: bool) -> Submit: ...


class Turns(Looking):
    """`process` gives what this process has of the line, and starts it if need be. `settle` decides who goes first."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        recorder: Recorder,
        operations: Operations,
        hub: Hub,
        clock: Clock,
        *,
        config: Callable[[], Config],
        tickets: Tickets,
        settle: Settle,
        process: Callable[[], Awaitable[Process]],
    ) -> None:
        super().__init__(store, config=config, tickets=tickets, process=process)
        self._journal = journal
        self._recorder = recorder
        self._operations = operations
        self._hub = hub
        self._clock = clock
        self._settle = settle
        self._tasks: set[asyncio.Task[Any]] = set()
        self.process: Process | None = None
        """What this process has of the line, while it has it."""

    # ------------------------------------------------------------ into the line

    async def open(
        self,
        service: str,
        user_id: object = None,
        *,
        priority: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        input: Mapping[str, Any] | None = None,
        cost: float | None = None,
        deadline: Any = None,
        wait_timeout: float | None = None,
        idempotency_key: str | None = None,
        body_hash: str | None = None,
        lowers_only: bool = False,
        outside: bool = False,
    ) -> TurnView:
        """Take a place in line. Committed when this returns, and this process's: no slot is claimed for it before
        somebody waits (`wait`) or asks (`start_if_first`). `outside`: its caller does not end with this process."""
        config, now = self._config(), self._clock.now()
        user = user_of(user_id)
        if service not in config.services:
            raise UnknownFeature(f"no service is called {service!r}; {known(config.services)}", pointer="/service")
        patience = patience_of(wait_timeout)
        wanted = Submission(service, input, user, priority, None, None, deadline, cost, metadata)
        submit = check(wanted, config, now=now, idempotency_key=idempotency_key, body_hash=body_hash, turn=True)
        process = await self._running()
        owner, new_id = turns.owner(process.name, outside=outside), turns.turn_id(str(uuid7()))
        job = replace(submit.job, id=new_id, turn=owner, feature_name=service)
        if patience is not None:
            # In the row, as its caller may go to another process.
            job = replace(job, timer_at=min(now + patience, job.timer_at or inf))
        submit = await self._settle(replace(submit, job=job), lowers_only=lowers_only)
        outcome = await self._journal.write(submit)
        assert isinstance(outcome, Accepted)
        if outcome.replayed:
            return await self.get(outcome.job_id)
        job = submit.job
        if job.timer_at is not None:
            self._recorder.on_timer(job.timer_at)
        self._recorder.observations.accepted[job.feature_name, job.priority] += 1
        ticket = self._tickets.add(job)
        if patience is not None:
            loop = asyncio.get_running_loop()
            ticket.timer = loop.call_later(patience, lambda: self._spawn(self._give_up(ticket)))
        return self._view(job, None)

    async def adopt(self, turn_id: str) -> TurnView:
        """From now on its caller is in this process, waiting or holding: it has come back elsewhere."""
        process = await self._running()
        for _ in range(TRIES):
            job = await self._turn(turn_id)
            if job.status.finished:
                raise WrongState(f"the turn is {job.status} already", details={"status": job.status.value})
            own = self._tickets.get(turn_id)
            if (
                own is not None
                and process_of(job.turn or "") == process.name
                and (own.lease is None) == (job.status is JobStatus.PENDING)
            ):
                return self._view(job, None)
            owner, before = turns.owner_at(process.name, job), process_of(job.turn or "")
            if isinstance(await self._journal.write(Adopt(job.id, job.run, owner)), Done):
                ticket = self._tickets.add(replace(job, turn=owner))
                if job.status is JobStatus.RUNNING:
                    self._hold(ticket, ticket.job, process)
                if before != process.name:
                    process.adopted(before, turn_id)
                return self._view(ticket.job, None)
        raise Unavailable(f"turn {turn_id} keeps changing; try again")

    def _hold(self, ticket: Ticket, job: Job, process: Process) -> None:
        usher = self._usher(job, process)
        lease = replace(lease_of(job), scope=usher.scope_of(job.service))
        rest = max(0.0, (job.call_deadline or 0.0) - self._clock.now())
        usher.hold(ticket, lease, job, within=min(rest, usher.timeout_of(job.service)))
        # A caller that goes from one to another would else always be where the next renewal is not due yet.
        process.lines[process.rules.shard_of(job.service, job.priority.band)].renew_now()

    # ------------------------------------------------------------ waiting

    async def wait(
        self, turn_id: str, timeout: float | None = None, *, on_position: OnPosition | None = None
    ) -> TurnView:
        """The turn when its slot is taken (RUNNING), when it has ended, or as it is after `timeout` seconds. While this
        waits, a slot that is granted is accepted at once. `on_position` is told where it stands when that changes, at
        most once a second; it may be a coroutine function."""
        await self._running()
        ticket = await self._own(turn_id)
        if ticket is None:
            return await self.get(turn_id)
        teller = Teller(on_position)
        with self._tickets.asking(ticket):
            self._ask(ticket)
            until = None if timeout is None else asyncio.get_running_loop().time() + timeout
            while True:
                with self._hub.subscribe(turn_id, places=on_position is not None) as subscription:
                    if on_position is not None:
                        await self._first_place(ticket, teller)
                    with contextlib.suppress(TooSlow):  # then once more, from the beginning
                        return await self._waited(ticket, subscription, until, teller)

    async def _waited(
        self, ticket: Ticket, subscription: Subscription, until: float | None, teller: Teller
    ) -> TurnView:
        """One subscription for the whole wait: what is told to one that was left is not told again to the next."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                await self._until_news(ticket, subscription, until, teller)
            except Dismissed:
                raise Unavailable("this process is stopping") from None
            if ticket.held:
                return self._view(ticket.job, None)
            job = await self._turn(ticket.id)
            if job.status.finished:
                self._tickets.forget(ticket)
                return self._view(job, None)
            if job.status is JobStatus.RUNNING or (until is not None and loop.time() >= until):
                return self._view(job, None)

    async def _first_place(self, ticket: Ticket, teller: Teller) -> None:
        """Without waiting for the next look at all positions. Who is about to have a slot need not hear of it."""
        place = (await (await self._running()).places_of_new([ticket.id])).get(ticket.id)
        if place is not None and ticket.offered is None and not ticket.held and place.position > place.free:
            await teller.tell(place.position)

    async def _until_news(
        self, ticket: Ticket, subscription: Subscription, until: float | None, teller: Teller
    ) -> None:
        """Until it has its slot, may have ended, or the time is over."""
        loop = asyncio.get_running_loop()
        if (job := (await self._store.get_jobs([ticket.id])).get(ticket.id)) is None or job.status.finished:
            return
        while not ticket.held:
            rest = None if until is None else until - loop.time()
            if rest is not None and rest <= 0:
                return
            due = teller.due_in()
            patience = min((each for each in (rest, due) if each is not None), default=None)
            event = await subscription.next(patience)
            if event is not None and event.type == events.POSITION:
                teller.position = event.details["position"]
            elif event is not None and event.type != events.PROGRESS:
                return
            if not ticket.held:
                await teller.tell_if_due()

    def _ask(self, ticket: Ticket) -> None:
        """A slot that was offered before anybody waited is still good, for a moment."""
        if ticket.offered is not None and ticket.lease is None:
            usher = self._usher_of(ticket)
            self._spawn(usher.accept(ticket, ticket.offered))

    async def _own(self, turn_id: str, *, holding: bool = False) -> Ticket | None:
        """It, as this process's own; None if it has ended. `holding`: it should have its slot by now."""
        ticket = self._tickets.get(check_id(turn_id, "turn"))
        if ticket is not None and not (holding and ticket.lease is None):
            return ticket
        job = await self._turn(turn_id)
        if job.status.finished:
            return None
        await self.adopt(turn_id)
        return self._tickets.get(turn_id)

    async def start_if_first(self, turn_id: str) -> bool:
        """Take the slot now, if one is free and nobody is before it in line. False: not now, or not any more."""
        process = await self._running()
        ticket = await self._own(turn_id)
        if ticket is None or ticket.lease is not None:
            return False
        usher = self._usher_of(ticket)
        await process.told(ticket.service)
        return await usher.start_if_first(ticket)

    def held(self, turn_id: str) -> Ticket:
        """One whose slot was taken here just now."""
        ticket = self._tickets.get(turn_id)
        if ticket is None or not ticket.held:
            raise TurnLost("the slot was lost at once", turn_id=turn_id)
        return ticket

    async def renew(self, turn_id: str) -> TurnView:
        """Its caller is still there. Raises TurnLost if the slot is not its any more. The lease itself is renewed by
        this process for as long as the turn is its own."""
        ticket = await self._holding(turn_id)
        return self._view(ticket.job, None)

    # ------------------------------------------------------------ ending

    async def finish(self, turn_id: str, result: Any = None) -> TurnView:
        """The work is done: `result` is kept like a step's, and the slot goes to the next. Raises TurnLost if it was
        not this caller's any more."""
        data_json = result_json(result, self._config().worker.max_result)
        ticket = await self._holding(turn_id)
        job, now = ticket.job, self._clock.now()
        spent = {"execution_time_ms": round(ticket.elapsed * 1000, 3)}
        kept = StepResult(job.id, job.step, job.service, job.round, data_json, to_json(spent), now, job.lease)
        move = transitions.step_done(job, kept, now=now, waits={})
        return await self._end(ticket, move, failed=False)

    async def fail(self, turn_id: str, message: str) -> TurnView:
        """The work failed, or will not be done: FAILED with this message, and the slot goes to the next."""
        error = turns.said(str(message))
        ticket = self._tickets.get(check_id(turn_id, "turn"))
        if ticket is None or ticket.lease is None:
            job = await self._turn(turn_id)
            if job.status is not JobStatus.RUNNING:
                return await self._move(turn_id, lambda job, now: transitions.end_turn(job, "fail", error, now=now))
            ticket = await self._holding(turn_id)
        now = self._clock.now()
        return await self._end(ticket, transitions.end_turn(ticket.job, "fail", error, now=now), failed=True)

    async def cancel(self, turn_id: str, *, who: str | None = None) -> TurnView:
        """Out of the line, or out of the slot. Whoever else has it hears that it is lost. With `who`, an operator, it
        is in the audit."""
        act = act_of(who, audit.CANCEL_TURN, turn_id)
        return await self._move(turn_id, lambda job, now: transitions.cancel(job, now=now), act)

    async def cancel_own(self, turn_id: str) -> None:
        """Its caller leaves, before it had the slot or with it; nobody needs to be told."""
        ticket = self._tickets.get(turn_id)
        if ticket is not None:
            ticket.leaving = True
        with contextlib.suppress(WrongState, NotFound):
            await self.cancel(turn_id)
        if ticket is not None:
            self._usher_of(ticket).leave(ticket)

    async def withdraw(self, turn_id: str) -> None:
        """Whoever has it. A block of code hears that it has lost its slot, which is kept until it has left."""
        ticket = self._tickets.get(turn_id)
        if ticket is None or not ticket.in_block:
            await self.cancel_own(turn_id)
            return
        with contextlib.suppress(WrongState, NotFound):
            await self.cancel(turn_id)

    async def left(self, turn_id: str) -> None:
        """Who was told of its loss is gone: if the slot is still kept for that, it goes to the next."""
        if (ticket := self._tickets.get(turn_id)) is not None:
            self._usher_of(ticket).leave(ticket)

    async def abandon(self, turn_id: str, why: str) -> None:
        """Its caller, who asks from outside, was not heard of for too long: out of the line, or out of the slot. Not if
        it was heard of in another process, which has it now."""
        ticket = self._tickets.get(turn_id)
        job = await self.find(turn_id)
        if ticket is None or job is None or self.process is None:
            return
        if process_of(job.turn or "") != self.process.name:
            self._usher_of(ticket).drop(ticket)
            return

        def build(job: Job, now: float) -> Move:
            return transitions.end_turn(job, "fail", turns.unheard(job, why), now=now)

        with contextlib.suppress(WrongState, TurnLost):
            if ticket.held:
                await self._end(ticket, build(ticket.job, self._clock.now()), failed=True)
            else:
                await self._move(turn_id, build)

    async def _move(self, turn_id: str, build: Build, act: Act | None = None) -> TurnView:
        await self._turn(turn_id)
        await self._operations.move(turn_id, build, act)
        ticket = self._tickets.get(turn_id)
        if ticket is not None and ticket.lease is None:
            self._tickets.forget(ticket)
        return await self.get(turn_id)

    async def _end(self, ticket: Ticket, move: Move, *, failed: bool) -> TurnView:
        ticket.leaving = True
        try:
            self._observe(ticket, failed=failed)
            if not await self._record(ticket.job, move):
                raise TurnLost("the turn was ended by somebody else", turn_id=ticket.id)
        finally:
            self._usher_of(ticket).leave(ticket, failed=failed)
        return await self.get(ticket.id)

    def _observe(self, ticket: Ticket, *, failed: bool) -> None:
        """As a worker does of a call."""
        observations = self._recorder.observations
        observations.ran(ticket.job, ticket.elapsed)
        failure = Failure(EXCEPTION, "", retryable=False) if failed else None
        observations.answered(ticket.service, ending_of(failure), ticket.elapsed)

    async def _record(self, job: Job, move: Move) -> bool:
        """How it ended is written when the store is back, if that is soon: the work is done, and was dear."""
        loop, delay = asyncio.get_running_loop(), 0.1
        until = loop.time() + RECORD_WITHIN
        while True:
            try:
                return await self._recorder.record(job, move, self._clock.now())
            except Unavailable:
                if loop.time() + delay > until:
                    raise
                await asyncio.sleep(delay)
                delay = min(5.0, delay * 2)

    async def _holding(self, turn_id: str) -> Ticket:
        """It, as one that has its slot in this process."""
        await self._running()
        ticket = await self._own(turn_id, holding=True)
        if ticket is not None and ticket.lost.is_set():
            raise TurnLost(ticket.why_lost, turn_id=turn_id)
        if ticket is None or ticket.lease is None:
            status = (await self._turn(turn_id)).status
            text = "it has no slot yet" if status is JobStatus.PENDING else f"it is {status}"
            raise WrongState(f"the turn does not hold a slot: {text}", details={"status": status.value})
        return ticket

    async def _give_up(self, ticket: Ticket) -> None:
        """It has waited as long as it wanted to."""
        if ticket.lease is not None:
            return
        now = self._clock.now()
        job = (await self._store.get_jobs([ticket.id])).get(ticket.id)
        if job is not None and job.status is JobStatus.PENDING:
            move = transitions.end_turn(job, "time_out", turns.waited_too_long(job), now=now)
            if not await self._recorder.record(job, move, now) and ticket.lease is None:
                await self._give_up(ticket)  # it was promoted in this very moment, say

    # ------------------------------------------------------------ shared parts

    def _usher_of(self, ticket: Ticket) -> Usher:
        process = self.process
        assert process is not None
        return self._usher(ticket.job, process)

    @staticmethod
    def _usher(job: Job, process: Process) -> Usher:
        shard = process.rules.shard_of(job.service, job.priority.band)
        return process.lines[shard].usher

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a turn could not be ended", exc_info=error)

    async def close(self) -> None:
        """This process stops: whoever waits here is told, and whoever holds a slot has lost it. Callers outside go on
        with another process, if there may be one."""
        for task in list(self._tasks):
            task.cancel()
        now, moves = self._clock.now(), []
        for ticket in self._tickets.all():
            if self.process is not None and self.process.distributed and turns.is_outside(ticket.job.turn or ""):
                self._usher_of(ticket).drop(ticket)
        tickets = self._tickets.all()
        jobs = await self._store.get_jobs([ticket.id for ticket in tickets]) if tickets else {}
        for ticket in tickets:
            ticket.why_lost = "this process is stopping"
            job = jobs.get(ticket.id)
            if job is not None and not job.status.finished:
                held = job.status is JobStatus.RUNNING
                error = turns.holder_died(job) if held else turns.waiter_gone(job)
                moves.append((job, transitions.end_turn(job, "recover" if held else "fail", error, now=now)))
        if moves:
            await self._recorder.record_each(moves, now)
        for ticket in tickets:
            ticket.lose(ticket.why_lost)
            self._usher_of(ticket).leave(ticket)
