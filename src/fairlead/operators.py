"""What operators do and ask, as `Fairlead` offers it: dead letters, limits, priorities, workers, keys, how it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Unpack

from fairlead.config import Settings
from fairlead.domain import transitions
from fairlead.domain.audit import AuditRecord
from fairlead.domain.config import Config
from fairlead.domain.job import Job
from fairlead.domain.keys import Key, Role
from fairlead.domain.limits import Rules
from fairlead.domain.processes import ProcessRecord
from fairlead.domain.transitions import Move
from fairlead.examination import sources_of
from fairlead.executors.function import Handler
from fairlead.runtime import dead, doctor, readings, regions, stats, status, view
from fairlead.runtime.administration import Administration, ServiceState
from fairlead.runtime.audit import AuditBook
from fairlead.runtime.clock import Clock
from fairlead.runtime.dashboard.board import Dashboard
from fairlead.runtime.dead import DeadFilters, DeadLetters, Preview
from fairlead.runtime.doctor.finding import Finding
from fairlead.runtime.events import Hub
from fairlead.runtime.keys import Keys, NewKey
from fairlead.runtime.operations import Operations
from fairlead.runtime.paging import Page
from fairlead.runtime.priority import Priorities
from fairlead.runtime.probes import Probes
from fairlead.runtime.process import Process
from fairlead.runtime.readings import Readings
from fairlead.runtime.record import Recorder
from fairlead.runtime.registry import Registry
from fairlead.runtime.sessions import Sessions
from fairlead.runtime.view import JobView
from fairlead.store.journal import Journal
from fairlead.store.port import Store

APPLIED_WITHIN = 1.0
PYTHON = "python"
"""Who acted, as the audit has it, unless the caller says more."""


class Operators(ABC):
    """A part of `Fairlead`, which opens and closes what is used here."""

    settings: Settings
    config: Config
    hub: Hub
    listens_on: Sequence[str]
    _clock: Clock
    _store: Store | None
    _process: Process | None
    _recorder: Recorder
    _operations: Operations
    _audit: AuditBook
    _dead: DeadLetters
    _administration: Administration
    _registry: Registry
    _priorities: Priorities
    _keys: Keys
    _sessions: Sessions
    _dashboard: Dashboard
    _probes: Probes
    _handlers: dict[str, Handler]

    @abstractmethod
    def check(self) -> list[str]: ...

    @abstractmethod
    async def get(self, job_id: str) -> JobView: ...

    @abstractmethod
    def _opened(self) -> tuple[Store, Journal]: ...

    # ------------------------------------------------------------ acting; each leaves a row in the audit

    async def dead(self, *, limit: int = 50, cursor: str | None = None, **where: Unpack[DeadFilters]) -> Page[JobView]:
        """The dead letters: FAILED jobs, newest first, each with every attempt's error."""
        store, _ = self._opened()
        like = where.get("error_like")
        keep = None if like is None else partial(dead.is_like, like=like)
        page = await self._operations.page(dead.where_of(where), limit, cursor, keep)
        records = [await store.get(job.id) for job in page.data]
        return Page([view.of_record(record, None) for record in records if record is not None], page.next_cursor)

    async def requeue(
        self,
        *,
        job_ids: Sequence[str] | None = None,
        all: bool = False,
        from_start: bool = False,
        dry_run: bool = False,
        who: str = PYTHON,
        **where: Unpack[DeadFilters],
    ) -> int:
        """Take dead letters up again, at the failed step or from the start; returns how many."""
        if dry_run:
            return (await self.preview_requeue(job_ids=job_ids, all=all, from_start=from_start, **where)).count
        self._opened()
        which = dead.which_of(job_ids, all, where)
        return await self._dead.requeue(which, self._revived(from_start), who=who, from_start=from_start)

    async def preview_requeue(
        self,
        *,
        job_ids: Sequence[str] | None = None,
        all: bool = False,
        from_start: bool = False,
        **where: Unpack[DeadFilters],
    ) -> Preview:
        """What `requeue` would do: how many, and a few of them."""
        self._opened()
        return await self._dead.preview(dead.which_of(job_ids, all, where), self._revived(from_start))

    async def purge(
        self,
        *,
        job_ids: Sequence[str] | None = None,
        all: bool = False,
        dry_run: bool = False,
        who: str = PYTHON,
        **where: Unpack[DeadFilters],
    ) -> int:
        """Remove dead letters for good; returns how many."""
        if dry_run:
            return (await self.preview_purge(job_ids=job_ids, all=all, **where)).count
        self._opened()
        return await self._dead.purge(dead.which_of(job_ids, all, where), who=who)

    async def preview_purge(
        self, *, job_ids: Sequence[str] | None = None, all: bool = False, **where: Unpack[DeadFilters]
    ) -> Preview:
        """What `purge` would do: how many, and a few of them."""
        self._opened()
        return await self._dead.preview(dead.which_of(job_ids, all, where))

    async def not_dead(self, job_ids: Sequence[str]) -> list[str]:
        """Those of them that are no dead letters, so that `requeue` and `purge` leave them as they are."""
        self._opened()
        return await self._dead.missing(job_ids)

    def _revived(self, from_start: bool) -> Callable[[Job, float], Move]:
        waits = self.config.wait_timeouts
        return lambda job, now: transitions.requeue(job, now=now, waits=waits, from_start=from_start)

    async def set_limit(self, service: str, limit: int | None, *, who: str = PYTHON) -> ServiceState:
        """Change a service's limit while running; kept in the truth until lifted with None."""
        self._opened()
        return await self._ruled(service, self._administration.set_limit(service, limit, who=who))

    async def pause(self, service: str, *, who: str = PYTHON) -> ServiceState:
        """Grant nothing from this service's lane until `unpause`; what runs goes on."""
        self._opened()
        return await self._ruled(service, self._administration.pause(service, who=who))

    async def unpause(self, service: str, *, who: str = PYTHON) -> ServiceState:
        self._opened()
        return await self._ruled(service, self._administration.unpause(service, who=who))

    async def _ruled(self, service: str, change: Coroutine[Any, Any, Rules]) -> ServiceState:
        """What is changed holds in this process at once, and in the others when they look next. It is in the truth by
        then, so nobody waits for a dispatcher that hangs."""
        rules = await change
        if self._process is not None:
            await self._probes.do(self._process.apply(rules), APPLIED_WITHIN)
        return await self._administration.state(service, rules)

    async def set_priority(self, job_id: str, priority: str, *, who: str = PYTHON) -> JobView:
        """A waiting step moves to its new band; a call under way goes on, and the job's next step waits there."""
        self._opened()
        await self._administration.set_priority(job_id, priority, who=who)
        return await self.get(job_id)

    async def rebuild(self, service: str, *, who: str = PYTHON) -> list[str]:
        """Have the service's part of the line built anew from the truth, soon; returns the scopes that this is."""
        self._opened()
        scopes = await self._administration.rebuild(service, who=who)
        if self._process is not None:
            self._process.look_at_scopes()
        return scopes

    async def leaderless(self) -> str | None:
        """Why what is asked of the leader, such as a rebuild, is not done soon, if nobody is there to lead."""
        store, _ = self._opened()
        if self._process is not None and any(line.leader is not None for line in self._process.lines.values()):
            return None
        now = await store.now()
        if any("manager" in each.roles and each.alive(now) for each in await store.processes()):
            return None
        return "no manager is alive: it is done when one starts (fairlead manager, or fairlead up)"

    async def audit(
        self, *, action: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[AuditRecord]:
        """What operators did, newest first."""
        self._opened()
        return await self._audit.page(action=action, limit=limit, cursor=cursor)

    async def drain_worker(self, name: str, *, who: str = PYTHON) -> ProcessRecord:
        """Let a worker claim no more, wherever it runs: its calls finish within `worker.drain_timeout`, the rest is
        handed back. Its process goes on; it claims again when told so, or after a restart."""
        return await self._ask_drain(name, on=True, who=who)

    async def undrain_worker(self, name: str, *, who: str = PYTHON) -> ProcessRecord:
        return await self._ask_drain(name, on=False, who=who)

    async def _ask_drain(self, name: str, *, on: bool, who: str) -> ProcessRecord:
        self._opened()
        record = await self._registry.drain(name, on=on, who=who)
        if self._process is not None and self._process.name == name:
            self._process.announce_soon()
        return record

    # ------------------------------------------------------------ keys

    async def keys(self) -> list[Key]:
        """All that were made, revoked ones too, oldest first."""
        store, _ = self._opened()
        return await store.keys()

    async def count_keys(self) -> tuple[int, int]:
        """How many were made, and how many of them are revoked."""
        store, _ = self._opened()
        return await store.count_keys()

    async def create_key(
        self, role: Role | str, *, user_id: str | None = None, name: str | None = None, who: str = PYTHON
    ) -> NewKey:
        """From the first key on, which must be an admin's, every request to a gateway needs one."""
        self._opened()
        return await self._keys.create(role, user_id, name, who=who)

    async def revoke_key(self, key_id: str, *, who: str = PYTHON) -> None:
        """Within about a second no gateway takes it any more."""
        self._opened()
        await self._keys.revoke(key_id, who=who)

    async def issue_ticket(self, grant: str) -> str:
        """A secret that tells `grant` once to whoever uses it, in whichever process, within a minute."""
        self._opened()
        return await self._keys.issue_ticket(grant)

    async def use_ticket(self, ticket: str) -> str | None:
        self._opened()
        return await self._keys.use_ticket(ticket)

    async def open_session(self, key_id: str) -> str:
        """A secret for the cookie of a browser that signed in with this key."""
        self._opened()
        return await self._sessions.open(key_id)

    async def session(self, text: str) -> str | None:
        """The id of the key that this secret stands for, while it does."""
        self._opened()
        return await self._sessions.key_of(text)

    async def close_session(self, text: str) -> None:
        self._opened()
        await self._sessions.close(text)

    # ------------------------------------------------------------ how it is

    @property
    def dashboard(self) -> Dashboard:
        """What the dashboard shows beyond what is asked here."""
        self._opened()
        return self._dashboard

    def now(self) -> float:
        """By the clock that this app goes by."""
        return self._clock.now()

    async def runtime_stats(self) -> dict[str, Any]:
        """Queues, slots by region and band, who leads what, every process and what it runs."""
        store, _ = self._opened()
        return await stats.runtime_stats(store, self._process)

    async def workers(self) -> list[dict[str, Any]]:
        """Every worker with its last announcement and what it runs."""
        store, _ = self._opened()
        return await stats.workers(store, self._process)

    async def processes(self) -> list[ProcessRecord]:
        """Every gateway, worker and manager that announced itself, and did not end well since."""
        store, _ = self._opened()
        return await store.processes()

    async def status(self) -> dict[str, Any]:
        """Services with their slots and lines, pools, and counts of jobs."""
        store, _ = self._opened()
        return await status.describe(store, self._process)

    async def region_status(self, region: str) -> dict[str, Any]:
        """One region over all services that have it: who waits for it, what runs there, how it does."""
        store, _ = self._opened()
        sight = await status.look(store, self._process)
        return regions.describe(region, sight.rules, sight.snapshots, sight.unknown)

    async def readings(self) -> Readings:
        """What `/metrics` tells, as plain numbers."""
        store, journal = self._opened()
        return await readings.take(
            store, journal, self._recorder.observations, self._priorities, self.hub, self._process, self._clock
        )

    def scores(self) -> dict[str, dict[str, Any]]:
        """How good the estimated waits were that this process gave at submit, per service."""
        return self._process.scores.report() if self._process is not None else {}

    async def readiness(self) -> dict[str, Any]:
        """Can it do its work? Names what cannot."""
        return await status.readiness(self._store, self._process, self._probes)

    async def doctor(self, *, outside: bool = False) -> list[Finding]:
        """What is wrong with this line, how one can tell, and what mends it. An app that is not open knows less, and
        one that looks from `outside` may have another configuration than the line."""
        sources = sources_of(
            self.settings,
            self.config,
            self._clock,
            problems=() if self._store is not None else self.check(),
            store=self._store,
            process=self._process,
            listens_on=self.listens_on,
            priorities=self._priorities if self._store is not None else None,
            outside=outside,
            handlers=self._handlers,
        )
        return await doctor.consult(sources)
