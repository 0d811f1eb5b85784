"""How the line is: services with slots and waiting per band, pools, counts; and whether it can do its work."""

from __future__ import annotations

from typing import Any

from fairlead.dispatch.port import Lease, ServiceSnapshot
from fairlead.domain.job import JobStatus
from fairlead.domain.limits import Rules
from fairlead.errors import FairleadError
from fairlead.runtime.events import iso
from fairlead.runtime.line import Line
from fairlead.store.port import JobFilter, Store

BAND_NAMES = {0: "retry", 1: "high", 2: "medium", 3: "low"}


async def describe(store: Store, line: Line | None) -> dict[str, Any]:
    rules = line.rules if line is not None else await store.rules()
    snapshots = {snapshot.service: snapshot for snapshot in await line.dispatcher.snapshot()} if line else {}
    services = [_service(name, rules, snapshots.get(name)) for name in sorted(rules.services)]
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
        "worker": line.worker.name if line is not None else None,
        "draining": line.worker.draining if line is not None else False,
    }


def _service(name: str, rules: Rules, snapshot: ServiceSnapshot | None) -> dict[str, Any]:
    service = rules.services[name]
    waiting = snapshot.waiting if snapshot else {}
    return {
        "service": name,
        "limit": service.limit,
        "in_use": snapshot.in_use if snapshot else 0,
        "held": snapshot.held if snapshot else 0,
        "paused": service.paused,
        "order": service.order.value,
        "pool": service.pool,
        "waiting": {label: waiting.get(band, 0) for band, label in BAND_NAMES.items()},
        "running": [_lease(lease) for lease in snapshot.leases] if snapshot else [],
        "mean_duration": snapshot.mean_duration if snapshot else None,
    }


def _lease(lease: Lease) -> dict[str, Any]:
    return {
        "job_id": lease.job_id,
        "user_id": lease.user_id,
        "step": lease.step,
        "worker": lease.worker,
        "since": iso(lease.granted_at),
        "lease": lease.name,
        "lease_expires_at": iso(lease.expires_at),
    }


async def readiness(store: Store | None, line: Line | None) -> dict[str, Any]:
    checks = {"store": await _store(store), "dispatcher": _dispatcher(line), "worker": _worker(line)}
    return {"ready": all(said == "ok" for said in checks.values()), "checks": checks}


async def _store(store: Store | None) -> str:
    if store is None:
        return "not open"
    try:
        await store.ping()
    except FairleadError as error:
        return str(error)
    return "ok"


def _dispatcher(line: Line | None) -> str:
    if line is None:
        return "not running in this process"
    if line.broken is not None:
        return f"broke down ({type(line.broken).__name__}); see the log"
    return "ok" if line.rebuild.done else f"rebuilding: {line.rebuild.restored} waiting jobs restored so far"


def _worker(line: Line | None) -> str:
    if line is None:
        return "not running in this process"
    return "draining" if line.worker.draining else "ok"
