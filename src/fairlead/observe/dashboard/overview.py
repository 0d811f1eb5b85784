"""The overview pages of the dashboard: every service with its slots and its queue, the health of the system, users,
processes, and dead letters grouped by error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fairlead.dispatch.port import Lease, ServiceSnapshot
from fairlead.domain.job import Priority
from fairlead.domain.processes import POOLS, ProcessRecord, process_of
from fairlead.domain.rates import RateOf
from fairlead.domain.redaction import likeness
from fairlead.domain.rules import Overridden, Rules, ServiceRules
from fairlead.observe.dashboard.history import Past, Sum
from fairlead.observe.doctor.finding import Finding, Severity
from fairlead.observe.snapshot import Processes, QueueSnapshot
from fairlead.observe.status import in_pool, rate_uses
from fairlead.store.dashboard import DeadGroup, UserLoad, Waiting
from fairlead.store.port import Facts, Store

SHOWN = 64
REMEMBERED = 10_000
EXAMPLES = 3


class JobDetails:
    """Describes leases together with the feature name and the number of steps of their jobs. These two never change, so
    they are read once per job."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, tuple[str, int]] = {}

    async def learn(self, leases: Iterable[Lease]) -> None:
        wanted = {lease.job_id for lease in leases}
        missing = wanted - self._known.keys()
        if len(self._known) + len(missing) > REMEMBERED:
            self._known = {job_id: known for job_id, known in self._known.items() if job_id in wanted}
        if missing:
            jobs = await self._store.get_jobs(sorted(missing))
            self._known |= {job_id: (job.feature_name, len(job.steps)) for job_id, job in jobs.items()}

    def of(self, lease: Lease) -> dict[str, Any]:
        feature_name, total = self._known.get(lease.job_id, (None, None))
        return known(
            job_id=lease.job_id,
            user_id=lease.user_id,
            feature_name=feature_name,
            step=lease.step,
            total_steps=total,
            worker=lease.worker,
            region=lease.region,
            since=round(lease.granted_at, 3),
            expires_at=round(lease.expires_at, 1),
        )


def shown_slots(snapshots: Sequence[ServiceSnapshot], details: JobDetails) -> dict[str, Any]:
    leases = leases_of(snapshots)
    holds = {hold.id: {"job_id": hold.job_id, "until": hold.until} for each in snapshots for hold in each.holds}
    return {
        "slots": {name: details.of(lease) for name, lease in list(leases.items())[:SHOWN]},
        "more_slots": max(0, len(leases) - SHOWN),
        "holds": holds,
    }


def leases_of(snapshots: Sequence[ServiceSnapshot]) -> Mapping[str, Lease]:
    """All leases in these snapshots, by a key that is unique even if two shards of a service use the same lease name;
    oldest first."""
    found = {
        lease.name if len(snapshots) == 1 else f"{number}/{lease.name}": lease
        for number, each in enumerate(snapshots)
        for lease in each.leases
    }
    return dict(sorted(found.items(), key=lambda item: item[1].granted_at))


def known(**fields: Any) -> dict[str, Any]:
    """A dictionary of the fields that are not None. The dashboard receives changes as JSON merge patches, in which a
    null would delete the field."""
    return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Background:
    """Cached data from the database that is shown together with the queues."""

    past: Past
    waiting: Mapping[str, Waiting]


def services(
    queues: QueueSnapshot, around: Background, details: JobDetails, kinds: Mapping[str, str]
) -> dict[str, Any]:
    return {name: service(name, queues, around, details, kinds.get(name)) for name in sorted(queues.rules.services)}


def service(
    name: str, queues: QueueSnapshot, around: Background, details: JobDetails, kind: str | None
) -> dict[str, Any]:
    rules, snapshots, is_known = queues.rules.services[name], queues.services.get(name, ()), queues.knows(name)
    waiting = around.waiting.get(name)
    lately = around.past.lately.get(name)
    shown = known(
        kind=kind or ("http" if rules.remote else "function"),
        limit=rules.limit,
        limit_source=source_of(rules, queues.rules.overrides.get(name)),
        paused=rules.paused,
        order=rules.order.value,
        pool=rules.pool,
        unit=rules.cost_unit,
        retrying=waiting.retrying if waiting is not None else 0,
        oldest_since=waiting.oldest_since if waiting is not None else None,
        wait_p50=lately.wait(0.5) if lately is not None else None,
        wait_p95=lately.wait(0.95) if lately is not None else None,
        models=_models(lately, around.past.window),
    )
    if not is_known:
        return shown
    return {
        **shown,
        "in_use": sum(each.in_use for each in snapshots),
        "held": sum(each.held for each in snapshots),
        "waiting": {band.value: sum(each.waiting.get(band.band, 0) for each in snapshots) for band in Priority},
        **shown_slots(snapshots, details),
    }


def _models(lately: Sum | None, window: float) -> dict[str, Any] | None:
    if lately is None or not lately.models:
        return None
    return {model: known(**stats.shown(window)) for model, stats in sorted(lately.models.items())}


