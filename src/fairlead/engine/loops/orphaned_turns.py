"""Handles the turns of processes that are gone (docs/adr/0024). Waiting turns are set aside, so that their callers can
take them up in another process. Turns that hold a slot are ended. A caller over HTTP outlives its gateway, so its turn
keeps the slot until the lease expires."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from fairlead.dispatch.port import Dispatcher, Release
from fairlead.domain import transitions, turns
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.processes import process_of
from fairlead.domain.transitions import Move
from fairlead.engine.parts import RulesRef
from fairlead.engine.transition_writer import Applied, TransitionWriter
from fairlead.store.port import Store

log = logging.getLogger("fairlead.turns")

EVERY = 1.0
SURE_AFTER = 3.0
"""Seconds for which an owner must be silent before its turns are moved. After an outage of the store all processes seem
silent until they register again. Callers over HTTP also have this time to reconnect to another gateway before their
turns leave the queue."""
BATCH = 1000


class OrphanedTurnsLoop:
    """Sets aside or ends turns whose owner, the process of their caller, is gone. `alone`: the name of this process if
    it is the only one that can have turns, because it dispatches from memory. `grace`: seconds for which a turn that is
    set aside keeps its place in the queue."""

    name = "turns"

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        recorder: TransitionWriter,
        rules: RulesRef,
        *,
        grace: float,
        alone: str | None,
        timer: Callable[[], float] = lambda: asyncio.get_running_loop().time(),
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._recorder = recorder
        self._rules = rules
        self._grace = grace
        self._alone = alone
        self._timer = timer
        self._silent_since: dict[str, float] = {}
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        owners = await self._store.turn_owners()
        gone, silent = await self._gone(owners) if owners else (set(), set())
        # Measured on the monotonic clock: if the database's clock is set forward, all processes seem silent for a
        # moment.
        time = self._timer()
        self._silent_since = {owner: self._silent_since.get(owner, time) for owner in silent}
        more = False
        for owner in sorted(gone):
            more |= await self._move(owner, now, certain=True)
        for owner, since in sorted(self._silent_since.items()):
            if time - since >= SURE_AFTER:
                more |= await self._move(owner, now, certain=False)
        return now if more else now + EVERY

    async def _gone(self, owners: list[str]) -> tuple[set[str], set[str]]:
        """Return two disjoint sets of owners: those that are certainly gone, and those without a live registration. The
        owner of an outside caller's turn is certainly gone only if no process but this one can have turns (`alone`)."""
        if self._alone is not None:
            return {owner for owner in owners if process_of(owner) != self._alone}, set()
        moment = await self._store.now()
        known = {record.name: record for record in await self._store.processes()}
        records = {owner: known.get(process_of(owner)) for owner in owners}
        left = {owner for owner, record in records.items() if record is None or record.gone}
        gone = {owner for owner in left if not turns.is_outside(owner)}
        silent = {owner for owner, record in records.items() if record is None or not record.alive(moment)}
        return gone, silent - gone

    async def _move(self, owner: str, now: float, *, certain: bool) -> bool:
        """Set aside the waiting turns of this owner, and end its turns that hold a slot. Returns True if the owner has
        more turns. If it is not `certain` that the owner is gone, turns that hold a slot are left alone until their
        leases expire."""
        rows = await self._store.turns_of(owner, BATCH)
        self.scanned += len(rows)
        lanes = self._rules.lanes
        jobs = [job for job in rows if lanes.has(job.service, job.priority.band)]
        moves = [(job, move) for job in jobs if (move := self._move_of(job, now, certain=certain)) is not None]
        moved, error = await self._recorder.apply_each(moves, now) if moves else Applied([])
        applied = {move.job_id for move in moved}
        if applied:
            log.warning("set aside or ended %d turns of %s, which is gone", len(applied), owner)
        self.queued += len(applied)
        services = self._rules.current.services
        slots = [
            Release(job.lease, job.service, scope=services[job.service].scope)
            for job in jobs
            if job.id in applied and job.lease is not None and job.service in services
        ]
        if slots:
            await self._dispatcher.release(slots)
        if error is not None:
            raise error
        return len(rows) == BATCH and bool(applied)

    def _move_of(self, job: Job, now: float, *, certain: bool) -> Move | None:
        if job.status is JobStatus.PENDING:
            return turns.set_aside(job, turns.waiter_gone(job), now=now, grace=self._grace)
        return transitions.end_turn(job, "recover", turns.holder_died(job), now=now) if certain else None
