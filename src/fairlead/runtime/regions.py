"""A region as operators see it: of one service, and over all services that have it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairlead.dispatch.port import RegionSnapshot, ServiceSnapshot
from fairlead.domain.limits import Rules, ServiceRules
from fairlead.errors import NotFound
from fairlead.runtime.events import iso

WORKING, RESTING, PROBING = "working", "resting", "probing"


def state_of(seen: RegionSnapshot) -> str:
    if seen.resting_until is not None:
        return RESTING
    return PROBING if seen.probing else WORKING


def of_service(rules: ServiceRules, snapshots: Sequence[ServiceSnapshot]) -> dict[str, dict[str, Any]]:
    """By name. A service with regions is on one shard, so at most one snapshot has them."""
    seen = {each.region: each for snapshot in snapshots for each in snapshot.regions}
    return {
        name: _region(rules, seen.get(name) or RegionSnapshot(name, limit, 0))
        for name, limit in sorted(rules.regions.items())
    }


def _region(rules: ServiceRules, seen: RegionSnapshot) -> dict[str, Any]:
    return {
        "limit": seen.limit,
        "weight": rules.region_weights.get(seen.region, 1.0),
        "pool": rules.pool if rules.in_pool(seen.region) else None,
        "running": seen.in_use,
        "waiting": {"main": seen.waiting, "retry": seen.retrying},
        "breaker": {"state": state_of(seen), "failures": seen.failures, "resting_until": iso(seen.resting_until)},
        "latency": seen.latency,
    }


def in_pool(rules: ServiceRules, snapshot: ServiceSnapshot) -> int:
    """How many of its pool's slots a service has."""
    if rules.pooled_regions is None:
        return snapshot.in_use
    return sum(each.in_use for each in snapshot.regions if rules.in_pool(each.region))


def describe(region: str, rules: Rules, snapshots: Mapping[str, Sequence[ServiceSnapshot]]) -> dict[str, Any]:
    """One region over all services that have it. What may run anywhere waits for it, too, and for others."""
    having = {name: each for name, each in sorted(rules.services.items()) if region in each.regions}
    if not having:
        known = sorted({name for each in rules.services.values() for name in each.regions})
        raise NotFound(
            f"no service has the region {region!r}; " + (f"known are: {', '.join(known)}" if known else "none has any")
        )
    services = [{"service": name, **of_service(each, snapshots.get(name, ()))[region]} for name, each in having.items()]
    unbound = [each.unbound for name in having for each in snapshots.get(name, ())]
    return {
        "region": region,
        "limit": sum(each["limit"] for each in services),
        "running": sum(each["running"] for each in services),
        "waiting": _sum(each["waiting"] for each in services),
        "waiting_anywhere": _sum({"main": main, "retry": retry} for main, retry in unbound),
        "services": services,
    }


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total = {"main": 0, "retry": 0}
    for each in counts:
        for name, count in each.items():
            total[name] += count
    return total
