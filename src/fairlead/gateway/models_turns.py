"""The shapes of turns; see `models.py`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from fairlead.domain.job import JobStatus, Priority
from fairlead.gateway.models import MOMENT, EstimatedWait, JobError, Shape, example

TURN_ID = "01938f1c-8b21-8c42-9f5e-7da05e3f4061"


class TurnRequest(Shape):
    """A place in line, for work that the caller does itself."""

    model_config = example(service="flux", user_id="ada", wait_timeout=360)

    service: str = Field(max_length=63, description="Whose slot it is about.")
    user_id: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(
        None, description="Whose turn it is: the unit of fairness. A user's key need not say it. Absent: anonymous."
    )
    priority: Priority | None = Field(None, description="As for a job.")
    wait_timeout: float | None = Field(
        None, gt=0, le=366 * 86400, description="Fails when it has not got the slot after so many seconds."
    )
    metadata: dict[str, Any] | None = Field(None, description="Kept and shown with the turn; at most 16 KiB.")


class FinishRequest(Shape):
    """How the work ended: well, with a result if there is one to keep; or with an error."""

    model_config = example(result={"path": "cat.png"})

    result: Any = Field(None, description="Kept like the result of a job.")
    error: Annotated[str, Field(min_length=1, max_length=10_000)] | None = Field(
        None, description="What went wrong. The turn is FAILED then."
    )


class TurnLinks(Shape):
    status_url: str
    events_url: str
    renew_url: str
    finish_url: str
    cancel_url: str


class Turn(Shape):
    """PENDING is in line, RUNNING has the slot; the other states are ends, as of jobs."""

    model_config = example(
        turn_id=TURN_ID,
        service="flux",
        user_id="ada",
        status="PENDING",
        priority="medium",
        position=3,
        estimated_wait={"low": 20.1, "high": 31.4},
        created_at=MOMENT,
        started_at=None,
        finished_at=None,
        error=None,
        result=None,
        metadata=None,
        heartbeat=10,
        lease_ttl=15,
        timeout=300,
        links={
            "status_url": f"/api/v1/turns/{TURN_ID}",
            "events_url": f"/api/v1/turns/{TURN_ID}/events",
            "renew_url": f"/api/v1/turns/{TURN_ID}/renew",
            "finish_url": f"/api/v1/turns/{TURN_ID}/finish",
            "cancel_url": f"/api/v1/turns/{TURN_ID}/cancel",
        },
    )

    turn_id: str
    service: str
    user_id: str
    status: JobStatus
    priority: Priority
    position: int | None = Field(description="1 is next; null when it does not wait in line.")
    estimated_wait: EstimatedWait | None
    created_at: str
    started_at: str | None = Field(description="When it got the slot.")
    finished_at: str | None
    error: JobError | None
    result: Any
    metadata: dict[str, Any] | None
    heartbeat: float = Field(description="Seconds that a waiting caller may be silent before it is taken for gone.")
    lease_ttl: float = Field(description="Seconds that a caller with the slot may be silent before it has lost it.")
    timeout: float = Field(description="Seconds that a slot may be kept, however often it is renewed.")
    links: TurnLinks
