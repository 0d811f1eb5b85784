"""One shard as this process uses it: a relay to the shard's dispatcher, and workers and a leader if the process has
these roles.

A process has one shard by default. If it has several, none of them waits for the Redis of another shard.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any

from fairlead.dispatch.port import Dispatcher, Lease, Release, Shard
from fairlead.domain.fair_share import QueuePosition
from fairlead.domain.rules import MAIN_SHARD, Lanes, Rules
from fairlead.engine.claim_loop import ConcurrencyBudget
from fairlead.engine.heartbeat import Heartbeat, Holder
from fairlead.engine.leader import Leader
from fairlead.engine.lifecycle import stopped
from fairlead.engine.loop_runner import Loop, LoopRunner
from fairlead.engine.loops.abandoned import AbandonedLoop
from fairlead.engine.loops.auto_limit import AutoLimitLoop
from fairlead.engine.loops.budgets import BudgetsLoop
from fairlead.engine.loops.cleanup import BatchesLoop, HoldsLoop, PruneLoop
from fairlead.engine.loops.erase import EraseLoop
from fairlead.engine.loops.files import FilesLoop
from fairlead.engine.loops.orphaned_turns import OrphanedTurnsLoop
from fairlead.engine.loops.reconcile import ReconcileLoop
from fairlead.engine.loops.recover import RecoverLoop
from fairlead.engine.loops.schedules import SchedulesLoop
from fairlead.engine.loops.timers import PromoteLoop, TimersLoop
from fairlead.engine.loops.usage import UsageLoop
from fairlead.engine.outbox_relay import OutboxLoop, OutboxRelay
from fairlead.engine.parts import EngineParts, NodeSignals, RulesRef
from fairlead.engine.positions import PositionBatcher
from fairlead.engine.prompt_worker import PromptWorker
from fairlead.engine.rebuild import EnsureBuiltLoop, Rebuild
from fairlead.engine.roles import WorkerPool
from fairlead.engine.turns.slot_broker import SlotBroker
from fairlead.engine.webhooks.delivery_loop import WebhooksLoop
from fairlead.engine.worker import Worker
from fairlead.errors import Unavailable
from fairlead.executors.factory import reaches
from fairlead.outage import Outage
from fairlead.store.port import OutboxEntry

log = logging.getLogger("fairlead.shard")

RESIGN_WITHIN = 2.0
RELAY_WITHIN = 0.5
BUILT_WITHIN = 1.0


class ShardRuntime:
    def __init__(
        self, shard: Shard, parts: EngineParts, node: NodeSignals, budgets: Mapping[WorkerPool, ConcurrencyBudget]
    ) -> None:
        self.name = shard.name
        self.dispatcher = shard.dispatcher
        self.leadership = shard.leadership
        self._shard = shard
        self._parts = parts
        self._node = node
        self._builder = shard.builder
        self._dispatchers = {id(shard.builder): shard.builder, id(shard.dispatcher): shard.dispatcher}
        """All dispatchers of this shard, each once. In memory there is only one."""
        self._rules = RulesRef()
        self.configured = -1
        """The version of the rules that all dispatchers of this shard have received."""
        self.relay = self._new_relay(shard.dispatcher)
        # The leader relays through the builder, which also accepts a server that no other dispatcher uses yet.
        self._late_relay = self.relay if shard.builder is shard.dispatcher else self._new_relay(shard.builder)
        self._position_batcher = PositionBatcher(shard.dispatcher, node.unserved)
        self.slot_broker = SlotBroker(parts, self._rules, self, self._broker_dispatcher)
        self.workers = [self._new_worker(pool, budget, number) for number, (pool, budget) in enumerate(budgets.items())]
        self._reconcile: ReconcileLoop | None = None
        self.leader = self._new_leader() if parts.roles.manager else None
        self.broken: BaseException | None = None
        """The error with which a task of this shard has failed for good; None if no task has failed."""
        self._heartbeat: Heartbeat | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._release_tasks: set[asyncio.Task[None]] = set()
        self._leader_missed = False
        self._left: frozenset[str] = frozenset()
        """Services whose executor in this process cannot call all of their regions."""
        self._leaderless = Outage(log, f"the queue of {shard.name}")
        self._outage = Outage(log, f"configuring the dispatcher of {shard.name}")

    def _new_relay(self, dispatcher: Dispatcher) -> OutboxRelay:
        return OutboxRelay(dispatcher, self._parts.store, self._parts.group_commit, self._rules, self)

    def _new_worker(self, pool: WorkerPool, budget: ConcurrencyBudget, number: int) -> Worker:
        dispatcher = self._shard.new_dispatcher() if number else self.dispatcher
        self._dispatchers[id(dispatcher)] = dispatcher
        options: dict[str, Any] = {"dispatcher": dispatcher, "rules": self._rules, "shard": self}
        if self._shard.claim_new is not None:
            options |= {"claim_new": self._shard.claim_new, "release_with_new": self._shard.release_with_new}
            return PromptWorker(self._parts, pool, budget, **options)
        return Worker(self._parts, pool, budget, **options)

    def _new_leader(self) -> Leader:
        """Create the leader of this shard. Its loops use the dispatcher called builder, which accepts any Redis server:
        after a fail-over, the leader must rebuild the queue on a server that no other dispatcher uses yet."""
        parts, rules, dispatcher = self._parts, self._rules, self._builder
        store, group_commit, recorder = parts.store, parts.group_commit, parts.recorder
        in_memory = self.leadership is None
        recover = RecoverLoop(store, dispatcher, recorder, rules, alone=in_memory)
        rebuild = Rebuild(store, group_commit, dispatcher, recover, parts.clock, workers_are_gone=in_memory)
        scopes = EnsureBuiltLoop(store, dispatcher, rebuild, rules, self)
        self._reconcile = ReconcileLoop(store, dispatcher, rules)
        alone = parts.process if in_memory else None
        grace, outputs = parts.config.openai.grace, None if parts.outputs is None else parts.outputs.log
        loops: list[Loop] = [
            scopes,
            OutboxLoop(store, group_commit, self._late_relay, rules),
            TimersLoop(store, recorder, rules),
            PromoteLoop(store, recorder, parts.config.promotion, rules),
            recover,
            HoldsLoop(store, group_commit, dispatcher),
            BatchesLoop(store, group_commit),
            PruneLoop(group_commit, parts.config.retention),
            UsageLoop(group_commit, parts.config.retention),
            BudgetsLoop(store, group_commit, parts.budgets),
            self._reconcile,
            AutoLimitLoop(store, group_commit, dispatcher, rules),
            OrphanedTurnsLoop(store, dispatcher, recorder, rules, grace=parts.config.turns.grace, alone=alone),
            AbandonedLoop(store, recorder, rules, grace=grace, outputs=outputs, files=parts.files),
            WebhooksLoop(
                parts.config.webhooks,
                store,
                group_commit,
                parts.clock,
                tracing=parts.tracing,
                requests=parts.recorder.counters.webhooks,
                files=parts.files,
            ),
        ]
        if parts.config.openai.keep == "nothing" and outputs is not None:
            loops.append(EraseLoop(store, group_commit, outputs, grace=grace))
        if parts.new_jobs is not None:
            loops.append(SchedulesLoop(store, group_commit, parts.new_jobs))
        if parts.files is not None and self.name == MAIN_SHARD:
            loops.append(FilesLoop(parts.files))
        if self.name == MAIN_SHARD:
            loops += parts.leader_loops
        return Leader(
            self.name,
            self.leadership,
            scopes=scopes,
            manager=LoopRunner(loops, parts.clock),
            group_commit=group_commit,
            clock=parts.clock,
        )

    @property
    def rules(self) -> Rules:
        """The rules of the services on this shard."""
        return self._rules.current

    @property
    def lanes(self) -> Lanes:
        return self._rules.lanes

    # ------------------------------------------------------------ starting

    async def start(self) -> None:
        """Start the parts of this shard. Returns at once, even if the dispatcher cannot be reached, because jobs can be
        accepted without it."""
        for dispatcher in self._dispatchers.values():
            await dispatcher.start()
        self._run(self.relay.run(), "relay")
        for dispatcher in self._claim_dispatchers():
            dispatcher.on_wake(self._wake)
        if self.workers:
            self.lease_acquired()
        self._run(self.slot_broker.claims.run(), "slot-broker")
        self._run(self.slot_broker.claims.sweep(), "slot-broker-sweep")
        for worker in self.workers:
            self._run(worker.claims.run(), "worker")
            self._run(worker.claims.sweep(), "sweep")
        if self.leader is not None:
            self._run(self.leader.run(), "leader")

    async def first_built(self) -> None:
        """If the dispatcher is in memory, wait until its queue is built, which is almost immediate. Waits at most
        `BUILT_WITHIN` seconds; a very large queue is completed in the background."""
        if self.leadership is None and self.leader is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BUILT_WITHIN):
                    await self.leader.scopes.first_built.wait()

    async def _broker_dispatcher(self) -> Dispatcher:
        """The dispatcher from which the slot broker claims. Redis identifies claimants by their connection, so the
        broker does not share a worker's dispatcher."""
        if not self.workers:
            return self.dispatcher
        dispatcher = self._shard.new_dispatcher()
        if id(dispatcher) not in self._dispatchers:
            self._dispatchers[id(dispatcher)] = dispatcher
            dispatcher.on_wake(self._wake)
            await dispatcher.start()
            try:
                await dispatcher.configure(self.rules)
            except Unavailable:
                self.configured = -1  # it is configured with the others, once they can be reached
        return dispatcher

    def _claim_dispatchers(self) -> Iterator[Dispatcher]:
        """The dispatchers from which slots are claimed: all except the builder. In memory, the builder is the only
        dispatcher, and slots are claimed from it too."""
        builder = self._builder if self._builder is not self.dispatcher else None
        return (each for each in self._dispatchers.values() if each is not builder)

    def _wake(self, services: frozenset[str]) -> None:
        """Wake every worker for these services, and the slot broker. Wakeups do not name bands or regions, so each
        worker has to check whether it can claim."""
        for worker in self.workers:
            worker.wake(services)
        self.slot_broker.wake_all()

    async def reconnect(self) -> None:
        for dispatcher in self._claim_dispatchers():
            await dispatcher.reconnect()

    def renew_now(self) -> None:
        """Renew all leases at once, because a lease was taken over from another process."""
        if self._heartbeat is not None:
            self._heartbeat.hurry()

    # ------------------------------------------------------------ rules

    async def apply(self, rules: Rules) -> None:
        """Apply new rules from the database. Services that were added there are not executed by this process unless it
        has their code."""
        part = rules.on(self.name)
        if part.version >= self.rules.version:
            self._rules.current, self._rules.lanes = part, rules.lanes_of(self.name)
            self._rules.executed = self._executable(part)
        if self.configured < self.rules.version:
            # Configure every dispatcher, even if others fail: each must at least know which services it serves.
            version = self.rules.version
            configuring = [each.configure(self.rules) for each in self._dispatchers.values()]
            results = await asyncio.gather(*configuring, return_exceptions=True)
            errors = [result for result in results if result is not None]
            for error in errors:
                if not isinstance(error, Unavailable):
                    raise error
                self._outage.began(error)
            if not errors:
                self.configured = version
                self._outage.ended()

    def _executable(self, rules: Rules) -> frozenset[str]:
        """The services whose calls this process can make in all of their regions."""
        config = self._parts.config.services
        known = {name: rules.services[name].regions for name in self._parts.executors if name in rules.services}
        executable = {
            name for name, regions in known.items() if all(reaches(config[name], each) for each in regions or (None,))
        }
        if left := known.keys() - executable - self._left:
            log.warning(
                "%s is left to other processes: its regions differ from the ones configured here", ", ".join(left)
            )
        self._left = frozenset(known.keys() - executable)
        return frozenset(executable)

    async def configure_others(self) -> None:
        """Send the other shards their rules before a queue is built here. A shard that cannot be reached is skipped. If
        that shard has jobs of a service that has moved here, the reconcile loop puts these jobs in the queue of this
        shard."""

        async def configure(shard: ShardRuntime) -> None:
            with contextlib.suppress(Unavailable, TimeoutError):
                async with asyncio.timeout(RELAY_WITHIN):
                    await shard._builder.configure(shard.rules)

        await asyncio.gather(*map(configure, self._node.other_shards(self)))

    async def check_leader(self) -> None:
        """Log once when this shard has no leader: without one, no queue is built, no step is recovered, and no
        scheduled job is queued."""
        if self.leadership is None:
            return
        try:
            leader = await self.leadership.leader()
        except Unavailable:
            return  # logged elsewhere
        if leader is not None:
            self._leaderless.ended()
        elif self._leader_missed:
            self._leaderless.began(Exception("no manager leads; start one with `fairlead manager`"))
        self._leader_missed = leader is None

    # ------------------------------------------------------------ signals of its parts

    def jobs_offered(self) -> None:
        """Wake the workers that are bound to regions. Such a worker may have skipped the jobs of a service that is
        runnable already, and a job that enters a runnable service sends no wakeup for its region."""
        for worker in self.workers:
            if worker.pool.regions is not None:
                worker.wake_all()

    def job_found_ended(self, job_id: str) -> None:
        self._node.stop_job(job_id)

    def relay_elsewhere(self, entry: OutboxEntry) -> bool:
        return self._node.relay_elsewhere(entry)

    def turn_granted(self, lease: Lease) -> None:
        self.slot_broker.take(lease)

    def offer_turn(self, process: str, lease: Lease) -> bool:
        return self._node.offer_turn(process, self.name, lease)

    def turn_adopted_here(self, from_process: str, turn_id: str) -> None:
        self._node.turn_adopted_here(from_process, turn_id)

    def rules_outdated(self) -> None:
        self._node.rules_outdated()

    def lease_acquired(self) -> None:
        """Start the heartbeat, unless it is running. Called before this process gets its first lease."""
        if self._heartbeat is None:
            others = [shard.dispatcher for shard in self._node.other_shards(self)]
            heartbeat = self._parts.heartbeat or Heartbeat
            self._heartbeat = heartbeat(self._parts.process, self.dispatcher, _Holders(self), self._rules, others)
            self._heartbeat.start()

    def releasing(self, releases: Sequence[Release]) -> None:
        """Release these slots on other shards too, if their services have moved there: releasing the slots on this
        shard then has no effect."""
        for shard in self._node.other_shards(self):
            moved = [
                each
                for each in releases
                if each.service in shard.rules.services
                and (each.service in self.rules.elsewhere or each.scope != self.rules.scope_of(each.service))
            ]
            if moved:
                task = asyncio.get_running_loop().create_task(
                    _release(shard.dispatcher, moved), name="fairlead-release"
                )
                self._release_tasks.add(task)
                task.add_done_callback(self._release_tasks.discard)

    # ------------------------------------------------------------ queries

    async def positions(self, job_ids: Sequence[str]) -> dict[str, QueuePosition]:
        """The queue positions of these jobs. Waits for the relay first, so that a job that this process has just
        submitted is found."""
        if self.relay.behind and self.relay.reachable:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RELAY_WITHIN):
                    await self.relay.settled()
        return await self._position_batcher.positions(job_ids)

    async def positions_of_new(self, job_ids: Sequence[str]) -> dict[str, QueuePosition]:
        """The queue positions of jobs that this process has just committed. Empty while positions are expensive to
        compute, or if the jobs do not reach the dispatcher soon."""
        if self._position_batcher.expensive or not self.relay.reachable:
            return {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RELAY_WITHIN):
                await self.relay.settled()
                if not self._position_batcher.expensive:
                    return await self._position_batcher.positions(job_ids)
        return {}

    @property
    def repaired(self) -> dict[str, Any] | None:
        """The last repair of the reconcile loop: how long ago it put missing jobs back in the queue, and which jobs.
        None if it never did."""
        repair = None if self._reconcile is None else self._reconcile.last_repair
        return None if repair is None else repair.shown()

    @property
    def blocked(self) -> dict[str, Any] | None:
        """How many seconds ago the event loop was last blocked, where, and whether by a handler. None if never."""
        return None if self._heartbeat is None else self._heartbeat.blocked

    @property
    def blocked_times(self) -> int:
        """How often the event loop was blocked."""
        return 0 if self._heartbeat is None else self._heartbeat.blocked_times

    # ------------------------------------------------------------ stopping

    async def drain(self, timeout: float) -> None:
        await asyncio.gather(*(worker.drain(timeout) for worker in self.workers))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(self.slot_broker.close(), *(worker.close() for worker in self.workers))
        await stopped([*self._tasks, *self._release_tasks])
        if self._shard.release_with_new is not None:
            await self._shard.release_with_new.flush()
        await asyncio.gather(*(worker.claims.release_rest(self.dispatcher) for worker in self.workers))
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
        task.add_done_callback(self._task_done)
        self._tasks.append(task)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken = error
            log.critical("%s has failed for good", task.get_name(), exc_info=error)


async def _release(dispatcher: Dispatcher, releases: Sequence[Release]) -> None:
    with contextlib.suppress(Unavailable):  # then the leases expire
        await dispatcher.release(releases)


class _Holders:
    """The holders of leases that the heartbeat renews: workers, and callers with turns."""

    def __init__(self, shard: ShardRuntime) -> None:
        self._shard = shard

    def __iter__(self) -> Iterator[Holder]:
        yield from self._shard.workers
        yield from self._shard.slot_broker
