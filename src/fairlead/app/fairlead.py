"""`Fairlead`, the public object.

    app = Fairlead()

    @app.service(limit=1)
    async def image_gen(call: Call) -> dict: ...

    async with app.running():                      # everything in this process
        job = await app.submit("image_gen", {"prompt": "a harbour"}, user_id="ada")
        print(await job.result(timeout=60))

`async with app:` opens the store alone: jobs can be submitted and read, and another process runs them.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from fairlead import config as configuration
from fairlead.app.admin import Admin, AdminMethods
from fairlead.app.audit import AuditLog
from fairlead.app.batch_submission import BatchSubmission
from fairlead.app.batches import Batches
from fairlead.app.declarations import DeclarationMethods, Declarations
from fairlead.app.event_stream import Allowed, EventStream
from fairlead.app.file_batches import FileBatches
from fairlead.app.front_requests import FrontRequests
from fairlead.app.handle import BatchHandle, BatchReceipt, JobHandle, Receipt
from fairlead.app.job_commands import JobCommands
from fairlead.app.jobs import Jobs, filter_of
from fairlead.app.models import ModelCatalog
from fairlead.app.runtime import Runtime
from fairlead.app.schedules import Schedules
from fairlead.app.turns.methods import TurnMethods
from fairlead.app.turns.requests import TurnRequests
from fairlead.app.turns.turns import Turns
from fairlead.app.webhooks import Webhooks
from fairlead.artifacts.files import Files
from fairlead.config import Settings
from fairlead.domain.batch import BatchView, ItemStatus, ItemView
from fairlead.domain.config import Config
from fairlead.domain.fair_share import QueuePosition
from fairlead.domain.job import JobStatus
from fairlead.domain.output import Output, Position
from fairlead.domain.pagination import Page
from fairlead.domain.submission import ANONYMOUS, Submission, WebhookOptions
from fairlead.domain.trace_context import TraceContext
from fairlead.domain.views import JobView, RetriedJob, Why
from fairlead.engine.clock import Clock, SystemClock
from fairlead.engine.lifecycle import bounded
from fairlead.engine.roles import ALL, Roles
from fairlead.errors import AlreadyDispatching, Unavailable

if TYPE_CHECKING:
    from fairlead.app.sync import SyncFairlead


class Fairlead(DeclarationMethods, TurnMethods, AdminMethods):
    """The public object. Its parts `jobs`, `batches`, `turns` and `admin` do the work; the methods here call them."""

    def __init__(
        self,
        config: str | Path | Settings | Config | None = None,
        *,
        database_url: str | None = None,
        redis_url: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        if isinstance(config, Config):
            settings = Settings(config)
        elif isinstance(config, Settings):
            settings = config
        else:
            settings = configuration.load(config)
        self.settings = replace(
            settings,
            database_url=database_url or settings.database_url,
            redis_url=redis_url or settings.redis_url,
        )
        self._declarations = Declarations(self.settings)
        self._runtime = runtime = Runtime(self._declarations, clock or SystemClock())
        audit = AuditLog(runtime)
        commands = JobCommands(runtime, audit)
        self.hub = runtime.hub
        self.jobs = Jobs(runtime, commands)
        self.batches = Batches(runtime, commands, audit)
        self.admin = Admin(runtime, commands, audit)
        self.webhooks = Webhooks(runtime, audit)
        self.schedules = Schedules(runtime, audit)
        self.models = ModelCatalog(runtime)
        self.fronts = FrontRequests(runtime, self.jobs)
        self.file_batches = FileBatches(runtime, self.batches, self.models)
        self._turns = Turns(runtime, commands)
        self.turn_requests = TurnRequests(runtime, self._turns, commands)

    @property
    def turns(self) -> Turns:
        """The methods that open, await and end turns by separate calls, for callers that cannot use a `with` block."""
        self._runtime.require_open()
        return self._turns

    @property
    def files(self) -> Files:
        """Saves, reads and removes files in the object store."""
        self._runtime.require_open()
        return self._runtime.files

    @property
    def config(self) -> Config:
        """The configuration from the file, together with everything that code has declared so far."""
        return self._declarations.config

    @property
    def listens_on(self) -> Sequence[str]:
        """The URLs of this app's gateway. Set by the server that runs the gateway."""
        return self._runtime.listens_on

    @listens_on.setter
    def listens_on(self, urls: Sequence[str]) -> None:
        self._runtime.listens_on = urls

    # ------------------------------------------------------------ open and run

    async def open(self) -> None:
        """Connect to the store. From then on jobs can be submitted, read, listed, cancelled and resumed."""
        await self._runtime.open()

    async def close(self) -> None:
        await self._stop()
        await bounded("closing the dashboard", self.admin.close())
        await bounded("closing the connections to upstreams", self.models.close())
        await bounded("leaving the jobs of fronts", self.fronts.close())
        await self._runtime.close()

    async def __aenter__(self) -> Fairlead:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @contextlib.asynccontextmanager
    async def running(self, roles: Roles = ALL) -> AsyncIterator[Fairlead]:
        """Run the queue in this process while the block runs: all roles, or the given `roles` if the queue is in
        Redis."""
        runtime = self._runtime
        if runtime.node is not None:
            raise AlreadyDispatching("this app is running already")
        opened_before = runtime.is_open
        if not opened_before:
            await runtime.open_patiently()
        try:
            await runtime.start(roles)
            yield self
        finally:
            await self._stop()
            if not opened_before:
                await self.close()

    async def _stop(self) -> None:
        if self._runtime.node is not None:
            with contextlib.suppress(Unavailable):
                await bounded("ending the turns of this process", self._turns.close())
        await self._runtime.stop()

    @property
    def broken(self) -> BaseException | None:
        """The error that has stopped a part of this process for good, so that only a restart helps; None if there is
        none."""
        node = self._runtime.node
        shards = node.shards.values() if node is not None else ()
        return next((shard.broken for shard in shards if shard.broken is not None), None)

    async def drain(self) -> None:
        """Stop claiming jobs, let calls finish within `worker.drain_timeout`, and return unfinished steps to the
        queue."""
        if self._runtime.node is not None:
            await self._runtime.node.drain()

    @cached_property
    def sync(self) -> SyncFairlead:
        """The methods of the app for code without an event loop (Django, Flask, scripts)."""
        from fairlead.app.sync import SyncFairlead

        return SyncFairlead(self, self._runtime)

    # ------------------------------------------------------------ jobs

    async def submit(
        self,
        feature_name: str,
        input_data: Mapping[str, Any] | None = None,
        *,
        user_id: str = ANONYMOUS,
        priority: str | None = None,
        scheduled_at: datetime | str | None = None,
        delay: float | None = None,
        deadline: datetime | str | float | None = None,
        cost: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        region: str | None = None,
        allowed_regions: Sequence[str] | None = None,
        idempotency_key: str | None = None,
        connection: Any = None,
        **webhook: Unpack[WebhookOptions],
    ) -> JobHandle:
        """Accept one job. When this returns, the job is committed. With `connection` (PostgreSQL: asyncpg, psycopg or
        SQLAlchemy), the job is written in the transaction of that connection instead, and exists only if that
        transaction commits. `webhook_url` receives the `webhook_events` of the job, by default its end."""
        submission = Submission(
            feature_name, input_data, user_id, priority, scheduled_at, delay, deadline, cost, metadata, region,
            allowed_regions, **webhook,
        )  # fmt: skip
        [receipt] = await self.jobs.accept([submission], idempotency_key=idempotency_key, connection=connection)
        return JobHandle(self, receipt.job_id)

    async def submit_many(
        self, submissions: Sequence[Submission], *, idempotency_key: str | None = None
    ) -> list[JobHandle]:
        """Accept many jobs in one commit: all of them or none."""
        receipts = await self.jobs.accept(submissions, idempotency_key=idempotency_key)
        return [JobHandle(self, receipt.job_id) for receipt in receipts]

    async def push_task(
        self, queue: str, payload: Mapping[str, Any], priority: str = "low", *, idempotency_key: str | None = None
    ) -> bool:
        """Submit a job to the service `queue`, with the arguments of TaskFlow's `push_task`. Returns True once the job
        is committed. Returns False if the database does not accept the job now: repeat the call with the same
        `idempotency_key`, so that the job is never created twice."""
        return await self.jobs.push_task(queue, payload, priority, idempotency_key=idempotency_key)

    async def accept(
        self,
        submissions: Sequence[Submission],
        *,
        idempotency_key: str | None = None,
        body_hash: str | None = None,
        connection: Any = None,
        lowers_only: bool = False,
        trace: TraceContext | None = None,
        start_within: float | None = None,
    ) -> list[Receipt]:
        """Accept all jobs or none, in one commit, as `app.jobs.accept` does. If one of several jobs is invalid, the
        `index` in the error's details names it."""
        return await self.jobs.accept(
            submissions,
            idempotency_key=idempotency_key,
            body_hash=body_hash,
            connection=connection,
            lowers_only=lowers_only,
            trace=trace,
            start_within=start_within,
        )

    async def was_submitted(self, user_id: str, idempotency_key: str) -> bool:
        """Whether this user has submitted a job with this idempotency key before."""
        return await self.jobs.was_submitted(user_id, idempotency_key)

    async def get(self, job_id: str) -> JobView:
        """The job with its steps, results and queue position. Raises NotFound."""
        return await self.jobs.get(job_id)

    async def owner_of(self, job_id: str) -> str | None:
        """The user_id of the job; None if there is no such job."""
        return await self.jobs.owner_of(job_id)

    async def why(self, job_id: str, *, private: bool = False) -> Why:
        """Explain why the job waits, or what it is doing. `private` leaves out the ids of other users and where their
        jobs run."""
        return await self.jobs.why(job_id, private=private)

    async def places(self, job_ids: Sequence[str]) -> dict[str, QueuePosition]:
        """The queue positions of these jobs. Empty in a process without a dispatcher."""
        return await self.jobs.positions(job_ids)

    async def places_of_new(self, job_ids: Sequence[str]) -> dict[str, QueuePosition]:
        """The queue positions of jobs that this process has just accepted. Empty while the dispatcher is busy."""
        return await self.jobs.positions_of_new(job_ids)

    async def list_jobs(
        self,
        *,
        user_id: str | None = None,
        status: JobStatus | None = None,
        feature_name: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        service: str | None = None,
        error_code: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[JobView]:
        """List jobs, newest first. `since` (inclusive) and `until` (exclusive) apply to the time of submission,
        `service` to the current step. `error_code` selects only FAILED jobs, unless `status` is given."""
        where = filter_of(user_id, status, feature_name, since, until, service, error_code)
        return await self.jobs.page(where, limit, cursor)

    async def open_jobs(self, user_id: str) -> tuple[list[JobView], bool]:
        """The unfinished jobs of a user, newest first, at most a hundred; and whether the user has more."""
        return await self.jobs.open_jobs(user_id)

    async def wait(self, job_id: str, timeout: float | None = None) -> JobView:
        """Wait until the job has ended, and return it. Returns its current state after `timeout` seconds."""
        return await self.jobs.wait(job_id, timeout)

    def watch(self, job_id: str, *, heartbeat: float = 15.0) -> AsyncIterator[dict[str, Any] | None]:
        """Yield a snapshot of the job, then its events until it ends. Yields None after `heartbeat` seconds without an
        event."""
        return self.jobs.watch(job_id, heartbeat=heartbeat)

    def watch_user(self, user_id: str, *, heartbeat: float = 15.0) -> AsyncIterator[dict[str, Any] | None]:
        """Yield a snapshot of the user's unfinished jobs, then the events of all jobs of the user, without end."""
        return self.jobs.watch_user(user_id, heartbeat=heartbeat)

    def output(
        self, job_id: str, after: Position | str | None = None, heartbeat: float | None = None
    ) -> AsyncGenerator[Output | None, None]:
        """Yield the output of the job: each `Chunk` that its steps emit, in order, a `Restart` when chunks that were
        yielded are void, because their step runs again, and `End` when the job has ended. The output begins at the
        start, or after a position. Yields None after `heartbeat` seconds without output."""
        return self.jobs.output(job_id, after, heartbeat)

    def feed(self, allowed: Allowed = lambda job: True) -> EventStream:
        """Open an event stream for one reader; the caller closes it. `allowed` decides which jobs the reader may
        see."""
        return self.jobs.stream(allowed)

    async def cancel(self, job_id: str, *, who: str | None = None) -> JobView:
        """Cancel a job that has not ended. If an operator is named in `who`, the action is recorded in the audit
        log."""
        return await self.jobs.cancel(job_id, who=who)

    async def resume(self, job_id: str, *, who: str | None = None) -> JobView:
        """Put a FAILED job that is marked retryable back in the queue, at the step that failed. The job then counts
        towards its user's limit of waiting jobs. An operator's `requeue` ignores this limit."""
        return await self.jobs.resume(job_id, who=who)

    async def retry(self, job_id: str, *, from_start: bool = False, who: str | None = None) -> RetriedJob:
        """Put any FAILED job back in the queue with fresh attempts, at the step that failed or from the start. The
        returned job has a `warning` if the error was permanent."""
        return await self.jobs.retry(job_id, from_start=from_start, who=who)

    async def retry_step(self, job_id: str, step: int, *, who: str | None = None) -> JobView:
        """Run one step (counted from 0) of a COMPLETED or FAILED job again. If the job failed at this step, it
        continues with the later steps. Otherwise later steps do not run again: the job returns to its earlier status
        with the new result, and keeps the old result in its `history`."""
        return await self.jobs.retry_step(job_id, step, who=who)

    async def delete(self, job_id: str, *, who: str | None = None) -> None:
        """Delete a finished job."""
        await self.jobs.delete(job_id, who=who)

    # ------------------------------------------------------------ batches

    async def submit_batch(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        user_id: str = "anonymous",
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        **defaults: Any,
    ) -> BatchHandle:
        """Accept many jobs as one batch: all of them or none. Each item has the fields of a job, and optionally a
        `custom_id`. `defaults` (feature_name, priority, ...) apply to items that do not set the field."""
        submission = BatchSubmission(list(items), user_id, name, metadata, defaults)
        receipt = await self.batches.accept(submission, idempotency_key=idempotency_key)
        return BatchHandle(self, receipt.batch_id)

    async def accept_batch(
        self,
        wanted: BatchSubmission,
        *,
        idempotency_key: str | None = None,
        lowers_only: bool = False,
        trace: TraceContext | None = None,
    ) -> BatchReceipt:
        """Accept all items or none, in one commit. `lowers_only` and `trace` have the same meaning as in `accept`."""
        return await self.batches.accept(wanted, idempotency_key=idempotency_key, lowers_only=lowers_only, trace=trace)

    def batch(self, batch_id: str) -> BatchHandle:
        """A handle to a batch that was submitted earlier, by this process or another."""
        return BatchHandle(self, batch_id)

    async def get_batch(self, batch_id: str) -> BatchView:
        """The batch with its counts by status and its progress. Raises NotFound."""
        return await self.batches.get(batch_id)

    async def owner_of_batch(self, batch_id: str) -> str | None:
        """The user_id of the batch; None if there is no such batch."""
        return await self.batches.owner_of(batch_id)

    async def list_batches(
        self, *, user_id: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[BatchView]:
        """List batches, newest first. With `user_id`, only the batches of this user."""
        return await self.batches.page(user_id, limit, cursor)

    async def batch_items(
        self, batch_id: str, *, status: ItemStatus | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[ItemView]:
        """The items of a batch in their order, without results. The status `REMOVED` selects items whose job was
        deleted."""
        return await self.batches.items(batch_id, status, limit, cursor)

    def batch_results(self, batch_id: str) -> AsyncIterator[ItemView]:
        """Iterate over all items in their order, with results. Each result is read when the iteration reaches it."""
        return self.batches.results(batch_id)

    async def wait_batch(self, batch_id: str, timeout: float | None = None) -> BatchView:
        """Wait until every item has ended, and return the batch. Returns its current state after `timeout` seconds."""
        return await self.batches.wait(batch_id, timeout)

    def watch_batch(self, batch_id: str, *, heartbeat: float = 15.0) -> AsyncIterator[dict[str, Any] | None]:
        """Yield the batch, then its progress until every item has ended. Yields None after `heartbeat` seconds without
        an event."""
        return self.batches.watch(batch_id, heartbeat=heartbeat)

    async def cancel_batch(self, batch_id: str, *, who: str | None = None) -> int:
        """Cancel every item that has not ended. Returns how many items were cancelled."""
        return await self.batches.cancel(batch_id, who=who)

    async def resume_batch(self, batch_id: str, *, who: str | None = None) -> int:
        """Put every FAILED item that is marked retryable back in the queue. Returns how many items were put back."""
        return await self.batches.resume(batch_id, who=who)

    async def retry_batch(self, batch_id: str, *, from_start: bool = False, who: str | None = None) -> int:
        """Put every FAILED item back in the queue, even if it is not marked retryable. Returns how many were put
        back."""
        return await self.batches.retry_failed(batch_id, from_start=from_start, who=who)

    async def retry_item(self, batch_id: str, item: str | int, *, who: str | None = None) -> ItemView:
        """Put one FAILED item back in the queue, even if it is not marked retryable. `item` is its custom_id or its
        number."""
        return await self.batches.retry(batch_id, str(item), who=who)
