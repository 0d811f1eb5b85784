"""Sets the priority, weight, group and plan of submitted jobs. The priority is taken from the first of these that has
one: the submit, the hook (`@app.priority`), the table of users in the configuration, the priority service. Otherwise it
is medium.

Answers are cached, concurrent lookups of one user share one request, and a circuit breaker stops requests to a failing
source. If a lookup fails, the job gets `medium`, and records that the lookup failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fairlead.app.priority.sources import Breaker, Hook, NoAnswer, PriorityHook, PrioritySourceClient
from fairlead.domain.config import Config
from fairlead.domain.fast_dataclass import changed
from fairlead.domain.job import Job, Priority, PrioritySource
from fairlead.domain.transitions import Submit
from fairlead.domain.user_priority import UNKNOWN, UserPriority, standing_of
from fairlead.engine.clock import Clock
from fairlead.outage import Outage

log = logging.getLogger("fairlead.priority")

MAX_CACHED = 50_000
AT_ONCE = 32
BULK_PATIENCE = 10.0  # a multiple of the configured timeout


class PriorityDecision(NamedTuple):
    priority: Priority
    weight: float
    source: PrioritySource
    group: str | None = None
    plan: str | None = None


@dataclass(slots=True)
class Source:
    """A source of priorities, with its circuit breaker and its current outage."""

    client: PrioritySourceClient
    breaker: Breaker
    outage: Outage


class PriorityResolver:
    def __init__(
        self,
        config: Config,
        hook: PriorityHook | None,
        clock: Clock,
        has_member_rates: Callable[[], bool] = lambda: False,
    ) -> None:
        """`has_member_rates` tells whether plans or groups have rates now, which operators change at run time."""
        self._config = config.priority
        self._plans = config.plan_standings
        self._table = config.user_standings
        self._groups = config.group_paths
        # With rates and budgets of plans or groups, every job needs its plan and group.
        self._has_budgets = any(each.plan or each.group for each in config.budgets.values())
        self._has_member_rates = has_member_rates
        self._clock = clock
        self._hook = self._source(Hook(hook)) if hook is not None else None
        self._service = self._source(_service(config)) if config.priority.template is not None else None
        self._cache: OrderedDict[str, tuple[PriorityDecision, float]] = OrderedDict()
        self._lookups: dict[str, asyncio.Task[PriorityDecision]] = {}
        self.decided: Counter[PrioritySource] = Counter()
        self.questions = 0
        self.needed = hook is not None or bool(config.users) or self._service is not None
        """Whether priorities have to be looked up. False if there is no hook, no table of users and no priority
        service."""

    def _source(self, client: PrioritySourceClient) -> Source:
        breaker = Breaker(after=self._config.breaker_after, rest=self._config.breaker_rest)
        return Source(client, breaker, Outage(log, f"querying {client.name} (jobs get medium)"))

    @property
    def resting(self) -> dict[str, bool]:
        """For each source, whether its circuit breaker is open."""
        now = self._clock.monotonic()
        return {each.client.source.value: each.breaker.resting(now) for each in self._sources()}

    @property
    def problems(self) -> dict[str, str]:
        """For each source whose last request failed, the reason."""
        return {each.client.name: each.outage.reason for each in self._sources() if each.outage.reason is not None}

    def _sources(self) -> list[Source]:
        return [each for each in (self._hook, self._service) if each is not None]

    async def close(self) -> None:
        """Close the sources, after the lookups in progress have ended; their timeout is short."""
        await asyncio.gather(*self._lookups.values(), return_exceptions=True)
        for source in self._sources():
            await source.client.close()

    # ------------------------------------------------------------ submits

    async def settle(self, submits: Sequence[Submit], *, lowers_only: bool = False) -> list[Submit]:
        """Return the submits with their priority, weight, group and plan set. With `lowers_only`, a submitted priority
        is used only if it is lower than the user's own priority."""
        every = lowers_only or self._has_budgets or self._has_member_rates()
        users = {submit.job.user_id for submit in submits if every or not _is_submitted(submit.job)}
        decisions = await self._decisions(users)
        settled = []
        for submit in submits:
            job = self._settled(submit.job, decisions.get(submit.job.user_id), lowers_only=lowers_only)
            self.decided[PrioritySource(job.priority_source or PrioritySource.DEFAULT)] += 1
            settled.append(submit if job is submit.job else changed(submit, job=job))
        return settled

    def _settled(self, job: Job, decision: PriorityDecision | None, *, lowers_only: bool) -> Job:
        lower = decision is not None and job.priority.band > decision.priority.band
        if _is_submitted(job) and (lower or not lowers_only):
            weight, group, plan = self._share(job.user_id, decision)
            if (weight, group, plan) == (job.weight, job.group, job.plan):
                return job
            return changed(job, weight=weight, group=group, plan=plan)
        if decision is None or decision == (job.priority, job.weight, job.priority_source, job.group, job.plan):
            return job
        return changed(
            job,
            priority=decision.priority,
            original_priority=decision.priority,
            priority_source=decision.source.value,
            weight=decision.weight,
            group=decision.group,
            plan=decision.plan,
        )

    def _share(self, user_id: str, decision: PriorityDecision | None) -> tuple[float, str | None, str | None]:
        """The weight, group and plan of a user whose job has a priority of its own. No source is queried for them
        alone: if there is no decision, the table of users has them, and a cached answer may have group and plan."""
        if decision is not None:
            return decision.weight, decision.group, decision.plan
        table, cached = self._table.get(user_id, UNKNOWN), self._cache.get(user_id)
        if cached is None:
            return table.weight or 1.0, table.group, table.plan
        known = cached[0]
        return table.weight or 1.0, table.group or known.group, table.plan or known.plan

    # ------------------------------------------------------------ users

    async def of_user(self, user_id: str) -> PriorityDecision:
        """The priority, weight, group and plan of a user."""
        return (await self._decisions([user_id]))[user_id]

    async def _decisions(self, users: Collection[str]) -> dict[str, PriorityDecision]:
        """Determine the priority and weight of each user. If many users are looked up at once, those that cannot be
        looked up in time get the fallback."""
        decisions: dict[str, PriorityDecision] = {}
        missing = []
        for user_id in users:
            known = self._known(user_id)
            if known is None:
                missing.append(user_id)
            else:
                decisions[user_id] = known
        if len(missing) == 1:
            decisions[missing[0]] = await self._shared(missing[0])
        elif missing:
            await self._look_up_many(missing, decisions)
        return decisions

    async def _look_up_many(self, missing: Sequence[str], decisions: dict[str, PriorityDecision]) -> None:
        remaining = iter(missing)

        async def look_up_some() -> None:
            for user_id in remaining:
                decisions[user_id] = await self._shared(user_id)

        try:
            async with asyncio.timeout(BULK_PATIENCE * self._config.timeout), asyncio.TaskGroup() as group:
                for _ in range(min(AT_ONCE, len(missing))):
                    group.create_task(look_up_some())
        except TimeoutError:
            late = [user_id for user_id in missing if user_id not in decisions]
            log.warning("the priorities of %d users of one bulk could not be looked up in time", len(late))
            decisions.update((user_id, self._fallback(user_id)) for user_id in late)

    def _known(self, user_id: str) -> PriorityDecision | None:
        """The user's priority and weight, if they are known without asking a source: from the table of users, from the
        cache, or the default if there is no source. None otherwise."""
        if self._hook is None:
            table = self._table.get(user_id, UNKNOWN)
            if table.priority is not None:
                return _decision(table, PrioritySource.CONFIG)
            if self._service is None:
                return _decision(table, PrioritySource.DEFAULT)
        cached = self._cache.get(user_id)
        if cached is None:
            return None
        decision, until = cached
        if self._clock.monotonic() >= until:
            del self._cache[user_id]
            return None
        self._cache.move_to_end(user_id)
        return decision

    async def _shared(self, user_id: str) -> PriorityDecision:
        """Look up a user once for all callers that wait for this user. The lookup continues if one of the callers is
        cancelled."""
        lookup = self._lookups.get(user_id)
        if lookup is None:
            lookup = asyncio.get_running_loop().create_task(self._look_up(user_id), name="fairlead-priority")
            self._lookups[user_id] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop(user_id, None))
        return await asyncio.shield(lookup)

    async def _look_up(self, user_id: str) -> PriorityDecision:
        try:
            decision, keep = await self._decide(user_id), True
        except NoAnswer as problem:
            decision, keep = self._fallback(user_id), problem.keep
        if keep and self._config.cache > 0:
            self._cache[user_id] = decision, self._clock.monotonic() + self._config.cache
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        return decision

    async def _decide(self, user_id: str) -> PriorityDecision:
        """Ask the sources in order. Each source fills in the values that the sources before it did not give."""
        standing, source = UNKNOWN, PrioritySource.DEFAULT
        if self._hook is not None:
            standing, source = await self._ask(self._hook, user_id), PrioritySource.HOOK
        if standing.priority is None:
            source = PrioritySource.CONFIG
        standing = standing.or_else(self._table.get(user_id, UNKNOWN))
        if standing.priority is None and self._service is not None:
            standing, source = standing.or_else(await self._ask(self._service, user_id)), PrioritySource.SERVICE
        return _decision(standing, PrioritySource.DEFAULT if standing.priority is None else source)

    def _fallback(self, user_id: str) -> PriorityDecision:
        table = self._table.get(user_id, UNKNOWN)
        return _decision(replace(table, priority=None), PrioritySource.FALLBACK)

    async def _ask(self, source: Source, user_id: str) -> UserPriority:
        if not source.breaker.admits(self._clock.monotonic()):
            raise NoAnswer(f"the breaker of {source.client.name} is open", counts=False)
        self.questions += 1
        timeout = self._config.timeout
        try:
            async with asyncio.timeout(timeout):
                answer = await source.client.ask(user_id)
            standing = standing_of(answer, self._plans, self._groups)
        except TimeoutError:
            problem = NoAnswer(f"no response within {timeout:g} s", counts=True)
        except NoAnswer as error:
            problem = error
        except ValueError as error:
            problem = NoAnswer(f"its response is invalid: {error}", counts=False, keep=True)
        else:
            source.breaker.succeeded()
            source.outage.ended()
            return standing
        if problem.counts:
            source.breaker.failed(self._clock.monotonic())
            source.outage.began(problem)
        else:
            source.breaker.succeeded()
            log.info("%s gave no priority for a user: %s", source.client.name, problem)
        raise problem


def _decision(known: UserPriority, source: PrioritySource) -> PriorityDecision:
    return PriorityDecision(known.priority or Priority.MEDIUM, known.weight or 1.0, source, known.group, known.plan)


def _is_submitted(job: Job) -> bool:
    return job.priority_source == PrioritySource.GIVEN


def _service(config: Config) -> PrioritySourceClient:
    # Imported here: only apps with a priority service need the HTTP client.
    from fairlead.app.priority.service import PriorityService

    return PriorityService(config.priority.template or "", config.priority.headers)
