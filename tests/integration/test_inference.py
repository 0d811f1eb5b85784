"""`POST /inference`: the result of a model in the response, or a link to the job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead import AsyncClient, Client, JobCancelled, JobFailed, JobStatus, ResultTimeout
from fairlead.client import Inference
from fairlead.gateway import models
from fairlead.gateway.app import create_gateway
from fairlead.gateway.inference import MAX_TIMEOUT
from tests.integration.gateway_site import Site, client_of, served
from tests.integration.region_endpoints import open_endpoints

ADMIN = "fl_admin_0123456789abcdef0123456789abcdef"


async def infer(site: Site, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    return await site.client.post("/inference", json={"model": "echo", **fields}, headers=headers or {})


# ---------------------------------------------------------------- responses


async def test_the_response_is_the_result(site: Site) -> None:
    response = await infer(site, input_data={"n": 7}, user_id="ada", priority="high")
    assert response.status_code == 200
    body = response.json()
    models.Inference.model_validate(body)
    assert (body["status"], body["model"], body["result"]) == ("COMPLETED", "echo", {"echo": {"n": 7}})
    assert body["region"] is None
    assert body["latency_ms"] >= body["metrics"]["execution_time_ms"] > 0
    job = await site.app.get(body["job_id"])
    assert (job.user_id, job.priority, job.feature_name) == ("ada", "high", "echo")
    assert response.headers["location"] == f"/api/v1/jobs/{body['job_id']}"


async def test_a_pipeline_is_a_model_too(site: Site) -> None:
    body = (await infer(site, model="echo_then_shout", input_data={"n": 1})).json()
    assert body["result"] == {"shout": {"n": 1}}
    assert (await site.app.get(body["job_id"])).user_id == "anonymous"
    nulls = dict.fromkeys(("user_id", "priority", "region", "allowed_regions", "timeout", "input_data"))
    body = (await infer(site, **nulls)).json()
    assert (await site.app.get(body["job_id"])).user_id == "anonymous"


async def test_a_failure_is_a_problem_that_names_the_job_and_its_error(site: Site) -> None:
    response = await infer(site, model="broken")
    assert (response.status_code, response.headers["content-type"]) == (502, "application/problem+json")
    problem = response.json()
    assert (problem["code"], problem["retryable"]) == ("inference_failed", False)
    details = problem["details"]
    job = await site.app.get(details["job_id"])
    assert (job.status, job.error) == (JobStatus.FAILED, details["error"])
    assert "this input will never work" in problem["detail"]
    assert details["status_url"] == f"/api/v1/jobs/{job.job_id}"


async def test_after_the_timeout_it_is_202_and_the_job_continues(site: Site) -> None:
    response = await infer(site, model="gated", timeout=0.05)
    assert response.status_code == 202
    models.Receipt.model_validate(response.json())
    job_id = response.json()["job_id"]
    assert response.headers["location"] == response.json()["links"]["status_url"] == f"/api/v1/jobs/{job_id}"
    site.gate.opened.set()
    assert (await site.app.wait(job_id, 30)).result == {"through": True}


async def test_a_disconnect_does_not_cancel_the_job(site: Site) -> None:
    async with served(site.gateway) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        body = b'{"model": "gated"}'
        head = f"POST /inference HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Type: application/json\r\n"
        writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        async with asyncio.timeout(30):
            await site.gate.entered.wait()
        writer.transport.abort()
        (job_id,) = await site.job_ids()
        site.gate.opened.set()
        assert (await site.app.wait(job_id, 30)).status is JobStatus.COMPLETED


async def test_a_cancelled_job_is_409(site: Site) -> None:
    asked = asyncio.create_task(infer(site, model="gated"))
    async with asyncio.timeout(30):
        await site.gate.entered.wait()
    (job_id,) = await site.job_ids()
    await site.app.cancel(job_id)
    response = await asked
    assert (response.status_code, response.json()["code"]) == (409, "inference_cancelled")
    assert response.json()["details"]["job_id"] == job_id


async def test_the_same_key_waits_for_the_same_job(site: Site) -> None:
    headers = {"Idempotency-Key": "once"}
    first = await infer(site, headers, model="gated", timeout=0)
    site.gate.opened.set()
    again = await infer(site, headers, model="gated", timeout=20)
    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json()["job_id"] == first.json()["job_id"]
    assert again.headers["idempotent-replayed"] == "true"
    other = await infer(site, headers, model="gated", input_data={"n": 2})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")


async def test_the_response_has_the_region_of_the_model(tmp_path: Path) -> None:
    async with open_endpoints("eu", "us") as world:
        world.switch("us", "fails")
        app = world.app({"database_url": f"sqlite:///{tmp_path}/fairlead.db"})
        async with app.running(), client_of(create_gateway(app)) as client:
            wanted = {"model": "gpu", "input_data": {"name": "x"}}
            body = (await client.post("/inference", json={**wanted, "region": "eu"})).json()
            assert (body["region"], body["result"]) == ("eu", {"region": "eu"})
            moved = (await client.post("/inference", json={**wanted, "region": "us"})).json()
            assert moved["region"] == "eu"
            nowhere = await client.post("/inference", json={**wanted, "region": "mars"})
            assert (nowhere.status_code, nowhere.json()["pointer"]) == (422, "/region")
            bound = await client.post("/inference", json={**wanted, "allowed_regions": ["us"]})
            assert (bound.status_code, bound.json()["details"]["error"]["code"]) == (502, "HTTP_503")


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({}, "/model"),
        ({"model": "unknown"}, "/model"),
        ({"model": 7}, "/model"),
        ({"model": "echo", "timeout": -1}, "/timeout"),
        ({"model": "echo", "timeout": MAX_TIMEOUT + 1}, "/timeout"),
        ({"model": "echo", "timeout": True}, "/timeout"),
        ({"model": "echo", "timeout": "30"}, "/timeout"),
        ({"model": "echo", "input_data": [1]}, "/input_data"),
        ({"model": "echo", "priority": "urgent"}, "/priority"),
        ({"model": "echo", "user_id": ""}, "/user_id"),
        ({"model": "echo", "delay": 60}, "/delay"),
        ({"model": "echo", "region": 7}, "/region"),
        ({"model": "echo", "feature_name": "echo"}, "/feature_name"),
        ([], ""),
    ],
)
async def test_invalid_input_is_named_and_nothing_is_stored(site: Site, body: Any, where: str) -> None:
    response = await site.client.post("/inference", json=body)
    assert response.status_code == 422
    assert response.json()["pointer"] == where
    assert "feature_name" not in response.json()["detail"] or where == "/feature_name"
    assert await site.job_ids() == []


async def test_a_user_s_key_calls_as_that_user(make_site: Callable[..., Awaitable[Site]]) -> None:
    site = await make_site(admin_key=ADMIN)
    key = (await site.app.create_key("user", user_id="ada")).text
    mine = {"Authorization": f"Bearer {key}"}
    body = (await infer(site, mine)).json()
    assert (await site.app.get(body["job_id"])).user_id == "ada"
    body = (await infer(site, mine, user_id=None)).json()
    assert (await site.app.get(body["job_id"])).user_id == "ada"
    other = await infer(site, mine, user_id="bob")
    assert (other.status_code, other.json()["pointer"]) == (403, "/user_id")
    assert (await infer(site)).status_code == 401


async def test_calls_count_as_submits(make_site: Callable[..., Awaitable[Site]]) -> None:
    site = await make_site(submits_per_minute=1)
    assert "ratelimit" in (await infer(site, user_id="ada")).headers
    refused = await infer(site, user_id="ada")
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    assert (await infer(site, user_id="bob")).status_code == 200


# ---------------------------------------------------------------- from Python


@pytest.fixture
async def url(site: Site) -> AsyncIterator[str]:
    async with served(site.gateway) as port:
        yield f"http://127.0.0.1:{port}"


async def test_the_client_infers(url: str, site: Site) -> None:
    async with AsyncClient(url) as client:
        found = await client.infer("echo", {"n": 1}, user_id="ada")
        assert isinstance(found, Inference)
        assert (found.result, found.region, found.model) == ({"echo": {"n": 1}}, None, "echo")
        with pytest.raises(JobFailed) as failed:
            await client.infer("broken")
        assert failed.value.error["message"] == "this input will never work"
        assert (await client.get(failed.value.job_id)).status is JobStatus.FAILED
        with pytest.raises(ResultTimeout) as late:
            await client.infer("gated", timeout=0.05)
        asked = asyncio.create_task(client.infer("gated", user_id="bob"))
        await client.cancel(late.value.job_id)
        async with asyncio.timeout(30):
            while len(await site.job_ids()) < 4:
                await asyncio.sleep(0.01)
        await client.cancel((await site.job_ids())[0])
        with pytest.raises(JobCancelled):
            await asked


async def test_the_client_waits_longer_than_one_request_may(
    url: str, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.client.calls.LONGEST_WAIT", 0.05)
    async with AsyncClient(url) as client:
        asked = asyncio.create_task(client.infer("gated", timeout=30))
        async with asyncio.timeout(30):
            await site.gate.entered.wait()
        await asyncio.sleep(0.1)  # longer than one request waits
        site.gate.opened.set()
        found = await asked
        assert (found.result, found.model) == ({"through": True}, "gated")
        assert found.latency_ms > 0


async def test_without_an_event_loop(url: str) -> None:
    def call() -> Inference:
        with Client(url) as client:
            return client.infer("echo", {"n": 3}, timeout=20)

    assert (await asyncio.to_thread(call)).result == {"echo": {"n": 3}}
