"""The rate limit covers every route that creates work; wrong keys and tickets are limited too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from fairlead.app.fairlead import Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.domain.submission import Submission
from fairlead.gateway import app as gateway_app
from fairlead.gateway import auth
from fairlead.gateway.app import create_gateway
from fairlead.gateway.permissions import all_routes
from fairlead.gateway.rate_limit import Attempts, SubmitRate
from tests.integration.gateway_site import Site
from tests.integration.http_client import Exchange, ask
from tests.integration.test_gateway_access import AccessSite

MakeSite = Callable[..., Awaitable[Site]]
Route = tuple[str, str]
ADA = {"user_id": "ada"}
PATIENCE_S = 20.0

# The request of each route.
MAKES_WORK: dict[Route, Any] = {
    ("POST", "/api/v1/jobs"): {**ADA, "feature_name": "echo"},
    ("POST", "/api/v1/jobs/bulk"): {"jobs": [{**ADA, "feature_name": "echo"}]},
    ("POST", "/api/v1/batches"): {**ADA, "items": [{"feature_name": "echo"}]},
    ("POST", "/api/v1/turns"): {**ADA, "service": "slot"},
    ("POST", "/inference"): {**ADA, "model": "echo"},
    **{
        ("POST", f"/v1/{path}"): {"model": "echo", "user": "ada"}
        for path in (
            "chat/completions",
            "completions",
            "embeddings",
            "images/generations",
            "responses",
            "{path:path}",
        )
    },
    ("POST", "/api/v1/jobs/{job_id}/resume"): {},
    ("POST", "/api/v1/jobs/{job_id}/retry"): {},
    ("POST", "/api/v1/executions/{job_id}/retry-question"): {},
    ("POST", "/api/v1/jobs/{job_id}/steps/{index}/retry"): {},
    ("POST", "/api/v1/batches/{batch_id}/resume"): {},
    ("POST", "/api/v1/batches/{batch_id}/retry"): {},
    ("POST", "/api/v1/batches/{batch_id}/items/{item}/retry"): {},
    ("POST", "/api/v1/schedules/{schedule_id}/run"): {},
}
OF_FRONTS: dict[Route, tuple[str, Any]] = {
    ("POST", "/fal/{app:path}"): ("/fal/echo", {}),
    ("POST", "/fal/run/{app:path}"): ("/fal/run/echo", {}),
    ("POST", "/replicate/v1/predictions"): ("/replicate/v1/predictions", {"version": "acme/echo", "input": {}}),
    **{
        ("POST", f"/replicate/v1/{kind}/{{owner}}/{{name}}/predictions"): (
            f"/replicate/v1/{kind}/acme/echo/predictions",
            {"input": {}},
        )
        for kind in ("models", "deployments")
    },
}
"""The routes of fronts that submit a job at once, each with a path and a body. Their errors have other shapes."""
LATER: set[Route] = {("POST", "/fal/proxy"), ("PUT", "/fal/proxy"), ("POST", "/v1/batches")}
"""Routes that lead to one of the others, and those whose jobs are submitted in the background."""
FREE_FOR_ADMINS: set[Route] = {
    ("POST", "/api/v1/jobs/{job_id}/retry"),
    ("POST", "/api/v1/executions/{job_id}/retry-question"),
    ("POST", "/api/v1/batches/{batch_id}/retry"),
}
"""An admin who retries a job does what a requeue does, which does not count against its user."""
MAKES_NONE: set[Route] = {
    ("POST", "/session"),
    ("DELETE", "/session"),
    ("POST", "/api/v1/tickets"),
    ("DELETE", "/api/v1/jobs/{job_id}"),
    ("POST", "/api/v1/jobs/{job_id}/cancel"),
    ("POST", "/api/v1/batches/{batch_id}/cancel"),
    ("POST", "/api/v1/turns/{turn_id}/renew"),
    ("POST", "/api/v1/turns/{turn_id}/finish"),
    ("POST", "/api/v1/turns/{turn_id}/cancel"),
    ("POST", "/api/v1/files"),
    ("DELETE", "/api/v1/files/{file_id}"),
    ("POST", "/api/v1/uploads"),
    ("PATCH", "/api/v1/uploads/{file_id}"),
    ("POST", "/api/v1/uploads/{file_id}/complete"),
    ("POST", "/api/v1/webhooks/endpoints"),
    ("PUT", "/api/v1/webhooks/endpoints/{endpoint_id}"),
    ("DELETE", "/api/v1/webhooks/endpoints/{endpoint_id}"),
    ("POST", "/api/v1/webhooks/endpoints/{endpoint_id}/rotate"),
    ("POST", "/api/v1/webhooks/deliveries/replay"),
    ("POST", "/api/v1/webhooks/secret"),
    ("POST", "/api/v1/schedules"),
    ("PUT", "/api/v1/schedules/{schedule_id}"),
    ("DELETE", "/api/v1/schedules/{schedule_id}"),
    ("POST", "/api/v1/schedules/{schedule_id}/pause"),
    ("POST", "/api/v1/schedules/{schedule_id}/resume"),
    ("POST", "/v1/files"),
    ("DELETE", "/v1/files/{file_id}"),
    ("POST", "/v1/batches/{id}/cancel"),
    ("DELETE", "/v1/responses/{response_id}"),
    ("POST", "/v1/responses/{response_id}/cancel"),
    ("POST", "/replicate/v1/files"),
    ("DELETE", "/replicate/v1/files/{file_id}"),
    ("POST", "/replicate/v1/predictions/{job_id}/cancel"),
    ("POST", "/fal/storage/upload/initiate"),
    ("POST", "/fal/storage/upload/initiate-multipart"),
    ("PUT", "/fal/storage/files/{file_id}"),
    ("PUT", "/fal/storage/files/{file_id}/{part}"),
    ("POST", "/fal/storage/files/{file_id}/complete"),
    ("PUT", "/fal/{app:path}/requests/{job_id}/cancel"),
}
"""Routes that do not count. Actions of operators under /admin do not count either."""


def test_every_writing_route_is_classified() -> None:
    routes = all_routes(create_gateway(Fairlead(Settings(Config()))).routes)
    writes = {(method, path) for methods, path, _ in routes for method in methods - {"GET", "HEAD", "WS"}}
    work = MAKES_WORK.keys() | OF_FRONTS.keys() | LATER
    assert {route for route in writes if not route[1].startswith("/admin")} == work | MAKES_NONE


@pytest.fixture(autouse=True)
def _no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock, so that the limit does not recover during a test."""
    monkeypatch.setattr(gateway_app, "SubmitRate", partial(SubmitRate, clock=lambda: 0.0))
    monkeypatch.setattr(auth, "Attempts", partial(Attempts, clock=lambda: 0.0))


