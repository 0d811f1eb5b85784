"""For operators, all that runs in one answer: queues, slots by region and band, who leads what, and every process.

What is said of slots and calls comes from the dispatchers, as `status` has it; what is said of processes, from the
truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairlead.dispatch.port import Lease, ScopeState, ServiceSnapshot
from fairlead.domain.job import Hold, JobStatus
from fairlead.domain.limits import MAIN_SHARD, Rules
from fairlead.domain.processes import POOLS, ProcessRecord, process_of
from fairlead.domain.turns import is_turn
from fairlead.runtime import status
from fairlead.runtime.events import iso
from fairlead.runtime.process import Process
from fairlead.runtime.regions import total
from fairlead.runtime.status import BAND_NAMES, Sight
from fairlead.store.port import Epoch, Store

SIZES = {
    "main": JobStatus.PENDING,
    "retry": JobStatus.RETRYING,
    "dead": JobStatus.FAILED,
    "scheduled": JobStatus.SCHEDULED,
    "running": JobStatus.RUNNING,
}


async def runtime_stats(store: Store, process: Process | None) -> dict[str, Any]:
    sight = await status.look(store, process)
    said = await status.describe(store, process, sight)
    services = [_service(service, sight) for service in said["services"]]
    records, now = await store.processes(), await store.now()
    outbox = await store.facts()
    leaders = said["leaders"]
    return {
        "queues": {name: said["jobs"][of.value] for name, of in SIZES.items()},
        "slots": {what: total(service[what] for service in services) for what in ("limit", "in_use", "held")},
        "services": services,
        "pools": said["pools"],
        "scopes": await _scopes(store, process, sight),
        "leaders": leaders,
        "workers": _workers(records, now, sight),
        "managers": [
            {**process_dict(record, now), "leads": leads(record.name, leaders, process)}
            for record in records
            if "manager" in record.roles
        ],
        "gateways": [process_dict(record, now) for record in records if "api" in record.roles],
        "outbox": {"rows": outbox["outbox_rows"], "age": outbox["outbox_age"]},
        "estimates": process.scores.report() if process is not None else {},
        "loops": said["loops"],
        "worker": said["worker"],
        "draining": said["draining"],
        "unknown": said["unknown"],
    }


async def workers(store: Store, process: Process | None) -> list[dict[str, Any]]:
    """Every worker with its last announcement and what it runs."""
    sight = await status.look(store, process)
    return _workers(await store.processes(), await store.now(), sight)


# ---------------------------------------------------------------- services


def _service(said: Mapping[str, Any], sight: Sight) -> dict[str, Any]:
    """As `/queue/status` has it, with its slots by band and by region instead of its calls: those are the workers'."""
    name = said["service"]
    snapshots = sight.snapshots.get(name, ())
    slots: list[Lease | Hold] = [lease for each in snapshots for lease in each.leases]
    slots += [hold for each in snapshots for hold in each.holds]
    regions, known = sight.rules.services[name].regions, sight.knows(name)
    shown = {key: value for key, value in said.items() if key not in ("running", "waiting", "regions")}
    return {
        **shown,
        "bands": {
            label: {"waiting": said["waiting"][label], **_count(known, (slot for slot in slots if slot.band == band))}
            for band, label in BAND_NAMES.items()
        },
        "regions": {
            region: {"limit": limit, **_count(known, (slot for slot in slots if slot.region == region))}
            for region, limit in regions.items()
        },
    }


def _count(known: bool, slots: Iterable[Lease | Hold]) -> dict[str, int | None]:
    """A slot that is held is in use too. None: not known."""
    if not known:
        return {"in_use": None, "held": None}
    kinds = [isinstance(slot, Hold) for slot in slots]
    return {"in_use": len(kinds), "held": sum(kinds)}


# ---------------------------------------------------------------- who leads what


async def _scopes(store: Store, process: Process | None, sight: Sight) -> dict[str, Any]:
    """What shares one epoch, and whether the dispatcher grants from it now."""
    epochs = await store.epochs()
    return {
        scope: _scope(shard, epochs.get(scope), sight.states.get(scope), _leader_of(shard, sight.leaders, process))
        for shard, scope in _scopes_of(sight.rules)
    }


