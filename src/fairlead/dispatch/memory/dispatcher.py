"""The operations of the dispatcher in memory. None of them ever suspends, so each is atomic.

Reading order: `offer`; then `exchange` with `_release`, `_claim` and `_grant`; then `_announce`, which ends them all.
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace

from fairlead.dispatch.memory.givers import ServiceGiver, Workers
from fairlead.dispatch.memory.leases import Leases
from fairlead.dispatch.memory.lines import BAND, JOB, RUN, SERVICE, STEP, USER, Entry, order_key
from fairlead.dispatch.memory.places import places
from fairlead.dispatch.memory.pool import PoolGiver
from fairlead.dispatch.memory.readiness import Readiness
from fairlead.dispatch.memory.registry import Registry
from fairlead.dispatch.memory.service import Pick, Service
from fairlead.dispatch.memory.snapshot import snapshot
from fairlead.dispatch.port import (
    Claim,
    Lease,
    Offer,
    Promotion,
    Release,
    Renewal,
    ScopeState,
    ServiceSnapshot,
    Wake,
    Withdrawal,
)
from fairlead.domain.job import Hold
from fairlead.domain.limits import Rules
from fairlead.domain.order import SECOND, Place, micros


class MemoryDispatcher:
    """Implements `Dispatcher`. `clock` gives seconds; holds end by it, so their deadlines must be in its time.

    `server` is what it calls itself: another process's never has the same name, nor has this one after a restart."""

    def __init__(self, clock: Callable[[], float], *, server: str | None = None) -> None:
        self._clock = clock
        self._server = server or f"memory/{secrets.token_hex(16)}"
        self._wake: Wake | None = None
        self._registry = Registry()
        self._services = self._registry.services
        self._entries: dict[str, Entry] = {}
        """Every step in line, by job."""
        self._leases = Leases()
        self._next_hold_end = math.inf
        self._next_rest_end = math.inf
        self._rebuilding: set[str] = set()
        self._rebuilds = 0
        self._workers = Workers()
        self._readiness = Readiness(self._services)

    async def start(self) -> None:
        """It is always there."""

    async def close(self) -> None:
        """It ends with its process."""

    async def reconnect(self) -> None: ...

    def on_wake(self, wake: Wake) -> None:
        self._wake = wake

    # -- the line ------------------------------------------------------------------------------------------------

    async def offer(self, offers: Sequence[Offer]) -> int:
        newer = sum(map(self._offer, offers))
        self._announce()
        return newer

    def _offer(self, offer: Offer) -> bool:
        job_id, run = offer.job_id, offer.run
        present = self._entries.get(job_id)
        if present is not None and present[RUN] >= run:
            return False
        if self._leases.has_run(job_id, run):
            return False
        service = self._registry.service(offer.service)
        user = service.user(offer.user_id, offer.weight)
        entry = (
            order_key(offer.rank, offer.seq, fifo=service.fifo),
            job_id,
            user.user_id,  # this and the next: one string for all steps, not one for each
            service.name,
            offer.band,
            offer.rank,
            offer.step,
            run,
            None if offer.cost is None else micros(offer.cost),
            offer.region,
        )
        service.join(entry, user)
        if present is not None:
            # Only after it has joined: who has just this one step waiting does not enter the band anew.
            self._leave(present)
        self._entries[job_id] = entry
        if not service.runnable:
            self._readiness.touch(service)
        return True

    def _leave(self, entry: Entry) -> None:
        service = self._services[entry[SERVICE]]
        service.leave(entry)
        service.forget_if_idle(entry[USER])
        self._readiness.touch(service)

    async def withdraw(self, withdrawals: Sequence[Withdrawal]) -> int:
        gone = 0
        for withdrawal in withdrawals:
            entry = self._entries.get(withdrawal.job_id)
            if entry is not None and entry[RUN] <= withdrawal.run:
                del self._entries[withdrawal.job_id]
                self._leave(entry)
                gone += 1
        self._announce()
        return gone

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
        key, job_id, user_id, name, _, rank, step, _, cost, region = entry
        raised = (key, job_id, user_id, name, promotion.band, rank, step, promotion.run, cost, region)
        self._entries[job_id] = raised
        service.join(raised, service.users[user_id])
        self._leave(entry)
        return True

    # -- slots ---------------------------------------------------------------------------------------------------

    async def exchange(self, claim: Claim, releases: Sequence[Release] = ()) -> list[Lease]:
        now = self._clock()
        for release in releases:
            self._release(release, now)
        self._pass_time(now)
        leases: list[Lease] = []
        wake_again = self._claim(claim, now, leases)
        self._announce(wake_again)
        return leases

    async def release(self, releases: Sequence[Release]) -> None:
        now = self._clock()
        for release in releases:
            self._release(release, now)
        self._announce()

    def _release(self, release: Release, now: float) -> None:
        service = self._services.get(release.service)
        lease = (
            None
            if service is None
            else service.give_back(release.lease, now, refund=release.refund, failed=release.failed)
        )
        if service is not None and lease is not None:
            self._leases.forget(lease)
            if release.failed:
                self._next_rest_end = min(self._next_rest_end, service.end_rests(micros(now)) / SECOND)
            self._readiness.touch(service)

    def _pass_time(self, now: float) -> None:
        """What time alone has ended."""
        if now >= self._next_hold_end:
            self._end_holds(now)
        if now >= self._next_rest_end:
            self._end_rests(now)

    def _end_rests(self, now: float) -> None:
        self._next_rest_end = math.inf
        for service in self._services.values():
            if service.health:
                self._next_rest_end = min(self._next_rest_end, service.end_rests(micros(now)) / SECOND)
                self._readiness.touch(service)

    def _claim(self, claim: Claim, now: float, leases: list[Lease]) -> Set[str]:
        """Grant one step to each service (or pool) in turn, until the room is used or nothing is left.

        Returns the services to wake for even if they were runnable before: those that granted something, those whose
        workers slots were left for, and if the claimer is full, all it could still have had.
        """
        worker = self._workers.seen(claim, now)
        names = self._readiness.may_grant(claim.services)
        givers = self._workers.givers(worker, self._services, names, now)
        going = deque(givers)
        picky = claim.turns or claim.only is not None
        while going and len(leases) < claim.room:
            giver = going.popleft()
            next_up = giver.next()
            if next_up is not None and (not picky or claim.admits(next_up[0].job_at(next_up[1]))):
                leases.append(self._grant(*next_up, claim.worker, now))
                worker.last_giver = giver.name
                going.append(giver)
        worker.spare = max(0, claim.room - len(leases)) if claim.waits else 0
        left_to_others = self._left_to_others(givers)
        if leases and not worker.spare:
            return claim.services | left_to_others if left_to_others else claim.services
        return left_to_others.union([lease.service for lease in leases])

    def _left_to_others(self, givers: list[ServiceGiver | PoolGiver]) -> frozenset[str]:
        """The services for whose workers this claim left slots of a pool."""
        left: frozenset[str] = frozenset()
        for giver in givers:
            if isinstance(giver, PoolGiver) and giver.left:
                self._readiness.pass_over(giver.pool, giver.passed_over())
                left = left.union([service.name for service in giver.left])
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
        service.keep(lease, estimate)
        self._leases.keep(lease)
        self._readiness.touch(service)
        return lease

    # -- heartbeats and holds ------------------------------------------------------------------------------------

    def renew(self, worker: str, leases: Sequence[str]) -> Renewal:
        # Called from another thread: single reads and writes only, which the interpreter makes atomic. A rebuild may
        # begin and even end meanwhile, so what was not found counts as lost only if there was none.
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

    async def expired(self) -> list[Lease]:
        return self._leases.expired(self._clock())

    async def hold(self, holds: Sequence[Hold]) -> None:
        now = self._clock()
        for hold in holds:
            if hold.until > now:
                self._keep_hold(hold)
        self._announce()

    def _keep_hold(self, hold: Hold) -> None:
        service = self._registry.service(hold.service)
        key = hold.id or f"{hold.job_id}:{hold.until}"
        if key not in service.holds:
            service.hold(key, hold)
            self._next_hold_end = min(self._next_hold_end, hold.until)
            self._readiness.touch(service)

    async def end_holds(self, now: float) -> int:
        ended = self._end_holds(now)
        self._announce()
        return ended

    def _end_holds(self, now: float) -> int:
        ended = 0
        self._next_hold_end = math.inf
        for service in self._services.values():
            for key, hold in list(service.holds.items()):
                if hold.until <= now:
                    service.end_hold(key)
                    self._readiness.touch(service)
                    ended += 1
                else:
                    self._next_hold_end = min(self._next_hold_end, hold.until)
        return ended

    # -- questions -----------------------------------------------------------------------------------------------

    async def places(self, job_ids: Sequence[str]) -> dict[str, Place]:
        asked: dict[str, list[Entry]] = {}
        for job_id in dict.fromkeys(job_ids):
            entry = self._entries.get(job_id)
            if entry is not None and self._services[entry[SERVICE]].scope.open:
                asked.setdefault(entry[SERVICE], []).append(entry)
        now = self._clock()
        if now >= self._next_rest_end:
            self._end_rests(now)
            self._announce()
        found: dict[str, Place] = {}
        for name, entries in asked.items():
            found |= places(self._services[name], entries, now)
        return found

    async def snapshot(self, services: Sequence[str] | None = None, *, users: bool = False) -> list[ServiceSnapshot]:
        now = self._clock()
        self._pass_time(now)
        self._announce()
        names = sorted(self._services if services is None else self._services.keys() & set(services))
        return [snapshot(self._services[name], users=users) for name in names]

    # -- rules ---------------------------------------------------------------------------------------------------

    async def configure(self, rules: Rules) -> None:
        for entry in self._registry.configure(rules):
            self._entries[entry[JOB]] = entry
        for service in self._services.values():
            self._readiness.touch(service)
        self._announce()

    # -- rebuilding ----------------------------------------------------------------------------------------------

    async def states(self, scopes: Iterable[str]) -> dict[str, ScopeState]:
        known = self._registry.scopes
        return {
            scope: ScopeState(known[scope].epoch, known[scope].open, self._server)
            if scope in known
            else ScopeState(None, False, self._server)
            for scope in scopes
        }

    async def close_scope(self, scope: str, epoch: int) -> bool:
        closed = self._registry.scope(scope)
        if closed.epoch is not None and epoch < closed.epoch:
            return False
        self._rebuilding.add(scope)
        self._rebuilds += 1
        closed.epoch, closed.open = epoch, False
        for service in self._registry.services_of(scope):
            for entry in service.entries():
                del self._entries[entry[JOB]]
            for lease, _ in service.leases.values():
                self._leases.forget(lease)
            service.clear()
            service.take_rules(service.rules)
            self._readiness.touch(service)
        self._registry.clear_pool(scope)
        self._announce()
        return True

    async def restore(self, scope: str, epoch: int, leases: Sequence[Lease], holds: Sequence[Hold]) -> bool:
        if not self._is_rebuilding(scope, epoch):
            return False
        now = self._clock()
        for lease in leases:
            self._restore_lease(lease, scope, now)
        for hold in holds:
            if hold.until > now:
                self._keep_hold(hold)
        self._announce()
        return True

    def _restore_lease(self, lease: Lease, scope: str, now: float) -> None:
        """Its user is charged for all of it at its end, as nothing is known any more of what it was charged."""
        service = self._registry.service(lease.service)
        if lease.name in service.leases:
            return
        granted_at = lease.granted_at if 0 < lease.granted_at <= now else now
        expires_at = now + service.rules.lease_ttl
        kept = replace(lease, granted_at=granted_at, expires_at=expires_at, charged=0, scope=scope)
        service.resume(kept)
        self._leases.keep_restored(kept)
        self._readiness.touch(service)

    async def open_scope(self, scope: str, epoch: int) -> bool:
        """Grant again. A scope that was never closed has no epoch yet, so it stays as it is."""
        if not self._is_rebuilding(scope, epoch):
            known = self._registry.scopes.get(scope)
            return known is not None and known.open and known.epoch == epoch
        self._rebuilding.discard(scope)
        self._registry.scopes[scope].open = True
        for service in self._registry.services_of(scope):
            self._readiness.touch(service)
        self._announce()
        return True

    def _is_rebuilding(self, scope: str, epoch: int) -> bool:
        """By this rebuild, and not by one that began later."""
        return scope in self._rebuilding and self._registry.scopes[scope].epoch == epoch

    # -- waking --------------------------------------------------------------------------------------------------

    def _announce(self, again: Set[str] = frozenset()) -> None:
        """End of an operation: wake workers for what it turned runnable, and for what of `again` still is."""
        woken = self._readiness.turned_runnable(again)
        if woken and self._wake is not None:
            self._wake(frozenset(woken))
