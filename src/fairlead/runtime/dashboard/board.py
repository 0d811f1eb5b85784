"""The dashboard's questions to the line and to the truth, kept as few as they can be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fairlead.domain.config import Config, ServiceConfig
from fairlead.domain.job import JobStatus
from fairlead.domain.limits import Order
from fairlead.domain.processes import ProcessRecord
from fairlead.errors import NotFound
from fairlead.runtime import stats, status, view
from fairlead.runtime.dashboard import overview, people, service
from fairlead.runtime.dashboard.groups import groups
from fairlead.runtime.dashboard.history import History
from fairlead.runtime.dashboard.overview import Surroundings
from fairlead.runtime.dashboard.slots import Bearers
from fairlead.runtime.dashboard.sparing import Sparing
from fairlead.runtime.dashboard.timeline import timeline
from fairlead.runtime.doctor.finding import Finding
from fairlead.runtime.moments import moment
from fairlead.runtime.process import Process
from fairlead.runtime.status import Sight
from fairlead.runtime.view import JobView
from fairlead.store.port import JobFilter, Store
from fairlead.version import __version__

T = TypeVar("T")

MOST_USERS = 500
MOST_GROUPS = 2000
"""Of errors that are told apart by the database; most of them turn out to be alike."""
MOST_SPARED = 64
LOOKS = 3


class Dashboard:
    """`process` is that of the line in this process, if there is one now."""

    def __init__(
        self,
        store: Store,
        config: Callable[[], Config],
        process: Callable[[], Process | None],
        doctor: Callable[[], Awaitable[list[Finding]]],
    ) -> None:
        self._store = store
        self._config = config
        self._process = process
        self._past = Sparing(History(store).renew, every=3.0)
        self._waiting = Sparing(store.waiting_by_service, every=2.0)
        self._facts = Sparing(store.facts, every=2.0)
        self._processes = Sparing(self._ask_processes, every=2.0)
        self._findings = Sparing(doctor, every=10.0)
        self._bearers = Bearers(store)
        self._spared: dict[Hashable, Sparing[Any]] = {}

    async def close(self) -> None:
        always: tuple[Sparing[Any], ...] = (self._past, self._waiting, self._facts, self._processes, self._findings)
        for asked in (*always, *self._spared.values()):
            await asked.close()

    # ------------------------------------------------------------ views

    async def overview(self) -> dict[str, Any]:
        sight, around, (processes, now), facts = await asyncio.gather(
            status.look(self._store, self._process()), self._around(), self._processes.now(), self._facts.now()
        )
        bearers = await self._bearers_of(sight)
        return {
            "version": __version__,
            "services": overview.services(sight, around, bearers, self._kinds()),
            "history": around.past.chart,
            "failures": dict(around.past.all.codes),
            "health": overview.health(sight, processes, now, facts, self._findings.lately()),
        }

    async def service(self, name: str) -> dict[str, Any]:
        sight, around = await asyncio.gather(status.look(self._store, self._process(), [name]), self._around())
        if name not in sight.rules.services:
            raise NotFound(f"there is no service {name[:100]!r}")
        rules, bearers = sight.rules.services[name], await self._bearers_of(sight)
        declared = await self._spare("declared", self._store.declared, 5.0)
        line = await self._spare(("line", name), partial(self._line, name, rules.order), 2.0)
        return {
            **overview.service(name, sight, around, bearers, self._kinds().get(name)),
            "service": name,
            **line,
            "regions": service.regions_of(rules, sight.snapshots.get(name, ())),
            "limits": service.limit_of(name, sight.rules, declared),
            "history": around.past.chart_of(name),
            "failures": dict(around.past.all_of(name).codes),
        }

    async def job(self, job_id: str) -> tuple[JobView, list[dict[str, Any]]]:
        """A job as its user sees it, and its timeline, both of the same moment."""
        record = await self._store.get(job_id)
        if record is None:
            raise NotFound(f"there is no job {job_id}")
        process = self._process()
        waits = record.job.status is JobStatus.PENDING
        places = await process.places([job_id]) if waits and process is not None else {}
        return view.of_record(record, places.get(job_id)), timeline(record)

    async def counts(
        self,
        *,
        user_id: str | None = None,
        feature_name: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> dict[str, int]:
        """Jobs by status, of those that `list_jobs` lists with the same filters."""
        where = JobFilter(
            user_id,
            feature_name=feature_name,
            created_from=None if since is None else moment(since, "since"),
            created_before=None if until is None else moment(until, "until"),
        )
        return await self._spare(where, partial(self._count, where), 5.0)

    async def users(self) -> dict[str, Any]:
        loads, past = await asyncio.gather(
            self._spare("users", partial(self._store.user_loads, MOST_USERS), 2.0), self._past.now()
        )
        return {"users": people.users(loads, past.all, MOST_USERS)}

    async def dead(self) -> dict[str, Any]:
        found = await self._spare("dead", partial(self._store.dead_groups, MOST_GROUPS), 2.0)
        total = (await self.counts())[JobStatus.FAILED] if len(found) == MOST_GROUPS else None
        return {"groups": groups(found), "total": sum(each.count for each in found) if total is None else total}

    async def workers(self) -> dict[str, Any]:
        process = self._process()
        sight, (records, now) = await asyncio.gather(status.look(self._store, process), self._processes.now())
        leads = {record.name: stats.leads(record.name, sight.leaders, process) for record in records}
        bearers = await self._bearers_of(sight)
        return {"processes": people.processes(records, now, sight.snapshots, leads, bearers)}

    # ------------------------------------------------------------ what they are made of

    async def _around(self) -> Surroundings:
        return Surroundings(*await asyncio.gather(self._past.now(), self._waiting.now()))

    async def _line(self, name: str, order: Order) -> dict[str, Any]:
        """Who goes next, and whose slots they are: a pass over all who wait for this service."""
        process = self._process()
        sight, past = await asyncio.gather(status.look(self._store, process, [name], users=True), self._past.now())
        stand = service.standings(sight.snapshots.get(name, ()))
        for _ in range(LOOKS):
            heads = await self._store.heads(name, service.first(stand) if order is Order.FAIR else None, service.NEXT)
            places = await process.places([job.id for job in heads]) if process is not None else {}
            next_ones = service.next_ones(heads, places, stand, order)
            if service.is_whole(next_ones):
                break
        return {
            "next": next_ones,
            "users": service.users(stand, past.all_of(name)),
        }

    async def _bearers_of(self, sight: Sight) -> Bearers:
        await self._bearers.learn(
            lease for found in sight.snapshots.values() for each in found for lease in each.leases
        )
        return self._bearers

    async def _count(self, where: JobFilter) -> dict[str, int]:
        return {each.value: await self._store.count(replace(where, statuses=(each,))) for each in JobStatus}

    def _kinds(self) -> Mapping[str, str]:
        """How services run, as far as this process's own configuration says."""
        return {name: _kind(each) for name, each in self._config().services.items()}

    async def _ask_processes(self) -> tuple[Sequence[ProcessRecord], float]:
        return await self._store.processes(), await self._store.now()

    async def _spare(self, key: Hashable, ask: Callable[[], Awaitable[T]], every: float) -> T:
        spared = self._spared.get(key)
        if spared is None:
            if len(self._spared) >= MOST_SPARED:
                del self._spared[next(iter(self._spared))]
            spared = self._spared[key] = Sparing(ask, every)
        found: T = await spared.now()
        return found


def _kind(service: ServiceConfig) -> str:
    if service.turns_only:
        return "turns"
    if service.celery is not None:
        return "celery"
    return "http" if service.remote else "function"
