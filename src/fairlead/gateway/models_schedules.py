"""Request and response models of schedules; see `models.py`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictFloat

from fairlead.domain.job import JobStatus, Priority
from fairlead.domain.schedules import MAX_CRON, MAX_TIMEZONE
from fairlead.gateway.derived_models import Shape, example
from fairlead.gateway.models import JOB_ID, MOMENT, Page, PageQuery, UserId

SCHEDULE_ID = "sch_01938f1c7a107b318e4d6c9f4d2e3f50"
Missed = Literal["skip", "once", "all"]
Overlap = Literal["allow", "skip", "wait"]
Outcome = Literal["submitted", "skipped", "missed", "refused"]
_REQUEST: dict[str, Any] = {
    "feature_name": "text_only",
    "cron": "0 6 * * MON-FRI",
    "timezone": "Europe/Berlin",
    "input_data": {"prompt": "the news of the day"},
}
_SCHEDULE: dict[str, Any] = {
    "id": SCHEDULE_ID,
    "name": "morning news",
    "source": "api",
    "feature_name": "text_only",
    "user_id": "ada",
    "cron": "0 6 * * MON-FRI",
    "every": None,
    "timezone": "Europe/Berlin",
    "missed": "once",
    "overlap": "allow",
    "input_data": {"prompt": "the news of the day"},
    **dict.fromkeys(("priority", "deadline", "cost", "metadata", "region", "allowed_regions")),
    "webhook_url": None,
    "webhook_events": None,
    "created_at": MOMENT,
    "paused_at": None,
    "next_at": MOMENT,
    "next_times": [MOMENT],
    "last_at": None,
    "waiting_at": None,
}


class ScheduleFields(Shape):
    name: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    cron: Annotated[str, Field(min_length=1, max_length=MAX_CRON)] | None = Field(
        None, description="Five fields, or six with the second first. Either this or `every`."
    )
    every: StrictFloat | None = Field(None, ge=1, le=366 * 86400, description="Seconds between two runs.")
    timezone: Annotated[str, Field(min_length=1, max_length=MAX_TIMEZONE)] | None = Field(
        None, description="Of the cron expression, for example Europe/Berlin. Default: UTC."
    )
    missed: Missed | None = Field(
        None, description="Runs that no manager submitted in time: none, one for all, or each. Default: once."
    )
    overlap: Overlap | None = Field(
        None, description="While an earlier run is open: run too, skip, or wait for it. Default: allow."
    )
    input_data: dict[str, Any] | None = None
    priority: Priority | None = None
    deadline: StrictFloat | None = Field(None, gt=0, le=315360000, description="Seconds after the submit.")
    cost: StrictFloat | None = Field(None, gt=0)
    metadata: dict[str, Any] | None = None
    region: str | None = None
    allowed_regions: Annotated[list[str], Field(min_length=1, max_length=32)] | None = None
    webhook_url: str | None = Field(None, max_length=2000)
    webhook_events: Annotated[list[str], Field(min_length=1)] | None = None


class ScheduleRequest(ScheduleFields):
    """A recurring job. The fields of the job are those of `POST /api/v1/jobs`."""

    model_config = example(**_REQUEST)

    feature_name: str = Field(max_length=63, description="A pipeline, or a single service.")
    user_id: UserId | None = Field(None, description="Whose jobs they are. Default: the key's user, else `schedules`.")


class ScheduleChange(ScheduleFields):
    """Fields that are absent stay as they are; null resets a field to its default."""

    model_config = example(cron="0 7 * * *")

    feature_name: Annotated[str, Field(max_length=63)] | None = None


class Schedule(Shape):
    model_config = example(**_SCHEDULE)

    id: str
    name: str | None
    source: Literal["config", "api"] = Field(description="config: it is declared in the configuration or the code.")
    feature_name: str
    user_id: str
    cron: str | None
    every: float | None
    timezone: str
    missed: Missed
    overlap: Overlap
    input_data: dict[str, Any]
    priority: Priority | None
    deadline: float | None
    cost: float | None
    metadata: dict[str, Any] | None
    region: str | None
    allowed_regions: list[str] | None
    webhook_url: str | None
    webhook_events: list[str] | None
    created_at: str
    paused_at: str | None
    next_at: str | None = Field(description="null while it is paused.")
    next_times: list[str] = Field(description="The next five times.")
    last_at: str | None = Field(description="The last time at which it was due.")
    waiting_at: str | None = Field(description="The due time of a run that waits for an earlier one.")


class ScheduleList(Shape):
    data: list[Schedule]


class SchedulesQuery(Shape):
    user_id: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(
        None, description="Only schedules of this user."
    )


class ScheduleRun(Shape):
    model_config = example(
        outcome="submitted", at=MOMENT, due_at=MOMENT, job_id=JOB_ID, status="COMPLETED", count=1, detail=None
    )

    outcome: Outcome
    at: str = Field(description="When it was decided.")
    due_at: str | None = Field(description="null: a caller started the run.")
    job_id: str | None
    status: JobStatus | None = Field(description="Of the job; null if it was deleted.")
    count: int = Field(description="How many occurrences were missed, up to 200; otherwise 1.")
    detail: str | None = Field(description="Why the run was refused.")


class ScheduleRunPage(Page):
    data: list[ScheduleRun]


class RunsQuery(PageQuery):
    pass


class StartedRun(Shape):
    model_config = example(job_id=JOB_ID)

    job_id: str
