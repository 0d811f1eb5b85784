"""Batches of JSON Lines: the fields of the batch are in the query."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from httpx2 import AsyncClient, Response

from fairlead import Config, Fairlead, JobStatus
from fairlead.config import Settings
from fairlead.gateway.app import create_gateway
from tests.integration.gateway_site import client_of

BATCHES = "/api/v1/batches"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AsyncClient]:
    """A client of a gateway that accepts jobs for a service with regions, and has no worker."""
    regions = {name: {"url": "http://127.0.0.1:9/v1", "limit": 1} for name in ("us", "eu")}
    config = Config.model_validate({"services": {"spread": {"limit": 2, "regions": regions}}})
    app = Fairlead(Settings(config, f"sqlite:///{tmp_path / 'lines.db'}", None))
    async with app, client_of(create_gateway(app)) as client:
        yield client


async def shown(client: AsyncClient, receipt: Response) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The batch and its jobs, without the fields that always differ."""
    batch = (await client.get(receipt.headers["location"])).json()
    items = (await client.get(f"{receipt.headers['location']}/items")).json()["data"]
    jobs = [(await client.get(f"/api/v1/jobs/{item['job_id']}")).json() for item in items]
    own = ("batch_id", "job_id", "created_at", "scheduled_at")
    return _without(batch, own), [_without(job, own) for job in jobs]


def _without(fields: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


async def test_the_query_of_json_lines_has_the_same_fields_as_the_json_body(client: AsyncClient) -> None:
    about = {
        "user_id": "ada",
        "name": "n",
        "metadata": {"survey": 7},
        "feature_name": "spread",
        "priority": "low",
        "delay": 3600,
        "deadline": 7200,
        "cost": 2.5,
        "region": "eu",
        "allowed_regions": ["eu", "us"],
    }
    query = {**about, "metadata": orjson.dumps(about["metadata"]).decode(), "allowed_regions": "eu,us"}
    body = b"\xef\xbb\xbf" + b'{"custom_id": "a"}\n{"custom_id": "b", "region": "us", "allowed_regions": ["us"]}\n'
    items = [{"custom_id": "a"}, {"custom_id": "b", "region": "us", "allowed_regions": ["us"]}]
    lines = await client.post(BATCHES, params=query, content=body, headers={"Content-Type": "application/x-ndjson"})
    plain = await client.post(BATCHES, json={**about, "items": items})
    assert (lines.status_code, plain.status_code) == (202, 202), lines.text + plain.text
    assert await shown(client, lines) == await shown(client, plain)
    batch, jobs = await shown(client, lines)
    assert (batch["name"], batch["metadata"]) == ("n", {"survey": 7})
    assert [(job["priority"], job["status"]) for job in jobs] == [("low", "SCHEDULED")] * 2
    assert [(job["region"], job["allowed_regions"]) for job in jobs] == [("eu", ["eu", "us"]), ("us", ["us"])]


@pytest.mark.parametrize(
    ("name", "value"), [("metadata", "7"), ("metadata", "{"), ("delay", "nan"), ("region", "mars"), ("colour", "red")]
)
async def test_an_invalid_query_is_refused_with_its_pointer(client: AsyncClient, name: str, value: str) -> None:
    query = {"user_id": "ada", "feature_name": "spread", name: value}
    headers = {"Content-Type": "application/x-ndjson"}
    response = await client.post(BATCHES, params=query, content=b"{}", headers=headers)
    assert response.status_code == 422, response.text
    assert response.json()["pointer"].endswith(name)


async def test_another_content_type_is_refused_with_the_right_one(client: AsyncClient) -> None:
    response = await client.post(f"{BATCHES}?user_id=ada", content=b"{}\n", headers={"Content-Type": "text/plain"})
    assert response.status_code == 415
    assert "'application/x-ndjson'" in response.json()["detail"]


async def test_an_unknown_status_filter_is_refused_with_the_valid_ones(client: AsyncClient) -> None:
    items = {"user_id": "ada", "feature_name": "spread", "items": [{}, {}]}
    batch = (await client.post(BATCHES, json=items)).json()
    bad = (await client.get(batch["links"]["items_url"], params={"status": "DONE"})).json()
    assert (bad["status"], bad["pointer"], len(bad["errors"])) == (422, "/status", 1)
    assert all(f"'{name}'" in bad["detail"] for name in (*JobStatus, "REMOVED"))
    for status, count in (("PENDING", 2), ("FAILED", 0), ("REMOVED", 0)):
        page = (await client.get(batch["links"]["items_url"], params={"status": status})).json()
        assert len(page["data"]) == count
