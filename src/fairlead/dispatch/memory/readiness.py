"""Which services could grant something right now, and when workers are to be told.

A service is *ready* when a slot of its own is free and a step that may have it waits; *runnable* when its pool has a
slot for it too, or need not have one. Workers are woken when a service turns runnable, and not again while it stays so,
unless by a claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from fairlead.dispatch.memory.pool import Pool
from fairlead.dispatch.memory.service import Service


class Readiness:
    def __init__(self, services: Mapping[str, Service]) -> None:
        self._services = services
        self._ready: set[str] = set()
        self._touched: set[Service] = set()
        self._passed_over: dict[Pool, set[str]] = {}

    def touch(self, service: Service) -> None:
        """The present operation changed something about this service."""
        self._touched.add(service)

    def pass_over(self, pool: Pool, services: set[str]) -> None:
        """The present claim left the pool's slots to others, though these services had something waiting."""
        self._passed_over[pool] = services

    def may_grant(self, services: frozenset[str]) -> set[str]:
        """Those of the services that a claim has to look at, however many there are; few of them in vain."""
        names = self._ready & services
        for service in self._touched:
            if service.name in services:
                names.add(service.name)
        return names

    def turned_runnable(self, again: Set[str]) -> set[str]:
        """End the operation: the services that it made runnable, and those of `again` that are so still."""
        self._refresh()
        turned: set[str] = set()
        pools: set[Pool] = set()
        for service in self._touched:
            if service.pool is not None:
                pools.add(service.pool)
            else:
                if service.ready and not service.runnable:
                    turned.add(service.name)
                service.runnable = service.ready
        for pool in pools:
            turned |= self._turned_in(pool)
        for pool, services in self._passed_over.items():
            pool.passed_over |= services
        for name in self._ready & again:
            if self._services[name].runnable:
                turned.add(name)
        self._touched.clear()
        self._passed_over.clear()
        return turned

    def _turned_in(self, pool: Pool) -> set[str]:
        """Something changed, so those that were passed over may have better luck: they count as turned as well."""
        has_slot = pool.free > 0
        turned = set()
        for service in pool.services:
            runnable = service.ready and (has_slot or service.pick(dry=True) is not None)
            if runnable and (not service.runnable or service.name in pool.passed_over):
                turned.add(service.name)
            service.runnable = runnable
        pool.passed_over -= turned
        return turned - self._passed_over.get(pool, set())

    def _refresh(self) -> None:
        for service in self._touched:
            ready = service.pick() is not None
            if ready is not service.ready:
                service.ready = ready
                (self._ready.add if ready else self._ready.discard)(service.name)
