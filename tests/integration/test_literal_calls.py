"""Calls as users of other queues write them, word for word."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from fairlead import AsyncClient, Call, Config, Fairlead, JobStatus, Permanent
from fairlead.errors import InvalidInput, Unavailable
from fairlead.gateway.app import create_gateway
from fairlead.store.group_commit import GroupCommit
from tests.integration.gateway_site import Site, client_of, served
from tests.integration.region_endpoints import Endpoints, open_endpoints

PATIENCE = 30.0
PURGE = "/admin/queue-dead/purge"
ADMIN = "fl_admin_0123456789abcdef0123456789abcdef"


async def dead_letter(site: Site) -> str:
    job_id = await site.submit(feature_name="broken")
    assert (await site.app.wait(job_id, PATIENCE)).status is JobStatus.FAILED
    return job_id


# ---------------------------------------------------------------- POST /admin/queue-dead/purge


@pytest.mark.parametrize("path", [PURGE, f"{PURGE}?all=true"])
async def test_a_purge_without_a_body_deletes_every_dead_letter_and_is_audited(site: Site, path: str) -> None:
    for _ in range(2):
        await dead_letter(site)
    response = await site.client.post(path)
    assert (response.status_code, response.json()["purged"]) == (200, 2)
    (row,) = (await site.app.audit(action="dead.purge")).data
    assert (row.who, row.details, row.outcome) == ("keyless", {"all": True}, {"status": "done", "purged": 2})


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        (f"{PURGE}?user_id=ada", {}),
        (f"{PURGE}?all=false", {}),
        (f"{PURGE}?all=yes", {}),
        (PURGE, {"json": {}}),
        (PURGE, {"headers": {"Content-Type": "application/json"}}),
        (f"{PURGE}?all=true", {"json": {"user_id": "bob"}}),
    ],
    ids=["filter in the query", "all=false", "all=yes", "{}", "typed but empty", "all and a filter"],
)
async def test_a_purge_that_may_mean_less_than_all_is_refused(site: Site, path: str, sent: dict[str, Any]) -> None:
    await dead_letter(site)
    assert (await site.client.post(path, **sent)).status_code == 422
    assert len((await site.app.dead()).data) == 1


async def test_a_purge_without_a_body_needs_an_admin_key(make_site: Callable[..., Awaitable[Site]]) -> None:
    site = await make_site(admin_key=ADMIN)
    service = await site.app.create_key("service")
    assert (await site.client.post(PURGE, headers={"Authorization": f"Bearer {service.text}"})).status_code == 403
    assert (await site.client.post(PURGE, headers={"Authorization": f"Bearer {ADMIN}"})).status_code == 200


# ---------------------------------------------------------------- POST /api/v1/executions/{id}/retry-question


async def test_retry_question_retries_a_failed_job_and_reruns_the_last_step_of_a_completed_one(
    engines: dict[str, str],
) -> None:
    app, calls, broken = Fairlead(Config(), **engines), list[str](), {"judge"}

    async def step(call: Call) -> int:
        calls.append(call.service)
        if call.service in broken:
            raise Permanent("broken")
        return len(calls)

    for name in ("ask", "judge"):
        app.service(name, limit=5)(step)
    app.pipeline("survey", ["ask", "judge"])
    async with app.running(), client_of(create_gateway(app)) as client:
        job = await app.submit("survey", user_id="ada")
        assert (await app.wait(job.id, PATIENCE)).status is JobStatus.FAILED
        broken.clear()
        retry = f"/api/v1/executions/{job.id}/retry-question"
        answer = await client.post(retry)
        assert answer.status_code == 200, answer.text
        assert "PERMANENT" in answer.json()["warning"]
        assert (await app.wait(job.id, PATIENCE)).status is JobStatus.COMPLETED
        assert calls == ["ask", "judge", "judge"]
        again = await client.post(retry)
        assert (again.status_code, again.json()["warning"]) == (200, None)
        assert (await app.wait(job.id, PATIENCE)).result == 4
        assert calls == ["ask", "judge", "judge", "judge"]
        assert [row.action for row in (await app.audit()).data] == ["job.retry_step", "job.retry"]
        waiting = await app.submit("survey", user_id="ada", delay=60)
        assert (await client.post(f"/api/v1/executions/{waiting.id}/retry-question")).status_code == 409


# ---------------------------------------------------------------- regions in any case


@pytest.fixture
async def endpoints() -> AsyncIterator[Endpoints]:
    async with open_endpoints("EU", "us") as opened:
        yield opened


async def test_a_region_is_found_in_any_case_and_keeps_its_spelling(
    endpoints: Endpoints, engines: dict[str, str]
) -> None:
    async with endpoints.app(engines).running() as app, client_of(create_gateway(app)) as client:
        body = {"user_id": "ada", "feature_name": "gpu", "region": "US", "allowed_regions": ["US", "us"]}
        answer = await client.post("/api/v1/jobs", json=body)
        assert answer.status_code == 202, answer.text
        job = await app.wait(answer.json()["job_id"], PATIENCE)
        assert (job.region, job.allowed_regions, job.result) == ("us", ("us",), {"region": "us"})
        status = await client.get("/queue/status/US")
        assert (status.status_code, status.json()["region"]) == (200, "us")
        lower = await app.submit("gpu", region="eu")
        assert await lower.result(PATIENCE) == {"region": "EU"}
        assert (await client.get("/queue/status/eu")).json()["region"] == "EU"
        assert (await client.get("/queue/status/ASIA")).status_code == 404


def test_two_regions_that_differ_in_case_only_are_refused() -> None:
    def service(region: str) -> dict[str, Any]:
        return {"limit": 1, "regions": {region: {"url": "http://127.0.0.1:9/", "limit": 1}}}

    Fairlead(Config.model_validate({"services": {"a": service("us"), "b": service("us")}}))
    problems = list(Config.model_validate({"services": {"a": service("us"), "b": service("US")}}).contradictions())
    assert [key for key, _ in problems] == ["services.b.regions.US"]


# ---------------------------------------------------------------- integers as user ids


async def test_an_integer_user_id_is_accepted_as_text_on_every_route(site: Site) -> None:
    client, job = site.client, {"feature_name": "echo", "user_id": 123456}
    lines = b"\n".join(json.dumps(job).encode() for _ in range(2))
    calls: list[tuple[str, dict[str, Any]]] = [
        ("/api/v1/jobs", {"json": job}),
        ("/api/v1/jobs/bulk", {"json": {"jobs": [job, job]}}),
        ("/api/v1/batches", {"json": {"user_id": 123456, "feature_name": "echo", "items": [{}, {"user_id": 123456}]}}),
        ("/api/v1/batches", {"json": {"user_id": "123456", "items": [job]}}),
        ("/api/v1/batches", {"content": lines, "headers": {"Content-Type": "application/jsonl"}}),
        ("/api/v1/turns", {"json": {"service": "slot", "user_id": 123456}}),
        ("/inference", {"json": {"model": "echo", "user_id": 123456}}),
        (PURGE, {"json": {"user_id": 123456}}),
        ("/admin/queue-dead/requeue", {"json": {"user_id": 123456}}),
    ]
    for path, sent in calls:
        answer = await client.post(path, **sent)
        assert answer.status_code in (200, 202), (path, answer.text)
    owners = {each["user_id"] for each in (await client.get("/api/v1/jobs", params={"limit": 100})).json()["data"]}
    assert owners == {"123456"}


async def test_a_user_s_key_may_name_its_user_by_an_integer(make_site: Callable[..., Awaitable[Site]]) -> None:
    site = await make_site(admin_key=ADMIN)
    as_admin = {"Authorization": f"Bearer {ADMIN}"}
    created = await site.client.post("/admin/keys", json={"role": "user", "user_id": 42}, headers=as_admin)
    assert (created.status_code, created.json()["user_id"]) == (201, "42")
    as_user = {"Authorization": f"Bearer {created.json()['key']}"}
    for user_id, status in ((42, 202), (43, 403), (True, 422)):
        body = {"feature_name": "echo", "user_id": user_id}
        assert (await site.client.post("/api/v1/jobs", json=body, headers=as_user)).status_code == status
        bulk = await site.client.post("/api/v1/jobs/bulk", json={"jobs": [body]}, headers=as_user)
        assert bulk.status_code == status
        batch = await site.client.post("/api/v1/batches", json={"user_id": user_id, "items": [body]}, headers=as_user)
        assert batch.status_code == status, batch.text


async def test_clients_may_pass_integers(site: Site) -> None:
    async with served(site.gateway) as port, AsyncClient(f"http://127.0.0.1:{port}") as client:
        job = await client.submit("echo", user_id=7)  # type: ignore[arg-type]
        assert (await client.get(job.id)).user_id == "7"


# ---------------------------------------------------------------- push_task


def app_with_default(engines: dict[str, str]) -> Fairlead:
    app = Fairlead(Config(), **engines)

    @app.service("default", limit=1)
    async def default(call: Call) -> None: ...

    return app


def test_push_task_works_without_an_event_loop_and_once_per_key(engines: dict[str, str]) -> None:
    push_task = app_with_default(engines).sync.push_task
    sync = push_task.__self__  # type: ignore[attr-defined]
    try:
        success = push_task("default", {"task_id": 7}, priority="high")
        assert success is True
        for _ in range(2):
            assert push_task("default", {"task_id": 8}, idempotency_key="task-8") is True
        assert [job.priority for job in sync.list_jobs().data] == ["low", "high"]
        with pytest.raises(InvalidInput):
            push_task("nowhere", {})
    finally:
        sync.close()


def test_push_task_is_false_while_the_database_cannot_be_opened(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("asyncpg")
    away = {"database_url": "postgresql://127.0.0.1:1/none?connect_timeout=1", "redis_url": "redis://127.0.0.1:1/0"}
    assert app_with_default(away).sync.push_task("default", {"task_id": 7}) is False
    assert "push_task to 'default'" in caplog.text


async def test_push_task_is_false_while_the_database_refuses_writes(
    embedded: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise Unavailable("the disk is full")

    app = app_with_default(embedded)
    with pytest.raises(Unavailable, match="not open"):
        await app.push_task("default", {"task_id": 7})
    async with app:
        monkeypatch.setattr(GroupCommit, "write", away)
        assert await app.push_task("default", {"task_id": 7}) is False


async def test_push_task_without_a_user_is_anonymous(embedded: dict[str, str]) -> None:
    app = app_with_default(embedded)
    async with app:
        assert await app.push_task("default", {"user_id": None})
        (job,) = (await app.list_jobs()).data
    assert job.user_id == "anonymous"


@pytest.mark.parametrize("user_id", [True, 7.0, {"id": 7}, [7], "", "ada\n"])
async def test_push_task_refuses_the_users_that_http_refuses(embedded: dict[str, str], user_id: object) -> None:
    app = app_with_default(embedded)
    async with app:
        with pytest.raises(InvalidInput) as refused:
            await app.push_task("default", {"user_id": user_id})
        assert refused.value.pointer == "/user_id"
        assert await app.push_task("default", {"user_id": 7})
        (job,) = (await app.list_jobs()).data
    assert job.user_id == "7"
