"""Everything that runs, in one response for operators: queues, slots by region and band, leaders, and every process.

Slots and calls are read from the dispatchers, processes from the database.

`take_metrics` gathers the numbers that `/metrics` reports: the counters of this process and, if it is a gateway or a
manager, the state of the queues. The number of its queries does not depend on the number of jobs. A server that does
not answer in time is reported as unreachable, and its numbers are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from fairlead.artifacts.files import Files
from fairlead.dispatch.port import Lease, ScopeState, ServiceSnapshot
from fairlead.domain.events import iso
from fairlead.domain.job import Hold, JobStatus
from fairlead.domain.processes import POOLS, ProcessRecord, process_of
from fairlead.domain.rules import MAIN_SHARD, Rules
from fairlead.domain.turns import is_turn
from fairlead.engine.counters import Counters
from fairlead.engine.node import Node
from fairlead.errors import FairleadError
from fairlead.observe import status
from fairlead.observe.snapshot import DISPATCHER_TIMEOUT, Observer, Processes, QueueSnapshot
from fairlead.observe.status import BAND_NAMES, known_total
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Epoch, Facts

SIZES = {
    "main": JobStatus.PENDING,
    "retry": JobStatus.RETRYING,
    "dead": JobStatus.FAILED,
    "scheduled": JobStatus.SCHEDULED,
    "running": JobStatus.RUNNING,
}
STORE_TIMEOUT = 2.0
QUEUES_TIMEOUT = 2 * DISPATCHER_TIMEOUT + 0.5
"""Long enough for two queries, because a query in progress may have to end before the next one starts."""

T = TypeVar("T")


async def runtime_stats(observer: Observer) -> dict[str, Any]:
    queues = await observer.queues()
    status_view = await status.describe(observer, queues)
    services = [_service(view, queues) for view in status_view["services"]]
    processes, facts = await observer.processes.fresh(), await observer.facts.fresh()
    node, leaders = observer.node, status_view["leaders"]
    return {
        "queues": {name: status_view["jobs"][of.value] for name, of in SIZES.items()},
        "slots": {what: known_total(service[what] for service in services) for what in ("limit", "in_use", "held")},
        "services": services,
        "pools": status_view["pools"],
        "scopes": await _scopes(observer, queues),
        "leaders": leaders,
        "workers": _workers(processes, queues),
        "managers": [
            {**process_dict(record, processes.now), "leads": leads(record.name, leaders, node)}
            for record in processes.records
            if "manager" in record.roles
        ],
        "gateways": [process_dict(record, processes.now) for record in processes.records if "api" in record.roles],
        "outbox": {"rows": facts["outbox_rows"], "age": facts["outbox_age"]},
        "estimates": node.scores.report() if node is not None else {},
        "loops": status_view["loops"],
        "worker": status_view["worker"],
        "draining": status_view["draining"],
        "unknown": status_view["unknown"],
    }


async def workers(observer: Observer) -> list[dict[str, Any]]:
    """Every worker with its last registration and its running calls."""
    queues = await observer.queues()
    return _workers(await observer.processes.fresh(), queues)


# ---------------------------------------------------------------- services


def _service(view: Mapping[str, Any], queues: QueueSnapshot) -> dict[str, Any]:
    """The service as `/queue/status` shows it, but with the slots by band and region in place of its running calls,
    which are listed with the workers."""
    name = view["service"]
    snapshots = queues.services.get(name, ())
    slots: list[Lease | Hold] = [lease for each in snapshots for lease in each.leases]
    slots += [hold for each in snapshots for hold in each.holds]
    regions, known = queues.rules.services[name].regions, queues.knows(name)
    shown = {key: value for key, value in view.items() if key not in ("running", "waiting", "regions")}
    return {
        **shown,
        "bands": {
            label: {"waiting": view["waiting"][label], **_count(known, (slot for slot in slots if slot.band == band))}
            for band, label in BAND_NAMES.items()
        },
        "regions": {
            region: {"limit": limit, **_count(known, (slot for slot in slots if slot.region == region))}
            for region, limit in regions.items()
        },
    }


def _count(known: bool, slots: Iterable[Lease | Hold]) -> dict[str, int | None]:
    """The number of slots in use, including holds (`in_use`), and the number of holds alone (`held`). Both are None if
    the dispatcher did not answer (not `known`)."""
    if not known:
        return {"in_use": None, "held": None}
    kinds = [isinstance(slot, Hold) for slot in slots]
    return {"in_use": len(kinds), "held": sum(kinds)}


# ---------------------------------------------------------------- scopes and leaders


async def _scopes(observer: Observer, queues: QueueSnapshot) -> dict[str, Any]:
    """Every scope with its epoch, and whether the dispatcher grants slots in it now."""
    epochs, node = await observer.store.epochs(), observer.node
    return {
        scope: _scope(shard, epochs.get(scope), queues.states.get(scope), _leader_of(shard, queues.leaders, node))
        for shard, scope in _scopes_of(queues.rules)
    }


def _scopes_of(rules: Rules) -> list[tuple[str, str]]:
    """All pairs of a shard and a scope on that shard, sorted."""
    scopes = {
        (shard, part.scope)
        for service in rules.services.values()
        for shard in [*service.shares] or [service.shard]
        if (part := service.on(shard)) is not None
    }
    return sorted(scopes)


def _scope(shard: str, epoch: Epoch | None, state: ScopeState | None, leader: str | None) -> dict[str, Any]:
    return {
        "shard": shard,
        "epoch": None if epoch is None else epoch.number,
        "open": None if state is None else state.open and epoch is not None and state.epoch == epoch.number,
        "rebuild_asked": epoch is not None and epoch.rebuild_asked,
        "leader": leader,
    }


def _leader_of(shard: str, leaders: Mapping[str, Any], node: Node | None) -> str | None:
    if node is not None and not node.distributed:
        return node.name
    leader: str | None = leaders.get(shard, {}).get("leader")
    return leader


def leads(name: str, leaders: Mapping[str, Any], node: Node | None) -> list[str]:
    """The shards that the process with this name leads."""
    if node is not None and not node.distributed:
        return [MAIN_SHARD] if name == node.name else []
    return sorted(shard for shard, leader in leaders.items() if leader["leader"] == name)


# ---------------------------------------------------------------- processes


def process_dict(record: ProcessRecord, now: float) -> dict[str, Any]:
    """The process as JSON. `now` is the database's clock."""
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


