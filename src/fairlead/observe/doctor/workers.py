"""Checks of workers: whether every service, priority and region has a worker, and whether the workers can work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairlead.dispatch.port import Lease
from fairlead.domain.job import Priority
from fairlead.domain.processes import ProcessRecord, process_of
from fairlead.domain.rules import BANDS, Order
from fairlead.domain.turns import is_turn
from fairlead.observe.doctor.facts import API, MANAGER, WORKER, Facts
from fairlead.observe.doctor.finding import Finding, Kind, Severity, counted, shown

BLOCKED_LATELY = 600.0
"""Seconds for which a blocked event loop is reported afterwards."""
RECOVERED_WITHIN = 5.0
"""The leader recovers a lease within this many seconds after the lease has expired."""

NO_WORKER = Kind("no-worker", Severity.ERROR, "a service has no worker")
NO_WORKER_FOR_BAND = Kind("no-worker-for-band", Severity.ERROR, "a priority of a service has no worker")
NO_WORKER_FOR_REGION = Kind("no-worker-for-region", Severity.ERROR, "a region of a service has no worker")
WORKER_DRAINING = Kind("worker-draining", Severity.WARNING, "a worker is draining at an operator's request")
WORKER_CANNOT_CLAIM = Kind("worker-cannot-claim", Severity.ERROR, "a worker cannot claim jobs", passing=True)
WORKER_CUT_OFF = Kind("worker-cut-off", Severity.ERROR, "a worker cannot reach the database", passing=True)
WORKER_GONE = Kind("worker-gone", Severity.WARNING, "workers that are gone still hold slots", passing=True)
LOOP_BLOCKED = Kind("event-loop-blocked", Severity.WARNING, "a handler blocks its worker's event loop")
VERSIONS_DIFFER = Kind("versions-differ", Severity.NOTE, "processes run different versions")


def check(facts: Facts) -> Iterator[Finding]:
    if not facts.database_is_known:
        return
    yield from _takers(facts)
    yield from _draining(facts)
    yield from _outages(facts)
    yield from _cut_off(facts)
    yield from _gone(facts)
    yield from _blocked(facts)
    yield from _versions(facts)


def takers(facts: Facts, service: str) -> list[ProcessRecord]:
    """The live workers that may claim steps of this service. One process may have several workers."""
    processes = [each for each in facts.having(WORKER) if not _drains(each)]
    return [worker for each in processes for worker in each.workers if service in worker.services]


def _drains(process: ProcessRecord) -> bool:
    return process.draining or process.drain_asked


def _start(facts: Facts, service: str, bands: str = "") -> str:
    """The command that starts a worker for this service."""
    if not facts.distributed:
        return facts.starts("up")
    return facts.starts(WORKER, service, options=f" --services {service}{f' --bands {bands}' if bands else ''}")


def _takers(facts: Facts) -> Iterator[Finding]:
    for service in sorted(facts.rules.services):
        waiting = facts.waiting(service)
        total = sum(waiting.values())
        if facts.rules.services[service].turns_only:
            continue  # turns need no worker
        found = takers(facts, service)
        if not found:
            yield _none(facts, service, total)
            continue
        yield from _regions(facts, service, found)
        fifo = facts.rules.services[service].order is Order.FIFO
        taken = {Priority(band).band for process in found for band in process.bands}
        for band in BANDS:
            if band not in taken and not fifo:  # a FIFO lane has no priorities
                name = Priority.of_band(band).value
                yield NO_WORKER_FOR_BAND.found(
                    f"{service}: {counted(len(found), 'worker', 'run')}, but none takes {name} jobs",
                    fix=f"start one: {_start(facts, service, name)}",
                    about=f"{service} {name}",
                    severity=_by_waiting(waiting.get(band, 0)),
                    service=service,
                    band=name,
                    waiting=waiting.get(band, 0),
                    workers={process.name: list(process.bands) for process in found},
                )


def without_worker(facts: Facts, service: str) -> dict[str, int]:
    """The regions of a service that have no live worker, each with the number of waiting jobs that are bound to the
    region."""
    bound = [worker.details.get("regions") for worker in takers(facts, service)]
    there = facts.rules.services[service].regions
    missing = [] if None in bound else sorted(set(there).difference(*(regions or () for regions in bound)))
    seen = {
        region.region: region.waiting + region.retrying
        for shard in facts.shards.values()
        if service in shard.services
        for region in shard.services[service].regions
    }
    return {region: seen.get(region, 0) for region in missing}


def _regions(facts: Facts, service: str, found: list[ProcessRecord]) -> Iterator[Finding]:
    for region, waiting in without_worker(facts, service).items():
        if facts.distributed:
            start = facts.starts(WORKER, service, options=f" --services {service} --regions {region}")
            fix = f"start one: {start}"
        else:
            fix = f"add {region} to the `regions` of one of [worker_pools] and restart: {facts.starts('up')}"
        yield NO_WORKER_FOR_REGION.found(
            f"{service}: {counted(len(found), 'worker', 'run')}, but none takes calls in {region}"
            + (f", for which {counted(waiting, 'job', 'wait')}" if waiting else ""),
            fix=fix,
            about=f"{service} {region}",
            severity=_by_waiting(waiting),
            service=service,
            region=region,
            waiting=waiting,
            workers={worker.name: worker.details.get("regions") for worker in found},
        )


def _by_waiting(waiting: int) -> Severity:
    return Severity.ERROR if waiting else Severity.WARNING


def _none(facts: Facts, service: str, waiting: int) -> Finding:
    draining = [each.name for each in facts.having(WORKER) if service in each.services]
    silent = [each.name for each in facts.processes if service in each.services and not each.alive(facts.now)]
    if draining:
        cause = f"all workers of {service} are draining"
        fix = f"let one claim again: `fairlead workers drain {draining[0]} --undo`; or start one: "
    else:
        cause = f"no live worker serves {service}" + (
            f"; {', '.join(silent)} stopped announcing themselves" if silent else ""
        )
        fix = "start one: "
    return NO_WORKER.found(
        cause,
        fix=fix + _start(facts, service),
        about=service,
        severity=_by_waiting(waiting),
        service=service,
        waiting=waiting,
        draining=draining,
        silent=silent,
        workers=[each.name for each in facts.having(WORKER)],
    )


def _draining(facts: Facts) -> Iterator[Finding]:
    for process in facts.having(WORKER):
        if process.drain_asked:
            yield WORKER_DRAINING.found(
                f"an operator asked {process.name} to drain: it finishes its calls and starts no others",
                fix=f"let it claim again: `fairlead workers drain {process.name} --undo`; or restart it",
                about=process.name,
                host=process.host,
                pid=process.pid,
                running=process.running,
                services=list(process.services),
            )


def _outages(facts: Facts) -> Iterator[Finding]:
    away = [redis.shown for redis in facts.redis.values() if redis.problem is not None]
    for process in facts.having(WORKER):
        if reason := process.details.get("problem"):
            again = f"start Redis ({', '.join(away)})" if away else f"let {process.host} reach its REDIS_URL"
            yield WORKER_CANNOT_CLAIM.found(
                f"{process.name} cannot reach the dispatcher: {reason}",
                fix=f"{again}: the worker reconnects by itself. If its REDIS_URL is wrong, "
                f"start it with the right one: {facts.starts(WORKER, *process.services)}",
                about=process.name,
                host=process.host,
                pid=process.pid,
                reason=reason,
            )


def _cut_off(facts: Facts) -> Iterator[Finding]:
    for process in facts.processes:
        if process.name in facts.cut_off and WORKER in process.roles:
            yield WORKER_CUT_OFF.found(
                f"{process.name} answers through Redis but has not reached the database for "
                f"{shown(facts.now - process.seen_at)}: it claims no job and keeps the results of its calls until the "
                "database is reachable again",
                fix=f"check that {process.host} can reach DATABASE_URL; meanwhile start another: "
                f"{facts.starts(WORKER, *process.services)}",
                about=process.name,
                host=process.host,
                pid=process.pid,
                silent=round(facts.now - process.seen_at, 1),
                services=list(process.services),
            )


def _gone(facts: Facts) -> Iterator[Finding]:
    known = {process.name for process in facts.alive}
    for name, shard in facts.shards.items():
        for service, snapshot in shard.services.items():
            leases = [
                lease
                for lease in snapshot.leases
                if lease.worker and process_of(lease.worker) not in known and not _is_handed_over(lease, shard.taken_at)
            ]
            if not leases:
                continue
            late = max(shard.taken_at - lease.expires_at for lease in leases)
            stuck = late > RECOVERED_WITHIN
            if stuck:
                cause = "their leases have expired, but no manager recovers them"
                fix = f"start one: {facts.starts(MANAGER if facts.distributed else 'up')}"
            else:
                cause = f"their worker died or lost its connection; the leader recovers the slots within {shown(-late)}"
                fix = f"wait {shown(max(0.0, -late) + RECOVERED_WITHIN)}; and start another: {_start(facts, service)}"
            yield WORKER_GONE.found(
                f"{counted(len(leases), 'slot')} of {service}: {cause}",
                fix=fix,
                about=service,
                severity=Severity.ERROR if stuck else None,
                service=service,
                shard=name,
                workers=sorted({lease.worker for lease in leases}),
                jobs=[lease.job_id for lease in leases[:10]],
                expires_in=round(-late, 1),
            )


def _is_handed_over(lease: Lease, now: float) -> bool:
    """Whether the lease belongs to a turn and is still renewed. A turn's lease has the name of the process that claimed
    it, but the process of the turn's caller renews it."""
    return is_turn(lease.job_id) and lease.expires_at > now


