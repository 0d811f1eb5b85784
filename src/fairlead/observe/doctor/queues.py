"""Checks of queues and slots: finds jobs that wait although they could run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fairlead.dispatch.port import RegionSnapshot, ServiceSnapshot
from fairlead.domain.events import iso
from fairlead.domain.job import Priority
from fairlead.domain.processes import ProcessRecord
from fairlead.domain.rules import BANDS, Order, ServiceRules
from fairlead.engine import registry
from fairlead.observe.doctor.facts import API, WORKER, Facts
from fairlead.observe.doctor.finding import Finding, Kind, Severity, counted, shown
from fairlead.observe.doctor.workers import takers, without_worker
from fairlead.observe.snapshot import ShardSnapshot
from fairlead.observe.status import in_pool

REPAIRED_LATELY = 600.0
"""Seconds for which a repair of the queue is reported afterwards."""

PAUSED = Kind("service-paused", Severity.WARNING, "a service is paused")
OVERRIDDEN = Kind("limit-overridden", Severity.NOTE, "a limit was changed at run time")
ABOVE_LIMIT = Kind("above-limit", Severity.WARNING, "more calls are open than the limit allows", passing=True)
HELD = Kind("held-full", Severity.WARNING, "held slots keep a service full", passing=True)
WORKERS_FULL = Kind("workers-full", Severity.WARNING, "slots are free, but all workers are full", passing=True)
WAITING_WHILE_FREE = Kind("waiting-while-free", Severity.ERROR, "jobs wait while slots are free", passing=True)
RESTING = Kind("region-resting", Severity.WARNING, "a region is suspended after failures", passing=True)
REGION_UNDECLARED = Kind("region-undeclared", Severity.ERROR, "jobs wait for a region that is no longer declared")
QUEUE_REPAIRED = Kind("queue-repaired", Severity.WARNING, "jobs were missing from the queue and were restored")
NOT_IN_LINE = Kind("not-in-line", Severity.ERROR, "jobs are missing from the queue", passing=True)
UNDECLARED = Kind("service-undeclared", Severity.ERROR, "jobs wait for a service that is not declared")
NOT_CONFIGURED = Kind("service-not-configured", Severity.NOTE, "a service is missing from this gateway's configuration")


def check(facts: Facts) -> Iterator[Finding]:
    if not facts.database_is_known:
        return
    yield from _rules(facts)
    for name, shard in facts.shards.items():
        for service, snapshot in shard.services.items():
            rules = facts.rules.services.get(service)
            part = rules.on(name) if rules is not None else None
            if part is not None:
                yield from _slots(facts, shard, part, snapshot)
    yield from _repaired(facts)
    yield from _consistency(facts)


def _rules(facts: Facts) -> Iterator[Finding]:
    for service, rules in sorted(facts.rules.services.items()):
        waiting = sum(facts.waiting(service).values())
        if rules.paused:
            yield PAUSED.found(
                f"an operator paused {service}: {counted(waiting, 'job', 'wait')}, and none starts",
                fix=f"`fairlead unpause {service}`",
                about=service,
                service=service,
                waiting=waiting,
            )
        declared = facts.declared_limits.get(service)
        configured = "auto" if rules.auto is not None else declared
        if declared is not None and declared != rules.limit and not _is_automatic(facts, rules):
            yield OVERRIDDEN.found(
                f"an operator set the limit of {service} to {rules.limit}; the configuration says {configured}, "
                "which applies again when the override is lifted",
                fix=f"`fairlead limit {service} --lift`",
                about=service,
                service=service,
                limit=rules.limit,
                declared=declared,
            )


def _is_automatic(facts: Facts, rules: ServiceRules) -> bool:
    """Whether the limit is discovered automatically. Such a limit changes often. When it is lowered, running calls are
    not stopped, so for a while more slots than the limit are in use."""
    override = facts.rules.overrides.get(rules.service)
    return rules.auto is not None and (override is None or override.limit is None)


def _slots(facts: Facts, shard: ShardSnapshot, rules: ServiceRules, snapshot: ServiceSnapshot) -> Iterator[Finding]:
    service, waiting = rules.service, sum(snapshot.waiting.values())
    if len(snapshot.leases) > rules.limit and not _is_automatic(facts, rules):
        yield _above(facts, rules, snapshot)
    if snapshot.held and waiting and snapshot.in_use >= rules.limit:
        yield _held(rules, snapshot, waiting)
    for region in snapshot.regions:
        if region.resting_until is not None or region.probing:
            yield _resting(service, region)
    stranded = _stranded(rules, snapshot)
    if stranded:
        yield _region_undeclared(rules, stranded)
    # Jobs bound to a region without a worker have their own finding, and the counts here include them.
    elsewhere = any(without_worker(facts, service).values())
    if waiting > stranded and not elsewhere and _has_capacity(facts, shard, rules, snapshot):
        yield from _idle(facts, rules, snapshot, shard.parked.get(service, 0))


def _stranded(rules: ServiceRules, snapshot: ServiceSnapshot) -> int:
    """The number of waiting jobs whose regions are all undeclared: all waiting jobs minus those in declared regions. It
    is a lower bound, because a job with several declared regions is subtracted once for each of them."""
    served = sum(snapshot.unbound) + sum(each.waiting + each.retrying for each in snapshot.regions)
    # A dispatcher that has not received the new rules yet does not count all regions.
    known = bool(rules.regions) and rules.regions.keys() == {each.region for each in snapshot.regions}
    return max(0, sum(snapshot.waiting.values()) - served) if known else 0


def _region_undeclared(rules: ServiceRules, stranded: int) -> Finding:
    service = rules.service
    return REGION_UNDECLARED.found(
        f"{service}: {counted(stranded, 'job', 'wait')} for a region that is no longer declared; "
        f"the regions are {', '.join(sorted(rules.regions))}",
        fix=f"declare it again; or move the jobs that only prefer it with `fairlead rebuild {service}`, and "
        "cancel those bound to it: `fairlead cancel ID`",
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
        "ran, and no call starts until enough of them have ended",
        fix="wait for them to end" + (f"; or lift the lower limit: `fairlead limit {service} --lift`" if lift else ""),
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
        f"{service}: {counted(snapshot.held, 'slot', 'are')} held for calls whose worker died but which the endpoint "
        f"may still be computing. The last hold ends at {iso(until)}, and {counted(waiting, 'job', 'wait')}",
        fix=f"wait; or, if the endpoint no longer computes them, raise the limit by as many slots: "
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
        + (f"no call is sent there until {until}" if until else "one call probes whether it works again"),
        fix=f"check the endpoint of {service} in {region.region}; the attempts of its jobs show the errors",
        about=f"{service} {region.region}",
        service=service,
        region=region.region,
        failures=region.failures,
        until=until,
    )


def _has_capacity(facts: Facts, shard: ShardSnapshot, rules: ServiceRules, snapshot: ServiceSnapshot) -> bool:
    state = shard.states.get(rules.scope)
    if rules.paused or state is None or not state.open or snapshot.in_use >= rules.limit:
        return False
    if rules.pool is not None:
        used = sum(
            in_pool(facts.rules.services[name], each)
            for name, each in shard.services.items()
            if name in facts.rules.services and facts.rules.services[name].pool == rules.pool
        )
        # If only some regions count in the pool, some steps need no slot of the pool; the counts do not show which.
        if used >= facts.rules.pools.get(rules.pool, 0):
            return False
    if any(region.resting_until is not None or region.probing for region in snapshot.regions):
        return False
    # The next step may need more units than are left; the counts do not show how many it needs.
    if any(use.full or (use.units and use.rate and use.rate.units) for use in snapshot.rates):
        return False
    regions = [lease.region for lease in snapshot.leases] + [hold.region for hold in snapshot.holds]
    # The counts do not show which jobs are bound to a region, so every region must have a free slot.
    return all(regions.count(region) < limit for region, limit in rules.regions.items())


def _idle(facts: Facts, rules: ServiceRules, snapshot: ServiceSnapshot, parked: int) -> Iterator[Finding]:
    """Find jobs that wait although slots and workers for them are available. Jobs in bands without a worker are the
    subject of another finding."""
    service, full, idle = rules.service, _Waiting(), _Waiting()
    for band, waiting in snapshot.waiting.items():
        found = [
            each for each in takers(facts, service) if _takes(each, band, rules) and not each.details.get("problem")
        ]
        if waiting and found:
            has_capacity = any(each.running < each.concurrency for each in found)
            (idle if has_capacity else full).add(waiting, found)
    # The bands of users at their limit are unknown, so their jobs are subtracted from both counts.
    if full.jobs > parked:
        yield _workers_full(facts, rules, snapshot, full, full.jobs - parked)
    if idle.jobs > parked:
        yield _nothing_granted(facts, rules, snapshot, idle, idle.jobs - parked)


@dataclass
class _Waiting:
    """A number of waiting jobs, and the workers that could take these jobs."""

    jobs: int = 0
    workers: dict[str, ProcessRecord] = field(default_factory=dict)

    def add(self, jobs: int, workers: list[ProcessRecord]) -> None:
        self.jobs += jobs
        self.workers |= {each.name: each for each in workers}

    def silent(self, now: float) -> list[ProcessRecord]:
        """The workers with free capacity, if all of them are late in renewing their registration. Empty if at least one
        has renewed it in time."""
        with_capacity = [each for each in self.workers.values() if each.running < each.concurrency]
        silent = [each for each in with_capacity if now - each.seen_at > 2 * registry.EVERY]
        return silent if len(silent) == len(with_capacity) else []


def _takes(worker: ProcessRecord, band: int, rules: ServiceRules) -> bool:
    """Whether the worker can certainly take jobs of this band. For a worker that is bound to regions this is not
    certain: the jobs may be bound to other regions."""
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
        "worker that takes them is at its concurrency",
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
    # If any of these values changes before the second examination, slots are being granted.
    moved = (
        tuple(sorted(lease.name for lease in snapshot.leases)),
        tuple(sorted(snapshot.virtual_time.items())),
        snapshot.mean_duration,
    )
    free = f"{service}: {counted(jobs, 'job', 'wait')}, {counted(evidence['free'], 'slot', 'are')} free"
    restart = facts.starts(WORKER if facts.distributed else "up", service)
    if silent := waiting.silent(facts.now):
        evidence["silent"] = {each.name: round(facts.now - each.seen_at, 1) for each in silent}
        names = ", ".join(evidence["silent"])
        cause = f"{free}, but the workers with capacity, {names}, no longer renew their registration: they hang"
        fix = f"restart them: {restart}"
    else:
        cause = (
            f"{free} and workers have capacity, but no job starts: a part of the queue was lost, or the workers hang"
        )
        fix = f"rebuild the queue: `fairlead rebuild {service}`; if that does not help, restart its workers: {restart}"
    return WAITING_WHILE_FREE.found(cause, fix=fix, about=service, mark=moved, **evidence)


def _repaired(facts: Facts) -> Iterator[Finding]:
    for process in facts.alive:
        repaired = process.details.get("repaired")
        if repaired and repaired["ago"] <= REPAIRED_LATELY:
            yield QUEUE_REPAIRED.found(
                f"{counted(repaired['count'], 'job')} of {', '.join(sorted(repaired['jobs']))} waited in the database "
                f"but not in the queue; {process.name} restored them {shown(repaired['ago'])} ago",
                fix="these jobs need no action; the logs of that time show what failed. If it happens again, report it",
                about=process.name,
                **repaired,
            )


def _consistency(facts: Facts) -> Iterator[Finding]:
    for service, jobs in facts.missing.items():
        yield NOT_IN_LINE.found(
            f"{service}: {counted(len(jobs), 'job', 'wait')} in the database but not in the queue",
            fix=f"`fairlead rebuild {service}`",
            about=service,
            service=service,
            jobs=list(jobs[:10]),
        )
    for service, count in facts.undeclared.items():
        yield UNDECLARED.found(
            f"{counted(count, 'job', 'wait')} for {service}, which no configuration declares: until one does, "
            "none starts",
            fix=f"declare [services.{service}] again and restart a gateway: "
            f"{facts.starts(API if facts.distributed else 'up')}; or cancel them: `fairlead cancel ID`",
            about=service,
            service=service,
            waiting=count,
        )
    unknown = () if facts.outside else facts.rules.services.keys() - facts.config.services.keys()
    for service in sorted(unknown):
        yield NOT_CONFIGURED.found(
            f"a worker with a different configuration declared {service}; this gateway's configuration does not have "
            "it, so jobs for it are refused here",
            fix=f"add [services.{service}] to the gateway's configuration and restart it: "
            + facts.starts(API if facts.distributed else "up"),
            about=service,
            service=service,
        )
