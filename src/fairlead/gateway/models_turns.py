"""Request and response models of turns; see models.py."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from fairlead.domain.job import Priority
from fairlead.domain.turns import TurnView
from fairlead.gateway.derived_models import Shape, example, fields_of
from fairlead.gateway.models import MOMENT, JobError, UserId

TURN_ID = "01938f1c-8b21-8c42-9f5e-7da05e3f4061"


class TurnRequest(Shape):
    """A request for a slot that the caller uses itself."""

    model_config = example(service="flux", user_id="ada", wait_timeout=360)

    service: str = Field(max_length=63, description="Service to get a slot of.")
    user_id: UserId | None = Field(
        None, description="The user that the turn belongs to. Default: the user of the key, else anonymous."
    )
    priority: Priority | None = Field(None, description="As for a job.")
    wait_timeout: float | None = Field(
        None, gt=0, le=366 * 86400, description="Fail the turn if it has no slot after this many seconds."
    )
    cost: float | None = Field(
        None, gt=0, description="What the work is expected to cost in the unit of the service, by default in seconds."
    )
    metadata: dict[str, Any] | None = Field(None, description="Stored and returned with the turn; at most 16 KiB.")


class FinishRequest(Shape):
    """The outcome of the work: a result to store, an error, or neither."""

    model_config = example(result={"path": "cat.png"}, usage={"units": 1})

    result: Any = Field(None, description="Stored like the result of a job.")
    error: Annotated[str, Field(min_length=1, max_length=10_000)] | None = Field(
        None, description="Error message. It makes the turn FAILED."
    )
    usage: dict[str, Any] | None = Field(
        None, description="What the work has used: tokens_in, tokens_out, tokens_cached, units, model."
    )


class TurnLinks(Shape):
    status_url: str
    events_url: str
    renew_url: str
    finish_url: str
    cancel_url: str


@fields_of(
    TurnView,
    omit=("process", "input"),
    position="1 is next; null if the turn is not queued.",
    started_at="When the turn got the slot.",
    lease_ttl="Seconds without contact after which a caller loses its slot.",
    timeout="Seconds that a slot may be held, however often it is renewed.",
    kept_until="Set while the caller of a PENDING turn is absent: its place is kept until then.",
)
class Turn(Shape):
    """A turn. A PENDING turn waits in the queue, a RUNNING turn has the slot; the other states are final, as for
    jobs."""

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
        kept_until=None,
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

    error: JobError | None
    heartbeat: float = Field(description="Seconds without contact after which a waiting caller counts as absent.")
    links: TurnLinks
