"""The services, pools and scopes defined by the rules, and which services can grant a step.

A service is *ready* if it has a free slot and a waiting step that may use the slot. It is *runnable* if it is ready,
and its pool has a free slot too or the step needs none. Workers are woken when a service becomes runnable. While it
stays runnable, only a claim wakes them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace

from fairlead.dispatch.memory.claim_sources import Pool
from fairlead.dispatch.memory.fair_queue import Entry
from fairlead.dispatch.memory.rated_service import start_rates
from fairlead.dispatch.memory.rates import NO_MEMBER_RATES, needs_rates, pool_windows
from fairlead.dispatch.memory.service import Service
from fairlead.dispatch.port import Claim
from fairlead.domain.groups import GroupRules
from fairlead.domain.rates import UNLIMITED
from fairlead.domain.rules import Rules, ServiceRules


class Scope:
    """The services that are rebuilt together, under one epoch. A scope grants steps only while it is open."""

    __slots__ = ("epoch", "name", "open")

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch: int | None = None
        self.open = False


class RateTimer:
    """When a window changes next, for all services of a dispatcher."""

    __slots__ = ("changed", "due")

    def __init__(self) -> None:
        self.due = UNLIMITED
        """The time, as far as the dispatcher knows."""
        self.changed = False
        """Whether a window may change earlier, or a service waits for one since."""


class Topology:
    def __init__(self) -> None:
        self.services: dict[str, Service] = {}
        self.scopes: dict[str, Scope] = {}
        self._pools: dict[str, Pool] = {}
        self._version = -1
        self.rated: list[Service] = []
        """The services that have `rates`."""
        self.timer = RateTimer()
        self._groups: Mapping[str, GroupRules] = {}
        self._member_rates = NO_MEMBER_RATES

    def service(self, name: str) -> Service:
        """The service of this name. Steps of a service unknown to the rules are queued with a limit of 0."""
        service = self.services.get(name)
        if service is None:
            rules = ServiceRules(name, limit=0)
            service = self.services[name] = Service(rules, self.scope(rules.scope))
            service.group_rules, service.member_rates = self._groups, self._member_rates
        return service

    def scope(self, name: str) -> Scope:
        scope = self.scopes.get(name)
        if scope is None:
            scope = self.scopes[name] = Scope(name)
        return scope

    def services_of(self, scope: str) -> list[Service]:
        return [service for service in self.services.values() if service.scope.name == scope]

    def configure(self, rules: Rules) -> Iterator[Entry]:
        """Apply the rules unless they are older than the current ones. Yields the waiting steps of services whose
        queues were rebuilt, with their new sort keys."""
        if rules.version < self._version:
            return
        self._version = rules.version
        self._groups, self._member_rates = rules.groups, rules.member_rates
        for service in self.services.values():
            service.group_rules, service.member_rates = rules.groups, rules.member_rates
        for name, service_rules in rules.services.items():
            yield from self._take_rules(self.service(name), service_rules)
        for name in self.services.keys() - rules.services.keys():
            removed = self.services[name]
            yield from self._take_rules(removed, replace(removed.rules, limit=0))
        self._assign_pools(rules)

    def _take_rules(self, service: Service, rules: ServiceRules) -> list[Entry]:
        service.scope = self.scope(rules.scope)
        return service.take_rules(rules)

    def _assign_pools(self, rules: Rules) -> None:
        for pool in self._pools.values():
            pool.services = []
        for _, service in sorted(self.services.items()):
            service.pool = None
            if service.rules.pool is not None:
                scope = service.rules.scope
                service.pool = self._pools.setdefault(scope, Pool(scope))
                service.pool.limit = rules.pools.get(service.rules.pool, 0)
                service.pool.services.append(service)
        self._assign_rates(rules)

    def _assign_rates(self, rules: Rules) -> None:
        windows = pool_windows(rules, {name: pool.window for name, pool in self._pools.items() if pool.window})
        for name, pool in self._pools.items():
            pool.window = windows.get(name)
        for service in self.services.values():
            window = None if service.pool is None else service.pool.window
            if service.rates is None and needs_rates(service.rules, window, rules.member_rates):
                start_rates(service, self.timer)
            if service.rates is not None:
                service.rates.take_pool(window, rules.pool_rates.get(service.rules.pool or ""))
                for user in service.users.values():
                    user.windows = None
        self.rated = [service for service in self.services.values() if service.rates is not None]

    def clear_pool(self, scope: str) -> None:
        """Reset the virtual times by which services share the pool, if this scope is a pool."""
        if scope in self._pools:
            self._pools[scope].clear()


class Wakeups:
    def __init__(self, services: Mapping[str, Service], timer: RateTimer) -> None:
        self._services = services
        self._timer = timer
        self._ready: set[str] = set()
        self._touched: set[Service] = set()
        self._passed_over: dict[Pool, set[str]] = {}
        self.unmet: dict[str, set[int]] = {}
        """The bands in which a worker that is bound to them has found nothing since the last wakeup, by service."""

    def found_nothing(self, claim: Claim) -> None:
        """Record that the claim of a worker that is bound to bands has left part of its budget. One that is bound to
        regions too, or that only takes certain jobs, may leave steps of its bands."""
        if claim.regions is not None or claim.turns or claim.only is not None:
            return
        for name in claim.services & self._services.keys():
            self.unmet.setdefault(name, set()).update(claim.bands)

    def touch(self, service: Service) -> None:
        """Record that the current operation changed this service."""
        self._touched.add(service)
        service.next = None

    def touch_counted(self, service: Service) -> None:
        """Record that the current operation released or granted a step of this service. The rate of a pool counts the
        calls of all its services, so whether a step of another service fits may have changed too."""
        self._touched.add(service)
        if service.pool is not None and service.pool.window is not None:
            self._touched.update(service.pool.services)

    def pass_over(self, pool: Pool, services: set[str]) -> None:
        """Record that the current claim reserved slots of the pool for other workers, and that these services still had
        a step to grant."""
        self._passed_over[pool] = services

    def may_grant(self, claim: Claim) -> set[str]:
        """The services that a claim has to examine: those known to be ready, those that the current operation changed,
        and those with a region that no worker serves, because this claim may take steps that prefer the region. Not
        all of them can grant a step."""
        services = claim.services
        names = self._ready & services
        if claim.unserved:
            names.update([name for name, _ in claim.unserved if name in services and name in self._services])
        for service in self._touched:
            if service.name in services:
                names.add(service.name)
        return names

    def turned_runnable(self, again: Set[str]) -> set[str]:
        """End the operation. Returns the services that it made runnable, and the services in `again` that are still
        runnable."""
        if not (self._touched or again):
            return set()
        self._refresh()
        turned: set[str] = set()
        pools: set[Pool] = set()
        for service in self._touched:
            if service.pool is not None:
                pools.add(service.pool)
                self._timer.changed = True
            elif service.ready:
                if not service.runnable:
                    turned.add(service.name)
                service.runnable = True
            else:
                service.runnable = False
                if service.rates is not None:
                    self._timer.changed = True
        for pool in pools:
            turned |= self._turned_in(pool)
        for pool, services in self._passed_over.items():
            pool.passed_over |= services
        for name in self._ready & again:
            if self._services[name].runnable:
                turned.add(name)
        if self.unmet:
            turned |= self._turned_for_bands()
        self._touched.clear()
        self._passed_over.clear()
        return turned

    def _turned_for_bands(self) -> set[str]:
        """The services that became runnable for workers that are bound to bands. They may have been runnable for other
        bands all the time."""
        turned = set()
        for service in self._touched:
            bands = self.unmet.get(service.name)
            left_out = service.pool is not None and service.name in self._passed_over.get(service.pool, ())
            if bands and service.runnable and not left_out:
                met = {band for band in sorted(bands) if service.pick((0, band)) is not None}
                if met:
                    turned.add(service.name)
                    bands -= met
                if not bands:
                    del self.unmet[service.name]
        return turned

    def _turned_in(self, pool: Pool) -> set[str]:
        """The services of the pool that became runnable, and runnable services that an earlier claim passed over: after
        a change, their workers should try again. Services that the current claim passed over are left out."""
        has_slot = pool.free > 0
        turned = set()
        for service in pool.services:
            runnable = service.ready and (has_slot or service.pick(pool_full=True) is not None)
            if runnable and (not service.runnable or service.name in pool.passed_over):
                turned.add(service.name)
            service.runnable = runnable
        pool.passed_over -= turned
        return turned - self._passed_over.get(pool, set())

    def _refresh(self) -> None:
        for service in self._touched:
            ready = _is_ready(service)
            if ready is not service.ready:
                service.ready = ready
                (self._ready.add if ready else self._ready.discard)(service.name)


def _is_ready(service: Service) -> bool:
    """Whether the service could grant a step, ignoring its pool. If every waiting step may be granted, none is chosen:
    a release usually comes before the next claim, and changes the choice. So one choice and one move of each user and
    group in its heap do for a grant and the end of its call."""
    rules, rates = service.rules, service.rates
    if not (service.parked or rules.regions or (rates is not None and rates.tight)):
        service.next = None
        may_grant = service.scope.open and not rules.paused
        return may_grant and len(service.leases) + len(service.holds) < rules.limit and any(service.waiting)
    pick = service.pick()
    if service.pool is None and not rules.regions:  # otherwise it depends on who claims
        service.next = pick
    return pick is not None
