"""Compares the dispatcher's queue with itself and with the waiting jobs in the database, and puts jobs back that are
missing from the queue."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import Any

from fairlead.dispatch.port import Dispatcher
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.rules import BANDS, Lanes
from fairlead.engine.outbox_relay import offer_of
from fairlead.engine.parts import RulesRef
from fairlead.store.port import Store

log = logging.getLogger("fairlead.reconcile")

EVERY = 10.0
LOOK_AGAIN = 5.0
"""Seconds after which a missing job is checked again. Longer than a commit takes to reach the queue, even through the
outbox loop."""
SHARE = 0.02
"""The maximal fraction of the time that counting may take. Counting takes a while when very many jobs wait."""
FEW = 1000
"""If a service has at most this many waiting jobs, each job is looked up in the queue at every tick. Otherwise jobs are
looked up only when the counts differ."""
CLEAR_FOR = 60.0
"""Seconds for which differing counts of a service are ignored after all its jobs were looked up. Counts also differ for
a moment whenever jobs move."""
BATCH = 1000
NAMED = 10


@dataclass(frozen=True, slots=True)
class Repair:
    """A record of missing jobs that were put back in the queue. `at` is on the monotonic clock."""

    at: float
    jobs: Mapping[str, list[str]]
    """For each service, the ids of the jobs that were put back."""

    def shown(self) -> dict[str, Any]:
        """The repair as it appears in the registration of the process."""
        return {
            "ago": round(monotonic() - self.at, 1),
            "count": sum(map(len, self.jobs.values())),
            "jobs": {service: jobs[:NAMED] for service, jobs in self.jobs.items()},
        }


class ReconcileLoop:
    """Finds jobs that are missing from the queue. A job is missing if it waits in the database, and two ticks in a row
    find it neither queued nor leased, with the same run both times. A job that has moved between the two ticks has
    another run."""

    name = "reconcile"

    def __init__(self, store: Store, dispatcher: Dispatcher, rules: RulesRef) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._rules = rules
        self._differed: frozenset[str] = frozenset()
        self._clear_until: dict[str, float] = {}
        self._absent: dict[str, int] = {}
        """For each job that was missing at the last tick, its run at that time."""
        self.last_repair: Repair | None = None
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        began = perf_counter()
        # A queue that contradicts itself may contain jobs that it never grants. The scopes loop rebuilds it.
        await self._dispatcher.check()
        if self._absent:
            await self._repair()
        waiting = await self._store.count_waiting_by_service(self._rules.lanes)
        self.scanned += sum(waiting.values())
        declared = await self._with_open_queue(waiting)
        differ = await self._differing({service: waiting[service] for service in declared})
        few = {service for service in declared if waiting[service] <= FEW}
        due = {each for each in differ & self._differed if now >= self._clear_until.get(each, 0.0)}
        self._differed = differ
        if few | due:
            self._absent = {job.id: job.run for job in await self._absent_in(few | due)}
            self._clear_until |= dict.fromkeys(due, now + CLEAR_FOR)
        if self._absent or differ - few:
            return now + LOOK_AGAIN
        return now + max(EVERY, (perf_counter() - began) / SHARE)

    async def _with_open_queue(self, services: Iterable[str]) -> list[str]:
        """The services whose queue is open. A queue that is being rebuilt is left out: its jobs are only temporarily
        missing."""
        rules = self._rules.current.services
        declared = {name: rules[name].scope for name in services if name in rules}
        states = await self._dispatcher.states(set(declared.values())) if declared else {}
        return [name for name, scope in declared.items() if states[scope].open]

    async def _differing(self, waiting: Mapping[str, int]) -> frozenset[str]:
        """The services with more waiting jobs in the database than the dispatcher knows of. The dispatcher's count
        includes claimed steps, because a step that is claimed and not yet started still waits according to the
        database."""
        if not waiting:
            return frozenset()
        on_lease = {job.lease for job in await self._store.running(self._rules.lanes)}
        known: Counter[str] = Counter()
        for snapshot in await self._dispatcher.snapshot():
            claimed = sum(lease.name not in on_lease for lease in snapshot.leases)
            known[snapshot.service] = sum(snapshot.waiting.values()) + claimed
        return frozenset(service for service, count in waiting.items() if count > known[service])

    async def _absent_in(self, services: Iterable[str]) -> list[Job]:
        lanes = self._rules.lanes
        pairs = frozenset((name, band) for name in services for band in BANDS if lanes.has(name, band))
        absent: list[Job] = []
        async for jobs in self._store.waiting(BATCH, Lanes(pairs)):
            absent += await self._not_known(jobs)
        return absent

    async def _not_known(self, jobs: Iterable[Job]) -> list[Job]:
        services = self._rules.current.services
        by_id = {job.id: job for job in jobs}
        missing = await self._dispatcher.missing([offer_of(job, services) for job in by_id.values()])
        return [by_id[offer.job_id] for offer in missing]

    async def _repair(self) -> None:
        """Put back the jobs that were missing from the queue at the last tick, are still missing, and have not
        changed."""
        absent = self._absent
        jobs = [
            job
            for job in (await self._store.get_jobs(list(absent))).values()
            if job.status is JobStatus.PENDING and job.run == absent[job.id]
        ]
        built = set(await self._with_open_queue({job.service for job in jobs}))
        missing = await self._not_known([job for job in jobs if job.service in built])
        self._absent = {}
        if not missing:
            return
        services = self._rules.current.services
        self.queued += await self._dispatcher.offer([offer_of(job, services) for job in missing])
        by_service: dict[str, list[str]] = {}
        for job in missing:
            by_service.setdefault(job.service, []).append(job.id)
        self.last_repair = Repair(monotonic(), by_service)
        for service, ids in by_service.items():
            log.warning(
                "%d jobs of %s were waiting in the database and missing in the queue; they are back: %s%s",
                len(ids),
                service,
                ", ".join(ids[:NAMED]),
                ", ..." if len(ids) > NAMED else "",
            )
