"""`app.jobs`: submit jobs, read them, follow them, and act on them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypedDict

from fairlead.app import audit
from fairlead.app.audit import act_of
from fairlead.app.event_stream import Allowed, EventStream
from fairlead.app.handle import Receipt
from fairlead.app.job_commands import JobCommands, require_kept
from fairlead.app.new_jobs import NewJobs
from fairlead.app.output_stream import OutputSources, OutputStream
from fairlead.app.runtime import Runtime
from fairlead.artifacts.values import is_stored, load_record, load_value
from fairlead.backends import submit_on
from fairlead.domain import events, transitions, views
from fairlead.domain import retry as retries
from fairlead.domain.fair_share import QueuePosition
from fairlead.domain.job import OPEN, Job, JobRecord, JobStatus
from fairlead.domain.output import Output, Position
from fairlead.domain.pagination import Page
from fairlead.domain.submission import ANONYMOUS, MAX_USER_ID, Submission
from fairlead.domain.trace_context import TraceContext
from fairlead.domain.transitions import Move, Submit
from fairlead.domain.turns import is_turn
from fairlead.domain.validation import check_id, check_text, moment
from fairlead.domain.views import EndedJob, JobView, RetriedJob, Why
from fairlead.domain.waiting_timers import with_start_timeout
from fairlead.engine.events import ShuttingDown, SlowConsumer, Subscription, output_topic_of
from fairlead.engine.step_run import TimeoutGroup
from fairlead.errors import InvalidInput, NotFound, TooManyReaders, Unavailable
from fairlead.observe.explain import Explainer
from fairlead.store.group_commit import RecordReader
from fairlead.store.port import Accepted, JobFilter, Outcome

log = logging.getLogger("fairlead.jobs")

NEW_S = 0.25
"""A new job may have ended in another process before its reader subscribed, so it is read after this time."""

MOST_IN_A_SNAPSHOT = 100

_End = asyncio.Future[EndedJob | None]


class Jobs:
    def __init__(self, runtime: Runtime, commands: JobCommands) -> None:
        self._runtime = runtime
        self._commands = commands
        self._new = NewJobs(runtime)
        self._end_timeouts: dict[tuple[asyncio.AbstractEventLoop, float], TimeoutGroup[_End]] = {}
        self._records = RecordReader(lambda job_ids: runtime.store.get_records(job_ids))

    # ------------------------------------------------------------ submit

    async def accept(
        self,
        submissions: Sequence[Submission],
        *,
        connection: Any = None,
        idempotency_key: str | None = None,
        body_hash: str | None = None,
        lowers_only: bool = False,
        trace: TraceContext | None = None,
        start_within: float | None = None,
    ) -> list[Receipt]:
        """Accept all jobs or none, in one commit. If one of several jobs is invalid, the `index` in the error's details
        names it. With `lowers_only`, a submitted priority is used only if it is lower than the user's own priority.
        `trace` is the span of the caller. With `start_within`, a job fails unless it starts within so many seconds."""
        tracing, idempotency = self._runtime.tracing, (idempotency_key, body_hash)
        if tracing is None:
            kept = None if trace is None else str(trace)
            return await self._accept(submissions, connection, idempotency, start_within, lowers_only, kept)
        names = [str(submission.feature_name) for submission in submissions]
        with tracing.submitting(names, trace) as span:
            receipts = await self._accept(submissions, connection, idempotency, start_within, lowers_only, span.trace)
            span.accepted([receipt.job_id for receipt in receipts])
            return receipts

    async def _accept(
        self,
        submissions: Sequence[Submission],
        connection: Any,
        idempotency: tuple[str | None, str | None],
        start_within: float | None,
        lowers_only: bool,
        trace: str | None,
    ) -> list[Receipt]:
        runtime = self._runtime
        group_commit, now = runtime.group_commit, runtime.clock.now()
        submits, budget = await self._new.submits_of(
            submissions, now, idempotency, lowers_only=lowers_only, trace=trace
        )
        if start_within is not None:
            submits = [replace(submit, job=with_start_timeout(submit.job, start_within)) for submit in submits]
        outcomes: Sequence[Outcome]
        if connection is not None:
            outcomes = await submit_on(runtime.settings.database_url, connection, submits)
        elif len(submits) == 1:
            outcomes = [await self._write(submits[0])]
        else:
            outcomes = await group_commit.write_all(submits)
        if connection is None:
            await runtime.relay_ordered(submits)
        receipts, new = [], []
        for submit, outcome in zip(submits, outcomes, strict=True):
            assert isinstance(outcome, Accepted)
            job = submit.job
            if connection is None and not outcome.replayed:
                new.append(job)
            elif job.timer_at is not None:  # the caller's transaction may still roll back
                runtime.signals.timer_set(job.timer_at)
            due = events.utc(job.scheduled_at)
            receipts.append(Receipt(outcome.job_id, job.priority, job.status, outcome.replayed, due, budget))
        runtime.announce(new, now)
        return receipts

    async def _write(self, submit: Submit) -> Outcome:
        """Commit one job. A request of a front, whose caller waits for the answer, is started in the same commit if
        that is possible."""
        runtime = self._runtime
        if runtime.node is not None and submit.job.service in runtime.config.front_services:
            outcome = await runtime.node.submit_at_once(submit)
            if outcome is not None:
                return outcome
        return await runtime.group_commit.write(submit)

    async def push_task(
        self, queue: str, payload: Mapping[str, Any], priority: str = "low", *, idempotency_key: str | None = None
    ) -> bool:
        """Submit a job to the service `queue`, with the arguments of TaskFlow's `push_task`. Returns True once the job
        is committed. Returns False if the database does not accept the job now: repeat the call with the same
        `idempotency_key`, so that the job is never created twice."""
        if not isinstance(payload, Mapping):
            raise InvalidInput("the payload must be an object, such as {'task_id': 7}", pointer="/input_data")
        self._runtime.require_open()
        given = payload.get("user_id")
        user_id = ANONYMOUS if given is None else given
        try:
            await self.accept([Submission(queue, payload, user_id, priority)], idempotency_key=idempotency_key)
        except Unavailable as error:
            log.error("push_task to %r: %s", queue, error)
            return False
        return True

    async def was_submitted(self, user_id: str, idempotency_key: str) -> bool:
        """Whether this user has submitted a job with this idempotency key before."""
        return await self._runtime.store.was_submitted(check_text(user_id, "user_id", MAX_USER_ID), idempotency_key)

    # ------------------------------------------------------------ read

    async def get(self, job_id: str) -> JobView:
        """The job with its steps, results and queue position. Raises NotFound."""
        return await self._view(job_id, await self._runtime.store.get(check_id(job_id)))

    async def get_without_attempts(self, job_id: str) -> JobView:
        """The job as `get` returns it, but without its failed attempts. Jobs that many callers request at the same time
        are read together. Raises NotFound."""
        return await self._view(job_id, await self._records.get(check_id(job_id)))

    async def status(self, job_id: str) -> JobView:
        """The job without its input, results and attempts, as in a list. Raises NotFound."""
        job = (await self._runtime.store.get_jobs([check_id(job_id)])).get(job_id)
        if job is None:
            raise NotFound(f"there is no job {job_id}")
        return views.of_job(job, (await self._positions_of([job])).get(job_id))

    async def _view(self, job_id: str, record: JobRecord | None) -> JobView:
        if record is None:
            raise NotFound(f"there is no job {job_id}")
        record = await load_record(self._runtime.files, record)
        positions = await self._positions_of([record.job])
        return views.of_record(record, positions.get(job_id))

    async def whole_result(self, job_id: str, result: Any) -> Any:
        """The result of a job or of one of its steps, also if it is in the object store and too large to be shown with
        the job. Raises Unavailable if the object store cannot be reached."""
        return await load_value(self._runtime.files, job_id, result) if is_stored(result) else result

    async def owner_of(self, job_id: str) -> str | None:
        """The user_id of the job; None if there is no such job."""
        jobs = await self._runtime.store.get_jobs([check_id(job_id)])
        return jobs[job_id].user_id if job_id in jobs else None

    async def why(self, job_id: str, *, private: bool = False) -> Why:
        """Explain why the job waits, or what it is doing. `private` leaves out the ids of other users and where their
        jobs run."""
        return await Explainer(self._runtime.observer, private=private).explain(check_id(job_id))

    async def positions(self, job_ids: Sequence[str]) -> dict[str, QueuePosition]:
        """The queue positions of these jobs. Empty in a process without a dispatcher."""
        node = self._runtime.node
        return await node.positions(job_ids) if node is not None else {}

    async def positions_of_new(self, job_ids: Sequence[str]) -> dict[str, QueuePosition]:
        """The queue positions of jobs that this process has just accepted. Empty while the dispatcher is busy."""
        node = self._runtime.node
        return await node.positions_of_new(job_ids) if node is not None else {}

    async def _positions_of(self, jobs: Sequence[Job]) -> dict[str, QueuePosition]:
        """The queue positions of those jobs in `jobs` that are waiting. Jobs on a shard that does not answer are left
        out, so that no caller waits for the shard."""
        waiting = [job for job in jobs if job.status is JobStatus.PENDING]
        node = self._runtime.node
        return await node.positions_of(waiting) if waiting and node is not None else {}

    async def page(self, where: JobFilter, limit: int = 50, cursor: str | None = None) -> Page[JobView]:
        """A page of the jobs that match the filter, newest first."""
        page = await self._commands.page(where, limit, cursor)
        positions = await self._positions_of(page.data)
        return Page([views.of_job(job, positions.get(job.id)) for job in page.data], page.next_cursor)

    async def open_jobs(self, user_id: str) -> tuple[list[JobView], bool]:
        """The unfinished jobs of a user, newest first, at most a hundred; and whether the user has more."""
        where = JobFilter(user_id, OPEN)
        rows = await self._runtime.store.list_jobs(where, before_seq=None, limit=MOST_IN_A_SNAPSHOT + 1)
        jobs = rows[:MOST_IN_A_SNAPSHOT]
        positions = await self._positions_of(jobs)
        return [views.of_job(job, positions.get(job.id)) for job in jobs], len(rows) > len(jobs)

    # ------------------------------------------------------------ follow

    async def wait(
        self, job_id: str, timeout: float | None = None, *, new: bool = False, attempts: bool = True
    ) -> JobView:
        """Wait until the job has ended, and return it. Returns its current state after `timeout` seconds. `new`: the
        job was submitted just now; it is read only after an event, or if there is none for a moment. `attempts`: the
        job is returned with its failed attempts."""
        get = self.get if attempts else self.get_without_attempts
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        check_id(job_id)
        while True:
            with self._runtime.hub.subscribe(job_id, places=False) as subscription:
                if new:
                    new = False
                    with contextlib.suppress(ShuttingDown):
                        await _until_terminal(subscription, NEW_S if timeout is None else min(NEW_S, timeout))
                job = await get(job_id)
                rest = None if until is None else until - loop.time()
                if job.status.finished or (rest is not None and rest <= 0):
                    return job
                try:
                    await _until_terminal(subscription, rest)
                except ShuttingDown:
                    return await get(job_id)

    async def end_soon(self, job_id: str, within: float) -> EndedJob | None:
        """The end of a job that was submitted just now, or None if it does not end within `within` seconds. The end of
        a job that runs in this process is passed on once it is committed, without reading it. If this process stops,
        the job is returned as it is."""
        hub, loop = self._runtime.hub, asyncio.get_running_loop()
        end, timeouts = hub.await_end(job_id, loop), self._end_timeouts.get((loop, within))
        if timeouts is None:
            timeouts = self._end_timeouts[loop, within] = TimeoutGroup(loop, within, _stop_waiting)
        timeouts.on(end)
        try:
            ended = await end
        except TimeoutError:
            return None
        except ShuttingDown:
            return EndedJob.of_view(await self.get(job_id))
        finally:
            timeouts.off(end)
            hub.forget_end(job_id, end)
        if ended is None:
            job = await self.get_without_attempts(job_id)
            ended = EndedJob.of_view(job) if job.status.finished else None
        return ended

    async def watch(self, job_id: str, *, heartbeat: float = 15.0) -> AsyncIterator[dict[str, Any] | None]:
        """Yield a snapshot of the job, then its events until it ends. Yields None after `heartbeat` seconds without an
        event."""
        with contextlib.closing(self.stream()) as stream:
            yield await stream.watch(check_id(job_id))
            while not stream.follows_nothing:
                yield await stream.next(heartbeat)

    async def watch_user(self, user_id: str, *, heartbeat: float = 15.0) -> AsyncIterator[dict[str, Any] | None]:
        """Yield a snapshot of the user's unfinished jobs, then the events of all jobs of the user, without end."""
        with contextlib.closing(self.stream()) as stream:
            yield await stream.follow(user_id)
            while True:
                yield await stream.next(heartbeat)

    def output(
        self, job_id: str, after: Position | str | None = None, heartbeat: float | None = None
    ) -> AsyncGenerator[Output | None, None]:
        """The output of the job; see `Fairlead.output`."""
        return self.output_stream(job_id, after).follow(heartbeat)

    def output_stream(
        self, job_id: str, after: Position | str | None = None, *, attempts: bool = True, new: bool = False
    ) -> OutputStream:
        """The output of the job. `attempts`: its `End` has the job with its failed attempts. `new`: the job was
        submitted just now. Raises TooManyReaders."""
        runtime = self._runtime
        runtime.require_open()
        most = runtime.config.server.max_output_readers
        if not new and runtime.hub.readers_of(output_topic_of(job_id)) >= most:
            raise TooManyReaders(f"{most} readers follow the output of this job already (server.max_output_readers)")
        get = self.get if attempts else self.get_without_attempts
        sources = OutputSources(
            runtime.hub, runtime.output_log, get, lambda: runtime.node is not None, runtime.clock.now, runtime.files
        )
        position = Position.parse(after) if isinstance(after, str) else after
        return OutputStream(sources, check_id(job_id), position, new=new)

    def stream(self, allowed: Allowed = lambda job: True) -> EventStream:
        """Open an event stream for one reader; the caller closes it. `allowed` decides which jobs the reader may
        see."""
        runtime = self._runtime
        runtime.require_open()
        return EventStream(runtime.hub, self, runtime.clock.now, runtime.snapshots, allowed)

    # ------------------------------------------------------------ act (audited if `who` names an operator)

    async def cancel(self, job_id: str, *, who: str | None = None) -> JobView:
        """Cancel a job that has not ended."""
        act = act_of(who, audit.CANCEL_TURN if is_turn(check_id(job_id)) else audit.CANCEL_JOB, job_id)
        job = await self._commands.job(job_id)
        await self._commands.move(job_id, await self._commands.cancelling([job]), act, job)
        return await self.get(job_id)

    async def resume(self, job_id: str, *, who: str | None = None) -> JobView:
        """Put a FAILED job that is marked retryable back in the queue, at the step that failed. The job then counts
        towards its user's limit of waiting jobs. An operator's `requeue` ignores this limit."""
        config = self._runtime.config

        def build(job: Job, now: float) -> Move:
            require_kept(job, config)
            return transitions.resume(job, now=now, waits=config.wait_timeouts)

        act = act_of(who, audit.RESUME_JOB, job_id)
        await self._commands.revive(job_id, build, config.server.max_waiting_per_user, act)
        return await self.get(job_id)

    async def retry(self, job_id: str, *, from_start: bool = False, who: str | None = None) -> RetriedJob:
        """Put any FAILED job back in the queue with fresh attempts, at the step that failed or from the start. The
        returned job has a `warning` if the error was permanent. The job counts towards its user's limit of waiting
        jobs, unless an operator (`who`) retries it."""
        retrying = self._commands.retrying(from_start=from_start, who=who)
        warning: str | None = None

        def build(job: Job, now: float) -> Move:
            nonlocal warning
            warning = retries.warning_of(job.error, job.retryable)
            return retrying.build(job, now)

        act = act_of(who, audit.RETRY_JOB, job_id, from_start=from_start)
        await self._commands.revive(job_id, build, retrying.most_waiting, act)
        return views.retried(await self.get(job_id), warning)

    async def retry_step(self, job_id: str, step: int, *, who: str | None = None) -> JobView:
        """Run one step (counted from 0) of a COMPLETED or FAILED job again. If the job failed at this step, it
        continues with the later steps. Otherwise later steps do not run again: the job returns to its earlier status
        with the new result, and keeps the old result in its `history`."""
        config = self._runtime.config

        def build(job: Job, now: float) -> Move:
            if not 0 <= step < len(job.steps):
                raise InvalidInput(f"the job's steps are 0 to {len(job.steps) - 1}, not {step}", pointer="/index")
            require_kept(job, config)
            return transitions.rerun(job, step, now=now, waits=config.wait_timeouts)

        act = act_of(who, audit.RETRY_STEP, job_id, step=step)
        await self._commands.revive(job_id, build, config.server.max_waiting_per_user, act)
        return await self.get(job_id)

    async def delete(self, job_id: str, *, who: str | None = None) -> None:
        """Delete a finished job."""
        await self._commands.delete(job_id, act_of(who, audit.DELETE_JOB, job_id))


