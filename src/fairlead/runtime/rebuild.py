"""Makes the dispatcher anew from the truth, scope by scope: the epoch is raised, then running steps, holds and lines
come back, and only then is anything granted.

A start of an older epoch is refused from the moment on at which the epoch is raised, so what the truth says of running
steps after it is all there is. Another leader may begin a later rebuild at any time: its epoch is higher, and this one
then changes nothing more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from fairlead.dispatch.port import Dispatcher, Lease
from fairlead.domain.job import Job
from fairlead.domain.limits import Lanes, Rules
from fairlead.runtime import failpoints
from fairlead.runtime.clock import Clock
from fairlead.runtime.loops.recover import RecoverLoop
from fairlead.runtime.relay import offer_of
from fairlead.store.journal import Journal
from fairlead.store.port import Done, RaiseEpoch, Store

log = logging.getLogger(__name__)

BATCH = 1000
SAY_EVERY = 100_000


class Rebuild:
    """`workers_are_gone`: a dispatcher in memory dies with its process, and whoever holds the dispatch lock knows that
    every worker of the earlier process is gone (docs/adr/0003). Then running steps of a scope that this process has not
    built yet are recovered at once; else their leases come back with a full TTL, for their workers to renew."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        dispatcher: Dispatcher,
        recovery: RecoverLoop,
        clock: Clock,
        *,
        workers_are_gone: bool,
    ) -> None:
        self._store = store
        self._journal = journal
        self._dispatcher = dispatcher
        self._recovery = recovery
        self._clock = clock
        self._workers_are_gone = workers_are_gone
        self._built: set[str] = set()
        self.restored = 0
        self.count = 0

    async def run(self, rules: Rules, lanes: Lanes, servers: Mapping[str, str]) -> bool:
        """Of the scopes in `servers`, which names the server that each is on. False: another rebuild has begun."""
        self.restored = 0
        async with self._recovery.rebuilding:
            epochs = {scope: await self._raise_epoch(scope, servers[scope]) for scope in sorted(servers)}
            for scope, epoch in epochs.items():
                if not await self._dispatcher.close_scope(scope, epoch):
                    return False
            if not await self._restore_slots(rules, lanes, epochs):
                return False
            failpoints.passed(failpoints.MID_REBUILD)
            await self._restore_lines(rules, lanes, epochs)
            # All of them are restored before the first is opened: what is granted in one must not be named as what is
            # yet to come back in another.
            for scope, epoch in epochs.items():
                if not await self._dispatcher.open_scope(scope, epoch):
                    return False
                self._built.add(scope)
        self.count += 1
        if self.restored:
            log.info("the line is rebuilt: %d jobs wait", self.restored)
        return True

    async def _raise_epoch(self, scope: str, server: str) -> int:
        outcome = await self._journal.write(RaiseEpoch(scope, server))
        assert isinstance(outcome, Done)
        return int(outcome.value)

    async def _restore_slots(self, rules: Rules, lanes: Lanes, epochs: Mapping[str, int]) -> bool:
        scope_of = {name: service.scope for name, service in rules.services.items()}
        running = [job for job in await self._store.running(lanes) if scope_of.get(job.service) in epochs]
        if self._workers_are_gone:
            lost = [job for job in running if scope_of[job.service] not in self._built]
            await self._recovery.recover(lost, self._clock.now())
            running = [job for job in running if scope_of[job.service] in self._built]
        holds = [hold for hold in await self._store.holds() if lanes.has(hold.service, hold.band)]
        for scope, epoch in epochs.items():
            leases = [lease_of(job) for job in running if scope_of[job.service] == scope]
            held = [hold for hold in holds if scope_of.get(hold.service) == scope]
            if not await self._dispatcher.restore(scope, epoch, leases, held):
                return False
        return True

    async def _restore_lines(self, rules: Rules, lanes: Lanes, epochs: Mapping[str, int]) -> None:
        undeclared: set[str] = set()
        elsewhere = {name for name, service in rules.services.items() if service.scope not in epochs}
        async for jobs in self._store.waiting(BATCH, lanes):
            offers = [offer_of(job, rules.services) for job in jobs if job.service not in elsewhere]
            if offers:
                await self._dispatcher.offer(offers)
            undeclared.update({offer.service for offer in offers} - rules.services.keys())
            self._progress(len(offers))
            await asyncio.sleep(0)  # requests are answered meanwhile
        for service in sorted(undeclared):
            log.warning(
                "jobs wait for the service %s, which is not configured any more; they wait until it is", service
            )

    def _progress(self, count: int) -> None:
        before, self.restored = self.restored, self.restored + count
        if before // SAY_EVERY != self.restored // SAY_EVERY:
            log.info("rebuilding the line: %d waiting jobs restored", self.restored)


def lease_of(job: Job) -> Lease:
    """The lease that a running step stands for; the dispatcher gives it a full TTL."""
    return Lease(
        name=job.lease or "",
        job_id=job.id,
        step=job.step,
        run=job.run - 1,  # the one that was claimed: the start has raised it
        service=job.service,
        user_id=job.user_id,
        worker=job.worker or "",
        granted_at=job.call_started_at or 0.0,
        expires_at=0.0,
        region=job.call_region,
        weight=job.weight,
        band=job.priority.band,
    )
