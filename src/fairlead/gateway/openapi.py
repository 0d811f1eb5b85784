"""The OpenAPI document: every route with its responses and errors, each with an example.

Hot routes read and write JSON without pydantic, so FastAPI cannot infer their models. Such routes name their models
with `documented`, and `document` adds these models to the components.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from fairlead.errors import BudgetSpent, FairleadError, InvalidInput, NotFound, TooLarge, Unavailable, UnknownFeature
from fairlead.gateway import (
    models,
    models_admin,
    models_batches,
    models_budgets,
    models_fal,
    models_files,
    models_openai,
    models_replicate,
    models_runtime,
    models_schedules,
    models_turns,
    models_usage,
    models_webhooks,
)
from fairlead.gateway.fronts.openai.errors import openai_error
from fairlead.gateway.problems import (
    MEDIA_TYPE,
    TITLES,
    BadJson,
    BodyTimeout,
    CrossSite,
    Forbidden,
    Internal,
    RateLimited,
    Unauthorized,
    UnsupportedMediaType,
    WrongHost,
)

Responses = dict[int | str, dict[str, Any]]
Error = type[FairleadError]

ANY_ROUTE: tuple[Error, ...] = (Unauthorized, Forbidden, CrossSite, WrongHost, Internal, Unavailable)
WITH_BODY: tuple[Error, ...] = (BadJson, BodyTimeout, TooLarge, UnsupportedMediaType, InvalidInput)
SUBMIT: tuple[Error, ...] = (*WITH_BODY, UnknownFeature)
ONE_JOB: tuple[Error, ...] = (InvalidInput, NotFound)

RATE_HEADERS = {
    "RateLimit-Policy": "With `server.submits_per_minute`: the number of jobs and the window in seconds.",
    "RateLimit": "With `server.submits_per_minute`: the remaining jobs, and the seconds until all are available again.",
}
BUDGET_HEADERS = {
    "X-Fairlead-Budget": "With `[budgets]`: the one that concerns the job and of which the smallest share is left.",
    "X-Fairlead-Budget-Remaining": "What is left of it, in its measure.",
    "X-Fairlead-Budget-Reset": "Seconds until its next window.",
}

# The `itemSchema` (OpenAPI 3.2) of a stream: the schema of one event. Tools would apply a `schema` to the whole
# response.
EVENT = {
    "type": "object",
    "required": ["data"],
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string"},
        "retry": {"type": "integer"},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}

TAGS = [
    {"name": "jobs", "description": "Submit, watch, cancel."},
    {"name": "batches", "description": "Submit many jobs at once."},
    {"name": "files", "description": "Inputs and results that are files."},
    {"name": "turns", "description": "Slots that callers use themselves."},
    {"name": "openai", "description": "OpenAI's protocol, for its clients. Errors have OpenAI's shape."},
    {"name": "replicate", "description": "Replicate's predictions, for its clients."},
    {"name": "fal", "description": "fal's protocol, for its clients. Errors have fal's shape."},
    {"name": "usage", "description": "Who used what."},
    {"name": "webhooks", "description": "Requests that tell receivers of events, and the log of them."},
    {"name": "schedules", "description": "Recurring jobs."},
    {"name": "keys", "description": "API keys, tickets and sessions."},
    {"name": "operations", "description": "Queues, slots, dead letters, administration and its audit."},
    {"name": "health", "description": "Probes; they never need a key."},
]

MODULES = (
    models,
    models_admin,
    models_batches,
    models_budgets,
    models_fal,
    models_files,
    models_openai,
    models_replicate,
    models_runtime,
    models_schedules,
    models_turns,
    models_usage,
    models_webhooks,
)
"""The modules whose models `document` adds to the components."""

_DETAILS = {
    "bad_json": ("the body is not JSON: unexpected end of data: line 1 column 1 (char 0)", None),
    "unauthorized": ("send the key as 'Authorization: Bearer <key>'", None),
    "forbidden": ("this needs an admin's key; yours has the role user", None),
    "rate_limited": ("more than 60 jobs per minute (server.submits_per_minute)", None),
    "model_not_found": ("there is no model 'gpt-5'; known are: llama-3.1-70b", "/model"),
    "not_found": (f"there is no job {models.JOB_ID}", None),
    "wrong_state": ("a job that is COMPLETED cannot be cancelled", None),
    "too_large": ("the body is over 1048576 bytes (server.max_body)", None),
    "file_quota": ("the files of ada may have 1000000 bytes in total (artifacts.max_user_bytes)", None),
    "body_timeout": ("no data of the body arrived for 30 seconds", None),
    "invalid_input": ("priority must be high, medium or low, not 'urgent'", "/priority"),
    "unknown_feature": ("no pipeline or service is called 'ful_pipeline'", "/feature_name"),
    "idempotency_mismatch": ("this Idempotency-Key was used with another body", None),
    "inference_failed": (f"job {models.JOB_ID} failed: fast_chat_llm did not respond within 300 s", None),
    "inference_cancelled": (f"job {models.JOB_ID} was cancelled", None),
    "budget_spent": ("the budget free_tokens is spent until 2026-12-01T00:00:00.000Z", None),
    "too_many_readers": ("1000 readers follow the output of this job already (server.max_output_readers)", None),
    "too_many_waiting": ("user 'ada' has 1000 jobs waiting", None),
    "unavailable": ("the disk is full", None),
    "not_ready": ("dispatcher: the queue is being rebuilt", None),
}


def body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """Return the `openapi_extra` argument of a route that parses its body itself: it declares `model` as the schema of
    the body."""
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": _ref(model)}}}}


def header(name: str, description: str, **schema: Any) -> dict[str, Any]:
    """Return a request header as an OpenAPI parameter."""
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": {"type": "string", **schema},
    }


def headers_of(descriptions: Mapping[str, str]) -> dict[str, Any]:
    return {name: {"description": text, "schema": {"type": "string"}} for name, text in descriptions.items()}


def documented(
    status: int,
    model: type[BaseModel] | None,
    description: str,
    *errors: Error,
    headers: Mapping[str, str] | None = None,
) -> Responses:
    """Return the `responses` argument of a route: its success response and all its error responses."""
    success: dict[str, Any] = {"description": description}
    if model is not None:
        success["content"] = {"application/json": {"schema": _ref(model)}}
    if headers:
        success["headers"] = headers_of(headers)
    return {status: success, **_errors((*errors, *ANY_ROUTE))}


def in_openai_shape(model: type[BaseModel] | None, description: str, *errors: Error) -> Responses:
    """Like `documented`, for a route of the OpenAI front: its errors have OpenAI's shape."""
    responses = documented(200, model, description, *errors)
    for status, response in responses.items():
        if status != 200:
            examples = response["content"].pop(MEDIA_TYPE)["examples"]
            response["content"]["application/json"] = {
                "schema": {"$ref": "#/components/schemas/OpenAIError"},
                "examples": {code: {"value": openai_error(each["value"], {})[1]} for code, each in examples.items()},
            }
    return responses


