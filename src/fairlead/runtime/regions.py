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
    """By name. A service with regions is on one shard, so at most one snapshot has them. Null: not known."""
    seen = {each.region: each for snapshot in snapshots for each in snapshot.regions}
    return {
        name: {
            "limit": limit,
            "weight": rules.region_weights.get(name, 1.0),
            "pool": rules.pool if rules.in_pool(name) else None,
            **_standing(seen.get(name)),
        }
        for name, limit in sorted(rules.regions.items())
    }


def _standing(seen: RegionSnapshot | None) -> dict[str, Any]:
    if seen is None:
        return {"running": None, "waiting": {"main": None, "retry": None}, "breaker": None, "latency": None}
    return {
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


def describe(
    region: str, rules: Rules, snapshots: Mapping[str, Sequence[ServiceSnapshot]], unknown: str | None
) -> dict[str, Any]:
    """One region over all services that have it. What may run anywhere waits for it, too, and for others."""
    having = {name: each for name, each in sorted(rules.services.items()) if region in each.regions}
    if not having:
        known = sorted({name for each in rules.services.values() for name in each.regions})
        raise NotFound(
            f"no service has the region {region!r}; " + (f"known are: {', '.join(known)}" if known else "none has any")
        )
    services = [{"service": name, **of_service(each, snapshots.get(name, ()))[region]} for name, each in having.items()]
    unbound = [_unbound(snapshots.get(name, ())) for name in having]
    return {
        "region": region,
        "limit": sum(each["limit"] for each in services),
        "running": total(each["running"] for each in services),
        "waiting": {kind: total(each["waiting"][kind] for each in services) for kind in ("main", "retry")},
        "waiting_anywhere": {kind: total(each[at] for each in unbound) for at, kind in enumerate(("main", "retry"))},
        "services": services,
        "unknown": unknown,
    }


def _unbound(snapshots: Sequence[ServiceSnapshot]) -> tuple[int | None, int | None]:
    return snapshots[0].unbound if snapshots else (None, None)


def total(counts: Iterable[int | None]) -> int | None:
    """None if one of them is not known."""
    known = list(counts)
    return None if None in known else sum(filter(None, known))
