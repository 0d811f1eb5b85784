"""Status requests that are held until there is news.

fal's clients poll: the Python client every 0.1 s, the JavaScript client every 0.5 s. A client that has just got an
answer gets the next one when the status has changed, or after `fronts.fal.hold` seconds. A client that asks only now
and then is answered at once.

A job that is polled is followed by one task, which reads its state and then its events. It keeps the last known state
while the database cannot be read, and ends soon after the last poll.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from fairlead.engine.events import ShuttingDown, SlowConsumer
from fairlead.errors import NotFound, Unavailable
from fairlead.gateway.fronts.fal import statuses
from fairlead.gateway.fronts.fal.statuses import IN_PROGRESS, IN_QUEUE, MOST_LOGS, Log, State

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead

QUICK_S = 2.0
"""A client that asks again within this time polls."""
LINGER_S = 3.0
"""How long a job is followed after the last poll. It is longer than the pause between two polls."""
LOGS_AFTER_S, POSITION_AFTER_S, PLACES_PER_S = 0.5, 1.0, 20
"""News of the log and of the position wait so long after the last answer; a position one second more for each
`PLACES_PER_S` places, because every start of a job moves all jobs behind it."""
MOST_HELD, HELD_AT_LEAST_S = 64, 1.0
"""A client with so many held polls may have no connection left for its other polls: each further poll ends the oldest
one, once that was held for this time. The HTTP library of the Python client opens at most 100 connections."""
RETRY_S = 1.0
LOOK_AFTER_S = 1.0

Client = tuple[str, str]
"""The key and the address of a client."""


@dataclass(slots=True)
class Seen:
    """What a client was sent last of a job, and when. `logs` is the number of lines that the job had logged then."""

    state: State
    logs: int
    at: float


class Follower:
    """Follows one job. `state` is None until the job was read. When `over` is set, nothing more will be known: the job
    has ended, does not exist, or this process stops."""

    def __init__(self, app: Fairlead, job_id: str) -> None:
        self._app = app
        self._job_id = job_id
        self.state: State | None = None
        self.logs: deque[Log] = deque(maxlen=MOST_LOGS)
        self.log_count = 0
        self.polls: set[Poll] = set()
        self.over = False
        self.ended = False
        self.ends: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._follow(), name="fairlead-fal-follower")

    def close(self) -> None:
        self._task.cancel()
        if self._looking is not None:
            self._looking.cancel()

    async def _follow(self) -> None:
        try:
            while not self.over:
                try:
                    await self._take_events()
                    self.over = self.ended = True
                except SlowConsumer:
                    continue
                except Unavailable:
                    await asyncio.sleep(RETRY_S)
                except (NotFound, ShuttingDown):
                    self.over = True
        finally:
            self.over = True
            self._tell()

    async def _take_events(self) -> None:
        watch = cast("AsyncGenerator[dict[str, Any] | None, None]", self._app.watch(self._job_id, heartbeat=3600.0))
        async with contextlib.aclosing(watch) as found:
            async for event in found:
                if event is not None:
                    self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        if statuses.has_ended(event):
            return  # the end follows
        was, count = self.state, self.log_count
        self.state = statuses.after(was, event)
        log = statuses.log_of(event)
        if log is not None and (not self.logs or log["message"] != self.logs[-1]["message"]):
            self._add(log)
        if self.state is not None and self.state.kind == IN_PROGRESS and not self.logs and self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="fairlead-fal-log")
        if self.state != was or self.log_count != count:
            self._tell()

    async def _look(self) -> None:
        """Read the progress that the job reported before it was followed. It is stored a moment after the report."""
        await asyncio.sleep(LOOK_AFTER_S)
        with contextlib.suppress(Unavailable, NotFound):
            lines = statuses.logs_of(await self._app.jobs.status(self._job_id))
            if lines and not self.logs:
                self._add(lines[0])
                self._tell()

    def _add(self, log: Log) -> None:
        self.logs.append(log)
        self.log_count += 1

    def _tell(self) -> None:
        for poll in tuple(self.polls):
            poll.reconsider()


class Poll:
    """One status request that is held."""

    def __init__(self, follower: Follower, seen: Seen, wants_logs: bool, hold: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._follower = follower
        self._seen = seen
        self._wants_logs = wants_logs
        self.began = self._loop.time()
        self.until = self.began + hold
        self._answered: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self) -> None:
        self._follower.polls.add(self)
        try:
            self.reconsider()
            await self._answered
        finally:
            self._follower.polls.discard(self)
            if self._timer is not None:
                self._timer.cancel()

    def reconsider(self) -> None:
        """Answer, or set the time to answer, from what is known now."""
        if self._answered.done():
            return
        due = self._due()
        if due <= self._loop.time():
            self._answered.set_result(None)
        elif self._timer is None or due < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(due, self._answer)

    def _answer(self) -> None:
        if not self._answered.done():
            self._answered.set_result(None)

    def _due(self) -> float:
        state, seen = self._follower.state, self._seen
        if self._follower.over:
            return 0.0
        if state is None:
            return self.until
        if state.kind != seen.state.kind:
            return 0.0
        due = self.until
        if self._wants_logs and self._follower.log_count > seen.logs:
            due = min(due, seen.at + LOGS_AFTER_S)
        if state.kind == IN_QUEUE and state.position != seen.state.position:
            due = min(due, seen.at + POSITION_AFTER_S + state.position / PLACES_PER_S)
        return due


class Polls:
    """The status requests of one gateway."""

    def __init__(self, app: Fairlead) -> None:
        self._app = app
        self._followers: dict[str, Follower] = {}
        self._seen: OrderedDict[tuple[str, Client], Seen] = OrderedDict()
        self._held: dict[Client, OrderedDict[Poll, None]] = {}

    @property
    def held(self) -> int:
        """The number of polls that are held now."""
        return sum(map(len, self._held.values()))

    async def status(self, job_id: str, client: Client, *, wants_logs: bool) -> tuple[State, list[Log]]:
        """The state of a request and its log. Waits for news if this client has just got an answer. Raises NotFound,
        and Unavailable if nothing is known."""
        seen = self._seen_by(job_id, client)
        if seen is None or self._app.config.fronts.fal.hold <= 0:
            state, logs = self._known(job_id) or await self._read(job_id)
        else:
            state, logs = await self._news(job_id, client, seen, wants_logs)
        follower = self._followers.get(job_id)
        count = len(logs) if follower is None else follower.log_count
        self._remember(job_id, client, Seen(state, count, asyncio.get_running_loop().time()))
        return state, logs

    # ------------------------------------------------------------ what clients were sent

    def _seen_by(self, job_id: str, client: Client) -> Seen | None:
        seen = self._seen.get((job_id, client))
        return seen if seen is not None and seen.at > asyncio.get_running_loop().time() - QUICK_S else None

    def _remember(self, job_id: str, client: Client, seen: Seen) -> None:
        key = job_id, client
        if seen.state.kind == statuses.COMPLETED:
            self._seen.pop(key, None)
            return
        self._seen[key] = seen
        self._seen.move_to_end(key)
        while (oldest := next(iter(self._seen.values()))).at < seen.at - QUICK_S and oldest is not seen:
            self._seen.popitem(last=False)

    # ------------------------------------------------------------ what is known

    async def _read(self, job_id: str) -> tuple[State, list[Log]]:
        job = await self._app.jobs.status(job_id)
        if job.turn:
            raise NotFound(f"there is no job {job_id}")
        return statuses.of_job(job), statuses.logs_of(job)

    def _known(self, job_id: str) -> tuple[State, list[Log]] | None:
        """What the follower of a job knows, if it has one."""
        follower = self._followers.get(job_id)
        if follower is None or follower.over or follower.state is None:
            return None
        return follower.state, list(follower.logs)

    async def _news(self, job_id: str, client: Client, seen: Seen, wants_logs: bool) -> tuple[State, list[Log]]:
        follower = self._follower_of(job_id)
        poll = Poll(follower, seen, wants_logs, self._app.config.fronts.fal.hold)
        held = self._held.setdefault(client, OrderedDict())
        if len(held) >= MOST_HELD:
            self._end_oldest(held)
        held[poll] = None
        try:
            await poll.wait()
        finally:
            held.pop(poll, None)
            if not held:
                self._held.pop(client, None)
            self._leave(job_id, follower)
        if follower.over:
            state, logs = await self._read(job_id)
            return state, list(follower.logs) or logs
        if follower.state is None:
            raise Unavailable("the state of the request cannot be read", retry_after=1.0)
        return follower.state, list(follower.logs)

    def _end_oldest(self, held: OrderedDict[Poll, None]) -> None:
        """End the poll of this client that was held for the longest time."""
        poll, _ = held.popitem(last=False)
        poll.until = min(poll.until, poll.began + HELD_AT_LEAST_S)
        poll.reconsider()

    # ------------------------------------------------------------ followers

    def _follower_of(self, job_id: str) -> Follower:
        follower = self._followers.get(job_id)
        if follower is None or (follower.over and not follower.ended):
            follower = self._followers[job_id] = Follower(self._app, job_id)
        if follower.ends is not None:
            follower.ends.cancel()
            follower.ends = None
        return follower

    def _leave(self, job_id: str, follower: Follower) -> None:
        """Stop to follow a job a while after its last poll."""
        if not follower.polls and follower.ends is None:
            loop = asyncio.get_running_loop()
            follower.ends = loop.call_later(LINGER_S, self._forget, job_id, follower)

    def _forget(self, job_id: str, follower: Follower) -> None:
        follower.ends = None
        if not follower.polls:
            follower.close()
            if self._followers.get(job_id) is follower:
                del self._followers[job_id]
