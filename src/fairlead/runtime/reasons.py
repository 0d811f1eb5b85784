"""Why a job is where it is, in words: each reason from what was seen, and nothing that has to be asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.dispatch.port import Lease, RegionSnapshot, ServiceSnapshot
from fairlead.domain.job import Hold, Job, JobStatus, Priority
from fairlead.domain.limits import Order, Rules, ServiceRules
from fairlead.domain.order import Place
from fairlead.domain.processes import ProcessRecord, process_of
from fairlead.runtime.events import iso

MOST_HOLDERS = 10
"""So many of those that hold a full limit's slots are named."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that holds a job. `code` is stable: compare it, and show `message`."""

    code: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)


# ---------------------------------------------------------------- jobs that are not in line


def ended(job: Job) -> Reason:
    details: dict[str, Any] = {"status": job.status.value, "finished_at": iso(job.finished_at)}
    text = f"the job has ended: it is {job.status}"
    if job.status is JobStatus.FAILED:
        details |= {"error_code": (job.error or {}).get("code"), "retryable": bool(job.retryable)}
        text += f" ({details['error_code']})" + ("; it may be resumed" if job.retryable else "")
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
    text = (
        f"the job does not wait: step {job.step + 1} of {len(job.steps)}, {job.service}, runs since {details['since']}"
    )
    return Reason("running", text, details)


def scheduled(job: Job) -> Reason:
    until = iso(job.scheduled_at)
    return Reason("scheduled", f"the job is scheduled for {until}", {"until": until})


def backing_off(job: Job, max_attempts: int) -> Reason:
    until, code = iso(job.timer_at), (job.error or {}).get("code")
    text = (
        f"call {job.attempt} of at most {max_attempts} to {job.service} failed ({code}); it is tried again at {until}"
    )
    details = {
        "service": job.service,
        "until": until,
        "attempt": job.attempt,
        "max_attempts": max_attempts,
        "error_code": code,
    }
    return Reason("backoff", text, details)


def timers_late(due: float, now: float) -> Reason:
    late = round(now - due, 3)
    text = f"that was {late:g} s ago, and no manager has put it in line since"
    return Reason("timers_late", text, {"due": iso(due), "late": late})


def worker_gone(job: Job, *, lease_expired: bool, private: bool) -> Reason:
    text = (
        "the lease of that call has expired, so its worker is gone or cut off; a manager takes the call back"
        if lease_expired
        else "the worker of that call is gone; a manager takes the call back when its lease has expired"
    )
    details: dict[str, Any] = {"lease_expired": lease_expired}
    if not private:
        details["worker"] = job.worker
    return Reason("worker_gone", text, details)


def starting(lease: Lease, *, private: bool) -> Reason:
    details: dict[str, Any] = {"since": iso(lease.granted_at), "lease_expires_at": iso(lease.expires_at)}
    if not private:
        details |= {"worker": lease.worker, "lease": lease.name}
    return Reason("starting", f"a worker has just taken the job, and starts {lease.service}", details)


# ---------------------------------------------------------------- what keeps a whole lane


def not_declared(service: str) -> Reason:
    text = f"no service is called {service} any more; the job waits until one is declared"
    return Reason("not_declared", text, {"service": service})


def region_not_declared(job: Job, rules: ServiceRules) -> Reason | None:
    bound = job.bound_to
    if not rules.regions or bound is None or not rules.regions.keys().isdisjoint(bound):
        return None
    text = f"{rules.service} has no region {' or '.join(bound)} any more; the job waits until " + (
        "one is declared"
        if job.bound_within(rules.regions) == bound
        else f"it is declared, or goes elsewhere once the line is rebuilt (`fairlead rebuild {rules.service}`)"
    )
    return Reason("region_not_declared", text, {"service": rules.service, "regions": list(bound)})


def paused(service: str) -> Reason:
    text = f"the service {service} is paused: nothing of it starts until it is resumed"
    return Reason("paused", text, {"service": service})


