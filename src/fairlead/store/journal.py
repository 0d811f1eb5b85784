"""The group commit: callers await their own transition, the writer commits whatever gathered meanwhile.

While a commit is under way, new transitions queue up; when it ends, they are the next batch. So an idle system
commits at once, and a busy one commits hundreds of transitions per fsync, with no timer to tune. The rules:

- At most one transition of a job is in a batch; later ones of the same job wait for a later batch, in their order. So
  do a process's announcements and its farewell.
- With several `writers`, so many commits are under way at once, each of one kind, and never two with the same job. That
  is for a store behind a network: while the server works on one batch, the next is made up and the last one's callers
  are told.
- A batch that fails is tried again in halves, so that only the guilty caller fails.
- What will pass (`Busy`: locked, connection lost) is tried again with backoff; what will not pass soon (`Unavailable`:
  the disk is full) is told to every caller of the batch, and the next batch is tried afresh.
- It is bounded. When it is full, new jobs are refused; transitions of jobs under way have as much room again, because
  what is refused to a worker costs a slot.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from fairlead.domain.histogram import Histogram
from fairlead.domain.transitions import Submit
from fairlead.errors import RequestError, StoreError, Unavailable
from fairlead.store.port import Busy, Committed, LineChange, Outcome, Store, Transition
from fairlead.store.units import Barrier, Each, Lazy, Several, Single, Unit, Whole, job_id_of, subjects_of

log = logging.getLogger(__name__)

LAZY_AFTER = 0.05
COMPANY = 8
"""What is lazy joins no smaller batch than this: on an idle system somebody waits for that one, and its statement alone
is a quicker commit."""
RETRY_DELAYS = (0.05, 0.1, 0.2, 0.4, 0.8)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Journal:
    """`on_commit` hears of the outbox rows of each commit, before the commit's callers hear of their outcomes."""

    def __init__(
        self,
        store: Store,
        *,
        on_commit: Callable[[Sequence[LineChange]], None],
        max_pending: int = 50_000,
        max_batch: int = 1_000,
        writers: int = 1,
        retry_delays: Sequence[float] = RETRY_DELAYS,
    ) -> None:
        self._store = store
        self._on_commit = on_commit
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
        self._task = self._loop.create_task(self._run(), name="fairlead-journal")

    async def close(self) -> None:
        """Commits what is pending; from now on nothing new is taken."""
        if self._task is None:
            return
        self._closing = True
        self._lazy_is_due()
        self._wake()
        await self._task

    @property
    def pending(self) -> int:
        """Transitions that wait for their commit."""
        return self._size

    @property
    def full(self) -> bool:
        """New jobs are refused; a worker should not claim more."""
        return self._size >= self._max_pending

    # ------------------------------------------------------------ what callers use

    async def write(self, transition: Transition) -> Outcome:
        """Its outcome, once it is committed; the error, if it was refused by one."""
        self._admit(transition, 1)
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._put(Single(transition, future))
        return await future

    async def write_all(self, transitions: Sequence[Transition]) -> list[Outcome]:
        """All or nothing: one transaction, and if a Submit among them is refused by an error, none is stored. The
        error's `details` then say which, as `index`."""
        if not transitions:
            return []
        jobs = [job for job in map(job_id_of, transitions) if job is not None]
        if len(set(jobs)) != len(jobs):
            raise ValueError("a job can make only one transition per transaction")
        self._admit(transitions[0], len(transitions))
        future: asyncio.Future[list[Outcome]] = self._loop.create_future()
        self._put(Whole(transitions, future))
        return await future

    async def write_each(self, transitions: Sequence[Transition]) -> list[Outcome | Exception]:
        """Each on its own, but one await for all of them."""
        if not transitions:
            return []
        self._admit(transitions[0], len(transitions))
        each = Each(len(transitions), self._loop.create_future())
        size = self._max_batch if len(subjects_of(transitions)) == len(transitions) else 1
        for begin in range(0, len(transitions), size):
            self._put(Several(transitions[begin : begin + size], each, begin))
        return await each.future

    def write_later(self, transition: Transition) -> None:
        """Fire and forget: goes along with the next large commit, or alone soon after. Neither its outcome nor its
        order is promised, and it is dropped when there are too many; so only for what may be lost."""
        if self._task is None or self._closing or len(self._lazy) >= self._max_pending:
            log.warning("dropped a lazy %s", type(transition).__name__)
            return
        self._lazy.append(Lazy(transition))
        if self._lazy_timer is None:
            self._lazy_timer = self._loop.call_later(LAZY_AFTER, self._lazy_is_due)

    async def flush(self) -> None:
        """Returns when all that was written before, lazily or not, is committed or has failed."""
        if self._task is None or self._task.done():
            return
        self._lazy_is_due()
        barrier = Barrier(self._loop.create_future())
        self._put(barrier)
        await barrier.future

    # ------------------------------------------------------------ the queue

    def _admit(self, first: Transition, size: int) -> None:
        if self._task is None or self._closing:
            raise Unavailable("the journal is not open", retry_after=5.0)
        limit = self._max_pending if type(first) is Submit else 2 * self._max_pending
        # A unit that is larger than the journal goes in when it is empty.
        if self._size and self._size + size > limit:
            raise Unavailable("the journal is full", retry_after=1.0)

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
        """The next batch: in order, except that what must wait for an earlier transition of its subject stays, and what
        is of another kind may, see `_fits`."""
        batch: list[Unit] = []
        left: list[Unit] = []
        seen: set[str] = set()
        room = self._max_batch
        while self._pending and len(left) < self._max_batch:
            unit = self._pending[0]
            if (batch or left or self._commits) and (unit.alone or len(unit.transitions) > room):
                break
            self._pending.popleft()
            if not self._is_free(unit, seen) or (batch and not self._fits(unit, batch[0])):
                left.append(unit)
            else:
                batch.append(unit)
                room -= len(unit.transitions)
            seen.update(unit.subjects)
            if unit.alone:
                break
        self._pending.extendleft(reversed(left))
        self._size -= sum(len(unit.transitions) for unit in batch)
        if batch and not batch[-1].alone and self._max_batch - room >= COMPANY:
            self._take_lazy(batch, seen, room)
        return batch

    def _take_lazy(self, batch: list[Unit], seen: set[str], room: int) -> None:
        while self._lazy and room > 0 and self._is_free(self._lazy[0], seen) and self._fits(self._lazy[0], batch[0]):
            unit = self._lazy.popleft()
            batch.append(unit)
            seen.update(unit.subjects)
            room -= 1

    def _is_free(self, unit: Unit, seen: set[str]) -> bool:
        """None of its subjects has another transition before it, in a commit that is under way or is made up now."""
        return self._under_way.isdisjoint(unit.subjects) and seen.isdisjoint(unit.subjects)

    def _fits(self, unit: Unit, first: Unit) -> bool:
        """With several writers a batch is of one kind: behind a network, one statement is a quicker commit than a
        transaction of several, and the other kinds go at the same time."""
        return self._writers == 1 or unit.kind is first.kind

    # ------------------------------------------------------------ the writer

    async def _run(self) -> None:
        try:
            while self._pending or self._commits or not self._closing:
                free = len(self._commits) < self._writers
                if not free or not self._pending or not (units := self._take()):
                    self._sleeping = self._loop.create_future()
                    await self._sleeping
                elif self._writers == 1:
                    await self._commit(units)
                    # Those who just heard of their outcome get the chance to join the next batch.
                    await asyncio.sleep(0)
                else:
                    self._begin(units)
        finally:
            self._closing = True
            for commit in self._commits:
                commit.cancel()
            gone = Unavailable("the journal was stopped")
            for unit in (*self._pending, *self._lazy):
                unit.fail(gone)

    def _begin(self, units: list[Unit]) -> None:
        subjects = [subject for unit in units for subject in unit.subjects]
        self._under_way.update(subjects)
        commit = self._loop.create_task(self._commit(units))
        self._commits.add(commit)

        def ended(commit: asyncio.Task[None]) -> None:
            self._commits.discard(commit)
            self._under_way.difference_update(subjects)
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
            # The writer itself is being stopped: nobody knows what became of these.
            for unit in units:
                unit.fail(Unavailable("the journal was stopped"))
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
            log.error("a commit failed because of this one: %s", kinds, exc_info=error)
        units[0].fail(error)

    def _deliver(self, units: list[Unit], committed: Committed) -> None:
        if committed.changes:
            try:
                self._on_commit(committed.changes)
            except Exception:
                log.exception("the relay failed to take what was committed; the manager will find it in the outbox")
        start = 0
        for unit in units:
            end = start + len(unit.transitions)
            unit.resolve(committed.outcomes[start:end])
            start = end
