"""The reasons why a job waits, as texts. Pure functions of the facts that the explainer has read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from fairlead.dispatch.port import Lease, RegionSnapshot, ServiceSnapshot, Unserved
from fairlead.dispatch.rates import RateUse
from fairlead.domain.events import iso
from fairlead.domain.fair_share import BY_COST, QueuePosition
from fairlead.domain.job import Hold, Job, JobStatus
from fairlead.domain.processes import process_of
from fairlead.domain.rates import Rate
from fairlead.domain.rules import Order, Rules, ServiceRules
from fairlead.domain.views import MOST_HOLDERS, Reason

# ---------------------------------------------------------------- jobs that are not queued


def ended(job: Job) -> Reason:
    details: dict[str, Any] = {"status": job.status.value, "finished_at": iso(job.finished_at)}
    text = f"the job has ended: it is {job.status}"
    if job.status is JobStatus.FAILED:
        details |= {"error_code": (job.error or {}).get("code"), "retryable": bool(job.retryable)}
        text += f" ({details['error_code']})" + ("; it can be resumed" if job.retryable else "")
    return Reason("ended", text, details)


def running(job: Job, lease: Lease | None) -> Reason:
    details = {
        "service": job.service,
        "step": job.step + 1,
        "total": len(job.steps),
        "attempt": job.attempt,
        "since": iso(job.call_started_at),
        "ends_by": iso(job.call_deadline),
        "worker": process_of(job.turn) if job.turn else job.worker,
        "lease": job.lease,
        "lease_expires_at": iso(lease.expires_at) if lease is not None else None,
    }
    text = f"the job is running: step {job.step + 1} of {len(job.steps)}, {job.service}, since {details['since']}"
    return Reason("running", text, details)


def scheduled(job: Job) -> Reason:
    until = iso(job.scheduled_at)
    return Reason("scheduled", f"the job is scheduled for {until}", {"until": until})


def set_aside(job: Job) -> Reason:
    until = iso(job.timer_at)
    text = f"the caller of the turn is absent; the turn keeps its place until {until}"
    return Reason("caller_absent", text, {"service": job.service, "until": until})


def backing_off(job: Job, max_attempts: int) -> Reason:
    until, code = iso(job.timer_at), (job.error or {}).get("code")
    text = (
        f"call {job.attempt} of at most {max_attempts} to {job.service} failed ({code}); the next attempt is at {until}"
    )
    details = {
        "service": job.service,
        "until": until,
        "attempt": job.attempt,
        "max_attempts": max_attempts,
        "error_code": code,
    }
    return Reason("backoff", text, details)


def budget_spent(job: Job) -> Reason:
    error, until = job.error or {}, iso(job.timer_at)
    text = f"the budget {error.get('budget')} is spent; the job goes on at {until}, or when there is room again"
    return Reason("budget_spent", text, {"budget": error.get("budget"), "service": job.service, "until": until})


def timers_late(due: float, now: float) -> Reason:
    late = round(now - due, 3)
    text = f"that was {late:g} s ago, and no manager has queued it since"
    return Reason("timers_late", text, {"due": iso(due), "late": late})


def worker_gone(job: Job, *, lease_expired: bool, private: bool) -> Reason:
    text = (
        "the lease of this call has expired, so its worker is gone or disconnected; a manager recovers the call"
        if lease_expired
        else "the worker of this call is gone; a manager recovers the call when its lease has expired"
    )
    details: dict[str, Any] = {"lease_expired": lease_expired}
    if not private:
        details["worker"] = job.worker
    return Reason("worker_gone", text, details)


def starting(lease: Lease, *, private: bool) -> Reason:
    details: dict[str, Any] = {"since": iso(lease.granted_at), "lease_expires_at": iso(lease.expires_at)}
    if not private:
        details |= {"worker": lease.worker, "lease": lease.name}
    return Reason("starting", f"a worker has claimed the job and is starting {lease.service}", details)


# ---------------------------------------------------------------- the whole service


def not_declared(service: str) -> Reason:
    text = f"the service {service} is no longer declared; the job waits until it is declared again"
    return Reason("not_declared", text, {"service": service})


def region_not_declared(job: Job, rules: ServiceRules) -> Reason | None:
    bound = job.bound_to
    if not rules.regions or bound is None or not rules.regions.keys().isdisjoint(bound):
        return None
    text = f"{rules.service} no longer has the region {' or '.join(bound)}; the job waits until " + (
        "one is declared"
        if job.bound_within(rules.regions) == bound
        else f"it is declared, or moves elsewhere when the queue is rebuilt (`fairlead rebuild {rules.service}`)"
    )
    return Reason("region_not_declared", text, {"service": rules.service, "regions": list(bound)})


def paused(service: str) -> Reason:
    text = f"the service {service} is paused: none of its jobs starts until it is unpaused"
    return Reason("paused", text, {"service": service})


def queue_elsewhere() -> Reason:
    return Reason("line_elsewhere", "the queue is in another process and cannot be read from this one")


def unreachable(problem: str, *, private: bool) -> Reason:
    """The reason if the dispatcher does not answer. `problem` may contain addresses of servers, so it is left out if
    `private` is set."""
    text = "the dispatcher cannot be reached; the job is stored and continues when it is back"
    return Reason("dispatcher_unreachable", text, {} if private else {"problem": problem})


def no_manager(effect: str) -> Reason:
    return Reason("no_manager", f"no manager leads, so {effect}; start one with `fairlead manager`")


def rebuilding() -> Reason:
    return Reason("rebuilding", "the queue is being rebuilt from the database; no job starts until that is done")


def not_relayed(job: Job, now: float) -> Reason:
    age = round(max(0.0, now - (job.waiting_since or job.queued_at or now)), 3)
    text = f"the job was accepted {age:g} s ago but has not reached the queue yet"
    return Reason("not_relayed", text, {"age": age})


# ---------------------------------------------------------------- limits


@dataclass(frozen=True, slots=True)
class SlotUse:
    """The slots in use of a job's service or, if the service is in a pool, of all services in the pool. Leases are
    sorted by the time of their grant, holds by their end."""

    service: str
    leases: tuple[Lease, ...]
    holds: tuple[Hold, ...]
    regions: tuple[RegionSnapshot, ...] = ()

    @classmethod
    def of(cls, service: str, snapshots: Iterable[ServiceSnapshot]) -> SlotUse:
        seen = list(snapshots)
        leases = sorted(
            (lease for each in seen for lease in each.leases), key=lambda each: (each.granted_at, each.name)
        )
        holds = sorted((hold for each in seen for hold in each.holds), key=lambda each: (each.until, each.id))
        regions = (region for each in seen if each.service == service for region in each.regions)
        return cls(service, tuple(leases), tuple(holds), tuple(regions))

    def _only(self, **fields: str) -> SlotUse:
        def fits(each: Lease | Hold) -> bool:
            return all(getattr(each, name, None) == value for name, value in fields.items())

        return SlotUse(self.service, tuple(filter(fits, self.leases)), tuple(filter(fits, self.holds)), self.regions)

    @property
    def in_use(self) -> int:
        return len(self.leases) + len(self.holds)

    def full(self, job: Job, all_rules: Rules, unserved: Unserved = frozenset()) -> list[tuple[Reason, SlotUse]]:
        """Return a reason for each full limit that keeps the job from running, paired with the slots in use under that
        limit. A resting region counts as full."""
        service, rules = self._only(service=self.service), all_rules.services[self.service]
        reasons = [service._reason("service_full", f"the limit of {self.service}", rules.limit, service=self.service)]
        pool = self._pool(rules.pool, all_rules)
        if rules.pooled_regions is None:
            reasons.append(pool)
        reasons += service._regions(job, rules, pool, unserved)
        if rules.user_limit is not None:
            own = service._only(user_id=job.user_id)
            text = f"the limit of each user on {self.service}"
            reasons.append(own._reason("user_full", text, rules.user_limit, service=self.service))
        return [each for each in reasons if each is not None]

    def _pool(self, pool: str | None, rules: Rules) -> tuple[Reason, SlotUse] | None:
        if pool is None:
            return None

        def counts(each: Lease | Hold) -> bool:
            service = rules.services.get(each.service)
            return service is None or service.in_pool(each.region)

        counting = SlotUse(self.service, tuple(filter(counts, self.leases)), tuple(filter(counts, self.holds)))
        return counting._reason("pool_full", f"the limit of the pool {pool}", rules.pools.get(pool, 0), pool=pool)

    def _regions(
        self, job: Job, rules: ServiceRules, pool: tuple[Reason, SlotUse] | None, unserved: Unserved
    ) -> list[tuple[Reason, SlotUse] | None]:
        """The reasons why the job's step can run in none of its regions now; empty if one of its regions is free. A
        full pool blocks only the regions whose calls take a slot of the pool."""
        resting = {each.region: each for each in self.regions if each.resting_until is not None or each.probing}
        bound = job.bound_within(rules.regions)
        prefers = job.prefers_within(rules.regions)
        if prefers in resting or (self.service, prefers) in unserved:
            bound = job.allowed_regions
        found = [
            self._only(region=name)._region(name, limit, resting.get(name))
            or (pool if rules.pooled_regions is not None and rules.in_pool(name) else None)
            for name, limit in rules.regions.items()
            if (bound is None or name in bound) and (self.service, name) not in unserved
        ]
        if not all(found):
            return []
        others = [each for each in found if each is not pool]
        return [pool, *others] if len(others) < len(found) else others

    def _region(self, name: str, limit: int, resting: RegionSnapshot | None) -> tuple[Reason, SlotUse] | None:
        if resting is None:
            return self._reason("region_full", f"the limit of {self.service} in {name}", limit, region=name)
        if resting.probing and not self.in_use:
            return None  # the next call is its probe
        until = iso(resting.resting_until)
        text = f"{self.service} in {name} failed {resting.failures} times in a row, " + (
            "and one call is probing it" if resting.probing else f"and is suspended until {until}"
        )
        return Reason("region_resting", text, {"region": name, "failures": resting.failures, "until": until}), self

    def _reason(self, code: str, text: str, limit: int, **what: str) -> tuple[Reason, SlotUse] | None:
        if self.in_use < limit:
            return None
        details = {**what, "limit": limit, "in_use": self.in_use, "held": len(self.holds)}
        message = f"{text} is full ({self.in_use} of {limit})" if limit else f"{text} is 0"
        if self.holds and limit:
            message += f"; {len(self.holds)} of them held for calls whose worker is gone"
        return Reason(code, message, details), self

    def holders(self, jobs: Mapping[str, Job]) -> dict[str, Any]:
        """The first holders of the slots, and the number of further holders. The deadlines of the holders' calls are
        taken from `jobs`."""
        holders = [
            {
                "kind": "lease",
                "job_id": lease.job_id,
                "user_id": lease.user_id,
                "service": lease.service,
                "worker": lease.worker,
                "lease": lease.name,
                "since": iso(lease.granted_at),
                "until": iso(lease.expires_at),
                "ends_by": iso(jobs[lease.job_id].call_deadline) if lease.job_id in jobs else None,
            }
            for lease in self.leases[:MOST_HOLDERS]
        ]
        holders += [
            {"kind": "hold", "job_id": hold.job_id, "service": hold.service, "until": iso(hold.until)}
            for hold in self.holds[: MOST_HOLDERS - len(holders)]
        ]
        return {"holders": holders, "more_holders": self.in_use - len(holders)}


# ---------------------------------------------------------------- rates


def rates_full(
    job: Job, rules: Rules, snapshot: ServiceSnapshot | None, position: QueuePosition, now: float
) -> list[Reason]:
    """A reason for each rate that keeps the job from running, and for each rest that its upstream asked for."""
    found = _service_rates_full(job, rules, snapshot, position, now)
    if position.user_rate_wait:
        found.append(_user_rate_full(job, rules, iso(now + position.user_rate_wait)))
    for group in position.groups:
        if group.rate_wait:
            until, rate = iso(now + group.rate_wait), _shown(rules.member_rates.groups.get(group.path), job, rules)
            text = f"the rate of the group {group.path} on {job.service} ({rate}) is used up for this job until {until}"
            details = {"of": "group", "group": group.path, "service": job.service, "until": until, "rate": rate}
            found.append(Reason("rate_full", text, details))
    return found


def _shown(rate: Rate | None, job: Job, rules: Rules) -> str:
    return "none" if rate is None else rate.shown(rules.services[job.service].cost_unit)


def _user_rate_full(job: Job, rules: Rules, until: str | None) -> Reason:
    rate = rules.plan_rates.get(job.plan or "")
    details: dict[str, Any] = {"of": "user", "service": job.service, "until": until}
    if rate is None:
        rate, whose = rules.services[job.service].user_rate, "each user"
    else:
        whose, details = f"each user of the plan {job.plan}", {**details, "plan": job.plan}
    shown = _shown(rate, job, rules)
    text = f"the rate of {whose} on {job.service} ({shown}) is used up for this job until {until}"
    return Reason("rate_full", text, {**details, "rate": shown})


def _service_rates_full(
    job: Job, all_rules: Rules, snapshot: ServiceSnapshot | None, position: QueuePosition, now: float
) -> list[Reason]:
    """The rates of the service, its regions and its pool."""
    rules = all_rules.services[job.service]
    uses = [] if snapshot is None else [use for use in snapshot.rates if use.kind != "group"]
    bound = job.bound_within(rules.regions)
    regions = {name for name in rules.regions if bound is None or name in bound}
    full = {use.name for use in uses if use.kind == "region" and use.full}
    found = [
        _rate_full(rules.service, use, all_rules)
        for use in uses
        if use.full
        and (use.kind == "service" or (use.kind == "pool" and rules.pooled_regions is None) or regions <= full)
        and (use.kind != "region" or use.name in regions)
    ]
    if not found and position.free and position.rate_wait:
        here = [use for use in uses if use.kind != "region" or use.name in regions]
        found += _too_few_units(rules.service, here, all_rules, position, now)
    return found


def _too_few_units(
    service: str, uses: list[RateUse], rules: Rules, position: QueuePosition, now: float
) -> Iterator[Reason]:
    """The rate that allows further requests, but has fewer units left than the next step needs."""
    limited = [(use.units / use.rate.units, use) for use in uses if use.units and use.rate and use.rate.units]
    if limited:
        _, use = max(limited, key=itemgetter(0))
        until = iso(now + position.rate_wait) if position.position == 1 else None
        unit = use.unit(service, rules)
        rate = None if use.rate is None else use.rate.shown(unit)
        details = {**_details(service, use), "until": until, "units": use.units, "resting": False}
        text = f"the rate of {_where(service, use)} ({rate}) has fewer {unit} left than the next step needs"
        end = f", until {until}" if until else ""
        yield Reason("rate_full", f"{text}{end}", {**details, "rate": rate})


def _where(service: str, use: RateUse) -> str:
    return {"service": service, "region": f"{service} in {use.name}", "pool": f"the pool {use.name}"}[use.kind]


def _details(service: str, use: RateUse) -> dict[str, Any]:
    until = iso(use.until) if use.until else None
    of_service = {} if use.kind == "pool" else {"service": service}
    return {"of": use.kind, use.kind: use.name, "until": until, "requests": use.requests, **of_service}


def _rate_full(service: str, use: RateUse, rules: Rules) -> Reason:
    where, details = _where(service, use), _details(service, use)
    until = details["until"]
    if use.resting_until is not None:
        text = f"the upstream of {where} takes no calls until {iso(use.resting_until)}, as it said itself"
        return Reason("rate_full", text, {**details, "until": iso(use.resting_until), "resting": True})
    rate = None if use.rate is None else use.rate.shown(use.unit(service, rules))
    details |= {"units": use.units, "resting": False, "rate": rate}
    end = f"until {until}" if until else "until calls that are being sent have arrived"
    return Reason("rate_full", f"the rate of {where} ({rate}) is used up {end}", details)


# ---------------------------------------------------------------- the queue


def queued(job: Job, position: QueuePosition, rules: ServiceRules) -> Reason:
    order = rules.order
    ahead = position.position - 1
    parts = {
        "retries": (position.ahead_retries, "retries, which go first"),
        "higher_priority": (position.ahead_bands, "of higher priority"),
        "other_users": (position.ahead_users, "of other users that came first" if order is Order.FIFO else _FAIRER),
        "own": (position.ahead_own, "of the same user"),
    }
    details: dict[str, Any] = {"ahead": ahead, **{name: count for name, (count, _) in parts.items()}}
    if position.groups:
        of_group, of_others = _of_groups(position)
        parts = {"own_group": of_group, "other_groups": of_others, **parts, "other_users": (0, "")}
        details |= {"group": position.groups[-1].path, "own_group": of_group[0], "other_groups": of_others[0]}
    details["estimate"] = _estimate(job, position, rules)
    if not ahead:
        return Reason("in_line", "the job is next in the queue", details)
    listed = ", ".join(f"{count} {text}" for count, text in parts.values() if count)
    return Reason("in_line", f"the job is queued behind {ahead} {'job' if ahead == 1 else 'jobs'}: {listed}", details)


def _of_groups(position: QueuePosition) -> tuple[tuple[int, str], tuple[int, str]]:
    """The steps ahead of other members of the job's group, and those of other groups: their number, and whose they
    are."""
    outer = position.groups[0]
    others = "of other groups and users whose turn is earlier"
    if outer.debt:
        others += f", because {outer.path} has used {outer.debt:.1f} s more slot time for its weight"
    return (position.ahead_of_group, f"of other members of {outer.path}"), (position.ahead_groups, others)


def groups_full(position: QueuePosition) -> list[Reason]:
    """A reason for each group of the job's user that is at its limit."""
    return [
        Reason(
            "group_full",
            f"the limit of the group {group.path} is full ({group.slots - group.free} of {group.slots})",
            {"group": group.path, "limit": group.slots, "in_use": group.slots - group.free, "ahead": group.ahead},
        )
        for group in position.groups
        if group.slots is not None and not group.free
    ]


def _estimate(job: Job, position: QueuePosition, rules: ServiceRules) -> dict[str, Any]:
    """How long the call is expected to take, and why."""
    seconds = round(position.estimate, 3)
    if position.estimated_by != BY_COST:
        return {"seconds": seconds, "source": position.estimated_by}
    source = "input" if job.cost is None else "stated"
    return {"seconds": seconds, "source": source, "cost": job.step_cost, "unit": rules.cost_unit}


def waits_for_caller(job: Job, *, private: bool) -> Reason:
    text = f"a slot of {job.service} is free, but the turn's caller has not taken it yet"
    return Reason(
        "caller_absent", text, {"service": job.service} if private else {"process": process_of(job.turn or "")}
    )


_FAIRER = "of other users whose turn is earlier"
