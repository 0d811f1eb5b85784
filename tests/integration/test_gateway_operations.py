"""Dead letters, queues and health over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fairlead.app import service_admin
from fairlead.errors import Unavailable
from fairlead.gateway import models, models_admin, models_runtime
from fairlead.observe import status
from tests.integration.gateway_site import Site, client_of

MakeSite = Callable[..., Awaitable[Site]]


async def make_dead(site: Site, count: int, **fields: Any) -> list[str]:
    ids = [await site.submit(**{"feature_name": "broken", **fields}) for _ in range(count)]
    for job_id in ids:
        assert (await site.app.wait(job_id, 10)).status == "FAILED"
    return ids


async def dead_ids(site: Site, **params: Any) -> list[str]:
    response = await site.client.get("/admin/queue-dead", params=params)
    return [job["job_id"] for job in response.json()["data"]]


# ---------------------------------------------------------------- dead letters


async def test_dead_letters_show_every_attempt_and_come_in_pages(site: Site) -> None:
    ids = await make_dead(site, 3)
    await site.submit()
    first = models.JobPage.model_validate((await site.client.get("/admin/queue-dead?limit=2")).json())
    assert [job.job_id for job in first.data] == ids[:0:-1]
    assert first.data[0].attempts is not None
    assert first.data[0].attempts[0].error.code == "PERMANENT"
    assert "never work" in first.data[0].attempts[0].error.message
    assert await dead_ids(site, limit=2, cursor=first.next_cursor) == ids[:1]


async def test_a_purge_removes_what_it_names_and_a_dry_run_only_counts(site: Site) -> None:
    ids = await make_dead(site, 3)
    dry = await site.client.post("/admin/queue-dead/purge", json={"all": True, "dry_run": True})
    preview = models_admin.Purged.model_validate(dry.json())
    assert (preview.purged, preview.dry_run) == (3, True)
    assert [job.job_id for job in preview.sample or []] == ids[::-1]
    assert len(await dead_ids(site)) == 3
    named = await site.client.post("/admin/queue-dead/purge", json={"job_ids": ids[:1]})
    assert named.json() == {"purged": 1, "dry_run": False, "missing": []}
    none = await site.client.post("/admin/queue-dead/purge", json={"job_ids": []})
    assert none.json()["purged"] == 0
    other = await site.client.post("/admin/queue-dead/purge", json={"user_id": "bob"})
    assert other.json()["purged"] == 0
    rest = await site.client.post("/admin/queue-dead/purge", json={"all": True})
    assert rest.json()["purged"] == 2
    assert await site.job_ids() == []


@pytest.mark.parametrize("verb", ["requeue", "purge"])
async def test_ids_that_are_not_dead_letters_are_reported(site: Site, verb: str) -> None:
    (dead,) = await make_dead(site, 1)
    open_job, unknown = await site.submit(delay=3600), models.JOB_ID
    for dry_run in (True, False):
        body = {"job_ids": [open_job, dead, unknown, open_job], "dry_run": dry_run}
        answer = (await site.client.post(f"/admin/queue-dead/{verb}", json=body)).json()
        assert (answer[f"{verb}d"], answer["missing"]) == (1, [open_job, unknown])


async def test_a_requeue_runs_dead_letters_again(site: Site) -> None:
    ids = await make_dead(site, 2, feature_name="flaky")
    others = await make_dead(site, 1)
    site.gate.opened.set()
    dry = await site.client.post("/admin/queue-dead/requeue", json={"feature_name": "flaky", "dry_run": True})
    preview = models_admin.Requeued.model_validate(dry.json())
    assert (preview.requeued, preview.dry_run) == (2, True)
    assert [(job.job_id, job.service) for job in preview.sample or []] == [(job_id, "flaky") for job_id in ids[::-1]]
    response = await site.client.post("/admin/queue-dead/requeue", json={"feature_name": "flaky", "from_start": True})
    assert response.json() == {"requeued": 2, "dry_run": False}
    for job_id in ids:
        assert (await site.app.wait(job_id, 10)).status == "COMPLETED"
    assert await dead_ids(site) == others


# ---------------------------------------------------------------- queues


async def test_the_queue_status_shows_slots_waiting_and_who_holds_them(site: Site) -> None:
    running = await site.submit(feature_name="gated")
    await site.gate.entered.wait()
    await site.submit(feature_name="gated", priority="low")
    status = models_runtime.QueueStatus.model_validate((await site.client.get("/queue/status")).json())
    gated = next(service for service in status.services if service.service == "gated")
    assert (gated.limit, gated.in_use, gated.paused) == (1, 1, False)
    assert gated.waiting == {"retry": 0, "high": 0, "medium": 0, "low": 1}
    assert [slot.job_id for slot in gated.running] == [running]
    assert (status.jobs["RUNNING"], status.jobs["PENDING"]) == (1, 1)
    site.gate.opened.set()


async def test_the_runtime_stats_are_the_sizes_of_the_queues(site: Site) -> None:
    await make_dead(site, 1)
    await site.submit(delay=3600)
    stats = models_runtime.RuntimeStats.model_validate((await site.client.get("/admin/runtime/stats")).json())
    assert stats.queues.model_dump() == {"main": 0, "retry": 0, "dead": 1, "scheduled": 1, "running": 0}
    assert stats.slots["limit"] > 0
    assert stats.draining is False


# ---------------------------------------------------------------- health


async def test_a_running_app_is_alive_and_becomes_ready(site: Site) -> None:
    await site.app.wait(await site.submit(), 10)
    assert (await site.client.get("/livez")).json() == {"status": "ok"}
    response = await site.client.get("/readyz")
    assert response.status_code == 200, response.text
    assert models_runtime.Readiness.model_validate(response.json()).ready
    assert (await site.client.head("/readyz")).status_code == 200


async def test_a_process_without_a_dispatcher_is_ready_to_accept(still_site: Site) -> None:
    response = await still_site.client.get("/readyz")
    assert response.status_code == 200, response.text
    assert response.json()["checks"] == {"store": "ok", "dispatcher": "in another process"}


async def test_readiness_names_the_failing_component(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away() -> None:
        raise Unavailable("the disk is full")

    await site.app.wait(await site.submit(), 10)
    monkeypatch.setattr(site.app._runtime.store, "ping", away)
    response = await site.client.get("/readyz")
    assert (response.status_code, response.json()["code"]) == (503, "not_ready")
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["retry-after"] == "1"
    assert response.json()["checks"] == {"store": "the disk is full", "dispatcher": "ok", "worker": "ok"}
    assert "store: the disk is full" in response.json()["detail"]
    assert (await site.client.get("/livez")).status_code == 200


async def test_a_hanging_component_is_reported_in_time_and_checked_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    released = asyncio.Event()

    async def hang(*_: Any) -> None:
        asked.append("")
        await released.wait()

    await site.app.wait(await site.submit(), 10)
    assert site.app._runtime.node is not None
    (line,) = site.app._runtime.node.shards.values()
    for seconds in ("STORE_WITHIN", "DISPATCHER_WITHIN"):
        monkeypatch.setattr(status, seconds, 0.01)
    with monkeypatch.context() as frozen:
        frozen.setattr(site.app._runtime.store, "ping", hang)
        frozen.setattr(line.dispatcher, "states", hang)
        for _ in range(3):
            checks = (await site.client.get("/readyz")).json()["checks"]
            assert checks["store"] == checks["dispatcher"] == "does not answer within 0.01 s"
            assert checks["worker"] == "ok"
    assert len(asked) == 2, "a check that hangs is not repeated"
    released.set()


async def test_a_committed_change_does_not_wait_for_a_hanging_dispatcher(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.app.wait(await site.submit(), 10)
    applied, released = asyncio.Event(), asyncio.Event()

    async def hang(rules: Any) -> None:
        await released.wait()
        applied.set()

    monkeypatch.setattr(service_admin, "APPLIED_WITHIN", 0.01)
    monkeypatch.setattr(site.app._runtime.node, "apply", hang)
    assert (await site.client.post("/admin/services/echo/pause")).json()["paused"] is True
    assert (await site.client.put("/admin/services/echo/limit", json={"limit": 3})).json()["limit"] == 3
    released.set()
    await asyncio.wait_for(applied.wait(), 20)


async def test_a_closed_app_responds_with_503_and_retry_after(make_site: MakeSite) -> None:
    site = await make_site(running=False)
    await site.app.close()
    async with client_of(site.gateway) as client:
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/readyz")).json()["checks"]["store"] != "ok"
        body = {"user_id": "ada", "feature_name": "echo"}
        for response in (await client.post("/api/v1/jobs", json=body), await client.get("/api/v1/jobs")):
            assert (response.status_code, response.json()["code"]) == (503, "unavailable")
            assert response.json()["retryable"] is True
            assert response.headers["retry-after"] == "1"


async def test_a_full_disk_is_a_503_with_retry_after(still_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: object, **__: object) -> None:
        raise Unavailable("the disk is full", retry_after=2.3)

    monkeypatch.setattr(still_site.app.jobs, "accept", full)
    body = {"user_id": "ada", "feature_name": "echo"}
    for path, sent in (("/api/v1/jobs", body), ("/api/v1/jobs/bulk", {"jobs": [body]})):
        response = await still_site.client.post(path, json=sent)
        assert (response.status_code, response.json()["code"]) == (503, "unavailable")
        assert response.json()["detail"] == "the disk is full"
        assert response.headers["retry-after"] == "3"