def _blocked(facts: Facts) -> Iterator[Finding]:
    """Find processes whose event loop is blocked. The process reports this itself once its loop runs again. Until then
    its leases show it: the heartbeat thread still renews them, although the process no longer renews its
    registration."""
    for process in facts.processes:
        silent = facts.now - process.seen_at
        blocked = process.details.get("blocked")
        if not process.alive(facts.now):
            if process.name not in facts.cut_off and _renews(facts, process):
                yield _is_blocked(facts, process, f"its event loop has been blocked for {shown(silent)}", silent)
        elif blocked and blocked.get("handler", True) and blocked["ago"] <= BLOCKED_LATELY:
            cause = f"its event loop was blocked for more than a second, {shown(blocked['ago'])} ago"
            yield _is_blocked(facts, process, cause, blocked["ago"], where=blocked["where"])


def _renews(facts: Facts, process: ProcessRecord) -> bool:
    """Whether the process has renewed a lease since it last renewed its registration: it has a valid lease whose TTL is
    shorter than the time since then."""
    return any(
        process_of(lease.worker) == process.name
        and not is_turn(lease.job_id)
        and lease.expires_at > shard.taken_at
        and _ttl(facts, service) < facts.now - process.seen_at
        for shard in facts.shards.values()
        for service, snapshot in shard.services.items()
        for lease in snapshot.leases
    )


def _ttl(facts: Facts, service: str) -> float:
    rules = facts.rules.services.get(service)
    return rules.lease_ttl if rules is not None else float("inf")


def _is_blocked(facts: Facts, process: ProcessRecord, cause: str, seconds: float, **evidence: Any) -> Finding:
    return LOOP_BLOCKED.found(
        f"{process.name}: {cause}; nothing else in that process runs meanwhile",
        fix="an async handler must not block: make it a plain `def`, which runs in a thread, "
        'or set `run_in = "process"` for its service; then restart the worker: '
        + facts.starts(WORKER if facts.distributed else "up", *process.services),
        about=process.name,
        host=process.host,
        pid=process.pid,
        seconds=round(seconds, 1),
        services=list(process.services),
        **evidence,
    )


def _versions(facts: Facts) -> Iterator[Finding]:
    by_version: dict[str, list[str]] = {}
    for process in facts.alive:
        by_version.setdefault(process.version, []).append(process.name)
    if len(by_version) > 1:
        yield VERSIONS_DIFFER.found(
            "an upgrade is in progress or incomplete",
            fix="restart the older processes with the newer version: "
            + ", ".join(facts.starts(role) for role in (WORKER, MANAGER, API)),
            versions=by_version,
        )
