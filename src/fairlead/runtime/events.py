"""What happens to jobs, told to those who watch. A reader that falls behind is dropped, never buffered without
bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
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
BUFFER = 256


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


class Subscription:
    """One reader of one job's events."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue(BUFFER)
        self._dropped = False

    def put(self, event: Event) -> None:
        if self._dropped:
            return
        try:
            self._events.put_nowait(event)
        except asyncio.QueueFull:
            self._dropped = True

    async def next(self, timeout: float | None = None) -> Event | None:
        """The next event, or None after `timeout` seconds without one."""
        if self._dropped and self._events.empty():
            raise TooSlow
        try:
            async with asyncio.timeout(timeout):
                return await self._events.get()
        except TimeoutError:
            return None


class Hub:
    """Events within this process, and between processes if there is someone to carry them. A job that nobody watches
    costs one look-up."""

    def __init__(self) -> None:
        self._readers: dict[str, set[Subscription]] = {}
        self.elsewhere: set[str] = set()
        """Jobs that are watched in other processes."""
        self.on_event: Callable[[Event], None] = lambda event: None
        self.on_watch: Callable[[str], None] = lambda job_id: None
        self.on_unwatch: Callable[[str], None] = lambda job_id: None

    def watched(self, job_id: str) -> bool:
        return job_id in self._readers or job_id in self.elsewhere

    def watched_here(self) -> list[str]:
        return list(self._readers)

    @property
    def readers(self) -> int:
        """How many watch, in this process."""
        return sum(map(len, self._readers.values()))

    def is_watched_here(self, job_id: str) -> bool:
        return job_id in self._readers

    def publish(self, event: Event) -> None:
        self.tell(event)
        if event.job_id in self.elsewhere:
            self.on_event(event)

    def tell(self, event: Event) -> None:
        """The readers of this process alone."""
        for reader in self._readers.get(event.job_id, ()):
            reader.put(event)

    @contextmanager
    def subscribe(self, job_id: str) -> Iterator[Subscription]:
        reader = Subscription()
        if job_id not in self._readers:
            self._readers[job_id] = set()
            self.on_watch(job_id)
        self._readers[job_id].add(reader)
        try:
            yield reader
        finally:
            readers = self._readers[job_id]
            readers.discard(reader)
            if not readers:
                del self._readers[job_id]
                self.on_unwatch(job_id)


def iso(moment: float | None) -> str | None:
    """ISO 8601 in UTC, to the millisecond."""
    if moment is None:
        return None
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
