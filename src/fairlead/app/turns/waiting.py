"""Waits until a turn has its slot, and reports its queue position meanwhile. A process that stops ends its waits."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterator

from fairlead.app.runtime import Runtime
from fairlead.domain import events, transitions, turns
from fairlead.domain.events import Event
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.processes import process_of
from fairlead.engine.events import ShuttingDown, SlowConsumer, Subscription
from fairlead.engine.node import Node
from fairlead.engine.turns.slot_broker import SlotBroker
from fairlead.engine.turns.waiters import Waiter
from fairlead.errors import Unavailable

REPORT_EVERY = 1.0

OnPosition = Callable[[int], object]
"""Receives the queue position; 1 is next. May be a coroutine function."""


STOPPING = "this process is stopping"


class OpenWaits:
    """The calls of this process that wait for a turn, or are about to. When the process stops, all of them end."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._stopping: Node | None = None
        self._registering: set[asyncio.Future[None]] = set()
        self._waits: set[TurnWait] = set()

    @contextlib.contextmanager
    def registering(self, node: Node) -> Iterator[None]:
        """A block of code that writes this process into a turn's row and adds its waiter. Raises Unavailable if this
        process is stopping."""
        self._check(node)
        done = asyncio.get_running_loop().create_future()
        self._registering.add(done)
        try:
            yield
        finally:
            self._registering.discard(done)
            done.set_result(None)

    @contextlib.contextmanager
    def open(self, node: Node, timeout: float | None, on_position: OnPosition | None) -> Iterator[TurnWait]:
        """A new wait, for the block of code that runs it. Raises Unavailable if this process is stopping."""
        self._check(node)
        wait = TurnWait(self._runtime, timeout, on_position)
        self._waits.add(wait)
        try:
            yield wait
        finally:
            self._waits.discard(wait)

    def _check(self, node: Node) -> None:
        if self._runtime.node is not node or node is self._stopping:
            raise Unavailable(STOPPING)

    async def close(self, node: Node) -> None:
        """Refuse new waits and turns from now on, because this node is stopping, then end its turns and its waits."""
        self._stopping = node
        try:
            if self._registering:
                await asyncio.wait(self._registering)  # a turn without a waiter would be left open
            await self._end_turns(node)
        finally:
            for wait in self._waits:
                wait.stop()

    async def _end_turns(self, node: Node) -> None:
        runtime = self._runtime
        if node.distributed:
            for waiter in runtime.waiters.all():
                if turns.is_outside(waiter.job.turn or ""):
                    broker_of(node, waiter.job).drop(waiter)
        waiters = runtime.waiters.all()
        jobs = await runtime.store.get_jobs([waiter.id for waiter in waiters]) if waiters else {}
        now, moves = runtime.clock.now(), []
        for waiter in waiters:
            waiter.why_lost = STOPPING
            job = jobs.get(waiter.id)
            if job is None or process_of(job.turn or "") != node.name:
                continue
            if job.status is JobStatus.RUNNING:
                moves.append((job, transitions.end_turn(job, "recover", turns.holder_died(job), now=now)))
            elif job.status is JobStatus.PENDING:
                gone = turns.waiter_gone(job)
                if waiter.id in runtime.waiters.blocks:
                    moves.append((job, transitions.end_turn(job, "fail", gone, now=now)))
                else:
                    moves.append((job, turns.set_aside(job, gone, now=now, grace=runtime.config.turns.grace)))
        if moves:
            await runtime.writer.record_each(moves, now)
        for waiter in waiters:
            waiter.lose(waiter.why_lost)
            broker_of(node, waiter.job).leave(waiter)


def broker_of(node: Node, job: Job) -> SlotBroker:
    return node.shards[node.rules.shard_of(job.service, job.priority.band)].slot_broker