def _errors(errors: tuple[Error, ...]) -> Responses:
    responses: Responses = {}
    for error in sorted(set(errors), key=lambda error: (error.status, error.code)):
        response = responses.setdefault(error.status, {"description": "", "content": {MEDIA_TYPE: {"examples": {}}}})
        response["description"] = "; ".join(
            filter(None, (response["description"], f"{error.code}: {TITLES[error.code]}"))
        )
        content = response["content"][MEDIA_TYPE]
        content["schema"] = _ref(models.Problem)
        content["examples"][error.code] = {"value": _example(error)}
        if error.status in (429, 503):
            response["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
        if error is RateLimited:
            response["headers"] |= headers_of(RATE_HEADERS)
        if error is BudgetSpent:
            response["headers"] = headers_of(BUDGET_HEADERS)
    return responses


def _example(error: Error) -> dict[str, Any]:
    detail, field = _DETAILS.get(error.code, (TITLES[error.code], None))
    example: dict[str, Any] = {
        "type": f"urn:fairlead:problem:{error.code}",
        "title": TITLES[error.code],
        "status": error.status,
        "detail": detail,
        "code": error.code,
        "retryable": error.status in (429, 503),
        "request_id": "01938f1c6f5e7a309d2c5b8f3c1d2e4f",
    }
    if field is not None:
        example |= {"pointer": field, "errors": [{"pointer": field, "code": error.code, "detail": detail}]}
    return example


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def document(gateway: FastAPI) -> dict[str, Any]:
    """Build the content of `/openapi.json`."""
    if gateway.openapi_schema is None:
        schema = get_openapi(
            title=gateway.title,
            version=gateway.version,
            summary=gateway.summary,
            description=gateway.description,
            routes=gateway.routes,
            tags=TAGS,
        )
        all_models = [
            (model, "validation")
            for module in MODULES
            for model in vars(module).values()
            if isinstance(model, type) and issubclass(model, BaseModel) and model.__module__ == module.__name__
        ]
        _, definitions = models_json_schema(all_models, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
        components = schema.setdefault("components", {})
        components.setdefault("schemas", {}).update(_referenced(definitions["$defs"], schema["paths"]))
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        # The key is optional in the document: a gateway for which no key was created needs none.
        schema["security"] = [{"key": []}, {}]
        gateway.openapi_schema = schema
    return gateway.openapi_schema


def _referenced(definitions: dict[str, Any], paths: dict[str, Any]) -> dict[str, Any]:
    """Return the definitions that a route or another definition refers to. This leaves out base classes and models of
    query strings."""
    text = orjson.dumps([definitions, paths]).decode()
    return {name: schema for name, schema in definitions.items() if f'"#/components/schemas/{name}"' in text}
