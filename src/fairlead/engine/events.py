"""Delivers the events of jobs to the readers in this process. Each reader has a bounded buffer; a reader whose buffer
is full is disconnected."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from fairlead.domain.events import ENDED, MISSED, OUTPUT, POSITION, PROGRESS, TERMINAL, Event
from fairlead.domain.output import Entry
from fairlead.domain.views import EndedJob

BUFFER = 256
MOST_FOLLOWED = 200
"""For one followed user, the maximal number of open jobs whose positions are published and whose ends are looked up."""

USER = "user:"
OUTPUT_OF = "output:"
_LATEST_ONLY = frozenset({POSITION, PROGRESS, MISSED})


class SlowConsumer(Exception):
    """The reader did not keep up and was disconnected. When it reconnects, it gets the current state."""


class ShuttingDown(Exception):
    """This process is stopping; the reader should connect to another one."""


class Subscription:
    """One reader. It follows one job, several jobs, or all jobs of a user. `places`: the reader also wants the queue
    positions of these jobs."""

    __slots__ = ("_events", "_over", "_waiter", "places")

    def __init__(self, *, places: bool = True) -> None:
        self.places = places
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._over: Exception | None = None

    def put(self, event: Event) -> None:
        if self._over is not None:
            return
        last = self._events[-1] if self._events else None
        if last is not None and event.type in _LATEST_ONLY and _same(last, event):
            # A handler may report a thousand times before the reader is scheduled.
            self._events[-1] = event
        elif len(self._events) < BUFFER:
            self._events.append(event)
        else:
            self.end(SlowConsumer())
            return
        self._wake()

    def end(self, reason: Exception) -> None:
        """Deliver no further events; the next read raises `reason`."""
        if self._over is None:
            self._over = reason
            self._events.clear()
            self._wake()

    def waiting(self) -> Iterable[Event]:
        """The events that were delivered to this reader and not read yet."""
        return tuple(self._events)

    async def next(self, timeout: float | None = None) -> Event | None:
        """The next event, or None after `timeout` seconds without one."""
        while not self._events:
            if self._over is not None:
                raise self._over
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(timeout):
                    await self._waiter
            except TimeoutError:
                return None
            finally:
                self._waiter = None
        return self._events.popleft()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _same(one: Event, other: Event) -> bool:
    return one.type == other.type and one.job_id == other.job_id


class Carrier(Protocol):
    """Carries events to and from other processes."""

    def send(self, topic: str, event: Event) -> None: ...

    def watch(self, topic: str) -> None: ...

    def unwatch(self, topic: str) -> None: ...


class Hub:
    """Delivers events to the readers in this process, and exchanges events with other processes while a carrier is
    connected.

    Readers follow topics. The topic of a job is its id, the topic of a user is `topic_of(user_id)`, and the topic of a
    job's output is `output_topic_of(job_id)`. Publishing an event that has no readers costs a dictionary lookup.
    """

    def __init__(self) -> None:
        self._readers: dict[str, set[Subscription]] = {}
        self._followed: dict[str, _Followed] = {}
        self._placed: Counter[str] = Counter()
        """For each job, how many of its readers want its position."""
        self._user_of: dict[str, str] = {}
        """For each open job of a followed user, the user."""
        self._present: set[Subscription] = set()
        self._awaited: dict[str, list[asyncio.Future[EndedJob | None]]] = {}
        """For each job, the callers here that await only its end."""
        self.elsewhere: set[str] = set()
        """Topics that are watched in other processes."""
        self._carrier: Carrier | None = None

    def connect(self, carrier: Carrier) -> None:
        self._carrier = carrier

    def disconnect(self) -> None:
        self._carrier = None

    # ------------------------------------------------------------ readers

    def watched(self, job_id: str, user_id: str) -> bool:
        if not self._readers and not self.elsewhere:
            return False
        return job_id in self._readers or job_id in self.elsewhere or self.follows(user_id)

    def follows(self, user_id: str) -> bool:
        if not self._readers and not self.elsewhere:
            return False
        topic = topic_of(user_id)
        return topic in self._readers or topic in self.elsewhere

    def topics_here(self) -> list[str]:
        return list(self._readers)

    @property
    def readers(self) -> int:
        """The number of readers in this process; a reader counts once for every topic that it follows."""
        return sum(map(len, self._readers.values()))

    def readers_of(self, topic: str) -> int:
        """The number of readers of one topic in this process."""
        return len(self._readers.get(topic, ()))

    def users_here(self) -> list[str]:
        return list(self._followed)

    def jobs_here(self) -> list[str]:
        """The ids of the jobs that readers in this process follow, directly or through the user of the job."""
        return [*self._user_of, *(topic for topic in self._readers if _is_job(topic) and topic not in self._user_of)]

    def placed_here(self) -> list[str]:
        """The ids of the jobs whose queue positions readers in this process want. Other jobs are left out, because
        positions are expensive to compute when many jobs wait."""
        return [*self._user_of, *(job_id for job_id in self._placed if job_id not in self._user_of)]

    def is_watched_here(self, job_id: str) -> bool:
        return job_id in self._awaited or self._is_followed(job_id)

    def _is_followed(self, job_id: str) -> bool:
        return job_id in self._readers or job_id in self._user_of

    def follow(self, topic: str, reader: Subscription) -> None:
        if topic not in self._readers:
            self._readers[topic] = set()
            if topic.startswith(USER):
                self._followed[topic.removeprefix(USER)] = _Followed()
            if self._carrier is not None:
                self._carrier.watch(topic)
        if reader.places and _is_job(topic) and reader not in self._readers[topic]:
            self._placed[topic] += 1
        self._readers[topic].add(reader)

    def unfollow(self, topic: str, reader: Subscription) -> None:
        readers = self._readers.get(topic, set())
        if reader.places and reader in readers and topic in self._placed:
            self._placed[topic] -= 1
            if not self._placed[topic]:
                del self._placed[topic]
        readers.discard(reader)
        if topic in self._readers and not readers:
            del self._readers[topic]
            if topic.startswith(USER):
                for job_id in self._followed.pop(topic.removeprefix(USER)).open:
                    del self._user_of[job_id]
            if self._carrier is not None:
                self._carrier.unwatch(topic)

    @contextmanager
    def subscribe(self, job_id: str, *, places: bool = True) -> Iterator[Subscription]:
        reader = Subscription(places=places)
        self.follow(job_id, reader)
        try:
            yield reader
        finally:
            self.unfollow(job_id, reader)

    @contextmanager
    def present(self) -> Iterator[Subscription]:
        """Register a reader without a topic while the block runs. The reader gets no events; when this process stops,
        its next read raises ShuttingDown."""
        reader = Subscription()
        self._present.add(reader)
        try:
            yield reader
        finally:
            self._present.discard(reader)

    # ------------------------------------------------------------ callers that await the end of a job

    def await_end(self, job_id: str, loop: asyncio.AbstractEventLoop) -> asyncio.Future[EndedJob | None]:
        """A future for the end of a job, for a caller that waits a moment and calls `forget_end` then. Its result is
        None if the caller must read the end. Unlike a reader, it costs no subscription: ends are broadcast to every
        process. Raises ShuttingDown when this process stops."""
        end: asyncio.Future[EndedJob | None] = loop.create_future()
        self._awaited.setdefault(job_id, []).append(end)
        return end

    def forget_end(self, job_id: str, end: asyncio.Future[EndedJob | None]) -> None:
        ends = self._awaited[job_id]
        ends.remove(end)
        if not ends:
            del self._awaited[job_id]

    def awaits_end(self, job_id: str) -> bool:
        return job_id in self._awaited

    def end_written(self, job_id: str, ended: EndedJob | None) -> None:
        """Resolve the futures of `await_end` for this job. `ended` is None if only the database has the end."""
        for end in self._awaited.get(job_id, ()):
            if not end.done():
                end.set_result(ended)

    # ------------------------------------------------------------ delivery

    def publish(self, event: Event, user_id: str) -> None:
        self.tell(event, user_id)
        if self._carrier is not None:
            for topic in (event.job_id, topic_of(user_id)):
                if topic in self.elsewhere:
                    self._carrier.send(topic, event)

    def publish_output(self, entry: Entry) -> None:
        """Deliver chunks to the readers of the job's output, here and in other processes."""
        topic = OUTPUT_OF + entry.job_id
        readers = self._readers.get(topic)
        sends = self._carrier is not None and topic in self.elsewhere
        if not readers and not sends:
            return
        event = Event(OUTPUT, entry.job_id, 0.0, "", {"entry": entry.as_list()})
        for reader in readers or ():
            reader.put(event)
        if sends and self._carrier is not None:
            self._carrier.send(topic, event)

    def tell(self, event: Event, user_id: str | None) -> None:
        """Deliver an event to the readers in this process, but not to other processes. `user_id` is None if no reader
        here follows the user of the job."""
        self.tell_on(event.job_id, event)
        if user_id is not None:
            self.tell_on(topic_of(user_id), event)

    def tell_on(self, topic: str, event: Event) -> None:
        """Deliver an event to the readers of one topic in this process."""
        readers = self._readers.get(topic)
        if readers and (not topic.startswith(USER) or self._is_news(topic.removeprefix(USER), event)):
            for reader in readers:
                reader.put(event)

    def ended(self, job_id: str, now: float) -> None:
        """Notify the readers in this process that the job has ended, in case its last event was not delivered here.
        Readers that have received the end already are not notified twice."""
        self.end_written(job_id, None)
        if not self._is_followed(job_id):
            return
        event = Event(ENDED, job_id, now, "the job has ended")
        self.tell_on(job_id, event)
        if job_id in self._user_of:
            self.tell_on(topic_of(self._user_of[job_id]), event)

    def missed(self, topic: str, now: float) -> None:
        for reader in self._readers.get(topic, ()):
            reader.put(Event(MISSED, topic, now, "events may have been missed"))

    def dismiss(self) -> None:
        """Disconnect all current readers. New readers may still subscribe."""
        for readers in (*self._readers.values(), self._present):
            for reader in readers:
                reader.end(ShuttingDown())
        for ends in self._awaited.values():
            for end in ends:
                if not end.done():
                    end.set_exception(ShuttingDown())

    # ------------------------------------------------------------ open jobs of followed users

    def user_of(self, job_id: str) -> str | None:
        """The user of this job, if a reader in this process follows that user and the job is open; None otherwise."""
        return self._user_of.get(job_id)

    def opened(self, user_id: str, job_ids: Iterable[str]) -> None:
        """Record the jobs of a followed user that are open according to the database."""
        followed = self._followed.get(user_id)
        if followed is None:
            return
        for job_id in job_ids:
            followed.looked_up.pop(job_id, None)
            if len(followed.open) < MOST_FOLLOWED:
                followed.open.add(job_id)
                self._user_of[job_id] = user_id

    def _is_news(self, user_id: str, event: Event) -> bool:
        """Add the job of this event to the user's open jobs, or remove it if the event ends the job. Returns False if
        the readers have already been notified of this end."""
        followed = self._followed[user_id]
        if event.type != ENDED and event.type not in TERMINAL:
            if event.type != POSITION:  # a position may arrive after the job has ended
                self.opened(user_id, [event.job_id])
            return True
        was_open = event.job_id in followed.open
        followed.open.discard(event.job_id)
        self._user_of.pop(event.job_id, None)
        if event.type != ENDED:
            return followed.looked_up.pop(event.job_id, True)
        if was_open:
            followed.looked_up[event.job_id] = False
            if len(followed.looked_up) > MOST_FOLLOWED:
                del followed.looked_up[next(iter(followed.looked_up))]
        return was_open


@dataclass(slots=True)
class _Followed:
    """A user whose jobs are followed in this process."""

    open: set[str] = field(default_factory=set)
    """The ids of the user's open jobs, at most `MOST_FOLLOWED`."""
    looked_up: dict[str, bool] = field(default_factory=dict)
    """Jobs whose end was read from the database before the event of their end arrived. The event is then suppressed."""


def topic_of(user_id: str) -> str:
    return USER + user_id


def output_topic_of(job_id: str) -> str:
    return OUTPUT_OF + job_id


def _is_job(topic: str) -> bool:
    return not topic.startswith((USER, OUTPUT_OF))
