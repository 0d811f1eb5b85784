"""Settles the priority and weight of what is submitted: as given, else by the hook, the config's table, the priority
service; else medium.

An answer is remembered for a while, one user is asked about by one question however many wait for it, and whoever keeps
failing is left alone for a while. Any error means `medium`, and the job records that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fairlead.domain.config import Config
from fairlead.domain.job import Job, Priority, PrioritySource
from fairlead.domain.standing import UNKNOWN, Standing, standing_of
from fairlead.domain.transitions import Submit
from fairlead.runtime.breaker import Breaker
from fairlead.runtime.clock import Clock
from fairlead.runtime.outage import Outage
from fairlead.runtime.priority.hook import Hook, PriorityHook
from fairlead.runtime.priority.port import Asked, NoAnswer

log = logging.getLogger(__name__)

MOST_REMEMBERED = 50_000
AT_ONCE = 32
BULK_PATIENCE = 10.0  # timeouts


class Decision(NamedTuple):
    priority: Priority
    weight: float
    source: PrioritySource


@dataclass(slots=True)
class Source:
    """One of those who are asked, and how it fares."""

    asked: Asked
    breaker: Breaker
    outage: Outage


class Priorities:
    def __init__(self, config: Config, hook: PriorityHook | None, clock: Clock) -> None:
        self._config = config.priority
        self._plans = config.plan_standings
        self._table = config.user_standings
        self._clock = clock
        self._hook = self._source(Hook(hook)) if hook is not None else None
        self._service = self._source(_service(config)) if config.priority.template is not None else None
        self._remembered: OrderedDict[str, tuple[Decision, float]] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[Decision]] = {}
        self.decided: Counter[PrioritySource] = Counter()
        self.questions = 0
        self.needed = hook is not None or bool(config.users) or self._service is not None
        """Without a hook, a table or a service there is nothing to settle, and submitting is not delayed by it."""

    def _source(self, asked: Asked) -> Source:
        breaker = Breaker(after=self._config.breaker_after, rest=self._config.breaker_rest)
        return Source(asked, breaker, Outage(log, f"asking {asked.name} (jobs get medium)"))

    @property
    def resting(self) -> dict[str, bool]:
        """Who failed so often that it is not asked for a while?"""
        now = self._clock.monotonic()
        return {each.asked.source.value: each.breaker.resting(now) for each in self._sources()}

    @property
    def problems(self) -> dict[str, str]:
        """Who could not be asked the last time, and why."""
        return {each.asked.name: each.outage.reason for each in self._sources() if each.outage.reason is not None}

    def _sources(self) -> list[Source]:
        return [each for each in (self._hook, self._service) if each is not None]

    async def close(self) -> None:
        """Those who still wait get their answers first: it is not long, since every question has a timeout."""
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)
        for source in self._sources():
            await source.asked.close()

    # ------------------------------------------------------------ what is submitted

    async def settle(self, submits: Sequence[Submit], *, lowers_only: bool = False) -> list[Submit]:
        """The same, each with its priority and weight. `lowers_only`: a priority that was given is a wish, which counts
        only below the one that the user would get without it."""
        users = {submit.job.user_id for submit in submits if lowers_only or not _given(submit.job)}
        decisions = await self._decisions(users)
        settled = []
        for submit in submits:
            job = self._settled(submit.job, decisions.get(submit.job.user_id), lowers_only=lowers_only)
            self.decided[PrioritySource(job.priority_source or PrioritySource.DEFAULT)] += 1
            settled.append(submit if job is submit.job else replace(submit, job=job))
        return settled

    def _settled(self, job: Job, decision: Decision | None, *, lowers_only: bool) -> Job:
        lower = decision is not None and job.priority.band > decision.priority.band
        if _given(job) and (lower or not lowers_only):
            # Nobody is asked because of the weight alone; the table costs nothing.
            weight = decision.weight if decision is not None else self._table.get(job.user_id, UNKNOWN).weight
            return job if weight is None or weight == job.weight else replace(job, weight=weight)
        if decision is None or decision == (job.priority, job.weight, job.priority_source):
            return job
        return replace(
            job,
            priority=decision.priority,
            original_priority=decision.priority,
            priority_source=decision.source.value,
            weight=decision.weight,
        )

    # ------------------------------------------------------------ users

    async def _decisions(self, users: Collection[str]) -> dict[str, Decision]:
        """Each user once. Of many at once, those who could not be asked in time get what they would get on an error."""
        found: dict[str, Decision] = {}
        missing = []
        for user_id in users:
            known = self._known(user_id)
            if known is None:
                missing.append(user_id)
            else:
                found[user_id] = known
        if len(missing) == 1:
            found[missing[0]] = await self._shared(missing[0])
        elif missing:
            await self._ask_many(missing, found)
        return found

    async def _ask_many(self, missing: Sequence[str], found: dict[str, Decision]) -> None:
        following = iter(missing)

        async def ask_some() -> None:
            for user_id in following:
                found[user_id] = await self._shared(user_id)

        try:
            async with asyncio.timeout(BULK_PATIENCE * self._config.timeout), asyncio.TaskGroup() as group:
                for _ in range(min(AT_ONCE, len(missing))):
                    group.create_task(ask_some())
        except TimeoutError:
            late = [user_id for user_id in missing if user_id not in found]
            log.warning("the priorities of %d users of one bulk could not be asked for in time", len(late))
            found.update((user_id, self._fallback(user_id)) for user_id in late)

    def _known(self, user_id: str) -> Decision | None:
        """Without asking anybody."""
        if self._hook is None:
            table = self._table.get(user_id, UNKNOWN)
            if table.priority is not None:
                return Decision(table.priority, table.weight or 1.0, PrioritySource.CONFIG)
            if self._service is None:
                return Decision(Priority.MEDIUM, table.weight or 1.0, PrioritySource.DEFAULT)
        remembered = self._remembered.get(user_id)
        if remembered is None:
            return None
        decision, until = remembered
        if self._clock.monotonic() >= until:
            del self._remembered[user_id]
            return None
        self._remembered.move_to_end(user_id)
        return decision

    async def _shared(self, user_id: str) -> Decision:
        """One question for all who wait; it goes on should one of them give up."""
        question = self._under_way.get(user_id)
        if question is None:
            question = asyncio.get_running_loop().create_task(self._look_up(user_id), name="fairlead-priority")
            self._under_way[user_id] = question
            question.add_done_callback(lambda _: self._under_way.pop(user_id, None))
        return await asyncio.shield(question)

    async def _look_up(self, user_id: str) -> Decision:
        try:
            decision, keep = await self._decide(user_id), True
        except NoAnswer as problem:
            decision, keep = self._fallback(user_id), problem.keep
        if keep and self._config.cache > 0:
            self._remembered[user_id] = decision, self._clock.monotonic() + self._config.cache
            if len(self._remembered) > MOST_REMEMBERED:
                self._remembered.popitem(last=False)
        return decision

    async def _decide(self, user_id: str) -> Decision:
        """Whoever comes first decides; what it leaves open is left to the next."""
        standing, source = UNKNOWN, PrioritySource.DEFAULT
        if self._hook is not None:
            standing, source = await self._ask(self._hook, user_id), PrioritySource.HOOK
        if standing.priority is None:
            source = PrioritySource.CONFIG
        standing = standing.or_else(self._table.get(user_id, UNKNOWN))
        if standing.priority is None and self._service is not None:
            standing, source = standing.or_else(await self._ask(self._service, user_id)), PrioritySource.SERVICE
        if standing.priority is None:
            return Decision(Priority.MEDIUM, standing.weight or 1.0, PrioritySource.DEFAULT)
        return Decision(standing.priority, standing.weight or 1.0, source)

    def _fallback(self, user_id: str) -> Decision:
        return Decision(Priority.MEDIUM, self._table.get(user_id, UNKNOWN).weight or 1.0, PrioritySource.FALLBACK)

    async def _ask(self, source: Source, user_id: str) -> Standing:
        if not source.breaker.admits(self._clock.monotonic()):
            raise NoAnswer(f"{source.asked.name} rests", counts=False)
        self.questions += 1
        timeout = self._config.timeout
        try:
            async with asyncio.timeout(timeout):
                said = await source.asked.ask(user_id)
            standing = standing_of(said, self._plans)
        except TimeoutError:
            problem = NoAnswer(f"no answer within {timeout:g} s", counts=True)
        except NoAnswer as error:
            problem = error
        except ValueError as error:
            problem = NoAnswer(f"its answer cannot be used: {error}", counts=False, keep=True)
        else:
            source.breaker.succeeded()
            source.outage.ended()
            return standing
        if problem.counts:
            source.breaker.failed(self._clock.monotonic())
            source.outage.began(problem)
        else:
            source.breaker.succeeded()
            log.info("%s, asked about a user: %s", source.asked.name, problem)
        raise problem


def _given(job: Job) -> bool:
    return job.priority_source == PrioritySource.GIVEN


def _service(config: Config) -> Asked:
    # Only those who have such a service need the HTTP client installed.
    from fairlead.runtime.priority.service import Service

    return Service(config.priority.template or "", config.priority.headers)
