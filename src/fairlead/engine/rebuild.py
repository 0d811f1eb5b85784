"""Rebuilds scopes of the dispatcher from the database: raises the epoch, restores running steps, holds and waiting
jobs, and only then lets the dispatcher grant slots.

Once the epoch is raised, the database refuses starts of older epochs. Reading the running steps after that therefore
misses none. Another leader may begin a rebuild at any time: its epoch is higher, and the dispatcher then ignores this
rebuild.

`EnsureBuiltLoop` rebuilds a scope whenever its state in the dispatcher does not match the database: when the dispatcher
is new or has lost data, when a rebuild was left unfinished, and when the dispatcher's server is not the one on which
the scope was built. The last case occurs after a fail-over: a replica that took over may lack the newest leases,
however complete it looks. Operators can also request a rebuild.

When a service moves to another scope (a pool, a shard), the write of its declaration raises the epochs of the scopes
that it leaves and enters, so these scopes no longer match. A scope without services is closed for good; the others are
rebuilt with the jobs that belong to them now (docs/adr/0016).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Set

from fairlead import failpoints
from fairlead.dispatch.port import Dispatcher, Lease, ScopeState
from fairlead.domain.job import Job
from fairlead.domain.rules import Lanes, Rules
from fairlead.engine.clock import Clock
from fairlead.engine.loops.recover import RecoverLoop
from fairlead.engine.outbox_relay import offer_of
from fairlead.engine.parts import RulesRef, ShardSignals
from fairlead.engine.spent_calls import calls_since, longest_window, spent_of
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Done, Epoch, RaiseEpoch, Store

log = logging.getLogger("fairlead.rebuild")

BATCH = 1000
LOG_EVERY = 100_000
EVERY = 0.5
SOON = 0.05


class Rebuild:
    """Rebuilds scopes of one dispatcher. `workers_are_gone`: the dispatcher is in the memory of this process, which
    holds the dispatch lock, so all workers of earlier processes are gone (docs/adr/0003). The first time that such a
    process builds a scope, it recovers the running steps of the scope at once. In all other cases the leases of running
    steps are restored with a full TTL, for their workers to renew."""

    def __init__(
        self,
        store: Store,
        group_commit: GroupCommit,
        dispatcher: Dispatcher,
        recovery: RecoverLoop,
        clock: Clock,
        *,
        workers_are_gone: bool,
    ) -> None:
        self._store = store
        self._group_commit = group_commit
        self._dispatcher = dispatcher
        self._recovery = recovery
        self._clock = clock
        self._workers_are_gone = workers_are_gone
        self._built: set[str] = set()
        """The services whose running steps this process has recovered or restored."""
        self.restored = 0
        self.count = 0

    async def run(self, rules: Rules, lanes: Lanes, servers: Mapping[str, str]) -> bool:
        """Rebuild the scopes that are the keys of `servers`; the values name the server of each scope. Returns False if
        another rebuild has begun or the rules have changed."""
        self.restored = 0
        async with self._recovery.rebuilding:
            epochs: dict[str, int] = {}
            for scope in sorted(servers):
                epoch = await self.raise_epoch(scope, servers[scope], rules)
                if epoch is None:
                    return False
                epochs[scope] = epoch
            for scope, epoch in epochs.items():
                if not await self._dispatcher.close_scope(scope, epoch):
                    return False
            if not await self._restore_slots(rules, lanes, epochs):
                return False
            failpoints.passed(failpoints.MID_REBUILD)
            await self._restore_waiting(rules, lanes, epochs)
            # Restore all scopes before opening the first: a step granted in one scope must not be restored in another.
            for scope, epoch in epochs.items():
                if not await self._dispatcher.open_scope(scope, epoch):
                    return False
        self.count += 1
        if self.restored:
            log.info("the queue is rebuilt: %d jobs wait", self.restored)
        return True

    async def raise_epoch(self, scope: str, server: str, rules: Rules) -> int | None:
        """Raise the epoch of a scope. Returns None if `rules` are outdated. A leader with outdated rules must not
        reopen a scope that a service has left: the old and the new scope of the service would then both grant its
        slots."""
        outcome = await self._group_commit.write(RaiseEpoch(scope, server, rules.version))
        return int(outcome.value) if isinstance(outcome, Done) else None

    async def _restore_slots(self, rules: Rules, lanes: Lanes, epochs: Mapping[str, int]) -> bool:
        running = [job for job in await self._store.running(lanes) if rules.scope_of(job.service) in epochs]
        if self._workers_are_gone:
            lost = [job for job in running if job.service not in self._built]
            await self._recovery.recover(lost, self._clock.now())
            running = [job for job in running if job.service in self._built]
            self._built.update(name for name, service in rules.services.items() if service.scope in epochs)
        holds = [hold for hold in await self._store.holds() if lanes.has(hold.service, hold.band)]
        for scope, epoch in epochs.items():
            own = [job for job in running if rules.scope_of(job.service) == scope]
            leases = [lease_of(job, offer_of(job, rules.services).cost) for job in own]
            held = [hold for hold in holds if rules.scope_of(hold.service) == scope]
            if not await self._dispatcher.restore(scope, epoch, leases, held):
                return False
        return await self._restore_spent(rules, epochs)

    async def _restore_spent(self, rules: Rules, epochs: Mapping[str, int]) -> bool:
        """Let the rates count the calls that have ended within their windows. Read after the running steps, so that a
        call which ends in between is counted at least once."""
        longest = longest_window(rules, epochs)
        if not longest:
            return True
        calls = await calls_since(self._store, self._clock.now() - longest)
        for scope, epoch in epochs.items():
            own = [call for call in calls if rules.scope_of(call.service) == scope]
            for first in range(0, len(own), BATCH):
                spent = await spent_of(self._store, own[first : first + BATCH], rules)
                if not await self._dispatcher.restore_spent(scope, epoch, spent):
                    return False
        return True

    async def _restore_waiting(self, rules: Rules, lanes: Lanes, epochs: Mapping[str, int]) -> None:
        undeclared: set[str] = set()
        async for jobs in self._store.waiting(BATCH, lanes):
            offers = [offer_of(job, rules.services) for job in jobs if rules.scope_of(job.service) in epochs]
            if offers:
                await self._dispatcher.offer(offers)
            undeclared.update({offer.service for offer in offers} - rules.services.keys())
            self._progress(len(offers))
            await asyncio.sleep(0)  # let requests be answered
        for service in sorted(undeclared):
            log.warning(
                "jobs wait for the service %s, which is no longer configured; they wait until it is configured again",
                service,
            )

    def _progress(self, count: int) -> None:
        before, self.restored = self.restored, self.restored + count
        if before // LOG_EVERY != self.restored // LOG_EVERY:
            log.info("rebuilding the queue: %d waiting jobs restored", self.restored)


def lease_of(job: Job, cost: float | None = None) -> Lease:
    """The lease of a running step, for the dispatcher to restore with a full TTL. `cost` is the estimate of the step in
    the service's unit."""
    return Lease(
        name=job.lease or "",
        job_id=job.id,
        step=job.step,
        run=job.run - 1,  # the run that was claimed: the start has raised it
        service=job.service,
        user_id=job.user_id,
        worker=job.worker or "",
        granted_at=job.call_started_at or 0.0,
        expires_at=0.0,
        region=job.call_region,
        weight=job.weight,
        band=job.priority.band,
        cost=cost,
        group=job.group,
        plan=job.plan,
    )


