"""Changes that operators make to services, to the priority of single jobs and to processes. The changes are stored in
the database and recorded in the audit log."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fairlead.app import audit
from fairlead.app.audit import Act, AuditLog
from fairlead.app.job_commands import TRIES, JobCommands
from fairlead.app.rate_admin import RateState, SharedRateState, set_rate
from fairlead.app.runtime import Runtime
from fairlead.domain import transitions
from fairlead.domain.config_checks import known
from fairlead.domain.job import Job, JobStatus, Priority
from fairlead.domain.processes import ProcessRecord
from fairlead.domain.rate_config import RateConfig
from fairlead.domain.rates import RateOf
from fairlead.domain.rules import Rules, ServiceRules
from fairlead.errors import InvalidInput, NotFound, Unavailable, WrongState
from fairlead.store.port import Done, Override, OverrideRates, RequestDrain, RequestRebuild

MAX_LIMIT = 1_000_000
APPLIED_WITHIN = 1.0


@dataclass(frozen=True, slots=True)
class ServiceState:
    """A service's current limit, and the changes of operators: `override_limit` and `paused`."""

    service: str
    limit: int
    paused: bool
    declared_limit: int
    override_limit: int | None


class ServiceAdmin:
    def __init__(self, runtime: Runtime, commands: JobCommands, audit: AuditLog) -> None:
        self._runtime = runtime
        self._commands = commands
        self._audit = audit

    # ------------------------------------------------------------ services

    async def pause(self, service: str, *, who: str) -> ServiceState:
        """Start no further jobs of this service until `unpause`; running calls continue."""
        return await self._override(Override(service, paused=True), Act(who, audit.PAUSE, service))

    async def unpause(self, service: str, *, who: str) -> ServiceState:
        return await self._override(Override(service, paused=False), Act(who, audit.RESUME, service))

    async def set_limit(self, service: str, limit: int | None, *, who: str) -> ServiceState:
        """Override the service's limit. A limit of None removes the override."""
        if limit == 0 and type(limit) is int:
            raise InvalidInput("a limit of 0 would stop the service; pause it instead", pointer="/limit")
        if limit is not None and (type(limit) is not int or not 0 < limit <= MAX_LIMIT):
            raise InvalidInput(f"the limit must be from 1 to {MAX_LIMIT}", pointer="/limit")
        before = await self._rules_of(service)
        if before.shares:
            raise InvalidInput(f"the limit of {service} is set per shard; change it in the config", pointer="/limit")
        if limit is None:
            lifted = Act(who, audit.LIFT_LIMIT, service, {"was": before.limit})
            return await self._override(Override(service, lift_limit=True), lifted)
        details = {"limit": limit, "was": before.limit}
        return await self._override(Override(service, limit=limit), Act(who, audit.LIMIT, service, details))

    async def set_rate(self, of: RateOf, rate: RateConfig | None, *, who: str) -> RateState:
        """Override the rate of a service, of each of its users or of a region. None removes the override; for a
        service, also that of its users."""
        return RateState.of(of.name, *await self._set_rate(of, rate, who))

    async def set_shared_rate(self, of: RateOf, rate: RateConfig | None, *, who: str) -> SharedRateState:
        """Override the rate of a pool, a plan or a group. None removes the override."""
        rules, declared = await self._set_rate(of, rate, who)
        return SharedRateState(of.kind, of.name, rules.rate_of(of), declared.rate_of(of), rules.unit_of(of))

    async def _set_rate(self, of: RateOf, rate: RateConfig | None, who: str) -> tuple[Rules, Rules]:
        runtime = self._runtime
        found = await set_rate(of, rate, runtime.store, runtime.config.plans, self._write_rates, who=who)
        if runtime.node is not None:
            runtime.node.check_scopes()  # a longer window takes a rebuild
        return found

    async def rebuild(self, service: str, *, who: str) -> list[str]:
        """Ask the leader to rebuild the service's queue from the database. Returns the scopes that will be rebuilt."""
        rules = await self._rules_of(service)
        parts = [rules.on(shard) for shard in rules.shares] if rules.shares else [rules]
        scopes = sorted(part.scope for part in parts if part is not None)
        requests = [RequestRebuild(scope) for scope in scopes]
        outcomes = await self._audit.write(Act(who, audit.REBUILD, service, {"scopes": scopes}), *requests)
        if not all(isinstance(outcome, Done) for outcome in outcomes):
            raise WrongState(f"the queue of {service} has not been built yet: is a manager running?")
        if self._runtime.node is not None:
            self._runtime.node.check_scopes()
        return scopes

    async def _override(self, override: Override, act: Act) -> ServiceState:
        await self._rules_of(override.service)
        return await self._state(override.service, await self._write(override, act))

    async def _write(self, override: Override, act: Act) -> Rules:
        """Store an operator's change of a service."""
        (outcome,) = await self._audit.write(act, override)
        if not isinstance(outcome, Done):  # the service was removed meanwhile
            raise NotFound(f"there is no service {override.service[:100]!r}")
        return await self._apply(outcome)

    async def _write_rates(self, override: OverrideRates, act: Act) -> Rules | None:
        (outcome,) = await self._audit.write(act, override)
        return await self._apply(outcome) if isinstance(outcome, Done) else None

    async def _apply(self, written: Done) -> Rules:
        """Changed rules apply in this process at once, and in other processes when they next read them."""
        rules = written.value
        assert isinstance(rules, Rules)
        if self._runtime.node is not None:
            # The change is committed, so do not wait long for a dispatcher that hangs.
            await self._runtime.probes.do(self._runtime.node.apply(rules), APPLIED_WITHIN)
        return rules

    async def _state(self, service: str, rules: Rules) -> ServiceState:
        current, override = rules.services[service], rules.overrides.get(service)
        declared = {each.service: each.limit for each in (await self._runtime.store.declared()).services}
        override_limit = override.limit if override is not None else None
        declared_limit = declared.get(service, current.limit)
        return ServiceState(service, current.limit, current.paused, declared_limit, override_limit)

    async def _rules_of(self, service: str) -> ServiceRules:
        """The service's rules, read from the database, because the configuration of this process may lack the
        service."""
        services = (await self._runtime.store.rules()).services
        if service not in services:
            raise NotFound(f"there is no service {service[:100]!r}; {known(services)}")
        return services[service]

    # ------------------------------------------------------------ jobs

    async def set_priority(self, job_id: str, priority: str, *, who: str) -> None:
        """Move a waiting job to another band. If the job is running, its call continues, and its next step waits in the
        new band."""
        try:
            new = Priority(priority)
        except ValueError:
            message = f"priority must be high, medium or low, not {str(priority)[:50]!r}"
            raise InvalidInput(message, pointer="/priority") from None
        for _ in range(TRIES):
            job, rules = await self._commands.job(job_id), await self._runtime.store.rules()
            details = {"old": job.priority.value, "new": new.value, "status": job.status.value}
            act = Act(who, audit.PRIORITY, job.id, details)
            if new is job.priority and not job.status.finished:
                await self._audit.write(act)
                return
            now = self._runtime.clock.now()
            change = transitions.prioritise(job, new, now=now, waits=rules.wait_timeouts)
            _check_shard(job, new, rules)
            (outcome,) = await self._audit.write(act, change)
            if isinstance(outcome, Done):
                self._runtime.writer.publish_all([(job, change)], now)
                return
        raise Unavailable(f"job {job_id} keeps changing; try again")


