"""The settings of webhooks."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints, field_validator, model_validator

from fairlead.domain import webhooks
from fairlead.domain.config_sections import Section
from fairlead.domain.config_types import Name, Number, Seconds, Url, UserId, Whole


class WebhookEndpointConfig(Section):
    """A receiver of webhooks: of the events of all users, or of one user. The secret may be `env:VARIABLE`."""

    url: Url
    secret: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    events: Annotated[list[str], Field(min_length=1)] = list(webhooks.ENDS)
    user: UserId | None = None

    @field_validator("events")
    @classmethod
    def _events_exist(cls, value: list[str]) -> list[str]:
        if unknown := [event for event in value if event not in webhooks.EVENTS]:
            raise ValueError(f"{unknown[0]!r} is no event; valid are: {', '.join(webhooks.EVENTS)}")
        return value

    @field_validator("secret")
    @classmethod
    def _secret_is_valid(cls, value: str) -> str:
        return value if value.startswith("env:") else webhooks.check_secret(value)


class WebhooksConfig(Section):
    """Webhooks. Sections such as `[webhooks.billing]` are receivers of events; `endpoints` has them by name."""

    allow_http: bool = False
    allow_private: bool = False
    timeout: Annotated[Number, Field(ge=0.1, le=120)] = 20.0
    concurrency: Annotated[Whole, Field(ge=1, le=1000)] = 64
    keep: Seconds = 604800.0
    endpoints: dict[Name, WebhookEndpointConfig] = {}

    @model_validator(mode="before")
    @classmethod
    def _sections_are_endpoints(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        named = {name: value for name, value in table.items() if isinstance(value, dict) and name != "endpoints"}
        rest = {name: value for name, value in table.items() if name not in named}
        return {**rest, "endpoints": {**table.get("endpoints", {}), **named}} if named else table
