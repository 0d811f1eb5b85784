"""The status of services and regions, and whether this process can do its work.

A health check must answer in time even if a server hangs. A check that hangs is not cancelled, since a database driver
may block until its server confirms the cancellation. It is not repeated while it hangs either: with a health check
every few seconds, the hanging checks would use up all connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from fairlead.dispatch.port import Lease, RegionSnapshot, ServiceSnapshot
from fairlead.dispatch.rates import RateUse
from fairlead.domain.config_checks import spelled
from fairlead.domain.events import iso
from fairlead.domain.rates import Rate, RateOf
from fairlead.domain.rules import Adapted, Overridden, Rules, ServiceRules
from fairlead.engine.node import Node
from fairlead.engine.shard_runtime import ShardRuntime
from fairlead.errors import FairleadError, NotFound, Unavailable, shown
from fairlead.observe.snapshot import Observer, QueueSnapshot
from fairlead.store.port import Store

log = logging.getLogger("fairlead.status")

Question = Callable[[], Coroutine[Any, Any, str]]
WORKING, RESTING, PROBING = "working", "resting", "probing"
BAND_NAMES = {0: "retry", 1: "high", 2: "medium", 3: "low"}


class Probes:
    """Runs health checks of servers that may hang. The caller gets an answer in time, and the check continues in the
    background."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Task[Any]] = {}

    async def ask_all(self, questions: Mapping[str, tuple[Question, float]]) -> dict[str, str]:
        """Run all checks concurrently, each with its timeout in seconds. The answer of a check that times out says
        so."""
        answers = await asyncio.gather(*(self._ask(name, *question) for name, question in questions.items()))
        return dict(zip(questions, answers, strict=True))

    async def _ask(self, name: str, question: Question, within: float) -> str:
        task = self._running.get(name) or self._start(name, question())
        await asyncio.wait({task}, timeout=within)
        return str(task.result()) if task.done() else f"does not answer within {within:g} s"

    async def do(self, change: Coroutine[Any, Any, None], within: float) -> None:
        """Await a change for at most `within` seconds. If it takes longer, it continues in the background, and its
        failure is logged."""
        task = self._start(f"change-{id(change)}", change)
        await asyncio.wait({task}, timeout=within)
        if task.done():
            task.result()
        else:
            task.add_done_callback(_log_failure)

    def close(self) -> None:
        for task in list(self._running.values()):
            task.cancel()

    def _start(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._running[name] = asyncio.create_task(work, name=f"fairlead-probe-{name}")
        task.add_done_callback(lambda _: self._running.pop(name, None))
        return task


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a change that took too long has failed", exc_info=error)


def state_of(seen: RegionSnapshot) -> str:
    if seen.resting_until is not None:
        return RESTING
    return PROBING if seen.probing else WORKING


def region_states(rules: ServiceRules, snapshots: Sequence[ServiceSnapshot]) -> dict[str, dict[str, Any]]:
    """The state of each region of a service by name. Numbers that are not known are None. A service with regions is on
    one shard, so at most one of the snapshots has regions."""
    seen = {each.region: each for snapshot in snapshots for each in snapshot.regions}
    return {
        name: {
            "limit": limit,
            "weight": rules.region_weights.get(name, 1.0),
            "pool": rules.pool if rules.in_pool(name) else None,
            "rate": rate_dict(rules.region_rates.get(name)),
            **_region_state(seen.get(name)),
        }
        for name, limit in sorted(rules.regions.items())
    }


def _region_state(seen: RegionSnapshot | None) -> dict[str, Any]:
    if seen is None:
        return {"running": None, "waiting": {"main": None, "retry": None}, "breaker": None, "latency": None}
    return {
        "running": seen.in_use,
        "waiting": {"main": seen.waiting, "retry": seen.retrying},
        "breaker": {"state": state_of(seen), "failures": seen.failures, "resting_until": iso(seen.resting_until)},
        "latency": seen.latency,
    }


def in_pool(rules: ServiceRules, snapshot: ServiceSnapshot) -> int:
    """How many slots of its pool a service uses, according to this snapshot."""
    if rules.pooled_regions is None:
        return snapshot.in_use
    return sum(each.in_use for each in snapshot.regions if rules.in_pool(each.region))


def describe_region(region: str, queues: QueueSnapshot) -> dict[str, Any]:
    """The state of one region in all services that have it. Steps that may run in any region are counted separately
    (`waiting_anywhere`)."""
    rules, snapshots = queues.rules, queues.services
    known = sorted({name for each in rules.services.values() for name in each.regions})
    region = spelled(region, known)
    having = {name: each for name, each in sorted(rules.services.items()) if region in each.regions}
    if not having:
        choices = f"the regions are: {', '.join(known)}" if known else "there are no regions"
        raise NotFound(f"no service has the region {region!r}; {choices}")
    services = [
        {"service": name, **region_states(each, snapshots.get(name, ()))[region]} for name, each in having.items()
    ]
    unbound = [_unbound(snapshots.get(name, ())) for name in having]
    return {
        "region": region,
        "limit": sum(each["limit"] for each in services),
        "running": known_total(each["running"] for each in services),
        "waiting": {kind: known_total(each["waiting"][kind] for each in services) for kind in ("main", "retry")},
        "waiting_anywhere": {
            kind: known_total(each[at] for each in unbound) for at, kind in enumerate(("main", "retry"))
        },
        "services": services,
        "unknown": queues.unknown,
    }


def _unbound(snapshots: Sequence[ServiceSnapshot]) -> tuple[int | None, int | None]:
    return snapshots[0].unbound if snapshots else (None, None)


def known_total(counts: Iterable[int | None]) -> int | None:
    """The sum of the counts; None if one of the counts is not known."""
    known = list(counts)
    return None if None in known else sum(filter(None, known))


async def describe(observer: Observer, queues: QueueSnapshot | None = None) -> dict[str, Any]:
    queues = queues or await observer.queues()
    rules, node = queues.rules, observer.node
    models = await observer.models.recent()
    return {
        "services": [{**_service(name, queues), "models": models.get(name, {})} for name in sorted(rules.services)],
        "pools": {
            name: {
                "limit": limit,
                "in_use": known_total(
                    _in_pool(each, queues) for each, its in rules.services.items() if its.pool == name
                ),
            }
            for name, limit in rules.pools.items()
        },
        "shared_rates": shared_rates(rules),
        "jobs": await observer.job_counts.fresh(),
        "worker": node.name if node is not None and node.workers else None,
        "draining": node.draining if node is not None else False,
        "leaders": dict(queues.leaders),
        "loops": await observer.loops(),
        "unknown": queues.unknown,
    }


def _in_pool(name: str, queues: QueueSnapshot) -> int | None:
    if not queues.knows(name):
        return None
    return sum(in_pool(queues.rules.services[name], each) for each in queues.services.get(name, ()))


def _service(name: str, queues: QueueSnapshot) -> dict[str, Any]:
    """The status of one service. If the service is split over several shards, the numbers are sums over these shards.
    Numbers that are not known are None."""
    rules, snapshots, known = queues.rules, queues.services.get(name, ()), queues.knows(name)
    service = rules.services[name]
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
        "override": _override(name, rules),
        "auto": _auto(service, rules.adapted.get(name)),
        "order": service.order.value,
        "pool": service.pool,
        "shards": sorted(service.shares) or [service.shard],
        "waiting": waiting,
        "running": [lease_dict(lease) for each in snapshots for lease in each.leases],
        "mean_duration": sum(means) / len(means) if means else None,
        "regions": region_states(service, snapshots),
        "groups": group_states(snapshots, rules),
        "rate": rate_dict(service.rate),
        "user_rate": rate_dict(service.user_rate),
        "unit": service.cost_unit,
        "rates": rate_uses(name, rules, snapshots),
    }


