"""The group commit: each caller awaits its own transition, and the writer commits the transitions of many callers at
once.

While a commit is under way, new transitions queue up; when it ends, they form the next batch. An idle system therefore
commits at once, and a busy one commits hundreds of transitions per fsync, with no timer to tune. The rules:

- A batch holds at most one transition per job. Later transitions of the same job wait for a later batch, in order. The
  registrations of a process and its deregistration are ordered the same way.
- With several `writers`, that many commits run at once. Each holds one kind of transition, and no two hold the same
  job. This suits a store behind a network: while the server works on one batch, the next one is assembled and the
  callers of the last one resume.
- A batch that fails is bisected and retried, so that only the caller at fault gets the error.
- Transient errors (`Busy`: a lock, a lost connection) are retried with backoff. Lasting ones (`Unavailable`: a full
  disk) fail every caller of the batch, and the next batch is tried as usual.
- The queue is bounded. When it is full, new jobs are refused. Transitions of existing jobs may fill it to twice that
  size, because a worker whose transition is refused keeps its slot for longer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from fairlead.domain.job import JobRecord
from fairlead.domain.stats import Histogram
from fairlead.domain.transitions import Start, Submit
from fairlead.errors import RequestError, StoreError, Unavailable
from fairlead.store.port import Busy, Committed, OutboxEntry, Outcome, Store, Transition
from fairlead.store.write_units import (
    Atomic,
    Barrier,
    BestEffort,
    Chain,
    Each,
    Independent,
    One,
    Unit,
    Written,
    job_id_of,
    subjects_of,
)

log = logging.getLogger("fairlead.group_commit")

LAZY_AFTER = 0.05
COMPANY = 8
"""Best-effort transitions join only batches of at least this size. A small batch is faster without them, and on an idle
system a caller is waiting for it."""
RETRY_DELAYS = (0.05, 0.1, 0.2, 0.4, 0.8)
MOST_RECORDS = 50
"""Jobs that are read together."""
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


ReadRecords = Callable[[Sequence[str]], Awaitable[dict[str, JobRecord]]]


class Relay(Protocol):
    """Sends committed changes to the dispatcher."""

    def committed(self, entries: Sequence[OutboxEntry]) -> None:
        """Take over the outbox rows of one commit. Called before the callers of that commit resume, so it must not
        block."""
        ...


class GroupCommit:
    """Collects the transitions of many callers and commits them in batches. `relay` receives the outbox rows of each
    commit. Without a relay, the rows stay in the outbox until another process takes them."""

    def __init__(
        self,
        store: Store,
        relay: Relay | None = None,
        *,
        max_pending: int = 50_000,
        max_batch: int = 1_000,
        writers: int = 1,
        retry_delays: Sequence[float] = RETRY_DELAYS,
    ) -> None:
        self._store = store
        self._relay = relay
        self._max_pending = max_pending
        self._max_batch = max_batch
        self._writers = writers
        self._commits: set[asyncio.Task[None]] = set()
        self._under_way: set[str] = set()  # subjects of the batches in _commits
        self._retry_delays = retry_delays
        self._pending: deque[Unit] = deque()
        self._size = 0  # transitions in _pending
        self._lazy: deque[Unit] = deque()
        self._lazy_timer: asyncio.TimerHandle | None = None
        self._sleeping: asyncio.Future[None] | None = None
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self.commit_sizes = Histogram(SIZES)
        self.commit_seconds = Histogram(SECONDS)
        self.commits_failed = 0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run(), name="fairlead-group-commit")

    async def close(self) -> None:
        """Stop accepting transitions and commit the pending ones."""
        if self._task is None:
            return
        self._closing = True
        self._lazy_is_due()
        self._wake()
        await self._task

    @property
    def pending(self) -> int:
        """The number of transitions that wait to be committed."""
        return self._size

    @property
    def full(self) -> bool:
        """Whether new jobs are refused. Workers should then stop claiming."""
        return self._size >= self._max_pending

    async def write(self, transition: Transition) -> Outcome:
        """Return the outcome once the transition is committed, or raise the error that refused it."""
        self._admit(transition, 1)
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._put(One(transition, future))
        return await future

    async def write_all(self, transitions: Sequence[Transition]) -> list[Outcome]:
        """Commit all these transitions in one transaction. If a Submit is refused with an error, nothing is stored, and
        the `details` of the error hold the position of that Submit as `index`."""
        if not transitions:
            return []
        jobs = [job for job in map(job_id_of, transitions) if job is not None]
        if len(set(jobs)) != len(jobs):
            raise ValueError("a transaction can hold only one transition per job")
        self._admit(transitions[0], len(transitions))
        future: asyncio.Future[list[Outcome]] = self._loop.create_future()
        self._put(Atomic(transitions, future))
        return await future

    async def write_each(self, transitions: Sequence[Transition]) -> Sequence[Outcome | Exception]:
        """Commit independent transitions and return all their outcomes. The transitions may be committed in different
        batches."""
        if not transitions:
            return []
        future: asyncio.Future[Sequence[Outcome | Exception]] = self._loop.create_future()
        self.write_each_then(transitions, lambda outcomes: None if future.done() else future.set_result(outcomes))
        return await future

    def write_each_then(self, transitions: Sequence[Transition], written: Written) -> None:
        """Like `write_each`, for at least one transition, but call `written` with the outcomes."""
        self._admit(transitions[0], len(transitions))
        each = Each(len(transitions), written)
        size = self._max_batch if len(subjects_of(transitions)) == len(transitions) else 1
        for begin in range(0, len(transitions), size):
            self._put(Independent(transitions[begin : begin + size], each, begin))

    def write_chain(self, submit: Submit, start: Start, written: Written) -> None:
        """Commit a job and its start together, and call `written` with both outcomes. The start is refused if the
        submit is. A request waits for this commit, and a future would be one more iteration of the event loop."""
        self._admit(submit, 2)
        self._put(Chain((submit, start), written))

    def write_later(self, transition: Transition) -> None:
        """Queue a transition and return without waiting for its commit. It joins the next large batch, or is committed
        by itself soon after. It is dropped if too many transitions are pending, and may be committed after later ones,
        so use this only for writes that may be lost or reordered."""
        if self._task is None or self._closing or len(self._lazy) >= self._max_pending:
            log.warning("dropped a best-effort %s: too many are pending", type(transition).__name__)
            return
        self._lazy.append(BestEffort(transition))
        if self._lazy_timer is None:
            self._lazy_timer = self._loop.call_later(LAZY_AFTER, self._lazy_is_due)

    async def ping(self) -> None:
        """Check that the store works. Raises `Unavailable` if it cannot be read or, after a failed commit, if a small
        test write fails."""
        await self._store.ping()

    async def flush(self) -> None:
        """Wait until all transitions passed in so far, including those of `write_later`, are committed or have
        failed."""
        if self._task is None or self._task.done():
            return
        self._lazy_is_due()
        barrier = Barrier(self._loop.create_future())
        self._put(barrier)
        await barrier.future

    def _admit(self, first: Transition, size: int) -> None:
        if self._task is None or self._closing:
            raise Unavailable("the store is not accepting writes", retry_after=5.0)
        limit = self._max_pending if type(first) is Submit else 2 * self._max_pending
        # A unit larger than the whole queue is accepted while the queue is empty.
        if self._size and self._size + size > limit:
            raise Unavailable("too many writes are pending", retry_after=1.0)

    def _put(self, unit: Unit) -> None:
        self._pending.append(unit)
        self._size += len(unit.transitions)
        self._wake()

    def _wake(self) -> None:
        if self._sleeping is not None and not self._sleeping.done():
            self._sleeping.set_result(None)

    def _lazy_is_due(self) -> None:
        if self._lazy_timer is not None:
            self._lazy_timer.cancel()
            self._lazy_timer = None
        while self._lazy:
            self._put(self._lazy.popleft())

    def _take(self) -> list[Unit]:
        """Take the next batch off the queue, in order. A unit stays in the queue if one of its subjects (a job or a
        process) has an earlier transition that is not committed yet, or if it is of another kind (see `_fits`)."""
        batch: list[Unit] = []
        left: list[Unit] = []
        seen: set[str] = set()
        budget = self._max_batch
        while self._pending and len(left) < self._max_batch:
            unit = self._pending[0]
            if (batch or left or self._commits) and (unit.alone or len(unit.transitions) > budget):
                break
            self._pending.popleft()
            if not self._is_free(unit, seen) or (batch and not self._fits(unit, batch[0])):
                left.append(unit)
            else:
                batch.append(unit)
                budget -= len(unit.transitions)
            seen.update(unit.subjects)
            if unit.alone:
                break
        self._pending.extendleft(reversed(left))
        self._size -= sum(len(unit.transitions) for unit in batch)
        if batch and not batch[-1].alone and self._max_batch - budget >= COMPANY:
            self._take_lazy(batch, seen, budget)
        return batch

    def _take_lazy(self, batch: list[Unit], seen: set[str], budget: int) -> None:
        while self._lazy and budget > 0 and self._is_free(self._lazy[0], seen) and self._fits(self._lazy[0], batch[0]):
            unit = self._lazy.popleft()
            batch.append(unit)
            seen.update(unit.subjects)
            budget -= 1

    def _is_free(self, unit: Unit, seen: set[str]) -> bool:
        """Whether the unit can join the batch now: none of its subjects (jobs or processes) has an earlier transition
        in a running commit, or among the units `seen` so far."""
        return self._under_way.isdisjoint(unit.subjects) and seen.isdisjoint(unit.subjects)

    def _fits(self, unit: Unit, first: Unit) -> bool:
        """Whether a unit may join the batch of the unit `first`. With several writers, a batch holds one kind of
        transition only: over a network, one statement commits faster than a transaction of several statements, and
        other writers commit the other kinds at the same time."""
        return self._writers == 1 or unit.kind is first.kind

    async def _run(self) -> None:
        try:
            while self._pending or self._commits or not self._closing:
                free = len(self._commits) < self._writers
                if not free or not self._pending or not (units := self._take()):
                    self._sleeping = self._loop.create_future()
                    await self._sleeping
                elif self._writers == 1:
                    await self._commit(units)
                    # Let the callers that just resumed join the next batch.
                    await asyncio.sleep(0)
                else:
                    self._begin(units)
        finally:
            self._closing = True
            for commit in self._commits:
                commit.cancel()
            stopped = Unavailable("the writer was stopped")
            for unit in (*self._pending, *self._lazy):
                unit.fail(stopped)

    def _begin(self, units: list[Unit]) -> None:
        subjects = [subject for unit in units for subject in unit.subjects]
        self._under_way.update(subjects)
        commit = self._loop.create_task(self._commit(units))
        self._commits.add(commit)

        def ended(commit: asyncio.Task[None]) -> None:
            self._commits.discard(commit)
            self._under_way.difference_update(subjects)
            if self._pending or self._closing:
                self._wake()

        commit.add_done_callback(ended)

    async def _commit(self, units: list[Unit]) -> None:
        try:
            committed = await self._attempt(units)
        except (Unavailable, StoreError) as error:
            self.commits_failed += not isinstance(error, Busy)
            for unit in units:
                unit.fail(error)
        except Exception as error:
            await self._bisect(units, error)
        except BaseException:
            # The writer is being cancelled; the outcome of these units is unknown.
            for unit in units:
                unit.fail(Unavailable("the writer was stopped"))
            raise
        else:
            self._deliver(units, committed)

    async def _attempt(self, units: list[Unit]) -> Committed:
        transitions = [transition for unit in units for transition in unit.transitions]
        if not transitions:
            return Committed((), ())
        for delay in (*self._retry_delays, None):
            began = self._loop.time()
            try:
                if units[0].alone:
                    committed = await self._store.commit(transitions, all_or_nothing=True)
                else:
                    committed = await self._store.commit(transitions)
                self.commit_seconds.observe(self._loop.time() - began)
                self.commit_sizes.observe(len(transitions))
                return committed
            except Busy:
                self.commits_failed += 1
                if delay is None:
                    raise
                await asyncio.sleep(delay)
        raise AssertionError("the last delay is None")

    async def _bisect(self, units: list[Unit], error: Exception) -> None:
        if len(units) > 1:
            middle = len(units) // 2
            halves = [units[:middle], units[middle:]]
        else:
            halves = [[part] for part in units[0].parts()]
        for half in halves:
            await self._commit(half)
        if halves:
            return
        if not isinstance(error, RequestError):
            kinds = ", ".join({type(transition).__name__ for transition in units[0].transitions})
            log.error("the commit of %s failed", kinds, exc_info=error)
        units[0].fail(error)

    def _deliver(self, units: list[Unit], committed: Committed) -> None:
        if committed.changes and self._relay is not None:
            try:
                self._relay.committed(committed.changes)
            except Exception:
                log.exception("the relay failed; the manager's outbox loop will pick up the changes")
        start = 0
        for unit in units:
            end = start + len(unit.transitions)
            unit.resolve(committed.outcomes[start:end])
            start = end


class RecordReader:
    """The reads that go with the group commit: jobs that are requested while a read runs are read together afterwards.
    A record that it returns was read after `get` was called. `read` reads many.

    Requests that wait for their jobs would otherwise be one query each, on SQLite with its own change of threads.
    """

    def __init__(self, read: ReadRecords) -> None:
        self._read_many = read
        self._requested: list[tuple[str, asyncio.Future[JobRecord | None]]] = []
        self._reading: asyncio.Task[None] | None = None

    async def get(self, job_id: str) -> JobRecord | None:
        record: asyncio.Future[JobRecord | None] = asyncio.get_running_loop().create_future()
        self._requested.append((job_id, record))
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
        return await record

    async def _read(self) -> None:
        try:
            while self._requested:
                batch, self._requested = self._requested[:MOST_RECORDS], self._requested[MOST_RECORDS:]
                await self._read_batch(batch)
        finally:
            self._reading = None

    async def _read_batch(self, batch: list[tuple[str, asyncio.Future[JobRecord | None]]]) -> None:
        try:
            records = await self._read_many([job_id for job_id, _ in batch])
        except BaseException as error:
            for _, record in batch:
                if not record.done():
                    record.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for job_id, record in batch:
            if not record.done():  # its caller was cancelled
                record.set_result(records.get(job_id))
