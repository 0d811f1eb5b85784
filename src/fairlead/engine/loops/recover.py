"""Takes back the steps of workers that are gone. Such a step has a lease that has expired, a lease of a process that is
known to be gone, or a RUNNING row without any lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence, Set

from fairlead.dispatch.port import Dispatcher, Lease, Release
from fairlead.domain import transitions
from fairlead.domain.job import Job, JobStatus, hold_of
from fairlead.domain.processes import process_of
from fairlead.domain.transitions import Move
from fairlead.domain.turns import is_turn
from fairlead.engine.parts import RulesRef
from fairlead.engine.transition_writer import TransitionWriter
from fairlead.errors import StoreError, Unavailable
from fairlead.store.port import Store

log = logging.getLogger("fairlead.recover")

EVERY = 0.5
# A manager that has not ticked for this long was itself suspended, and perhaps the workers' heartbeats with it.
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
        recorder: TransitionWriter,
        rules: RulesRef,
        *,
        alone: bool,
    ) -> None:
        """`alone`: the only worker of this queue is in this process."""
        self._store = store
        self._dispatcher = dispatcher
        self._recorder = recorder
        self._rules = rules
        self._alone = alone
        self._handled_gone: Set[str] = frozenset()
        self._strays_due = 0.0
        self._ticked_at: float | None = None
        self.rebuilding = asyncio.Lock()
        """This lock is held during a rebuild, when leases are missing because they are being restored."""
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        before, self._ticked_at = self._ticked_at, now
        if before is not None and now - before > ASLEEP_AFTER:
            log.warning("leases were not checked for %.1f s; workers get a moment to renew them", now - before)
            self._ticked_at = now + GRACE
            return now + GRACE
        leases = await self._dispatcher.expired()
        gone = frozenset[str]() if self._alone else await self._gone()
        if new := gone - self._handled_gone:
            leases = [*leases, *await self._orphaned(new, {lease.name for lease in leases})]
        self.scanned += len(leases)
        if leases:
            await self._take_back(leases, now)
        self._handled_gone = gone  # set last: if taking back failed, the next tick tries again
        if not 0 < self._strays_due - now <= STRAYS_EVERY:  # due, or the clock was set back
            self._strays_due = now + STRAYS_EVERY
            await self._find_strays(now)
        return now + EVERY

    async def _gone(self) -> frozenset[str]:
        """The names of processes that were killed, as detected by another process on the same machine."""
        return frozenset(record.name for record in await self._store.processes() if record.gone)

    async def _orphaned(self, gone: Set[str], known: Set[str]) -> list[Lease]:
        """The leases of the processes in `gone`, except those named in `known`. These leases can be taken back before
        they expire."""
        leases = [lease for snapshot in await self._dispatcher.snapshot() for lease in snapshot.leases]
        orphans = [lease for lease in leases if process_of(lease.worker) in gone and lease.name not in known]
        return await self._not_handed_over(orphans)

    async def _not_handed_over(self, leases: list[Lease]) -> list[Lease]:
        """Return `leases` without those of turns that were handed over to the process of their caller: that process
        still renews them, under their old names."""
        ids = [lease.job_id for lease in leases if is_turn(lease.job_id)]
        jobs = await self._store.get_jobs(ids) if ids else {}
        held = {job.lease for job in jobs.values() if job.status is JobStatus.RUNNING}
        return [lease for lease in leases if lease.name not in held]

    async def _take_back(self, leases: Sequence[Lease], now: float) -> None:
        """Take back the steps of these leases. A lease is released only after its job has moved on in the database. If
        that could not be written, or the job changed at the same moment, the lease is kept and checked again at the
        next tick."""
        jobs = await self._store.get_jobs([lease.job_id for lease in leases])
        current = [lease for lease in leases if is_current(lease, jobs.get(lease.job_id))]
        taken_back, error = await self._recover([jobs[lease.job_id] for lease in current], now)
        kept = {lease.name for lease in current if lease.job_id not in taken_back}
        if len(current) < len(leases):
            # The jobs of the other leases have already moved on. If that wrote a hold, the process that wrote it may
            # have died before it notified the dispatcher.
            lanes = self._rules.lanes
            holds = await self._store.holds()
            await self._dispatcher.hold([hold for hold in holds if lanes.has(hold.service, hold.band)])
        ended = [lease for lease in leases if lease.name not in kept]
        if ended:
            await self._dispatcher.release([Release(each.name, each.service, scope=each.scope) for each in ended])
        if error is not None:
            raise error

    async def _find_strays(self, now: float) -> None:
        """Take back jobs whose row is RUNNING although there is no lease. This happens, for example, when the reply to
        the write of the start was lost."""
        async with self.rebuilding:
            scopes = self._rules.current.scopes
            before = await self._dispatcher.states(scopes)
            started_before = now - STRAY_AFTER
            rows = [
                j for j in await self._store.running(self._rules.lanes) if (j.call_started_at or 0.0) < started_before
            ]
            if not rows:
                return
            snapshots = await self._dispatcher.snapshot()
            if before != await self._dispatcher.states(scopes) or not all(state.open for state in before.values()):
                return  # another leader rebuilds: the leases are about to be restored
            on_lease = {lease.name for snapshot in snapshots for lease in snapshot.leases}
            # A step that has finished since its row was read is refused by the conditional write.
            await self.recover([job for job in rows if job.lease not in on_lease], now)

    async def recover(self, jobs: Sequence[Job], now: float) -> None:
        """Take back the running steps of these jobs. Raises the database's error if some of them could not be
        written."""
        _, error = await self._recover(jobs, now)
        if error is not None:
            raise error

    async def _recover(self, jobs: Sequence[Job], now: float) -> tuple[Set[str], Unavailable | StoreError | None]:
        """Take back the running steps of these jobs. Returns the ids of the jobs that were taken back, and the error if
        the database could not write the others."""
        moves = [(job, self._recovery(job, now)) for job in jobs]
        if not moves:
            return frozenset(), None
        applied, error = await self._recorder.apply_each(moves, now)
        # Hold before the lease is released, so that the slot is never free in between; and only for jobs that were
        # taken back: the call of one that finished meanwhile is no longer running.
        await self._dispatcher.hold([move.hold for move in applied if move.hold is not None])
        self.queued += len(applied)
        if applied:
            log.warning("recovered %d steps of workers that are gone", len(applied))
        return {move.job_id for move in applied}, error

    def _recovery(self, job: Job, now: float) -> Move:
        rules = self._rules.current
        service = rules.services.get(job.service)
        # The job of an undeclared service waits until the service is declared again.
        max_attempts = service.max_attempts if service is not None else job.attempt + 1
        hold = hold_of(job, now, service.hold) if service is not None and service.remote else None
        return transitions.recover(
            job,
            now=now,
            waits=rules.wait_timeouts,
            max_attempts=max_attempts,
            hold=hold,
        )


def is_current(lease: Lease, job: Job | None) -> bool:
    """Whether the job is still in the state that this lease belongs to: its step is claimed and not yet started, or is
    running on this lease."""
    if job is None:
        return False
    if job.status is JobStatus.PENDING:
        return job.run == lease.run
    return job.status is JobStatus.RUNNING and job.lease == lease.name
