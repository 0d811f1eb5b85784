"""The OpenAPI document is complete and matches the responses."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import orjson
from fastapi.routing import APIRoute

from fairlead.domain.submission import Submission
from fairlead.domain.views import JobView
from fairlead.gateway import models
from fairlead.gateway.app import ROUTERS
from fairlead.gateway.models_fal import FalError
from fairlead.gateway.models_openai import OpenAIError
from tests.integration.gateway_site import Site

DOCUMENTED_ERRORS = {"401", "403", "421", "500"}


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


async def test_every_route_is_documented_with_summary_tag_and_a_stable_id(still_site: Site) -> None:
    document = (await still_site.client.get("/openapi.json")).json()
    found = {(method, path) for method, path, _ in operations(document)}
    routes = {
        (method, route.path_format)
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in route.methods or ()
    }
    assert found == routes
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(ids) == len(set(ids))
    for _, _, operation in operations(document):
        assert operation["summary"]
        assert operation["tags"]
        assert re.fullmatch(r"[a-z_]+", operation["operationId"])


async def test_every_error_response_is_a_problem_with_an_example(still_site: Site) -> None:
    document = (await still_site.client.get("/openapi.json")).json()
    for method, path, operation in operations(document):
        answers = operation["responses"]
        retried = "429" if path.startswith("/fal/") else "503"
        assert answers.keys() >= {*DOCUMENTED_ERRORS, retried}, (method, path)
        assert ("{job_id}" in path) <= ({"404", "422"} <= answers.keys())
        assert ("requestBody" in operation) <= ({"400", "413", "415", "422"} <= answers.keys())
        for status, answer in answers.items():
            if int(status) < 400:
                continue
            if path.startswith("/v1/"):
                for code, example in answer["content"]["application/json"]["examples"].items():
                    assert OpenAIError.model_validate(example["value"]).error.code == code
                continue
            if path.startswith("/fal/"):
                for code, example in answer["content"]["application/json"]["examples"].items():
                    assert FalError.model_validate(example["value"]).error_type == code
                continue
            content = answer["content"]["application/problem+json"]
            for code, example in content["examples"].items():
                assert models.Problem.model_validate(example["value"]).code == code
                assert example["value"]["status"] == int(status)


async def test_every_reference_exists_and_every_component_is_used(still_site: Site) -> None:
    response = await still_site.client.get("/openapi.json")
    document = response.json()
    references = set(re.findall(r"#/components/schemas/(\w+)", response.text))
    assert references == document["components"]["schemas"].keys()


async def test_examples_fit_their_own_schemas(still_site: Site) -> None:
    document = (await still_site.client.get("/openapi.json")).json()
    checked = 0
    for name, schema in document["components"]["schemas"].items():
        for example in schema.get("examples", []):
            shape = getattr(models, name, None)
            if shape is not None:
                shape.model_validate(example)
                checked += 1
    assert checked >= 4


async def test_the_example_of_a_submission_names_real_fields_only(still_site: Site) -> None:
    assert models.SubmitRequest.model_fields.keys() == {field.name for field in dataclasses.fields(Submission)}


async def test_a_job_has_exactly_the_documented_fields() -> None:
    assert models.Job.model_fields.keys() == {field.name for field in dataclasses.fields(JobView)}


async def test_nothing_is_loaded_from_other_hosts(still_site: Site) -> None:
    assert (await still_site.client.get("/redoc")).status_code == 404
    page = (await still_site.client.get("/docs")).text  # our own, not FastAPI's
    assert set(re.findall(r'(?:src|href)="(/?[^/"]+)/', page)) == {"/static"}
    assert b"http://" not in orjson.dumps((await still_site.client.get("/openapi.json")).json())
