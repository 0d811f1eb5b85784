"""Request and response models of webhooks; see `models.py`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from fairlead.domain.webhooks import MAX_URL
from fairlead.gateway.derived_models import Shape, example
from fairlead.gateway.models import JOB_ID, MOMENT, Page, PageQuery, UserId

Event = Literal[
    "job.started",
    "job.completed",
    "job.failed",
    "job.cancelled",
    "batch.ended",
    "endpoint.disabled",
    "budget.threshold",
]
State = Literal["pending", "delivered", "failed"]
Id = Annotated[str, Field(min_length=1, max_length=500)]
Url = Annotated[str, Field(min_length=1, max_length=MAX_URL)]
ENDPOINT_ID = "ep_01938f1c7a107b318e4d6c9f4d2e3f50"
DELIVERY_ID = f"msg_{JOB_ID}_2"
_ENDPOINT: dict[str, Any] = {
    "id": ENDPOINT_ID,
    "url": "https://example.com/hooks",
    "events": ["job.completed", "job.failed"],
    "user_id": "ada",
    "name": None,
    "created_at": MOMENT,
    "disabled_at": None,
    "disabled_reason": None,
    "failing_since": None,
}


class EndpointRequest(Shape):
    model_config = example(url="https://example.com/hooks", events=["job.completed", "job.failed"])

    url: Url = Field(description="https only, at a public address, unless the configuration allows more.")
    events: Annotated[list[Event], Field(min_length=1)] | None = Field(
        None, description="Default: job.completed, job.failed, job.cancelled."
    )
    user_id: UserId | None = Field(
        None, description="Whose events it receives. Default: those of the key's user; of all users with another key."
    )


class EndpointChange(Shape):
    """Fields that are absent stay as they are."""

    model_config = example(enabled=True)

    url: Url | None = None
    events: Annotated[list[Event], Field(min_length=1)] | None = None
    enabled: bool | None = Field(None, description="False disables the endpoint, true enables it again.")


class Endpoint(Shape):
    model_config = example(**_ENDPOINT)

    id: str
    url: str
    events: list[str]
    user_id: str | None = Field(description="null: it receives the events of all users.")
    name: str | None = Field(description="Its section in the configuration; null if it was created here.")
    created_at: str
    disabled_at: str | None
    disabled_reason: str | None
    failing_since: str | None = Field(description="Since when every request has failed.")


class NewEndpoint(Endpoint):
    model_config = example(**_ENDPOINT, secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo=")

    secret: str = Field(description="The secret that signs its requests. It is shown only once.")


class EndpointList(Shape):
    data: list[Endpoint]


class EndpointsQuery(Shape):
    user_id: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(
        None, description="Only endpoints of this user."
    )


class SecretRequest(Shape):
    user_id: UserId | None = Field(None, description="Default: the user of the key.")


class Secret(Shape):
    model_config = example(user_id="ada", secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo=")

    user_id: str
    secret: str = Field(description="The secret that signs requests to the URLs of this user's jobs; shown only once.")


class DeliveryAttempt(Shape):
    at: str
    status: int | None = Field(description="The status of the response; null if there was none.")
    duration_ms: int
    response: str = Field(description="The beginning of the response, or why there was none.")


class Delivery(Shape):
    model_config = example(
        id=DELIVERY_ID,
        event="job.completed",
        state="delivered",
        user_id="ada",
        job_id=JOB_ID,
        batch_id=None,
        endpoint_id=ENDPOINT_ID,
        url=None,
        created_at=MOMENT,
        next_at=None,
        attempts=[{"at": MOMENT, "status": 204, "duration_ms": 41, "response": ""}],
    )

    id: str = Field(description="Sent as `webhook-id`, the same in every attempt.")
    event: str
    state: State
    user_id: str
    job_id: str | None
    batch_id: str | None
    endpoint_id: str | None
    url: str | None = Field(description="The `webhook_url` of the job or batch; null for an endpoint.")
    created_at: str
    next_at: str | None = Field(description="When it is sent next.")
    attempts: list[DeliveryAttempt] = Field(description="The last 20 attempts, oldest first.")


class DeliveryPage(Page):
    data: list[Delivery]


class DeliveriesQuery(PageQuery):
    user_id: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    job_id: Id | None = None
    endpoint_id: Id | None = None
    state: State | None = None
    event: Event | None = None
    since: str | None = Field(None, max_length=64, description="ISO 8601, inclusive.")
    until: str | None = Field(None, max_length=64, description="ISO 8601, exclusive.")


class ReplayRequest(Shape):
    """What to send again. All conditions must hold, and at least one besides `user_id` is needed."""

    model_config = example(state="failed", since=MOMENT)

    ids: Annotated[list[Id], Field(min_length=1, max_length=1000)] | None = None
    user_id: UserId | None = None
    job_id: Id | None = None
    endpoint_id: Id | None = None
    state: Literal["delivered", "failed"] | None = None
    event: Event | None = None
    since: str | None = Field(None, max_length=64, description="ISO 8601, inclusive.")
    until: str | None = Field(None, max_length=64, description="ISO 8601, exclusive.")


class Replayed(Shape):
    model_config = example(replayed=12)

    replayed: int


class Jwk(Shape):
    kty: str
    crv: str
    use: str
    alg: str
    x: str


class Jwks(Shape):
    keys: list[Jwk]
