"""The stream of events for one reader: a snapshot of each job or user that the reader follows, then their events in
order.

The reader subscribes before the snapshot is read, so that no event in between is missed. If events may have been lost,
the state is read again, and a new SNAPSHOT is sent if the state has changed. After the last event of a job, the job is
no longer followed. If the reader asks for the output of a job too, the last event comes after all output.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Protocol

from fairlead.app.output_stream import OutputFeed
from fairlead.domain import events, views
from fairlead.domain.events import Event
from fairlead.domain.job import OPEN, Job
from fairlead.domain.output import Output, Position
from fairlead.domain.views import JobView
from fairlead.engine.clock import Clock
from fairlead.engine.events import MOST_FOLLOWED, Hub, Subscription, topic_of
from fairlead.errors import NotFound, RequestError, Unavailable
from fairlead.pacing import DutyCycle
from fairlead.store.port import JobFilter, Store

log = logging.getLogger("fairlead.events")

MOST_WATCHED = 100
"""The number of jobs that one reader may watch by id."""
ERROR = "ERROR"
_WATCH, _UNWATCH, _REFUSE = "watch", "unwatch", "refuse"

Allowed = Callable[[JobView], bool]

POLL_EVERY = 5.0
POLL_EVERY_WITHOUT_NODE = 0.25
PAGE = 500
READING = DutyCycle(share=0.05)
"""How often followed jobs are read. Reading ten thousand jobs keeps the event loop busy for a while."""

State = tuple[object, ...]


class EventSource(Protocol):
    """Reads the snapshots of jobs and users. Implemented by `Jobs`."""

    async def get(self, job_id: str) -> JobView: ...

    async def open_jobs(self, user_id: str) -> tuple[list[JobView], bool]:
        """The newest unfinished jobs of a user, as many as fit in a snapshot; and whether the user has more."""
        ...

    def output(
        self, job_id: str, after: Position | str | None = None, heartbeat: float | None = None
    ) -> AsyncGenerator[Output | None, None]: ...


class Left(Exception):
    """The reader has disconnected."""


class EventStream:
    """The stream of events for one reader. `allowed` decides which jobs the reader may see; for other jobs the reader
    gets NotFound. `reads` limits how many streams read the store at the same time, when many have missed events."""

    def __init__(
        self, hub: Hub, source: EventSource, now: Callable[[], float], reads: asyncio.Semaphore, allowed: Allowed
    ) -> None:
        self._hub = hub
        self._source = source
        self.now = now
        self._reads = reads
        self._allowed = allowed
        self._reader = Subscription()
        self._jobs: dict[str, object] = {}
        """For each watched job, the state that was sent last; None if an event was sent since then."""
        self._user_id: str | None = None
        self._user_state: object = None
        self._outputs = OutputFeed(source, self._reader, now)

    @property
    def follows_nothing(self) -> bool:
        return not self._jobs and self._user_id is None and not self._outputs.active

    # ------------------------------------------------------------ follow

    async def watch(self, job_id: str, *, output: bool = False, after: Position | None = None) -> dict[str, Any]:
        """Follow a job, and return its snapshot. With `output`, follow its output too, from the start or after a
        position. Raises NotFound if there is no such job, and TooManyReaders; it is then not followed."""
        self._hub.follow(job_id, self._reader)
        self._jobs[job_id] = None
        try:
            job = await self._read(job_id)
            if output:
                self._outputs.start(job_id, after)
        except BaseException:
            self.unwatch(job_id)
            raise
        if job.status.finished:
            self._reader.put(Event(events.ENDED, job_id, self.now(), "the job has ended"))
        elif job.user_id == self._user_id:
            self._unfollow(job_id)  # the user's topic has its events already
        return self._snapshot(job)

    def unwatch(self, job_id: str) -> None:
        self._outputs.stop(job_id)
        self._unfollow(job_id)

    def _unfollow(self, job_id: str) -> None:
        if job_id in self._jobs:
            del self._jobs[job_id]
            self._hub.unfollow(job_id, self._reader)

    async def follow(self, user_id: str) -> dict[str, Any]:
        """Follow all jobs of a user, and return a snapshot of the unfinished ones."""
        self._user_id = user_id
        self._hub.follow(topic_of(user_id), self._reader)
        return await self._snapshot_of_user(user_id)

    def close(self) -> None:
        self._outputs.close()
        for job_id in list(self._jobs):
            self.unwatch(job_id)
        if self._user_id is not None:
            self._hub.unfollow(topic_of(self._user_id), self._reader)
            self._user_id = None

    # ------------------------------------------------------------ requests of the reader, while `next` is awaited

    def ask_watch(self, job_id: str, *, output: bool = False, after: Position | None = None) -> None:
        self._reader.put(Event(_WATCH, job_id, self.now(), "", {"output": output, "after": after}))

    def ask_unwatch(self, job_id: str) -> None:
        self._reader.put(Event(_UNWATCH, job_id, self.now(), ""))

    def refuse(self, code: str, message: str) -> None:
        """Send the reader an error, after all events that are already waiting for it."""
        self._reader.put(Event(_REFUSE, "", self.now(), message, {"code": code}))

    def leave(self) -> None:
        """Record that the reader has disconnected: `next` raises `Left` from now on."""
        self._reader.end(Left())

    # ------------------------------------------------------------ events

    async def next(self, heartbeat: float) -> dict[str, Any] | None:
        """Wait for the next event. Returns None after `heartbeat` seconds without one. Raises SlowConsumer,
        ShuttingDown or Left, and NotFound if a followed job was deleted."""
        clock = asyncio.get_running_loop().time
        until = clock() + heartbeat
        while True:
            event = await self._reader.next(max(0.0, until - clock()))
            if event is None:
                return None
            message = await self._message(event)
            if message is not None and not self._outputs.holds_back(message):
                return message

    async def _message(self, event: Event) -> dict[str, Any] | None:
        if event.type in (_WATCH, _UNWATCH, _REFUSE):
            return await self._respond(event)
        if event.type == events.OUTPUT:
            return self._outputs.next()
        if event.type == events.MISSED:
            return await self._read_missed(event.job_id)
        if event.job_id in self._jobs:
            self._jobs[event.job_id] = None
        elif self._user_id is None:
            return None  # unwatched meanwhile
        self._user_state = None
        if event.type == events.ENDED:
            return await self._ending(event.job_id)
        if event.type in events.TERMINAL:
            self._unfollow(event.job_id)
        return event.as_dict()

    async def _respond(self, event: Event) -> dict[str, Any] | None:
        if event.type == _REFUSE:
            return self.error(event.message, event.details["code"])
        if event.type == _UNWATCH:
            self.unwatch(event.job_id)
            return None
        if len(self._jobs) >= MOST_WATCHED and event.job_id not in self._jobs:
            return self.error(f"at most {MOST_WATCHED} jobs over one socket", "too_many_watched", event.job_id)
        try:
            return await self.watch(event.job_id, **event.details)
        except RequestError as error:
            return self.error(error.message, error.code, event.job_id)

    async def _ending(self, job_id: str) -> dict[str, Any] | None:
        job = await self._in_turn(lambda: self._read_again(job_id))
        if not job.status.finished:
            return None
        self._unfollow(job_id)
        return views.ending(job, self.now())

    async def _read_missed(self, topic: str) -> dict[str, Any] | None:
        if topic in self._jobs:
            before = self._jobs[topic]
            job = await self._in_turn(lambda: self._read_again(topic))
            if job.status.finished:
                self._unfollow(topic)
                return views.ending(job, self.now())
            return self._snapshot(job) if before is None or before != _state(job) else None
        user_id = self._user_id
        if user_id is None or topic != topic_of(user_id):
            return None
        before = self._user_state
        snapshot = await self._in_turn(lambda: self._snapshot_of_user(user_id))
        return snapshot if before is None or before != self._user_state else None

    # ------------------------------------------------------------ snapshots

    async def _read(self, job_id: str) -> JobView:
        job = await self._source.get(job_id)
        if not self._allowed(job):
            raise NotFound(f"there is no job {job_id}")
        return job

    async def _read_again(self, job_id: str) -> JobView:
        try:
            return await self._source.get(job_id)
        except NotFound:
            self.unwatch(job_id)
            raise

    async def _in_turn(self, read: Callable[[], Awaitable[Any]]) -> Any:
        async with self._reads:
            return await read()

    def _snapshot(self, job: JobView) -> dict[str, Any]:
        if job.job_id in self._jobs:
            self._jobs[job.job_id] = _state(job)
        return {
            "type": events.SNAPSHOT,
            "job_id": job.job_id,
            "at": events.iso(self.now()),
            "message": f"the job is {job.status}",
            "job": job.as_dict(),
        }

    async def _snapshot_of_user(self, user_id: str) -> dict[str, Any]:
        jobs, cut = await self._source.open_jobs(user_id)
        # Jobs that ended during the read have their last event queued, and must not count as open.
        ended = {event.job_id for event in self._reader.waiting() if event.type in events.TERMINAL}
        self._hub.opened(user_id, (job.job_id for job in jobs if job.job_id not in ended))
        self._user_state = [_state(job) for job in jobs]
        return self.snapshot_of_many(jobs, cut, user_id)

    def snapshot_of_many(self, jobs: list[JobView], cut: bool, user_id: str | None) -> dict[str, Any]:
        return {
            "type": events.SNAPSHOT,
            "user_id": user_id,
            "at": events.iso(self.now()),
            "message": f"open jobs: {len(jobs)}" + (", the newest" if cut else ""),
            "jobs": [job.as_dict() for job in jobs],
            "cut": cut,
        }

    def error(self, message: str, code: str, job_id: str | None = None) -> dict[str, Any]:
        which = {"job_id": job_id} if job_id is not None else {}
        return {"type": ERROR, **which, "at": events.iso(self.now()), "message": message, "code": code}


def _state(job: JobView) -> object:
    return (job.job_id, job.status, job.current_step_index, job.priority, job.started_at)


class EventPoller:
    """Reads from the store, at intervals, the jobs that readers in this process follow. The readers then learn that a
    job has ended even if the message was lost.

    `has_node`: this process receives the events of other processes. If it does not, the poller reads more often, and
    looks for any change.
    """

    def __init__(self, store: Store, hub: Hub, clock: Clock, has_node: Callable[[], bool]) -> None:
        self._store = store
        self._hub = hub
        self._clock = clock
        self._has_node = has_node
        self._states: dict[str, State] = {}
        """For each topic, the state at the last poll. Empty while this process has a node."""

    async def run(self) -> None:
        timer = asyncio.get_running_loop().time
        pause = 0.0
        while True:
            every = POLL_EVERY if self._has_node() else POLL_EVERY_WITHOUT_NODE
            await asyncio.sleep(max(every, pause))
            begun = timer()
            try:
                await self.poll()
            except Unavailable as error:
                log.debug("the followed jobs cannot be read: %s", error)
            except Exception:
                log.exception("reading the followed jobs failed")
            pause = READING.pause(timer() - begun)

    async def poll(self) -> None:
        states: dict[str, State] = {}
        followed = self._hub.jobs_here()
        for start in range(0, len(followed), PAGE):
            job_ids = followed[start : start + PAGE]
            jobs = await self._store.get_jobs(job_ids)
            now = self._clock.now()
            for job_id in job_ids:
                job = jobs.get(job_id)
                if job is None or job.status.finished:
                    self._hub.ended(job_id, now)
                else:
                    states[job_id] = _polled_state(job)
                    if job.is_set_aside:  # a call that still waits then takes the turn up again
                        self._hub.missed(job_id, now)
        if self._has_node():
            self._states = {}
        else:
            self._report_changes(states | await self._user_states())

    async def _user_states(self) -> dict[str, State]:
        states: dict[str, State] = {}
        for user_id in self._hub.users_here():
            where = JobFilter(user_id, OPEN)
            jobs = await self._store.list_jobs(where, before_seq=None, limit=MOST_FOLLOWED)
            states[topic_of(user_id)] = tuple(map(_polled_state, jobs))
        return states

    def _report_changes(self, states: dict[str, State]) -> None:
        """Notify the readers of topics whose state has changed since the last read. Readers of topics that are read for
        the first time are notified too: the state may have changed since their snapshot was read."""
        now = self._clock.now()
        for topic, state in states.items():
            if self._states.get(topic) != state:
                self._hub.missed(topic, now)
        self._states = states


def _polled_state(job: Job) -> State:
    return (job.id, job.status, job.step, job.run, job.priority)