def line_elsewhere() -> Reason:
    return Reason("line_elsewhere", "the line is in another process, and cannot be seen from this one")


def unreachable(problem: str, *, private: bool) -> Reason:
    """What the problem is has our servers' addresses in it: nobody's business but the operator's."""
    text = "the dispatcher cannot be reached; the job is safe, and goes on when it is back"
    return Reason("dispatcher_unreachable", text, {} if private else {"problem": problem})


def no_manager(so: str) -> Reason:
    return Reason("no_manager", f"no manager leads, so {so}; start one with `fairlead manager`")


def rebuilding() -> Reason:
    return Reason("rebuilding", "the line is being rebuilt from the database; nothing starts until it stands")


def not_relayed(job: Job, now: float) -> Reason:
    age = round(max(0.0, now - (job.waiting_since or job.queued_at or now)), 3)
    text = f"the job is accepted, but the line has not heard of it yet, since {age:g} s"
    return Reason("not_relayed", text, {"age": age})


@dataclass(frozen=True, slots=True)
class Workers:
    """Those processes that are alive and can execute the service at all, and the band that they have to serve."""

    serving: Sequence[ProcessRecord]
    band: Priority | None

    def reason(self, service: str, *, slots_are_free: bool, private: bool) -> Reason | None:
        awake = [each for each in self.serving if not (each.draining or each.drain_asked)]
        fit = [each for each in awake if self.band is None or self.band.value in each.bands]
        details: dict[str, Any] = {"service": service, "workers": len(self.serving)}
        if not fit:
            details |= {"draining": len(self.serving) - len(awake), "other_bands": len(awake)}
            return Reason("no_worker", f"no worker is alive for {service}{self._but(details)}", details)
        if slots_are_free and all(each.running >= each.concurrency for each in fit):
            if not private:
                details["busy"] = [
                    {"worker": each.name, "running": each.running, "concurrency": each.concurrency}
                    for each in fit[:MOST_HOLDERS]
                ]
            text = f"slots are free, but every worker for {service} has as many calls as it takes at once"
            return Reason("workers_full", text, details)
        return None

    def _but(self, details: Mapping[str, Any]) -> str:
        if details["other_bands"]:
            return f" and {self.band}: those that are serve other priorities"
        return ": those that are drain" if details["draining"] else ""


# ---------------------------------------------------------------- limits


