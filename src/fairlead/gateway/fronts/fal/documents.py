"""What the OpenAPI document says of the routes of this front. Their errors have fal's shape."""

from __future__ import annotations

from typing import Any

import orjson
from pydantic import BaseModel

from fairlead.gateway import openapi
from fairlead.gateway.fronts.fal.errors import CANCELLED, STARTUP_TIMEOUT, field_error, of_problem, response_of
from fairlead.gateway.openapi import Error, Responses
from fairlead.gateway.problems import MEDIA_TYPE

APP: dict[str, Any] = {
    "name": "app",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "description": "An app, such as `acme/flux/dev`.",
}


FAILED = (
    (400, "the request was cancelled", CANCELLED),
    (413, "the image is too large", "bad_request"),
    (415, "the endpoint takes PNG only", "bad_request"),
    (422, "no such size", "value_error"),
    (500, "the endpoint did not respond within 300 s", "request_timeout"),
    (504, "the job did not start within 5 s, the start timeout of its caller", STARTUP_TIMEOUT),
)
"""Examples of requests that failed: the status, the text and the type."""


def with_failures(responses: Responses) -> Responses:
    """The responses of a route, with those for a request that failed."""
    for status, text, kind in FAILED:
        content = _response(responses, status)
        content["description"] = "; ".join(filter(None, (content["description"], f"{kind}: The request failed")))
        answer = response_of(status, [field_error(None, text, kind)] if status == 422 else text, kind, {}, message=text)
        content["content"]["application/json"]["examples"][kind] = {"value": orjson.loads(bytes(answer.body))}
    return responses


def _response(responses: Responses, status: int) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/FalError"}
    return responses.setdefault(
        status, {"description": "", "content": {"application/json": {"schema": schema, "examples": {}}}}
    )


def documented(
    status: int, model: type[BaseModel] | None, description: str, *errors: Error, headers: dict[str, str] | None = None
) -> Responses:
    """The responses of a route. Errors with different statuses elsewhere may have the same one here."""
    found = openapi.documented(status, model, description, *errors, headers=headers)
    responses: Responses = {status: found.pop(status)}
    for response in found.values():
        for code, each in response["content"][MEDIA_TYPE]["examples"].items():
            answer = of_problem(each["value"], {})
            shown = _response(responses, answer.status_code)
            title = each["value"]["title"]
            shown["description"] = "; ".join(filter(None, (shown["description"], f"{code}: {title}")))
            shown["content"]["application/json"]["examples"][code] = {"value": orjson.loads(bytes(answer.body))}
    return responses