def use_up(site: Site, number: int = 100) -> None:
    rate = site.gateway.state.submit_rate
    assert rate is not None
    rate.take([Submission("echo", None, "ada")] * number)


@pytest.mark.parametrize("caller", ["ada", "service", "admin"])
async def test_a_used_up_rate_limit_refuses_work_on_every_route(make_site: MakeSite, caller: str) -> None:
    site = await make_site(submits_per_minute=100)
    await site.app.pause("echo")
    keys = {
        "admin": (await site.app.create_key("admin")).text,
        "service": (await site.app.create_key("service")).text,
        "ada": (await site.app.create_key("user", user_id="ada")).text,
    }
    access = AccessSite(site, keys)
    use_up(site)
    before = len(await jobs_of(site))
    for (method, path), body in MAKES_WORK.items():
        if caller == "admin" and (method, path) in FREE_FOR_ADMINS:
            continue
        filled = await access.filled(path)
        before += "_id}" in path and "schedule_id" not in path  # a job to read
        refused = await ask(site.gateway, method, filled, keys[caller], json=body)
        assert (refused.status, refused.code) == (429, "rate_limited"), path
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["ratelimit-policy"] == '"user";q=100;w=60'
    assert len(await jobs_of(site)) == before


async def test_a_used_up_rate_limit_refuses_the_work_of_fronts(make_site: MakeSite) -> None:
    site = await make_site(submits_per_minute=100)
    await site.app.pause("echo")
    await site.app.create_key("admin")
    key = (await site.app.create_key("user", user_id="ada")).text
    use_up(site)
    for path, body in OF_FRONTS.values():
        refused = await ask(site.gateway, "POST", path, key, json=body)
        assert refused.status == 429, path
    assert await jobs_of(site) == []


async def jobs_of(site: Site) -> list[Any]:
    return (await site.app.list_jobs(limit=500)).data


