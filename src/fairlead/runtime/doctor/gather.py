"""Collects the facts. What cannot be asked is left out, or is a fact of its own; nothing here fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.config import Settings
from fairlead.dispatch.port import Dispatcher, Leadership, ServiceSnapshot
from fairlead.domain.config import Config
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.limits import BANDS, Lanes, Rules, ServiceRules
from fairlead.errors import FairleadError, Unavailable
from fairlead.runtime.clock import Clock
from fairlead.runtime.doctor.facts import CeleryFacts, Echo, Facts, LineFacts, RedisFacts, Schema
from fairlead.runtime.line import Line
from fairlead.runtime.process import Process
from fairlead.store.port import JobFilter, Store

ANSWERS_WITHIN = 3.0
"""Seconds for one question to a server that may be away."""
HEARD_WITHIN = 2.0
SETTLED = 5.0
"""Seconds that a job waits before one may expect it in line."""
SAMPLE = 500
_COUNTED = (JobStatus.SCHEDULED, JobStatus.PENDING, JobStatus.RETRYING, JobStatus.RUNNING, JobStatus.FAILED)


@dataclass(frozen=True)
class Sources:
    """Where the facts come from. Without a `store` or a `process` fewer are known."""

    settings: Settings
    config: Config
    clock: Clock
    schema: Callable[[], Awaitable[Schema]]
    redis: Callable[[], Awaitable[Mapping[str, RedisFacts]]]
    disk: Callable[[], tuple[int, int] | None]
    problems: Sequence[str] = ()
    store: Store | None = None
    process: Process | None = None
    leaders: Callable[[], Awaitable[Mapping[str, LineFacts]]] | None = None
    listens_on: Sequence[str] = ()
    priority_problems: Callable[[], Mapping[str, str]] = dict
    outside: bool = False
    celery: Callable[[], Awaitable[Mapping[str, CeleryFacts]]] | None = None


async def facts_of(sources: Sources) -> Facts:
    found: dict[str, Any] = {"now": sources.clock.now(), "elsewhere": False}
    found["redis"] = await sources.redis()
    if sources.celery is not None:
        found["celery"] = await sources.celery()
    found |= await _truth(sources)
    if disk := sources.disk():
        found["disk_free"], found["disk_total"] = disk
    if sources.process is not None:
        found |= await _line(sources, sources.process, found)
    elif sources.leaders is not None:
        found["lines"] = await sources.leaders()
    else:
        found["elsewhere"] = True
    return Facts(
        sources.settings,
        sources.config,
        config_problems=tuple(sources.problems),
        listens_on=tuple(sources.listens_on),
        priority_problems=sources.priority_problems(),
        outside=sources.outside,
        **found,
    )


# ---------------------------------------------------------------- the truth


async def _truth(sources: Sources) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            found["schema"] = await sources.schema()
        if sources.store is not None:
            found |= await _asked(sources.store, sources)
    except (FairleadError, TimeoutError) as error:
        found["store_problem"] = str(error) or f"the database does not answer within {ANSWERS_WITHIN:g} s"
    return found


async def _asked(store: Store, sources: Sources) -> dict[str, Any]:
    asked_at = sources.clock.now()
    facts = await store.facts()
    asked_at = (asked_at + sources.clock.now()) / 2
    promotion = sources.config.promotion
    rules = await store.rules()
    return {
        "store": {**facts, "asked_at": asked_at},
        "now": float(facts["clock"]),
        "rules": rules,
        "declared_limits": {each.service: each.limit for each in (await store.declared()).services},
        "epochs": await store.epochs(),
        "jobs": {status: await store.count(JobFilter(statuses=(status,))) for status in _COUNTED},
        "next_timer": await store.next_timer(),
        "next_promotion": await store.next_promotion(
            low_after=promotion.low_to_medium_after, medium_after=promotion.medium_to_high_after
        ),
        "processes": await store.processes(),
        "died_lately": await store.list_jobs(JobFilter(statuses=(JobStatus.FAILED,)), before_seq=None, limit=SAMPLE),
        "undeclared": await _undeclared(store, rules),
        "keys": await store.keys(),
    }


async def _undeclared(store: Store, rules: Rules) -> dict[str, int]:
    declared = Lanes(frozenset((name, band) for name in rules.services for band in BANDS), others=True)
    if not await store.count_waiting(declared):
        return {}
    return dict(Counter(job.service for job in await _some(store, declared)))


async def _some(store: Store, lanes: Lanes) -> list[Job]:
    async for jobs in store.waiting(SAMPLE, lanes):
        return jobs
    return []


# ---------------------------------------------------------------- the line


async def _line(sources: Sources, process: Process, found: Mapping[str, Any]) -> dict[str, Any]:
    lines: dict[str, LineFacts] = {}
    missing: dict[str, list[str]] = {}
    for name, line in process.lines.items():
        redis = found["redis"].get(name)
        if redis is not None and redis.problem is not None:
            lines[name] = LineFacts(problem=redis.problem)
            continue
        lines[name] = await _of_line(line, _clock_of(sources.clock, redis))
        if sources.store is not None and lines[name].snapshots:
            with contextlib.suppress(FairleadError, TimeoutError):
                missing |= await _missing(sources.store, line, lines[name], found.get("now", 0.0))
    away = any(redis.problem is not None for redis in found["redis"].values())
    return {
        "lines": lines,
        "missing": missing,
        "waiting_in_truth": await _waiting_in_truth(sources.store, found.get("rules"), lines),
        "echo": None if away else await _echo(process),
    }


async def _waiting_in_truth(
    store: Store | None, rules: Rules | None, lines: Mapping[str, LineFacts]
) -> dict[str, dict[int, int]]:
    """Of the services whose line does not stand, or cannot be seen: it says nothing of who waits."""
    if store is None or rules is None:
        return {}
    unseen = [name for name, service in rules.services.items() if not _stands(service, lines)]
    with contextlib.suppress(FairleadError):
        return {
            name: {band: await store.count_waiting(Lanes(frozenset({(name, band)}))) for band in BANDS}
            for name in unseen
        }
    return {}


def _stands(service: ServiceRules, lines: Mapping[str, LineFacts]) -> bool:
    parts = [(shard, service.on(shard)) for shard in [*service.shares] or [service.shard]]
    return all(
        shard in lines
        and service.service in lines[shard].snapshots
        and part is not None
        and part.scope in lines[shard].states
        and lines[shard].states[part.scope].open
        for shard, part in parts
    )


def _clock_of(clock: Clock, redis: RedisFacts | None) -> float:
    """The dispatcher's: leases live by it."""
    if redis is None:
        return clock.steady()
    return clock.now() + sum(node.clock - node.asked_at for node in redis.nodes[:1])


