"""Texts that a database cannot store, in every text field of every route, on PostgreSQL: refused, never a 500."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from fairlead.app.fairlead import Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.domain.job import JobStatus
from fairlead.domain.pagination import write_cursor
from fairlead.errors import Permanent
from fairlead.executors.port import Call
from fairlead.gateway.app import create_gateway
from fairlead.store.port import JobFilter
from tests.integration.gateway_site import TURNS, Gate, client_of, declare_services

HOSTILE = {
    "NUL": "\0",
    "NUL within": "ada\0",
    "not a character": "\ufffe",
    "long": "x" * 100_000,
    "a large number": str(10**30),
    "a cursor": "OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTkuMDAwMDAwMDA",
}
WITHIN_URLS = {**{name: quote(text[:3000]) for name, text in HOSTILE.items()}, "half a pair": "%ED%A0%80"}
KEY = "an-admin-key-of-some-length-for-this-test"
JOB = "01938f1c-1a2b-7c3d-8e4f-0a1b2c3d4e5f"
PATHS = {"job_id": JOB, "batch_id": JOB, "turn_id": JOB, "index": "0", "service": "echo"}
LEFT_OUT = ("region", "allowed_regions", "scheduled_at", "deadline")
ACCEPTED = {"/api/v1/jobs", "/api/v1/jobs/bulk", "/api/v1/batches", "/api/v1/turns", "/admin/keys"}
NOT_ENDING = ("/events", "/stream")


@pytest.fixture
async def client(emptied_database: str, tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    config = Config.model_validate({"services": TURNS, "artifacts": {"url": str(tmp_path / "files")}})
    app = Fairlead(Settings(config, emptied_database, KEY))
    declare_services(app, Gate())
    async with app.running(), client_of(create_gateway(app)) as client:
        client.headers["Authorization"] = f"Bearer {KEY}"
        yield client


async def operations(client: httpx2.AsyncClient) -> list[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    document = (await client.get("/openapi.json")).json()
    return [
        (method.upper(), path, about, document)
        for path, methods in document["paths"].items()
        for method, about in methods.items()
        if not path.endswith(NOT_ENDING)
    ]


def filled(path: str, name: str = "", text: str = "") -> str:
    for each, value in PATHS.items():
        path = path.replace(f"{{{each}}}", text if each == name else value)
    return path.replace(f"{{{name}}}", text).replace("{", "").replace("}", "")


def resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def is_text(schema: dict[str, Any], document: dict[str, Any]) -> bool:
    schema = resolved(schema, document)
    return schema.get("type") == "string" or any(is_text(each, document) for each in schema.get("anyOf", ()))


def texts_in(value: Any, schema: dict[str, Any], document: dict[str, Any]) -> Iterator[list[str | int]]:
    """The paths of all texts in the schema, or in the example."""
    schema = resolved(schema, document)
    for each in schema.get("anyOf", ()):
        yield from texts_in(value, each, document)
    for name, about in schema.get("properties", {}).items():
        if is_text(about, document):
            yield [name]
        inner = value.get(name) if isinstance(value, dict) else None
        for path in texts_in(inner, about, document):
            yield [name, *path]
    if schema.get("type") == "array" and isinstance(value, list) and value:
        if is_text(schema["items"], document):
            yield [0]
        for path in texts_in(value[0], schema["items"], document):
            yield [0, *path]
    if schema.get("type") == "object" and "properties" not in schema:
        yield ["a"]


def example(schema: dict[str, Any], document: dict[str, Any]) -> Any:
    schema = resolved(schema, document)
    if "examples" in schema:
        return schema["examples"][0]
    if "anyOf" in schema:
        return example(schema["anyOf"][0], document)
    if schema.get("type") == "array":
        return [example(schema["items"], document)]
    return (
        {
            name: example(about, document)
            for name, about in schema.get("properties", {}).items()
            if name in schema.get("required", ())
        }
        if schema.get("type") == "object"
        else {"string": "echo", "integer": 1, "number": 1.0}.get(schema.get("type", ""))
    )


def known(body: Any) -> Any:
    """The example with existing features and services."""
    if isinstance(body, list):
        return [known(each) for each in body]
    if not isinstance(body, dict):
        return body
    names = {"feature_name": "echo", "service": "slot"}
    return {name: names.get(name, known(value)) for name, value in body.items() if name not in LEFT_OUT}


def put(value: Any, path: list[str | int], text: str) -> Any:
    value = copy.deepcopy(value)
    inner = value
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = text
    return value


async def test_no_text_in_a_path_or_a_query_is_an_internal_error(client: httpx2.AsyncClient) -> None:
    problems = []
    for method, path, about, _ in await operations(client):
        for parameter in about.get("parameters", ()):
            for kind, text in WITHIN_URLS.items():
                if parameter["in"] == "path":
                    url = filled(path, parameter["name"], text)
                elif parameter["in"] == "query":
                    url = f"{filled(path)}?{parameter['name']}={text}"
                else:
                    continue
                response = await client.request(method, url)
                if response.status_code >= 500:
                    problems.append((method, path, parameter["name"], kind, response.status_code))
    assert not problems, "\n".join(map(str, problems))


async def test_no_text_in_a_body_is_an_internal_error(client: httpx2.AsyncClient) -> None:
    problems = []
    accepted = set()
    for method, path, about, document in await operations(client):
        content = about.get("requestBody", {}).get("content", {}).get("application/json")
        if content is None:
            continue
        good = known(example(content["schema"], document))
        if (await client.request(method, filled(path), json=good)).is_success:
            accepted.add(path)
        for place in texts_in(good, content["schema"], document):
            for kind, text in HOSTILE.items():
                try:
                    body = put(good, place, text)
                except (KeyError, TypeError):
                    continue
                response = await client.request(method, filled(path), json=body)
                if response.status_code >= 500:
                    problems.append((method, path, place, kind, response.status_code))
    assert not problems, "\n".join(map(str, problems))
    assert accepted >= ACCEPTED, "requests refused for other reasons prove little"


async def forged(client: httpx2.AsyncClient, url: str, number: int, where: object) -> int:
    """A cursor with this number and a valid checksum."""
    return (await client.get(url, params={"cursor": write_cursor(number, where)})).status_code


@pytest.mark.parametrize("number", [-1, 2**63, 10**30])
async def test_a_forged_cursor_is_refused(client: httpx2.AsyncClient, number: int) -> None:
    assert await forged(client, "/api/v1/jobs", 1, JobFilter()) == 200
    assert await forged(client, "/api/v1/jobs", number, JobFilter()) == 422
    failed = JobFilter(statuses=(JobStatus.FAILED,))
    assert await forged(client, "/admin/queue-dead", 1, failed) == 200
    assert await forged(client, "/admin/queue-dead", number, failed) == 422


@pytest.mark.parametrize("number", [-1, 2**31 - 1, 2**31, 2**63, 10**30])
async def test_a_forged_cursor_of_items_is_refused(client: httpx2.AsyncClient, number: int) -> None:
    body = {"user_id": "ada", "feature_name": "echo", "items": [{}]}
    batch_id = (await client.post("/api/v1/batches", json=body)).json()["batch_id"]
    assert await forged(client, f"/api/v1/batches/{batch_id}/items", 0, ("items", batch_id, None)) == 200
    assert await forged(client, f"/api/v1/batches/{batch_id}/items", number, ("items", batch_id, None)) == 422


@pytest.mark.parametrize("cursor", [f"{{{JOB}}}", f"urn:uuid:{JOB}", JOB.upper()])
async def test_a_cursor_of_the_audit_must_be_an_id(client: httpx2.AsyncClient, cursor: str) -> None:
    assert (await client.get("/admin/audit", params={"cursor": JOB})).status_code == 200
    assert (await client.get("/admin/audit", params={"cursor": cursor})).status_code == 422


async def test_a_handler_can_fail_with_any_text(emptied_database: str) -> None:
    """PostgreSQL cannot query JSON that contains a NUL: no dead letter could be listed by its code."""
    app = Fairlead(Settings(Config(), emptied_database))

    @app.service("gpu", limit=1)
    async def fail(call: Call) -> None:
        call.progress(0.5, "ada\0bob\ud800", note="\0")
        raise Permanent("ada\0bob\ud800")

    async with app.running():
        job = await app.submit("gpu", {"text": "\0"}, metadata={"\0": "\0"})
        await app.wait(job.id, 30)
        (dead,) = (await app.dead(error_code="PERMANENT")).data
        assert dead.error is not None
        assert dead.error["message"] == "ada\ufffdbob?"
        found = await app.get(job.id)
        assert (found.input_data, found.metadata) == ({"text": "\0"}, {"\0": "\0"})
