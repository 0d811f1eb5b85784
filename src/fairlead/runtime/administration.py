"""What operators do to services and to single jobs while all runs: each is kept in the truth, and audited there."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.domain import transitions
from fairlead.domain.job import Job, JobStatus, Priority
from fairlead.domain.limits import Rules, ServiceRules
from fairlead.errors import InvalidInput, NotFound, Unavailable, WrongState
from fairlead.runtime import audit
from fairlead.runtime.audit import Act, AuditBook
from fairlead.runtime.clock import Clock
from fairlead.runtime.operations import TRIES, Operations
from fairlead.runtime.record import Recorder
from fairlead.store.port import Done, Override, RequestRebuild, Store

MAX_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True)
class ServiceState:
    """A service as it now is. What an operator changed is in `override_limit` and `paused` until it is taken back."""

    service: str
    limit: int
    paused: bool
    declared_limit: int
    override_limit: int | None


class Administration:
    def __init__(self, store: Store, operations: Operations, recorder: Recorder, clock: Clock, book: AuditBook) -> None:
        self._store = store
        self._operations = operations
        self._recorder = recorder
        self._clock = clock
        self._book = book

    # ------------------------------------------------------------ services

    async def pause(self, service: str, *, who: str) -> Rules:
        return await self._override(Override(service, paused=True), Act(who, audit.PAUSE, service))

    async def unpause(self, service: str, *, who: str) -> Rules:
        return await self._override(Override(service, paused=False), Act(who, audit.RESUME, service))

    async def set_limit(self, service: str, limit: int | None, *, who: str) -> Rules:
        """None lifts it."""
        if limit == 0 and type(limit) is int:
            raise InvalidInput("a limit of 0 would stop the service: pause it instead", pointer="/limit")
        if limit is not None and (type(limit) is not int or not 0 < limit <= MAX_LIMIT):
            raise InvalidInput(f"a limit is from 1 to {MAX_LIMIT}", pointer="/limit")
        before = await self._known(service)
        if before.shares:
            raise InvalidInput(f"the limit of {service} is stated per shard; change it in the config", pointer="/limit")
        if limit is None:
            lifted = Act(who, audit.LIFT_LIMIT, service, {"was": before.limit})
            return await self._override(Override(service, lift_limit=True), lifted)
        details = {"limit": limit, "was": before.limit}
        return await self._override(Override(service, limit=limit), Act(who, audit.LIMIT, service, details))

    async def state(self, service: str, rules: Rules) -> ServiceState:
        """By the rules that a change of this service resulted in."""
        now, override = rules.services[service], rules.overrides.get(service)
        declared = {one.service: one.limit for one in (await self._store.declared()).services}
        said = override.limit if override is not None else None
        return ServiceState(service, now.limit, now.paused, declared.get(service, now.limit), said)

    async def rebuild(self, service: str, *, who: str) -> list[str]:
        """Asks the leader to build the service's part of the line anew; returns the scopes that this is."""
        rules = await self._known(service)
        parts = [rules.on(shard) for shard in rules.shares] if rules.shares else [rules]
        scopes = sorted(part.scope for part in parts if part is not None)
        requests = [RequestRebuild(scope) for scope in scopes]
        outcomes = await self._book.write(Act(who, audit.REBUILD, service, {"scopes": scopes}), *requests)
        if not all(isinstance(outcome, Done) for outcome in outcomes):
            raise WrongState(f"the line of {service} has not been built yet: is a manager running?")
        return scopes

    async def _override(self, override: Override, act: Act) -> Rules:
        await self._known(override.service)
        (outcome,) = await self._book.write(act, override)
        if not isinstance(outcome, Done):
            raise _no_service(override.service)
        assert isinstance(outcome.value, Rules)
        return outcome.value

    async def _known(self, service: str) -> ServiceRules:
        """The truth decides which services there are, and not this process's config: it may be another one's."""
        rules = (await self._store.rules()).services.get(service)
        if rules is None:
            raise _no_service(service)
        return rules

    # ------------------------------------------------------------ jobs

    async def set_priority(self, job_id: str, priority: str, *, who: str) -> None:
        try:
            wanted = Priority(priority)
        except ValueError:
            said = f"priority must be high, medium or low, not {str(priority)[:50]!r}"
            raise InvalidInput(said, pointer="/priority") from None
        for _ in range(TRIES):
            job, rules = await self._operations.job(job_id), await self._store.rules()
            details = {"old": job.priority.value, "new": wanted.value, "status": job.status.value}
            act = Act(who, audit.PRIORITY, job.id, details)
            if wanted is job.priority and not job.status.finished:
                await self._book.write(act)
                return
            now = self._clock.now()
            change = transitions.prioritise(job, wanted, now=now, waits=rules.wait_timeouts)
            _refuse_another_shard(job, wanted, rules)
            (outcome,) = await self._book.write(act, change)
            if isinstance(outcome, Done):
                self._recorder.tell_all([(job, change)], now)
                return
        raise Unavailable(f"job {job_id} keeps changing; try again")


def _refuse_another_shard(job: Job, priority: Priority, rules: Rules) -> None:
    """A call's slot is found by its job's band, so it must be on the shard of that band until the call has ended."""
    here, there = (rules.shard_of(job.service, each.band) for each in (job.priority, priority))
    if job.status is JobStatus.RUNNING and here != there:
        raise WrongState(
            f"{job.service} is split by priority, and this call runs on {here}: try again when it has ended",
            details={"status": job.status.value},
        )


def _no_service(service: str) -> NotFound:
    return NotFound(f"there is no service {service[:100]!r}")
