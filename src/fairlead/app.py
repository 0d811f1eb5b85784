"""`Fairlead`, the public object.

    app = Fairlead()

    @app.service(limit=1)
    async def image_gen(call: Call) -> dict: ...

    async with app.running():                      # everything in this process
        job = await app.submit("image_gen", {"prompt": "a harbour"}, user_id="ada")
        print(await job.result(timeout=60))

`async with app:` opens the store alone: jobs can be submitted and looked at, and another process runs them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from fairlead import config as configuration
from fairlead.batching import Batching
from fairlead.config import Settings
from fairlead.domain import transitions
from fairlead.domain.config import AUTO, AUTO_KEYS, Config, ServiceConfig
from fairlead.domain.job import OPEN, Job, JobStatus
from fairlead.domain.order import Place
from fairlead.domain.transitions import Move, Submit
from fairlead.domain.turns import is_turn
from fairlead.engines import bus_of, shards_of, store_of, submit_on, writers_of
from fairlead.errors import (
    AlreadyDispatching,
    ConfigError,
    FairleadError,
    InvalidInput,
    NotFound,
    RequestError,
    Unavailable,
)
from fairlead.executors.assembly import executors_of
from fairlead.executors.celery import application as celery
from fairlead.executors.function import Handler, imported
from fairlead.handle import JobHandle, Receipt
from fairlead.operators import Operators
from fairlead.runtime import audit, events, view
from fairlead.runtime.administration import Administration
from fairlead.runtime.audit import AuditBook, act_of
from fairlead.runtime.batch_watch import BatchWatch
from fairlead.runtime.batches import Batches
from fairlead.runtime.clock import Clock, SystemClock
from fairlead.runtime.dashboard.board import Dashboard
from fairlead.runtime.dead import DeadLetters
from fairlead.runtime.events import Dismissed, Hub, Subscription, TooSlow
from fairlead.runtime.feed import Allowed, Feed
from fairlead.runtime.keys import Keys
from fairlead.runtime.lookout import Lookout
from fairlead.runtime.moments import moment
from fairlead.runtime.operations import Operations, check_id
from fairlead.runtime.paging import Page
from fairlead.runtime.pools import pools_of, services_of
from fairlead.runtime.priority import Priorities, PriorityHook
from fairlead.runtime.probes import Probes
from fairlead.runtime.process import Process
from fairlead.runtime.record import Recorder, accepted
from fairlead.runtime.registry import Bystander, Presence, Registry, introduction, new_name
from fairlead.runtime.roles import ALL, NOTHING, Roles
from fairlead.runtime.sessions import Sessions
from fairlead.runtime.submission import ANONYMOUS, MAX_USER_ID, Checks, Submission, check_text
from fairlead.runtime.turns.tickets import Tickets
from fairlead.runtime.turns.turns import Turns
from fairlead.runtime.view import JobView
from fairlead.runtime.why import Inquiry, Why
from fairlead.store.journal import Journal
from fairlead.store.port import Accepted, JobFilter, LineChange, Outcome, Store
from fairlead.turning import Turning

if TYPE_CHECKING:
    from fairlead.sync import SyncFairlead

H = TypeVar("H", bound=Callable[..., Any])
P = TypeVar("P", bound=PriorityHook)

MOST_IN_A_SNAPSHOT = 100
LOOK_AT_ONCE = 16


class Fairlead(Operators, Batching, Turning):
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
        self.config = settings.config
        self.hub = Hub()
        self.listens_on: Sequence[str] = ()
        """URLs where a gateway of this app can be reached, as far as whoever serves it says."""
        self._clock = clock or SystemClock()
        self._handlers: dict[str, Handler] = {}
        self._priority_hook: PriorityHook | None = None
        self._store: Store | None = None
        self._journal: Journal | None = None
        self._process: Process | None = None
        self._bystander: Bystander | None = None
        self._lookout: asyncio.Task[None] | None = None
        self._probes = Probes()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._joining = asyncio.Lock()

    # ------------------------------------------------------------ declaring

    def service(self, name: str | None = None, **options: Any) -> Callable[[H], H]:
        """Declare a function as a service; `options` are the keys of `[services.NAME]` (docs/configuration.md). What
        `fairlead.toml` says of the same service wins, so that an operator can change a limit without the code."""

        def declare(handler: H) -> H:
            service_name = name or handler.__name__
            written = self.config.services.get(service_name)
            task = {"celery": getattr(handler, "name", None)} if celery.is_task(handler) else {}
            said = {**task, **options, **(written.model_dump(exclude_unset=True) if written is not None else {})}
            if written is not None and options.get("limit") == AUTO and written.limit != AUTO:
                # The file gives a number: the bounds in the code have nothing left to bound.
                said = {key: value for key, value in said.items() if key not in AUTO_KEYS}
            try:
                service = ServiceConfig.model_validate(said).handled()
                declared = {**self.config.services, service_name: service}
                self.config = Config.model_validate({**dict(self.config), "services": declared})
            except ValidationError as error:
                source = f"@app.service on {handler.__name__}"
                raise ConfigError(configuration.explained(error, source, service_name)) from None
            self._handlers[service_name] = handler
            return handler

        return declare

    def pipeline(self, name: str, steps: Sequence[str]) -> None:
        """Declare a named list of services, as `[pipelines]` does."""
        declared = {**self.config.pipelines, name: list(steps)}
        try:
            self.config = Config.model_validate({**dict(self.config), "pipelines": declared})
        except ValidationError as error:
            raise ConfigError(configuration.explained(error, f"app.pipeline({name!r})", "pipelines")) from None

    def priority(self, hook: P) -> P:
        """Declare the function that says who goes first (docs/priority.md). It gets a `user_id`; it returns a priority,
        a mapping with `priority`, `weight` or `plan`, or None to leave it to the config and the priority service."""
        self._priority_hook = hook
        return hook

    def check(self) -> list[str]:
        """Everything that is wrong with the configuration, each with where and what is allowed."""
        source = self.settings.source or "the configuration"
        problems = configuration.problems_of(self.config, source)
        problems += _problems(lambda url: store_of(url, self._clock.now), self.settings.database_url)
        problems += self.settings.problems()
        for name, steps in self.config.pipelines.items():
            if idle := sorted(self.config.turns_only.intersection(steps)):
                problems.append(
                    f"{source}: pipelines.{name}: nothing executes {', '.join(idle)}; give it a url, a function, "
                    "regions or celery, or a handler with @app.service"
                )
        for name, service in self.config.services.items():
            if service.function:
                problems += [f"{source}: services.{name}.{said}" for said in _problems(imported, service.function)]
            if (service.remote or service.function) and name in self._handlers and not self._is_celery(name):
                problems.append(f"{source}: services.{name}: it has a handler in code, so url and function must go")
        problems += [f"{source}: {said}" for said in celery.problems(self.config, self._handlers)]
        return problems

    def _is_celery(self, name: str) -> bool:
        """Declared in code as the Celery task that it is."""
        return self.config.services[name].celery is not None and celery.is_task(self._handlers[name])

    # ------------------------------------------------------------ opening and running

    async def open(self) -> None:
        """Connect to the store: submit, get, list, cancel and resume work from here on."""
        if self._store is not None:
            raise FairleadError("the app is open already")
        if problems := self.check():
            raise ConfigError(problems)
        url = self.settings.database_url
        store = store_of(url, self._clock.now)
        await store.open()
        self._store = store
        self._journal = Journal(store, on_commit=self._committed, writers=writers_of(url))
        self._journal.start()
        self._recorder = Recorder(self._journal, self.hub)
        self._audit = AuditBook(store, self._journal, self._clock)
        self._operations = Operations(store, self._recorder, self._clock, self._audit)
        self._dead = DeadLetters(store, self._journal, self._recorder, self._clock, self._audit)
        self._administration = Administration(store, self._operations, self._recorder, self._clock, self._audit)
        self._registry = Registry(store, self._audit)
        self._batches = Batches(
            store,
            self._journal,
            self._recorder,
            self._operations,
            self._clock,
            self._audit,
            waits=lambda: self.config.wait_timeouts,
        )
        self._batch_watch = BatchWatch(self._batches, self.hub, self._clock)
        self._priorities = Priorities(self.config, self._priority_hook, self._clock)
        self._keys = Keys(store, self._journal, self._clock, self._audit, has_admin=self.settings.admin_key is not None)
        self._sessions = Sessions(store, self._journal, self._clock)
        self._dashboard = Dashboard(store, lambda: self.config, lambda: self._process, self.doctor)
        self._looks = asyncio.Semaphore(LOOK_AT_ONCE)
        self._loop = asyncio.get_running_loop()
        self._tickets = Tickets()
        self._turns = Turns(
            store,
            self._journal,
            self._recorder,
            self._operations,
            self.hub,
            self._clock,
            config=lambda: self.config,
            tickets=self._tickets,
            settle=self._settle_turn,
            process=self._joined,
        )
        lookout = Lookout(store, self.hub, self._clock, deaf=lambda: self._process is None)
        self._lookout = asyncio.get_running_loop().create_task(lookout.run(), name="fairlead-lookout")

    def _committed(self, changes: Sequence[LineChange]) -> None:
        # Without a line in this process, the outbox keeps the changes for the process that has it.
        if self._process is not None:
            self._process.committed(changes)

    async def close(self) -> None:
        if self._process is not None:
            await self._stop()
        self._loop = None
        journal, store, lookout = self._journal, self._store, self._lookout
        self._journal = self._store = self._lookout = None
        self._probes.close()
        if lookout is not None:
            lookout.cancel()
            await asyncio.gather(lookout, return_exceptions=True)
        if journal is not None:
            await self._dashboard.close()
            await self._priorities.close()
            await journal.close()
        if store is not None:
            await store.close()

    async def __aenter__(self) -> Fairlead:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @contextlib.asynccontextmanager
    async def running(self, roles: Roles = ALL) -> AsyncIterator[Fairlead]:
        """Run the line in this process: all of it, or what `roles` say of a line that is in Redis."""
        if self._process is not None:
            raise AlreadyDispatching("this app is running already")
        opened_before = self._store is not None
        if not opened_before:
            await self.open()
        try:
            await self._start(roles)
            yield self
        finally:
            await self._stop()
            if not opened_before:
                await self.close()

    async def _start(self, roles: Roles) -> None:
        store, journal = self._opened()
        name = new_name()
        if self.settings.redis_url is None:
            if not (roles.worker and roles.manager):
                if roles.worker or roles.manager:
                    raise ConfigError(["REDIS_URL: a worker or a manager of its own needs Redis; set it, or use `up`"])
                # The process that dispatches from memory finds in the outbox what this one accepts.
                about = introduction(name, roles, self.config, (), self._clock.now())
                self._bystander = Bystander(Presence(about, journal, self._clock), self._clock)
                await self._bystander.start()
                return
            await store.lock_dispatch()
        elif roles.manager:
            await store.lock_dispatch(shared=True)
        servers: set[str] = set()
        wanted = services_of(pools_of(roles, self.config))
        executors = executors_of(self.config, self._handlers, wanted)
        process = Process(
            name,
            self.config,
            roles,
            store=store,
            journal=journal,
            recorder=self._recorder,
            shards=shards_of(self.settings, self.config, name, servers, self._clock.steady),
            servers=servers,
            bus=bus_of(self.settings),
            executors=executors,
            hub=self.hub,
            clock=self._clock,
            tickets=self._tickets,
        )
        self._process = self._turns.process = process
        await process.start()

    async def _joined(self) -> Process:
        """What this process has of the line. A caller of turns has to be part of it: a slot is brought to its process,
        and others must see when that is gone."""
        async with self._joining:
            if self._process is None:
                self._opened()
                if self.settings.redis_url is None:
                    raise Unavailable(
                        "turns need the line: use `async with app.running():`, or REDIS_URL if others run it"
                    )
                await self._start(NOTHING)
            assert self._process is not None
            return self._process

    async def _settle_turn(self, submit: Submit, *, lowers_only: bool) -> Submit:
        if not (self._priorities.needed or lowers_only):
            return submit
        (settled,) = await self._priorities.settle([submit], lowers_only=lowers_only)
        return settled

    async def _stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(Unavailable):
                await self._turns.close()
        process, self._process = self._process, None
        if self._store is not None:
            self._turns.process = None
        bystander, self._bystander = self._bystander, None
        if process is not None:
            await process.stop()
        if bystander is not None:
            await bystander.stop()

    @property
    def broken(self) -> BaseException | None:
        """What broke down in this process, and does not come back without a restart."""
        lines = self._process.lines.values() if self._process is not None else ()
        return next((line.broken for line in lines if line.broken is not None), None)

    async def drain(self) -> None:
        """Stop claiming; let calls finish within `worker.drain_timeout`; hand the rest back."""
        if self._process is not None:
            await self._process.drain()

    @cached_property
    def sync(self) -> SyncFairlead:
        """The same calls for code without an event loop (Django, Flask, scripts)."""
        from fairlead.sync import SyncFairlead

        return SyncFairlead(self)

    # ------------------------------------------------------------ submitting

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
    ) -> JobHandle:
        """Accept one job. When this returns, it is committed; with `connection` (PostgreSQL: asyncpg, psycopg or
        SQLAlchemy) it is part of that connection's transaction, and exists if and only if that commits."""
        wanted = Submission(
            feature_name, input_data, user_id, priority, scheduled_at, delay, deadline, cost, metadata, region,
            allowed_regions,
        )  # fmt: skip
        receipts = await self.accept([wanted], idempotency_key=idempotency_key, connection=connection)
        return JobHandle(self, receipts[0].job_id)

    async def submit_many(
        self, submissions: Sequence[Submission], *, idempotency_key: str | None = None
    ) -> list[JobHandle]:
        """Accept many jobs in one commit: all or none."""
        receipts = await self.accept(submissions, idempotency_key=idempotency_key)
        return [JobHandle(self, receipt.job_id) for receipt in receipts]

    async def push_task(self, queue: str, payload: Mapping[str, Any], priority: str = "low") -> bool:
        """TaskFlow's call: a durable submit to the service `queue`. True: it is committed."""
        if not isinstance(payload, Mapping):
            raise InvalidInput("the payload is an object, such as {'task_id': 7}", pointer="/input_data")
        user_id = payload.get("user_id", ANONYMOUS)
        await self.submit(queue, payload, user_id=str(user_id), priority=priority)
        return True

    async def accept(
        self,
        submissions: Sequence[Submission],
        *,
        idempotency_key: str | None = None,
        body_hash: str | None = None,
        connection: Any = None,
        lowers_only: bool = False,
    ) -> list[Receipt]:
        """All or nothing, in one commit. An error of many has the item's `index` in its details. `lowers_only`: a given
        priority counts only below the one that the user would get without it."""
        _, journal = self._opened()
        now = self._clock.now()
        checks = Checks(self.config, now=now)
        submits = []
        for index, wanted in enumerate(submissions):
            key = idempotency_key
            if key is not None and len(submissions) > 1:
                key = f"{key}#{index}"
            try:
                submits.append(checks.submit_of(wanted, idempotency_key=key, body_hash=body_hash))
            except RequestError as error:
                if len(submissions) > 1:
                    error.details["index"] = index
                raise
        if self._priorities.needed or lowers_only:
            submits = await self._priorities.settle(submits, lowers_only=lowers_only)
        outcomes: Sequence[Outcome]
        if connection is not None:
            outcomes = await submit_on(self.settings.database_url, connection, submits)
        elif len(submits) == 1:
            outcomes = [await journal.write(submits[0])]
        else:
            outcomes = await journal.write_all(submits)
        receipts, welcome = [], []
        for submit, outcome in zip(submits, outcomes, strict=True):
            assert isinstance(outcome, Accepted)
            job = submit.job
            if connection is None and not outcome.replayed:
                welcome.append(job)
            elif job.timer_at is not None:  # nobody knows yet whether the caller commits
                self._recorder.on_timer(job.timer_at)
            receipts.append(Receipt(outcome.job_id, job.priority, job.status, outcome.replayed, job.scheduled_at))
        self._welcome(welcome, now)
        return receipts

    def _welcome(self, jobs: Sequence[Job], now: float) -> None:
        """Jobs that are committed."""
        self._recorder.observations.submitted(jobs)
        # Nobody knows their ids yet, but their users may be followed.
        followed = {user_id for user_id in {job.user_id for job in jobs} if self.hub.follows(user_id)}
        for job in jobs:
            if job.timer_at is not None:
                self._recorder.on_timer(job.timer_at)
            if job.user_id in followed:
                self.hub.publish(accepted(job, now), job.user_id)

    async def was_submitted(self, user_id: str, idempotency_key: str) -> bool:
        """Whether this user's key stands for a job already, so that a submit with it makes none."""
        store, _ = self._opened()
        return await store.was_submitted(check_text(user_id, "user_id", MAX_USER_ID), idempotency_key)

    # ------------------------------------------------------------ looking

    async def get(self, job_id: str) -> JobView:
        store, _ = self._opened()
        record = await store.get(check_id(job_id))
        if record is None:
            raise NotFound(f"there is no job {job_id}")
        places = await self.places([job_id]) if record.job.status is JobStatus.PENDING else {}
        return view.of_record(record, places.get(job_id))

    async def owner_of(self, job_id: str) -> str | None:
        """Whose job it is. None: there is no such job."""
        store, _ = self._opened()
        jobs = await store.get_jobs([check_id(job_id)])
        return jobs[job_id].user_id if job_id in jobs else None

    async def why(self, job_id: str, *, private: bool = False) -> Why:
        """What holds this job now, in words. `private`: without whose the other jobs are, and where they run."""
        store, _ = self._opened()
        return await Inquiry(store, self._process, self._clock, private=private).ask(check_id(job_id))

    async def places(self, job_ids: Sequence[str]) -> dict[str, Place]:
        """Where these jobs stand; empty in a process that does not know the line."""
        return await self._process.places(job_ids) if self._process is not None else {}

    async def places_of_new(self, job_ids: Sequence[str]) -> dict[str, Place]:
        """The same for jobs that were accepted here just now; empty while the line has no time to tell."""
        return await self._process.places_of_new(job_ids) if self._process is not None else {}

    async def list_jobs(
        self,
        *,
        user_id: str | None = None,
        status: JobStatus | None = None,
        feature_name: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[JobView]:
        """Newest first. `since` and `until` are about when they were accepted; `until` does not count."""
        self._opened()
        where = JobFilter(
            user_id,
            (status,) if status else (),
            feature_name,
            created_from=None if since is None else moment(since, "since"),
            created_before=None if until is None else moment(until, "until"),
        )
        page = await self._operations.page(where, limit, cursor)
        places = await self.places([job.id for job in page.data if job.status is JobStatus.PENDING])
        return Page([view.of_job(job, places.get(job.id)) for job in page.data], page.next_cursor)

    async def wait(self, job_id: str, timeout: float | None = None) -> JobView:
        """The job when it has ended, or as it is after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        check_id(job_id)
        while True:
            with self.hub.subscribe(job_id, places=False) as subscription:
                job = await self.get(job_id)
                rest = None if until is None else until - loop.time()
                if job.status.finished or (rest is not None and rest <= 0):
                    return job
                try:
                    await _until_terminal(subscription, rest)
                except Dismissed:
                    return await self.get(job_id)

    async def watch(self, job_id: str, *, heartbeat: float = 15.0) -> AsyncIterator[dict[str, Any] | None]:
        """A snapshot, then what happens, until the job ends. None after `heartbeat` seconds without news."""
        with contextlib.closing(self.feed()) as feed:
            yield await feed.watch(check_id(job_id))
            while not feed.follows_nothing:
                yield await feed.next(heartbeat)

    async def watch_user(self, user_id: str, *, heartbeat: float = 15.0) -> AsyncIterator[dict[str, Any] | None]:
        """A snapshot of a user's open jobs, then what happens to any job of theirs, without end."""
        with contextlib.closing(self.feed()) as feed:
            yield await feed.follow(user_id)
            while True:
                yield await feed.next(heartbeat)

    def feed(self, allowed: Allowed = lambda job: True) -> Feed:
        """For one reader of any jobs; whoever takes it closes it."""
        self._opened()
        return Feed(self.hub, self, self._clock.now, self._looks, allowed)

    async def open_jobs(self, user_id: str) -> tuple[list[JobView], bool]:
        """A user's jobs that have not ended, newest first, at most a hundred; and whether there are more."""
        store, _ = self._opened()
        found = await store.list_jobs(JobFilter(user_id, OPEN), before_seq=None, limit=MOST_IN_A_SNAPSHOT + 1)
        jobs = found[:MOST_IN_A_SNAPSHOT]
        places = await self.places([job.id for job in jobs if job.status is JobStatus.PENDING])
        return [view.of_job(job, places.get(job.id)) for job in jobs], len(found) > len(jobs)

    # ------------------------------------------------------------ acting; with `who`, an operator, it is in the audit

    async def cancel(self, job_id: str, *, who: str | None = None) -> JobView:
        self._opened()
        act = act_of(who, audit.CANCEL_TURN if is_turn(check_id(job_id)) else audit.CANCEL_JOB, job_id)
        await self._operations.move(job_id, lambda job, now: transitions.cancel(job, now=now), act)
        return await self.get(job_id)

    async def resume(self, job_id: str, *, who: str | None = None) -> JobView:
        """Take up a FAILED job that is marked retryable, at the step that failed. It counts among its user's waiting
        jobs as a new one does; an operator's `requeue` is not held back."""
        self._opened()
        waits = self.config.wait_timeouts

        def build(job: Job, now: float) -> Move:
            return transitions.resume(job, now=now, waits=waits)

        act = act_of(who, audit.RESUME_JOB, job_id)
        await self._operations.revive(job_id, build, self.config.server.max_waiting_per_user, act)
        return await self.get(job_id)

    async def retry_step(self, job_id: str, step: int, *, who: str | None = None) -> JobView:
        """Run one step of a COMPLETED or FAILED job again, counted from 0. Later steps are not: the job then is what it
        was, with the new result, and the earlier one in its `history`. The step that a job failed at goes on from
        there."""
        self._opened()
        waits = self.config.wait_timeouts

        def build(job: Job, now: float) -> Move:
            if not 0 <= step < len(job.steps):
                raise InvalidInput(f"the job's steps are 0 to {len(job.steps) - 1}, not {step}", pointer="/index")
            return transitions.rerun(job, step, now=now, waits=waits)

        act = act_of(who, audit.RETRY_STEP, job_id, step=step)
        await self._operations.revive(job_id, build, self.config.server.max_waiting_per_user, act)
        return await self.get(job_id)

    async def delete(self, job_id: str, *, who: str | None = None) -> None:
        """Remove a finished job for good."""
        self._opened()
        await self._operations.delete(job_id, act_of(who, audit.DELETE_JOB, job_id))

    def _opened(self) -> tuple[Store, Journal]:
        if self._store is None or self._journal is None:
            raise Unavailable("the app is not open; use `async with app:` or `async with app.running():`")
        return self._store, self._journal


def _problems(read: Callable[[str], object], text: str) -> Sequence[str]:
    """What is wrong with a value, if anything."""
    try:
        read(text)
    except ConfigError as error:
        return error.problems
    return ()


async def _until_terminal(subscription: Subscription, timeout: float | None) -> None:
    """What this process did is told; what others did, the lookout sees. A reader that was too slow looks as well."""
    with contextlib.suppress(TimeoutError, TooSlow):
        async with asyncio.timeout(timeout):
            while True:
                event = await subscription.next()
                if event is not None and (event.type in events.TERMINAL or event.type == events.ENDED):
                    return