def pools(queues: QueueSnapshot) -> dict[str, Any]:
    """Every pool with its limit, its services and its slots in use. The slots in use are left out if a shard of one of
    its services did not answer."""
    found = {}
    for name, limit in sorted(queues.rules.pools.items()):
        members = {service: rules for service, rules in sorted(queues.rules.services.items()) if rules.pool == name}
        used = [in_pool(rules, each) for service, rules in members.items() for each in queues.services.get(service, ())]
        is_known = all(map(queues.knows, members))
        uses = [
            use for service in members for use in rate_uses(service, queues.rules, queues.services.get(service, ()))
        ]
        found[name] = known(
            limit=limit,
            services=list(members),
            in_use=sum(used) if is_known else None,
            rate=rate_of(RateOf("pool", name), queues.rules),
            use=next((use for use in uses if use["of"] == "pool"), None),
        )
    return found


def rate_of(of: RateOf, rules: Rules) -> dict[str, Any]:
    """A rate that operators may change, with its unit and whether they have. The rate is left out if there is none."""
    rate = rules.rate_of(of)
    numbers = None if rate is None else known(**asdict(rate))
    return known(rate=numbers, unit=rules.unit_of(of), overridden=of in rules.rate_overrides)


def member_rates(rules: Rules, plans: Iterable[str]) -> dict[str, Any]:
    """The rates of plans and groups, by plan and by path. Those without a rate are included."""
    return {
        "plans": {name: rate_of(RateOf("plan", name), rules) for name in sorted({*plans, *rules.plan_rates})},
        "groups": {path: rate_of(RateOf("group", path), rules) for path in sorted(rules.groups)},
    }


def source_of(rules: ServiceRules, override: Overridden | None) -> str:
    if override is not None and override.limit is not None:
        return "override"
    return "auto" if rules.auto is not None else "config"


def health(
    queues: QueueSnapshot, processes: Processes, facts: Facts, findings: Iterable[Finding] | None
) -> dict[str, Any]:
    alive = processes.alive
    found = None if findings is None else list(findings)
    return known(
        leaders={shard: known(**leader) for shard, leader in queues.leaders.items()},
        workers=sum("worker" in record.roles for record in alive),
        managers=sum("manager" in record.roles for record in alive),
        gateways=sum("api" in record.roles for record in alive),
        outbox_rows=facts["outbox_rows"],
        outbox_age=round(float(facts["outbox_age"])),
        rebuilding=sorted(scope for scope, state in queues.states.items() if not state.open),
        unknown=queues.unknown,
        findings=None if found is None else {_key(each): _finding(each) for each in found},
        well=None if found is None else all(each.severity is Severity.NOTE for each in found),
    )


def _key(finding: Finding) -> str:
    return f"{finding.code} {finding.about}".rstrip()


def _finding(finding: Finding) -> dict[str, Any]:
    return known(
        code=finding.code,
        level=finding.severity.value,
        title=finding.title,
        about=finding.about or None,
        text=finding.cause,
        fix=finding.fix,
    )


def users(loads: Iterable[UserLoad], used: Sum, most: int) -> dict[str, Any]:
    """The users with open jobs, then the users whose calls ran in the last hour, as long as there are fewer than `most`
    users."""
    found = {
        load.user_id: known(
            waiting=load.waiting,
            running=load.running,
            oldest_since=load.oldest_since,
            weight=load.weight,
            group=load.group,
            plan=load.plan,
        )
        for load in loads
    }
    for user_id, (calls, seconds) in sorted(used.used.items(), key=lambda item: -item[1][1]):
        if user_id in found or len(found) < most:
            fields = found.setdefault(user_id, {"waiting": 0, "running": 0})
            fields |= {"finished_hour": int(calls), "used_hour": round(seconds, 1)}
    return found


def processes(
    registered: Processes,
    snapshots: Mapping[str, Sequence[ServiceSnapshot]],
    leads: Mapping[str, list[str]],
    job_details: JobDetails,
) -> dict[str, Any]:
    """All processes. A process that is not registered but has leases is included: it is gone, or runs an older
    release."""
    calls: dict[str, dict[str, Any]] = {}
    for service, found in snapshots.items():
        for name, lease in leases_of(found).items():
            call = {"service": service, **job_details.of(lease)}
            calls.setdefault(process_of(lease.worker), {})[f"{service} {name}"] = call
    shown = {record.name: _process(record, registered.now, leads) for record in registered.records}
    for name in calls:
        shown.setdefault(name, {"roles": ["worker"], "alive": False, "running": len(calls[name])})
    return {name: {**fields, "slots": calls.get(name, {})} for name, fields in shown.items()}


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


def error_groups(found: Iterable[DeadGroup]) -> dict[str, Any]:
    """Group errors with the same code and similar messages. The `message` of a group has `#` in place of numbers and
    ids; the routes of dead letters accept it as `error_like`."""
    merged: dict[str, dict[str, Any]] = {}
    for each in found:
        message = likeness(each.message)
        group = merged.setdefault(
            f"{each.code} {message}",
            {
                "code": each.code,
                "message": message,
                "services": [],
                "count": 0,
                "first": each.first,
                "last": each.last,
                "examples": [],
            },
        )
        group["count"] += each.count
        group["first"], group["last"] = min(group["first"], each.first), max(group["last"], each.last)
        if each.service not in group["services"]:
            group["services"] = sorted([*group["services"], each.service])
        group["examples"] = sorted([*group["examples"], *each.examples], reverse=True)[:EXAMPLES]
    return merged
