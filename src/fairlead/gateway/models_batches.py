"""Request and response models of batches; see `models.py`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, Json, create_model, field_validator

from fairlead.app.batch_submission import DEFAULTS, MAX_CUSTOM_ID, MAX_NAME
from fairlead.domain.batch import BatchView, ItemView
from fairlead.domain.job import Priority
from fairlead.gateway.derived_models import Shape, example, fields_of
from fairlead.gateway.models import JOB_ID, MOMENT, Page, PageQuery, SubmitRequest, UserId

# One literal instead of a union with JobStatus, so that the error message for an invalid status lists all values.
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
RESULT = {
    "item": 12,
    "custom_id": "q1-llama",
    "job_id": JOB_ID,
    "status": "COMPLETED",
    "result": {"text": "yes"},
    "error": None,
}


class BatchItem(SubmitRequest):
    """One job of a batch. Fields that the item does not set are taken from the batch."""

    model_config = example(custom_id="q1-llama", feature_name="text_only", input_data={"prompt": "one"})

    user_id: UserId | None = Field(  # type: ignore[assignment]
        None, description="Must be the user of the batch."
    )
    feature_name: str | None = Field(None, max_length=63, description="A pipeline, or a single service.")  # type: ignore[assignment]
    custom_id: Annotated[str, Field(min_length=1, max_length=MAX_CUSTOM_ID)] | None = Field(
        None, description="The caller's own id of the item, unique in the batch."
    )


class _BatchFields(Shape):
    user_id: UserId | None = Field(
        None, description="The user that the batch belongs to. Default: the user of the key."
    )
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] | None = Field(
        None, description="A name for people."
    )
    metadata: dict[str, Any] | None = Field(None, description="Stored and returned with the batch; at most 16 KiB.")
    items: list[BatchItem] = Field(min_length=1, description="Either all items are accepted or none.")


# A batch accepts every field of a job as a default for its items.
_defaults: dict[str, Any] = {
    name: (field.annotation if name != "feature_name" else str | None, field if name != "feature_name" else None)
    for name, field in SubmitRequest.model_fields.items()
    if name in DEFAULTS
}
BatchRequest = create_model("BatchRequest", __base__=_BatchFields, __module__=__name__, **_defaults)
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
    """The fields of a batch other than `items`, in the query string, for bodies in JSON Lines. A field in a JSON body
    takes precedence over the same field here."""

    user_id: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] | None = None
    metadata: Json[dict[str, Any]] | None = Field(None, description="Metadata of the batch, as JSON.")
    feature_name: Annotated[str, Field(max_length=63)] | None = None
    priority: Priority | None = None
    scheduled_at: str | None = Field(None, max_length=64)
    delay: FiniteFloat | None = None
    deadline: FiniteFloat | str | None = Field(
        None, union_mode="left_to_right", description="Seconds from now, or ISO 8601."
    )
    cost: FiniteFloat | None = None
    region: str | None = Field(None, max_length=63)
    allowed_regions: list[str] | None = Field(None, description="Repeated, or separated by commas.")
    webhook_url: str | None = Field(None, max_length=2000, description="Receives the end of the batch.")
    webhook_events: list[str] | None = Field(None, description="Repeated, or separated by commas.")

    @field_validator("allowed_regions", "webhook_events")
    @classmethod
    def _split_commas(cls, values: list[str] | None) -> list[str] | None:
        return None if values is None else [region for value in values for region in value.split(",")]


class BatchLinks(Shape):
    status_url: str
    items_url: str
    results_url: str
    events_url: str
    cancel_url: str


class BatchReceipt(Shape):
    """The response to the submit of a batch. All jobs of the batch are committed to the database."""

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


@fields_of(
    BatchView,
    counts="Items by the status of their job; REMOVED counts items whose job was deleted.",
    finished_at="When the last item ended; null while any item has not.",
    estimated_end="Extrapolated from the items that have ended; null if none has.",
)
class Batch(Shape):
    """Many jobs submitted as one."""

    model_config = example(**_BATCH)

    progress: float = Field(ge=0, le=1, description="Share of the items that have ended, with any outcome.")


class BatchPage(Page):
    data: list[Batch]


class BatchesQuery(PageQuery):
    """Filters and paging of the batches."""

    user_id: str | None = Field(None, max_length=255)


class ItemsQuery(PageQuery):
    """Filters and paging of the items."""

    status: ItemStatusName | None = Field(None, description="Status of the job, or REMOVED.")


@fields_of(ItemView, omit=("result",), status="Status of the job, or REMOVED.")
class Item(Shape):
    model_config = example(
        item=12,
        custom_id="q1-llama",
        job_id=JOB_ID,
        status="FAILED",
        retryable=True,
        error={"code": "TIMEOUT", "message": "llama did not respond within 300 s"},
        finished_at=MOMENT,
    )

    item: int = Field(ge=0, description="Index of the item in the batch, from 0.")


class ItemPage(Page):
    data: list[Item]


@fields_of(ItemView, omit=("retryable", "finished_at"))
class ItemResult(Shape):
    """One item of a batch with its result: one line of the results, which are JSON Lines."""

    model_config = example(**RESULT)

    result: Any = None


class BatchCancelled(Shape):
    model_config = example(cancelled=1205, batch=_BATCH)

    cancelled: int = Field(description="Number of items that had not ended.")
    batch: Batch


class BatchRetried(Shape):
    model_config = example(retried=5, batch=_BATCH)

    retried: int = Field(description="Number of failed items that were queued again.")
    batch: Batch


class BatchResumed(Shape):
    model_config = example(resumed=5, batch=_BATCH)

    resumed: int = Field(description="Number of failed items that were resumed.")
    batch: Batch
