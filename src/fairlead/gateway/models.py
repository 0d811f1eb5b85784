"""The shapes of requests and answers, for OpenAPI and for clients made from it.

The hot routes neither parse nor answer through these models; a test holds that what they answer fits them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fairlead.domain.job import JobStatus, Priority, PrioritySource
from fairlead.runtime.paging import MAX_PAGE

JOB_ID = "01938f1c-6f5e-7a30-9d2c-5b8f3c1d2e4f"
MOMENT = "2026-01-31T12:00:00.000Z"


class Shape(BaseModel):
    """Nothing beyond what is written down, in neither direction."""

    model_config = ConfigDict(extra="forbid")


def example(**fields: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [fields]})


class SubmitRequest(Shape):
    """One job."""

    model_config = example(
        user_id="ada", feature_name="full_pipeline", input_data={"prompt": "a futuristic city"}, priority="high"
    )

    user_id: Annotated[str, Field(min_length=1, max_length=255)] = Field(
        description="Whose job it is: the unit of fairness."
    )
    feature_name: str = Field(max_length=63, description="A pipeline, or a single service.")
    input_data: dict[str, Any] | None = Field(None, description="What the services get as params. Absent: {}.")
    priority: Priority | None = Field(
        None, description="Absent: as the hook, the config or the priority service say; else medium."
    )
    scheduled_at: str | None = Field(
        None, description="Not before this moment: ISO 8601; UTC unless it says otherwise. At most 366 days away."
    )
    delay: float | None = Field(None, ge=0, le=366 * 86400, description="Not before so many seconds from now.")
    deadline: float | str | None = Field(
        None, description="Fails when not done by then: seconds from now, or ISO 8601."
    )
    cost: float | None = Field(None, gt=0, description="Slot seconds it is expected to take, for the fair share.")
    metadata: dict[str, Any] | None = Field(None, description="Kept and shown with the job; at most 16 KiB.")
    region: str | None = Field(None, description="Where the first call goes; retries may go elsewhere.")
    allowed_regions: Annotated[list[str], Field(min_length=1, max_length=32)] | None = Field(
        None, description="The only regions that its calls may go to, retries too."
    )


class BulkRequest(Shape):
    model_config = example(
        jobs=[
            {"user_id": "ada", "feature_name": "text_only", "input_data": {"prompt": "one"}},
            {"user_id": "ada", "feature_name": "text_only", "input_data": {"prompt": "two"}, "delay": 60},
        ]
    )

    jobs: list[SubmitRequest] = Field(min_length=1, description="All of them are accepted, or none.")


class EstimatedWait(Shape):
    """Seconds: half of the waits like this one ended between these. See docs/waiting.md."""

    low: float
    high: float


class Links(Shape):
    status_url: str
    events_url: str
    cancel_url: str


class Receipt(Shape):
    """The job is committed; it survives a crash of anything."""

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
    position: int | None = Field(description="1 is next; null when it does not wait in line.")
    estimated_wait: EstimatedWait | None
    scheduled_at: str | None
    links: Links


class InferenceRequest(Shape):
    """One call of a model."""

    model_config = example(model="fast_chat_llm", input_data={"prompt": "say hello"}, user_id="ada", timeout=30)

    model: str = Field(max_length=63, description="A service, or a pipeline.")
    input_data: dict[str, Any] | None = Field(None, description="What the service gets as params. Absent: {}.")
    user_id: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(
        "anonymous", description="Whose job it is. A user's key need not say it; null is the same as absent."
    )
    priority: Priority | None = Field(None, description="As for a job.")
    region: str | None = Field(None, max_length=63, description="Where the first call goes; retries may go elsewhere.")
    allowed_regions: list[str] | None = Field(None, description="The only regions that its calls may go to.")
    timeout: float | None = Field(None, ge=0, le=300, description="Seconds to wait for the result. Absent: 30.")


class Inference(Shape):
    """The job is COMPLETED; `GET /api/v1/jobs/{job_id}` has all of it."""

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
    result: Any = Field(description="The last step's data.")
    region: str | None = Field(description="Where the last step ran; null for a service without regions.")
    latency_ms: float = Field(description="From the job's acceptance to its end.")
    metrics: dict[str, Any] = Field(description="The last step's.")


class BulkReceipt(Shape):
    jobs: list[Receipt]


class JobError(BaseModel):
    """Why a call failed. `code` is stable; further fields depend on it."""

    model_config = ConfigDict(extra="allow")

    code: str
    message: str


class Attempt(Shape):
    """One call that did not succeed."""

    step: int
    service: str
    round: int
    attempt: int
    error: JobError
    started_at: str | None
    ended_at: str
    worker: str | None
    region: str | None


class EarlierResult(Shape):
    """What a step gave before it was run again."""

    step: int
    service: str
    round: int
    data: Any
    metrics: dict[str, Any]
    finished_at: str


class Job(Shape):
    """Everything about one job. In lists `context`, `attempts`, `history`, `result`, `input_data` and `metadata` are
    null."""

    model_config = example(
        job_id=JOB_ID,
        feature_name="text_only",
        user_id="ada",
        status="COMPLETED",
        priority="medium",
        original_priority="low",
        priority_source="service",
        created_at=MOMENT,
        queued_at=MOMENT,
        scheduled_at=None,
        promoted_at="2026-01-31T12:30:00.000Z",
        started_at="2026-01-31T12:30:01.000Z",
        finished_at="2026-01-31T12:30:03.500Z",
        last_progress_at=None,
        current_step_index=1,
        total_steps=1,
        steps=["fast_chat_llm"],
        position=None,
        estimated_wait=None,
        retryable=None,
        error=None,
        progress=None,
        result={"text": "hello"},
        context={
            "step_0_fast_chat_llm": {
                "status": "SUCCESS",
                "data": {"text": "hello"},
                "metrics": {"execution_time_ms": 2500},
            }
        },
        attempts=[],
        history=[],
        input_data={"prompt": "say hello"},
        metadata=None,
        region=None,
        allowed_regions=None,
        turn=False,
    )

    job_id: str
    feature_name: str
    user_id: str
    status: JobStatus
    priority: Priority
    original_priority: Priority
    priority_source: PrioritySource | None = Field(description="Who said so; null for jobs from before it was kept.")
    created_at: str
    queued_at: str | None
    scheduled_at: str | None
    promoted_at: str | None
    started_at: str | None
    finished_at: str | None
    last_progress_at: str | None
    current_step_index: int
    total_steps: int
    steps: list[str]
    position: int | None
    estimated_wait: EstimatedWait | None
    retryable: bool | None
    error: JobError | None
    progress: dict[str, Any] | None
    result: Any
    context: dict[str, Any] | None
    attempts: list[Attempt] | None
    history: list[EarlierResult] | None = Field(description="Results that a later round of their step has replaced.")
    input_data: Any
    metadata: dict[str, Any] | None
    region: str | None
    allowed_regions: list[str] | None
    turn: bool = Field(description="It is a turn: its caller does the work itself.")


class Reason(Shape):
    """One thing that holds a job. `code` is stable; what is in `details` depends on it."""

    code: str
    message: str
    details: dict[str, Any]


class Why(Shape):
    """What holds a job now. The first reason is what holds it most."""

    model_config = example(
        job_id=JOB_ID,
        status="PENDING",
        summary="The limit of image_gen is full (1 of 1); the job is in line behind 3 jobs: 1 of higher priority, "
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
                "message": "the job is in line behind 3 jobs: 1 of higher priority, "
                "2 of other users whose turn is earlier",
                "details": {"ahead": 3, "retries": 0, "higher_priority": 1, "other_users": 2, "own": 0},
            },
        ],
    )

    job_id: str
    status: JobStatus
    summary: str = Field(description="All of it, as one sentence.")
    position: int | None = Field(description="1 is next; null when it does not wait in line.")
    estimated_wait: EstimatedWait | None
    reasons: list[Reason] = Field(min_length=1)


class PageQuery(Shape):
    limit: int = Field(50, ge=1, le=MAX_PAGE)
    cursor: str | None = Field(None, max_length=500, description="`next_cursor` of the page before.")


class JobsQuery(PageQuery):
    user_id: str | None = Field(None, min_length=1, max_length=255)
    feature_name: str | None = Field(None, min_length=1, max_length=255)


class DeadQuery(JobsQuery):
    """One page of the dead letters."""

    service: str | None = Field(None, min_length=1, max_length=255, description="Whose step failed.")
    error_code: str | None = Field(
        None, min_length=1, max_length=255, description="Of the last error, such as `HTTP_503`."
    )
    error_like: str | None = Field(
        None,
        min_length=1,
        max_length=255,
        description="What their messages have in common, with `#` for numbers and ids, such as `no answer within # s`.",
    )
    # Not a bool: pydantic takes "on", "1" and more for one.
    retryable: Literal["true", "false"] | None = Field(None, description="Whether its user may resume it.")
    since: str | None = Field(None, max_length=64, description="Failed at this moment or later: ISO 8601.")
    until: str | None = Field(None, max_length=64, description="Failed before this moment: ISO 8601.")


class ListQuery(JobsQuery):
    """One page of the jobs, newest first."""

    status: JobStatus | None = None
    since: str | None = Field(None, max_length=64, description="Accepted at this moment or later: ISO 8601.")
    until: str | None = Field(None, max_length=64, description="Accepted before this moment: ISO 8601.")


class JobPage(Shape):
    data: list[Job]
    next_cursor: str | None = Field(description="Give it as `cursor` to get the next page; null: this was the last.")


class FieldError(Shape):
    pointer: str | None
    code: str
    detail: str


class Problem(BaseModel):
    """RFC 9457, and what our programs need besides."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str = Field(description="Stable: compare this.")
    retryable: bool = Field(description="The same request may succeed later; Retry-After says when.")
    request_id: str | None
    pointer: str | None = Field(None, description="The offending field, as a JSON pointer.")
    errors: list[FieldError] | None = Field(None, description="All that is wrong, where it can be told.")
