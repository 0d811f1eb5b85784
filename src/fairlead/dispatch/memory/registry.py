"""Which services, pools and scopes there are, as the rules say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fairlead.dispatch.memory.lines import Entry
from fairlead.dispatch.memory.pool import Pool
from fairlead.dispatch.memory.service import Scope, Service
from fairlead.domain.limits import Rules, ServiceRules


class Registry:
    def __init__(self) -> None:
        self.services: dict[str, Service] = {}
        self.scopes: dict[str, Scope] = {}
        self._pools: dict[str, Pool] = {}
        self._version = -1

    def service(self, name: str) -> Service:
        """What is offered for a service that the rules do not know (yet) waits, at a limit of nothing."""
        service = self.services.get(name)
        if service is None:
            rules = ServiceRules(name, limit=0)
            service = self.services[name] = Service(rules, self.scope(rules.scope))
        return service

    def scope(self, name: str) -> Scope:
        scope = self.scopes.get(name)
        if scope is None:
            scope = self.scopes[name] = Scope(name)
        return scope

    def services_of(self, scope: str) -> list[Service]:
        return [service for service in self.services.values() if service.scope.name == scope]

    def configure(self, rules: Rules) -> Iterator[Entry]:
        """Take the rules, unless they are older than the present ones; yields the steps that were sorted anew."""
        if rules.version < self._version:
            return
        self._version = rules.version
        for name, wanted in rules.services.items():
            yield from self._take_rules(self.service(name), wanted)
        for name in self.services.keys() - rules.services.keys():
            gone = self.services[name]
            yield from self._take_rules(gone, replace(gone.rules, limit=0))
        self._share_out_pools(rules)

    def _take_rules(self, service: Service, rules: ServiceRules) -> list[Entry]:
        service.scope = self.scope(rules.scope)
        return service.take_rules(rules)

    def _share_out_pools(self, rules: Rules) -> None:
        for pool in self._pools.values():
            pool.services = []
        for _, service in sorted(self.services.items()):
            service.pool = None
            if service.rules.pool is not None:
                scope = service.rules.scope
                service.pool = self._pools.setdefault(scope, Pool(scope))
                service.pool.limit = rules.pools.get(service.rules.pool, 0)
                service.pool.services.append(service)

    def clear_pool(self, scope: str) -> None:
        """Forget whose turn it is, if this scope is a pool."""
        if scope in self._pools:
            self._pools[scope].clear()
