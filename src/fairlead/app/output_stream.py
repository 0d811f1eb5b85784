"""The output of one job for one reader: the chunks that are kept, then chunks as they are emitted, then the end.

The reader subscribes to live chunks before the log is read, so that none is missed in between. A gap in the live chunks
is filled from the log. Messages may be lost, so the log is also read at intervals. When the job has ended, the reader
must have the output of each step as the store has it. If it does not, because the log has lost it, the reader is sent a
`Restart` and the results of the steps.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fairlead.artifacts.files import Files
from fairlead.artifacts.values import load_stored
from fairlead.dispatch.output_log import PAGE, OutputLog
from fairlead.domain import events
from fairlead.domain.events import Event
from fairlead.domain.output import Chunk, End, Entry, Output, Position, Restart, StepOutput, outputs_of
from fairlead.domain.views import JobView
from fairlead.engine.events import Hub, Subscription, output_topic_of
from fairlead.errors import Unavailable

POLL_FIRST, POLL_MOST = 0.02, 5.0
"""The log is read again after the first delay, then after twice the delay each time, while no chunk arrives."""
POLL_WITHOUT_NODE = 0.25
NEW_S = 0.25
SETTLES_WITHIN = 1.0
"""How long the last chunks of a step may reach the log after the job has ended."""


Batch = Sequence[Output]

MOST_READY = 64
"""The number of messages that are ready for one reader. The output waits until the reader has taken them."""


class Gap(Exception):
    """Chunks before those of this entry are missing."""


class Cursor:
    """What one reader has received."""

    def __init__(self, after: Position | None) -> None:
        self.after = after
        """Where an earlier reader stopped; None once the step of that position is known."""
        self._run = 0 if after is None else after.run
        self._next = 0 if after is None else after.sequence + 1
        self._first_step = 0
        """Earlier steps were delivered to an earlier reader."""
        self._delivered: dict[int, tuple[int, int]] = {}
        """For each step, the run that was delivered and the number of its chunks."""

    @property
    def since(self) -> Position | None:
        """Where to read the log. The position `after` is read again, to find out its step."""
        return self.after or (Position(self._run, self._next) if self._run else None)

    def take(self, entry: Entry) -> Iterator[Output]:
        """The chunks of this entry that are new to the reader. Raises Gap if chunks before them are missing."""
        if entry.run < self._run:
            return
        if entry.run > self._run:
            if entry.first or self.after is not None:
                raise Gap
            yield from self.restart(entry.step_index)
            self._run, self._next = entry.run, 0
        elif entry.first > self._next:
            raise Gap
        self._locate(entry.step_index)
        for sequence in range(self._next, entry.last + 1):
            self._next = sequence + 1
            self._delivered[entry.step_index] = (self._run, self._next)
            chunk = entry.chunks[sequence - entry.first]
            yield Chunk(Position(self._run, sequence), entry.step_index, entry.attempt, chunk)

    def has(self, entry: Entry) -> bool:
        """Whether the reader has received all chunks of this entry."""
        return entry.run < self._run or (entry.run == self._run and entry.last < self._next)

    def restart(self, step_index: int) -> Iterator[Restart]:
        """A Restart from this step on, if the reader has received chunks of it."""
        discarded = [step for step in self._delivered if step >= step_index]
        for step in discarded:
            del self._delivered[step]
        if discarded:
            yield Restart(step_index)

    def locate_in(self, entries: Sequence[Entry]) -> None:
        """Find the step of the position `after` in the log."""
        for entry in entries:
            if self.after is not None and entry.run == self.after.run and entry.first <= self.after.sequence + 1:
                self._locate(entry.step_index)

    def _locate(self, step_index: int) -> None:
        if self.after is not None:
            self.after = None
            self._first_step = step_index
            self._delivered[step_index] = (self._run, self._next)

    def locate_among(self, outputs: Sequence[StepOutput]) -> bool:
        """Find the step of the position `after` in the store. Returns False if the store does not have its run."""
        for output in outputs:
            if self.after is not None and output.run == self.after.run and self.after <= output.last:
                self._locate(output.step_index)
        return self.after is None

    def missing(self, outputs: Sequence[StepOutput]) -> int | None:
        """The first step whose output the reader does not have as the store has it."""
        for output in outputs:
            has = self._delivered.get(output.step_index)
            if output.step_index >= self._first_step and has != ((output.run, output.count) if output.count else None):
                return output.step_index
        return None


@dataclass(slots=True)
class OutputSources:
    """What the output of a job is read from."""

    hub: Hub
    log: OutputLog
    get: Callable[[str], Awaitable[JobView]]
    has_node: Callable[[], bool]
    now: Callable[[], float]
    files: Files


class OutputStream:
    """`new`: the job was submitted just now, so that it has neither ended nor output. It is not read before the first
    chunk, but a moment later, in case it ended before the reader had subscribed."""

    def __init__(self, sources: OutputSources, job_id: str, after: Position | None, *, new: bool = False) -> None:
        self._sources = sources
        self._job_id = job_id
        self._new = new
        self._cursor = Cursor(after)
        self._reader = Subscription(places=False)
        self._timer = asyncio.get_running_loop().time
        self._delay = POLL_FIRST
        self._poll_at = 0.0
        self._gap = False
        self._log_works = True

    async def follow(self, heartbeat: float | None) -> AsyncGenerator[Output | None, None]:
        """The output until the job ends; None after `heartbeat` seconds without any."""
        async with contextlib.aclosing(self.follow_batches(heartbeat)) as batches:
            async for batch in batches:
                for output in batch:
                    yield output
                if not batch:
                    yield None

    async def follow_batches(self, heartbeat: float | None) -> AsyncGenerator[Batch, None]:
        """The output until the job ends, in batches of what is known at once; an empty batch after `heartbeat` seconds
        without output."""
        with self._subscribed():
            job, read_at = None, self._timer() + NEW_S
            if self._new:
                self._later(POLL_FIRST)
            else:
                job = await self._sources.get(self._job_id)
                async for batch in self._catch_up():
                    yield batch
            beat_at = self._beat(heartbeat)
            while job is None or not job.status.finished:
                event = await self._reader.next(max(0.0, min(beat_at, self._poll_at) - self._timer()))
                is_due = job is None and self._timer() >= read_at
                if is_due or (event is not None and _may_have_ended(event, self._job_id)):
                    job = await self._sources.get(self._job_id)
                async for batch in self._react(event):
                    beat_at = self._beat(heartbeat)
                    yield batch
                if self._timer() >= beat_at:
                    beat_at = self._beat(heartbeat)
                    yield []
            async for batch in self._finish(job):
                if batch:
                    yield batch
            yield [End(job)]

    @contextlib.contextmanager
    def _subscribed(self) -> Iterator[None]:
        topics = (self._job_id, output_topic_of(self._job_id))
        for topic in topics:
            self._sources.hub.follow(topic, self._reader)
        try:
            yield
        finally:
            for topic in topics:
                self._sources.hub.unfollow(topic, self._reader)

    def _beat(self, heartbeat: float | None) -> float:
        return float("inf") if heartbeat is None else self._timer() + heartbeat

    async def _react(self, event: Event | None) -> AsyncIterator[Batch]:
        """The output that an event brings, or the log if it is due."""
        if event is not None and event.type == events.OUTPUT:
            try:
                entry = Entry.of_list(self._job_id, event.details["entry"])
                chunks = list(self._cursor.take(await self._whole(entry)))
                if chunks:
                    # Later chunks were sent while this one was saved, and are in the log now.
                    self._later(POLL_MOST if entry.stored is None else POLL_FIRST)
                    yield chunks
            except Gap:
                if not self._gap:  # the log may be a little behind
                    self._gap = True
                    self._later(POLL_FIRST)
        if self._timer() >= self._poll_at or (event is not None and event.type == events.MISSED):
            async for batch in self._catch_up():
                yield batch

    def _later(self, delay: float) -> None:
        self._delay = delay if self._sources.has_node() else min(delay, POLL_WITHOUT_NODE)
        self._poll_at = self._timer() + self._delay

    # ------------------------------------------------------------ the log

    async def _catch_up(self) -> AsyncIterator[Batch]:
        """Everything in the log that is new to the reader."""
        self._gap = False
        self._later(min(POLL_MOST, self._delay * 2))
        since, skipped = self._cursor.since, 0
        while True:
            entries = await self._read(since)
            self._cursor.locate_in(entries)
            if self._cursor.after is not None and entries:
                yield [self._begin_again()]
                since = None
                continue
            for entry in _newest(entries):
                if entry.run == skipped:
                    continue
                try:
                    if batch := list(self._cursor.take(await self._whole(entry))):
                        yield batch
                except Gap:
                    self._gap, skipped = True, entry.run
            if len(entries) < PAGE:
                return
            since = Position(entries[-1].run, entries[-1].last + 1)

    async def _whole(self, entry: Entry) -> Entry:
        """The entry with its chunk, if that is in a file. Raises Gap if the file cannot be read."""
        if entry.stored is None or self._cursor.has(entry):
            return entry
        try:
            chunk = await load_stored(self._sources.files, self._job_id, entry.stored)
        except Unavailable:
            chunk = None
        if chunk is None:
            raise Gap
        return replace(entry, chunks=[chunk], stored=None)

    def _begin_again(self) -> Restart:
        """Begin at the start of the output, because it is not known any more where the reader stopped."""
        self._cursor = Cursor(None)
        return Restart(0)

    async def _read(self, since: Position | None) -> list[Entry]:
        try:
            entries = await self._sources.log.read(self._job_id, since)
        except Unavailable:
            self._log_works = False
            return []
        self._log_works = True
        return entries

    # ------------------------------------------------------------ the end

    async def _finish(self, job: JobView) -> AsyncIterator[Batch]:
        """The rest of the output of a job that has ended."""
        outputs = outputs_of(job)
        async for batch in self._settle(job, outputs):
            yield batch
        if not self._cursor.locate_among(outputs):
            yield [self._begin_again()]
            async for batch in self._catch_up():
                yield batch
        step_index = self._cursor.missing(outputs)
        if step_index is not None:
            yield [*self._cursor.restart(step_index)]
            for each in outputs:
                if each.step_index >= step_index:
                    yield [*each.chunks()]

    async def _settle(self, job: JobView, outputs: Sequence[StepOutput]) -> AsyncIterator[Batch]:
        """Read on until the reader has everything, or the log can no longer be a little behind."""
        ended_at = self._sources.now() if job.finished_at is None else job.finished_at.timestamp()
        until = self._timer() + min(SETTLES_WITHIN, ended_at + SETTLES_WITHIN - self._sources.now())
        waiting = list(self._reader.waiting())
        self._delay, self._poll_at = POLL_FIRST, 0.0
        while not self._is_complete(outputs):
            async for batch in self._react(waiting.pop(0) if waiting else None):
                yield batch
            rest = until - self._timer()
            if not waiting and not self._is_complete(outputs):
                if rest <= 0 or not self._log_works:
                    return
                event = await self._reader.next(max(0.0, min(rest, self._poll_at - self._timer())))
                waiting += [] if event is None else [event]

    def _is_complete(self, outputs: Sequence[StepOutput]) -> bool:
        return self._cursor.after is None and self._cursor.missing(outputs) is None


class OutputSource(Protocol):
    def output(
        self, job_id: str, after: Position | str | None = None, heartbeat: float | None = None
    ) -> AsyncGenerator[Output | None, None]: ...


class OutputFeed:
    """Passes the output of jobs to the reader of an event stream, no faster than the reader takes it. An OUTPUT event
    in the reader's subscription means that a message is ready. The last event of a job is held back until the job's
    output has ended."""

    def __init__(self, source: OutputSource, reader: Subscription, now: Callable[[], float]) -> None:
        self._source = source
        self._reader = reader
        self._now = now
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._messages: deque[dict[str, Any]] = deque()
        self._room = asyncio.Semaphore(MOST_READY)
        self._signalled = False
        self._held: dict[str, dict[str, Any]] = {}

    @property
    def active(self) -> bool:
        return bool(self._tasks or self._messages)

    def start(self, job_id: str, after: Position | None) -> None:
        """Follow the output of a job. Raises TooManyReaders."""
        if job_id not in self._tasks:
            output = self._source.output(job_id, after)
            self._tasks[job_id] = asyncio.get_running_loop().create_task(self._run(job_id, output))

    def stop(self, job_id: str) -> None:
        if job_id in self._tasks:
            self._tasks.pop(job_id).cancel()

    def close(self) -> None:
        for job_id in list(self._tasks):
            self.stop(job_id)

    def holds_back(self, message: dict[str, Any]) -> bool:
        """Whether this message is the last one of a job whose output was not sent yet. It is then sent after the
        output."""
        if message["type"] not in events.TERMINAL:
            return False
        job_id = message["job_id"]
        if job_id in self._tasks:
            self._held[job_id] = message
            return True
        if any(ready["job_id"] == job_id and ready["type"] not in events.TERMINAL for ready in self._messages):
            self._messages.append(message)
            return True
        return False

    def next(self) -> dict[str, Any] | None:
        """The next message that is ready."""
        self._signalled = False
        if not self._messages:
            return None
        message = self._messages.popleft()
        if message["type"] not in events.TERMINAL:
            self._room.release()
        if self._messages:
            self._signal()
        return message

    async def _run(self, job_id: str, followed: AsyncGenerator[Output | None, None]) -> None:
        try:
            async with contextlib.aclosing(followed) as output:
                async for each in output:
                    if isinstance(each, Chunk):
                        await self._put(job_id, events.OUTPUT, each.as_dict())
                    elif isinstance(each, Restart):
                        await self._put(job_id, events.OUTPUT_RESTART, {"step_index": each.step_index})
        except Exception as error:
            self._reader.end(error)
        self._tasks.pop(job_id, None)
        if job_id in self._held:
            self._messages.append(self._held.pop(job_id))
            self._signal()

    async def _put(self, job_id: str, kind: str, fields: dict[str, Any]) -> None:
        await self._room.acquire()
        self._messages.append({"type": kind, "job_id": job_id, "at": events.iso(self._now()), **fields})
        self._signal()

    def _signal(self) -> None:
        if not self._signalled:
            self._signalled = True
            self._reader.put(Event(events.OUTPUT, "", self._now(), ""))


def _newest(entries: Sequence[Entry]) -> list[Entry]:
    """Leave out entries of runs that a later run in the list has replaced."""
    kept: list[Entry] = []
    for entry in entries:
        while kept and kept[-1].run < entry.run and kept[-1].step_index >= entry.step_index:
            kept.pop()
        kept.append(entry)
    return kept


def _may_have_ended(event: Event, job_id: str) -> bool:
    if event.type == events.MISSED:
        return event.job_id == job_id
    return event.type == events.ENDED or event.type in events.TERMINAL
