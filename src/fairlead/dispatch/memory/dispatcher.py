"""The operations of the in-memory dispatcher. No operation suspends, so each is atomic.

Suggested reading order: `offer`; then `exchange` with `_release`, `_claim` and `_grant`; then `_announce`, with which
every operation ends.
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace

from fairlead.dispatch.database_clock import by_database
from fairlead.dispatch.memory.claim_sources import PoolSource, ServiceSource, WaitingWorkers
from fairlead.dispatch.memory.costs import stated_cost
from fairlead.dispatch.memory.fair_queue import BAND, COST, JOB, PLAN, RUN, SERVICE, STEP, USER, Entry, order_key
from fairlead.dispatch.memory.leases import Leases
from fairlead.dispatch.memory.positions import positions
from fairlead.dispatch.memory.rate_operations import RateOperations
from fairlead.dispatch.memory.service import Pick, Service
from fairlead.dispatch.memory.snapshot import snapshot
from fairlead.dispatch.memory.topology import Topology, Wakeups
from fairlead.dispatch.port import (
    Claim,
    Lease,
    Offer,
    Promotion,
    Release,
    Renewal,
    ScopeState,
    ServiceSnapshot,
    Unserved,
    Wake,
    Withdrawal,
)
from fairlead.domain.fair_share import SECOND, QueuePosition, micros
from fairlead.domain.job import Hold
from fairlead.domain.rules import BANDS, Rules


class MemoryDispatcher(RateOperations):
    """Implements `Dispatcher` in memory. `clock` decides when leases, rests and holds end. `database` is the clock of
    the database, by which the times of holds and restored leases are given; by default it is `clock`. Both return
    seconds.

    `server` is the identity of the dispatcher. By default it is random, so that no other process and no later start of
    this process has the same identity.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        database: Callable[[], float] | None = None,
        server: str | None = None,
    ) -> None:
        self._clock = clock
        self._database = database or clock
        self._server = server or f"memory/{secrets.token_hex(16)}"
        self._wake: Wake | None = None
        self._topology = Topology()
        self._services = self._topology.services
        self._entries: dict[str, Entry] = {}
        """Every waiting step, by job."""
        self._leases = Leases()
        self._next_hold_end = math.inf
        self._next_rest_end = math.inf
        self._rebuilding: set[str] = set()
        self._rebuilds = 0
        self._workers = WaitingWorkers()
        self._wakeups = Wakeups(self._services, self._topology.timer)

    async def start(self) -> None: ...

    async def close(self) -> None:
        self._disarm()

    async def reconnect(self) -> None: ...

    def on_wake(self, wake: Wake) -> None:
        self._wake = wake

    # -- queue ----------------------------------------------------------------------------------------------------

    async def offer(self, offers: Sequence[Offer]) -> int:
        newer = sum(map(self._offer, offers))
        self._announce()
        return newer

    def _offer(self, offer: Offer) -> bool:
        job_id, run = offer.job_id, offer.run
        queued = self._entries.get(job_id)
        if (queued is not None and queued[RUN] >= run) or self._leases.has_run(job_id, run):
            return False
        service = self._topology.service(offer.service)
        user = service.user(offer.user_id, offer.weight)
        if moves := offer.group != user.group:
            service.place(user, offer.group)
        entry = (
            order_key(offer.rank, offer.seq, fifo=service.fifo),
            job_id,
            user.user_id,  # one string object for all steps of the user; likewise the name
            service.name,
            offer.band,
            offer.rank,
            offer.step,
            run,
            stated_cost(offer.cost),
            offer.region,
            offer.plan,
        )
        service.join(entry, user)
        if queued is not None:
            # Remove the old entry after adding the new one, so that a user with only this step waiting does not
            # re-enter the band.
            self._leave(queued)
        self._entries[job_id] = entry
        # A full group or a rate may hold the step back.
        if moves or service.rates is not None or not service.runnable or service.name in self._wakeups.unmet:
            self._wakeups.touch(service)
        return True

    def _leave(self, entry: Entry) -> None:
        service = self._services[entry[SERVICE]]
        service.leave(entry)
        service.forget_if_idle(entry[USER])
        self._wakeups.touch(service)

    async def missing(self, offers: Sequence[Offer]) -> list[Offer]:
        return [offer for offer in offers if not self._has(offer)]

    async def check(self) -> list[str]:
        return []

    def _has(self, offer: Offer) -> bool:
        entry = self._entries.get(offer.job_id)
        if entry is not None and entry[RUN] >= offer.run:
            return True
        return self._leases.has_run(offer.job_id, offer.run)

    async def withdraw(self, withdrawals: Sequence[Withdrawal]) -> int:
        removed = 0
        for withdrawal in withdrawals:
            entry = self._entries.get(withdrawal.job_id)
            if entry is not None and entry[RUN] <= withdrawal.run:
                del self._entries[withdrawal.job_id]
                self._leave(entry)
                removed += 1
        self._announce()
        return removed

    async def promote(self, promotions: Sequence[Promotion]) -> int:
        moved = sum(map(self._promote, promotions))
        self._announce()
        return moved

    def _promote(self, promotion: Promotion) -> bool:
        entry = self._entries.get(promotion.job_id)
        if entry is None or entry[RUN] > promotion.run:
            return False
        if entry[RUN] == promotion.run and entry[BAND] == promotion.band:
            return False
        service = self._services[entry[SERVICE]]
        key, job_id, user_id, name, _, rank, step, _, cost, region, plan = entry
        raised = (key, job_id, user_id, name, promotion.band, rank, step, promotion.run, cost, region, plan)
        self._entries[job_id] = raised
        service.join(raised, service.users[user_id])
        self._leave(entry)
        return True

    # -- slots ---------------------------------------------------------------------------------------------------

    async def exchange(self, claim: Claim, releases: Sequence[Release] = ()) -> list[Lease]:
        now = self._clock()
        for release in releases:
            self._release(release, now)
        self._end_due(now)
        leases: list[Lease] = []
        self._announce(self._claim(claim, now, leases))
        if len(claim.bands) < len(BANDS) and len(leases) < claim.budget:
            self._wakeups.found_nothing(claim)
        return leases

    async def release(self, releases: Sequence[Release]) -> None:
        now = self._clock()
        for release in releases:
            self._release(release, now)
        self._announce()

    def _release(self, release: Release, now: float) -> None:
        service = self._services.get(release.service)
        lease = None if service is None else service.release(release, now)
        if service is not None and lease is not None:
            self._leases.forget(lease)
            if release.failed:
                self._next_rest_end = min(self._next_rest_end, service.end_rests(micros(now)) / SECOND)
            self._wakeups.touch_counted(service)

    def _end_due(self, now: float) -> None:
        """End the holds and rests whose time is over, and drop what rates no longer count."""
        if now >= self._rates_due:
            self._advance_rates(now)
        if now >= self._next_hold_end:
            self._end_holds(now)
        if now >= self._next_rest_end:
            self._end_rests(now)

    def _end_rests(self, now: float) -> None:
        self._next_rest_end = math.inf
        for service in self._services.values():
            if service.breakers:
                self._next_rest_end = min(self._next_rest_end, service.end_rests(micros(now)) / SECOND)
                self._wakeups.touch(service)

    def _claim(self, claim: Claim, now: float, leases: list[Lease]) -> Set[str]:
        """Grant one step from each service or pool in turn, until the budget is used up or no step is left. Adds the
        granted leases to `leases`.

        Returns the services whose workers must be woken, even those that were runnable before the claim: each service
        with a granted step; each service for which a slot of its pool was reserved, because another worker has to run
        the step; and all of `claim.services`, if steps were granted and this worker will not wait for more.
        """
        worker = self._workers.seen(claim, now)
        sources = self._workers.sources(worker, self._services, self._wakeups.may_grant(claim), now)
        remaining = deque(sources)
        filtered = claim.turns or claim.only is not None
        while remaining and len(leases) < claim.budget:
            source = remaining.popleft()
            candidate = source.next()
            if candidate is not None and (not filtered or claim.admits(candidate[0].job_at(candidate[1]))):
                leases.append(self._grant(*candidate, claim.worker, now))
                worker.last_source = source.name
                remaining.append(source)
        worker.spare = max(0, claim.budget - len(leases)) if claim.waits else 0
        reserved = self._reserved_for_others(sources)
        if leases and not worker.spare:
            return claim.services | reserved if reserved else claim.services
        return reserved.union([lease.service for lease in leases])

    def _reserved_for_others(self, sources: list[ServiceSource | PoolSource]) -> frozenset[str]:
        """The services for whose workers this claim reserved slots of a pool."""
        left: frozenset[str] = frozenset()
        for source in sources:
            if isinstance(source, PoolSource) and source.reserved:
                self._wakeups.pass_over(source.pool, source.passed_over())
                left = left.union([service.name for service in source.reserved])
        return left

    def _grant(self, service: Service, pick: Pick, worker: str, now: float) -> Lease:
        band, _, _, region = pick
        entry, user, estimate, charged = service.take(pick)
        job_id = entry[JOB]
        del self._entries[job_id]
        lease = Lease(
            self._leases.new_name(service.scope.epoch), job_id, entry[STEP], entry[RUN], service.name, user.user_id,
            worker, now, now + service.rules.lease_ttl, region, charged, user.weight, band, service.scope.name,
        )  # fmt: skip
        if service.pool is not None:
            service.pool.granted(band, service, region, estimate)
        rates, cost = service.rates, entry[COST]
        held = None if rates is None else rates.granted(user, region, cost, entry[PLAN])
        service.keep(lease, estimate, cost, held)
        self._leases.keep(lease)
        self._wakeups.touch_counted(service)
        return lease

    # -- heartbeats and holds ------------------------------------------------------------------------------------

    def renew(self, worker: str, leases: Sequence[str]) -> Renewal:
        # Called from another thread, so it relies on single reads and writes, which are atomic. Leases are reported as
        # lost only if no rebuild began or ended in the meantime.
        rebuilds, now = self._rebuilds, self._clock()
        lost = set()
        for name in leases:
            lease = self._leases.by_name.get(name)
            if lease is None or lease.worker != worker:
                lost.add(name)
            else:
                lease.expires_at = now + self._services[lease.service].rules.lease_ttl
        if self._rebuilding or self._rebuilds == 0 or self._rebuilds != rebuilds:
            return Renewal(rebuilding=True)
        return Renewal(frozenset(lost))

    async def expire(self, leases: Sequence[Lease]) -> None:
        now = self._clock()
        for lease in leases:
            if (kept := self._leases.by_name.get(lease.name)) is not None:
                kept.expires_at = now

    async def expired(self) -> list[Lease]:
        return self._leases.expired(self._clock())

    async def hold(self, holds: Sequence[Hold]) -> None:
        self._keep_holds(holds)
        self._announce()

    def _ahead(self) -> float:
        """How many seconds the dispatcher's clock is ahead of the database's clock."""
        return self._clock() - self._database()

    def _keep_holds(self, holds: Sequence[Hold]) -> None:
        now, ahead = self._clock(), self._ahead()
        for hold in holds:
            service, ends_at = self._topology.service(hold.service), hold.until + ahead
            key = hold.id or f"{hold.job_id}:{hold.until}"
            if ends_at > now and key not in service.holds:
                service.hold(key, hold, ends_at)
                self._next_hold_end = min(self._next_hold_end, ends_at)
                self._wakeups.touch(service)

    async def end_holds(self, now: float | None = None) -> int:
        ended = self._end_holds(self._clock() if now is None else now + self._ahead())
        self._advance_rates(self._clock())
        self._announce()
        return ended

    def _end_holds(self, now: float) -> int:
        ended = 0
        self._next_hold_end = math.inf
        for service in self._services.values():
            for key, (_, ends_at) in list(service.holds.items()):
                if ends_at <= now:
                    service.end_hold(key)
                    self._wakeups.touch(service)
                    ended += 1
                else:
                    self._next_hold_end = min(self._next_hold_end, ends_at)
        return ended

    # -- queries -------------------------------------------------------------------------------------------------

    async def positions(self, job_ids: Sequence[str], unserved: Unserved = frozenset()) -> dict[str, QueuePosition]:
        by_service: dict[str, list[Entry]] = {}
        for job_id in dict.fromkeys(job_ids):
            entry = self._entries.get(job_id)
            if entry is not None and self._services[entry[SERVICE]].scope.open:
                by_service.setdefault(entry[SERVICE], []).append(entry)
        now = self._clock()
        if now >= self._next_rest_end:
            self._end_rests(now)
            self._announce()
        result: dict[str, QueuePosition] = {}
        for name, entries in by_service.items():
            result |= positions(self._services[name], entries, now, unserved)
        return result

    async def snapshot(self, services: Sequence[str] | None = None, *, users: bool = False) -> list[ServiceSnapshot]:
        self._end_due(self._clock())
        self._announce()
        names = sorted(self._services if services is None else self._services.keys() & set(services))
        return by_database([snapshot(self._services[name], users=users) for name in names], self._ahead())

    # -- rules ---------------------------------------------------------------------------------------------------

    async def configure(self, rules: Rules) -> None:
        for entry in self._topology.configure(rules):
            self._entries[entry[JOB]] = entry
        for service in self._services.values():
            self._wakeups.touch(service)
        self._announce()

    # -- rebuilding ----------------------------------------------------------------------------------------------

    async def states(self, scopes: Iterable[str]) -> dict[str, ScopeState]:
        known = self._topology.scopes
        return {
            scope: ScopeState(known[scope].epoch, known[scope].open, self._server)
            if scope in known
            else ScopeState(None, False, self._server)
            for scope in scopes
        }

    async def known_scopes(self) -> frozenset[str]:
        return frozenset(service.scope.name for service in self._services.values())

    async def close_scope(self, scope: str, epoch: int) -> bool:
        closed = self._topology.scope(scope)
        if closed.epoch is not None and epoch < closed.epoch:
            return False
        self._rebuilding.add(scope)
        self._rebuilds += 1
        closed.epoch, closed.open = epoch, False
        for service in self._topology.services_of(scope):
            for entry in service.entries():
                del self._entries[entry[JOB]]
            for lease, *_ in service.leases.values():
                self._leases.forget(lease)
            service.clear()
            service.take_rules(service.rules)
            self._wakeups.touch(service)
        self._topology.clear_pool(scope)
        self._announce()
        return True

    async def restore(self, scope: str, epoch: int, leases: Sequence[Lease], holds: Sequence[Hold]) -> bool:
        if not self._is_rebuilding(scope, epoch):
            return False
        now, ahead = self._clock(), self._ahead()
        for lease in leases:
            self._restore_lease(lease, scope, now, ahead)
        self._keep_holds(holds)
        self._announce()
        return True

    def _restore_lease(self, lease: Lease, scope: str, now: float, ahead: float) -> None:
        """Restore a lease during a rebuild. Its earlier charge is unknown, so the user is charged for the whole call
        when the call ends."""
        service = self._topology.service(lease.service)
        if lease.name in service.leases:
            return
        kept = replace(lease, charged=0, scope=scope, group=None, plan=None, expires_at=now + service.rules.lease_ttl)
        kept.granted_at = min(now, lease.granted_at + ahead) if lease.granted_at > 0 else now
        service.resume(kept, lease.group, lease.plan)
        self._leases.keep_restored(kept)
        self._wakeups.touch(service)

    async def open_scope(self, scope: str, epoch: int) -> bool:
        """End the rebuild with this epoch: the scope grants steps again. Returns whether the scope is now open with
        this epoch. A scope has no epoch before its first `close_scope`, and cannot be opened."""
        if not self._is_rebuilding(scope, epoch):
            known = self._topology.scopes.get(scope)
            return known is not None and known.open and known.epoch == epoch
        self._rebuilding.discard(scope)
        self._topology.scopes[scope].open = True
        for service in self._topology.services_of(scope):
            self._wakeups.touch(service)
        self._announce()
        return True

    def _is_rebuilding(self, scope: str, epoch: int) -> bool:
        """Whether the rebuild with this epoch is the one that is rebuilding the scope now."""
        return scope in self._rebuilding and self._topology.scopes[scope].epoch == epoch

    # -- waking --------------------------------------------------------------------------------------------------

    def _announce(self, again: Set[str] = frozenset()) -> None:
        """End an operation: wake workers for the services that the operation made runnable, and for the services in
        `again` that are still runnable."""
        runnable = self._wakeups.turned_runnable(again)
        if (self._topology.timer.changed or self._timer is not None) and self._topology.rated:
            self._arm()
        if runnable and self._wake is not None:
            self._wake(frozenset(runnable))
