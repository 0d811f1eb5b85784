"""The lines and their slots: what keeps jobs waiting that could run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fairlead.dispatch.port import RegionSnapshot, ServiceSnapshot
from fairlead.domain.job import Priority
from fairlead.domain.limits import BANDS, Order, ServiceRules
from fairlead.domain.processes import ProcessRecord
from fairlead.runtime import registry
from fairlead.runtime.doctor.facts import API, WORKER, Facts, LineFacts
from fairlead.runtime.doctor.finding import Finding, Kind, Severity, counted
from fairlead.runtime.doctor.workers import takers, without_worker
from fairlead.runtime.events import iso
from fairlead.runtime.regions import in_pool

PAUSED = Kind("service-paused", Severity.WARNING, "a service is paused")
OVERRIDDEN = Kind("limit-overridden", Severity.NOTE, "a limit was changed at run time")
ABOVE_LIMIT = Kind("above-limit", Severity.WARNING, "more calls are open than the limit allows", passing=True)
HELD = Kind("held-full", Severity.WARNING, "holds keep a service full", passing=True)
WORKERS_FULL = Kind("workers-full", Severity.WARNING, "slots are free, and all workers are full", passing=True)
WAITING_WHILE_FREE = Kind("waiting-while-free", Severity.ERROR, "jobs wait while slots are free", passing=True)
RESTING = Kind("region-resting", Severity.WARNING, "a region rests because it failed", passing=True)
REGION_UNDECLARED = Kind("region-undeclared", Severity.ERROR, "jobs wait for a region that their service has no more")
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
    stranded = _stranded(rules, snapshot)
    if stranded:
        yield _region_undeclared(rules, stranded)
    # Which of the waiting are bound to a region is not seen: those that nobody takes are told elsewhere.
    elsewhere = any(without_worker(facts, service).values())
    if waiting > stranded and not elsewhere and _has_room(facts, line, rules, snapshot):
        yield from _idle(facts, rules, snapshot, line.parked.get(service, 0))


def _stranded(rules: ServiceRules, snapshot: ServiceSnapshot) -> int:
    """How many wait in lanes that no region serves, at least: what may go to several is counted in each of them."""
    served = sum(snapshot.unbound) + sum(each.waiting + each.retrying for each in snapshot.regions)
    # A dispatcher that has not heard of all regions yet does not say who waits for them.
    known = bool(rules.regions) and rules.regions.keys() == {each.region for each in snapshot.regions}
    return max(0, sum(snapshot.waiting.values()) - served) if known else 0


def _region_undeclared(rules: ServiceRules, stranded: int) -> Finding:
    service = rules.service
    return REGION_UNDECLARED.found(
        f"{service}: {counted(stranded, 'job', 'wait')} for a region that is not declared any more; "
        f"declared are {', '.join(sorted(rules.regions))}",
        fix=f"declare it again; or let those go elsewhere that only asked for it, `fairlead rebuild {service}`, and "
        "cancel those that may go nowhere else: `fairlead cancel ID`",
        about=service,
        service=service,
        waiting=stranded,
        regions=sorted(rules.regions),
    )


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
        f"the last {counted(region.failures, 'call')} of {service} in {region.region} failed: "
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
            in_pool(facts.rules.services[name], each)
            for name, each in line.snapshots.items()
            if name in facts.rules.services and facts.rules.services[name].pool == rules.pool
        )
        # Where only some of its regions count there, a step may need none of its slots: which wait is not seen here.
        if used >= facts.rules.pools.get(rules.pool, 0):
            return False
    if any(region.resting_until is not None or region.probing for region in snapshot.regions):
        return False
    regions = [lease.region for lease in snapshot.leases] + [hold.region for hold in snapshot.holds]
    # Which of the waiting are bound to a region is not seen here: only when all have room is it sure that one has.
    return all(regions.count(region) < limit for region, limit in rules.regions.items())


def _idle(facts: Facts, rules: ServiceRules, snapshot: ServiceSnapshot, parked: int) -> Iterator[Finding]:
    """Band by band: who waits in one that no worker takes is told elsewhere, and hides nothing of the others."""
    service, full, idle = rules.service, _Waiting(), _Waiting()
    for band, waiting in snapshot.waiting.items():
        found = [
            each for each in takers(facts, service) if _takes(each, band, rules) and not each.details.get("problem")
        ]
        if waiting and found:
            has_room = any(each.running < each.concurrency for each in found)
            (idle if has_room else full).add(waiting, found)
    # Of which bands those are who are at their own limit is not seen: they are taken off both.
    if full.jobs > parked:
        yield _workers_full(facts, rules, snapshot, full, full.jobs - parked)
    if idle.jobs > parked:
        yield _nothing_granted(facts, rules, snapshot, idle, idle.jobs - parked)


@dataclass
class _Waiting:
    """Jobs, and the workers that would take them."""

    jobs: int = 0
    workers: dict[str, ProcessRecord] = field(default_factory=dict)

    def add(self, jobs: int, workers: list[ProcessRecord]) -> None:
        self.jobs += jobs
        self.workers |= {each.name: each for each in workers}

    def silent(self, now: float) -> list[ProcessRecord]:
        """Those with room who missed an announcement, if nobody else has room."""
        with_room = [each for each in self.workers.values() if each.running < each.concurrency]
        silent = [each for each in with_room if now - each.seen_at > 2 * registry.EVERY]
        return silent if len(silent) == len(with_room) else []


def _takes(worker: ProcessRecord, band: int, rules: ServiceRules) -> bool:
    """It surely takes some of what waits there. Of one that is bound to regions nobody knows: what waits may be for
    others."""
    any_band = rules.order is Order.FIFO or band not in BANDS
    return not worker.details.get("regions") and (any_band or Priority.of_band(band).value in worker.bands)


def _evidence(rules: ServiceRules, snapshot: ServiceSnapshot, waiting: _Waiting, jobs: int) -> dict[str, Any]:
    return {
        "service": rules.service,
        "waiting": jobs,
        "free": rules.limit - snapshot.in_use,
        "limit": rules.limit,
        "workers": {name: f"{each.running} of {each.concurrency}" for name, each in waiting.workers.items()},
    }


def _workers_full(
    facts: Facts, rules: ServiceRules, snapshot: ServiceSnapshot, waiting: _Waiting, jobs: int
) -> Finding:
    service, evidence = rules.service, _evidence(rules, snapshot, waiting, jobs)
    another = facts.starts(WORKER, service, options=f" --services {service}")
    return WORKERS_FULL.found(
        f"{service}: {counted(jobs, 'job', 'wait')} and {counted(evidence['free'], 'slot', 'are')} free, but every "
        "worker that takes them runs as many calls as its concurrency allows",
        fix=f"start another: {another}; or raise worker.concurrency and restart"
        if facts.distributed
        else f"raise worker.concurrency, and restart: {facts.starts('up')}",
        about=service,
        **evidence,
    )


def _nothing_granted(
    facts: Facts, rules: ServiceRules, snapshot: ServiceSnapshot, waiting: _Waiting, jobs: int
) -> Finding:
    service, evidence = rules.service, _evidence(rules, snapshot, waiting, jobs)
    # Whatever is granted meanwhile shows in one of these: then the line moves, and all is well.
    moved = (
        tuple(sorted(lease.name for lease in snapshot.leases)),
        tuple(sorted(snapshot.virtual_time.items())),
        snapshot.mean_duration,
    )
    free = f"{service}: {counted(jobs, 'job', 'wait')}, {counted(evidence['free'], 'slot', 'are')} free"
    restart = facts.starts(WORKER if facts.distributed else "up", service)
    if silent := waiting.silent(facts.now):
        evidence["silent"] = {each.name: round(facts.now - each.seen_at, 1) for each in silent}
        cause = f"{free}, but the workers with room, {', '.join(evidence['silent'])}, have fallen silent: they hang"
        fix = f"restart them: {restart}"
    else:
        cause = (
            f"{free} and workers have room, but nothing is granted: a part of the line was lost, or its workers are "
            "stuck"
        )
        fix = (
            f"build the line anew: `fairlead rebuild {service}`; if that does not help, restart its workers: {restart}"
        )
    return WAITING_WHILE_FREE.found(cause, fix=fix, about=service, mark=moved, **evidence)


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
            f"{facts.starts(API if facts.distributed else 'up')}; or end them: `fairlead cancel ID`",
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
            + facts.starts(API if facts.distributed else "up"),
            about=service,
            service=service,
        )
