"""What happens to jobs, told to those who watch. A reader that falls behind is dropped, never buffered without
bound."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

WAITING = "WAITING"
POSITION = "POSITION"
STEP_START = "STEP_START"
STEP_COMPLETE = "STEP_COMPLETE"
PROGRESS = "PROGRESS"
JOB_PROMOTED = "JOB_PROMOTED"
JOB_RETRYING = "JOB_RETRYING"
JOB_FAILED = "JOB_FAILED"
JOB_CANCELLED = "JOB_CANCELLED"
JOB_COMPLETE = "JOB_COMPLETE"
SNAPSHOT = "SNAPSHOT"

TERMINAL = frozenset({JOB_FAILED, JOB_CANCELLED, JOB_COMPLETE})
ENDED = "ENDED"
"""Within a process only: it has ended, in another one; look how."""
MISSED = "MISSED"
"""Within a process only: something may not have been heard; look how it is."""
BUFFER = 256
MOST_FOLLOWED = 200
"""Open jobs of one followed user whose place in line is told, and whose end is looked for."""

USER = "user:"
_THE_LATEST_COUNTS = frozenset({POSITION, PROGRESS, MISSED})


@dataclass(frozen=True, slots=True)
class Event:
    type: str
    job_id: str
    at: float
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "job_id": self.job_id,
            "at": iso(self.at),
            "message": self.message,
            **self.details,
        }

    @classmethod
    def of_dict(cls, said: dict[str, Any]) -> Event:
        details = {key: value for key, value in said.items() if key not in ("type", "job_id", "at", "message")}
        at = datetime.fromisoformat(said["at"]).timestamp()
        return cls(said["type"], said["job_id"], at, said["message"], details)


class TooSlow(Exception):
    """The reader did not keep up and was dropped; reconnecting gives the present state."""


class Dismissed(Exception):
    """This process tells no more: it stops, and the reader finds another one."""


class Subscription:
    """One reader: of a job, of several, or of all that a user has. `places`: it wants to hear where they stand."""

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
        if last is not None and event.type in _THE_LATEST_COUNTS and _same(last, event):
            # A handler may report a thousand times before anybody gets to read.
            self._events[-1] = event
        elif len(self._events) < BUFFER:
            self._events.append(event)
        else:
            self.end(TooSlow())
            return
        self._wake()

    def end(self, reason: Exception) -> None:
        """Nothing more is told; whoever reads hears `reason` instead."""
        if self._over is None:
            self._over = reason
            self._events.clear()
            self._wake()

    def waiting(self) -> Iterable[Event]:
        """What was told and is not read yet."""
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


class Hub:
    """Events within this process, and between processes if there is someone to carry them.

    Readers follow topics: a job's is its id, a user's is `topic_of(user_id)`. A job that nobody watches, and whose user
    nobody follows, costs a look-up.
    """

    def __init__(self) -> None:
        self._readers: dict[str, set[Subscription]] = {}
        self._followed: dict[str, _Followed] = {}
        self._placed: Counter[str] = Counter()
        """Jobs with readers that want to hear where they stand, and how many."""
        self._user_of: dict[str, str] = {}
        """The users' jobs that are known to be open."""
        self._present: set[Subscription] = set()
        self.elsewhere: set[str] = set()
        """Topics that are watched in other processes."""
        self.on_event: Callable[[str, Event], None] = lambda topic, event: None
        self.on_watch: Callable[[str], None] = lambda topic: None
        self.on_unwatch: Callable[[str], None] = lambda topic: None

    # ------------------------------------------------------------ who watches

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
        """How many watch, in this process."""
        return sum(map(len, self._readers.values()))

    def users_here(self) -> list[str]:
        return list(self._followed)

    def jobs_here(self) -> list[str]:
        """Jobs that are watched in this process, by themselves or with their user."""
        return [*self._user_of, *(topic for topic in self._readers if _is_job(topic) and topic not in self._user_of)]

    def placed_here(self) -> list[str]:
        """Those of them whose readers want to hear where they stand: to find out is dear when many wait."""
        return [*self._user_of, *(job_id for job_id in self._placed if job_id not in self._user_of)]

    def is_watched_here(self, job_id: str) -> bool:
        return job_id in self._readers or job_id in self._user_of

    def follow(self, topic: str, reader: Subscription) -> None:
        if topic not in self._readers:
            self._readers[topic] = set()
            if not _is_job(topic):
                self._followed[topic.removeprefix(USER)] = _Followed()
            self.on_watch(topic)
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
            if not _is_job(topic):
                for job_id in self._followed.pop(topic.removeprefix(USER)).open:
                    del self._user_of[job_id]
            self.on_unwatch(topic)

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
        """A reader of no topic, who looks for itself: it is told nothing but that this process stops."""
        reader = Subscription()
        self._present.add(reader)
        try:
            yield reader
        finally:
            self._present.discard(reader)

    # ------------------------------------------------------------ what is told

    def publish(self, event: Event, user_id: str) -> None:
        self.tell(event, user_id)
        for topic in (event.job_id, topic_of(user_id)):
            if topic in self.elsewhere:
                self.on_event(topic, event)

    def tell(self, event: Event, user_id: str | None) -> None:
        """The readers of this process alone; None: nobody here follows its user."""
        self.tell_on(event.job_id, event)
        if user_id is not None:
            self.tell_on(topic_of(user_id), event)

    def tell_on(self, topic: str, event: Event) -> None:
        """Those of one topic, in this process."""
        readers = self._readers.get(topic)
        if readers and (_is_job(topic) or self._is_news(topic.removeprefix(USER), event)):
            for reader in readers:
                reader.put(event)

    def ended(self, job_id: str, now: float) -> None:
        """It has ended, and how was not told here. Whoever has heard of the end does not hear of it again."""
        event = Event(ENDED, job_id, now, "the job has ended")
        self.tell_on(job_id, event)
        if job_id in self._user_of:
            self.tell_on(topic_of(self._user_of[job_id]), event)

    def missed(self, topic: str, now: float) -> None:
        for reader in self._readers.get(topic, ()):
            reader.put(Event(MISSED, topic, now, "something may have been missed"))

    def dismiss(self) -> None:
        """All readers of now; new ones may come."""
        for readers in (*self._readers.values(), self._present):
            for reader in readers:
                reader.end(Dismissed())

    # ------------------------------------------------------------ the open jobs of users who are followed

    def user_of(self, job_id: str) -> str | None:
        """Of a job that is watched here with its user."""
        return self._user_of.get(job_id)

    def opened(self, user_id: str, job_ids: Iterable[str]) -> None:
        """These are open, as the truth says."""
        followed = self._followed.get(user_id)
        if followed is None:
            return
        for job_id in job_ids:
            followed.looked_up.pop(job_id, None)
            if len(followed.open) < MOST_FOLLOWED:
                followed.open.add(job_id)
                self._user_of[job_id] = user_id

    def _is_news(self, user_id: str, event: Event) -> bool:
        """Keeps the list of open jobs, and keeps an end from being told twice."""
        followed = self._followed[user_id]
        if event.type != ENDED and event.type not in TERMINAL:
            if event.type != POSITION:  # which may come late
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
    """As many as are kept."""
    looked_up: dict[str, bool] = field(default_factory=dict)
    """Jobs whose end was found in the truth before it was told: when it is told after all, it is no news."""


def topic_of(user_id: str) -> str:
    return USER + user_id


def _is_job(topic: str) -> bool:
    return not topic.startswith(USER)


def iso(moment: float | None) -> str | None:
    """ISO 8601 in UTC, to the millisecond."""
    if moment is None:
        return None
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
