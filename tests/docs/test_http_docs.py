"""docs/http-api.md documents every route, error and field, and its JSON examples are valid."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from fastapi.routing import APIRoute
from starlette.routing import WebSocketRoute

import fairlead.errors
from fairlead.errors import FairleadError
from fairlead.gateway import models, problems
from fairlead.gateway.app import ROUTERS

TEXT = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text(encoding="utf-8")
ROUTES = sorted(
    (method, route.path_format)
    for router in ROUTERS
    for route in router.routes
    if isinstance(route, APIRoute) and route.include_in_schema
    for method in route.methods or ()
)


def errors_of(module: object) -> Iterator[type[FairleadError]]:
    for found in vars(module).values():
        if isinstance(found, type) and issubclass(found, FairleadError):
            yield found


CODES = sorted({error.code for module in (fairlead.errors, problems) for error in errors_of(module)})


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_is_documented(method: str, path: str) -> None:
    assert f"`{method} {path}" in TEXT


@pytest.mark.parametrize(
    "path", sorted(route.path for router in ROUTERS for route in router.routes if isinstance(route, WebSocketRoute))
)
def test_every_socket_is_documented_with_an_example_that_can_be_typed(path: str) -> None:
    assert f"`GET {path}" in TEXT
    typed = re.escape(path).replace(r"\{job_id\}", r"[0-9a-f-]{36}")
    assert re.search(rf"python -m websockets '?ws://127\.0\.0\.1:8000{typed}(?=['\s?])", TEXT)


@pytest.mark.parametrize("path", sorted({path for _, path in ROUTES}))
def test_every_route_has_an_example_that_can_be_typed(path: str) -> None:
    typed = re.escape(path).replace(r"\{job_id\}", r"[0-9a-f-]{36}")
    typed = re.sub(r"\\\{\w+\\\}", r"[^/\\s{}]+", typed)
    assert re.search(rf"curl [^`]*http://127\.0\.0\.1:8000{typed}(?=['\s?])", TEXT)


@pytest.mark.parametrize("code", CODES)
def test_every_error_code_is_documented(code: str) -> None:
    assert f"`{code}`" in TEXT


@pytest.mark.parametrize("code", sorted(problems.TITLES))
def test_every_code_that_can_be_an_answer_is_in_the_table_with_its_status(code: str) -> None:
    errors = [error for module in (fairlead.errors, problems) for error in errors_of(module)]
    [status] = {error.status for error in errors if error.code == code}
    assert f"| {status} | `{code}` |" in TEXT


@pytest.mark.parametrize("example", re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL))
def test_every_example_is_json(example: str) -> None:
    orjson.loads(example)


def test_the_table_of_fields_is_the_request_s() -> None:
    table = TEXT.partition("| Field | |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(models.SubmitRequest.model_fields)