def left(answer: Exchange) -> int:
    return int(answer.headers["ratelimit"].partition("r=")[2].partition(";")[0])


async def test_requeued_jobs_count_one_by_one(make_site: MakeSite) -> None:
    site = await make_site(submits_per_minute=20)
    items = [{"feature_name": "flaky"}] * 3
    made = await ask(site.gateway, "POST", "/api/v1/batches", json={**ADA, "items": items})
    assert left(made) == 17
    batch = f"/api/v1/batches/{made.json['batch_id']}"
    await until_failed(site, batch, 3)
    job_id = (await ask(site.gateway, "GET", f"{batch}/items")).json["data"][0]["job_id"]
    resumed = await ask(site.gateway, "POST", f"/api/v1/jobs/{job_id}/resume")
    assert (resumed.status, left(resumed)) == (200, 16)
    await until_failed(site, batch, 3)
    retried = await ask(site.gateway, "POST", f"/api/v1/jobs/{job_id}/steps/0/retry")
    assert (retried.status, left(retried)) == (200, 15)
    await until_failed(site, batch, 3)
    retried = await ask(site.gateway, "POST", f"{batch}/items/1/retry")
    assert (retried.status, left(retried)) == (200, 14)
    await until_failed(site, batch, 3)
    site.gate.opened.set()
    resumed = await ask(site.gateway, "POST", f"{batch}/resume")
    assert (resumed.status, resumed.json["resumed"], left(resumed)) == (200, 3, 11)
    async with asyncio.timeout(PATIENCE_S):
        await site.app.wait_batch(made.json["batch_id"])
    refused = await ask(site.gateway, "POST", f"{batch}/resume")
    assert (refused.status, refused.code, left(refused)) == (409, "wrong_state", 10)


async def until_failed(site: Site, batch: str, number: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await ask(site.gateway, "GET", batch)).json["counts"].get("FAILED") != number:
            await asyncio.sleep(0.02)


async def test_a_repeated_batch_does_not_count(make_site: MakeSite) -> None:
    site = await make_site(running=False, submits_per_minute=10)
    body = {**ADA, "items": [{"feature_name": "echo"}] * 4}
    first, again = [
        await ask(site.gateway, "POST", "/api/v1/batches", json=body, **{"idempotency-key": "once"}) for _ in range(2)
    ]
    assert (left(first), left(again), again.headers["idempotent-replayed"]) == (6, 6, "true")


# ---------------------------------------------------------------- signing in


async def test_too_many_wrong_keys_block_the_right_one_too(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "WRONG_KEYS_PER_MINUTE", 5)
    site = await make_site(running=False, admin_key="right")
    guesses = [ask(site.gateway, "POST", "/session", json={"key": f"wrong-{number}"}) for number in range(50)]
    answers = [(answer.status, answer.code) for answer in await asyncio.gather(*guesses)]
    assert answers.count((401, "unauthorized")) == 5
    assert answers.count((429, "rate_limited")) == 45
    refused = await ask(site.gateway, "POST", "/session", json={"key": "right"})
    assert refused.status == 429, "otherwise the limit would reveal which guess is right"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    elsewhere = await ask(site.gateway, "POST", "/session", json={"key": "right"}, client="192.0.2.9")
    assert elsewhere.status == 200
    assert (await ask(site.gateway, "GET", "/session", "right")).status == 200, "a key in a header is not limited"


async def test_signing_in_with_a_valid_key_does_not_count_as_guessing(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "WRONG_KEYS_PER_MINUTE", 2)
    monkeypatch.setattr(auth, "SIGN_INS_PER_MINUTE", 10)
    site = await make_site(running=False, admin_key="right")
    statuses = [(await ask(site.gateway, "POST", "/session", json={"key": "right"})).status for _ in range(12)]
    assert statuses == [200] * 10 + [429] * 2, "but the number of sign-ins per key is limited"


async def test_tickets_per_key_are_limited(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "TICKETS_PER_MINUTE", 3)
    site = await make_site(running=False)
    admin, other = [(await site.app.create_key("admin")).text for _ in range(2)]
    statuses = [(await ask(site.gateway, "POST", "/api/v1/tickets", admin)).status for _ in range(4)]
    assert statuses == [201, 201, 201, 429]
    assert (await ask(site.gateway, "POST", "/api/v1/tickets", other)).status == 201
