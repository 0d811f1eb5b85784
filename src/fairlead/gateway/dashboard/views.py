"""The views that a page of the dashboard may request. Each has a name, parameters, the roles that may see it, and a
query that returns its state: the data in the form that the page uses.

A state contains no null except in the data of users: changes are sent as JSON merge patches, and a merge patch cannot
set a field to null.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fairlead.app.schedules import shown_run, shown_schedule
from fairlead.app.webhooks import filter_of, shown_delivery, shown_endpoint
from fairlead.domain.access import Role
from fairlead.domain.job import JobStatus
from fairlead.domain.webhooks import Delivery
from fairlead.errors import InvalidInput
from fairlead.gateway.models import Text
from fairlead.gateway.permissions import Caller, check_batch_in_reach, check_job_in_reach, user_in_reach
from fairlead.gateway.problems import Forbidden, of_validation

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead

MAX_BATCHES = 100
MAX_ITEMS = 100
MAX_AUDITED = 200
MAX_DELIVERIES = 100
MAX_ENDPOINTS = 200
MAX_SCHEDULES = 500
MAX_RUNS = 100
MAX_NUMBER = 2**53
"""The largest integer that JavaScript represents exactly."""

_ROW = (
    "job_id",
    "user_id",
    "feature_name",
    "status",
    "priority",
    "original_priority",
    "created_at",
    "queued_at",
    "started_at",
    "finished_at",
    "scheduled_at",
    "current_step_index",
    "total_steps",
    "steps",
    "retryable",
    "error",
    "progress",
    "position",
)
Query = Callable[["Fairlead", Caller, Any], Awaitable[dict[str, Any]]]

Moment = Annotated[str, Field(max_length=64)]

OPERATORS = frozenset({Role.ADMIN, Role.VIEWER})
SERVICES = OPERATORS | {Role.SERVICE}
ALL_ROLES = frozenset(Role)


async def query_overview(app: Fairlead, caller: Caller, parameters: Any) -> dict[str, Any]:
    return await app.dashboard.overview()


async def query_service(app: Fairlead, caller: Caller, parameters: Any) -> dict[str, Any]:
    return await app.dashboard.service(parameters.service)


async def query_job(app: Fairlead, caller: Caller, parameters: Any) -> dict[str, Any]:
    job_id = str(parameters.job_id)
    record, about = await app.dashboard.job(job_id)
    why = await app.why(job_id, private=caller.role is Role.USER)
    shown = record.as_dict(tracebacks=caller.role is not Role.USER)
    return {"job": _without_nulls(shown), "why": _without_nulls(why.as_dict()), **about}


async def query_jobs(app: Fairlead, caller: Caller, parameters: Any) -> dict[str, Any]:
    shared = {name: getattr(parameters, name) for name in ("user_id", "feature_name", "since", "until")}
    rare = {name: getattr(parameters, name) for name in ("service", "error_code")}
    page = await app.list_jobs(**shared, **rare, status=parameters.status, limit=parameters.limit)
    # No index supports counting by service or error code.
    counts = None if any(rare.values()) else await app.dashboard.counts(**shared)
    rows = [record.as_dict() for record in page.data]
    return _without_nulls(
        {
            "jobs": {row["job_id"]: _without_nulls({name: row[name] for name in _ROW}) for row in rows},
            "next_cursor": page.next_cursor,
            "counts": counts,
        }
    )


async def query_users(app: Fairlead, caller: Caller, parameters: Any) -> dict[str, Any]:
    return await app.dashboard.users()


async def query_batches(app: Fairlead, caller: Caller, parameters: Any) -> dict[str, Any]:
    page = await app.list_batches(user_id=parameters.user_id, limit=MAX_BATCHES)
    record = {query_batch.batch_id: _without_nulls(query_batch.as_dict()) for query_batch in page.data}
    return _without_nulls({"batches": record, "next_cursor": page.next_cursor})


async def query_batch(app: Fairlead, caller: Caller, parameters: Any) -> dict[str, Any]:
    batch_id = str(parameters.batch_id)
    record, items = await app.get_batch(batch_id), await app.batch_items(batch_id, limit=MAX_ITEMS)
    return _without_nulls(
        {
            "batch": _without_nulls(record.as_dict()),
            "items": {str(item.item): _without_nulls(item.as_dict()) for item in items.data},
            "next_cursor": items.next_cursor,
        }
    )


async def query_dead(app: Fairlead, caller: Caller, parameters: Any) -> dict[str, Any]:
    return await app.dashboard.dead()


async def query_workers(app: Fairlead, caller: Caller, parameters: Any) -> dict[str, Any]:
    return await app.dashboard.workers()


async def query_audit(app: Fairlead, caller: Caller, parameters: Any) -> dict[str, Any]:
    page = await app.audit(limit=MAX_AUDITED)
    rows = {record.id: _without_nulls(asdict(record)) for record in page.data}
    return _without_nulls({"rows": rows, "next_cursor": page.next_cursor})


async def query_webhooks(app: Fairlead, caller: Caller, parameters: Any) -> dict[str, Any]:
    where = filter_of(user_id=parameters.user_id)
    page = await app.webhooks.deliveries(where, limit=MAX_DELIVERIES)
    endpoints = await app.webhooks.endpoints(parameters.user_id)
    return _without_nulls(
        {
            "endpoints": {each.id: _without_nulls(shown_endpoint(each)) for each in endpoints[:MAX_ENDPOINTS]},
            "deliveries": {each.id: _shown_delivery(each) for each in page.data},
            "next_cursor": page.next_cursor,
        }
    )


def _shown_delivery(delivery: Delivery) -> dict[str, Any]:
    shown = _without_nulls(dict(shown_delivery(delivery)))
    return {**shown, "attempts": [_without_nulls(dict(each)) for each in delivery.log]}


async def query_schedules(app: Fairlead, caller: Caller, parameters: Any) -> dict[str, Any]:
    schedules = (await app.schedules.all(parameters.user_id))[:MAX_SCHEDULES]
    return {"schedules": {each.id: _without_nulls(shown_schedule(each)) for each in schedules}}


async def query_schedule(app: Fairlead, caller: Caller, parameters: Any) -> dict[str, Any]:
    schedule = await app.schedules.get(parameters.schedule_id, user_id=caller.user_id)
    page = await app.schedules.runs(schedule.id, limit=MAX_RUNS)
    return {
        "schedule": _without_nulls(shown_schedule(schedule)),
        "runs": {str(run.seq): _without_nulls(shown_run(run, job)) for run, job in page.data},
    }


def _without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


class Parameters(BaseModel):
    model_config = ConfigDict(extra="forbid")

    view: str
    request: Annotated[int, Field(strict=True, ge=0, le=MAX_NUMBER)] | None = None


class OneService(Parameters):
    service: Text


class OneJob(Parameters):
    job_id: UUID


class OneBatch(Parameters):
    batch_id: UUID


class SomeJobs(Parameters):
    user_id: Text | None = None
    feature_name: Text | None = None
    status: JobStatus | None = None
    service: Text | None = None
    error_code: Text | None = None
    since: Moment | None = None
    until: Moment | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 100


class SomeBatches(Parameters):
    user_id: Text | None = None


class SomeDeliveries(Parameters):
    user_id: Text | None = None


class SomeSchedules(Parameters):
    user_id: Text | None = None


class OneSchedule(Parameters):
    schedule_id: Text


@dataclass(frozen=True, slots=True)
class Kind:
    roles: frozenset[Role]
    query: Query
    parameters: type[Parameters] = Parameters
    every: float = 1.0


KINDS: dict[str, Kind] = {
    "overview": Kind(SERVICES, query_overview),
    "service": Kind(SERVICES, query_service, OneService),
    "job": Kind(ALL_ROLES, query_job, OneJob),
    "jobs": Kind(ALL_ROLES, query_jobs, SomeJobs),
    "users": Kind(SERVICES, query_users, every=2.0),
    "batches": Kind(ALL_ROLES, query_batches, SomeBatches),
    "batch": Kind(ALL_ROLES, query_batch, OneBatch),
    "dead": Kind(OPERATORS, query_dead, every=2.0),
    "workers": Kind(OPERATORS, query_workers),
    "audit": Kind(OPERATORS, query_audit),
    "webhooks": Kind(ALL_ROLES, query_webhooks, SomeDeliveries),
    "schedules": Kind(ALL_ROLES, query_schedules, SomeSchedules),
    "schedule": Kind(ALL_ROLES, query_schedule, OneSchedule),
}


@dataclass(frozen=True, slots=True)
class View:
    """A view that a page has requested. Two views with the same `key` have the same content, so they are computed
    once. `number` is the page's number of the request, `request` the rest of it."""

    name: str
    caller: Caller
    parameters: Parameters
    request: bytes
    key: bytes
    number: int | None

    @property
    def every(self) -> float:
        return KINDS[self.name].every

    async def query(self, app: Fairlead) -> dict[str, Any]:
        parameters = self.parameters
        # Checked with each query, since a job or a batch may have been deleted.
        if isinstance(parameters, OneJob):
            await check_job_in_reach(app, self.caller, str(parameters.job_id))
        if isinstance(parameters, OneBatch):
            await check_batch_in_reach(app, self.caller, str(parameters.batch_id))
        return await KINDS[self.name].query(app, self.caller, parameters)


