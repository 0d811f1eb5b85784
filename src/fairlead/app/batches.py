"""`app.batches`: submit many jobs as one batch, read batches, follow them, and act on all items of a batch or on one.

An action on a batch moves its jobs one by one, and the status of the batch follows from the status of its jobs. Any
process that finds all jobs of a batch ended, when it reads the batch or in the manager's loop, records the end of the
batch (`SettleBatch`).

A batch may have ten thousand jobs, which run in many processes, but its followers only need to know how many have
ended. So the ended jobs are counted with a query at intervals, which costs less than subscribing to every job. A slow
query is repeated less often. All followers of a batch in this process share one query.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from fairlead.app import audit
from fairlead.app.audit import AuditLog, act_of
from fairlead.app.batch_submission import BatchSubmission, CheckedBatch, check_batch
from fairlead.app.handle import BatchReceipt
from fairlead.app.job_commands import TRIES, Build, JobCommands
from fairlead.app.runtime import Runtime
from fairlead.artifacts.values import keep_inputs, load_record
from fairlead.domain import transitions
from fairlead.domain.batch import (
    REMOVED,
    BatchItem,
    BatchState,
    BatchView,
    ItemStatus,
    ItemView,
    batch_view_of,
    item_view_of,
)
from fairlead.domain.events import iso
from fairlead.domain.job import OPEN, Job, JobStatus, Priority
from fairlead.domain.pagination import MAX_PAGE, Page, check_limit, read_cursor, write_cursor
from fairlead.domain.submission import MAX_USER_ID
from fairlead.domain.trace_context import TraceContext
from fairlead.domain.transitions import Move, Submit
from fairlead.domain.validation import check_id, check_text
from fairlead.domain.webhooks import SILENT
from fairlead.engine.events import ShuttingDown
from fairlead.errors import IdempotencyMismatch, NotFound, RequestError, Unavailable, WrongState
from fairlead.pacing import CachedQuery, DutyCycle
from fairlead.store.port import KeyTaken, SettleBatch

BATCH = "BATCH"
BATCH_PROGRESS = "BATCH_PROGRESS"
BATCH_COMPLETE = "BATCH_COMPLETE"

REPORT_EVERY = 1.0
POLL_EVERY = 0.25
SHARE = 0.05
FORGET_AFTER = 10.0
AT_A_TIME = 500
Prepare = Callable[[Collection[Job]], Awaitable[Build]]
"""Reads what the transitions of these jobs need, and returns what builds them."""
FIRST_RESULTS = 1
MOST_RESULTS = 100
RESULTS_BYTES = 1024 * 1024
"""The bytes of results that `results` tries to read at a time. The number of jobs to read next is computed from the
size of the results that were read last."""
MOST_ITEM = (1 << 31) - 1 - MAX_PAGE - 1  # the end of the next page must still fit in 31 bits


class BatchWatch:
    """Follows batches, by a query at intervals. All followers of a batch in this process share one query."""

    def __init__(self, read: Callable[[str], Coroutine[Any, Any, BatchView]], runtime: Runtime) -> None:
        self._read = read
        self._runtime = runtime
        self._queries: dict[str, CachedQuery[BatchView]] = {}

    async def wait(self, batch_id: str, timeout: float | None) -> BatchView:
        """Wait until every item of the batch has ended, and return the batch. Returns its current state after `timeout`
        seconds, or when this process stops."""
        timer = asyncio.get_running_loop().time
        until = None if timeout is None else timer() + timeout
        with self._runtime.hub.present() as reader:
            after = timer()
            while True:
                batch, pause, after = await self._poll(batch_id, after)
                left = None if until is None else until - timer()
                if batch.finished or (left is not None and left <= 0):
                    return batch
                try:
                    await reader.next(pause if left is None else min(pause, left))
                except ShuttingDown:
                    return batch

    async def follow(self, batch_id: str, heartbeat: float) -> AsyncIterator[dict[str, Any] | None]:
        """Yield the events of a batch: BATCH first, then BATCH_PROGRESS at most once a second while the counts change,
        and BATCH_COMPLETE at the end. Yields None after `heartbeat` seconds without an event."""
        timer = asyncio.get_running_loop().time
        with self._runtime.hub.present() as reader:
            batch, pause, after = await self._poll(batch_id, timer())
            yield self._event(BATCH, batch, "the batch's current state", batch=batch.as_dict())
            counts, reported_at, yielded_at = batch.counts, timer(), timer()
            while not batch.finished:
                await reader.next(pause)
                batch, pause, after = await self._poll(batch_id, after)
                now = timer()
                if not batch.finished and batch.counts != counts and now - reported_at >= REPORT_EVERY:
                    yield self._event(BATCH_PROGRESS, batch, f"{batch.progress:.0%} has ended")
                    counts, reported_at, yielded_at = batch.counts, now, now
                elif now - yielded_at >= heartbeat:
                    yield None
                    yielded_at = now
            yield self._event(BATCH_COMPLETE, batch, "every item has ended", finished_at=iso(batch.finished_at))

    def _event(self, kind: str, view: BatchView, message: str, **more: Any) -> dict[str, Any]:
        return {
            "type": kind,
            "batch_id": view.batch_id,
            "at": iso(self._runtime.clock.now()),
            "message": message,
            "total": view.total,
            "counts": view.counts,
            "progress": view.progress,
            **more,
        }

    async def _poll(self, batch_id: str, after: float) -> _Poll:
        """Read the batch with a query that began at `after` or later. All followers share the query."""
        now = asyncio.get_running_loop().time()
        self._queries = {
            name: each for name, each in self._queries.items() if each.running or each.began > now - FORGET_AFTER
        }
        query = self._queries.get(batch_id)
        if query is None:
            query = self._queries[batch_id] = CachedQuery(partial(self._read, batch_id), DutyCycle(SHARE, POLL_EVERY))
        batch = await query.since(after)
        return _Poll(batch, query.pause, query.began + query.pause / 2)


class _Poll(NamedTuple):
    """The batch as it was read, and how to poll it again: the caller waits for `pause` seconds and passes `next_after`
    to `_poll`. If another follower has begun a query after that time, the caller gets the answer of this query."""

    batch: BatchView
    pause: float
    next_after: float


class Batches:
    def __init__(self, runtime: Runtime, commands: JobCommands, audit: AuditLog) -> None:
        self._runtime = runtime
        self._commands = commands
        self._audit = audit
        self._watch = BatchWatch(self.get, runtime)

    # ------------------------------------------------------------ submit

    async def accept(
        self,
        submission: BatchSubmission,
        *,
        idempotency_key: str | None = None,
        lowers_only: bool = False,
        part: bool = False,
        trace: TraceContext | None = None,
    ) -> BatchReceipt:
        """Accept all items or none, in one commit. With `lowers_only`, the priority of an item is used only if it is
        lower than the user's own priority. With `part`, the batch is a part of a file batch. `trace` is the span of the
        caller."""
        tracing = self._runtime.tracing
        options = {"lowers_only": lowers_only, "part": part}
        if tracing is None:
            return await self._accept(submission, idempotency_key, None if trace is None else str(trace), **options)
        with tracing.submitting(["batch"] * len(submission.items), trace) as span:
            return await self._accept(submission, idempotency_key, span.trace, **options)

    async def _accept(
        self,
        submission: BatchSubmission,
        idempotency_key: str | None,
        trace: str | None,
        *,
        lowers_only: bool,
        part: bool,
    ) -> BatchReceipt:
        runtime = self._runtime
        group_commit, now = runtime.group_commit, runtime.clock.now()
        checked = await check_batch(
            submission,
            runtime.config,
            now=now,
            idempotency_key=idempotency_key,
            endpoint_users=await runtime.endpoint_users.current(),
            trace=trace,
        )
        replayed = await self._replayed(checked)
        if replayed is not None:
            return replayed
        create = checked.create
        try:
            submits, _ = await runtime.settle(checked.submits, now, lowers_only=lowers_only)
            submits = await keep_inputs(runtime.files, submits)
            if part:
                submits = [_in_background(submit) for submit in submits]
                create = replace(create, batch=replace(create.batch, webhook=SILENT))
            await group_commit.write_all([*submits, create])
        except KeyTaken:
            replayed = await self._replayed(checked)
            if replayed is None:
                raise
            return replayed
        except RequestError as error:
            index = error.details.pop("index", None)
            error.pointer = error.pointer if index is None else f"/items/{index}{error.pointer or ''}"
            raise
        await runtime.relay_ordered(submits)
        runtime.announce([submit.job for submit in submits], now)
        return BatchReceipt(checked.create.batch.id, len(submits), replayed=False)

    async def _replayed(self, checked: CheckedBatch) -> BatchReceipt | None:
        """The receipt of the batch that was submitted earlier with the same idempotency key; None if there is none."""
        create = checked.create
        if create.idempotency_key is None:
            return None
        known = await self._runtime.store.batch_of_key(create.batch.user_id, create.idempotency_key)
        if known is None:
            return None
        batch_id, body_hash = known
        if body_hash != create.body_hash:
            raise IdempotencyMismatch(
                "this Idempotency-Key was used with another body", details={"key": create.idempotency_key}
            )
        return BatchReceipt(batch_id, create.batch.total, replayed=True)

    # ------------------------------------------------------------ read

    async def get(self, batch_id: str) -> BatchView:
        """The batch with its counts by status and its progress. Raises NotFound."""
        return batch_view_of(await self._settled(batch_id), self._runtime.clock.now())

    async def owner_of(self, batch_id: str) -> str | None:
        """The user_id of the batch, or None if there is no such batch."""
        return await self._runtime.store.batch_owner(check_id(batch_id, "batch"))

    async def page(self, user_id: str | None, limit: int = 50, cursor: str | None = None) -> Page[BatchView]:
        """A page of batches, newest first. With `user_id`, only the batches of this user."""
        check_limit(limit)
        if user_id is not None:
            check_text(user_id, "user_id", MAX_USER_ID)
        before = None if cursor is None else check_id(cursor, "batch", "/cursor")
        rows = await self._runtime.store.list_batches(user_id, before=before, limit=limit + 1)
        now = self._runtime.clock.now()
        more = len(rows) > limit
        views = [batch_view_of(state, now) for state in rows[:limit]]
        return Page(views, views[-1].batch_id if more else None)

    async def items(
        self, batch_id: str, status: ItemStatus | None, limit: int = 50, cursor: str | None = None
    ) -> Page[ItemView]:
        """The items of a batch in their order, without results. The status `REMOVED` selects items whose job has been
        deleted."""
        check_limit(limit)
        where = ("items", batch_id, status)
        after = -1 if cursor is None else read_cursor(cursor, where, MOST_ITEM)
        await self._require(batch_id)
        if status == REMOVED:
            rows = await self._runtime.store.removed_items(batch_id, after=after, limit=limit + 1)
        else:
            statuses = () if status is None else (JobStatus(status),)
            rows = await self._runtime.store.batch_items(batch_id, statuses=statuses, after=after, limit=limit + 1)
        more = len(rows) > limit
        views = [item_view_of(item) for item in rows[:limit]]
        return Page(views, write_cursor(views[-1].item, where) if more else None)

    async def results(self, batch_id: str) -> AsyncIterator[ItemView]:
        """Iterate over all items in their order, with results. Each result is read when the iteration reaches it."""
        await self._require(batch_id)
        after, at_a_time = -1, FIRST_RESULTS
        while items := await self._runtime.store.batch_items(batch_id, after=after, limit=at_a_time):
            after = items[-1].number
            records = await self._runtime.store.get_records([item.job_id for item in items if item.job is not None])
            size = sum(record.size for record in records.values())
            for item in items:
                # Popped, so that a slow reader keeps only the records it has not read yet in memory.
                record = records.pop(item.job_id, None)
                loaded = None if record is None else await load_record(self._runtime.files, record)
                yield item_view_of(item, loaded)
            at_a_time = max(1, min(2 * at_a_time, MOST_RESULTS, RESULTS_BYTES * len(items) // max(size, 1)))

    async def wait(self, batch_id: str, timeout: float | None = None) -> BatchView:
        """Wait until every item has ended, and return the batch. Returns its current state after `timeout` seconds."""
        return await self._watch.wait(batch_id, timeout)

    def watch(self, batch_id: str, *, heartbeat: float = 15.0) -> AsyncIterator[dict[str, Any] | None]:
        """Yield the batch, then its progress until every item has ended. Yields None after `heartbeat` seconds without
        an event."""
        return self._watch.follow(batch_id, heartbeat)

    async def _require(self, batch_id: str) -> str:
        """The user_id of the batch. Raises NotFound if there is no such batch."""
        owner = await self.owner_of(batch_id)
        if owner is None:
            raise NotFound(f"there is no batch {batch_id}")
        return owner

    async def _state(self, batch_id: str) -> BatchState:
        state = await self._runtime.store.get_batch(check_id(batch_id, "batch"))
        if state is None:
            raise NotFound(f"there is no batch {batch_id}")
        return state

    async def _settled(self, batch_id: str) -> BatchState:
        state = await self._state(batch_id)
        if state.open or state.finished_at is not None:
            return state
        # Another process may have settled the batch meanwhile, or resumed one of its jobs: read the state again.
        await self._runtime.group_commit.write(SettleBatch(batch_id, self._runtime.clock.now()))
        return await self._state(batch_id)

    # ------------------------------------------------------------ act (audited if `who` names an operator)

    async def cancel(self, batch_id: str, *, who: str | None = None) -> int:
        """Cancel every item that has not ended. Returns how many items were cancelled. Raises WrongState if there were
        none."""
        owner = await self._require(batch_id)
        async with self._audit.many(act_of(who, audit.CANCEL_BATCH, batch_id, user_id=owner)) as outcome:
            outcome["cancelled"] = 0
            async for moved in self._moved(batch_id, OPEN, self._commands.cancelling):
                outcome["cancelled"] += moved
        if not outcome["cancelled"]:
            raise WrongState("every item of this batch has ended already", details={"cancelled": 0})
        return int(outcome["cancelled"])

    async def resume(self, batch_id: str, *, who: str | None = None) -> int:
        """Put every FAILED item that is marked retryable back in the queue. Returns how many items were put back.
        Raises WrongState if there were none, and TooManyWaiting if the user would then have too many jobs waiting."""
        config = self._runtime.config
        most_waiting = config.server.max_waiting_per_user

        def build(job: Job, now: float) -> Move:
            return transitions.resume(job, now=now, waits=config.wait_timeouts)

        resumed = await self._revive(batch_id, "resumed", build, most_waiting, (who, audit.RESUME_BATCH))
        if not resumed:
            raise WrongState("no item of this batch is FAILED and marked retryable", details={"resumed": 0})
        return resumed

    async def retry_failed(self, batch_id: str, *, from_start: bool = False, who: str | None = None) -> int:
        """Put every FAILED item back in the queue, whether or not it is marked retryable. Returns how many items were
        put back. Raises TooManyWaiting if the user would then have too many jobs waiting; this limit does not apply to
        an operator (`who`)."""
        retrying = self._commands.retrying(from_start=from_start, who=who)
        return await self._revive(batch_id, "retried", *retrying, (who, audit.RETRY_BATCH))

    async def retry(self, batch_id: str, name: str, *, who: str | None = None) -> ItemView:
        """Put one FAILED item back in the queue at the step that failed, as `retry` of its job does. The item is given
        by its custom_id or its number."""
        item = await self._item(batch_id, name)
        act = act_of(who, audit.RETRY_ITEM, batch_id, item=name, job_id=item.job_id)
        await self._commands.revive(item.job_id, *self._commands.retrying(who=who), act)
        return item_view_of(await self._item(batch_id, name))

    async def _revive(
        self, batch_id: str, verb: str, build: Build, most_waiting: int, act: tuple[str | None, str]
    ) -> int:
        """Apply the transition that `build` makes to every FAILED item. Returns how many items were moved. `act` has
        the operator and the action, for the audit log."""
        who, action = act

        async def prepared(jobs: Collection[Job]) -> Build:
            return build

        async with self._runtime.reviving:
            state = await self._state(batch_id)
            owner = state.batch.user_id
            await self._commands.check_waiting(owner, state.counts.get(JobStatus.FAILED, 0), most_waiting)
            async with self._audit.many(act_of(who, action, batch_id, user_id=owner)) as outcome:
                outcome[verb] = 0
                async for moved in self._moved(batch_id, (JobStatus.FAILED,), prepared):
                    outcome[verb] += moved
        return int(outcome[verb])

    async def _item(self, batch_id: str, name: str) -> BatchItem:
        item = await self._runtime.store.batch_item(check_id(batch_id, "batch"), name) if "\0" not in name else None
        if item is None:
            raise NotFound(f"batch {batch_id} has no item {name[:100]!r}")
        return item

    async def _moved(self, batch_id: str, statuses: Sequence[JobStatus], prepare: Prepare) -> AsyncIterator[int]:
        """Apply a transition to every item with one of these statuses. Yields the number of moved items after each
        commit. Items that another process changed at the same time are read and tried again, unless that process has
        started a new round of the item's job."""
        after = -1
        while items := await self._runtime.store.batch_items(batch_id, statuses=statuses, after=after, limit=AT_A_TIME):
            after = items[-1].number
            jobs = {item.job.id: item.job for item in items if item.job is not None}
            for _ in range(TRIES):
                moved, missed = await self._move_each(jobs.values(), await prepare(jobs.values()))
                yield moved
                if not missed:
                    break
                present = await self._runtime.store.get_jobs(list(missed))
                jobs = {
                    job_id: job
                    for job_id, job in present.items()
                    if job.status in statuses and job.round == missed[job_id].round
                }
            else:
                raise Unavailable(f"items of batch {batch_id} keep changing; try again")

    async def _move_each(self, jobs: Iterable[Job], build: Build) -> tuple[int, dict[str, Job]]:
        """Apply the transition that `build` makes to each job whose state allows it. Returns how many were applied, and
        the jobs that had changed since they were read. Raises the error of the database, if there is one."""
        now = self._runtime.clock.now()
        moves: list[tuple[Job, Move]] = []
        for job in jobs:
            with contextlib.suppress(WrongState):
                moves.append((job, build(job, now)))
        applied = await self._runtime.writer.apply_each(moves, now)
        if applied.error is not None:
            raise applied.error
        done = {move.job_id for move in applied.moves}
        return len(done), {job.id: job for job, _ in moves if job.id not in done}


def _in_background(submit: Submit) -> Submit:
    """A job of a file batch. It is never promoted, because promotion counts from `queued_at`: the window of its batch
    limits its wait. The jobs of file batches use at most half of `server.max_waiting_per_user`."""
    low = submit.job.priority is Priority.LOW and submit.job.status is JobStatus.PENDING
    job = replace(submit.job, queued_at=None) if low else submit.job
    return replace(submit, job=job, max_waiting=(submit.max_waiting + 1) // 2)
