"""What a page may ask for: each view's name, its parameters, who may see it, and how it is looked at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fairlead.domain.job import JobStatus
from fairlead.domain.keys import Role
from fairlead.errors import InvalidInput
from fairlead.gateway.access import Caller, check_batch_in_reach, check_job_in_reach, user_in_reach
from fairlead.gateway.dashboard import looks
from fairlead.gateway.models_operations import Text
from fairlead.gateway.problems import Forbidden, of_validation

if TYPE_CHECKING:
    from fairlead.app import Fairlead

Look = Callable[["Fairlead", Caller, Any], Awaitable[dict[str, Any]]]

Moment = Annotated[str, Field(max_length=64)]

OPERATORS = frozenset({Role.ADMIN, Role.VIEWER})
SERVICES = OPERATORS | {Role.SERVICE}
EVERYBODY = frozenset(Role)


class Parameters(BaseModel):
    model_config = ConfigDict(extra="forbid")

    view: str


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
    since: Moment | None = None
    until: Moment | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 100


class SomeBatches(Parameters):
    user_id: Text | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    roles: frozenset[Role]
    look: Look
    parameters: type[Parameters] = Parameters
    every: float = 1.0


KINDS: dict[str, Kind] = {
    "overview": Kind(SERVICES, looks.overview),
    "service": Kind(SERVICES, looks.service, OneService),
    "job": Kind(EVERYBODY, looks.job, OneJob),
    "jobs": Kind(EVERYBODY, looks.jobs, SomeJobs),
    "users": Kind(SERVICES, looks.users, every=2.0),
    "batches": Kind(EVERYBODY, looks.batches, SomeBatches),
    "batch": Kind(EVERYBODY, looks.batch, OneBatch),
    "dead": Kind(OPERATORS, looks.dead, every=2.0),
    "workers": Kind(OPERATORS, looks.workers),
    "audit": Kind(OPERATORS, looks.audit),
}


@dataclass(frozen=True, slots=True)
class View:
    """One view as somebody asked for it. `key` is the same for all who see the same."""

    name: str
    caller: Caller
    parameters: Parameters
    said: bytes
    key: bytes

    @property
    def every(self) -> float:
        return KINDS[self.name].every

    async def look(self, app: Fairlead) -> dict[str, Any]:
        parameters = self.parameters
        # With each look: a job or a batch may be gone by now.
        if isinstance(parameters, OneJob):
            await check_job_in_reach(app, self.caller, str(parameters.job_id))
        if isinstance(parameters, OneBatch):
            await check_batch_in_reach(app, self.caller, str(parameters.batch_id))
        return await KINDS[self.name].look(app, self.caller, parameters)


def view_of(asked: Any, caller: Caller) -> View:
    """Raises a RequestError if there is no such view, or not for this caller."""
    name = asked.get("view") if isinstance(asked, dict) else None
    if not isinstance(name, str) or name not in KINDS:
        raise InvalidInput(f'send {{"view": "<name>"}}, one of {", ".join(KINDS)}', pointer="/view")
    kind = KINDS[name]
    if caller.role not in kind.roles:
        raise Forbidden(f"a key of the role {caller.role} does not see {name}")
    try:
        parameters = kind.parameters.model_validate(asked)
    except ValidationError as error:
        raise of_validation(error.errors()) from None
    if isinstance(parameters, SomeJobs | SomeBatches):
        parameters.user_id = user_in_reach(caller, parameters.user_id)
    shown = parameters.model_dump(mode="json", exclude_none=True)
    whose = [caller.role is Role.USER, caller.user_id]
    key = orjson.dumps([shown, whose], option=orjson.OPT_SORT_KEYS)
    return View(name, caller, parameters, orjson.dumps(asked), key)
