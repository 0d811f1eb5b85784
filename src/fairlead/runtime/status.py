"""How the line is: services with slots and waiting per band, pools, counts; and whether it can do its work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from fairlead.dispatch.port import Lease, ScopeState, ServiceSnapshot
from fairlead.domain.job import JobStatus
from fairlead.domain.limits import Adapted, Rules, ServiceRules
from fairlead.errors import FairleadError, Unavailable, shown
from fairlead.runtime import regions
from fairlead.runtime.events import iso
from fairlead.runtime.line import Line
from fairlead.runtime.probes import Probes, Question
from fairlead.runtime.process import Process
from fairlead.store.port import JobFilter, Store

log = logging.getLogger(__name__)
T = TypeVar("T")

ANSWERS_WITHIN = 1.5
"""Seconds for a dispatcher that may be away or hang. All are asked side by side."""
ELSEWHERE = "another process dispatches, from its memory"
BAND_NAMES = {0: "retry", 1: "high", 2: "medium", 3: "low"}


@dataclass(frozen=True, slots=True)
class Sight:
    """What this process sees of the line at one moment: the rules, and of each service what its shards say.

    `seen` are the shards that answered, and `unknown` is why others did not. `leaders` is empty when all of the line is
    in this process.
    """

    rules: Rules
    snapshots: Mapping[str, Sequence[ServiceSnapshot]] = field(default_factory=dict)
    seen: frozenset[str] = frozenset()
    states: Mapping[str, ScopeState] = field(default_factory=dict)
    leaders: Mapping[str, Any] = field(default_factory=dict)
    unknown: str | None = None

    def knows(self, service: str) -> bool:
        """What was not seen is not nothing."""
        rules = self.rules.services[service]
        return self.seen.issuperset([*rules.shares] or [rules.shard])


async def look(
    store: Store, process: Process | None, services: Sequence[str] | None = None, *, users: bool = False
) -> Sight:
    """Without a line in this process, the slots and lines are another's. `services`: only at these; `users`: also at
    each user's standing, which takes a pass over all of them."""
    if process is None:
        return Sight(await store.rules(), unknown=ELSEWHERE)
    rules = process.rules
    found = await asyncio.gather(*(_shard(line, services, users) for line in process.lines.values()))
    snapshots: dict[str, list[ServiceSnapshot]] = {}
    for snapshot in (snapshot for each in found for snapshot in each.snapshots):
        snapshots.setdefault(snapshot.service, []).append(snapshot)
    return Sight(
        rules,
        snapshots,
        frozenset(each.name for each in found if each.problem is None),
        {scope: state for each in found for scope, state in each.states.items()},
        {each.name: each.leader for each in found if each.leader is not None},
        "; ".join(f"{each.name}: {each.problem}" for each in found if each.problem is not None) or None,
    )


@dataclass(frozen=True, slots=True)
class _Shard:
    """What one dispatcher says, or the problem with it."""

    name: str
    snapshots: Sequence[ServiceSnapshot]
    problem: str | None
    states: Mapping[str, ScopeState]
    leader: dict[str, Any] | None


async def _shard(line: Line, services: Sequence[str] | None, users: bool) -> _Shard:
    asked = None if services is None else [name for name in services if name in line.rules.services]
    (snapshots, problem), (states, _), leader = await asyncio.gather(
        _answer(lambda: line.dispatcher.snapshot(asked, users=users)),
        _answer(lambda: line.dispatcher.states(line.rules.scopes)),
        _leader(line),
    )
    return _Shard(line.name, snapshots or (), problem, states or {}, leader)


async def _answer(ask: Callable[[], Awaitable[T]]) -> tuple[T | None, str | None]:
    """What was asked for, or why it is not known. (Asked here, not before: whoever gives up at once has asked
    nothing.)"""
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            return await ask(), None
    except Unavailable as error:
        return None, shown(error)
    except TimeoutError:
        return None, f"the dispatcher did not answer within {ANSWERS_WITHIN:g} s"


async def _leader(line: Line) -> dict[str, Any] | None:
    if line.leadership is None:
        return None
    found, problem = await _answer(line.leadership.leader)
    holder, term = found or (None, None)
    return {"leader": holder, "term": term, "problem": problem or (None if found else "no manager leads")}


async def describe(store: Store, process: Process | None, sight: Sight | None = None) -> dict[str, Any]:
    sight = sight or await look(store, process)
    rules = sight.rules
    services = [_service(name, sight) for name in sorted(rules.services)]
    return {
        "services": services,
        "pools": {
            name: {
                "limit": limit,
                "in_use": regions.total(
                    _in_pool(each, sight) for each, its in rules.services.items() if its.pool == name
                ),
            }
            for name, limit in rules.pools.items()
        },
        "jobs": {status.value: await store.count(JobFilter(statuses=(status,))) for status in JobStatus},
        "worker": process.name if process is not None and process.workers else None,
        "draining": process.draining if process is not None else False,
        "leaders": dict(sight.leaders),
        "loops": process.counts() if process is not None else {},
        "unknown": sight.unknown,
    }


def _in_pool(name: str, sight: Sight) -> int | None:
    if not sight.knows(name):
        return None
    return sum(regions.in_pool(sight.rules.services[name], each) for each in sight.snapshots.get(name, ()))


def _service(name: str, sight: Sight) -> dict[str, Any]:
    """A service that is split over shards is shown as one: its slots and lines are summed. Null: not known."""
    rules, snapshots, known = sight.rules, sight.snapshots.get(name, ()), sight.knows(name)
    service, override = rules.services[name], rules.overrides.get(name)
    waiting = {
        label: sum(each.waiting.get(band, 0) for each in snapshots) if known else None
        for band, label in BAND_NAMES.items()
    }
    means = [each.mean_duration for each in snapshots if each.mean_duration is not None]
    return {
        "service": name,
        "limit": service.limit,
        "in_use": sum(each.in_use for each in snapshots) if known else None,
        "held": sum(each.held for each in snapshots) if known else None,
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


STORE_WITHIN = 5.0
DISPATCHER_WITHIN = 2.0
"""Seconds: whoever looks wants to hear of a part that hangs, not to hang with it."""


async def readiness(store: Store | None, process: Process | None, probes: Probes) -> dict[str, Any]:
    """A process that accepts jobs is ready when the truth can be written: what waits for Redis is kept there."""
    asked: dict[str, tuple[Question, float]] = {"store": (lambda: _store(store), STORE_WITHIN)}
    if process is not None:
        for name, line in process.lines.items():
            asked[_label("dispatcher", name, process)] = partial(_dispatcher, process, line), DISPATCHER_WITHIN
    checks = await probes.ask_all(asked)
    needed = ["store"]
    if process is None:
        checks["dispatcher"] = "in another process"
    else:
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


async def _dispatcher(process: Process, line: Line) -> str:
    if line.broken is not None:
        return f"broke down ({type(line.broken).__name__}); see the log"
    try:
        states = await line.dispatcher.states(line.rules.scopes)
    except Unavailable as error:
        return shown(error)
    if all(state.open for state in states.values()):
        known_here = process.trusts({state.server for state in states.values()})
        return "ok" if known_here else "built by a manager; this process has yet to hear of it"
    rebuild = line.leader.scopes.rebuild if line.leader is not None else None
    return f"rebuilding: {rebuild.restored} waiting jobs restored so far" if rebuild else "being rebuilt by a manager"
