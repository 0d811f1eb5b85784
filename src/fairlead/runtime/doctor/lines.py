"""The lines and their slots: what keeps jobs waiting that could run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairlead.dispatch.port import RegionSnapshot, ServiceSnapshot
from fairlead.domain.job import Priority
from fairlead.domain.limits import BANDS, Order, ServiceRules
from fairlead.domain.processes import ProcessRecord
from fairlead.runtime.doctor.facts import Facts, LineFacts
from fairlead.runtime.doctor.finding import Finding, Kind, Severity, counted
from fairlead.runtime.doctor.workers import takers
from fairlead.runtime.events import iso

PAUSED = Kind("service-paused", Severity.WARNING, "a service is paused")
OVERRIDDEN = Kind("limit-overridden", Severity.NOTE, "a limit was changed at run time")
ABOVE_LIMIT = Kind("above-limit", Severity.WARNING, "more calls are open than the limit allows", passing=True)
HELD = Kind("held-full", Severity.WARNING, "holds keep a service full", passing=True)
WORKERS_FULL = Kind("workers-full", Severity.WARNING, "slots are free, and all workers are full", passing=True)
WAITING_WHILE_FREE = Kind("waiting-while-free", Severity.ERROR, "jobs wait while slots are free", passing=True)
RESTING = Kind("region-resting", Severity.WARNING, "a region rests because it failed", passing=True)
NOT_IN_LINE = Kind("not-in-line", Severity.ERROR, "jobs wait in the database and not in the line", passing=True)
UNDECLARED = Kind("service-undeclared", Severity.ERROR, "jobs wait for a service that nobody declares")
NOT_CONFIGURED = Kind("service-not-configured", Severity.NOTE, "a service is declared, but not by this gateway")


def check(facts: Facts) -> Iterator[Finding]:
    if not facts.truth_is_known:
        return
    yield from _rules(facts)
    for shard, line in facts.lines.items():
        for service, snapshot in line.snapshots.items():
            rules = facts.rules.services.get(service)
            part = rules.on(shard) if rules is not None else None
            if part is not None:
                yield from _slots(facts, line, part, snapshot)
    yield from _truth(facts)


def _rules(facts: Facts) -> Iterator[Finding]:
    for service, rules in sorted(facts.rules.services.items()):
        waiting = sum(facts.waiting(service).values())
        if rules.paused:
            yield PAUSED.found(
                f"an operator paused {service}: nothing is granted from its line, {counted(waiting, 'job', 'wait')}",
                fix=f"`fairlead unpause {service}`",
                about=service,
                service=service,
                waiting=waiting,
            )
        declared = facts.declared_limits.get(service)
        said = "auto" if rules.auto is not None else declared
        if declared is not None and declared != rules.limit and not _found_by_itself(facts, rules):
            yield OVERRIDDEN.found(
                f"an operator set the limit of {service} to {rules.limit}; the configuration says {said}, "
                "and counts again when the change is lifted",
                fix=f"`fairlead limit {service} --lift`",
                about=service,
                service=service,
                limit=rules.limit,
                declared=declared,
            )


def _found_by_itself(facts: Facts, rules: ServiceRules) -> bool:
    """Such a limit moves all the time, and calls that were open when it fell may end: nothing is amiss."""
    override = facts.rules.overrides.get(rules.service)
    return rules.auto is not None and (override is None or override.limit is None)


def _slots(facts: Facts, line: LineFacts, rules: ServiceRules, snapshot: ServiceSnapshot) -> Iterator[Finding]:
    service, waiting = rules.service, sum(snapshot.waiting.values())
    if len(snapshot.leases) > rules.limit and not _found_by_itself(facts, rules):
        yield _above(facts, rules, snapshot)
    if snapshot.held and waiting and snapshot.in_use >= rules.limit:
        yield _held(rules, snapshot, waiting)
    for region in snapshot.regions:
        if region.resting_until is not None or region.probing:
            yield _resting(service, region)
    runnable = waiting - line.parked.get(service, 0)
    if runnable > 0 and _has_room(facts, line, rules, snapshot):
        yield from _idle(facts, rules, snapshot, runnable)


def _above(facts: Facts, rules: ServiceRules, snapshot: ServiceSnapshot) -> Finding:
    service = rules.service
    lift = facts.declared_limits.get(service, rules.limit) > rules.limit
    return ABOVE_LIMIT.found(
        f"{len(snapshot.leases)} calls of {service} are open, its limit is {rules.limit}: it was lowered while they "
        "ran, and nothing new is granted until enough of them have ended",
        fix="wait for them to end"
        + (f"; or take the lower limit back: `fairlead limit {service} --lift`" if lift else ""),
        about=service,
        service=service,
        limit=rules.limit,
        open=len(snapshot.leases),
        jobs=[lease.job_id for lease in snapshot.leases[:10]],
    )


def _held(rules: ServiceRules, snapshot: ServiceSnapshot, waiting: int) -> Finding:
    service, until = rules.service, max(hold.until for hold in snapshot.holds)
    more = rules.limit + snapshot.held
    return HELD.found(
        f"{service}: {counted(snapshot.held, 'slot', 'are')} held for calls whose worker died, and which the endpoint "
        f"may still be computing. The last hold ends at {iso(until)}, and {counted(waiting, 'job', 'wait')}",
        fix=f"wait; or, if the endpoint does not compute them any more, lend it as many slots: "
        f"`fairlead limit {service} {more}`, and later `fairlead limit {service} --lift`",
        about=service,
        service=service,
        limit=rules.limit,
        held=snapshot.held,
        waiting=waiting,
        until=iso(until),
        jobs=[hold.job_id for hold in snapshot.holds[:10]],
    )


def _resting(service: str, region: RegionSnapshot) -> Finding:
    until = iso(region.resting_until)
    return RESTING.found(
        f"the last {counted(region.failures, 'call', 'failed')} of {service} in {region.region}: "
        + (f"nothing is sent there until {until}" if until else "one call is to show whether it works again"),
        fix=f"look after the endpoint of {service} in {region.region}; the errors are in the attempts of its jobs",
        about=f"{service} {region.region}",
        service=service,
        region=region.region,
        failures=region.failures,
        until=until,
    )


def _has_room(facts: Facts, line: LineFacts, rules: ServiceRules, snapshot: ServiceSnapshot) -> bool:
    state = line.states.get(rules.scope)
    if rules.paused or state is None or not state.open or snapshot.in_use >= rules.limit:
        return False
    if rules.pool is not None:
        used = sum(
            each.in_use
            for name, each in line.snapshots.items()
            if name in facts.rules.services and facts.rules.services[name].pool == rules.pool
        )
        if used >= facts.rules.pools.get(rules.pool, 0):
            return False
    if any(region.resting_until is not None or region.probing for region in snapshot.regions):
        return False
    regions = [lease.region for lease in snapshot.leases] + [hold.region for hold in snapshot.holds]
    # Which of the waiting are bound to a region is not seen here: only when all have room is it sure that one has.
    return all(regions.count(region) < limit for region, limit in rules.regions.items())


def _idle(facts: Facts, rules: ServiceRules, snapshot: ServiceSnapshot, runnable: int) -> Iterator[Finding]:
    service, found = rules.service, takers(facts, rules.service)
    bands = {band for process in found for band in process.bands}
    if not found or len(bands) < 3 or all(process.details.get("problem") for process in found):
        return  # then that is the cause, and is told
    able = [each for each in found if _takes(each, rules, snapshot)]
    if not able:
        return  # what waits may be for others, and whether they have room is not known
    room = {process.name: process.concurrency - process.running for process in able}
    free = rules.limit - snapshot.in_use
    evidence: dict[str, Any] = {
        "service": service,
        "waiting": runnable,
        "free": free,
        "limit": rules.limit,
        "workers": {process.name: f"{process.running} of {process.concurrency}" for process in found},
    }
    if max(room.values()) <= 0:
        yield WORKERS_FULL.found(
            f"{service}: {counted(runnable, 'job', 'wait')} and {counted(free, 'slot', 'are')} free, but every worker "
            "runs as many calls as its concurrency allows",
            fix=f"start another: `fairlead worker --services {service}`; or raise worker.concurrency and restart"
            if facts.distributed
            else "raise worker.concurrency, and restart: `fairlead up`",
            about=service,
            **evidence,
        )
        return
    # Whatever is granted meanwhile shows in one of these: then the line moves, and all is well.
    moved = (
        tuple(sorted(lease.name for lease in snapshot.leases)),
        tuple(sorted(snapshot.virtual_time.items())),
        snapshot.mean_duration,
    )
    yield WAITING_WHILE_FREE.found(
        f"{service}: {counted(runnable, 'job', 'wait')}, {counted(free, 'slot', 'are')} free and workers have room, "
        "but nothing is granted: a part of the line was lost, or its workers are stuck",
        fix=f"build the line anew: `fairlead rebuild {service}`; if that does not help, restart its workers: "
        f"`fairlead {'worker' if facts.distributed else 'up'}`",
        about=service,
        mark=moved,
        **evidence,
    )


def _takes(worker: ProcessRecord, rules: ServiceRules, snapshot: ServiceSnapshot) -> bool:
    """It surely takes some of what waits: not one that is bound to other priorities, or to regions."""
    waiting = {Priority.of_band(band).value for band, count in snapshot.waiting.items() if count and band in BANDS}
    any_band = rules.order is Order.FIFO or rules.retries_first
    return not worker.details.get("regions") and (any_band or not waiting.isdisjoint(worker.bands))


def _truth(facts: Facts) -> Iterator[Finding]:
    for service, jobs in facts.missing.items():
        yield NOT_IN_LINE.found(
            f"{service}: {counted(len(jobs), 'job', 'wait')} in the database, and the line knows nothing of it",
            fix=f"`fairlead rebuild {service}`",
            about=service,
            service=service,
            jobs=list(jobs[:10]),
        )
    for service, count in facts.undeclared.items():
        yield UNDECLARED.found(
            f"{counted(count, 'job', 'wait')} for {service}, which no configuration declares any more: until one does, "
            "nothing is granted",
            fix=f"declare [services.{service}] again and restart a gateway: "
            f"`fairlead {'api' if facts.distributed else 'up'}`; or end them: `fairlead cancel ID`",
            about=service,
            service=service,
            waiting=count,
        )
    unknown = () if facts.outside else facts.rules.services.keys() - facts.config.services.keys()
    for service in sorted(unknown):
        yield NOT_CONFIGURED.found(
            f"the database has {service} among its services, this gateway's configuration has not: a worker with "
            "another configuration declared it, and jobs for it are refused here",
            fix=f"add [services.{service}] to the gateway's configuration and restart it: "
            f"`fairlead {'api' if facts.distributed else 'up'}`",
            about=service,
            service=service,
        )
