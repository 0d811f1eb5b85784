"""Waits until a turn has its slot, and reports its queue position meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable

from fairlead.app.runtime import Runtime
from fairlead.domain import events
from fairlead.domain.job import Job, JobStatus
from fairlead.engine.events import ShuttingDown, SlowConsumer, Subscription
from fairlead.engine.turns.waiters import Waiter
from fairlead.errors import Unavailable

REPORT_EVERY = 1.0

OnPosition = Callable[[int], object]
"""Receives the queue position; 1 is next. May be a coroutine function."""


class TurnWait:
    """One call that waits for the slot of a turn."""

    _waiter: Waiter

    def __init__(self, runtime: Runtime, timeout: float | None, on_position: OnPosition | None) -> None:
        self._runtime = runtime
        self._until = None if timeout is None else asyncio.get_running_loop().time() + timeout
        self._notifier = PositionNotifier(on_position)

    async def run(self, waiter: Waiter) -> Job | None:
        """Wait until the turn holds its slot, has ended or is set aside, or until the timeout, and return its row. None
        if the turn was deleted."""
        self._waiter = waiter
        while True:
            with self._runtime.hub.subscribe(self._waiter.id, places=self._notifier.enabled) as subscription:
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
                raise Unavailable("this process is stopping") from None
            if waiter.held:
                return waiter.job
            job = await self._read()
            offered = waiter.offered
            if job is not None and offered is not None and job.lease == offered.name:
                continue  # this process has accepted the slot, and is about to hold it
            if job is None or job.status is not JobStatus.PENDING:
                return job
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
