"""Request and response models of jobs and problems, for OpenAPI and for clients generated from it.

Response models take their fields from the views that the application returns (`fields_of`). Hot routes do not use these
models to parse or serialize; tests validate the responses of these routes against the models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictStr, WithJsonSchema

from fairlead.domain.job import Attempt as AttemptRecord
from fairlead.domain.job import JobStatus, Priority, PrioritySource, StepResult
from fairlead.domain.pagination import MAX_PAGE
from fairlead.domain.validation import user_text
from fairlead.domain.views import EstimatedWait as WaitView
from fairlead.domain.views import JobView
from fairlead.domain.views import Reason as ReasonView
from fairlead.domain.views import Why as WhyView
from fairlead.gateway.derived_models import Shape, example, fields_of

JOB_ID = "01938f1c-6f5e-7a30-9d2c-5b8f3c1d2e4f"
MOMENT = "2026-01-31T12:00:00.000Z"


Text = Annotated[StrictStr, Field(min_length=1, max_length=255)]
UserId = Annotated[
    Text,
    BeforeValidator(user_text),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1, "maxLength": 255},
                {"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 64) - 1},
            ]
        }
    ),
]
"""The type of a user id in JSON bodies. An integer is converted to text."""


# ---------------------------------------------------------------- submitting


class SubmitRequest(Shape):
    """One job."""

    model_config = example(
        user_id="ada", feature_name="full_pipeline", input_data={"prompt": "a futuristic city"}, priority="high"
    )

    user_id: UserId = Field(description="The user that the job belongs to. Slots are shared fairly between users.")
    feature_name: str = Field(max_length=63, description="A pipeline, or a single service.")
    input_data: dict[str, Any] | None = Field(None, description="Passed to the services as `params`. Default: {}.")
    priority: Priority | None = Field(
        None, description="Default: what the hook, the configuration or the priority service decides, else medium."
    )
    scheduled_at: str | None = Field(
        None,
        description="Do not start before this time: ISO 8601, UTC unless it has an offset, at most 366 days from now.",
    )
    delay: float | None = Field(
        None, ge=0, le=366 * 86400, description="Do not start before this many seconds have passed."
    )
    deadline: float | str | None = Field(
        None, description="Fail the job if it is not done by then: seconds from now, or ISO 8601."
    )
    cost: float | None = Field(
        None, gt=0, description="What a call is expected to cost in the unit of its service, by default in seconds."
    )
    metadata: dict[str, Any] | None = Field(None, description="Stored and returned with the job; at most 16 KiB.")
    region: str | None = Field(None, description="Region of the first call; retries may go to other regions.")
    allowed_regions: Annotated[list[str], Field(min_length=1, max_length=32)] | None = Field(
        None, description="The only regions that its calls, including retries, may go to."
    )
    webhook_url: str | None = Field(None, max_length=2000, description="Receives the events of the job; https only.")
    webhook_events: Annotated[list[str], Field(min_length=1)] | None = Field(
        None,
        description="Default: the end of the job, or of the batch. See docs/webhooks.md.",
    )


class BulkRequest(Shape):
    model_config = example(
        jobs=[
            {"user_id": "ada", "feature_name": "text_only", "input_data": {"prompt": "one"}},
            {"user_id": "ada", "feature_name": "text_only", "input_data": {"prompt": "two"}, "delay": 60},
        ]
    )

    jobs: list[SubmitRequest] = Field(min_length=1, description="Either all jobs are accepted or none.")


@fields_of(WaitView)
class EstimatedWait(Shape):
    """A range in seconds that half of the comparable waits fell into. See docs/waiting.md."""


class Links(Shape):
    status_url: str
    events_url: str
    cancel_url: str


class Receipt(Shape):
    """The response to a submit. The job is committed to the database and survives a crash of any process."""

    model_config = example(
        job_id=JOB_ID,
        priority="high",
        status="PENDING",
        position=3,
        estimated_wait={"low": 8.2, "high": 12.3},
        scheduled_at=None,
        links={
            "status_url": f"/api/v1/jobs/{JOB_ID}",
            "events_url": f"/api/v1/jobs/{JOB_ID}/events",
            "cancel_url": f"/api/v1/jobs/{JOB_ID}/cancel",
        },
    )

    job_id: str
    priority: Priority
    status: JobStatus
    position: int | None = Field(description="1 is next; null if the job is not queued.")
    estimated_wait: EstimatedWait | None
    scheduled_at: str | None
    links: Links


class InferenceRequest(Shape):
    """One call of a model."""

    model_config = example(model="fast_chat_llm", input_data={"prompt": "say hello"}, user_id="ada", timeout=30)

    model: str = Field(max_length=63, description="A service, or a pipeline.")
    input_data: dict[str, Any] | None = Field(None, description="Passed to the service as `params`. Default: {}.")
    user_id: UserId | None = Field(
        "anonymous", description="The user that the job belongs to. Default: the user of the key, else anonymous."
    )
    priority: Priority | None = Field(None, description="As for a job.")
    region: str | None = Field(
        None, max_length=63, description="Region of the first call; retries may go to other regions."
    )
    allowed_regions: list[str] | None = Field(None, description="The only regions that its calls may go to.")
    timeout: float | None = Field(None, ge=0, le=300, description="Seconds to wait for the result. Default: 30.")


class Inference(Shape):
    """The result of a call whose job is COMPLETED. `GET /api/v1/jobs/{job_id}` returns all fields of the job."""

    model_config = example(
        job_id=JOB_ID,
        status="COMPLETED",
        model="fast_chat_llm",
        result={"text": "hello"},
        region=None,
        latency_ms=2612.4,
        metrics={"execution_time_ms": 2500},
    )

    job_id: str
    status: JobStatus
    model: str
    result: Any = Field(description="Result of the last step.")
    region: str | None = Field(description="Region of the last step; null for a service without regions.")
    latency_ms: float = Field(description="Milliseconds from acceptance to completion.")
    metrics: dict[str, Any] = Field(description="Metrics of the last step.")


class BulkReceipt(Shape):
    jobs: list[Receipt]


class JobError(BaseModel):
    """Why a call failed. `code` is stable; additional fields depend on it."""

    model_config = ConfigDict(extra="allow")

    code: str
    message: str


@fields_of(AttemptRecord, omit=("job_id",))
class Attempt(Shape):
    """One failed call of a step. `traceback` is the traceback of the service's handler; it is null for users' keys."""

    step_index: int = Field(description="Index of the step, from 0; `step` is the same number.")
    error: JobError
    traceback: str | None


@fields_of(StepResult, omit=("job_id", "data_json", "metrics_json", "lease", "files"))
class EarlierResult(Shape):
    """A result that a step had before the step was run again."""

    step_index: int = Field(description="Index of the step, from 0; `step` is the same number.")
    data: Any
    metrics: dict[str, Any]


_JOB: dict[str, Any] = {
    "job_id": JOB_ID,
    "feature_name": "text_only",
    "user_id": "ada",
    "status": "COMPLETED",
    "priority": "medium",
    "original_priority": "low",
    "priority_source": "service",
    "created_at": MOMENT,
    "queued_at": MOMENT,
    "scheduled_at": None,
    "promoted_at": "2026-01-31T12:30:00.000Z",
    "started_at": "2026-01-31T12:30:01.000Z",
    "finished_at": "2026-01-31T12:30:03.500Z",
    "last_progress_at": None,
    "current_step_index": 1,
    "total_steps": 1,
    "steps": ["fast_chat_llm"],
    "position": None,
    "estimated_wait": None,
    "retryable": None,
    "error": None,
    "progress": None,
    "result": {"text": "hello"},
    "context": {
        "step_0_fast_chat_llm": {
            "status": "SUCCESS",
            "data": {"text": "hello"},
            "metrics": {"execution_time_ms": 2500},
        }
    },
    "attempts": [],
    "history": [],
    "input_data": {"prompt": "say hello"},
    "metadata": None,
    "region": None,
    "allowed_regions": None,
    "turn": False,
    "kept_until": None,
    "trace_id": None,
}


@fields_of(
    JobView,
    priority_source="What decided the priority; null for jobs older than this field.",
    history="Results that a later round of their step has replaced.",
    turn="True for a turn: its caller does the work itself.",
    kept_until="Set while the caller of a waiting turn is absent: its place is kept until then.",
    trace_id="The trace that the job belongs to, if it has one.",
)
class Job(Shape):
    """All fields of one job. In lists, `context`, `attempts`, `history`, `result`, `input_data` and `metadata` are
    null."""

    model_config = example(**_JOB)

    priority_source: PrioritySource | None
    error: JobError | None
    attempts: list[Attempt] | None
    history: list[EarlierResult] | None


class RetryRequest(Shape):
    """Where a retry begins."""

    model_config = example(**{"from": "step"})

    from_: Literal["step", "start"] = Field(
        "step", alias="from", description="At the step that failed, or at the first step."
    )

    @property
    def from_start(self) -> bool:
        return self.from_ == "start"


class RetriedJob(Job):
    """The job, queued again."""

    model_config = example(**_JOB, warning=None)

    warning: str | None = Field(description="Set if the last error is permanent: the same input may fail again.")


@fields_of(ReasonView)
class Reason(Shape):
    """One reason why a job waits. `code` is stable; the fields of `details` depend on it."""


@fields_of(WhyView, summary="All reasons in one sentence.", position="1 is next; null if the job is not queued.")
class Why(Shape):
    """Why a job is in its current state. The most important reason comes first."""

    model_config = example(
        job_id=JOB_ID,
        status="PENDING",
        summary="The limit of image_gen is full (1 of 1); the job is queued behind 3 jobs: 1 of higher priority, "
        "2 of other users whose turn is earlier.",
        position=4,
        estimated_wait={"low": 31.0, "high": 52.5},
        reasons=[
            {
                "code": "service_full",
                "message": "the limit of image_gen is full (1 of 1)",
                "details": {
                    "service": "image_gen",
                    "limit": 1,
                    "in_use": 1,
                    "held": 0,
                    "holders": [
                        {
                            "kind": "lease",
                            "job_id": "01938f1c-1a2b-7c3d-8e4f-0a1b2c3d4e5f",
                            "user_id": "bob",
                            "service": "image_gen",
                            "worker": "gpu-1:4711:3f2a9c1d",
                            "lease": "3:17",
                            "since": MOMENT,
                            "until": "2026-01-31T12:00:15.000Z",
                            "ends_by": "2026-01-31T12:05:00.000Z",
                        }
                    ],
                    "more_holders": 0,
                },
            },
            {
                "code": "in_line",
                "message": "the job is queued behind 3 jobs: 1 of higher priority, "
                "2 of other users whose turn is earlier",
                "details": {"ahead": 3, "retries": 0, "higher_priority": 1, "other_users": 2, "own": 0},
            },
        ],
    )

    reasons: list[Reason] = Field(min_length=1)


class PageQuery(Shape):
    limit: int = Field(50, ge=1, le=MAX_PAGE)
    cursor: str | None = Field(None, max_length=500, description="`next_cursor` of the previous page.")


class JobsQuery(PageQuery):
    user_id: str | None = Field(None, min_length=1, max_length=255)
    feature_name: str | None = Field(None, min_length=1, max_length=255)


class DeadQuery(JobsQuery):
    """Filters and paging of the dead letters."""

    service: str | None = Field(None, min_length=1, max_length=255, description="Service of the step that failed.")
    error_code: str | None = Field(
        None, min_length=1, max_length=255, description="Code of the last error, such as `HTTP_503`."
    )
    error_like: str | None = Field(
        None,
        min_length=1,
        max_length=255,
        description="Pattern of the error message, with `#` for numbers and ids, such as `no answer within # s`.",
    )
    # Not a bool: pydantic would also accept "on", "1" and others.
    retryable: Literal["true", "false"] | None = Field(None, description="Whether the user may resume the job.")
    since: str | None = Field(None, max_length=64, description="Failed at or after this time: ISO 8601.")
    until: str | None = Field(None, max_length=64, description="Failed before this time: ISO 8601.")


class ListQuery(JobsQuery):
    """Filters and paging of the jobs."""

    status: JobStatus | None = None
    service: str | None = Field(None, min_length=1, max_length=255, description="Service of the current step.")
    error_code: str | None = Field(
        None,
        min_length=1,
        max_length=255,
        description="Code of the last error, such as `HTTP_503`. Selects FAILED jobs, unless `status` is given.",
    )
    since: str | None = Field(None, max_length=64, description="Accepted at or after this time: ISO 8601.")
    until: str | None = Field(None, max_length=64, description="Accepted before this time: ISO 8601.")


class Page(Shape):
    next_cursor: str | None = Field(description="Pass it as `cursor` to get the next page; null on the last page.")


class JobPage(Page):
    data: list[Job]


# ---------------------------------------------------------------- problems


class FieldError(Shape):
    pointer: str | None
    code: str
    detail: str


class Problem(BaseModel):
    """An error as defined by RFC 9457, with additional fields for programs."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str = Field(description="Stable identifier of the error; compare this field.")
    retryable: bool = Field(description="Whether the same request may succeed later; Retry-After has the delay.")
    request_id: str | None
    pointer: str | None = Field(None, description="The invalid field, as a JSON pointer.")
    errors: list[FieldError] | None = Field(None, description="All invalid fields, where the gateway can list them.")
