"""Responses stay short, however many errors a request has."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from fairlead.gateway.problems import MAX_ERRORS
from tests.integration.gateway_site import Site

JSON = {"Content-Type": "application/json"}
MANY = {f"field {n} {'x' * 200}": "secret" for n in range(3000)}
JOB: dict[str, Any] = {"user_id": "ada", "feature_name": "echo"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/jobs", {**JOB, **MANY}),
        ("/api/v1/jobs/bulk", {"jobs": [JOB], **MANY}),
        ("/api/v1/jobs/bulk", {"jobs": [{**JOB, "priority": "x" * 100}] * 5000}),
        ("/api/v1/jobs/bulk", {"jobs": [{**JOB, **MANY}]}),
        ("/api/v1/jobs/bulk", {"jobs": ["secret"] * 5000}),
        ("/api/v1/batches", {**JOB, "items": [{}], **MANY}),
        ("/api/v1/batches", {**JOB, "items": [MANY, MANY, MANY]}),
        ("/api/v1/batches", {**JOB, "items": [{"priority": "x" * 100}] * 5000}),
        ("/api/v1/turns", {"service": "slot", **MANY}),
        ("/inference", {"model": "echo", **MANY}),
        ("/session", {"key": "secret", **dict(list(MANY.items())[:60])}),
        ("/api/v1/tickets", MANY),
        ("/admin/keys", MANY),
        ("/admin/keys", dict(list(MANY.items())[:500])),
        ("/admin/queue-dead/requeue", {"job_ids": ["secret"] * 500}),
        ("/admin/queue-dead/requeue", {"job_ids": [{"secret": 1}] * 500}),
    ],
)
async def test_a_request_with_thousands_of_errors_gets_a_short_response(still_site: Site, path: str, body: Any) -> None:
    refused = await still_site.client.post(path, content=orjson.dumps(body), headers=JSON)
    assert refused.status_code in (413, 422), refused.text[:500]
    assert len(refused.content) < 30_000
    assert len(refused.json().get("errors", [])) <= MAX_ERRORS
    assert "secret" not in refused.text
    assert await still_site.job_ids() == []


async def test_the_list_of_integers_beyond_64_bits_is_short(still_site: Site) -> None:
    body = b'{"jobs": [' + b",".join([b'{"user_id": 123456789012345678901234567890}'] * 5000) + b"]}"
    refused = await still_site.client.post("/api/v1/jobs/bulk", content=body, headers=JSON)
    assert (refused.status_code, len(refused.json()["errors"])) == (422, MAX_ERRORS)
    assert refused.json()["detail"].startswith("more than 20 errors")


async def test_the_body_of_a_sign_in_is_limited(still_site: Site) -> None:
    refused = await still_site.client.post("/session", content=b'{"key": "' + b"x" * 20_000 + b'"}', headers=JSON)
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")


async def test_a_query_with_thousands_of_errors_gets_a_short_response(still_site: Site) -> None:
    query = "&".join(f"field{n}=secret" for n in range(1000))
    refused = await still_site.client.get(f"/api/v1/jobs?{query}")
    assert refused.status_code == 422
    assert len(refused.json()["errors"]) <= MAX_ERRORS
    assert "secret" not in refused.text
