"""The open connections of an app: its store, and the node if this process runs part of the queue."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

from fairlead.app.budget_gate import BudgetGate, BudgetState
from fairlead.app.declarations import Declarations
from fairlead.app.event_stream import EventPoller
from fairlead.app.new_jobs import NewJobs
from fairlead.app.priority import PriorityResolver
from fairlead.app.telemetry import tracing_of
from fairlead.artifacts.files import Files
from fairlead.backends import bus_of, has_clock, objects_of, output_log_of, shards_of, store_of, writers_of
from fairlead.config import Settings
from fairlead.dispatch.output_log import OutputLog
from fairlead.domain.budgets import Budgets
from fairlead.domain.config import Config
from fairlead.domain.config_budgets import budgets_of
from fairlead.domain.config_prices import prices_of
from fairlead.domain.job import Job
from fairlead.domain.submission import ANONYMOUS
from fairlead.domain.transitions import Submit
from fairlead.engine.clock import Clock, DatabaseClock
from fairlead.engine.events import Hub
from fairlead.engine.heartbeat import Heartbeat
from fairlead.engine.lifecycle import bounded, patiently, stopped
from fairlead.engine.loop_runner import Loop
from fairlead.engine.node import Node
from fairlead.engine.output_writer import OutputWriter
from fairlead.engine.parts import EngineParts, RunningNode
from fairlead.engine.registry import Announcer, GatewayOnlyNode, describe_process, new_name
from fairlead.engine.roles import NOTHING, Roles, pools_of, services_of
from fairlead.engine.transition_writer import TransitionWriter, accepted
from fairlead.engine.turns.waiters import Waiters
from fairlead.engine.webhooks.endpoints import EndpointUsers
from fairlead.errors import ConfigError, FairleadError, Unavailable
from fairlead.executors.factory import executors_of
from fairlead.observe.snapshot import Observer
from fairlead.observe.status import Probes
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Store

if TYPE_CHECKING:
    from fairlead.engine.tracing import Tracing

log = logging.getLogger("fairlead.process")

CONCURRENT_SNAPSHOTS = 16

NO_USER_ID = (
    "a job for %s was submitted without a user_id%s. All such jobs belong to the user 'anonymous', who gets one user's "
    "share of the slots. Pass the end user's user_id, or a name for the program that submits, such as "
    'user_id="import". If one share for all is intended, add [users.anonymous] to the configuration. '
    "This is logged once."
)
_BETWEEN = ("asyncio", "concurrent", "fastapi", "starlette", "threading", "uvicorn")
"""Packages whose frames lie between Fairlead and a caller in another thread or over HTTP."""

Connect = Callable[[], Awaitable[None]]


class Runtime:
    """The open connections of an app, shared by its parts (`app.jobs`, `app.batches`, `app.turns`, `app.admin`).

    `store` and `group_commit` raise Unavailable unless the app is open. `node` is None in a process that runs no part
    of the queue.
    """

    writer: TransitionWriter
    priorities: PriorityResolver
    waiters: Waiters
    files: Files
    budgets: Budgets
    budget_gate: BudgetGate
    endpoint_users: EndpointUsers
    snapshots: asyncio.Semaphore
    """Limits how many readers that missed events read the store at once."""
    output_log: OutputLog
    reviving: asyncio.Lock
    """Held while ended jobs are put back in the queue, so that no user exceeds the limit of waiting jobs."""

    def __init__(self, declarations: Declarations, clock: Clock) -> None:
        self.declarations = declarations
        self.clock = DatabaseClock(clock)
        self.heartbeat: type[Heartbeat] | None = None
        self.hub = Hub()
        self.signals = RunningNode()
        self.listens_on: Sequence[str] = ()
        self.process = ""
        """The name under which this process is registered; empty if it is not."""
        self.node: Node | None = None
        self.probes = Probes()
        self.leader_loops: list[Loop] = []
        self.loop: asyncio.AbstractEventLoop | None = None
        self._store: Store | None = None
        self._observer: Observer | None = None
        self._group_commit: GroupCommit | None = None
        self._gateway_only: GatewayOnlyNode | None = None
        self._outputs: OutputWriter | None = None
        self._followers: list[asyncio.Task[None]] = []
        self._anonymous_logged = False
        self.tracing: Tracing | None = None
        """None: this process exports no spans."""

    @property
    def settings(self) -> Settings:
        return self.declarations.settings

    @property
    def config(self) -> Config:
        return self.declarations.config

    @property
    def is_open(self) -> bool:
        return self._store is not None

    def require_open(self) -> None:
        if self._store is None:
            raise Unavailable("the app is not open; use `async with app:` or `async with app.running():`")

    @property
    def store(self) -> Store:
        self.require_open()
        assert self._store is not None
        return self._store

    @property
    def group_commit(self) -> GroupCommit:
        self.require_open()
        assert self._group_commit is not None
        return self._group_commit

    @property
    def current_trace(self) -> str | None:
        """The trace of the current span of the caller, if this process exports spans."""
        return None if self.tracing is None else self.tracing.current()

    @property
    def observer(self) -> Observer:
        self.require_open()
        assert self._observer is not None
        return self._observer

    async def settle(
        self, submits: list[Submit], now: float, *, lowers_only: bool, turn: bool = False
    ) -> tuple[list[Submit], BudgetState | None]:
        """Set the priorities of new jobs, and apply budgets to them. Returns the jobs, and the budget of the first one
        of which the smallest share is left. Raises BudgetSpent."""
        if self.priorities.needed or lowers_only:
            submits = await self.priorities.settle(submits, lowers_only=lowers_only)
        return await self.budget_gate.admit(submits, now, turn=turn) if self.budgets else (submits, None)

    async def relay_ordered(self, submits: Sequence[Submit]) -> None:
        """Wait until no later job can overtake the submitted jobs of FIFO services."""
        ordered = {submit.job.service for submit in submits if submit.ordered}
        if ordered and self.node is not None:
            await self.node.in_order(ordered)

    def announce(self, jobs: Sequence[Job], now: float) -> None:
        """Count newly committed jobs, wake the timers loop for jobs that will be due, and publish the jobs to readers
        that follow their users."""
        self.writer.counters.submitted(jobs)
        self.warn_if_anonymous(jobs)
        for job in jobs:
            if job.timer_at is not None:
                self.signals.timer_set(job.timer_at)
            # No reader can follow the job itself yet: its id has not been returned.
            if self.hub.follows(job.user_id):
                self.hub.publish(accepted(job, now), job.user_id)

    def warn_if_anonymous(self, jobs: Sequence[Job]) -> None:
        """Log once if jobs have no user_id. In the fair order all such jobs count as one user, which is rarely
        intended."""
        if self._anonymous_logged:
            return
        anonymous = [job for job in jobs if job.user_id == ANONYMOUS]
        if anonymous and ANONYMOUS not in self.config.users:
            self._anonymous_logged = True
            log.warning(NO_USER_ID, anonymous[0].feature_name, _call_site())

    # ------------------------------------------------------------ the store

    async def open(self) -> None:
        """Connect to the store, without a retry if the database is unavailable."""
        await self._open(lambda connect: connect())

    async def open_patiently(self) -> None:
        """Connect to the store. While the database is restarting, retry for at most `START_PATIENCE` seconds."""
        await self._open(partial(patiently, log, "opening the database"))

    async def _open(self, run: Callable[[Connect], Awaitable[None]]) -> None:
        if self._store is not None:
            raise FairleadError("the app is open already")
        if problems := self.declarations.problems():
            raise ConfigError(problems)
        url = self.settings.database_url
        plans = {user_id: user.plan for user_id, user in self.config.users.items() if user.plan is not None}
        prices = prices_of(self.config.prices, plans)
        self.budgets = budgets_of(self.config)
        overwrites = self.config.openai.keep == "nothing"
        store = store_of(url, self.clock.machine, overwrites=overwrites, prices=prices, budgets=self.budgets)
        objects = objects_of(self.settings)
        await run(partial(self._connect, store))
        self._store = store
        self._observer = Observer(store, lambda: self.node, self.clock)
        self._group_commit = GroupCommit(store, self.signals, writers=writers_of(url))
        self._group_commit.start()
        self.tracing = tracing_of(self.config)
        self.writer = TransitionWriter(
            self._group_commit, self.hub, self.signals, self.config.private_services, self.tracing
        )
        hook = self.declarations.priority_hook
        self.priorities = PriorityResolver(self.config, hook, self.clock, self._has_member_rates)
        self.budget_gate = BudgetGate(self.budgets, lambda: self.store, self.writer.counters)
        self.waiters = Waiters(self.signals)
        self.files = Files(store, self._group_commit, objects, self.config.artifacts, self.clock.now)
        self.snapshots = asyncio.Semaphore(CONCURRENT_SNAPSHOTS)
        self.output_log = output_log_of(self.settings, self.clock)
        self.reviving, self._joining = asyncio.Lock(), asyncio.Lock()
        self.endpoint_users = EndpointUsers(lambda: self.store, self.clock.monotonic)
        self.loop = asyncio.get_running_loop()
        poller = EventPoller(store, self.hub, self.clock, has_node=lambda: self.node is not None)
        self._followers = [self.loop.create_task(poller.run(), name="fairlead-event-poller")]
        if has_clock(url):
            following = self.clock.keep_following(store.now)
            self._followers.append(self.loop.create_task(following, name="fairlead-clock"))

    def _has_member_rates(self) -> bool:
        if self.node is not None:
            return any(self.node.rules.member_rates)
        return bool(self.config.plan_rates) or any(group.rate for group in self.config.group_rules.values())

    async def _connect(self, store: Store) -> None:
        await store.open()
        if has_clock(self.settings.database_url):
            try:
                await self.clock.follow(store.now)
            except BaseException:
                await store.close()
                raise

    async def close(self) -> None:
        self.loop = None
        group_commit, store = self._group_commit, self._store
        self._group_commit = self._store = None
        self.probes.close()
        followers, self._followers = self._followers, []
        for follower in followers:
            follower.cancel()
        await stopped(followers)
        if self._observer is not None:
            await bounded("closing the observer", self._observer.close())
        if group_commit is not None:
            await self.priorities.close()
            await bounded("committing the last transitions", group_commit.close())
            await bounded("closing the output log", self.output_log.close())
            await bounded("closing the object store", self.files.objects.close())
        if store is not None:
            await bounded("closing the database connections", store.close())
        tracing, self.tracing = self.tracing, None
        if tracing is not None:
            await bounded("exporting the last spans", asyncio.to_thread(tracing.flush))

    # ------------------------------------------------------------ the node

    async def start(self, roles: Roles) -> None:
        name = self.process = new_name()
        settings, config, store = self.settings, self.config, self.store
        if settings.redis_url is None and not (roles.worker and roles.manager):
            if roles.worker or roles.manager:
                raise ConfigError(["REDIS_URL: a worker or a manager of its own needs Redis; set it, or use `up`"])
            # The process that dispatches from memory reads the jobs accepted here from the outbox.
            record = describe_process(name, roles, config, (), self.clock.now())
            self._gateway_only = GatewayOnlyNode(Announcer(record, self.group_commit, self.clock), self.clock)
            await self._gateway_only.start()
            return
        if settings.redis_url is None or roles.manager:
            lock = partial(store.lock_dispatch, shared=settings.redis_url is not None)
            await patiently(log, "locking the database for dispatch", lock)
        servers: set[str] = set()
        self._outputs = OutputWriter(self.output_log, self.hub, self.files)
        services = services_of(pools_of(roles, config))
        parts = EngineParts(
            process=name,
            config=config,
            roles=roles,
            store=store,
            group_commit=self.group_commit,
            recorder=self.writer,
            executors=executors_of(config, self.declarations.handlers, services, now=self.clock.now),
            hub=self.hub,
            clock=self.clock,
            waiters=self.waiters,
            outputs=self._outputs,
            files=self.files,
            heartbeat=self.heartbeat,
            endpoint_users=self.endpoint_users,
            tracing=self.tracing,
            new_jobs=NewJobs(self),
            budgets=self.budgets,
            leader_loops=self.leader_loops,
        )
        shards = shards_of(settings, config, name, servers, self.clock)
        self.node = Node(parts, shards, servers, bus_of(settings))
        self.signals.attach(self.node)
        await self.node.start()

    async def join(self) -> Node:
        """Return the node of this process; if there is none, start a node without any role. Turns need a node: the slot
        of a turn is delivered to the process of its caller, and other processes must notice when that process dies."""
        self.require_open()
        async with self._joining:
            if self.node is None:
                if self.settings.redis_url is None:
                    raise Unavailable(
                        "turns need a running queue: use `async with app.running():`, or set REDIS_URL if other "
                        "processes run it"
                    )
                await self.start(NOTHING)
            assert self.node is not None
            return self.node

    async def stop(self) -> None:
        node, self.node = self.node, None
        gateway_only, self._gateway_only = self._gateway_only, None
        if node is not None:
            await node.stop()
            if self._outputs is not None:
                await self._outputs.close()
            self.signals.detach()
        if gateway_only is not None:
            await gateway_only.stop()


def _call_site() -> str:
    """The place in the application's code that awaits the submit, as ` (file:line)`. Empty if the submit was called
    from another thread or over HTTP."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _package(frame) == "fairlead":
        frame = frame.f_back
    if frame is None or _package(frame) in _BETWEEN:
        return ""
    return f" ({frame.f_code.co_filename}:{frame.f_lineno})"


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
