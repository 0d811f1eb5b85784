"""All of the line that runs in this process: its dispatchers, and what they have in common."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from fairlead.dispatch.port import Bus, Lease, ServiceSnapshot, Shard
from fairlead.domain.config import Config
from fairlead.domain.job import Job
from fairlead.domain.limits import MAIN_SHARD, Rules, ServiceRules
from fairlead.domain.order import Place
from fairlead.domain.processes import POOLS
from fairlead.domain.turns import is_turn
from fairlead.errors import Unavailable
from fairlead.executors.port import Executor
from fairlead.runtime.clock import Clock
from fairlead.runtime.crossing import Crossing
from fairlead.runtime.events import Hub
from fairlead.runtime.line import TOLD_WITHIN, Line
from fairlead.runtime.loops import adapt
from fairlead.runtime.loops.activity import ActivityLoop
from fairlead.runtime.loops.kin import KinLoop
from fairlead.runtime.loops.positions import PositionsLoop
from fairlead.runtime.loops.rules import RulesLoop
from fairlead.runtime.loops.scores import ScoresLoop
from fairlead.runtime.loops.stops import StopsLoop
from fairlead.runtime.manager import Loop, Manager
from fairlead.runtime.pools import pools_of
from fairlead.runtime.record import Recorder
from fairlead.runtime.registry import Condition, Presence, introduction
from fairlead.runtime.relay import waited_for
from fairlead.runtime.roles import Roles
from fairlead.runtime.room import Room
from fairlead.runtime.scores import Scores
from fairlead.runtime.standstill import Standstill
from fairlead.runtime.turns.tickets import Tickets
from fairlead.runtime.turns.usher import Usher
from fairlead.runtime.worker import Worker
from fairlead.store.journal import Journal
from fairlead.store.port import DeclareServices, Done, LineChange, Store

log = logging.getLogger(__name__)

LOOK_FOR_LEADERS_EVERY = 5.0


class Process:
    def __init__(
        self,
        name: str,
        config: Config,
        roles: Roles,
        *,
        store: Store,
        journal: Journal,
        recorder: Recorder,
        shards: Sequence[Shard],
        servers: set[str],
        bus: Bus | None,
        executors: Mapping[str, Executor],
        hub: Hub,
        clock: Clock,
        tickets: Tickets,
    ) -> None:
        self.name = name
        self.rules = Rules({})
        self.roles = roles
        self.leaving = False
        self._config = config
        self._store = store
        self._journal = journal
        self._recorder = recorder
        self._servers = servers
        self._executors = executors
        self._clock = clock
        self._leaders_due = 0.0
        self._declaration = DeclareServices(
            tuple(service.rules(name) for name, service in config.services.items()), config.pools
        )
        self._task: asyncio.Task[None] | None = None
        self._drain_asked = False
        self._draining: asyncio.Task[None] | None = None
        self._tickets = tickets
        self._crossing = Crossing(bus, hub, clock, self) if bus is not None else None
        rooms = {pool: Room(pool.concurrency) for pool in pools_of(roles, config)}
        self.lines = {
            shard.name: Line(
                shard,
                config,
                roles,
                process=name,
                store=store,
                journal=journal,
                recorder=recorder,
                executors=executors,
                hub=hub,
                clock=clock,
                rooms=rooms,
                tickets=tickets,
                send=self._crossing.offer_turn if self._crossing is not None else None,
            )
            for shard in shards
        }
        self.scores = Scores()
        self._standstill = Standstill(store)
        self._about = introduction(name, roles, config, executors, clock.now())
        self._presence = Presence(self._about, journal, clock, condition=self._condition, heard=self._asked_to_drain)
        loops: list[Loop] = [
            RulesLoop(self._follow_the_truth),
            self._presence,
            ActivityLoop(name, recorder.observations, store, journal),
            PositionsLoop(self.places, hub),  # in every process: callers wait for their turn in any
        ]
        if roles.api:
            loops.append(ScoresLoop(store, self.scores))
        if bus is not None:
            loops += [
                KinLoop(store, journal, self._about.details),
                StopsLoop(store, lambda: self.workers, lambda: self.ushers),
            ]
        self._loops = Manager(loops, clock)

    @property
    def workers(self) -> list[Worker]:
        return [worker for line in self.lines.values() for worker in line.workers]

    @property
    def ushers(self) -> list[Usher]:
        return [line.usher for line in self.lines.values()]

    @property
    def distributed(self) -> bool:
        return self._crossing is not None

    @property
    def draining(self) -> bool:
        return any(worker.draining for worker in self.workers)

    # ------------------------------------------------------------ starting and stopping

    async def start(self) -> None:
        self._store.relays()
        await self._declare()
        self._recorder.on_timer = self._timer_set
        self._recorder.on_stopped = self._stopped
        for line in self.lines.values():
            line.on_ended(self.stop_job)
            line.usher.on_adopted = self.adopted
            if line.leader is not None:
                # The truth names another server now, and this process need not wait to hear of it.
                line.leader.scopes.on_built = lambda: self._loops.wake("rules", 0.0)
        self._recorder.on_ended = self._ended
        self._tickets.on_wanted = self._turn_wanted
        if self._crossing is not None:
            await self._crossing.start()
        await self._presence.announce()  # before it has a lease that somebody may wonder about
        for line in self.lines.values():
            await line.start()
        self._task = asyncio.get_running_loop().create_task(self._loops.run(), name="fairlead-process")
        for line in self.lines.values():
            await line.begun()

    async def _declare(self) -> None:
        """The config is written to the truth by whoever takes jobs in, for it knows all services. A worker may have the
        code of a few only: it adds what is missing, and changes nothing that is there."""
        await self._learn_servers()
        rules = await self._store.rules()
        if self.roles.api and self._declaration.services:
            rules = await self._write(self._declaration)
        await self.apply(await self._add_missing(rules))

    async def _add_missing(self, rules: Rules) -> Rules:
        missing = [service for service in self._declaration.services if service.service not in rules.services]
        if not missing or self.roles.api:
            return rules
        there = await self._store.declared()
        pools = {**self._declaration.pools, **there.pools}
        return await self._write(DeclareServices((*there.services, *missing), pools))

    async def _write(self, declaration: DeclareServices) -> Rules:
        outcome = await self._journal.write(declaration)
        assert isinstance(outcome, Done)
        assert isinstance(outcome.value, Rules)
        return outcome.value

    async def _follow_the_truth(self) -> None:
        await self._learn_servers()
        # Two workers that add at once may each have missed what the other added.
        await self.apply(await self._add_missing(await self._store.rules()))
        await self._look_for_leaders()
        if self.roles.api:
            await self._standstill.look(self._clock.monotonic())

    async def _look_for_leaders(self) -> None:
        now = self._clock.monotonic()
        if now < self._leaders_due:
            return
        self._leaders_due = now + LOOK_FOR_LEADERS_EVERY
        for line in self.lines.values():
            await line.look_for_leader()

    def trusts(self, servers: Set[str]) -> bool:
        """Whether the line was built on these, as far as this process has heard: others it does not talk to."""
        return not self.distributed or servers <= self._servers

    async def _learn_servers(self) -> None:
        servers = {epoch.server for epoch in (await self._store.epochs()).values()}
        if servers != self._servers:
            self._servers.clear()
            self._servers.update(servers)
            for line in self.lines.values():
                await line.reconnect()
            for worker in self.workers:
                worker.retry()

    async def apply(self, rules: Rules) -> None:
        if rules.version > self.rules.version or not self.rules.services:
            _tell_changes(self.rules, rules)
            self.rules = rules
            named = {shard for service in rules.services.values() for shard in [*service.shares] or [service.shard]}
            for shard in sorted(named - self.lines.keys()):
                log.error("services live on the shard %s, which this process's [shards] does not name", shard)
        # Each for itself: one that is away must not keep the others from their new limits.
        await asyncio.gather(*(line.apply(rules) for line in self.lines.values()))

    def look_at_scopes(self) -> None:
        """A rebuild was asked for: where this process leads, it need not wait to find that out."""
        for line in self.lines.values():
            if line.leader is not None:
                line.leader.manager.wake("scopes", 0.0)

    async def drain(self) -> None:
        """On the way out: nobody can ask it to claim again."""
        self.leaving = True
        self.announce_soon()
        await self._drain_lines()

    async def _drain_lines(self) -> None:
        timeout = self._config.worker.drain_timeout
        await asyncio.gather(*(line.drain(timeout) for line in self.lines.values()))

    def _asked_to_drain(self, drain: bool) -> None:
        """An operator's wish, as the truth has it: it holds until it is taken back or this process ends."""
        if drain == self._drain_asked or self.leaving or not self.workers:
            return
        self._drain_asked = drain
        if drain:
            log.warning("asked to drain: no new call starts here until `fairlead workers drain %s --undo`", self.name)
            self._draining = asyncio.get_running_loop().create_task(self._drain_lines(), name="fairlead-drain")
        else:
            log.warning("no longer asked to drain: claiming again")
            if self._draining is not None:
                self._draining.cancel()
            for worker in self.workers:
                worker.claim_again()
        self.announce_soon()

    def announce_soon(self) -> None:
        """Also to hear soon what was asked of this process."""
        self._loops.wake(self._presence.name, 0.0)

    def _condition(self) -> Condition:
        workers = self.workers
        details: dict[str, Any] = {
            "event_loop_blocked": sum(line.blocked_times for line in self.lines.values()),
            "late_results": sum(worker.late_results for worker in workers),
            **adapt.written(
                self._recorder.observations.calls_of,
                self.rules,
                {shard: line.configured for shard, line in self.lines.items() if line.workers},
            ),
        }
        if blocked := next((line.blocked for line in self.lines.values() if line.blocked), None):
            details["blocked"] = blocked
        if problem := next((worker.outage.cause for worker in workers if worker.outage.cause), None):
            details["problem"] = problem
        running = Counter({worker.pool.name: 0 for worker in workers})
        for worker in workers:
            running[worker.pool.name] += worker.running
        if pools := self._about.details.get(POOLS):
            details[POOLS] = [{**pool, "running": running[pool["name"]]} for pool in pools]
        return Condition(self.draining or self._drain_asked, running.total(), details)

    async def stop(self) -> None:
        tasks = [task for task in (self._task, self._draining) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(line.stop() for line in self.lines.values()))
        if self._crossing is not None:
            await self._crossing.close()
        for executor in self._executors.values():
            with contextlib.suppress(Exception):
                await executor.close()
        await self._presence.farewell()

    # ------------------------------------------------------------ what happened, and who must know

    def committed(self, changes: Sequence[LineChange]) -> None:
        """Each change goes to the line where its job waits now."""
        if len(self.lines) == 1:
            for line in self.lines.values():
                line.relay.committed(changes)
            return
        for change in changes:
            job = change.job
            at = MAIN_SHARD if job is None else self.rules.shard_of(job.service, job.priority.band)
            if at in self.lines:
                self.lines[at].relay.committed([change])
            if job is not None:
                for other in self._left(job) & self.lines.keys() - {at}:
                    self.lines[other].relay.moved_away(job)

    def _left(self, job: Job) -> set[str]:
        """The shards where an older step of it may wait."""
        services = (self.rules.services.get(name) for name in waited_for(job))
        return {shard for each in services if each is not None for shard in each.shares or (each.shard,)}

    def stop_job(self, job_id: str, run: int | None = None) -> None:
        if is_turn(job_id):
            for usher in self.ushers:
                usher.stop(job_id, run)
            return
        for worker in self.workers:
            worker.stop_job(job_id, run)

    def _ended(self, job_id: str) -> None:
        if is_turn(job_id):
            self.stop_job(job_id)
        if self._crossing is not None:
            self._crossing.ended(job_id)

    # ------------------------------------------------------------ turns

    def _turn_wanted(self, service: str) -> None:
        for line in self.lines.values():
            if service in line.rules.services:
                line.usher.ring()

    def turn_offered(self, shard: str, lease: Lease) -> None:
        ticket = self._tickets.get(lease.job_id)
        if ticket is not None and shard in self.lines:
            self.lines[shard].usher.offer(ticket, lease)

    def turn_adopted(self, turn_id: str) -> None:
        ticket = self._tickets.get(turn_id)
        if ticket is not None:
            for usher in self.ushers:
                usher.drop(ticket)

    def adopted(self, process: str, turn_id: str) -> None:
        """This process has a turn that was another's: that one is to hear it."""
        if self._crossing is not None:
            self._crossing.adopt_turn(process, turn_id)

    async def told(self, service: str) -> None:
        """Returns when the line has heard what was committed here before, or cannot hear it now."""
        for line in self.lines.values():
            if service in line.rules.services and line.relay.reachable:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TOLD_WITHIN):
                        await line.relay.settled()

    def _stopped(self, job_id: str, run: int) -> None:
        self.stop_job(job_id, run)
        if self._crossing is not None:
            self._crossing.stop(job_id, run)

    def _timer_set(self, moment: float) -> None:
        for line in self.lines.values():
            if line.leader is not None:
                line.leader.manager.wake("timers", moment)

    # ------------------------------------------------------------ questions

    async def places(self, job_ids: Sequence[str]) -> dict[str, Place]:
        """Where these stand. A line that does not answer soon is left out."""
        return self._told(await _joined([line.places(job_ids) for line in self.lines.values()]))

    def _told(self, places: Mapping[str, Place]) -> dict[str, Place]:
        return self._standstill.seen(self.scores.learned(places), self.rules)

    async def places_of_new(self, job_ids: Sequence[str]) -> dict[str, Place]:
        """The same of jobs that this process has just committed; nothing while that is dear."""
        found = await _joined([line.places_of_new(job_ids) for line in self.lines.values()])
        if not found:
            return {}
        places, now = self._told(found), self._clock.now()
        if self.roles.api:
            for job_id, place in places.items():
                self.scores.remember(job_id, place, now)
        return places

    async def snapshots(self) -> dict[str, list[ServiceSnapshot]]:
        """By shard; those that cannot be asked now are absent."""
        found = {}
        for name, line in self.lines.items():
            with contextlib.suppress(Unavailable):
                found[name] = await line.dispatcher.snapshot()
        return found

    async def echo(self) -> float | None:
        """Seconds that a message to ourselves takes; None if there is nobody else to send any to."""
        return None if self._crossing is None else await self._crossing.echo()

    def counts(self) -> dict[str, Any]:
        """What this process's managers did: per shard and loop, how much was looked at, moved, and failed."""
        return {name: line.leader.manager.counts() for name, line in self.lines.items() if line.leader is not None}


def _tell_changes(before: Rules, after: Rules) -> None:
    """What another process said, with another config perhaps: whoever wonders why a service stands still finds it."""
    for name, old in before.services.items():
        new = after.services.get(name)
        if new is None:
            log.warning("the service %s is no longer declared: its jobs wait until a gateway with it is started", name)
        elif new != old and not _found_by_itself(name, after, old):
            log.warning(
                "the rules of %s have changed: limit %d, was %d%s",
                name,
                new.limit,
                old.limit,
                "; paused" if new.paused else "",
            )


def _found_by_itself(name: str, after: Rules, old: ServiceRules) -> bool:
    """Only its limit is another one, and no operator's: that is what it is for."""
    new, override = after.services[name], after.overrides.get(name)
    by_hand = override is not None and override.limit is not None
    return new.auto is not None and not by_hand and replace(new, limit=old.limit) == old


async def _joined(asked: Sequence[Coroutine[Any, Any, dict[str, Place]]]) -> dict[str, Place]:
    """What all lines say, asked at once. Nearly always there is only one, and that needs no task of its own."""
    found = [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked)
    return {job_id: place for places in found for job_id, place in places.items()}