def _override(name: str, rules: Rules) -> dict[str, Any] | None:
    """What operators changed of a service; None if nothing."""
    limits, rates = rules.overrides.get(name, Overridden()), rules.rate_overrides
    found = {
        **asdict(limits),
        "rate": rate_dict(rates.get(RateOf("service", name))),
        "user_rate": rate_dict(rates.get(RateOf("user", name))),
        "region_rates": {of.region: asdict(rate) for of, rate in rates.items() if of[:2] == ("region", name)},
    }
    return found if any(found.values()) else None


def group_states(snapshots: Sequence[ServiceSnapshot], rules: Rules) -> dict[str, dict[str, Any]]:
    """The groups that the service remembers, by path. The limit of a group holds on each shard by itself."""
    rates = rules.member_rates.groups
    found: dict[str, dict[str, Any]] = {}
    for snapshot in snapshots:
        once = {group.path: group for group in snapshot.groups}  # one row per band
        for path, group in sorted(once.items()):
            fields = {"weight": group.weight, "limit": group.limit, "rate": rate_dict(rates.get(path))}
            state = found.setdefault(path, {**fields, "members": 0, "running": 0, "parked": False})
            state["members"] += group.members
            state["running"] += group.running
            state["parked"] |= group.parked
    return found


def rate_dict(rate: Rate | None) -> dict[str, Any] | None:
    return None if rate is None else asdict(rate)


