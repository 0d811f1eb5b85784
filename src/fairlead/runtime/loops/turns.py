"""Ends the turns of processes that are gone: nobody waits there any more, and nobody does the work. Callers outside did
not end with the gateway that they asked: they have time to come back at another."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fairlead.dispatch.port import Dispatcher, Release
from fairlead.domain import transitions, turns
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.limits import Lanes, Rules
from fairlead.domain.processes import process_of
from fairlead.domain.transitions import Move
from fairlead.runtime.record import Recorder
from fairlead.store.port import Store

log = logging.getLogger(__name__)

EVERY = 1.0
SURE_AFTER = 3.0
"""Seconds: after an outage of the store all seem silent, and need a moment to announce themselves again."""
BATCH = 1000


class TurnsLoop:
    """`alone`: the one process that can have turns, as the line is in its memory."""

    name = "turns"

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        recorder: Recorder,
        rules: Callable[[], Rules],
        lanes: Callable[[], Lanes],
        *,
        alone: str | None,
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._recorder = recorder
        self._rules = rules
        self._lanes = lanes
        self._alone = alone
        self._silent_since: dict[str, float] = {}
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        owners = await self._store.turn_owners()
        gone, silent = await self._gone(owners) if owners else (set(), set())
        self._silent_since = {owner: self._silent_since.get(owner, now) for owner in silent}
        more = False
        for owner in sorted(gone):
            more |= await self._end(owner, now, certain=True)
        for owner, since in sorted(self._silent_since.items()):
            if now - since >= (turns.UNHEARD_AFTER if turns.is_outside(owner) else SURE_AFTER):
                more |= await self._end(owner, now, certain=False)
        return now if more else now + EVERY

    async def _gone(self, owners: list[str]) -> tuple[set[str], set[str]]:
        """Those that are gone for certain, and those that were not heard of for too long."""
        if self._alone is not None:
            return {owner for owner in owners if process_of(owner) != self._alone}, set()
        moment = await self._store.now()
        known = {record.name: record for record in await self._store.processes()}
        records = {owner: known.get(process_of(owner)) for owner in owners}
        left = {owner for owner, record in records.items() if record is None or record.gone}
        gone = {owner for owner in left if not turns.is_outside(owner)}
        silent = {owner for owner, record in records.items() if record is None or not record.alive(moment)}
        return gone, silent - gone

    async def _end(self, owner: str, now: float, *, certain: bool) -> bool:
        """True: there are more. Who holds a slot, and may only be cut off, keeps it until its lease expires."""
        found = await self._store.turns_of(owner, BATCH)
        self.scanned += len(found)
        lanes = self._lanes()
        jobs = [job for job in found if lanes.has(job.service, job.priority.band)]
        moves = [(job, move) for job in jobs if (move := self._ending(job, now, certain=certain)) is not None]
        applied = {move.job_id for move in await self._recorder.apply_each(moves, now)} if moves else set()
        if applied:
            log.warning("ended %d turns of %s, which is gone", len(applied), owner)
        self.queued += len(applied)
        services = self._rules().services
        slots = [
            Release(job.lease, job.service, scope=services[job.service].scope)
            for job in jobs
            if job.id in applied and job.lease is not None and job.service in services
        ]
        if slots:
            await self._dispatcher.release(slots)
        return len(found) == BATCH and bool(applied)

    def _ending(self, job: Job, now: float, *, certain: bool) -> Move | None:
        if job.status is JobStatus.RUNNING:
            return transitions.end_turn(job, "recover", turns.holder_died(job), now=now) if certain else None
        return transitions.end_turn(job, "fail", turns.waiter_gone(job), now=now)
