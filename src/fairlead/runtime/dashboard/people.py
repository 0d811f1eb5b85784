"""Users with what they have open, and processes with what they run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairlead.dispatch.port import ServiceSnapshot
from fairlead.domain.processes import POOLS, ProcessRecord, process_of
from fairlead.runtime.dashboard.history import Sum
from fairlead.runtime.dashboard.slots import Bearers, known, leases_of
from fairlead.store.board import UserLoad


def users(loads: Iterable[UserLoad], used: Sum, most: int) -> dict[str, Any]:
    """Those with open jobs, and then those who were served in the last hour."""
    found = {
        load.user_id: known(
            waiting=load.waiting, running=load.running, oldest_since=load.oldest_since, weight=load.weight
        )
        for load in loads
    }
    for user_id, (calls, seconds) in sorted(used.used.items(), key=lambda item: -item[1][1]):
        if user_id in found or len(found) < most:
            about = found.setdefault(user_id, {"waiting": 0, "running": 0})
            about |= {"finished_hour": int(calls), "used_hour": round(seconds, 1)}
    return found


def processes(
    records: Sequence[ProcessRecord],
    now: float,
    snapshots: Mapping[str, Sequence[ServiceSnapshot]],
    leads: Mapping[str, list[str]],
    bearers: Bearers,
) -> dict[str, Any]:
    """Also those that are known from their leases alone: they are gone, or of the release before."""
    calls: dict[str, dict[str, Any]] = {}
    for service, found in snapshots.items():
        for name, lease in leases_of(found).items():
            call = {"service": service, **bearers.of(lease)}
            calls.setdefault(process_of(lease.worker), {})[f"{service} {name}"] = call
    shown = {record.name: _process(record, now, leads) for record in records}
    for name in calls:
        shown.setdefault(name, {"roles": ["worker"], "alive": False, "running": len(calls[name])})
    return {name: {**about, "slots": calls.get(name, {})} for name, about in shown.items()}


def _process(record: ProcessRecord, now: float, leads: Mapping[str, list[str]]) -> dict[str, Any]:
    details = record.details
    return known(
        roles=list(record.roles),
        host=record.host,
        pid=record.pid,
        version=record.version,
        started_at=round(record.started_at, 3),
        seen_at=round(record.seen_at, 1),
        alive=record.alive(now),
        draining=record.draining,
        drain_asked=record.drain_asked,
        running=record.running,
        concurrency=record.concurrency,
        services=list(record.services),
        bands=list(record.bands),
        pools=list(details.get(POOLS, ())),
        clock_skew=round(record.skew) if abs(record.skew) >= 1 else None,
        leads=leads.get(record.name, []),
        problem=details.get("problem"),
    )
