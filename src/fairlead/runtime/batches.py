"""Batches: looking at them, and acting on all of their jobs or on one.

None of it changes a batch as such: its jobs move, one by one as every job does, and the batch follows from them. Who
sees that all of it has ended writes that down (`SettleBatch`), be it a reader or the manager's loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from fairlead.domain import transitions
from fairlead.domain.batch import BatchItem, BatchState
from fairlead.domain.job import OPEN, Job, JobStatus
from fairlead.domain.transitions import Move, WaitTimeouts
from fairlead.errors import NotFound, Unavailable, WrongState
from fairlead.runtime import audit, batch_view
from fairlead.runtime.audit import AuditBook, act_of
from fairlead.runtime.batch_view import REMOVED, BatchView, ItemStatus, ItemView
from fairlead.runtime.clock import Clock
from fairlead.runtime.operations import TRIES, Build, Operations, check_id
from fairlead.runtime.paging import Page, check_limit, read_cursor, write_cursor
from fairlead.runtime.record import Recorder
from fairlead.store.journal import Journal
from fairlead.store.port import SettleBatch, Store

AT_A_TIME = 500
RESULTS_AT_A_TIME = 100


class Batches:
    def __init__(
        self,
        store: Store,
        journal: Journal,
        recorder: Recorder,
        operations: Operations,
        clock: Clock,
        book: AuditBook,
        *,
        waits: Callable[[], WaitTimeouts],
    ) -> None:
        self._store = store
        self._journal = journal
        self._recorder = recorder
        self._operations = operations
        self._clock = clock
        self._book = book
        self._waits = waits

    # ------------------------------------------------------------ looking

    async def get(self, batch_id: str) -> BatchView:
        return batch_view.of_state(await self._settled(batch_id), self._clock.now())

    async def owner_of(self, batch_id: str) -> str | None:
        return await self._store.batch_owner(check_id(batch_id, "batch"))

    async def page(self, user_id: str | None, limit: int, cursor: str | None) -> Page[BatchView]:
        check_limit(limit)
        before = None if cursor is None else check_id(cursor, "batch", "/cursor")
        found = await self._store.list_batches(user_id, before=before, limit=limit + 1)
        now = self._clock.now()
        more = len(found) > limit
        views = [batch_view.of_state(state, now) for state in found[:limit]]
        return Page(views, views[-1].batch_id if more else None)

    async def items(self, batch_id: str, status: ItemStatus | None, limit: int, cursor: str | None) -> Page[ItemView]:
        check_limit(limit)
        where = ("items", batch_id, status)
        after = -1 if cursor is None else read_cursor(cursor, where)
        await self._require(batch_id)
        if status == REMOVED:
            found = await self._store.removed_items(batch_id, after=after, limit=limit + 1)
        else:
            statuses = () if status is None else (JobStatus(status),)
            found = await self._store.batch_items(batch_id, statuses=statuses, after=after, limit=limit + 1)
        more = len(found) > limit
        views = [batch_view.of_item(item) for item in found[:limit]]
        return Page(views, write_cursor(views[-1].item, where) if more else None)

    async def results(self, batch_id: str) -> AsyncIterator[ItemView]:
        """All of them, in their order, each as it is when it is reached."""
        await self._require(batch_id)
        after = -1
        while items := await self._store.batch_items(batch_id, after=after, limit=RESULTS_AT_A_TIME):
            records = await self._store.get_records([item.job_id for item in items if item.job is not None])
            for item in items:
                yield batch_view.of_item(item, records.get(item.job_id))
            after = items[-1].number

    async def _require(self, batch_id: str) -> str:
        """Whose it is."""
        owner = await self.owner_of(batch_id)
        if owner is None:
            raise NotFound(f"there is no batch {batch_id}")
        return owner

    async def _state(self, batch_id: str) -> BatchState:
        state = await self._store.get_batch(check_id(batch_id, "batch"))
        if state is None:
            raise NotFound(f"there is no batch {batch_id}")
        return state

    async def _settled(self, batch_id: str) -> BatchState:
        state = await self._state(batch_id)
        if state.open or state.finished_at is not None:
            return state
        # Somebody else may have settled it meanwhile, or have taken up one of its jobs again: either is in the truth.
        await self._journal.write(SettleBatch(batch_id, self._clock.now()))
        return await self._state(batch_id)

    # ------------------------------------------------------------ acting

    async def cancel(self, batch_id: str, *, who: str | None = None) -> int:
        """How many items were cancelled: all that had not ended."""
        owner = await self._require(batch_id)
        async with self._book.many(act_of(who, audit.CANCEL_BATCH, batch_id, user_id=owner)) as outcome:
            outcome["cancelled"] = 0
            async for moved in self._moved(batch_id, OPEN, lambda job, now: transitions.cancel(job, now=now)):
                outcome["cancelled"] += moved
        if not outcome["cancelled"]:
            raise WrongState("every item of this batch has ended already", details={"cancelled": 0})
        return int(outcome["cancelled"])

    async def resume(self, batch_id: str, most_waiting: int, *, who: str | None = None) -> int:
        """How many failed items were taken up again: all that are marked retryable, if their user may have all failed
        ones waiting."""
        waits = self._waits()
        build: Build = lambda job, now: transitions.resume(job, now=now, waits=waits)  # noqa: E731
        async with self._operations.reviving:
            state = await self._state(batch_id)
            owner = state.batch.user_id
            await self._operations.check_room(owner, state.counts.get(JobStatus.FAILED, 0), most_waiting)
            async with self._book.many(act_of(who, audit.RESUME_BATCH, batch_id, user_id=owner)) as outcome:
                outcome["resumed"] = 0
                async for moved in self._moved(batch_id, (JobStatus.FAILED,), build):
                    outcome["resumed"] += moved
        if not outcome["resumed"]:
            raise WrongState("no item of this batch is FAILED and marked retryable", details={"resumed": 0})
        return int(outcome["resumed"])

    async def retry(self, batch_id: str, name: str, most_waiting: int, *, who: str | None = None) -> ItemView:
        """One failed item, by its custom_id or its number: once more from the step that failed."""
        item = await self._item(batch_id, name)
        waits = self._waits()

        def again(job: Job, now: float) -> Move:
            if job.retryable:
                return transitions.resume(job, now=now, waits=waits)
            return transitions.requeue(job, now=now, waits=waits)

        act = act_of(who, audit.RETRY_ITEM, batch_id, item=name, job_id=item.job_id)
        await self._operations.revive(item.job_id, again, most_waiting, act)
        return batch_view.of_item(await self._item(batch_id, name))

    async def _item(self, batch_id: str, name: str) -> BatchItem:
        item = await self._store.batch_item(check_id(batch_id, "batch"), name) if "\0" not in name else None
        if item is None:
            raise NotFound(f"batch {batch_id} has no item {name[:100]!r}")
        return item

    async def _moved(self, batch_id: str, statuses: Sequence[JobStatus], build: Build) -> AsyncIterator[int]:
        """Moves all of them, and says how many after each commit. Those that moved in between are looked at again,
        until there is none that could be moved and was not."""
        for _ in range(TRIES):
            missed = 0
            after = -1
            while items := await self._store.batch_items(batch_id, statuses=statuses, after=after, limit=AT_A_TIME):
                after = items[-1].number
                now = self._clock.now()
                moves = []
                for item in items:
                    with contextlib.suppress(WrongState):  # what cannot be moved stays as it is
                        if item.job is not None:
                            moves.append((item.job, build(item.job, now)))
                applied = await self._recorder.apply_each(moves, now)
                missed += len(moves) - len(applied)
                yield len(applied)
            if not missed:
                return
        raise Unavailable(f"items of batch {batch_id} keep changing; try again")
