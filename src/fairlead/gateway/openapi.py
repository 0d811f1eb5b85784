"""OpenAPI: every route with its answers and errors, each with an example.

Bodies are read and written without pydantic where speed counts, so FastAPI cannot find the models by itself: routes
name them here, and `document` adds them to the components.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from fairlead.errors import FairleadError, InvalidInput, NotFound, TooLarge, Unavailable, UnknownFeature
from fairlead.gateway import (
    models,
    models_access,
    models_admin,
    models_batches,
    models_doctor,
    models_operations,
    models_runtime,
    models_turns,
)
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
    "RateLimit-Policy": "With `server.submits_per_minute`: how many jobs in how many seconds.",
    "RateLimit": "With `server.submits_per_minute`: how many are left, and when all are there again.",
}

# One event of a stream, in a word of OpenAPI 3.2: 3.1 has none, and tools take a `schema` for that of one event.
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
    {"name": "batches", "description": "Many jobs as one."},
    {"name": "turns", "description": "Slots for work that callers do themselves."},
    {"name": "keys", "description": "Who may do what."},
    {"name": "operations", "description": "Queues, slots, dead letters; what operators do, and the audit of it."},
    {"name": "health", "description": "For probes; these two never need a key."},
]

MODULES = (
    models,
    models_access,
    models_admin,
    models_batches,
    models_doctor,
    models_operations,
    models_runtime,
    models_turns,
)
"""Where the shapes are."""

_DETAILS = {
    "bad_json": ("the body is not JSON: unexpected end of data: line 1 column 1 (char 0)", None),
    "unauthorized": ("send the key as 'Authorization: Bearer <key>'", None),
    "forbidden": ("this needs an admin's key; yours is of the role user", None),
    "rate_limited": ("more than 60 jobs in a minute (server.submits_per_minute)", None),
    "not_found": (f"there is no job {models.JOB_ID}", None),
    "wrong_state": ("a job that is COMPLETED cannot be cancelled", None),
    "too_large": ("the body is over 1048576 bytes (server.max_body)", None),
    "body_timeout": ("nothing more of the body came for 30 seconds", None),
    "invalid_input": ("priority must be high, medium or low, not 'urgent'", "/priority"),
    "unknown_feature": ("no pipeline or service is called 'ful_pipeline'", "/feature_name"),
    "idempotency_mismatch": ("this Idempotency-Key was used with another body", None),
    "inference_failed": (f"job {models.JOB_ID} failed: fast_chat_llm did not answer within 300 s", None),
    "inference_cancelled": (f"job {models.JOB_ID} was cancelled", None),
    "too_many_waiting": ("user 'ada' has 1000 jobs waiting", None),
    "unavailable": ("the disk is full", None),
    "not_ready": ("dispatcher: the line is being rebuilt", None),
}


def body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """`openapi_extra` of a route that reads its body itself."""
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": _ref(model)}}}}


def header(name: str, description: str, **schema: Any) -> dict[str, Any]:
    """A request header as an OpenAPI parameter."""
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": {"type": "string", **schema},
    }


def headers_of(said: Mapping[str, str]) -> dict[str, Any]:
    return {name: {"description": text, "schema": {"type": "string"}} for name, text in said.items()}


def answers(
    status: int,
    model: type[BaseModel] | None,
    description: str,
    *errors: Error,
    headers: Mapping[str, str] | None = None,
) -> Responses:
    """The answer of a route that goes well, and all its errors."""
    answer: dict[str, Any] = {"description": description}
    if model is not None:
        answer["content"] = {"application/json": {"schema": _ref(model)}}
    if headers:
        answer["headers"] = headers_of(headers)
    return {status: answer, **_errors((*errors, *ANY_ROUTE))}


def _errors(errors: tuple[Error, ...]) -> Responses:
    found: Responses = {}
    for error in sorted(set(errors), key=lambda error: (error.status, error.code)):
        answer = found.setdefault(error.status, {"description": "", "content": {MEDIA_TYPE: {"examples": {}}}})
        answer["description"] = "; ".join(filter(None, (answer["description"], f"{error.code}: {TITLES[error.code]}")))
        content = answer["content"][MEDIA_TYPE]
        content["schema"] = _ref(models.Problem)
        content["examples"][error.code] = {"value": _example(error)}
        if error.status in (429, 503):
            answer["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
        if error is RateLimited:
            answer["headers"] |= headers_of(RATE_HEADERS)
    return found


def _example(error: Error) -> dict[str, Any]:
    detail, where = _DETAILS.get(error.code, (TITLES[error.code], None))
    example: dict[str, Any] = {
        "type": f"urn:fairlead:problem:{error.code}",
        "title": TITLES[error.code],
        "status": error.status,
        "detail": detail,
        "code": error.code,
        "retryable": error.status in (429, 503),
        "request_id": "01938f1c6f5e7a309d2c5b8f3c1d2e4f",
    }
    if where is not None:
        example |= {"pointer": where, "errors": [{"pointer": where, "code": error.code, "detail": detail}]}
    return example


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def document(gateway: FastAPI) -> dict[str, Any]:
    """The whole of `/openapi.json`."""
    if gateway.openapi_schema is None:
        schema = get_openapi(
            title=gateway.title,
            version=gateway.version,
            summary=gateway.summary,
            description=gateway.description,
            routes=gateway.routes,
            tags=TAGS,
        )
        shapes = [
            (shape, "validation")
            for module in MODULES
            for shape in vars(module).values()
            if isinstance(shape, type) and issubclass(shape, BaseModel) and shape.__module__ == module.__name__
        ]
        _, definitions = models_json_schema(shapes, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
        components = schema.setdefault("components", {})
        components.setdefault("schemas", {}).update(_named(definitions["$defs"], schema["paths"]))
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        # As long as there are no keys, none is needed.
        schema["security"] = [{"key": []}, {}]
        gateway.openapi_schema = schema
    return gateway.openapi_schema


def _named(definitions: dict[str, Any], paths: dict[str, Any]) -> dict[str, Any]:
    """Those that a route or another definition refers to: base classes and queries are no shapes of their own."""
    said = orjson.dumps([definitions, paths]).decode()
    return {name: shape for name, shape in definitions.items() if f'"#/components/schemas/{name}"' in said}
