"""Pydantic models of the Replicate front, for its requests and for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fairlead.domain.replicate import version_of
from fairlead.domain.webhooks import MAX_URL
from fairlead.gateway.models import JOB_ID, MOMENT
from fairlead.gateway.models_files import FILE_ID

_BASE = "https://fairlead.example/replicate/v1"
_VERSION = version_of("image_gen")


class PredictionRequest(BaseModel):
    """A request for a prediction. Further fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    input: dict[str, Any] = Field({}, examples=[{"prompt": "a lighthouse"}])
    version: str | None = Field(
        None,
        description="Only for `POST /predictions`: the id of a version, `owner/name:id`, or `owner/name`.",
        examples=[_VERSION],
        max_length=400,
    )
    webhook: str | None = Field(None, description="Where to send the prediction.", max_length=MAX_URL)
    webhook_events_filter: list[Literal["start", "output", "logs", "completed"]] | None = None
    webhook_completed: str | None = Field(None, description="An old name of `webhook`.", max_length=MAX_URL)
    stream: bool | None = Field(None, description="Ignored: every prediction can be streamed.")


class Prediction(BaseModel):
    id: str = Field(examples=[JOB_ID])
    model: str = Field(examples=["acme/flux"])
    version: str = Field(examples=[_VERSION])
    status: Literal["starting", "processing", "succeeded", "failed", "canceled"]
    input: dict[str, Any] | None
    output: Any = Field(examples=[f"https://fairlead.example/files/{FILE_ID}?ticket=1769864400.5e8f1c0a"])
    logs: str = Field(examples=[" 76%|#######   | 76/100\n"])
    error: str | None
    metrics: dict[str, float] = Field(examples=[{"predict_time": 4.2, "total_time": 9.7}])
    created_at: str = Field(examples=[MOMENT])
    started_at: str | None
    completed_at: str | None
    urls: dict[str, str] = Field(examples=[{"get": f"{_BASE}/predictions/{JOB_ID}"}])
    source: str = "api"
    data_removed: bool = False


class Predictions(BaseModel):
    previous: None = None
    next: str | None
    results: list[Prediction]


class Version(BaseModel):
    id: str = Field(examples=[_VERSION])
    created_at: str
    cog_version: str
    openapi_schema: dict[str, Any]


class Versions(BaseModel):
    previous: None = None
    next: None = None
    results: list[Version]


class ReplicateModel(BaseModel):
    url: str
    owner: str = Field(examples=["acme"])
    name: str = Field(examples=["flux"])
    description: str = Field(description="The steps of the pipeline.")
    visibility: Literal["private"] = "private"
    run_count: int = 0
    latest_version: Version


class ReplicateModels(BaseModel):
    previous: None = None
    next: None = None
    results: list[ReplicateModel]


class Deployment(BaseModel):
    owner: str
    name: str
    current_release: dict[str, Any]


class ReplicateFile(BaseModel):
    id: str = Field(examples=[FILE_ID])
    name: str = Field(examples=["cat.png"])
    content_type: str = Field(examples=["image/png"])
    size: int
    etag: str
    checksums: dict[str, str]
    metadata: dict[str, Any] = Field(description="Only in the response to the upload; it is not stored.")
    created_at: str
    expires_at: str | None
    urls: dict[str, str] = Field(examples=[{"get": f"{_BASE}/files/{FILE_ID}"}])


class ReplicateFiles(BaseModel):
    previous: None = None
    next: str | None
    results: list[ReplicateFile]


class Account(BaseModel):
    type: Literal["user"] = "user"
    username: str
    name: str
    github_url: None = None


class WebhookSecret(BaseModel):
    key: str = Field(examples=["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])
