"""Explains why a job is not running. The facts come from the database, from the shard where the job waits, and from the
registrations of processes.

An explanation takes at most three queries to the dispatcher and three to the database. The queries run at different
moments, so if the job moves between them, it is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fairlead.dispatch.port import Dispatcher, Lease, ServiceSnapshot, Unserved
from fairlead.domain.fair_share import QueuePosition
from fairlead.domain.job import Job, JobStatus, Priority
from fairlead.domain.processes import ProcessRecord, process_of
from fairlead.domain.rules import Order, Rules, ServiceRules
from fairlead.domain.views import MOST_HOLDERS, EstimatedWait, Reason, Why, WorkerCounts
from fairlead.engine.loops.workers import unserved
from fairlead.engine.shard_runtime import ShardRuntime
from fairlead.errors import NotFound, Unavailable
from fairlead.observe import wait_reasons
from fairlead.observe.snapshot import Observer, ask_dispatcher
from fairlead.observe.wait_reasons import SlotUse

TIMEOUT = 2.0
READS = 3
LATE = 2.0
"""Seconds within which a leader handles due timers and recovers expired leases."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What the dispatcher knows about a waiting job. `open`: the scope of its service is built, so slots can be
    granted."""

    open: bool
    position: QueuePosition | None
    services: Mapping[str, ServiceSnapshot]
    unserved: Unserved = frozenset()

    def lease_of(self, job: Job) -> Lease | None:
        service = self.services.get(job.service)
        leases = service.leases if service is not None else ()
        return next((lease for lease in leases if lease.job_id == job.id), None)


class Explainer:
    """Explains why a job is not running. `private`: the explanation tells how many other jobs there are, but not whose
    they are or where they run."""

    def __init__(self, observer: Observer, *, private: bool) -> None:
        self._observer = observer
        self._store = observer.store
        self._node = observer.node
        self._clock = observer.clock
        self._private = private

    async def explain(self, job_id: str) -> Why:
        for read in range(READS):
            jobs = await self._store.get_jobs([job_id])
            if job_id not in jobs:
                raise NotFound(f"there is no job {job_id}")
            why = await self._explain(jobs[job_id], last=read == READS - 1)
            if why is not None:
                return why
        raise AssertionError("the last read always gives an explanation")

    async def _explain(self, job: Job, *, last: bool) -> Why | None:
        """The explanation for a job. Returns None if the job has to be read again, because the dispatcher has it
        neither in the queue nor leased: it may have moved on since it was read. The `last` attempt explains this state
        instead."""
        rules = await self._observer.rules()
        match job.status:
            case JobStatus.SCHEDULED if job.is_set_aside:
                return _why(job, [wait_reasons.set_aside(job)])
            case JobStatus.SCHEDULED:
                return _why(job, [wait_reasons.scheduled(job), *await self._overdue(job.scheduled_at)])
            case JobStatus.RETRYING if job.is_held:
                return _why(job, [wait_reasons.budget_spent(job), *await self._overdue(job.timer_at)])
            case JobStatus.RETRYING:
                service = rules.services.get(job.service, ServiceRules(job.service, limit=0))
                backoff = wait_reasons.backing_off(job, service.max_attempts)
                return _why(job, [backoff, *await self._overdue(job.timer_at)])
            case JobStatus.RUNNING:
                lease = await self._lease(job, rules)
                return _why(job, [wait_reasons.running(job, lease), *await self._lost(job, lease, rules)])
            case JobStatus.PENDING:
                return await self._waiting(job, rules, last=last)
        return _why(job, [wait_reasons.ended(job)])

    async def _overdue(self, due: float | None) -> list[Reason]:
        """The reasons why a job whose time has come has not moved; empty if it is not late. The leader of any shard
        handles the timers of all shards, so one leader is enough."""
        now = await self._store.now()
        if due is None or now - due <= LATE:
            return []
        shards = self._node.shards.values() if self._node is not None else ()
        return [wait_reasons.timers_late(due, now), *await self._leaderless(shards, "due jobs are not queued")]

    async def _lost(self, job: Job, lease: Lease | None, rules: Rules) -> list[Reason]:
        processes = await self._observer.processes.fresh()
        expired = lease is not None and processes.now - lease.expires_at > LATE
        alive = {process.name for process in processes.alive}
        if not expired and process_of(job.turn or job.worker or "") in alive:
            return []
        shard = self._shard(job, rules)
        gone = wait_reasons.worker_gone(job, lease_expired=expired, private=self._private)
        return [gone, *await self._leaderless([shard] if shard else [], "calls of lost workers are not recovered")]

    async def _leaderless(self, shards: Iterable[ShardRuntime], effect: str) -> list[Reason]:
        """One reason if none of these shards has a leader, as far as can be read; empty if one of them has a leader."""
        reasons = [await self._without_leader(shard, effect) for shard in shards]
        return [reason for reason in reasons[:1] if reason is not None] if all(reasons) else []

    async def _without_leader(self, shard: ShardRuntime, effect: str) -> Reason | None:
        if shard.leadership is None:
            return None
        try:
            leader = await ask_dispatcher(shard.leadership.leader, TIMEOUT)
        except Unavailable as error:
            return self._unreachable(error)
        return None if leader is not None else wait_reasons.no_manager(effect)

    def _unreachable(self, error: Unavailable) -> Reason:
        return wait_reasons.unreachable(str(error), private=self._private)

    async def _lease(self, job: Job, rules: Rules) -> Lease | None:
        shard = self._shard(job, rules)
        if shard is None or job.service not in shard.rules.services:
            return None
        try:
            return (await _facts_of(shard, job)).lease_of(job)
        except Unavailable:
            return None

    def _shard(self, job: Job, rules: Rules) -> ShardRuntime | None:
        name = rules.shard_of(job.service, job.priority.band)
        return self._node.shards.get(name) if self._node is not None else None

    # ------------------------------------------------------------ waiting

    async def _waiting(self, job: Job, rules: Rules, *, last: bool) -> Why | None:
        if job.service not in rules.services:
            return _why(job, [wait_reasons.not_declared(job.service)])
        service = rules.services[job.service]
        reasons = [wait_reasons.paused(job.service)] if service.paused else []
        shard = self._shard(job, rules)
        if shard is None or job.service not in shard.rules.services:
            workers = await self._about_workers(job, service, None, slots_are_free=False)
            return _why(job, [*reasons, *workers, wait_reasons.queue_elsewhere()])
        try:
            alive = (await self._observer.processes.fresh()).alive
            facts = await _facts_of(shard, job, unserved(shard.rules.services, alive))
        except Unavailable as error:
            return _why(job, [*reasons, self._unreachable(error)])
        if not facts.open:
            # Without a leader the queue is not rebuilt; and once it is rebuilt, a worker has to claim from it.
            closed = await self._leaderless([shard], "the queue is not built") or [wait_reasons.rebuilding()]
            workers = await self._about_workers(job, service, None, slots_are_free=False)
            return _why(job, [*reasons, *closed, *workers])
        if (lease := facts.lease_of(job)) is not None:
            return _why(job, [wait_reasons.starting(lease, private=self._private)])
        if facts.position is None:
            return _why(job, [*reasons, wait_reasons.not_relayed(job, self._clock.now())]) if last else None
        return await self._queued(job, shard, facts.position, facts, reasons)

    async def _queued(
        self, job: Job, shard: ShardRuntime, position: QueuePosition, facts: JobFacts, reasons: list[Reason]
    ) -> Why:
        assert self._node is not None
        rules = shard.rules.services[job.service]
        if not position.slots and (gone := wait_reasons.region_not_declared(job, rules)) is not None:
            reasons = [*reasons, gone]
        full = SlotUse.of(job.service, facts.services.values()).full(job, shard.rules, facts.unserved)
        workers = await self._about_workers(job, rules, position, slots_are_free=not full)
        limits = [await self._with_holders(job, reason, slots) for reason, slots in full]
        now = self._clock.now()
        limits += wait_reasons.rates_full(job, shard.rules, facts.services.get(job.service), position, now)
        limits += wait_reasons.groups_full(position)
        learned = self._node.scores.learned({job.id: position})[job.id]
        wait = None if reasons or workers else _wait(learned, [slots for _, slots in full], now)
        if job.turn is not None and rules.turns_only and not (reasons or full) and position.position <= position.free:
            limits.append(wait_reasons.waits_for_caller(job, private=self._private))
        why = _why(job, [*reasons, *workers, *limits, wait_reasons.queued(job, position, rules)], position)
        return replace(why, estimated_wait=wait)

    async def _about_workers(
        self, job: Job, rules: ServiceRules, position: QueuePosition | None, *, slots_are_free: bool
    ) -> list[Reason]:
        if rules.turns_only:
            return []  # turns need no worker
        workers = [worker for each in (await self._observer.processes.fresh()).alive for worker in each.workers]
        bound = job.bound_within(rules.regions)
        serving = [worker for worker in workers if _serves(worker, job, rules, bound)]
        if not serving and job.prefers_within(rules.regions) is not None:
            serving = [worker for worker in workers if _serves(worker, job, rules, job.allowed_regions)]
        # A FIFO lane has no priorities, and any worker may claim the retries that go first.
        any_band = rules.order is Order.FIFO or (position is not None and position.band not in _PRIORITIES)
        counts = WorkerCounts(serving, None if any_band else job.priority)
        place = job.service
        if not serving and bound is not None and any(job.service in worker.services for worker in workers):
            place += f" in {' or '.join(bound)}"
        reason = counts.reason(job.service, slots_are_free=slots_are_free, private=self._private, place=place)
        return [] if reason is None else [reason]

    async def _with_holders(self, job: Job, reason: Reason, slots: SlotUse) -> Reason:
        own = all(lease.user_id == job.user_id for lease in slots.leases) and not slots.holds
        if self._private and not own:
            return reason
        jobs = await self._store.get_jobs([lease.job_id for lease in slots.leases[:MOST_HOLDERS]])
        return replace(reason, details={**reason.details, **slots.holders(jobs)})


_PRIORITIES = frozenset(priority.band for priority in Priority)


async def _facts_of(shard: ShardRuntime, job: Job, unserved: Unserved = frozenset()) -> JobFacts:
    rules = shard.rules.services[job.service]
    names = [job.service]
    if rules.pool is not None:
        names = [name for name, other in shard.rules.services.items() if other.pool == rules.pool]
    facts = await ask_dispatcher(lambda: _read(shard.dispatcher, job.id, rules.scope, names, unserved), TIMEOUT)
    return replace(facts, unserved=unserved)


async def _read(dispatcher: Dispatcher, job_id: str, scope: str, names: list[str], unserved: Unserved) -> JobFacts:
    """Read what the dispatcher knows about a job. The position is read before the leases, so that a job to which a slot
    is granted in between is found with its lease."""
    states = await dispatcher.states([scope])
    if not states[scope].open:  # a scope that is not built answers nothing else
        return JobFacts(False, None, {})
    positions = await dispatcher.positions([job_id], unserved)
    services = await dispatcher.snapshot(names)
    return JobFacts(True, positions.get(job_id), {each.service: each for each in services})


def _why(job: Job, reasons: list[Reason], position: QueuePosition | None = None) -> Why:
    """Make the explanation from these reasons. The summary names all of them, or only the first and the last if the job
    has a position in the queue."""
    named = reasons if position is None else [reasons[0], *reasons[1:][-1:]]
    summary = "; ".join(reason.message for reason in named)
    return Why(
        job.id,
        job.status,
        summary[0].upper() + summary[1:] + ".",
        tuple(reasons),
        None if position is None else position.position,
    )


def _serves(worker: ProcessRecord, job: Job, rules: ServiceRules, within: Sequence[str] | None) -> bool:
    """Whether the worker may claim the job's step in one of the regions in `within`. The bands of the worker are not
    checked."""
    bound = worker.details.get("regions")
    elsewhere = bool(bound and rules.regions) and set(bound or ()).isdisjoint(within or rules.regions)
    return job.service in worker.services and not elsewhere


def _wait(position: QueuePosition, full: list[SlotUse], now: float) -> EstimatedWait | None:
    """The estimated wait. If a limit is filled only by holds, whose end is known, the wait lasts at least until the
    first of these holds ends."""
    wait = EstimatedWait.of(position)
    first = max((slots.holds[0].until - now for slots in full if slots.holds and not slots.leases), default=0.0)
    if wait is None or first <= wait.low:
        return wait
    return EstimatedWait(first, max(wait.high, first + position.pace))
