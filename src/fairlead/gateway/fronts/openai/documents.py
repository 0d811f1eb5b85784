"""The responses of this front's routes in the OpenAPI document."""

from __future__ import annotations

from pydantic import BaseModel

from fairlead.gateway.fronts.openai.errors import openai_error
from fairlead.gateway.openapi import Error, Responses, documented
from fairlead.gateway.problems import MEDIA_TYPE


def in_openai_shape(model: type[BaseModel] | None, description: str, *errors: Error) -> Responses:
    """The responses of a route. Its errors have OpenAI's shape."""
    responses = documented(200, model, description, *errors)
    for status, response in responses.items():
        if status != 200:
            examples = response["content"].pop(MEDIA_TYPE)["examples"]
            response["content"]["application/json"] = {
                "schema": {"$ref": "#/components/schemas/OpenAIError"},
                "examples": {code: {"value": openai_error(each["value"], {})[1]} for code, each in examples.items()},
            }
    return responses
