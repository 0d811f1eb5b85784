"""`app.admin`, with the actions of operators and the state of the whole system; and the methods of `Fairlead` that call
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from fairlead.app.api_keys import ApiKeys, NewKey, Sessions
from fairlead.app.audit import AuditLog
from fairlead.app.budget_gate import BudgetState
from fairlead.app.budgets import BudgetAdmin
from fairlead.app.dead_letters import DeadFilters, DeadLetters, Preview, select
from fairlead.app.doctor_sources import sources_of
from fairlead.app.job_commands import JobCommands
from fairlead.app.jobs import Jobs
from fairlead.app.rate_admin import RateState, SharedRateState, checked_rate, of_service, of_shared
from fairlead.app.runtime import Runtime
from fairlead.app.service_admin import ProcessAdmin, ServiceAdmin, ServiceState
from fairlead.app.usage import UsageQuestion, UsageReport, UsageReports
from fairlead.domain.access import AuditRecord, Key, Role
from fairlead.domain.pagination import Page
from fairlead.domain.processes import ProcessRecord
from fairlead.domain.rates import RateOf
from fairlead.domain.views import JobView
from fairlead.errors import InvalidInput
from fairlead.observe import doctor, stats, status
from fairlead.observe.dashboard.dashboard import Dashboard
from fairlead.observe.doctor.finding import Finding
from fairlead.observe.stats import MetricsSnapshot

PYTHON = "python"
"""The name of the operator in the audit log, if the caller names none."""


class Admin:
    def __init__(self, runtime: Runtime, commands: JobCommands, audit: AuditLog) -> None:
        self._runtime = runtime
        self._dashboard: Dashboard | None = None
        self.audit = audit
        self.dead_letters = DeadLetters(runtime, commands, audit)
        self.services = ServiceAdmin(runtime, commands, audit)
        self.processes = ProcessAdmin(runtime, audit)
        self.keys = ApiKeys(runtime, audit)
        self.sessions = Sessions(runtime)
        self.usage = UsageReports(runtime)
        self.budgets = BudgetAdmin(runtime, audit)

    @property
    def dashboard(self) -> Dashboard:
        """The object that runs the queries for the dashboard's pages."""
        runtime = self._runtime
        if self._dashboard is None or not runtime.is_open:
            self._dashboard = Dashboard(runtime.observer, lambda: runtime.config, self.doctor)
        return self._dashboard

    async def close(self) -> None:
        dashboard, self._dashboard = self._dashboard, None
        if dashboard is not None:
            await dashboard.close()

    def now(self) -> float:
        return self._runtime.clock.now()

    async def status(self) -> dict[str, Any]:
        """The status of the system: the services with their slots and queues, the pools, and the number of jobs by
        status."""
        return await status.describe(self._runtime.observer)

    async def runtime_stats(self) -> dict[str, Any]:
        """Everything that runs: queues, slots by region and band, leaders, and every process with its calls."""
        return await stats.runtime_stats(self._runtime.observer)

    async def workers(self) -> list[dict[str, Any]]:
        """Every worker with its last registration and its running calls."""
        return await stats.workers(self._runtime.observer)

    async def region_status(self, region: str) -> dict[str, Any]:
        """The state of one region in all services that have it: waiting jobs, running calls, health."""
        return status.describe_region(region, await self._runtime.observer.queues())

    async def metrics(self) -> MetricsSnapshot:
        """The values that `/metrics` reports."""
        runtime = self._runtime
        snapshot = await stats.take_metrics(
            runtime.observer,
            runtime.writer.counters,
            runtime.group_commit,
            runtime.priorities,
            runtime.hub.readers,
            runtime.files,
        )
        if not runtime.budgets or snapshot.queues is None:
            return snapshot
        return replace(snapshot, budgets=await self.budgets.uses())

    def estimate_accuracy(self) -> dict[str, dict[str, Any]]:
        """For each service, the accuracy of the waits that this process estimated when jobs were submitted."""
        node = self._runtime.node
        return node.scores.report() if node is not None else {}

    async def readiness(self) -> dict[str, Any]:
        """Whether this process can do its work, and which checks fail."""
        runtime = self._runtime
        return await status.readiness(runtime.store if runtime.is_open else None, runtime.node, runtime.probes)

    async def doctor(self, *, outside: bool = False) -> list[Finding]:
        """Look for problems in the system. Each finding has its evidence and its fix. An app that is not open runs
        fewer checks. Set `outside` if this process may be configured differently from the processes that run the
        queue."""
        return await doctor.consult(sources_of(self._runtime, outside=outside))