@dataclass(frozen=True, slots=True)
class Slots:
    """Who holds the slots of what a job waits for: its service's, or those of all services of its pool. Leases are in
    the order in which they were granted, holds in that in which they end."""

    service: str
    leases: tuple[Lease, ...]
    holds: tuple[Hold, ...]
    regions: tuple[RegionSnapshot, ...] = ()

    @classmethod
    def of(cls, service: str, snapshots: Iterable[ServiceSnapshot]) -> Slots:
        seen = list(snapshots)
        leases = sorted(
            (lease for each in seen for lease in each.leases), key=lambda each: (each.granted_at, each.name)
        )
        holds = sorted((hold for each in seen for hold in each.holds), key=lambda each: (each.until, each.id))
        regions = (region for each in seen if each.service == service for region in each.regions)
        return cls(service, tuple(leases), tuple(holds), tuple(regions))

    def _only(self, **wanted: str) -> Slots:
        def fits(each: Lease | Hold) -> bool:
            return all(getattr(each, name, None) == value for name, value in wanted.items())

        return Slots(self.service, tuple(filter(fits, self.leases)), tuple(filter(fits, self.holds)), self.regions)

    @property
    def in_use(self) -> int:
        return len(self.leases) + len(self.holds)

    def full(self, job: Job, all_rules: Rules) -> list[tuple[Reason, Slots]]:
        """Each limit that is full, with who holds its slots."""
        service, rules = self._only(service=self.service), all_rules.services[self.service]
        found = [service._reason("service_full", f"the limit of {self.service}", rules.limit, service=self.service)]
        pool = self._pool(rules.pool, all_rules)
        if rules.pooled_regions is None:
            found.append(pool)
        found += service._regions(job, rules, pool)
        if rules.user_limit is not None:
            own = service._only(user_id=job.user_id)
            text = f"the limit of each user on {self.service}"
            found.append(own._reason("user_full", text, rules.user_limit, service=self.service))
        return [each for each in found if each is not None]

    def _pool(self, pool: str | None, rules: Rules) -> tuple[Reason, Slots] | None:
        if pool is None:
            return None

        def counts(each: Lease | Hold) -> bool:
            service = rules.services.get(each.service)
            return service is None or service.in_pool(each.region)

        counting = Slots(self.service, tuple(filter(counts, self.leases)), tuple(filter(counts, self.holds)))
        return counting._reason("pool_full", f"the limit of the pool {pool}", rules.pools.get(pool, 0), pool=pool)

    def _regions(
        self, job: Job, rules: ServiceRules, pool: tuple[Reason, Slots] | None
    ) -> list[tuple[Reason, Slots] | None]:
        """A step bound to regions waits for the first of those that has a slot; any other for the first of all. Where
        only some regions count in the pool that is full, it keeps a step from these."""
        bound = job.bound_within(rules.regions)
        resting = {each.region: each for each in self.regions if each.resting_until is not None or each.probing}
        found = [
            self._only(region=name)._region(name, limit, resting.get(name))
            or (pool if rules.pooled_regions is not None and rules.in_pool(name) else None)
            for name, limit in rules.regions.items()
            if bound is None or name in bound
        ]
        if not all(found):
            return []
        others = [each for each in found if each is not pool]
        return [pool, *others] if len(others) < len(found) else others

    def _region(self, name: str, limit: int, resting: RegionSnapshot | None) -> tuple[Reason, Slots] | None:
        if resting is None:
            return self._reason("region_full", f"the limit of {self.service} in {name}", limit, region=name)
        if resting.probing and not self.in_use:
            return None  # it is about to be tried
        until = iso(resting.resting_until)
        text = f"{self.service} in {name} failed {resting.failures} times in a row, " + (
            "and one call tries it now" if resting.probing else f"and rests until {until}"
        )
        return Reason("region_resting", text, {"region": name, "failures": resting.failures, "until": until}), self

    def _reason(self, code: str, text: str, limit: int, **what: str) -> tuple[Reason, Slots] | None:
        if self.in_use < limit:
            return None
        details = {**what, "limit": limit, "in_use": self.in_use, "held": len(self.holds)}
        says = f"{text} is full ({self.in_use} of {limit})" if limit else f"{text} is 0"
        if self.holds and limit:
            says += f"; {len(self.holds)} of them held for calls whose worker is gone"
        return Reason(code, says, details), self

    def holders(self, jobs: Mapping[str, Job]) -> dict[str, Any]:
        """The first of them by name, and how many more there are. `jobs` say until when their calls may take."""
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


# ---------------------------------------------------------------- the line itself


def in_line(place: Place, order: Order) -> Reason:
    ahead = place.position - 1
    parts = {
        "retries": (place.ahead_retries, "retries, which go first"),
        "higher_priority": (place.ahead_bands, "of higher priority"),
        "other_users": (place.ahead_users, "of other users who came before" if order is Order.FIFO else _FAIRER),
        "own": (place.ahead_own, "this user's own"),
    }
    details = {"ahead": ahead, **{name: count for name, (count, _) in parts.items()}}
    if not ahead:
        return Reason("in_line", "the job is next in line", details)
    said = ", ".join(f"{count} {text}" for count, text in parts.values() if count)
    return Reason("in_line", f"the job is in line behind {ahead} {'job' if ahead == 1 else 'jobs'}: {said}", details)


def waits_for_caller(job: Job, *, private: bool) -> Reason:
    text = f"a slot of {job.service} is free, and the turn's caller has not taken it yet"
    return Reason(
        "caller_absent", text, {"service": job.service} if private else {"process": process_of(job.turn or "")}
    )


_FAIRER = "of other users whose turn is earlier"
