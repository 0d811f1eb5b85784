"""The queries of the dashboard to the dispatchers and the database. Their answers are cached, so that many open pages
cost little."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from fairlead.domain import views
from fairlead.domain.batch import BatchState
from fairlead.domain.config import Config, ServiceConfig
from fairlead.domain.job import JobStatus
from fairlead.domain.rules import Order
from fairlead.domain.validation import moment
from fairlead.domain.views import JobView
from fairlead.errors import NotFound
from fairlead.observe import stats, status
from fairlead.observe.dashboard import overview, service
from fairlead.observe.dashboard.history import History
from fairlead.observe.dashboard.overview import Background, JobDetails, error_groups, known
from fairlead.observe.dashboard.timeline import runs, timeline
from fairlead.observe.doctor.finding import Finding
from fairlead.observe.snapshot import Observer, QueueSnapshot
from fairlead.pacing import CachedQuery, DutyCycle
from fairlead.store.port import JobFilter
from fairlead.version import __version__

T = TypeVar("T")

MOST_USERS = 500
MOST_GROUPS = 2000
"""The maximal number of error groups read from the database. The database groups errors by their exact message; groups
with similar messages are merged afterwards."""
MOST_QUERIES = 64
SHARE, KEPT_S = 0.02, 30.0
"""Each query uses at most `SHARE` of the time, and no answer is kept for longer than `KEPT_S` seconds."""
READS = 3
BATCH = ("batch_id", "name", "item", "custom_id")
MOST_FOUND = 8
"""The maximal number of results of each kind in a search."""
NEWEST_BATCHES = 100


@dataclass(frozen=True, slots=True)
class Reach:
    """What the caller of a search may find. `user_id`: only the jobs and batches of this user; None means all users.
    `queue`: also services and users. `errors`: also errors."""

    user_id: str | None
    queue: bool
    errors: bool


class Dashboard:
    def __init__(
        self,
        observer: Observer,
        config: Callable[[], Config],
        doctor: Callable[[], Awaitable[list[Finding]]],
    ) -> None:
        self._observer = observer
        self._store = store = observer.store
        self._config = config
        self._past = _cached(History(store).renew, 3.0)
        self._waiting = _cached(store.waiting_by_service, 2.0)
        self._findings = _cached(doctor, 10.0)
        self._job_details = JobDetails(store)
        self._queries: dict[Hashable, CachedQuery[Any]] = {}

    async def close(self) -> None:
        always: tuple[CachedQuery[Any], ...] = (self._past, self._waiting, self._findings)
        for query in (*always, *self._queries.values()):
            await query.close()

    # ------------------------------------------------------------ views

    async def overview(self) -> dict[str, Any]:
        observer = self._observer
        queues, around, processes, facts = await asyncio.gather(
            observer.queues(), self._background(), observer.processes.recent(), observer.facts.recent()
        )
        details = await self._details_of(queues)
        return {
            "version": __version__,
            "services": overview.services(queues, around, details, self._kinds()),
            "pools": overview.pools(queues),
            "history": around.past.chart,
            "failures": dict(around.past.all.codes),
            "health": overview.health(queues, processes, facts, self._findings.last()),
        }

    async def service(self, name: str) -> dict[str, Any]:
        queues, around = await asyncio.gather(self._observer.queues([name]), self._background())
        if name not in queues.rules.services:
            raise NotFound(f"there is no service {name[:100]!r}")
        rules, details = queues.rules.services[name], await self._details_of(queues)
        declared = await self._cache("declared", self._store.declared, 5.0)
        queue = await self._cache(("queue", name), partial(self._queue, name, rules.order), 2.0)
        return {
            **overview.service(name, queues, around, details, self._kinds().get(name)),
            "service": name,
            **queue,
            "regions": service.regions_of(name, queues.rules, queues.services.get(name, ())),
            "limits": service.limit_of(name, queues.rules, declared),
            "rates": status.rate_uses(name, queues.rules, queues.services.get(name, ())),
            "history": around.past.chart_of(name),
            "failures": dict(around.past.all_of(name).codes),
        }

    async def job(self, job_id: str) -> tuple[JobView, dict[str, Any]]:
        """A job as its user sees it; and the details that only the dashboard shows: the job's timeline, its batch, and
        the steps that a retry or a re-run would run."""
        record = await self._store.get(job_id)
        if record is None:
            raise NotFound(f"there is no job {job_id}")
        node = self._observer.node
        waits = record.job.status is JobStatus.PENDING
        positions = await node.positions_of([record.job]) if waits and node is not None else {}
        batch = await self._store.batch_of_job(job_id)
        about = known(
            timeline=timeline(record),
            runs=runs(record.job),
            deadline_at=record.job.deadline_at,
            batch=None if batch is None else known(**dict(zip(BATCH, batch, strict=True))),
        )
        return views.of_record(record, positions.get(job_id)), about

    async def counts(
        self,
        *,
        user_id: str | None = None,
        feature_name: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> dict[str, int]:
        """The number of jobs by status, among the jobs that match these filters. The filters have the same meaning as
        in `list_jobs`."""
        where = JobFilter(
            user_id,
            feature_name=feature_name,
            created_from=None if since is None else moment(since, "since"),
            created_before=None if until is None else moment(until, "until"),
        )
        return await self._cache(where, partial(self._count, where), 5.0)

    async def users(self) -> dict[str, Any]:
        loads, past, rules = await asyncio.gather(
            self._cache("users", partial(self._store.user_loads, MOST_USERS), 2.0),
            self._past.recent(),
            self._observer.rules(),
        )
        return {
            "users": overview.users(loads, past.all, MOST_USERS),
            "rates": overview.member_rates(rules, self._config().plans),
        }

    async def dead(self) -> dict[str, Any]:
        found = await self._cache("dead", partial(self._store.dead_groups, MOST_GROUPS), 2.0)
        total = (await self.counts())[JobStatus.FAILED] if len(found) == MOST_GROUPS else None
        return {"groups": error_groups(found), "total": sum(each.count for each in found) if total is None else total}

    async def search(self, text: str, reach: Reach) -> list[dict[str, Any]]:
        """The jobs, batches, users, services and errors that match the text, as far as the caller may see them. Ids and
        users are found by an index of the database; services, batches and errors are searched in cached data."""
        text = text.strip()
        if not text or "\0" in text:
            return []
        if _is_id(text) and (found := await self._with_id(str(UUID(text)), reach.user_id)):
            return found
        part, found = text.casefold(), []
        if reach.queue:
            names = sorted((await self._observer.rules()).services)
            found += _results("service", [name for name in names if part in name.casefold()])
            found += _results("user", await self._store.users_with_prefix(text, MOST_FOUND))
        newest = partial(self._store.list_batches, reach.user_id, before=None, limit=NEWEST_BATCHES)
        batches = await self._cache(("batches", reach.user_id), newest, 5.0)
        found += [_batch(each) for each in batches if part in (each.batch.name or "").casefold()][:MOST_FOUND]
        if reach.errors:
            found += _errors_like(part, (await self.dead())["groups"].values())
        return found

    async def workers(self) -> dict[str, Any]:
        queues, processes = await asyncio.gather(self._observer.queues(), self._observer.processes.recent())
        node = self._observer.node
        leads = {record.name: stats.leads(record.name, queues.leaders, node) for record in processes.records}
        details = await self._details_of(queues)
        return {"processes": overview.processes(processes, queues.services, leads, details)}

    # ------------------------------------------------------------ parts of the views

    async def _with_id(self, id_: str, user_id: str | None) -> list[dict[str, Any]]:
        job = (await self._store.get_jobs([id_])).get(id_)
        if job is not None and user_id in (None, job.user_id):
            return [known(kind="job", id=id_, text=job.feature_name, status=job.status.value, user_id=job.user_id)]
        batch = await self._store.get_batch(id_)
        return [_batch(batch)] if batch is not None and user_id in (None, batch.batch.user_id) else []

    async def _background(self) -> Background:
        return Background(*await asyncio.gather(self._past.recent(), self._waiting.recent()))

    async def _queue(self, name: str, order: Order) -> dict[str, Any]:
        """The next jobs of a service, and each user's part of its slot time. Costs the dispatcher a pass over all
        waiting users."""
        node = self._observer.node
        queues, past = await asyncio.gather(self._observer.queues([name], users=True), self._past.recent())
        user_queues = service.user_queues(queues.services.get(name, ()))
        groups = queues.rules.groups
        for _ in range(READS):
            heads = await self._store.heads(
                name, service.first(user_queues) if order is Order.FAIR else None, service.NEXT
            )
            positions = await node.positions_of(heads) if node is not None else {}
            next_ones = service.next_ones(heads, positions, user_queues, order)
            if service.is_whole(next_ones):
                break
        return {
            "next": next_ones,
            "users": service.users(user_queues, past.all_of(name), groups),
        }

    async def _details_of(self, queues: QueueSnapshot) -> JobDetails:
        await self._job_details.learn(
            lease for found in queues.services.values() for each in found for lease in each.leases
        )
        return self._job_details

    async def _count(self, where: JobFilter) -> dict[str, int]:
        return {each.value: await self._store.count(replace(where, statuses=(each,))) for each in JobStatus}

    def _kinds(self) -> Mapping[str, str]:
        """How each service is executed (function, HTTP, Celery or turns), according to the configuration of this
        process."""
        return {name: _kind(each) for name, each in self._config().services.items()}

    async def _cache(self, key: Hashable, ask: Callable[[], Awaitable[T]], every: float) -> T:
        query = self._queries.get(key)
        if query is None:
            if len(self._queries) >= MOST_QUERIES:
                del self._queries[next(iter(self._queries))]
            query = self._queries[key] = _cached(ask, every)
        found: T = await query.recent()
        return found


def _cached(query: Callable[[], Awaitable[T]], every: float) -> CachedQuery[T]:
    return CachedQuery(query, DutyCycle(SHARE, every, KEPT_S))


def _kind(service: ServiceConfig) -> str:
    if service.turns_only:
        return "turns"
    if service.celery is not None:
        return "celery"
    return "http" if service.remote else "function"


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def _results(kind: str, ids: Sequence[str]) -> list[dict[str, Any]]:
    return [{"kind": kind, "id": each} for each in ids[:MOST_FOUND]]


def _batch(state: BatchState) -> dict[str, Any]:
    return known(kind="batch", id=state.batch.id, text=state.batch.name, user_id=state.batch.user_id)


def _errors_like(part: str, groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Find the error groups whose code or message contains `part`. There is one result per code; its text is the
    message of the largest group with this code."""
    found: dict[str, dict[str, Any]] = {}
    for group in sorted(groups, key=lambda each: -each["count"]):
        if part in f"{group['code']} {group['message']}".casefold():
            result = {"kind": "error", "id": group["code"], "text": group["message"], "count": 0}
            found.setdefault(group["code"], result)["count"] += group["count"]
    return list(found.values())[:MOST_FOUND]
