"""The settings of schedules."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints, model_validator

from fairlead.domain.config_sections import Section
from fairlead.domain.config_types import Name, Number, Seconds, Url, UserId
from fairlead.domain.job import Priority
from fairlead.domain.schedules import MAX_CRON, MAX_TIMEZONE, Missed, Overlap, Timing
from fairlead.errors import InvalidInput

USER = "schedules"
"""The user of scheduled jobs, unless the schedule names another."""
JOB_FIELDS = (
    "input_data",
    "priority",
    "deadline",
    "cost",
    "metadata",
    "region",
    "allowed_regions",
    "webhook_url",
    "webhook_events",
)
"""The fields of a submission that a schedule has, besides its user and its feature."""


class ScheduleConfig(Section):
    """A recurring job. The feature is a pipeline or a service, by default the one with the name of the schedule."""

    cron: Annotated[str, StringConstraints(min_length=1, max_length=MAX_CRON)] | None = None
    every: Number | None = None
    timezone: Annotated[str, StringConstraints(min_length=1, max_length=MAX_TIMEZONE)] = "UTC"
    feature_name: Name | None = None
    user_id: UserId = USER
    input_data: dict[str, Any] = {}
    priority: Priority | None = None
    deadline: Seconds | None = None
    cost: Annotated[Number, Field(gt=0)] | None = None
    metadata: dict[str, Any] | None = None
    region: str | None = None
    allowed_regions: Annotated[list[str], Field(min_length=1, max_length=32)] | None = None
    webhook_url: Url | None = None
    webhook_events: Annotated[list[str], Field(min_length=1)] | None = None
    missed: Missed = Missed.ONCE
    overlap: Overlap = Overlap.ALLOW

    @model_validator(mode="after")
    def _timing_is_valid(self) -> ScheduleConfig:
        try:
            self.timing.check()
        except InvalidInput as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def timing(self) -> Timing:
        return Timing(self.cron, self.every, self.timezone)

    def job(self, name: str) -> dict[str, Any]:
        """The fields of the submission that are set."""
        dumped = self.model_dump(mode="json", include=set(JOB_FIELDS), exclude_none=True)
        return {"feature_name": self.feature_name or name, **dumped}
