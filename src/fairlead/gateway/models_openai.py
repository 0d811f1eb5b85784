"""Pydantic models of the OpenAI front, for the OpenAPI document."""

from __future__ import annotations

from typing import Literal

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