class TurnWait:
    """One call that waits for the slot of a turn."""

    _waiter: Waiter

    def __init__(self, runtime: Runtime, timeout: float | None, on_position: OnPosition | None) -> None:
        self._runtime = runtime
        self._until = None if timeout is None else asyncio.get_running_loop().time() + timeout
        self._notifier = PositionNotifier(on_position)
        self._subscription: Subscription | None = None
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        if self._subscription is not None:
            self._subscription.put(Event(events.MISSED, self._waiter.id, self._runtime.clock.now(), STOPPING))

    async def run(self, waiter: Waiter) -> Job | None:
        """Wait until the turn holds its slot, has ended or is set aside, or until the timeout, and return its row. None
        if the turn was deleted."""
        self._waiter = waiter
        while True:
            with self._runtime.hub.subscribe(self._waiter.id, places=self._notifier.enabled) as subscription:
                self._subscription = subscription
                if self._notifier.enabled:
                    await self._report_first_position()
                with contextlib.suppress(SlowConsumer):  # events were lost: subscribe again and read the state
                    return await self._wait(subscription)

    async def _wait(self, subscription: Subscription) -> Job | None:
        """Wait for the slot with a single subscription: between two subscriptions, events would be missed."""
        waiter, loop = self._waiter, asyncio.get_running_loop()
        while True:
            try:
                await self._until_event(subscription)
            except ShuttingDown:
                raise Unavailable(STOPPING) from None
            if waiter.held:
                return waiter.job
            job = await self._read()
            offered = waiter.offered
            if not self._stopped and job is not None and offered is not None and job.lease == offered.name:
                continue  # this process has accepted the slot, and is about to hold it
            if job is None or job.status is not JobStatus.PENDING:
                return job
            if self._stopped:
                raise Unavailable(STOPPING)
            if self._until is not None and loop.time() >= self._until:
                return job

    async def _until_event(self, subscription: Subscription) -> None:
        """Wait until the turn has its slot, may have ended or been set aside, or until the timeout."""
        loop = asyncio.get_running_loop()
        if (job := await self._read()) is None or job.status.finished or job.is_set_aside:
            return
        while not self._waiter.held:
            rest = None if self._until is None else self._until - loop.time()
            if rest is not None and rest <= 0:
                return
            if self._stopped and not subscription.waiting():
                return
            pauses = (rest, self._notifier.due_in())
            event = await subscription.next(min((each for each in pauses if each is not None), default=None))
            if event is not None and event.type == events.POSITION:
                self._notifier.position = event.details["position"]
            elif event is not None and event.type != events.PROGRESS:
                return
            if not self._waiter.held:
                await self._notifier.report_if_due()

    async def _report_first_position(self) -> None:
        """Report the first position at once, without waiting for the loop that publishes positions. Reports nothing if
        the turn is about to get a slot."""
        waiter = self._waiter
        node = await self._runtime.join()
        position = (await node.positions_of_new([waiter.id])).get(waiter.id)
        if position is not None and waiter.offered is None and not waiter.held and position.position > position.free:
            await self._notifier.report(position.position)

    async def _read(self) -> Job | None:
        return (await self._runtime.store.get_jobs([self._waiter.id])).get(self._waiter.id)


class PositionNotifier:
    """Calls `on_position` when the position has changed, at most once a second."""

    def __init__(self, on_position: OnPosition | None) -> None:
        self._on_position = on_position
        self._reported: int | None = None
        self._reported_at = float("-inf")
        self.position: int | None = None

    @property
    def enabled(self) -> bool:
        return self._on_position is not None

    def due_in(self) -> float | None:
        """Seconds until the next call of `on_position`; None if the position has not changed."""
        if self._on_position is None or self.position in (None, self._reported):
            return None
        return max(0.0, self._reported_at + REPORT_EVERY - asyncio.get_running_loop().time())

    async def report_if_due(self) -> None:
        if self.position is not None and self.due_in() == 0.0:
            await self.report(self.position)

    async def report(self, position: int) -> None:
        if self._on_position is None or position == self._reported:
            return
        self.position = self._reported = position
        self._reported_at = asyncio.get_running_loop().time()
        pending = self._on_position(position)
        if inspect.isawaitable(pending):
            await pending
