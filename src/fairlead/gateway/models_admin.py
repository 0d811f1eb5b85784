"""The shapes of what operators do to services and jobs, and of the audit."""

from __future__ import annotations

from typing import Any

from pydantic import Field, StrictInt

from fairlead.domain.job import Priority
from fairlead.gateway.models import JOB_ID, MOMENT, PageQuery, Shape, example
from fairlead.runtime.administration import MAX_LIMIT


class LimitRequest(Shape):
    model_config = example(limit=3)

    # Checked by the application, which has a hint for 0.
    limit: StrictInt = Field(
        description="Calls at once, over all processes, until it is lifted.",
        json_schema_extra={"minimum": 1, "maximum": MAX_LIMIT},
    )


class ServiceState(Shape):
    """A service as it now is in the truth; every process goes by it within a second."""

    model_config = example(service="image_gen", limit=3, paused=False, declared_limit=1, override_limit=3)

    service: str
    limit: int
    paused: bool
    declared_limit: int = Field(description='What the configuration says; of limit = "auto", the min.')
    override_limit: int | None = Field(description="What an operator said instead; null: nothing.")


class PriorityRequest(Shape):
    model_config = example(priority="high")

    priority: Priority


class RebuildRequested(Shape):
    model_config = example(service="image_gen", scopes=["service:image_gen"], problem=None)

    service: str
    scopes: list[str] = Field(description="What is rebuilt: the service, or the pool with all its services.")
    problem: str | None = Field(description="Why it is not done soon: nobody is there to lead.")


class AuditQuery(PageQuery):
    """One page of the audit, newest first."""

    action: str | None = Field(None, min_length=1, max_length=255, description="Only these, such as `service.pause`.")


class AuditRow(Shape):
    """What an operator did."""

    model_config = example(
        id=JOB_ID,
        at=MOMENT,
        who="ops (3f9a0c1b2d4e)",
        action="service.limit",
        target="image_gen",
        details={"limit": 3, "was": 1},
        outcome={"status": "done"},
    )

    id: str
    at: str
    who: str = Field(description="The key's name, and its id in brackets.")
    action: str
    target: str
    details: dict[str, Any]
    outcome: dict[str, Any] | None = Field(description="Null: under way, or its process died with it.")


class AuditPage(Shape):
    data: list[AuditRow]
    next_cursor: str | None = Field(description="Give it as `cursor` to get the next page; null: this was the last.")