def view_of(request: Any, caller: Caller) -> View:
    """Parse a page's request for a view. Raises a RequestError if the view is unknown or the caller may not see it."""
    name = request.get("view") if isinstance(request, dict) else None
    if not isinstance(name, str) or name not in KINDS:
        raise InvalidInput(f'send {{"view": "<name>"}}, one of {", ".join(KINDS)}', pointer="/view")
    kind = KINDS[name]
    if caller.role not in kind.roles:
        raise Forbidden(f"a key with the role {caller.role} may not see {name}")
    try:
        parameters = kind.parameters.model_validate(request)
    except ValidationError as error:
        raise of_validation(error.errors()) from None
    if isinstance(parameters, SomeJobs | SomeBatches | SomeDeliveries | SomeSchedules):
        parameters.user_id = user_in_reach(caller, parameters.user_id)
    # The request is part of the key because a state repeats it, and pages may request the same content differently.
    asked = {name: value for name, value in request.items() if name != "request"}
    owner = [caller.role is Role.USER, caller.user_id]
    key = orjson.dumps([asked, owner], option=orjson.OPT_SORT_KEYS)
    return View(name, caller, parameters, orjson.dumps(asked), key, parameters.request)


def number_of(request: Any) -> int | None:
    """The page's number of a request that may be invalid."""
    number = request.get("request") if isinstance(request, dict) else None
    return number if type(number) is int and 0 <= number <= MAX_NUMBER else None
