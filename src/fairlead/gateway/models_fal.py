"""Pydantic models of the fal front, for the OpenAPI document and for the requests that are read with them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fairlead.gateway.models import JOB_ID, MOMENT

_URL = f"https://fairlead.example/fal/acme/flux/requests/{JOB_ID}"


class FalInput(BaseModel):
    """The input of the app, as it is."""

    model_config = ConfigDict(extra="allow")


class FalUrls(BaseModel):
    request_id: str = Field(description="The id of the job.", examples=[JOB_ID])
    response_url: str = Field(examples=[_URL])
    status_url: str = Field(examples=[f"{_URL}/status"])
    cancel_url: str = Field(examples=[f"{_URL}/cancel"])


class FalReceipt(FalUrls):
    """A request that is committed."""

    status: Literal["IN_QUEUE"] = "IN_QUEUE"
    queue_position: int = Field(description="How many requests are ahead.", examples=[2])
    gateway_request_id: str = Field(examples=[JOB_ID])


class FalLog(BaseModel):
    message: str = Field(examples=["half of it"])
    level: str = Field(examples=["INFO"])
    source: str = Field(examples=["USER"])
    timestamp: str = Field(examples=[MOMENT])


class FalStatus(FalUrls):
    """The status of a request."""

    status: Literal["IN_QUEUE", "IN_PROGRESS", "COMPLETED"]
    queue_position: int | None = Field(None, description="Only IN_QUEUE: how many requests are ahead.")
    logs: list[FalLog] | None = Field(None, description="Not IN_QUEUE; null unless `logs` asks for them.")
    metrics: dict[str, Any] | None = Field(None, description="Only COMPLETED.", examples=[{"inference_time": 2.5}])
    error: str | None = Field(None, description="Only COMPLETED, if it failed or was cancelled.")
    error_type: str | None = Field(None, examples=["startup_timeout"])


class FalCancelled(BaseModel):
    status: Literal["CANCELLATION_REQUESTED"] = "CANCELLATION_REQUESTED"


class FalError(BaseModel):
    """An error. `detail` is a list of fields if the status is 422, otherwise text."""

    detail: Any = Field(examples=["there is no app 'acme/flux'"])
    message: str
    error_type: str = Field(examples=["model_not_found"])
    status: str | None = Field(None, description="Only of a cancellation: ALREADY_COMPLETED or NOT_FOUND.")


class FalUploadRequest(BaseModel):
    """What is known of a file before its bytes are sent."""

    model_config = ConfigDict(extra="ignore")

    file_name: str = Field("upload.bin", min_length=1, max_length=1000, examples=["cat.png"])
    content_type: str | None = Field(None, max_length=255, examples=["image/png"])


class FalUpload(BaseModel):
    upload_url: str = Field(description="Where to PUT the bytes, without a key.")
    file_url: str = Field(description="Reads the file without a key, for a week.")


class FalPart(BaseModel):
    partNumber: int = Field(examples=[1])
    etag: str


class FalUploaded(BaseModel):
    size: int | None = Field(description="In bytes.", examples=[1024])