class JobFilters(TypedDict, total=False):
    """The arguments of `list_jobs`."""

    user_id: str | None
    status: JobStatus | None
    feature_name: str | None
    since: datetime | str | None
    until: datetime | str | None
    service: str | None
    error_code: str | None
    limit: int
    cursor: str | None


def filter_of(
    user_id: str | None = None,
    status: JobStatus | None = None,
    feature_name: str | None = None,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    service: str | None = None,
    error_code: str | None = None,
) -> JobFilter:
    """Make the filter for a list of jobs. `since` (inclusive) and `until` (exclusive) apply to the time of submission,
    `service` to the current step. `error_code` selects only FAILED jobs, unless `status` is given."""
    statuses = (status,) if status else (JobStatus.FAILED,) if error_code is not None else ()
    return JobFilter(
        user_id,
        statuses,
        feature_name,
        service,
        error_code,
        created_from=None if since is None else moment(since, "since"),
        created_before=None if until is None else moment(until, "until"),
    )


def _stop_waiting(end: _End) -> None:
    if not end.done():
        end.set_exception(TimeoutError())


async def _until_terminal(subscription: Subscription, timeout: float | None) -> None:
    """Wait until the job may have ended, but at most `timeout` seconds. The event poller reports jobs that end in other
    processes. If the subscription overflows, the last event may be lost, so the wait ends then too."""
    with contextlib.suppress(TimeoutError, SlowConsumer):
        async with asyncio.timeout(timeout):
            while True:
                event = await subscription.next()
                if event is not None and (event.type in events.TERMINAL or event.type == events.ENDED):
                    return