async def _of_line(line: Line, now: float) -> LineFacts:
    """A server that the truth does not name answers who it is, and nothing else."""
    facts = await led(line.leadership)
    if facts.problem is not None:
        return facts
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            states = await line.dispatcher.states(line.rules.scopes)
    except (Unavailable, TimeoutError) as error:
        return LineFacts(problem=str(error) or f"it does not answer within {ANSWERS_WITHIN:g} s")
    snapshots: dict[str, ServiceSnapshot] = {}
    with contextlib.suppress(Unavailable, TimeoutError):
        async with asyncio.timeout(ANSWERS_WITHIN):
            snapshots = {each.service: each for each in await line.dispatcher.snapshot()}
    parked = await _parked(line.dispatcher, line.rules, snapshots)
    return LineFacts(None, facts.in_memory, facts.leader, facts.term, snapshots, states, parked, now)


async def led(leadership: Leadership | None) -> LineFacts:
    """Who leads, and nothing else."""
    if leadership is None:
        return LineFacts(in_memory=True)
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            leader = await leadership.leader()
    except (Unavailable, TimeoutError) as error:
        return LineFacts(problem=str(error) or f"it does not answer within {ANSWERS_WITHIN:g} s")
    return LineFacts() if leader is None else LineFacts(leader=leader[0], term=leader[1])


async def _parked(dispatcher: Dispatcher, rules: Rules, snapshots: Mapping[str, ServiceSnapshot]) -> dict[str, int]:
    """Who is at its own limit waits rightly. Asked only where that can be: it takes a row per user."""
    limited = [name for name, each in rules.services.items() if each.user_limit is not None and name in snapshots]
    if not limited:
        return {}
    with contextlib.suppress(Unavailable, TimeoutError):
        async with asyncio.timeout(ANSWERS_WITHIN):
            found = await dispatcher.snapshot(limited, users=True)
            return {each.service: sum(user.waiting for user in each.users if user.parked) for each in found}
    return {}


async def _missing(store: Store, line: Line, facts: LineFacts, now: float) -> dict[str, list[str]]:
    """Jobs that wait in the truth, and that the line does not know: neither in line nor claimed just now."""
    in_line = sum(sum(each.waiting.values()) for each in facts.snapshots.values())
    if await store.count_waiting(line.lanes) <= in_line:
        return {}
    waiting = [
        job
        for job in await _some(store, line.lanes)
        if job.service in line.rules.services and now - (job.waiting_since or now) >= SETTLED
    ]
    async with asyncio.timeout(ANSWERS_WITHIN):
        known = {*await line.dispatcher.places([job.id for job in waiting])}
        known |= {lease.job_id for each in await line.dispatcher.snapshot() for lease in each.leases}
    absent = {job.id: job for job in waiting if job.id not in known}
    still = await store.get_jobs(list(absent)) if absent else {}
    missing: dict[str, list[str]] = {}
    for job_id, job in still.items():
        if job.status is JobStatus.PENDING and job.run == absent[job_id].run:
            missing.setdefault(job.service, []).append(job_id)
    return missing


async def _echo(process: Process) -> Echo | None:
    try:
        async with asyncio.timeout(HEARD_WITHIN):
            seconds = await process.echo()
    except Unavailable as error:
        return Echo(problem=str(error))
    except TimeoutError:
        return Echo(problem=f"nothing was heard within {HEARD_WITHIN:g} s")
    return None if seconds is None else Echo(seconds)
