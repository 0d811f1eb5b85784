"""The node: all shards as this process uses them, and the parts that the shards share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

from fairlead.dispatch.messages import PubSub
from fairlead.dispatch.port import Lease, Shard, Unserved
from fairlead.domain.fair_share import QueuePosition
from fairlead.domain.job import Job
from fairlead.domain.processes import LOOPS, POOLS
from fairlead.domain.rules import MAIN_SHARD, Rules
from fairlead.domain.transitions import Submit
from fairlead.domain.turns import is_turn
from fairlead.domain.usage import Usage
from fairlead.engine.claim_loop import ConcurrencyBudget
from fairlead.engine.counters import MinuteStatsLoop
from fairlead.engine.estimate_accuracy import EstimateAccuracy, ScoreEstimatesLoop
from fairlead.engine.event_bridge import EventBridge
from fairlead.engine.lifecycle import patiently, stopped
from fairlead.engine.loop_runner import Loop, LoopRunner
from fairlead.engine.loops import auto_limit, schedules
from fairlead.engine.loops.schedules import SchedulesLoop
from fairlead.engine.loops.sync_rules import SyncRulesLoop
from fairlead.engine.loops.workers import StopCancelledLoop, UnservedLoop
from fairlead.engine.outbox_relay import waited_for
from fairlead.engine.parts import EngineParts, RulesRef
from fairlead.engine.positions import PositionsLoop, StalledQueues, first_complete
from fairlead.engine.prompt_worker import PromptWorker
from fairlead.engine.registry import Announcer, Condition, DeadNeighboursLoop, describe_process
from fairlead.engine.roles import WorkerPool, pools_of
from fairlead.engine.shard_runtime import RELAY_WITHIN, ShardRuntime
from fairlead.engine.turns.slot_broker import SlotBroker
from fairlead.engine.webhooks import endpoints
from fairlead.engine.webhooks.endpoints import EndpointUsersLoop
from fairlead.engine.worker import Worker
from fairlead.store.port import OutboxEntry, Outcome

log = logging.getLogger("fairlead.node")


class Node:
    """The running part of a process. Receives the signals of the app's parts (`Signals`) and of its shards
    (`NodeSignals`)."""

    def __init__(self, parts: EngineParts, shards: Sequence[Shard], servers: set[str], bus: PubSub | None) -> None:
        self.name = parts.process
        self.roles = parts.roles
        self.leaving = False
        self._parts = parts
        self._servers = servers
        self._rules = RulesRef()
        self._event_bridge = None if bus is None else EventBridge(bus, parts.hub, parts.clock, self)
        pools = pools_of(parts.roles, parts.config)
        budgets = {pool: ConcurrencyBudget(pool.concurrency) for pool in pools}
        self.shards = {shard.name: ShardRuntime(shard, parts, self, budgets) for shard in shards}
        self.workers: list[Worker] = [worker for shard in self.shards.values() for worker in shard.workers]
        self.slot_brokers: list[SlotBroker] = [shard.slot_broker for shard in self.shards.values()]
        self.scores = EstimateAccuracy()
        self._stalled_queues = StalledQueues(parts.store)
        self._record = describe_process(self.name, parts.roles, parts.config, parts.executors, parts.clock.now())
        self._announcer = Announcer(
            self._record,
            parts.group_commit,
            parts.clock,
            condition=self._condition,
            drain_requested=self._drain_requested,
        )
        self._sync_rules = SyncRulesLoop(parts, self._rules, self.shards, servers, self._stalled_queues)
        self._loops = LoopRunner(self._new_loops(pools), parts.clock)
        self._task: asyncio.Task[None] | None = None
        self._drain_asked = False
        self._drain_task: asyncio.Task[None] | None = None

    def _new_loops(self, pools: Sequence[WorkerPool]) -> list[Loop]:
        parts, store = self._parts, self._parts.store
        loops: list[Loop] = [
            self._sync_rules,
            self._announcer,
            MinuteStatsLoop(self.name, parts.recorder.counters, store, parts.group_commit),
            PositionsLoop(self.positions, parts.hub),  # in every process: callers wait for turns in any of them
        ]
        if any(pool.regions is not None for pool in pools):
            loops.append(UnservedLoop(store, self.workers, self._rules))
        if parts.roles.api:
            loops.append(ScoreEstimatesLoop(store, self.scores))
        if parts.endpoint_users is not None:
            loops.append(EndpointUsersLoop(parts.endpoint_users))
        if self.distributed:
            loops.append(DeadNeighboursLoop(store, parts.group_commit, self._record.details))
            loops.append(StopCancelledLoop(store, self.workers, self.slot_brokers))
        return loops

    @property
    def rules(self) -> Rules:
        return self._rules.current

    @property
    def distributed(self) -> bool:
        """Whether other processes may run parts of the same queue."""
        return self._event_bridge is not None

    @property
    def draining(self) -> bool:
        return any(worker.draining for worker in self.workers)

    # ------------------------------------------------------------ starting and stopping

    async def start(self) -> None:
        self._parts.store.relays()
        await patiently(log, "declaring the services", self._sync_rules.declare)
        if self.roles.manager:
            await patiently(log, "declaring the endpoints of webhooks", self._declare_endpoints)
            await patiently(log, "declaring the schedules", self._declare_schedules)
        if self._event_bridge is not None:
            await self._event_bridge.start()
        await self._announcer.announce()  # before it has leases: others look up a lease's owner
        for shard in self.shards.values():
            await shard.start()
        self._task = asyncio.get_running_loop().create_task(self._loops.run(), name="fairlead-node")
        for shard in self.shards.values():
            await shard.first_built()

    async def _declare_endpoints(self) -> None:
        parts = self._parts
        await endpoints.declare(parts.config.webhooks, parts.store, parts.group_commit)

    async def _declare_schedules(self) -> None:
        parts = self._parts
        await schedules.declare(parts.config.schedules, parts.store, parts.group_commit, parts.clock.now())

    async def drain(self) -> None:
        """Stop claiming and let calls finish, because this process is about to exit."""
        self.leaving = True
        self.announce_soon()
        await self._drain_shards()

    async def _drain_shards(self) -> None:
        timeout = self._parts.config.worker.drain_timeout
        await asyncio.gather(*(shard.drain(timeout) for shard in self.shards.values()))

    def _drain_requested(self, drain: bool) -> None:
        """Start or stop draining as an operator has requested in the database. A request to drain holds until it is
        withdrawn or this process exits."""
        if drain == self._drain_asked or self.leaving or not self.workers:
            return
        self._drain_asked = drain
        if drain:
            log.warning("asked to drain: no new call starts here until `fairlead workers drain %s --undo`", self.name)
            self._drain_task = asyncio.get_running_loop().create_task(self._drain_shards(), name="fairlead-drain")
        else:
            log.warning("no longer asked to drain: claiming again")
            if self._drain_task is not None:
                self._drain_task.cancel()
            for worker in self.workers:
                worker.claim_again()
        self.announce_soon()

    async def stop(self) -> None:
        tasks = [task for task in (self._task, self._drain_task) if task is not None]
        for task in tasks:
            task.cancel()
        await stopped(tasks)
        await asyncio.gather(*(shard.stop() for shard in self.shards.values()))
        if self._event_bridge is not None:
            await self._event_bridge.close()
        for executor in self._parts.executors.values():
            with contextlib.suppress(Exception):
                await executor.close()
        await self._announcer.deregister()

    # ------------------------------------------------------------ its registration

    def announce_soon(self) -> None:
        """Renew the registration of this process soon. The renewal also reads requests to drain."""
        self._loops.wake(self._announcer.name, 0.0)

    def _condition(self) -> Condition:
        shards = self.shards.values()
        details: dict[str, Any] = {
            "event_loop_blocked": sum(shard.blocked_times for shard in shards),
            "late_results": sum(worker.late_results for worker in self.workers),
            **auto_limit.encode(
                self._parts.recorder.counters.calls_of,
                self.rules,
                {shard.name: shard.configured for shard in shards if shard.workers},
            ),
        }
        if leads := self.leads():
            details[LOOPS] = {name: counts for name, counts in self.counts().items() if name in leads}
        if blocked := next((shard.blocked for shard in shards if shard.blocked), None):
            details["blocked"] = blocked
        if repaired := next((shard.repaired for shard in shards if shard.repaired), None):
            details["repaired"] = repaired
        if problem := next((worker.outage.cause for worker in self.workers if worker.outage.cause), None):
            details["problem"] = problem
        running = Counter({worker.pool.name: 0 for worker in self.workers})
        for worker in self.workers:
            running[worker.pool.name] += worker.running
        if pools := self._record.details.get(POOLS):
            details[POOLS] = [{**pool, "running": running[pool["name"]]} for pool in pools]
        return Condition(self.draining or self._drain_asked, running.total(), details)

    # ------------------------------------------------------------ rules

    async def apply(self, rules: Rules) -> None:
        await self._sync_rules.apply(rules)

    def rules_outdated(self) -> None:
        self._loops.wake(self._sync_rules.name, 0.0)

    def trusts(self, servers: Set[str]) -> bool:
        """Whether the queues were built on these Redis servers, as far as this process knows. This process claims from
        no other servers."""
        return not self.distributed or servers <= self._servers

    def check_scopes(self) -> None:
        """Compare the scopes with the database now, on the shards that this process leads, because a rebuild was
        requested."""
        self.wake_loop("scopes")

    def wake_loop(self, name: str) -> None:
        """Tick this loop now, on the shards that this process leads."""
        for shard in self.shards.values():
            if shard.leader is not None:
                shard.leader.manager.wake(name, 0.0)

    def unserved(self) -> Unserved:
        return self._stalled_queues.unserved(self.rules)

    def other_shards(self, shard: ShardRuntime) -> Sequence[ShardRuntime]:
        return () if len(self.shards) == 1 else [other for other in self.shards.values() if other is not shard]

    # ------------------------------------------------------------ signals

    def committed(self, entries: Sequence[OutboxEntry]) -> None:
        """Pass each outbox entry to the relay of the shard where its job waits now, and remove the job from the other
        shards where it may have waited before."""
        if len(self.shards) == 1:
            for shard in self.shards.values():
                shard.relay.committed(entries)
            return
        for entry in entries:
            job = entry.job
            name = MAIN_SHARD if job is None else self.rules.shard_of(job.service, job.priority.band)
            if name in self.shards:
                self.shards[name].relay.committed([entry])
            if job is not None:
                for other in self._left_shards(job) & self.shards.keys() - {name}:
                    self.shards[other].relay.moved_away(job)

    def relay_elsewhere(self, entry: OutboxEntry) -> bool:
        """Pass the outbox entry to the relay of another shard: the rules have changed since the entry was passed to the
        first one. Returns False if there is only one shard."""
        if len(self.shards) > 1:
            self.committed([entry])
        return len(self.shards) > 1

    def _left_shards(self, job: Job) -> set[str]:
        """The shards on which the job may still be queued from an earlier transition: all shards of the services that
        it may have waited for."""
        services = (self.rules.services.get(name) for name in waited_for(job))
        return {shard for each in services if each is not None for shard in each.shares or (each.shard,)}

    def timer_set(self, moment: float, loop: str = "timers") -> None:
        for shard in self.shards.values():
            if shard.leader is not None:
                shard.leader.manager.wake(loop, moment)

    def schedule_set(self, moment: float) -> None:
        """Called when this process has stored a schedule that is due at `moment`."""
        self.timer_set(moment, SchedulesLoop.name)

    def job_ended(self, job_id: str) -> None:
        if is_turn(job_id):
            self.stop_job(job_id)
        if self._event_bridge is not None:
            self._event_bridge.ended(job_id)

    async def submit_at_once(self, submit: Submit) -> Outcome | None:
        """Accept a job and start it in the same commit. Returns None, and does nothing, if that is not possible now."""
        for worker in self.workers:
            caller = worker.submit(submit) if isinstance(worker, PromptWorker) else None
            if caller is not None and (outcome := await caller) is not None:
                return outcome
        return None

    def step_stopped(self, job_id: str, run: int) -> None:
        self.stop_job(job_id, run)
        if self._event_bridge is not None:
            self._event_bridge.stop(job_id, run)

    def stop_job(self, job_id: str, run: int | None = None) -> None:
        if is_turn(job_id):
            for slot_broker in self.slot_brokers:
                slot_broker.stop(job_id, run)
            return
        for worker in self.workers:
            worker.stop_job(job_id, run)

    def usage_of(self, job: Job) -> Usage | None:
        """What the handler of this job has reported so far, if it runs in this process."""
        runs = (worker.run_of(job.id, job.run) for worker in self.workers)
        return next((run.call.usage for run in runs if run is not None and run.call is not None), None)

    # ------------------------------------------------------------ turns

    def turn_wanted(self, service: str) -> None:
        for shard in self.shards.values():
            if service in shard.rules.services:
                shard.slot_broker.claims.wake()

    def offer_turn(self, process: str, shard: str, lease: Lease) -> bool:
        if self._event_bridge is None:
            return False
        self._event_bridge.offer_turn(process, shard, lease)
        return True

    def turn_offered(self, shard: str, lease: Lease) -> None:
        """Called when another process offers a slot to a caller in this process."""
        waiter = self._parts.waiters.get(lease.job_id)
        if waiter is not None and shard in self.shards:
            self.shards[shard].slot_broker.offer(waiter, lease)

    def turn_adopted(self, turn_id: str) -> None:
        """Called when another process has adopted a turn that this process owned."""
        waiter = self._parts.waiters.get(turn_id)
        if waiter is None:
            return
        if waiter.callers and waiter.lease is None:
            waiter.elsewhere = True  # the other process may not wait for the slot, so this one continues to claim it
            return
        for slot_broker in self.slot_brokers:
            slot_broker.drop(waiter)

    def turn_adopted_here(self, from_process: str, turn_id: str) -> None:
        if self._event_bridge is not None:
            self._event_bridge.adopt_turn(from_process, turn_id)

    async def relayed(self, service: str) -> None:
        """Wait until everything that this process has committed so far has reached the queue of this service. Returns
        early if the queue cannot be reached, or after `RELAY_WITHIN` seconds."""
        for shard in self.shards.values():
            if service in shard.rules.services and shard.relay.reachable:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RELAY_WITHIN):
                        await shard.relay.settled()

    async def in_order(self, services: Set[str]) -> None:
        """Wait until no later job can overtake the jobs of these FIFO services that this process has just committed."""
        shards = [shard for shard in self.shards.values() if not services.isdisjoint(shard.rules.services)]
        await asyncio.gather(*(shard.relay.in_order() for shard in shards))

    # ------------------------------------------------------------ queries

    async def positions(self, job_ids: Sequence[str]) -> dict[str, QueuePosition]:
        """The queue positions of these jobs. Jobs on a shard that does not answer soon are left out."""
        queries = [shard.positions(job_ids) for shard in self.shards.values()]
        return self._corrected(await first_complete(queries, set(job_ids)))

    async def positions_of(self, jobs: Sequence[Job]) -> dict[str, QueuePosition]:
        """Like `positions`, but queries only the shards where these jobs wait."""
        by_shard: dict[str, list[str]] = {}
        for job in jobs:
            by_shard.setdefault(self.rules.shard_of(job.service, job.priority.band), []).append(job.id)
        queries = [self.shards[name].positions(ids) for name, ids in by_shard.items() if name in self.shards]
        return self._corrected(await first_complete(queries, {job.id for job in jobs}))

    async def positions_of_new(self, job_ids: Sequence[str]) -> dict[str, QueuePosition]:
        """Like `positions`, for jobs that this process has just committed. Returns an empty dictionary while positions
        are expensive to compute."""
        queries = [shard.positions_of_new(job_ids) for shard in self.shards.values()]
        found = await first_complete(queries, set(job_ids))
        if not found:
            return {}
        positions, now = self._corrected(found), self._parts.clock.now()
        if self.roles.api:
            for job_id, position in positions.items():
                self.scores.remember(job_id, position, now)
        return positions

    def _corrected(self, positions: Mapping[str, QueuePosition]) -> dict[str, QueuePosition]:
        return self._stalled_queues.mark(self.scores.learned(positions), self.rules)

    async def echo(self) -> float | None:
        """Measure how many seconds a message from this process to itself takes; None if there is no message bus."""
        return None if self._event_bridge is None else await self._event_bridge.echo()

    async def answering(self, processes: Collection[str], within: float) -> frozenset[str]:
        """The processes in `processes` that answer over the message bus. A process may answer although it cannot reach
        the database."""
        return frozenset() if self._event_bridge is None else await self._event_bridge.answering(processes, within)

    def leads(self) -> set[str]:
        """The shards that this process leads."""
        return {name for name, shard in self.shards.items() if shard.leader is not None and shard.leader.leading}

    def counts(self) -> dict[str, Any]:
        """For each shard, the counts of the leader's loops in this process: how many items a loop scanned and moved,
        and how often it failed."""
        return {name: shard.leader.manager.counts() for name, shard in self.shards.items() if shard.leader is not None}
