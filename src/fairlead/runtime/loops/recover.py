"""Takes back the steps of workers that are gone: expired leases, leases of processes that were seen to be gone, and
RUNNING rows that no lease stands for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence, Set

from fairlead.dispatch.port import Dispatcher, Lease, Release
from fairlead.domain import transitions
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.limits import Lanes, Rules
from fairlead.domain.processes import process_of
from fairlead.domain.transitions import Move
from fairlead.domain.turns import is_turn
from fairlead.runtime.record import Recorder
from fairlead.store.port import Store

log = logging.getLogger(__name__)

EVERY = 0.5
# A manager that did not tick for so long was itself stopped, and with it perhaps the workers' heartbeats.
ASLEEP_AFTER = 3.0
GRACE = 2.0
STRAYS_EVERY = 10.0
STRAY_AFTER = 5.0


class RecoverLoop:
    name = "recover"

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        recorder: Recorder,
        rules: Callable[[], Rules],
        lanes: Callable[[], Lanes],
        *,
        alone: bool,
    ) -> None:
        """`alone`: the only worker is in this process."""
        self._store = store
        self._dispatcher = dispatcher
        self._recorder = recorder
        self._rules = rules
        self._lanes = lanes
        self._alone = alone
        self._buried: set[str] = set()
        self._strays_due = 0.0
        self._ticked_at: float | None = None
        self.rebuilding = asyncio.Lock()
        """Held while leases are missing because they are being restored."""
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        before, self._ticked_at = self._ticked_at, now
        if before is not None and now - before > ASLEEP_AFTER:
            log.warning("nobody looked after the leases for %.1f s; workers get a moment to renew them", now - before)
            self._ticked_at = now + GRACE
            return now + GRACE
        leases = await self._dispatcher.expired()
        if not self._alone:
            leases = [*leases, *await self._orphaned({lease.name for lease in leases})]
        self.scanned += len(leases)
        if leases:
            await self._take_back(leases, now)
        if now >= self._strays_due:
            self._strays_due = now + STRAYS_EVERY
            await self._find_strays(now)
        return now + EVERY

    async def _orphaned(self, known: Set[str]) -> list[Lease]:
        """Leases whose process was killed, and seen to be gone by another one of its machine: they need not expire."""
        gone = {record.name for record in await self._store.processes() if record.gone}
        new = gone - self._buried
        leases = [lease for snapshot in await self._dispatcher.snapshot() for lease in snapshot.leases] if new else []
        self._buried = gone
        orphans = [lease for lease in leases if process_of(lease.worker) in new and lease.name not in known]
        return await self._without_heirs(orphans)

    async def _without_heirs(self, leases: list[Lease]) -> list[Lease]:
        """A turn that the process handed over is its holder's, who renews it under the old name."""
        ids = [lease.job_id for lease in leases if is_turn(lease.job_id)]
        jobs = await self._store.get_jobs(ids) if ids else {}
        held = {job.lease for job in jobs.values() if job.status is JobStatus.RUNNING}
        return [lease for lease in leases if lease.name not in held]

    async def _take_back(self, leases: Sequence[Lease], now: float) -> None:
        """First the truth, then the slot: only when the job has moved on does its lease go."""
        jobs = await self._store.get_jobs([lease.job_id for lease in leases])
        lost = [jobs[lease.job_id] for lease in leases if stands_for(lease, jobs.get(lease.job_id))]
        await self.recover(lost, now)
        if len(lost) < len(leases):
            # Its job has moved on before. If that left a hold, whoever did it may not have come to take the slot.
            lanes = self._lanes()
            holds = await self._store.holds()
            await self._dispatcher.hold([hold for hold in holds if lanes.has(hold.service, hold.band)])
        await self._dispatcher.release([Release(each.name, each.service, scope=each.scope) for each in leases])

    async def _find_strays(self, now: float) -> None:
        """RUNNING in the truth, but on no lease: the start's answer was lost, say."""
        async with self.rebuilding:
            scopes = self._rules().scopes
            before = await self._dispatcher.states(scopes)
            started_before = now - STRAY_AFTER
            rows = [j for j in await self._store.running(self._lanes()) if (j.call_started_at or 0.0) < started_before]
            if not rows:
                return
            snapshots = await self._dispatcher.snapshot()
            if before != await self._dispatcher.states(scopes) or not all(state.open for state in before.values()):
                return  # another leader rebuilds: the leases are about to come back
            on_lease = {lease.name for snapshot in snapshots for lease in snapshot.leases}
            # One that has finished since its row was read is refused there: only what is taken back is said.
            await self.recover([job for job in rows if job.lease not in on_lease], now)

    async def recover(self, jobs: Sequence[Job], now: float) -> None:
        moves = [(job, self._recovery(job, now)) for job in jobs]
        if not moves:
            return
        applied = await self._recorder.apply_each(moves, now)
        # Held before the lease goes, so that the slot is never free in between; and only for a job that was taken back:
        # one that finished meanwhile is computing no more.
        await self._dispatcher.hold([move.hold for move in applied if move.hold is not None])
        self.queued += len(applied)
        if applied:
            log.warning("recovered %d steps of workers that are gone", len(applied))

    def _recovery(self, job: Job, now: float) -> Move:
        rules = self._rules()
        service = rules.services.get(job.service)
        # A service that is no longer declared decides nothing: its job waits until the service is back.
        max_attempts = service.max_attempts if service is not None else job.attempt + 1
        remote = service is not None and service.remote
        return transitions.recover(
            job,
            now=now,
            waits=rules.wait_timeouts,
            max_attempts=max_attempts,
            hold=transitions.hold_of(job, now) if remote else None,
        )


def stands_for(lease: Lease, job: Job | None) -> bool:
    """Is this lease what the job's present state says: claimed and not yet started, or running on it?"""
    if job is None:
        return False
    if job.status is JobStatus.PENDING:
        return job.run == lease.run
    return job.status is JobStatus.RUNNING and job.lease == lease.name