def _scopes_of(rules: Rules) -> list[tuple[str, str]]:
    """(shard, scope)"""
    found = {
        (shard, part.scope)
        for service in rules.services.values()
        for shard in [*service.shares] or [service.shard]
        if (part := service.on(shard)) is not None
    }
    return sorted(found)


def _scope(shard: str, epoch: Epoch | None, state: ScopeState | None, leader: str | None) -> dict[str, Any]:
    return {
        "shard": shard,
        "epoch": None if epoch is None else epoch.number,
        "open": None if state is None else state.open and epoch is not None and state.epoch == epoch.number,
        "rebuild_asked": epoch is not None and epoch.rebuild_asked,
        "leader": leader,
    }


def _leader_of(shard: str, leaders: Mapping[str, Any], process: Process | None) -> str | None:
    if process is not None and not process.distributed:
        return process.name
    leader: str | None = leaders.get(shard, {}).get("leader")
    return leader


def leads(name: str, leaders: Mapping[str, Any], process: Process | None) -> list[str]:
    """The shards that this process leads."""
    if process is not None and not process.distributed:
        return [MAIN_SHARD] if name == process.name else []
    return sorted(shard for shard, leader in leaders.items() if leader["leader"] == name)


# ---------------------------------------------------------------- processes


def process_dict(record: ProcessRecord, now: float) -> dict[str, Any]:
    """`now` is the database's clock."""
    return {
        "name": record.name,
        "roles": list(record.roles),
        "host": record.host,
        "pid": record.pid,
        "version": record.version,
        "started_at": iso(record.started_at),
        "last_seen": iso(record.seen_at),
        "silent_for": round(max(0.0, now - record.seen_at), 3),
        "alive": record.alive(now),
        "clock_skew": round(record.skew, 3),
        "details": dict(record.details),
    }


def worker_dict(record: ProcessRecord, now: float, calls: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    return {
        **process_dict(record, now),
        "services": list(record.services),
        "bands": list(record.bands),
        "concurrency": record.concurrency,
        "pools": list(record.details.get(POOLS, ())),
        "running": record.running,
        "draining": record.draining,
        "drain_asked": record.drain_asked,
        "calls": list(calls),
    }


def _workers(records: Sequence[ProcessRecord], now: float, sight: Sight) -> list[dict[str, Any]]:
    """Also those that are known from their leases alone: they are gone, or of the release before."""
    calls = _calls(sight.snapshots)
    # Of one that is gone, its last words do not count: what it still has is what nobody has taken back yet.
    found = [
        worker_dict(_as_it_is(record, now, sight, len(calls.get(record.name, ()))), now, calls.pop(record.name, ()))
        for record in records
        if "worker" in record.roles
    ]
    unheard = ProcessRecord("", ("worker",), (), (), 0, "", 0, "", 0.0)
    for name, theirs in sorted(calls.items()):
        nobody = dict.fromkeys(worker_dict(unheard, now))
        known = {"name": name, "roles": ["worker"], "alive": False, "calls": theirs, "running": len(theirs)}
        found.append({**nobody, **known, "services": [], "bands": [], "pools": [], "details": {}})
    return found


def _as_it_is(record: ProcessRecord, now: float, sight: Sight, calls: int) -> ProcessRecord:
    return record if record.alive(now) or sight.unknown is not None else replace(record, running=calls)


def _calls(snapshots: Mapping[str, Sequence[ServiceSnapshot]]) -> dict[str, list[dict[str, Any]]]:
    calls: dict[str, list[dict[str, Any]]] = {}
    for each in (snapshot for found in snapshots.values() for snapshot in found):
        for lease in each.leases:
            if is_turn(lease.job_id):
                continue  # no worker executes it
            call = {key: value for key, value in status.lease_dict(lease).items() if key != "worker"}
            calls.setdefault(process_of(lease.worker), []).append({"service": each.service, **call})
    return calls
