"""The shapes of batches; see `models.py`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, Json, create_model, field_validator

from fairlead.domain.job import Priority
from fairlead.gateway.models import JOB_ID, MOMENT, PageQuery, Shape, SubmitRequest, example
from fairlead.runtime.batch_submission import DEFAULTS, MAX_CUSTOM_ID, MAX_NAME

# One list, not a union: whoever asks for none of these is told all of them.
ItemStatusName = Literal["SCHEDULED", "PENDING", "RUNNING", "RETRYING", "COMPLETED", "FAILED", "CANCELLED", "REMOVED"]
BATCH_ID = "01938f1c-7a10-7b31-8e4d-6c9f4d2e3f50"
_COUNTS = {
    "SCHEDULED": 0,
    "PENDING": 1200,
    "RUNNING": 4,
    "RETRYING": 1,
    "COMPLETED": 790,
    "FAILED": 5,
    "CANCELLED": 0,
    "REMOVED": 0,
}
_BATCH: dict[str, Any] = {
    "batch_id": BATCH_ID,
    "user_id": "ada",
    "name": "bias check, January",
    "metadata": {"survey": 7},
    "total": 2000,
    "counts": _COUNTS,
    "progress": 0.3975,
    "created_at": MOMENT,
    "finished_at": None,
    "estimated_end": "2026-01-31T12:25:10.000Z",
}


class BatchItem(SubmitRequest):
    """One job of a batch. What it does not say, the batch says for all."""

    model_config = example(custom_id="q1-llama", feature_name="text_only", input_data={"prompt": "one"})

    user_id: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(  # type: ignore[assignment]
        None, description="The batch's, and no other."
    )
    feature_name: str | None = Field(None, max_length=63, description="A pipeline, or a single service.")  # type: ignore[assignment]
    custom_id: Annotated[str, Field(min_length=1, max_length=MAX_CUSTOM_ID)] | None = Field(
        None, description="The caller's own name for it, once in a batch."
    )


class _About(Shape):
    user_id: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(
        None, description="Whose batch it is. A user's key need not say it."
    )
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] | None = Field(None, description="For people.")
    metadata: dict[str, Any] | None = Field(None, description="Kept and shown with the batch; at most 16 KiB.")
    items: list[BatchItem] = Field(min_length=1, description="All of them are accepted, or none.")


# Whatever can be said of a job can be said once for all of them.
_defaults: dict[str, Any] = {
    name: (field.annotation if name != "feature_name" else str | None, field if name != "feature_name" else None)
    for name, field in SubmitRequest.model_fields.items()
    if name in DEFAULTS
}
BatchRequest = create_model("BatchRequest", __base__=_About, __module__=__name__, **_defaults)
BatchRequest.model_config["json_schema_extra"] = {
    "examples": [
        {
            "user_id": "ada",
            "name": "bias check, January",
            "feature_name": "text_only",
            "items": [
                {"custom_id": "q1", "input_data": {"prompt": "one"}},
                {"custom_id": "q2", "input_data": {"prompt": "two"}, "priority": "low"},
            ],
        }
    ]
}


class SubmitBatchQuery(Shape):
    """What JSON Lines have no place for: all that JSON says beside `items`. A body of JSON says it itself, and that
    counts more."""

    user_id: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] | None = None
    metadata: Json[dict[str, Any]] | None = Field(None, description="The batch's own, as JSON.")
    feature_name: Annotated[str, Field(max_length=63)] | None = None
    priority: Priority | None = None
    scheduled_at: str | None = Field(None, max_length=64)
    delay: FiniteFloat | None = None
    deadline: FiniteFloat | str | None = Field(
        None, union_mode="left_to_right", description="Seconds from now, or ISO 8601."
    )
    cost: FiniteFloat | None = None
    region: str | None = Field(None, max_length=63)
    allowed_regions: list[str] | None = Field(None, description="Once for each, or with commas.")

    @field_validator("allowed_regions")
    @classmethod
    def _each(cls, said: list[str] | None) -> list[str] | None:
        return None if said is None else [region for several in said for region in several.split(",")]


class BatchLinks(Shape):
    status_url: str
    items_url: str
    results_url: str
    events_url: str
    cancel_url: str


class BatchReceipt(Shape):
    """All of its jobs are committed."""

    model_config = example(
        batch_id=BATCH_ID,
        total=2000,
        links={
            "status_url": f"/api/v1/batches/{BATCH_ID}",
            "items_url": f"/api/v1/batches/{BATCH_ID}/items",
            "results_url": f"/api/v1/batches/{BATCH_ID}/results",
            "events_url": f"/api/v1/batches/{BATCH_ID}/events",
            "cancel_url": f"/api/v1/batches/{BATCH_ID}/cancel",
        },
    )

    batch_id: str
    total: int
    links: BatchLinks


class Batch(Shape):
    """Many jobs submitted as one."""

    model_config = example(**_BATCH)

    batch_id: str
    user_id: str
    name: str | None
    metadata: dict[str, Any] | None
    total: int
    counts: dict[str, int] = Field(description="Items by their job's status; REMOVED are those whose job is gone.")
    progress: float = Field(ge=0, le=1, description="The share of the items that have ended, well or not.")
    created_at: str
    finished_at: str | None = Field(description="When the last item ended; null while one is open, or is so again.")
    estimated_end: str | None = Field(description="If the rest ends as fast as the others did; null if none has yet.")


class BatchPage(Shape):
    data: list[Batch]
    next_cursor: str | None = Field(description="Give it as `cursor` to get the next page; null: this was the last.")


class BatchesQuery(PageQuery):
    """One page of the batches, newest first."""

    user_id: str | None = Field(None, max_length=255)


class ItemsQuery(PageQuery):
    """One page of the items, in their order."""

    status: ItemStatusName | None = Field(None, description="Their job's status, or REMOVED.")


class Item(Shape):
    model_config = example(
        item=12,
        custom_id="q1-llama",
        job_id=JOB_ID,
        status="FAILED",
        retryable=True,
        error={"code": "TIMEOUT", "message": "llama did not answer within 300 s"},
        finished_at=MOMENT,
    )

    item: int = Field(ge=0, description="Its number in the batch, from 0.")
    custom_id: str | None
    job_id: str
    status: str = Field(description="Its job's status, or REMOVED.")
    retryable: bool | None
    error: dict[str, Any] | None
    finished_at: str | None


class ItemPage(Shape):
    data: list[Item]
    next_cursor: str | None = Field(description="Give it as `cursor` to get the next page; null: this was the last.")


class ItemResult(Shape):
    """One line of the results."""

    model_config = example(
        item=12, custom_id="q1-llama", job_id=JOB_ID, status="COMPLETED", result={"text": "yes"}, error=None
    )

    item: int
    custom_id: str | None
    job_id: str
    status: str
    result: Any = None
    error: dict[str, Any] | None


class BatchCancelled(Shape):
    model_config = example(cancelled=1205, batch=_BATCH)

    cancelled: int = Field(description="How many items were open.")
    batch: Batch


class BatchResumed(Shape):
    model_config = example(resumed=5, batch=_BATCH)

    resumed: int = Field(description="How many failed items were taken up again.")
    batch: Batch