def shared_rates(rules: Rules) -> list[dict[str, Any]]:
    """The rates of pools, plans and groups, and whether an operator has set them."""
    by_kind = {"pool": rules.pool_rates, "plan": rules.plan_rates, "group": rules.member_rates.groups}
    rates = {RateOf(kind, name): rate for kind, found in by_kind.items() for name, rate in sorted(found.items())}
    return [
        {
            "of": of.kind,
            "name": of.name,
            "rate": asdict(rate),
            "unit": rules.unit_of(of),
            "overridden": of in rules.rate_overrides,
        }
        for of, rate in rates.items()
    ]


def rate_uses(service: str, rules: Rules, snapshots: Sequence[ServiceSnapshot]) -> list[dict[str, Any]]:
    return [_rate_use(use, use.unit(service, rules)) for each in snapshots for use in each.rates]


def _rate_use(use: RateUse, unit: str) -> dict[str, Any]:
    """How much of a rate is used."""
    return {
        "of": use.kind,
        "name": use.name,
        "rate": rate_dict(use.rate),
        "unit": unit,
        "requests": use.requests,
        "units": use.units,
        "full": use.full,
        "until": iso(use.until) if use.until else None,
        "resting_until": iso(use.resting_until),
    }


def _auto(service: ServiceRules, adapted: Adapted | None) -> dict[str, Any] | None:
    """The bounds, the current value and the latest changes of a limit that is discovered automatically; None for other
    limits."""
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


async def readiness(store: Store | None, node: Node | None, probes: Probes) -> dict[str, Any]:
    """Whether this process can do its work, and the result of each check. A process that accepts jobs is ready if the
    database can be written: while Redis is down, jobs wait in the database."""
    questions: dict[str, tuple[Question, float]] = {"store": (lambda: _store(store), STORE_WITHIN)}
    if node is not None:
        for name, shard in node.shards.items():
            label = "dispatcher" if len(node.shards) == 1 else f"dispatcher {name}"
            questions[label] = partial(_dispatcher, node, shard), DISPATCHER_WITHIN
    checks = await probes.ask_all(questions)
    needed = ["store"]
    if node is None:
        checks["dispatcher"] = "in another process"
    else:
        if not node.distributed:
            needed = list(checks)
        if node.workers:
            checks["worker"] = _worker(node)
            if node.leaving:
                needed.append("worker")
    return {"ready": all(checks[name] == "ok" for name in needed), "checks": checks}


def _worker(node: Node) -> str:
    if node.draining:
        return "draining"
    return next((worker.outage.reason for worker in node.workers if worker.outage.reason is not None), "ok")


async def _store(store: Store | None) -> str:
    if store is None:
        return "not open"
    try:
        await store.ping()
    except FairleadError as error:
        log.info("the store is not ready: %s", error)
        return shown(error)
    return "ok"


async def _dispatcher(node: Node, shard: ShardRuntime) -> str:
    if shard.broken is not None:
        return f"broke down ({type(shard.broken).__name__}); see the log"
    try:
        states = await shard.dispatcher.states(shard.rules.scopes)
    except Unavailable as error:
        return shown(error)
    if all(state.open for state in states.values()):
        known_here = node.trusts({state.server for state in states.values()})
        return "ok" if known_here else "built by a manager; this process has not been notified yet"
    lost = "data was lost; " if any(state.lost for state in states.values()) else ""
    rebuild = shard.leader.scopes.rebuild if shard.leader is not None else None
    if rebuild is None:
        return f"{lost}being rebuilt by a manager"
    return f"{lost}rebuilding: {rebuild.restored} waiting jobs restored so far"
