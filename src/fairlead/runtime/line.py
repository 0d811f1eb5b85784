"""One dispatcher as this process uses it: the relay to it, workers on it, a leader for it, as the process's roles say.

A process has one line; with shards it has one per shard, and none of them waits for another's Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from fairlead.dispatch.port import Dispatcher, Lease, Shard
from fairlead.domain.config import Config
from fairlead.domain.limits import EVERYTHING, Rules
from fairlead.domain.order import Place
from fairlead.errors import Unavailable
from fairlead.executors.port import Executor
from fairlead.runtime.clock import Clock
from fairlead.runtime.desk import Desk
from fairlead.runtime.events import Hub
from fairlead.runtime.heartbeat import Heartbeat, Holder
from fairlead.runtime.leader import Leader
from fairlead.runtime.loops.adapt import AdaptLoop
from fairlead.runtime.loops.batches import BatchesLoop
from fairlead.runtime.loops.holds import HoldsLoop
from fairlead.runtime.loops.outbox import OutboxLoop
from fairlead.runtime.loops.promote import PromoteLoop
from fairlead.runtime.loops.prune import PruneLoop
from fairlead.runtime.loops.reconcile import ReconcileLoop
from fairlead.runtime.loops.recover import RecoverLoop
from fairlead.runtime.loops.scopes import ScopesLoop
from fairlead.runtime.loops.timers import TimersLoop
from fairlead.runtime.loops.turns import TurnsLoop
from fairlead.runtime.manager import Manager
from fairlead.runtime.outage import Outage
from fairlead.runtime.pools import WorkerPool
from fairlead.runtime.rebuild import Rebuild
from fairlead.runtime.record import Recorder
from fairlead.runtime.relay import Relay
from fairlead.runtime.roles import Roles
from fairlead.runtime.room import Room
from fairlead.runtime.turns.tickets import Tickets
from fairlead.runtime.turns.usher import Usher
from fairlead.runtime.worker import Worker
from fairlead.store.journal import Journal
from fairlead.store.port import Store

log = logging.getLogger(__name__)

RESIGN_WITHIN = 2.0
TOLD_WITHIN = 0.5
STANDS_WITHIN = 1.0


class Line:
    def __init__(
        self,
        shard: Shard,
        config: Config,
        roles: Roles,
        *,
        process: str,
        store: Store,
        journal: Journal,
        recorder: Recorder,
        executors: Mapping[str, Executor],
        hub: Hub,
        clock: Clock,
        rooms: Mapping[WorkerPool, Room],
        tickets: Tickets,
        send: Callable[[str, str, Lease], None] | None,
    ) -> None:
        self.name = shard.name
        self.dispatcher = shard.dispatcher
        self.leadership = shard.leadership
        self.rules = Rules({})
        self.lanes = EVERYTHING
        self.relay = Relay(shard.dispatcher, lambda: self.lanes, lambda: self.rules)
        self._late_relay = (
            self.relay
            if shard.builder is shard.dispatcher
            else Relay(shard.builder, lambda: self.lanes, lambda: self.rules)
        )
        self.desk = Desk(shard.dispatcher)
        self._another = shard.another
        self.usher = Usher(
            process,
            config,
            tickets=tickets,
            store=store,
            journal=journal,
            recorder=recorder,
            hub=hub,
            clock=clock,
            rules=lambda: self.rules,
            executed=frozenset(config.services) - config.turns_only,
            connect=self._usher_dispatcher,
            send=None if send is None else lambda owner, lease: send(owner, shard.name, lease),
        )
        self.workers: list[Worker] = []
        self.leader: Leader | None = None
        self.broken: BaseException | None = None
        self._config = config
        self._journal = journal
        self._process = process
        self._served: frozenset[str] = frozenset()
        self._executors = executors
        self._builder = shard.builder
        self._dispatchers = {id(shard.builder): shard.builder, id(shard.dispatcher): shard.dispatcher}
        """Each once: in memory all are the same one."""
        self._heartbeat: Heartbeat | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self.configured = -1
        """The version of the rules that the dispatcher was told last."""
        self._leader_missed = False
        self._leaderless = Outage(log, f"the line of {shard.name}")
        self._outage = Outage(log, f"telling the dispatcher {shard.name} its limits")
        for pool, room in rooms.items():
            dispatcher = shard.another() if self.workers else shard.dispatcher
            self._dispatchers[id(dispatcher)] = dispatcher
            worker = Worker(
                process,
                pool,
                config,
                dispatcher=dispatcher,
                journal=journal,
                recorder=recorder,
                executors=executors,
                hub=hub,
                clock=clock,
                room=room,
                services=lambda: self._served,
                rules=lambda: self.rules,
                hand_over=self.usher.take,
            )
            self.workers.append(worker)
        if roles.manager:
            self.leader = self._make_leader(shard, store, recorder, clock)

    def _make_leader(self, shard: Shard, store: Store, recorder: Recorder, clock: Clock) -> Leader:
        """Its loops work on the `builder`: a leader must reach a server that nobody else trusts yet."""
        line, journal, config = shard.builder, self._journal, self._config
        in_memory = shard.leadership is None
        recovery = RecoverLoop(store, line, recorder, lambda: self.rules, lambda: self.lanes, alone=in_memory)
        rebuild = Rebuild(store, journal, line, recovery, clock, workers_are_gone=in_memory)
        scopes = ScopesLoop(store, line, rebuild, lambda: self.rules, lambda: self.lanes)
        manager = Manager(
            [
                scopes,
                OutboxLoop(store, journal, self._late_relay, lambda: self.lanes),
                TimersLoop(store, recorder, lambda: self.rules.wait_timeouts),
                PromoteLoop(store, recorder, config.promotion, lambda: self.rules.wait_timeouts),
                recovery,
                HoldsLoop(store, journal, line),
                BatchesLoop(store, journal),
                PruneLoop(journal, config.retention),
                ReconcileLoop(store, line, lambda: self.lanes, lambda: self.rules),
                AdaptLoop(store, journal, line, lambda: self.rules),
                TurnsLoop(
                    store,
                    line,
                    recorder,
                    lambda: self.rules,
                    lambda: self.lanes,
                    alone=self._process if in_memory else None,
                ),
            ],
            clock,
        )
        return Leader(shard.name, shard.leadership, scopes=scopes, manager=manager, journal=journal, clock=clock)

    # ------------------------------------------------------------ starting

    async def start(self) -> None:
        """Returns at once, also when the dispatcher is away: jobs are accepted from now on, and granted when it can."""
        for dispatcher in self._dispatchers.values():
            await dispatcher.start()
        self.relay.on_offered = self._late_relay.on_offered = self._ring_partial
        self._run(self.relay.run(self._journal), "relay")
        for dispatcher in self._claimers():
            dispatcher.on_wake(self._wake)
        if self.workers:
            self._begin_pulse()
        self.usher.on_lease = self._begin_pulse
        self._run(self.usher.run(), "usher")
        self._run(self.usher.sweep(), "usher-sweep")
        for worker in self.workers:
            self._run(worker.run(), "worker")
            self._run(worker.sweep(), "sweep")
        if self.leader is not None:
            self._run(self.leader.run(), "leader")

    def _begin_pulse(self) -> None:
        """From the first lease on that there may be."""
        if self._heartbeat is None:
            self._heartbeat = Heartbeat(
                self._process, self.dispatcher, _Pulse(self), interval=lambda: self._shortest_ttl / 3
            )
            self._heartbeat.start()

    def renew_now(self) -> None:
        """A lease has come here from another process."""
        if self._heartbeat is not None:
            self._heartbeat.hurry()

    async def _usher_dispatcher(self) -> Dispatcher:
        """Who waits for work is known by its connection, and workers have theirs."""
        if not self.workers:
            return self.dispatcher
        dispatcher = self._another()
        if id(dispatcher) not in self._dispatchers:
            self._dispatchers[id(dispatcher)] = dispatcher
            dispatcher.on_wake(self._wake)
            await dispatcher.start()
            try:
                await dispatcher.configure(self.rules)
            except Unavailable:
                self.configured = -1  # it is told with the others, when they can be
        return dispatcher

    def _claimers(self) -> Iterator[Dispatcher]:
        """What workers claim from, in memory the builder too."""
        alone = self._builder if self._builder is not self.dispatcher else None
        return (each for each in self._dispatchers.values() if each is not alone)

    def _wake(self, services: frozenset[str]) -> None:
        """Whichever of them can take what has turned runnable: none is told of bands or regions."""
        for worker in self.workers:
            worker.wake(services)
        self.usher.wake()

    def _ring_partial(self) -> None:
        """Something was put into line. A lane that is runnable already wakes nobody, and a worker bound to bands or
        regions may have left there what is not for it."""
        for worker in self.workers:
            if worker.pool.partial:
                worker.ring()

    async def reconnect(self) -> None:
        for dispatcher in self._claimers():
            await dispatcher.reconnect()

    async def begun(self) -> None:
        """A line in memory stands almost at once; only with a great many jobs does its building go on behind."""
        if self.leadership is None and self.leader is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STANDS_WITHIN):
                    await self.leader.scopes.first_built.wait()

    def on_ended(self, ended: Callable[[str], None]) -> None:
        """Called with jobs that the truth says have ended, whoever ended them."""
        self.relay.on_ended = self._late_relay.on_ended = ended

    @property
    def _shortest_ttl(self) -> float:
        return min((service.lease_ttl for service in self.rules.services.values()), default=15.0)

    async def apply(self, rules: Rules) -> None:
        """New limits or pauses, as the truth says. What this process knows how to run stays what its config says."""
        part = rules.on(self.name)
        if part.version >= self.rules.version:
            self.rules, self.lanes = part, rules.lanes_of(self.name)
            self._served = frozenset(self._executors) & part.services.keys()
        if self.configured < self.rules.version:
            # All hear of it whatever becomes of the others: they must know at least themselves what belongs where.
            version = self.rules.version
            told = [each.configure(self.rules) for each in self._dispatchers.values()]
            problems = [said for said in await asyncio.gather(*told, return_exceptions=True) if said is not None]
            for problem in problems:
                if not isinstance(problem, Unavailable):
                    raise problem
                self._outage.began(problem)
            if not problems:
                self.configured = version
                self._outage.ended()

    async def look_for_leader(self) -> None:
        """Says once that nobody leads: then nothing is built, recovered or released, and all else looks well."""
        if self.leadership is None:
            return
        try:
            leader = await self.leadership.leader()
        except Unavailable:
            return  # that is said elsewhere
        if leader is not None:
            self._leaderless.ended()
        elif self._leader_missed:
            self._leaderless.began(Exception("no manager leads; start one with `fairlead manager`"))
        self._leader_missed = leader is None

    async def places(self, job_ids: Sequence[str]) -> dict[str, Place]:
        """Who has submitted here and looks then, finds its job in line: a receipt does not always wait for that."""
        if self.relay.behind and self.relay.reachable:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TOLD_WITHIN):
                    await self.relay.settled()
        return await self.desk.places(job_ids)

    async def places_of_new(self, job_ids: Sequence[str]) -> dict[str, Place]:
        if self.desk.dear or not self.relay.reachable:
            return {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TOLD_WITHIN):
                await self.relay.settled()
                if not self.desk.dear:
                    return await self.desk.places(job_ids)
        return {}

    @property
    def blocked(self) -> dict[str, Any] | None:
        """When and where a handler blocked the event loop last."""
        return None if self._heartbeat is None else self._heartbeat.blocked

    @property
    def blocked_times(self) -> int:
        """How often a handler was seen to block the event loop."""
        return 0 if self._heartbeat is None else self._heartbeat.blocked_times

    # ------------------------------------------------------------ stopping

    async def drain(self, timeout: float) -> None:
        await asyncio.gather(*(worker.drain(timeout) for worker in self.workers))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(self.usher.close(), *(worker.close() for worker in self.workers))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.leader is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.leader.resign(), RESIGN_WITHIN)
        if self.leadership is not None:
            await self.leadership.close()
        if self._heartbeat is not None:
            await self._heartbeat.stop()
        for dispatcher in self._dispatchers.values():
            await dispatcher.close()

    def _run(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(coroutine, name=f"fairlead-{name}")
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken = error
            log.critical("%s broke down", task.get_name(), exc_info=error)


class _Pulse:
    """Whose leases are renewed: those of workers, and those of turns."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def __iter__(self) -> Iterator[Holder]:
        yield from self._line.workers
        yield from self._line.usher
