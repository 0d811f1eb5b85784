"""Queue positions of jobs: queries that callers share, marks for positions in stalled queues, and the loop that
publishes positions to watchers.

A query costs the dispatcher one pass over its active users, so a thousand concurrent callers must not cause a thousand
passes. Only one query runs at a time; callers that arrive meanwhile share the next one. A dispatcher that did not
answer is queried again in the background, and until it has answered, callers get no positions instead of waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from fairlead.dispatch.port import Dispatcher, Unserved
from fairlead.domain import events
from fairlead.domain.events import Event
from fairlead.domain.fair_share import QueuePosition
from fairlead.domain.job import Priority
from fairlead.domain.processes import ProcessRecord
from fairlead.domain.rules import Order, Rules
from fairlead.domain.views import WorkerCounts
from fairlead.engine.events import Hub
from fairlead.engine.loops.workers import unserved
from fairlead.errors import Unavailable
from fairlead.pacing import DutyCycle, Interval
from fairlead.store.port import Store

ANSWER_WITHIN = 1.0
RETRY_AFTER = 0.5
OPTIONAL = DutyCycle(share=0.1)
"""The fraction of the dispatcher's time that may be spent on positions that no caller waits for, such as the one in a
receipt."""
LOOK_EVERY = 2.0
"""Seconds between two reads of the live processes. Processes renew their registration at the same interval."""
_BANDS = frozenset(priority.band for priority in Priority)
EVERY = 1.0
# With a hundred thousand users waiting, a query takes a while: it may use this share of the event loop's time.
SHARE = 0.05
# Each grant changes the position of every job behind it. With thousands of watchers, positions are published less
# often.
MOST_A_SECOND = 2000
AT_ONCE = 50
"""The number of events that are published before other tasks may run."""
NOTABLE = 0.2
NOTABLE_S = 1.0


class PositionBatcher:
    def __init__(self, dispatcher: Dispatcher, unserved: Callable[[], Unserved] = frozenset) -> None:
        self._dispatcher = dispatcher
        self._unserved = unserved
        self._job_ids: set[str] = set()
        self._next: asyncio.Task[dict[str, QueuePosition]] | None = None
        self._current: asyncio.Task[dict[str, QueuePosition]] | None = None
        self._busy_until = 0.0
        self._silent = False
        """Whether the dispatcher did not answer the last query."""
        self._retry_at = 0.0

    async def positions(self, job_ids: Sequence[str]) -> dict[str, QueuePosition]:
        """The queue positions of these jobs. Empty if the dispatcher does not answer soon, because a caller that reads
        a job must not wait for the dispatcher."""
        if not job_ids:
            return {}
        loop = asyncio.get_running_loop()
        if self._silent and (self._is_querying or loop.time() < self._retry_at):
            return {}
        self._job_ids.update(job_ids)
        if self._next is None:
            self._next = loop.create_task(self._query(self._current))
        if self._silent:
            return {}
        # A caller that is cancelled must not cancel the query of the others.
        positions = await asyncio.shield(self._next)
        return {job_id: positions[job_id] for job_id in job_ids if job_id in positions}

    @property
    def _is_querying(self) -> bool:
        return self._next is not None or (self._current is not None and not self._current.done())

    @property
    def expensive(self) -> bool:
        """Whether the last queries took long. Callers that can do without positions should then not ask for them."""
        return asyncio.get_running_loop().time() < self._busy_until

    async def _query(self, before: asyncio.Task[dict[str, QueuePosition]] | None) -> dict[str, QueuePosition]:
        if before is not None and not before.done():
            await asyncio.wait([before])
            if self._silent:
                self._next, self._job_ids = None, set()
                return {}
        job_ids, self._job_ids = self._job_ids, set()
        self._current, self._next = self._next, None
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                positions = await self._dispatcher.positions(list(job_ids), self._unserved())
            self._silent = False
            return positions
        except (Unavailable, TimeoutError):
            self._silent, self._retry_at = True, clock() + RETRY_AFTER
            return {}
        finally:
            self._busy_until = clock() + OPTIONAL.pause(clock() - began)


async def first_complete(
    queries: Sequence[Coroutine[Any, Any, dict[str, QueuePosition]]], job_ids: Set[str]
) -> dict[str, QueuePosition]:
    """Query several dispatchers at once, and return the positions that they found. The remaining queries are cancelled
    as soon as every job is found. A single dispatcher, which is the usual case, is queried without creating a task."""
    if len(queries) == 1:
        return await queries[0]
    positions: dict[str, QueuePosition] = {}
    tasks = [asyncio.ensure_future(query) for query in queries]
    try:
        for answer in asyncio.as_completed(tasks):
            positions |= await answer
            if positions.keys() >= job_ids:
                break
    finally:
        for task in tasks:
            task.cancel()
    return positions


class StalledQueues:
    """Marks positions in stalled queues. A queue is stalled if its service is paused or has no workers: no wait can be
    estimated for it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._alive: Sequence[ProcessRecord] | None = None
        """The live processes; None until they were read for the first time."""
        self._interval = Interval(LOOK_EVERY)

    async def look(self, now: float) -> None:
        """Read the live processes, at most every `LOOK_EVERY` seconds. `now` is monotonic."""
        if self._interval.due(now):
            moment = await self._store.now()
            self._alive = [each for each in await self._store.processes() if each.alive(moment)]

    def mark(self, positions: Mapping[str, QueuePosition], rules: Rules) -> dict[str, QueuePosition]:
        return {
            job_id: replace(position, undated=True) if self._stalled(position, rules) else position
            for job_id, position in positions.items()
        }

    def unserved(self, rules: Rules) -> Unserved:
        """The regions that no live worker claims for. Empty before the processes were read for the first time."""
        return frozenset() if self._alive is None else unserved(rules.services, self._alive)

    def _stalled(self, position: QueuePosition, rules: Rules) -> bool:
        service = rules.services.get(position.service)
        if service is None or service.paused:
            return True
        if self._alive is None or service.turns_only:
            return False
        any_band = service.order is Order.FIFO or position.band not in _BANDS
        serving = [each for each in self._alive if position.service in each.services]
        workers = WorkerCounts(serving, None if any_band else Priority.of_band(position.band))
        return workers.reason(position.service, slots_are_free=position.free > 0, private=True) is not None


