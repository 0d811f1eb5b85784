"""Pydantic models of the OpenAI front, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class OpenAIModel(BaseModel):
    """A model, in OpenAI's shape."""

    id: str = Field(examples=["llama-3.1-70b"])
    object: Literal["model"] = "model"
    created: int = Field(description="Unix seconds; 0 if the upstream does not tell.", examples=[1731801600])
    owned_by: str = Field(examples=["fairlead"])


class OpenAIModels(BaseModel):
    object: Literal["list"] = "list"
    data: list[OpenAIModel]


class OpenAIErrorFields(BaseModel):
    message: str
    type: str = Field(examples=["invalid_request_error"])
    param: str | None = Field(None, description="The field with the error.")
    code: str | None = None


class OpenAIError(BaseModel):
    """An error of the gateway or of the upstream."""

    error: OpenAIErrorFields


class OpenAIRequest(BaseModel):
    """The fields that the gateway reads. All other fields are passed on as they are."""

    model_config = ConfigDict(extra="allow")

    model: str | None = Field(None, description="May be omitted if there is one service.", examples=["llama-3.1-70b"])
    stream: bool | None = None
    user: str | None = Field(None, description="With the key of a service: the user of the request.")
    safety_identifier: str | None = Field(None, description="As `user`, and takes precedence over it.")
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = Field(
        None, description="`priority`: high priority, `flex`: low priority."
    )
    background: bool | None = Field(
        None, description="Of `/v1/responses`: answer at once, and read the response later."
    )


# ---------------------------------------------------------------- responses

RESPONSE_ID = "resp_01938f1c6f5e7a309d2c5b8f3c1d2e4f"


class OpenAIResponse(BaseModel):
    """A response, in OpenAI's shape. It has more fields, which repeat the request."""

    model_config = ConfigDict(extra="allow")

    id: str = Field(examples=[RESPONSE_ID])
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["queued", "in_progress", "completed", "failed", "cancelled", "incomplete"]
    background: bool
    model: str
    output: list[dict[str, Any]] = Field(description="Messages and calls of functions.")
    error: dict[str, Any] | None = Field(None, description="`code` and `message`, if it failed.")
    usage: dict[str, Any] | None = None
    fairlead: dict[str, Any] | None = Field(None, description="While it is queued: `position` and `estimated_wait`.")


class OpenAIDeleted(BaseModel):
    id: str = Field(examples=[RESPONSE_ID])
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class OpenAIItems(BaseModel):
    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseQuery(BaseModel):
    stream: bool = Field(False, description="Follow the events.")
    starting_after: int | None = Field(
        None, ge=0, le=10**15, description="The `sequence_number` of the last event seen."
    )


class ItemsQuery(BaseModel):
    after: str | None = Field(None, max_length=100, description="The id of the last item seen.")
    limit: int = Field(20, ge=1, le=100)
    order: Literal["asc", "desc"] = "desc"


# ---------------------------------------------------------------- files and batches


class OpenAIFile(BaseModel):
    """A file, in OpenAI's shape."""

    id: str = Field(examples=["file-01938f1c8b207c31a05d7c9f4d2e3f60"])
    object: Literal["file"] = "file"
    bytes: int
    created_at: int = Field(description="Unix seconds.", examples=[1731801600])
    expires_at: int | None = Field(description="Unix seconds; null if it does not expire.")
    filename: str = Field(examples=["requests.jsonl"])
    purpose: str = Field(examples=["batch"])
    status: Literal["processed"] = "processed"


class OpenAIFiles(BaseModel):
    object: Literal["list"] = "list"
    data: list[OpenAIFile]
    first_id: str | None
    last_id: str | None
    has_more: bool


class OpenAIFileDeleted(BaseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class OpenAIFilesQuery(BaseModel):
    after: str | None = Field(None, description="The last id of the previous page.")
    limit: int = Field(10_000, ge=1, le=10_000)
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = Field(None, min_length=1, max_length=64)


class OpenAIExpiry(BaseModel):
    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=2_592_000)


class OpenAIBatchRequest(BaseModel):
    """What to run. All other fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    input_file_id: str = Field(examples=["file-01938f1c8b207c31a05d7c9f4d2e3f60"])
    endpoint: str = Field(examples=["/v1/chat/completions"])
    completion_window: Literal["24h", "1h", "15m"]
    metadata: dict[str, str] | None = None
    output_expires_after: OpenAIExpiry | None = None


class OpenAIBatchError(BaseModel):
    code: str
    message: str
    line: int | None
    param: str | None


class OpenAIBatchErrors(BaseModel):
    object: Literal["list"] = "list"
    data: list[OpenAIBatchError]


class OpenAIRequestCounts(BaseModel):
    total: int
    completed: int
    failed: int


class FairleadEstimate(BaseModel):
    """An addition to OpenAI's protocol."""

    expected_at: int | None = Field(description="When the batch is expected to end, or has ended; null if not known.")
    fits_window: bool | None = Field(description="Whether that is before `expires_at`.")


class OpenAIBatch(BaseModel):
    """A batch, in OpenAI's shape. Times are Unix seconds."""

    id: str = Field(examples=["batch_01938f1c8b207c31a05d7c9f4d2e3f60"])
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: OpenAIBatchErrors | None
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: OpenAIRequestCounts
    usage: dict[str, Any] | None
    metadata: dict[str, str] | None
    fairlead: FairleadEstimate


class OpenAIBatches(BaseModel):
    object: Literal["list"] = "list"
    data: list[OpenAIBatch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class OpenAIBatchesQuery(BaseModel):
    after: str | None = Field(None, description="The last id of the previous page.")
    limit: int = Field(20, ge=1, le=100)