def _workers(processes: Processes, queues: QueueSnapshot) -> list[dict[str, Any]]:
    """All workers. A worker that is not registered but has leases is included: it is gone, or runs an older release."""
    now, calls = processes.now, _calls(queues.services)
    workers = [
        worker_dict(_current(record, now, queues, len(calls.get(record.name, ()))), now, calls.pop(record.name, ()))
        for record in processes.records
        if "worker" in record.roles
    ]
    unregistered = dict.fromkeys(worker_dict(ProcessRecord("", ("worker",), (), (), 0, "", 0, "", 0.0), now))
    for name, theirs in sorted(calls.items()):
        known = {"name": name, "roles": ["worker"], "alive": False, "calls": theirs, "running": len(theirs)}
        workers.append({**unregistered, **known, "services": [], "bands": [], "pools": [], "details": {}})
    return workers


def _current(record: ProcessRecord, now: float, queues: QueueSnapshot, calls: int) -> ProcessRecord:
    """The registration of a worker with its current number of running calls. The number that a dead worker last
    reported is outdated, so it is replaced by the number of the worker's leases (`calls`), which recovery has not
    released yet."""
    return record if record.alive(now) or queues.unknown is not None else replace(record, running=calls)


def _calls(services: Mapping[str, Sequence[ServiceSnapshot]]) -> dict[str, list[dict[str, Any]]]:
    calls: dict[str, list[dict[str, Any]]] = {}
    for each in (snapshot for shards in services.values() for snapshot in shards):
        for lease in each.leases:
            if is_turn(lease.job_id):
                continue  # a turn is not executed by a worker
            call = {key: value for key, value in status.lease_dict(lease).items() if key != "worker"}
            calls.setdefault(process_of(lease.worker), []).append({"service": each.service, **call})
    return calls


class PriorityCounts(Protocol):
    """What the resolver of priorities (`app/priority`) has counted."""

    questions: int

    @property
    def decided(self) -> Mapping[Any, int]: ...

    @property
    def resting(self) -> Mapping[str, bool]: ...


@dataclass(frozen=True, slots=True)
class QueueMetrics:
    """The state of the queues, for metrics. It is the same for the whole system: processes that read it at the same
    moment report the same numbers."""

    reachable: Mapping[str, bool]
    rules: Rules
    services: Sequence[ServiceSnapshot]
    facts: Facts
    oldest_waiting: Mapping[int, float] = field(default_factory=dict)
    """For each band, the age in seconds of its oldest waiting job."""
    loops: Mapping[str, Any] = field(default_factory=dict)
    """For each shard and loop of its leader, what the loop has counted."""


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """What a budget has left, in its measure. The amounts are None if each user has their own."""

    budget: str
    measure: str
    amount: float | None
    used: float | None
    reserved: float | None
    held: int


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    counters: Counters
    group_commit: GroupCommit
    priorities: PriorityCounts
    watchers: int
    node: Node | None
    queues: QueueMetrics | None
    files: Files
    budgets: Sequence[BudgetUse] = ()


async def take_metrics(
    observer: Observer,
    counters: Counters,
    group_commit: GroupCommit,
    priorities: PriorityCounts,
    watchers: int,
    files: Files,
) -> MetricsSnapshot:
    node = observer.node
    # There may be hundreds of plain workers, and none of them knows more about the queues than a manager.
    reads_queues = node is None or node.roles.api or node.roles.manager
    queues = await _read_queues(observer, node) if reads_queues else None
    return MetricsSnapshot(counters, group_commit, priorities, watchers, node, queues, files)


async def _read_queues(observer: Observer, node: Node | None) -> QueueMetrics:
    facts, oldest, loops, queues = await asyncio.gather(
        _answer(observer.facts.fresh(), STORE_TIMEOUT),
        _answer(observer.store.oldest_waiting(), STORE_TIMEOUT),
        _answer(observer.loops(), STORE_TIMEOUT),
        _answer(observer.queues(), QUEUES_TIMEOUT),
    )
    queues = queues or QueueSnapshot(node.rules if node is not None else Rules({}))
    now = float(facts["clock"]) if facts else observer.clock.now()
    dispatchers = {f"dispatcher {name}": name in queues.seen for name in (node.shards if node is not None else ())}
    return QueueMetrics(
        {"store": facts is not None, **dispatchers},
        queues.rules,
        [each for snapshots in queues.services.values() for each in snapshots],
        facts or {},
        {band: max(0.0, now - moment) for band, moment in (oldest or {}).items()},
        loops or {},
    )


async def _answer(question: Awaitable[T], within: float) -> T | None:
    try:
        async with asyncio.timeout(within):
            return await question
    except (FairleadError, TimeoutError):
        return None
