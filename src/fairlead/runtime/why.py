"""What holds a job at this moment: asked of the truth, of the line where it waits, and of the processes that run.

Three questions to the dispatcher and three to the store at most. They are not one moment: a job that moved on between
them is looked at again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fairlead.dispatch.port import Dispatcher, Lease, ServiceSnapshot
from fairlead.domain.job import Job, JobStatus, Priority
from fairlead.domain.limits import Order, Rules, ServiceRules
from fairlead.domain.order import Place
from fairlead.domain.processes import ProcessRecord, process_of
from fairlead.errors import NotFound, Unavailable
from fairlead.runtime import reasons
from fairlead.runtime.clock import Clock
from fairlead.runtime.line import Line
from fairlead.runtime.process import Process
from fairlead.runtime.reasons import Reason, Slots, Workers
from fairlead.runtime.view import EstimatedWait
from fairlead.store.port import Store

ANSWERS_WITHIN = 2.0
LOOKS = 3
LATE = 2.0
"""Seconds in which what is due is done, and an expired lease taken back, if a manager leads."""


@dataclass(frozen=True, slots=True)
class Why:
    """What holds a job now: the reasons, those first that hold it most, and all of it as one sentence."""

    job_id: str
    status: JobStatus
    summary: str
    reasons: tuple[Reason, ...]
    position: int | None = None
    estimated_wait: EstimatedWait | None = None

    def as_dict(self) -> dict[str, Any]:
        wait = self.estimated_wait
        return {
            "job_id": self.job_id,
            "status": self.status.value,
            "summary": self.summary,
            "position": self.position,
            "estimated_wait": {"low": round(wait.low, 3), "high": round(wait.high, 3)} if wait is not None else None,
            "reasons": [
                {"code": each.code, "message": each.message, "details": dict(each.details)} for each in self.reasons
            ],
        }


@dataclass(frozen=True, slots=True)
class Sight:
    """What the line shows of a waiting job."""

    open: bool
    place: Place | None
    snapshots: Mapping[str, ServiceSnapshot]

    def lease_of(self, job: Job) -> Lease | None:
        seen = self.snapshots.get(job.service)
        leases = seen.leases if seen is not None else ()
        return next((lease for lease in leases if lease.job_id == job.id), None)


class Inquiry:
    """`private`: whoever asks may know how many others there are, but not who, nor where their calls run."""

    def __init__(self, store: Store, process: Process | None, clock: Clock, *, private: bool) -> None:
        self._store = store
        self._process = process
        self._clock = clock
        self._private = private

    async def ask(self, job_id: str) -> Why:
        for look in range(LOOKS):
            jobs = await self._store.get_jobs([job_id])
            if job_id not in jobs:
                raise NotFound(f"there is no job {job_id}")
            why = await self._of(jobs[job_id], last=look == LOOKS - 1)
            if why is not None:
                return why
        raise AssertionError("the last look always answers")

    async def _of(self, job: Job, *, last: bool) -> Why | None:
        """None: it is neither in line nor on lease, perhaps because it has moved on since it was read."""
        rules = self._process.rules if self._process is not None else await self._store.rules()
        match job.status:
            case JobStatus.SCHEDULED:
                return _why(job, [reasons.scheduled(job), *await self._overdue(job.scheduled_at)])
            case JobStatus.RETRYING:
                known = rules.services.get(job.service, ServiceRules(job.service, limit=0))
                return _why(job, [reasons.backing_off(job, known.max_attempts), *await self._overdue(job.timer_at)])
            case JobStatus.RUNNING:
                lease = await self._own_lease(job, rules)
                return _why(job, [reasons.running(job, lease), *await self._lost(job, lease, rules)])
            case JobStatus.PENDING:
                return await self._of_waiting(job, rules, last=last)
        return _why(job, [reasons.ended(job)])

    async def _overdue(self, due: float | None) -> list[Reason]:
        """Whoever leads any part of the line looks at the timers of all."""
        now = await self._store.now()
        if due is None or now - due <= LATE:
            return []
        lines = self._process.lines.values() if self._process is not None else ()
        return [reasons.timers_late(due, now), *await self._leaderless(lines, "nothing that is due is put in line")]

    async def _lost(self, job: Job, lease: Lease | None, rules: Rules) -> list[Reason]:
        now = await self._store.now()
        expired = lease is not None and now - lease.expires_at > LATE
        known = {each.name for each in await self._store.processes() if each.alive(now)}
        if not expired and process_of(job.turn or job.worker or "") in known:
            return []
        line = self._line(job, rules)
        gone = reasons.worker_gone(job, lease_expired=expired, private=self._private)
        lines = () if line is None else (line,)
        return [gone, *await self._leaderless(lines, "calls whose worker is gone are not taken back")]

    async def _leaderless(self, lines: Iterable[Line], so: str) -> list[Reason]:
        """Why none of these lines is led; nothing if one is."""
        found = [await self._without_leader(line, so) for line in lines]
        return [reason for reason in found[:1] if reason is not None] if all(found) else []

    async def _without_leader(self, line: Line, so: str) -> Reason | None:
        if line.leadership is None:
            return None
        try:
            async with asyncio.timeout(ANSWERS_WITHIN):
                leads = await line.leadership.leader() is not None
        except (Unavailable, TimeoutError) as error:
            return self._unreachable(error)
        return None if leads else reasons.no_manager(so)

    def _unreachable(self, error: Exception) -> Reason:
        problem = str(error) or f"the dispatcher did not answer within {ANSWERS_WITHIN:g} s"
        return reasons.unreachable(problem, private=self._private)

    async def _own_lease(self, job: Job, rules: Rules) -> Lease | None:
        line = self._line(job, rules)
        if line is None or job.service not in line.rules.services:
            return None
        try:
            return (await _sight(line, job)).lease_of(job)
        except Unavailable:
            return None

    def _line(self, job: Job, rules: Rules) -> Line | None:
        shard = rules.shard_of(job.service, job.priority.band)
        return self._process.lines.get(shard) if self._process is not None else None

    # ------------------------------------------------------------ waiting

    async def _of_waiting(self, job: Job, rules: Rules, *, last: bool) -> Why | None:
        if job.service not in rules.services:
            return _why(job, [reasons.not_declared(job.service)])
        found = [reasons.paused(job.service)] if rules.services[job.service].paused else []
        line = self._line(job, rules)
        if line is None or job.service not in line.rules.services:
            found += await self._about_workers(job, rules.services[job.service], None, slots_are_free=False)
            return _why(job, [*found, reasons.line_elsewhere()])
        try:
            sight = await _sight(line, job)
        except Unavailable as error:
            return _why(job, [*found, self._unreachable(error)])
        if not sight.open:
            # Nobody rebuilds it if nobody leads; and once it stands, somebody has to take from it.
            closed = await self._leaderless([line], "the line is not built") or [reasons.rebuilding()]
            workers = await self._about_workers(job, rules.services[job.service], None, slots_are_free=False)
            return _why(job, [*found, *closed, *workers])
        if (lease := sight.lease_of(job)) is not None:
            return _why(job, [reasons.starting(lease, private=self._private)])
        if sight.place is None:
            return _why(job, [*found, reasons.not_relayed(job, self._clock.now())]) if last else None
        return await self._of_place(job, line, sight.place, sight, found)

    async def _of_place(self, job: Job, line: Line, place: Place, sight: Sight, found: list[Reason]) -> Why:
        assert self._process is not None
        rules = line.rules.services[job.service]
        if not place.slots and (gone := reasons.region_not_declared(job, rules)) is not None:
            found = [*found, gone]
        full = Slots.of(job.service, sight.snapshots.values()).full(job, line.rules)
        workers = await self._about_workers(job, rules, place, slots_are_free=not full)
        holding = [await self._with_holders(job, reason, slots) for reason, slots in full]
        learned = self._process.scores.learned({job.id: place})[job.id]
        wait = None if found or workers else _wait(learned, [slots for _, slots in full], self._clock.now())
        if job.turn is not None and rules.turns_only and not (found or full) and place.position <= place.free:
            holding.append(reasons.waits_for_caller(job, private=self._private))
        told = _why(job, [*found, *workers, *holding, reasons.in_line(place, rules.order)], place)
        return replace(told, estimated_wait=wait)

    async def _about_workers(
        self, job: Job, rules: ServiceRules, place: Place | None, *, slots_are_free: bool
    ) -> list[Reason]:
        if rules.turns_only:
            return []  # it needs none
        now = await self._store.now()
        alive = [each for each in await self._store.processes() if each.alive(now)]
        serving = [worker for each in alive for worker in each.workers if _serves(worker, job, rules)]
        # A FIFO lane knows no priority, and retries that go first are open to all.
        any_band = rules.order is Order.FIFO or (place is not None and place.band not in _PRIORITIES)
        workers = Workers(serving, None if any_band else job.priority)
        reason = workers.reason(job.service, slots_are_free=slots_are_free, private=self._private)
        return [] if reason is None else [reason]

    async def _with_holders(self, job: Job, reason: Reason, slots: Slots) -> Reason:
        own = all(lease.user_id == job.user_id for lease in slots.leases) and not slots.holds
        if self._private and not own:
            return reason
        jobs = await self._store.get_jobs([lease.job_id for lease in slots.leases[: reasons.MOST_HOLDERS]])
        return replace(reason, details={**reason.details, **slots.holders(jobs)})


_PRIORITIES = frozenset(priority.band for priority in Priority)


async def _sight(line: Line, job: Job) -> Sight:
    """The place first: what is granted between the questions is then seen as a lease."""
    rules = line.rules.services[job.service]
    names = [job.service]
    if rules.pool is not None:
        names = [name for name, other in line.rules.services.items() if other.pool == rules.pool]
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            return await _look(line.dispatcher, job.id, rules.scope, names)
    except TimeoutError:
        raise Unavailable(f"the dispatcher did not answer within {ANSWERS_WITHIN:g} s") from None


async def _look(dispatcher: Dispatcher, job_id: str, scope: str, names: list[str]) -> Sight:
    states = await dispatcher.states([scope])
    if not states[scope].open:  # of one that is not built yet nothing else can be asked
        return Sight(False, None, {})
    places = await dispatcher.places([job_id])
    snapshots = await dispatcher.snapshot(names)
    return Sight(True, places.get(job_id), {each.service: each for each in snapshots})


def _why(job: Job, found: list[Reason], place: Place | None = None) -> Why:
    """The sentence says what holds it most, and where it stands; of a job that is not in line, all there is to say."""
    told = found if place is None else [found[0], *found[1:][-1:]]
    summary = "; ".join(reason.message for reason in told)
    return Why(
        job.id,
        job.status,
        summary[0].upper() + summary[1:] + ".",
        tuple(found),
        None if place is None else place.position,
    )


def _serves(worker: ProcessRecord, job: Job, rules: ServiceRules) -> bool:
    """It may claim the job's step, if its band is one of the worker's: also in a region that the job may go to."""
    bound = worker.details.get("regions")
    elsewhere = bool(bound and rules.regions) and set(bound or ()).isdisjoint(
        job.bound_within(rules.regions) or rules.regions
    )
    return job.service in worker.services and not elsewhere


def _wait(place: Place, full: list[Slots], now: float) -> EstimatedWait | None:
    """Holds say when they end: where they are all that is in the way, nothing starts before the first of them does."""
    wait = EstimatedWait.of(place)
    first = max((slots.holds[0].until - now for slots in full if slots.holds and not slots.leases), default=0.0)
    if wait is None or first <= wait.low:
        return wait
    return EstimatedWait(first, max(wait.high, first + place.pace))