class AdminMethods:
    """The methods of `Fairlead` for operators. Every action is recorded in the audit log."""

    jobs: Jobs
    admin: Admin

    async def usage(
        self, *, filters: Mapping[str, str | None] | None = None, **asked: Unpack[UsageQuestion]
    ) -> UsageReport:
        """Sums over the calls that ended from `start` to before `end`: one row for each `interval` (`hour`, `day`,
        `month`, or one in `total`) and for each value of `group_by` (`user`, `plan`, `group`, `feature`, `service`,
        `model`, `region`, `outcome`). `filters` selects calls by the same names: `{"user": "ada"}`; a `group` includes
        its teams."""
        return await self.admin.usage.page(self.admin.usage.query(filters, **asked))

    async def budgets(self, *, user_id: str | None = None, budget: str | None = None) -> list[BudgetState]:
        """The budgets with what is left of them in the current window; with `user_id`, those that concern this user."""
        return await self.admin.budgets.states(user_id=user_id, budget=budget)

    async def set_budget(
        self, budget: str, amount: float | None, *, user_id: str | None = None, who: str = PYTHON
    ) -> BudgetState:
        """Set the amount of a budget while it runs, for one user if it is for each user. It is stored in the database;
        an amount of None resets it to the configured amount."""
        return await self.admin.budgets.set(budget, amount, user_id=user_id, who=who)

    # ------------------------------------------------------------ dead letters

    async def dead(self, *, limit: int = 50, cursor: str | None = None, **where: Unpack[DeadFilters]) -> Page[JobView]:
        """The dead letters: FAILED jobs, newest first, each with the error of every attempt."""
        return await self.admin.dead_letters.page(where, limit, cursor)

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
        """Put dead letters back in the queue, at the failed step or from the start. Returns how many jobs were put
        back. Requests of the OpenAI front, whose clients are gone, are put back only if they are selected by `job_ids`,
        `service` or `feature_name`."""
        if dry_run:
            return (await self.preview_requeue(job_ids=job_ids, all=all, from_start=from_start, **where)).count
        return await self.admin.dead_letters.requeue(select(job_ids, all, where), from_start=from_start, who=who)

    async def preview_requeue(
        self,
        *,
        job_ids: Sequence[str] | None = None,
        all: bool = False,
        from_start: bool = False,
        **where: Unpack[DeadFilters],
    ) -> Preview:
        """Show what `requeue` would do without doing it: the number of jobs that it would put back, and a few of these
        jobs."""
        return await self.admin.dead_letters.preview_requeue(select(job_ids, all, where), from_start=from_start)

    async def purge(
        self,
        *,
        job_ids: Sequence[str] | None = None,
        all: bool = False,
        dry_run: bool = False,
        who: str = PYTHON,
        **where: Unpack[DeadFilters],
    ) -> int:
        """Delete dead letters. Returns how many jobs were deleted."""
        if dry_run:
            return (await self.preview_purge(job_ids=job_ids, all=all, **where)).count
        return await self.admin.dead_letters.purge(select(job_ids, all, where), who=who)

    async def preview_purge(
        self, *, job_ids: Sequence[str] | None = None, all: bool = False, **where: Unpack[DeadFilters]
    ) -> Preview:
        """Show what `purge` would do without doing it: the number of jobs that it would delete, and a few of these
        jobs."""
        return await self.admin.dead_letters.preview_purge(select(job_ids, all, where))

    async def not_dead(self, job_ids: Sequence[str]) -> list[str]:
        """The ids in `job_ids` that are not dead letters. `requeue` and `purge` leave such jobs unchanged."""
        return await self.admin.dead_letters.missing(job_ids)

    # ------------------------------------------------------------ services, jobs and workers

    async def set_limit(self, service: str, limit: int | None, *, who: str = PYTHON) -> ServiceState:
        """Override a service's limit while it runs. The override is stored in the database; a limit of None removes
        it."""
        return await self.admin.services.set_limit(service, limit, who=who)

    async def set_rate(
        self,
        service: str,
        *,
        requests: int | None = None,
        tokens: float | None = None,
        units: float | None = None,
        per: float = 60.0,
        user: bool = False,
        region: str | None = None,
        who: str = PYTHON,
    ) -> RateState:
        """Override a service's rate while it runs, with `user` the rate of each of its users, or that of one `region`.
        The override is stored in the database; `lift_rate` removes it."""
        if user and region is not None:
            raise InvalidInput("user and region are both set; a region has one rate for all users", pointer="/region")
        of = RateOf("user", service) if user else of_service(service, region)
        rate = checked_rate({"requests": requests, "tokens": tokens, "units": units, "per": per})
        return await self.admin.services.set_rate(of, rate, who=who)

    async def lift_rate(self, service: str, *, region: str | None = None, who: str = PYTHON) -> RateState:
        """Return to the configured rates of a service and of its users, or to that of one `region`."""
        return await self.admin.services.set_rate(of_service(service, region), None, who=who)

    async def set_shared_rate(
        self,
        of: str,
        name: str,
        *,
        requests: int | None = None,
        tokens: float | None = None,
        units: float | None = None,
        per: float = 60.0,
        who: str = PYTHON,
    ) -> SharedRateState:
        """Override the rate of a `pool`, a `plan` or a `group` while it is used. `name` of a group is its path. The
        override is stored in the database; `lift_shared_rate` removes it."""
        rate = checked_rate({"requests": requests, "tokens": tokens, "units": units, "per": per})
        return await self.admin.services.set_shared_rate(of_shared(of, name), rate, who=who)

    async def lift_shared_rate(self, of: str, name: str, *, who: str = PYTHON) -> SharedRateState:
        """Return to the configured rate of a `pool`, a `plan` or a `group`."""
        return await self.admin.services.set_shared_rate(of_shared(of, name), None, who=who)

    async def pause(self, service: str, *, who: str = PYTHON) -> ServiceState:
        """Start no further jobs of this service until `unpause`; running calls continue."""
        return await self.admin.services.pause(service, who=who)

    async def unpause(self, service: str, *, who: str = PYTHON) -> ServiceState:
        return await self.admin.services.unpause(service, who=who)

    async def rebuild(self, service: str, *, who: str = PYTHON) -> list[str]:
        """Ask the leader to rebuild the service's queue from the database. Returns the scopes that will be rebuilt."""
        return await self.admin.services.rebuild(service, who=who)

    async def set_priority(self, job_id: str, priority: str, *, who: str = PYTHON) -> JobView:
        """Move a waiting job to another band. If the job is running, its call continues, and its next step waits in the
        new band."""
        await self.admin.services.set_priority(job_id, priority, who=who)
        return await self.jobs.get(job_id)

    async def drain_worker(self, name: str, *, who: str = PYTHON) -> ProcessRecord:
        """Ask a worker in any process to stop claiming jobs. Calls that do not finish within `worker.drain_timeout`
        return to the queue. The process keeps running; the worker claims again after `undrain_worker` or a restart."""
        return await self.admin.processes.drain(name, on=True, who=who)

    async def undrain_worker(self, name: str, *, who: str = PYTHON) -> ProcessRecord:
        return await self.admin.processes.drain(name, on=False, who=who)

    async def leaderless(self) -> str | None:
        """Return a warning if no manager is alive: work of a leader, such as a rebuild, is then not done until one
        starts. None if a manager is alive."""
        return await self.admin.processes.leaderless()

    async def audit(
        self, *, action: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[AuditRecord]:
        """The recorded actions of operators, newest first."""
        return await self.admin.audit.page(action=action, limit=limit, cursor=cursor)

    # ------------------------------------------------------------ keys and sessions

    async def keys(self) -> list[Key]:
        """Every API key, including revoked keys, oldest first."""
        return await self.admin.keys.all()

    async def count_keys(self) -> tuple[int, int]:
        """The number of API keys, and how many of these are revoked."""
        return await self.admin.keys.count()

    async def create_key(
        self, role: Role | str, *, user_id: str | None = None, name: str | None = None, who: str = PYTHON
    ) -> NewKey:
        """Create an API key. The first key must be an admin's. Once it exists, every request to a gateway needs a
        key."""
        return await self.admin.keys.create(role, user_id, name, who=who)

    async def revoke_key(self, key_id: str, *, who: str = PYTHON) -> None:
        """Revoke an API key. Every gateway rejects the key within about a second."""
        await self.admin.keys.revoke(key_id, who=who)

    async def issue_ticket(self, grant: str) -> str:
        """Make a ticket: a secret that can be exchanged for `grant` once, in any process, within a minute."""
        return await self.admin.keys.issue_ticket(grant)

    async def use_ticket(self, ticket: str) -> str | None:
        """Exchange a ticket for its grant. Returns None if the ticket is unknown, used or expired."""
        return await self.admin.keys.use_ticket(ticket)

    async def open_session(self, key_id: str) -> str:
        """Make a secret for the cookie of a browser that has signed in with this key."""
        return await self.admin.sessions.open(key_id)

    async def session(self, text: str) -> str | None:
        """The id of the API key that the browser session was opened with. None if there is no such session, or it has
        ended."""
        return await self.admin.sessions.key_of(text)

    async def close_session(self, text: str) -> None:
        await self.admin.sessions.close(text)

    # ------------------------------------------------------------ state

    @property
    def dashboard(self) -> Dashboard:
        """The object that runs the queries for the dashboard's pages."""
        return self.admin.dashboard

    def now(self) -> float:
        """The time by the database's clock."""
        return self.admin.now()

    async def status(self) -> dict[str, Any]:
        """The status of the system: the services with their slots and queues, the pools, and the number of jobs by
        status."""
        return await self.admin.status()

    async def runtime_stats(self) -> dict[str, Any]:
        """Everything that runs: queues, slots by region and band, leaders, and every process with its calls."""
        return await self.admin.runtime_stats()

    async def workers(self) -> list[dict[str, Any]]:
        """Every worker with its last registration and its running calls."""
        return await self.admin.workers()

    async def processes(self) -> list[ProcessRecord]:
        """Every registered gateway, worker and manager, including processes that are gone without a clean shutdown."""
        return await self.admin.processes.all()

    async def region_status(self, region: str) -> dict[str, Any]:
        """The state of one region in all services that have it: waiting jobs, running calls, health."""
        return await self.admin.region_status(region)

    async def readings(self) -> MetricsSnapshot:
        """The values that `/metrics` reports."""
        return await self.admin.metrics()

    def scores(self) -> dict[str, dict[str, Any]]:
        """For each service, the accuracy of the waits that this process estimated when jobs were submitted."""
        return self.admin.estimate_accuracy()

    async def readiness(self) -> dict[str, Any]:
        """Whether this process can do its work, and which checks fail."""
        return await self.admin.readiness()

    async def doctor(self, *, outside: bool = False) -> list[Finding]:
        """Look for problems in the system. Each finding has its evidence and its fix. An app that is not open runs
        fewer checks. Set `outside` if this process may be configured differently from the processes that run the
        queue."""
        return await self.admin.doctor(outside=outside)
