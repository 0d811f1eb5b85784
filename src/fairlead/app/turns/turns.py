"""`app.turns`: open, wait for, finish, fail, cancel and adopt turns. These methods are used by `async with
app.turn(...)`, by the gateway and by `TurnRequests`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from uuid_utils import uuid7

from fairlead.app import audit
from fairlead.app.audit import Act, act_of
from fairlead.app.job_commands import TRIES, Build, JobCommands
from fairlead.app.runtime import Runtime
from fairlead.app.turns.queries import TurnQueries
from fairlead.app.turns.validation import check_wait_timeout, result_json, user_of
from fairlead.app.turns.waiting import OnPosition, OpenWaits, broker_of
from fairlead.domain import transitions, turns
from fairlead.domain.auto_limit import ending_of
from fairlead.domain.config_checks import known
from fairlead.domain.job import Job, JobStatus, StepResult
from fairlead.domain.json_codec import to_json
from fairlead.domain.processes import process_of
from fairlead.domain.retry import EXCEPTION, Failure
from fairlead.domain.submission import Submission, check
from fairlead.domain.transitions import Adopt, Move
from fairlead.domain.turns import TurnView
from fairlead.domain.usage import Usage, reported
from fairlead.domain.validation import check_id
from fairlead.engine.node import Node
from fairlead.engine.rebuild import lease_of
from fairlead.engine.turns.waiters import Waiter
from fairlead.errors import NotFound, TurnLost, Unavailable, UnknownFeature, WrongState
from fairlead.log_fields import about
from fairlead.store.port import Accepted, Done

log = logging.getLogger("fairlead.turns")

RECORD_WITHIN = 30.0
MAX_RESULT = 1024 * 1024


class Turns(TurnQueries):
    def __init__(self, runtime: Runtime, commands: JobCommands) -> None:
        super().__init__(runtime)
        self._commands = commands
        self._tasks: set[asyncio.Task[Any]] = set()
        self._waits = OpenWaits(runtime)

    @property
    def max_result(self) -> int:
        """The maximal size of a turn's result, in bytes of JSON. It stays in the database, so the default of
        `worker.max_result`, which is meant for results in the object store, does not apply."""
        worker = self._runtime.config.worker
        return worker.max_result if "max_result" in worker.model_fields_set else MAX_RESULT

    # ------------------------------------------------------------ open and adopt

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
        """Put a turn in the service's queue. When this returns, the turn is committed, and owned by this process. No
        slot is claimed for the turn before `wait` or `start_if_first` is called. `outside`: the caller may outlive this
        process."""
        runtime = self._runtime
        config, now, user = runtime.config, runtime.clock.now(), user_of(user_id)
        if service not in config.services:
            raise UnknownFeature(f"no service is called {service!r}; {known(config.services)}", pointer="/service")
        max_wait = check_wait_timeout(wait_timeout)
        submission = Submission(service, input, user, priority, None, None, deadline, cost, metadata)
        keyed = {"idempotency_key": idempotency_key, "body_hash": body_hash, "trace": runtime.current_trace}
        submit = check(submission, config, now=now, **keyed, turn=True)
        node = await runtime.join()
        owner = turns.owner(node.name, outside=outside)
        job = replace(submit.job, id=turns.turn_id(str(uuid7())), turn=owner, feature_name=service)
        if max_wait is not None:
            # Stored with the turn, since its caller may continue in another process.
            job = replace(job, timer_at=min(now + max_wait, job.timer_at or inf))
        (submit,), _ = await runtime.settle([replace(submit, job=job)], now, lowers_only=lowers_only, turn=True)
        job = submit.job
        with self._waits.registering(node):
            outcome = await runtime.group_commit.write(submit)
            assert isinstance(outcome, Accepted)
            if outcome.replayed:
                return await self.get(outcome.job_id)
            waiter = runtime.waiters.add(job)
        runtime.warn_if_anonymous([job])
        if job.timer_at is not None:
            runtime.signals.timer_set(job.timer_at)
        runtime.writer.counters.accepted[job.feature_name, job.priority] += 1
        log.info("turn %s of %s: added", job.id, service, extra=about(job))
        if max_wait is not None:
            waiter.timer = asyncio.get_running_loop().call_later(max_wait, lambda: self._spawn(self._time_out(waiter)))
        if submit.ordered:
            await node.in_order({service})
        return self.view(job)

    async def adopt(self, turn_id: str) -> TurnView:
        """Make this process the owner of the turn, because its caller, who waits or holds the slot, has reconnected
        here."""
        waiter = await self._take_up(turn_id)
        if waiter is None:
            status = (await self.require(turn_id)).status
            raise WrongState(f"the turn is {status} already", details={"status": status.value})
        return self.view(waiter.job)

    async def _take_up(self, turn_id: str, node: Node | None = None, *, held: bool = True) -> Waiter | None:
        """Make this process the owner of the turn, and return the turn's waiter. A turn that was set aside returns to
        its place in the queue. Returns None if the turn has ended, and, unless `held` is set, also if it has its slot.
        Raises NotFound."""
        runtime = self._runtime
        node = node or await runtime.join()
        for _ in range(TRIES):
            job = await self.require(turn_id)
            if job.status.finished or (job.status is JobStatus.RUNNING and not held):
                return None
            with self._waits.registering(node):
                if (waiter := await self._own(job, node)) is not None:
                    return waiter
        raise Unavailable(f"turn {turn_id} keeps changing; try again")

    async def _own(self, job: Job, node: Node) -> Waiter | None:
        """Make this process the owner of the turn, and return the turn's waiter. None if the turn has changed since its
        row was read."""
        runtime = self._runtime
        waiter, before = runtime.waiters.get(job.id), process_of(job.turn or "")
        state = JobStatus.RUNNING if waiter is not None and waiter.lease is not None else JobStatus.PENDING
        if waiter is not None and before == node.name and job.status is state:
            return waiter
        owner = turns.owner_at(node.name, job)
        if not isinstance(await runtime.group_commit.write(Adopt(job.id, job.run, owner)), Done):
            return None
        if before != node.name:
            node.turn_adopted_here(before, job.id)
        job = replace(job, turn=owner)
        if job.is_set_aside:
            if not await runtime.writer.record(job, turns.take_up(job), runtime.clock.now()):
                return None
            job = replace(job, status=JobStatus.PENDING, run=job.run + 1, error=None)
            if waiter is not None:
                runtime.waiters.forget(waiter)  # its offers are void
        waiter = runtime.waiters.add(job)
        waiter.elsewhere = False
        if before != node.name:
            waiter.adopted_from = before
        if job.status is JobStatus.RUNNING:
            self._hold(waiter, job, node)
        return waiter

    def _hold(self, waiter: Waiter, job: Job, node: Node) -> None:
        broker = broker_of(node, job)
        lease = replace(lease_of(job), scope=broker.scope_of(job.service))
        rest = max(0.0, (job.call_deadline or 0.0) - self._runtime.clock.now())
        broker.hold(waiter, lease, job, within=min(rest, broker.timeout_of(job.service)))
        # Renew now: a caller that keeps moving between processes might otherwise leave each process before it renews.
        node.shards[node.rules.shard_of(job.service, job.priority.band)].renew_now()

    # ------------------------------------------------------------ wait

    async def wait(
        self,
        turn_id: str,
        timeout: float | None = None,
        *,
        on_position: OnPosition | None = None,
        take_over: bool = True,
    ) -> TurnView:
        """Wait until the turn holds its slot (RUNNING) or has ended, and return it. Returns its current state after
        `timeout` seconds. A slot that is granted during the wait is accepted at once. `on_position` is called with each
        new queue position, at most once a second; it may be a coroutine function. With `take_over`, a slot that the
        caller holds in another process moves to this process."""
        runtime = self._runtime
        node = await runtime.join()
        with self._waits.open(node, timeout, on_position) as wait:
            waiter = runtime.waiters.get(check_id(turn_id, "turn"))
            if waiter is None or waiter.elsewhere:
                waiter = await self._take_up(turn_id, node, held=take_over)
            while waiter is not None:
                with runtime.waiters.asking(waiter):
                    if waiter.offered is not None and waiter.lease is None:
                        # A slot was offered before this call began to wait; the offer is valid for a moment.
                        self._spawn(broker_of(node, waiter.job).accept(waiter, waiter.offered))
                    job = await wait.run(waiter)
                if job is None:
                    raise NotFound(f"there is no turn {turn_id}")
                if not job.is_set_aside:
                    if job.status.finished:
                        runtime.waiters.forget(waiter)
                    return self.view(job)
                # The turn was set aside before this call began to wait, or because this process seemed to be gone.
                waiter = await self._take_up(turn_id, node, held=take_over)
        return await self.get(turn_id)

    async def start_if_first(self, turn_id: str) -> bool:
        """Take the slot now if one is free and the turn is first in the queue. Returns False if the turn has to wait,
        has its slot already, has ended or does not exist."""
        node = await self._runtime.join()
        try:
            waiter = await self._take_up(check_id(turn_id, "turn"), held=False)
        except NotFound:
            return False
        if waiter is None or waiter.lease is not None:
            return False
        await node.relayed(waiter.service)
        return await broker_of(node, waiter.job).start_if_first(waiter)

    def enter_block(self, turn_id: str) -> None:
        """Record that the turn belongs to a `with` block, until `leave_block`. It must end with the block: its caller
        does not know the turn's id, and so cannot take it up in another process."""
        self._runtime.waiters.blocks.add(turn_id)

    def leave_block(self, turn_id: str) -> None:
        self._runtime.waiters.blocks.discard(turn_id)

    def held(self, turn_id: str) -> Waiter:
        """The waiter of a turn that has just got its slot in this process. Raises TurnLost if the slot is lost
        already."""
        waiter = self._runtime.waiters.get(turn_id)
        if waiter is None or not waiter.held:
            raise TurnLost("the slot was lost at once", turn_id=turn_id)
        return waiter

    async def renew(self, turn_id: str) -> TurnView:
        """Check that the caller still holds the slot. Raises TurnLost if not. The lease needs no renewal by the caller:
        the process that owns the turn renews it."""
        return self.view((await self._holding(turn_id)).job)

    # ------------------------------------------------------------ end

    async def finish(self, turn_id: str, result: Any = None, *, usage: Mapping[str, Any] | None = None) -> TurnView:
        """Complete the turn and free the slot. `result` is stored like the result of a step, and `usage` is what the
        work has used (`tokens_in`, `tokens_out`, `tokens_cached`, `units`, `model`). Raises TurnLost if the caller no
        longer held the slot."""
        data_json = result_json(result, self.max_result)
        waiter = await self._holding(turn_id)
        job, now = waiter.job, self._runtime.clock.now()
        metrics: dict[str, Any] = {"execution_time_ms": round(waiter.elapsed * 1000, 3)}
        if (used := reported(usage)) is not None:
            metrics["usage"] = used.as_dict()
        step = StepResult(job.id, job.step, job.service, job.round, data_json, to_json(metrics), now, job.lease)
        move = transitions.step_done(job, step, now=now, waits={}, usage=used)
        return await self._end(waiter, move, failed=False)

    async def fail(self, turn_id: str, message: str, *, usage: Mapping[str, Any] | None = None) -> TurnView:
        """Fail the turn with this message, and free its slot or its place in the queue. `usage` as for `finish`."""
        error = turns.failed_by_caller(str(message))
        waiter = self._runtime.waiters.get(check_id(turn_id, "turn"))
        if waiter is None or waiter.lease is None:
            job = await self.require(turn_id)
            if job.status is not JobStatus.RUNNING:
                return await self._move(turn_id, lambda job, now: transitions.end_turn(job, "fail", error, now=now))
            waiter = await self._holding(turn_id)
        now = self._runtime.clock.now()
        move = transitions.end_turn(waiter.job, "fail", error, now=now, usage=reported(usage))
        return await self._end(waiter, move, failed=True)

    async def cancel(self, turn_id: str, *, who: str | None = None) -> TurnView:
        """Cancel the turn: remove it from the queue, or take its slot away and notify the caller. If an operator is
        named in `who`, the action is recorded in the audit log."""
        act = act_of(who, audit.CANCEL_TURN, turn_id)
        return await self._move(turn_id, lambda job, now: transitions.cancel(job, now=now), act)

    async def cancel_own(self, turn_id: str) -> None:
        """Cancel a turn at the request of its own caller. The caller is not notified that the slot is lost."""
        waiter = self._runtime.waiters.get(turn_id)
        if waiter is not None:
            waiter.leaving = True
        try:
            with contextlib.suppress(WrongState, NotFound):
                await self.cancel(turn_id)
        finally:
            # Leave even if the database is unavailable: the caller has stopped working, and renewing its lease would
            # keep the slot occupied.
            if waiter is not None:
                self._leave(waiter)

    async def withdraw(self, turn_id: str) -> None:
        """Cancel a turn at the request of code that may not be the turn's caller. If a `with` block holds the slot, the
        block is notified, and keeps the slot until it has exited."""
        waiter = self._runtime.waiters.get(turn_id)
        if waiter is None or turn_id not in self._runtime.waiters.blocks:
            await self.cancel_own(turn_id)
            return
        with contextlib.suppress(WrongState, NotFound):
            await self.cancel(turn_id)

    async def left(self, turn_id: str) -> None:
        """Release the slot of a turn whose caller has stopped working, after it was notified that the slot is lost."""
        if (waiter := self._runtime.waiters.get(turn_id)) is not None:
            self._leave(waiter)

    async def abandon(self, turn_id: str, why: str) -> None:
        """Handle an outside caller that has been silent for too long: set aside the turn if it waits, fail it if it
        holds its slot. Does nothing to the turn if the caller has reconnected to another process."""
        waiter, node = self._runtime.waiters.get(turn_id), self._runtime.node
        job = await self.find(turn_id)
        if waiter is None or job is None or node is None:
            return
        if process_of(job.turn or "") != node.name:
            broker_of(node, waiter.job).drop(waiter)
            return

        now, grace = self._runtime.clock.now(), self._runtime.config.turns.grace
        with contextlib.suppress(WrongState, TurnLost):
            if waiter.held:
                error = turns.unheard(waiter.job, why)
                await self._end(waiter, transitions.end_turn(waiter.job, "fail", error, now=now), failed=True)
            else:
                await self._move(
                    turn_id,
                    lambda job, now: turns.set_aside(job, turns.unheard(job, why), now=now, grace=grace),
                )

    async def _move(self, turn_id: str, build: Build, act: Act | None = None) -> TurnView:
        await self.require(turn_id)
        await self._commands.move(turn_id, build, act)
        waiter = self._runtime.waiters.get(turn_id)
        if waiter is not None and waiter.lease is None:
            self._runtime.waiters.forget(waiter)
        return await self.get(turn_id)

    async def _end(self, waiter: Waiter, move: Move, *, failed: bool) -> TurnView:
        waiter.leaving = True
        try:
            self._count(waiter, failed=failed)
            if not await self._record(waiter.job, move):
                raise TurnLost("the turn has already been ended elsewhere", turn_id=waiter.id)
        finally:
            self._leave(waiter, failed=failed, usage=None if move.call is None else move.call.usage)
        return await self.get(waiter.id)

    def _count(self, waiter: Waiter, *, failed: bool) -> None:
        """Count the end of the turn as a worker counts the end of a call."""
        counters = self._runtime.writer.counters
        counters.ran(waiter.job, waiter.elapsed)
        failure = Failure(EXCEPTION, "", retryable=False) if failed else None
        counters.answered(waiter.service, ending_of(failure), waiter.elapsed)

    async def _record(self, job: Job, move: Move) -> bool:
        """Write the end of a turn, and retry for a while if the store is unavailable: the work is done, and repeating
        it would be expensive."""
        loop, delay = asyncio.get_running_loop(), 0.1
        until = loop.time() + RECORD_WITHIN
        while True:
            try:
                return await self._runtime.writer.record(job, move, self._runtime.clock.now())
            except Unavailable:
                if loop.time() + delay > until:
                    raise
                await asyncio.sleep(delay)
                delay = min(5.0, delay * 2)

    async def _holding(self, turn_id: str) -> Waiter:
        """The waiter of a turn that holds its slot in this process. Raises TurnLost if the slot is lost, and WrongState
        if the turn has no slot."""
        await self._runtime.join()
        waiter = self._runtime.waiters.get(check_id(turn_id, "turn"))
        if waiter is None or waiter.lease is None:
            waiter = await self._take_up(turn_id)
        if waiter is not None and waiter.lost.is_set():
            raise TurnLost(waiter.why_lost, turn_id=turn_id)
        if waiter is None or waiter.lease is None:
            status = (await self.require(turn_id)).status
            text = "it has no slot yet" if status is JobStatus.PENDING else f"it is {status}"
            raise WrongState(f"the turn does not hold a slot: {text}", details={"status": status.value})
        return waiter

    async def _time_out(self, waiter: Waiter) -> None:
        """End a turn that has waited longer than its `wait_timeout`."""
        runtime = self._runtime
        while waiter.lease is None:
            now = runtime.clock.now()
            job = (await runtime.store.get_jobs([waiter.id])).get(waiter.id)
            if job is None or job.status is not JobStatus.PENDING:
                return
            move = transitions.end_turn(job, "time_out", turns.waited_too_long(job), now=now)
            if await runtime.writer.record(job, move, now):
                return
            # The job changed meanwhile, for instance by a promotion: try again.

    # ------------------------------------------------------------ shared parts

    def _leave(self, waiter: Waiter, *, failed: bool | None = None, usage: Usage | None = None) -> None:
        """Release the slot of this turn. A process that has stopped has no slots to release."""
        node = self._runtime.node
        if node is None:
            self._runtime.waiters.forget(waiter)
        else:
            broker_of(node, waiter.job).leave(waiter, failed=failed, usage=usage)

    def _spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task of a turn failed", exc_info=error)

    async def close(self) -> None:
        """Prepare the turns of this process for its shutdown. Waiting turns are set aside, so that their callers can
        take them up in another process; turns that hold a slot are ended. Turns of outside callers stay as they are, if
        another process can adopt them."""
        node = self._runtime.node
        for task in list(self._tasks):
            task.cancel()
        if node is None:
            return
        await self._waits.close(node)