class PositionsLoop:
    """Publishes the positions of waiting jobs that readers in this process watch, at most once a second, with one query
    per shard."""

    name = "positions"

    def __init__(self, positions: Callable[[Sequence[str]], Awaitable[dict[str, QueuePosition]]], hub: Hub) -> None:
        self._positions = positions
        self._hub = hub
        self._published: dict[str, tuple[int, float | None]] = {}

    async def tick(self, now: float) -> float:
        timer = asyncio.get_running_loop().time
        begun = timer()
        watched = self._hub.placed_here()
        positions = await self._positions(watched) if watched else {}
        took = timer() - begun
        self._published = {job_id: last for job_id, last in self._published.items() if job_id in positions}
        moved = [job_id for job_id, position in positions.items() if self._has_changed(job_id, position)]
        for number, job_id in enumerate(moved, 1):
            self._publish(job_id, positions[job_id], now)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return now + max(EVERY, took / SHARE, len(moved) / MOST_A_SECOND)

    def _has_changed(self, job_id: str, position: QueuePosition) -> bool:
        """Whether the position has changed since it was published, or its estimated wait has changed notably, for
        example because of a slow call or a new limit."""
        if job_id not in self._published:
            return True
        number, wait = self._published[job_id]
        estimate = position.estimated_wait()
        if estimate is None or wait is None:
            return number != position.position or (estimate is None) != (wait is None)
        return number != position.position or abs(estimate[1] - wait) > max(NOTABLE_S, NOTABLE * wait)

    def _publish(self, job_id: str, position: QueuePosition, now: float) -> None:
        wait = position.estimated_wait()
        self._published[job_id] = (position.position, None if wait is None else wait[1])
        estimate = None if wait is None else {"low": round(wait[0], 3), "high": round(wait[1], 3)}
        details = {"position": position.position, "estimated_wait": estimate}
        event = Event(events.POSITION, job_id, now, f"number {position.position} in line", details)
        self._hub.tell(event, self._hub.user_of(job_id))