class EnsureBuiltLoop:
    name = "scopes"

    def __init__(
        self, store: Store, dispatcher: Dispatcher, rebuild: Rebuild, rules: RulesRef, shard: ShardSignals
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._rules = rules
        self._shard = shard
        self.rebuild = rebuild
        self.built = False
        self.first_built = asyncio.Event()
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        rules, lanes = self._rules.current, self._rules.lanes
        # Read the database first, then the dispatcher: if another leader rebuilds in between, the dispatcher has a
        # later epoch and is rebuilt once more, which is harmless.
        epochs = await self._store.epochs()
        known = await self._dispatcher.known_scopes()
        used = rules.scopes | {scope for scope in known | epochs.keys() if rules.is_undeclared(scope)}
        states = await self._dispatcher.states(used | known)
        self.scanned += len(states)
        stale = {scope for scope in used if not _matches(states[scope], epochs.get(scope))}
        left = {scope for scope in known - used if not _is_closed(states[scope], epochs.get(scope))}
        if stale or left:
            if (await self._store.rules()).version != rules.version:
                self._shard.rules_outdated()
                return now + SOON
            if not await self._build(rules, lanes, states, stale, await self._close(left, rules, states, epochs)):
                self._shard.rules_outdated()
                return now + EVERY
            self.queued += len(stale)
            self._shard.rules_outdated()  # the database names another server now
        self.built = True
        self.first_built.set()
        return now + EVERY

    async def _close(
        self, left: Set[str], rules: Rules, states: Mapping[str, ScopeState], epochs: Mapping[str, Epoch]
    ) -> Set[str]:
        """Close the scopes in `left`, which no service uses any more. From then on the dispatcher refuses jobs offered
        to these scopes, and the outbox keeps such jobs. A rebuild of the other scopes therefore finds every job that
        was queued in a closed scope. Returns the scopes that may lack such jobs and must be rebuilt: all scopes in use
        if an older release moved the services, otherwise none."""
        await self._dispatcher.configure(rules)
        await self._shard.configure_others()
        stale: Set[str] = frozenset()
        for scope in sorted(left):
            state, epoch = states[scope], epochs.get(scope)
            number = epoch.number if epoch is not None else state.epoch or 0
            if _matches(state, epoch):
                # An older release, which did not raise epochs, moved the services out of this scope. The scopes in use
                # may therefore lack jobs that were queued here.
                number = await self.rebuild.raise_epoch(scope, state.server, rules) or number
                stale = rules.scopes
            log.info("closing %s: no service uses it any more", scope)
            await self._dispatcher.close_scope(scope, number)
        return stale

    async def _build(
        self, rules: Rules, lanes: Lanes, states: Mapping[str, ScopeState], stale: Set[str], also: Set[str]
    ) -> bool:
        servers = {scope: states[scope].server for scope in stale | also}
        if not servers:
            return True
        level = logging.WARNING if self.built else logging.INFO
        if lost := sorted(scope for scope in servers if states[scope].lost):
            log.log(level, "the dispatcher has lost some of the data of %s", ", ".join(lost))
        log.log(level, "rebuilding the queue of %s from the database", ", ".join(sorted(servers)))
        self.built = False
        if not await self.rebuild.run(rules, lanes, servers):
            log.warning("another rebuild has begun, or the rules have changed; giving this one up")
            return False
        return True


def _is_closed(state: ScopeState, epoch: Epoch | None) -> bool:
    """Whether the scope was closed and no service has used it since. A scope whose epoch was raised after it was closed
    does not count as closed, because a service may have entered and left it."""
    return not state.open and (epoch is None or state.epoch == epoch.number)


def _matches(state: ScopeState, epoch: Epoch | None) -> bool:
    if epoch is None or epoch.rebuild_asked or not state.open:
        return False
    return state.epoch == epoch.number and state.server == epoch.server
