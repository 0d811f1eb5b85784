"""The slots of turns that callers in this process hold: how they are renewed, released and lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.dispatch.port import Lease, Release
from fairlead.domain import transitions, turns
from fairlead.domain.config import ServiceConfig
from fairlead.domain.costs import used_units
from fairlead.domain.job import Job
from fairlead.domain.processes import process_of
from fairlead.domain.usage import Usage
from fairlead.engine.claim_loop import ClaimLoop
from fairlead.engine.parts import EngineParts, RulesRef, ShardSignals
from fairlead.engine.turns.waiters import Waiter

log = logging.getLogger("fairlead.turns")

LEAVE_WITHIN = 3.0
"""Seconds that a caller has to stop using its slot after it was notified of the loss. Then the slot is released."""


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """Leases that this process renews and that were claimed under the same worker name."""

    name: str
    names: Sequence[str]
    lost: Callable[[frozenset[str]], None]

    def leases(self) -> Sequence[str]:
        return self.names


class HeldSlots:
    """The slots on one shard that callers in this process hold."""

    claims: ClaimLoop

    def __init__(self, parts: EngineParts, rules: RulesRef, shard: ShardSignals) -> None:
        self._process = parts.process
        self._config = parts.config
        self._waiters = parts.waiters
        self._store = parts.store
        self._recorder = parts.recorder
        self._clock = parts.clock
        self._rules = rules
        self._shard = shard
        self._held: dict[str, Waiter] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def scope_of(self, service: str) -> str:
        return self._rules.current.services[service].scope

    def timeout_of(self, service: str) -> float:
        """How many seconds a caller may hold a slot of this service."""
        config = self._config.services.get(service)
        return ServiceConfig.model_fields["timeout"].default if config is None else config.timeout

    def hold(self, waiter: Waiter, lease: Lease, job: Job, *, within: float) -> None:
        """Record that the caller holds this slot from now on. After `within` seconds, the slot is taken away."""
        self._shard.lease_acquired()
        self._waiters.keep(waiter)
        waiter.hold(lease, job)
        self._held[lease.name] = waiter
        self._waiters.changed(waiter)
        waiter.timer = asyncio.get_running_loop().call_later(within, self._overran, waiter, job)

    def _lose(self, name: str) -> None:
        """Notify the caller that its lease is lost: the dispatcher no longer has the lease."""
        if (waiter := self._held.pop(name, None)) is not None:
            log.warning("turn %s: the lease %s is lost", waiter.id, name)
            waiter.lose("the lease expired, or was taken back")

    def stop(self, turn_id: str, run: int | None = None) -> None:
        """Stop a turn that was cancelled, has expired or was taken back. If a caller in this process holds the turn's
        slot, the caller is notified that the slot is lost, and the slot is released when the caller has stopped. If the
        caller still waits for a slot, it reads from the database that the turn has ended. With `run`, the turn is
        stopped only if a caller holds its slot in this run."""
        waiter = self._waiters.get(turn_id)
        if waiter is None:
            return
        if waiter.lease is None:
            if run is None:
                self._waiters.forget(waiter)
        elif waiter.lease.name in self._held and run in (None, waiter.job.run):
            self._stop(waiter, "the turn was ended by another caller or an operator")

    def _stop(self, waiter: Waiter, why: str) -> None:
        """Notify the caller that it has lost its slot. The slot stays taken until the caller has stopped using it, but
        at most for `LEAVE_WITHIN` seconds."""
        if waiter.held and not waiter.leaving:
            waiter.lose(why)
            asyncio.get_running_loop().call_later(LEAVE_WITHIN, self.leave, waiter)

    def _overran(self, waiter: Waiter, job: Job) -> None:
        if waiter.held and waiter.job is job:
            self._spawn(self._end_overrun(waiter, job))

    async def _end_overrun(self, waiter: Waiter, job: Job) -> None:
        now, error = self._clock.now(), turns.overran(job, self.timeout_of(job.service))
        waiter.why_lost = error["message"]
        try:
            await self._recorder.record(job, transitions.end_turn(job, "time_out", error, now=now), now)
        finally:
            # Stop even if the database cannot be reached: recovery ends the turn once its lease is gone.
            self._stop(waiter, error["message"])

    async def stop_strays(self) -> None:
        """Stop the turns that hold a slot in this process although another process has ended or adopted them. Usually a
        message stops them; this is for lost messages."""
        own = {waiter.id: waiter for waiter in self._held.values() if waiter.held}
        jobs = await self._store.get_jobs(list(own)) if own else {}
        for turn_id, waiter in own.items():
            job = jobs.get(turn_id)
            if job is not None and job.run == waiter.job.run and process_of(job.turn or "") != self._process:
                self.drop(waiter)
            elif job is None or job.run != waiter.job.run:
                self.stop(turn_id, waiter.job.run)

    def drop(self, waiter: Waiter) -> None:
        """Stop renewing the lease of a turn that another process owns from now on."""
        if waiter.lease is not None:
            self._held.pop(waiter.lease.name, None)
        self._waiters.forget(waiter)

    def leave(self, waiter: Waiter, *, failed: bool | None = None, usage: Usage | None = None) -> None:
        """Release the slot of this turn, because its caller no longer uses it. `usage` is what the caller reported."""
        self._waiters.forget(waiter)
        lease = waiter.lease
        if lease is not None and self._held.pop(lease.name, None) is not None:
            region_failed = failed if lease.region is not None else None
            service = self._rules.current.services.get(lease.service)
            used = None if usage is None or service is None else used_units(usage, service.cost_unit)
            release = Release(lease.name, lease.service, scope=lease.scope, failed=region_failed, used=used)
            self.claims.release(release)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("handing over a turn failed; its lease will expire", exc_info=error)
