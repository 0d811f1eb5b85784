"""Writes the services of the configuration to the database, and applies what other processes have changed there:
limits, pauses, and the Redis servers on which the queues were built."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace

from fairlead.domain.rules import Rules, ServiceRules, moved_scopes, with_rates
from fairlead.engine.parts import EngineParts, RulesRef
from fairlead.engine.positions import StalledQueues
from fairlead.engine.shard_runtime import ShardRuntime
from fairlead.pacing import Interval
from fairlead.store.port import DeclareServices, Done

log = logging.getLogger("fairlead.rules")

EVERY = 0.5
CHECK_LEADERS_EVERY = 5.0


class SyncRulesLoop:
    """Keeps the rules of this process equal to those in the database. `servers` is updated with the Redis servers on
    which the queues were built. Only the dispatcher of a leader may use other servers."""

    name = "rules"

    def __init__(
        self,
        parts: EngineParts,
        rules: RulesRef,
        shards: Mapping[str, ShardRuntime],
        servers: set[str],
        stalled_queues: StalledQueues,
    ) -> None:
        self._store = parts.store
        self._group_commit = parts.group_commit
        self._clock = parts.clock
        self._takes_jobs = parts.roles.api
        self._rules = rules
        self._shards = shards
        self._servers = servers
        self._stalled_queues = stalled_queues
        self._leader_checks = Interval(CHECK_LEADERS_EVERY)
        config = parts.config
        services = tuple(service.rules(name, config.units[name]) for name, service in config.services.items())
        self._declaration = DeclareServices(
            services,
            config.pool_limits,
            pool_rates=config.pool_rates,
            groups=config.group_rules,
            plan_rates=config.plan_rates,
        )

    async def declare(self) -> None:
        """Write the services of the configuration to the database. The configuration of a process that accepts jobs has
        all services, so it replaces what was declared before. A worker may have the code of only some services, so it
        only adds the services that the database lacks."""
        await self._sync_servers()
        rules = await self._store.rules()
        while self._takes_jobs and self._declaration.services:
            written = await self._write(self._declaration, rules)
            if written is not None:
                rules = written
                break
            rules = await self._store.rules()
        await self.apply(await self._add_missing(rules))

    async def tick(self, now: float) -> float:
        await self._sync_servers()
        # Two workers that add services at once may each overwrite what the other added.
        await self.apply(await self._add_missing(await self._store.rules()))
        await self._check_leaders()
        if self._takes_jobs:
            await self._stalled_queues.look(self._clock.monotonic())
        return now + EVERY

    async def apply(self, rules: Rules) -> None:
        current = self._rules.current
        if rules.version > current.version or not current.services:
            log_changes(current, rules)
            self._rules.current = rules
            named = {shard for service in rules.services.values() for shard in [*service.shares] or [service.shard]}
            for shard in sorted(named - self._shards.keys()):
                log.error("services live on the shard %s, which this process's [shards] does not name", shard)
        # Concurrently: a shard that cannot be reached must not keep the others from their new limits.
        await asyncio.gather(*(shard.apply(rules) for shard in self._shards.values()))

    async def _add_missing(self, rules: Rules) -> Rules:
        """Add the services of this process that `rules` lacks. If another process changes the rules at the same time,
        its change wins, and services that are still missing are added at the next tick."""
        missing = [service for service in self._declaration.services if service.service not in rules.services]
        if not missing or self._takes_jobs:
            return rules
        declared = await self._store.declared()
        pools = {**self._declaration.pools, **declared.pools}
        pool_rates = {**self._declaration.pool_rates, **declared.pool_rates}
        services = (*declared.services, *missing)
        added = replace(declared, services=services, pools=pools, pool_rates=pool_rates)
        return await self._write(added, rules) or rules

    async def _write(self, declaration: DeclareServices, rules: Rules) -> Rules | None:
        """Write the declaration. Returns the new rules, or None if `rules` are outdated. The same commit raises the
        epoch of every scope that a service leaves or enters, or in which a rate counts a longer time: steps that were
        granted in such a scope and have not started are then refused (docs/adr/0016, 0029)."""
        after = with_rates(declaration.rules, rules.rate_overrides)
        outcome = await self._group_commit.write(
            replace(declaration, based_on=rules.version, moved=moved_scopes(rules, after))
        )
        if not isinstance(outcome, Done):
            return None
        assert isinstance(outcome.value, Rules)
        return outcome.value

    async def _sync_servers(self) -> None:
        servers = {epoch.server for epoch in (await self._store.epochs()).values()}
        if servers != self._servers:
            self._servers.clear()
            self._servers.update(servers)
            for shard in self._shards.values():
                await shard.reconnect()
                for worker in shard.workers:
                    worker.claims.retry()

    async def _check_leaders(self) -> None:
        if self._leader_checks.due(self._clock.monotonic()):
            await asyncio.gather(*(shard.check_leader() for shard in self._shards.values()))


def log_changes(before: Rules, after: Rules) -> None:
    for name, old in before.services.items():
        new = after.services.get(name)
        if new is None:
            log.warning("the service %s is no longer declared: its jobs wait until a gateway declares it again", name)
        elif new != old and not _is_auto_limit(name, after, old):
            log.warning(
                "the rules of %s have changed: limit %d, was %d%s%s%s",
                name,
                new.limit,
                old.limit,
                "; paused" if new.paused else "",
                "" if before.windows_of(name) == after.windows_of(name) else "; it has other rates",
                "" if _home(new) == _home(old) else f"; it waits in {_home(new)}, was in {_home(old)}",
            )


def _home(service: ServiceRules) -> str:
    return f"{service.scope} on {' and '.join(sorted(service.shares) or [service.shard])}"


def _is_auto_limit(name: str, after: Rules, old: ServiceRules) -> bool:
    """Whether the only change is a limit that was discovered automatically, not one that an operator has set."""
    new, override = after.services[name], after.overrides.get(name)
    by_hand = override is not None and override.limit is not None
    return new.auto is not None and not by_hand and replace(new, limit=old.limit) == old