def _check_shard(job: Job, priority: Priority, rules: Rules) -> None:
    """Refuse to move a running job to a band that is on another shard. Otherwise the slot of the running call would be
    looked up on the wrong shard."""
    here, there = (rules.shard_of(job.service, each.band) for each in (job.priority, priority))
    if job.status is JobStatus.RUNNING and here != there:
        raise WrongState(
            f"{job.service} is split by priority, and this call runs on {here}; try again when it has ended",
            details={"status": job.status.value},
        )


class ProcessAdmin:
    """Operators' requests to processes: drain a worker."""

    def __init__(self, runtime: Runtime, audit: AuditLog) -> None:
        self._runtime = runtime
        self._audit = audit

    async def all(self) -> list[ProcessRecord]:
        return await self._runtime.store.processes()

    async def drain(self, name: str, *, on: bool, who: str) -> ProcessRecord:
        """Ask a worker to stop claiming jobs, or to claim again. The worker receives the request within two seconds."""
        store, node = self._runtime.store, self._runtime.node
        records = {record.name: record for record in await store.processes()}
        if name not in records:
            now = await store.now()
            workers = {each.name: each for each in records.values() if "worker" in each.roles and each.alive(now)}
            raise NotFound(f"there is no process {name[:100]!r}; {known(workers) if workers else 'no worker is alive'}")
        record = records[name]
        if "worker" not in record.roles:
            raise WrongState(f"{name} runs no worker: there is nothing to drain")
        if not record.alive(await store.now()):
            raise WrongState(f"{name} is gone: it has stopped announcing itself")
        act = Act(who, audit.DRAIN if on else audit.UNDRAIN, name)
        (outcome,) = await self._audit.write(act, RequestDrain(name, on))
        if not isinstance(outcome, Done):
            raise NotFound(f"there is no process {name[:100]!r}")
        if node is not None and node.name == name:
            node.announce_soon()
        return replace(record, drain_asked=on)

    async def leaderless(self) -> str | None:
        """Return a warning if no manager is alive: work of a leader, such as a rebuild, is then not done until one
        starts. None if a manager is alive."""
        node = self._runtime.node
        if node is not None and any(shard.leader is not None for shard in node.shards.values()):
            return None
        if any("manager" in record.roles for record in (await self._runtime.observer.processes.fresh()).alive):
            return None
        return "no manager is alive: it is done when one starts (fairlead manager, or fairlead up)"
