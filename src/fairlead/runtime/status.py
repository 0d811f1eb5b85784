"""How the line is: services with slots and waiting per band, pools, counts; and whether it can do its work."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.dispatch.port import Lease, ServiceSnapshot
from fairlead.domain.job import JobStatus
from fairlead.domain.limits import Adapted, Rules, ServiceRules
from fairlead.errors import FairleadError, Unavailable, shown
from fairlead.runtime import regions
from fairlead.runtime.events import iso
from fairlead.runtime.line import Line
from fairlead.runtime.process import Process
from fairlead.store.port import JobFilter, Store

log = logging.getLogger(__name__)

BAND_NAMES = {0: "retry", 1: "high", 2: "medium", 3: "low"}


@dataclass(frozen=True, slots=True)
class Sight:
    """What this process sees of the line at one moment: the rules, and of each service what its shards say."""

    rules: Rules
    snapshots: Mapping[str, Sequence[ServiceSnapshot]]


async def look(store: Store, process: Process | None) -> Sight:
    """Without a line in this process, the slots and lines are another's."""
    if process is None:
        return Sight(await store.rules(), {})
    snapshots: dict[str, list[ServiceSnapshot]] = {}
    for found in (await process.snapshots()).values():
        for snapshot in found:
            snapshots.setdefault(snapshot.service, []).append(snapshot)
    return Sight(process.rules, snapshots)


async def describe(store: Store, process: Process | None, sight: Sight | None = None) -> dict[str, Any]:
    sight = sight or await look(store, process)
    rules, snapshots = sight.rules, sight.snapshots
    services = [_service(name, rules, snapshots.get(name, [])) for name in sorted(rules.services)]
    return {
        "services": services,
        "pools": {
            name: {
                "limit": limit,
                "in_use": sum(s["in_use"] for s in services if s["pool"] == name),
            }
            for name, limit in rules.pools.items()
        },
        "jobs": {status.value: await store.count(JobFilter(statuses=(status,))) for status in JobStatus},
        "worker": process.name if process is not None and process.workers else None,
        "draining": process.draining if process is not None else False,
        "leaders": await _leaders(process) if process is not None else {},
        "loops": process.counts() if process is not None else {},
        "unknown": None if process is not None else "another process dispatches, from its memory",
    }


async def _leaders(process: Process) -> dict[str, Any]:
    """Who leads each shard; empty when all of the line is in this process."""
    leaders: dict[str, Any] = {}
    for name, line in process.lines.items():
        if line.leadership is None:
            continue
        try:
            found = await line.leadership.leader()
        except Unavailable as error:
            leaders[name] = {"leader": None, "term": None, "problem": shown(error)}
            continue
        holder, term = found if found is not None else (None, None)
        leaders[name] = {"leader": holder, "term": term, "problem": None if found else "no manager leads"}
    return leaders


def _service(name: str, rules: Rules, snapshots: Sequence[ServiceSnapshot]) -> dict[str, Any]:
    """A service that is split over shards is shown as one: its slots and lines are summed."""
    service, override = rules.services[name], rules.overrides.get(name)
    waiting = {label: sum(each.waiting.get(band, 0) for each in snapshots) for band, label in BAND_NAMES.items()}
    means = [each.mean_duration for each in snapshots if each.mean_duration is not None]
    return {
        "service": name,
        "limit": service.limit,
        "in_use": sum(each.in_use for each in snapshots),
        "held": sum(each.held for each in snapshots),
        "paused": service.paused,
        "override": None if override is None else {"limit": override.limit, "paused": override.paused},
        "auto": _auto(service, rules.adapted.get(name)),
        "order": service.order.value,
        "pool": service.pool,
        "shards": sorted(service.shares) or [service.shard],
        "waiting": waiting,
        "running": [lease_dict(lease) for each in snapshots for lease in each.leases],
        "mean_duration": sum(means) / len(means) if means else None,
        "regions": regions.of_service(service, snapshots),
    }


def _auto(service: ServiceRules, adapted: Adapted | None) -> dict[str, Any] | None:
    """Of a limit that is found by itself: its bounds, where it is, and how it came there."""
    if service.auto is None:
        return None
    history = adapted.history if adapted is not None else ()
    return {
        "min": service.auto.min,
        "max": service.auto.max,
        "limit": service.limit,
        "history": [{"at": iso(change.at), "limit": change.limit, "why": change.why} for change in history],
    }


def lease_dict(lease: Lease) -> dict[str, Any]:
    return {
        "job_id": lease.job_id,
        "user_id": lease.user_id,
        "step": lease.step,
        "worker": lease.worker,
        "region": lease.region,
        "since": iso(lease.granted_at),
        "lease": lease.name,
        "lease_expires_at": iso(lease.expires_at),
    }


async def readiness(store: Store | None, process: Process | None) -> dict[str, Any]:
    """A process that accepts jobs is ready when the truth can be written: what waits for Redis is kept there."""
    checks = {"store": await _store(store)}
    needed = ["store"]
    if process is None:
        checks["dispatcher"] = "in another process"
    else:
        checks |= {_label("dispatcher", name, process): await _dispatcher(line) for name, line in process.lines.items()}
        if not process.distributed:
            needed = list(checks)
        if process.workers:
            checks["worker"] = _worker(process)
            if process.leaving:
                needed.append("worker")
    return {"ready": all(checks[name] == "ok" for name in needed), "checks": checks}


def _worker(process: Process) -> str:
    if process.draining:
        return "draining"
    return next((worker.outage.reason for worker in process.workers if worker.outage.reason is not None), "ok")


def _label(what: str, shard: str, process: Process) -> str:
    return what if len(process.lines) == 1 else f"{what} {shard}"


async def _store(store: Store | None) -> str:
    if store is None:
        return "not open"
    try:
        await store.ping()
    except FairleadError as error:
        log.info("the store is not ready: %s", error)
        return shown(error)
    return "ok"


async def _dispatcher(line: Line) -> str:
    if line.broken is not None:
        return f"broke down ({type(line.broken).__name__}); see the log"
    try:
        states = await line.dispatcher.states(line.rules.scopes)
    except Unavailable as error:
        return shown(error)
    if all(state.open for state in states.values()):
        return "ok"
    rebuild = line.leader.scopes.rebuild if line.leader is not None else None
    return f"rebuilding: {rebuild.restored} waiting jobs restored so far" if rebuild else "being rebuilt by a manager"
