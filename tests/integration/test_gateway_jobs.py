"""Jobs over HTTP, from submit to delete."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fairlead.engine.outbox_relay import OutboxRelay
from fairlead.engine.positions import PositionBatcher
from fairlead.gateway import models
from tests.integration.gateway_site import Site

MakeSite = Callable[..., Awaitable[Site]]

SOMEBODY = {"user_id": "ada", "feature_name": "echo", "input_data": {"n": 1}}


async def finished(site: Site, job_id: str) -> dict[str, Any]:
    job = await site.app.wait(job_id, 10)
    assert job.status.finished, job
    response = await site.client.get(f"/api/v1/jobs/{job_id}")
    return dict(response.json())


# ---------------------------------------------------------------- submit


async def test_a_submit_returns_202_with_links(site: Site) -> None:
    response = await site.client.post("/api/v1/jobs", json={**SOMEBODY, "priority": "high"})
    assert response.status_code == 202
    receipt = models.Receipt.model_validate(response.json())
    assert receipt.priority == "high"
    assert receipt.status == "PENDING"
    assert response.headers["location"] == f"/api/v1/jobs/{receipt.job_id}" == receipt.links.status_url
    assert (await site.client.get(receipt.links.status_url)).status_code == 200


async def test_a_finished_job_has_its_result_and_the_documented_fields(site: Site) -> None:
    job_id = await site.submit(feature_name="echo_then_shout", metadata={"tag": "x"})
    job = await finished(site, job_id)
    models.Job.model_validate(job)
    assert job["status"] == "COMPLETED"
    assert job["result"] == {"shout": {"n": 1}}
    assert job["current_step_index"] == job["total_steps"] == 2
    assert job["context"]["step_0_echo"]["status"] == "SUCCESS"
    assert "execution_time_ms" in job["context"]["step_0_echo"]["metrics"]
    assert job["metadata"] == {"tag": "x"}
    assert job["created_at"].endswith("Z")


async def test_a_waiting_job_has_a_position_and_an_estimated_wait(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PositionBatcher, "expensive", False)  # whatever else this machine is doing
    await site.submit(feature_name="gated")
    await site.gate.entered.wait()
    first = (await site.client.post("/api/v1/jobs", json={**SOMEBODY, "feature_name": "gated"})).json()
    second = (await site.client.post("/api/v1/jobs", json={**SOMEBODY, "feature_name": "gated"})).json()
    assert (first["position"], second["position"]) == (1, 2)
    assert second["estimated_wait"]["high"] >= second["estimated_wait"]["low"] >= 0
    job = (await site.client.get(second["links"]["status_url"])).json()
    assert job["position"] == 2
    assert job["estimated_wait"]["high"] > 0
    site.gate.opened.set()


async def test_a_receipt_does_not_wait_for_a_slow_dispatcher(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow_positions(self: OutboxRelay) -> None:
        raise AssertionError("a submit waits for the dispatcher")

    monkeypatch.setattr(OutboxRelay, "settled", slow_positions)
    monkeypatch.setattr(PositionBatcher, "expensive", True)
    response = await site.client.post("/api/v1/jobs", json=SOMEBODY)
    assert (response.status_code, response.json()["position"]) == (202, None)


async def test_a_delayed_job_is_scheduled_and_has_no_position(still_site: Site) -> None:
    response = await still_site.client.post("/api/v1/jobs", json={**SOMEBODY, "delay": 3600})
    receipt = response.json()
    assert receipt["status"] == "SCHEDULED"
    assert receipt["position"] is None
    assert receipt["scheduled_at"].endswith("Z")


async def test_input_data_is_optional(site: Site) -> None:
    response = await site.client.post("/api/v1/jobs", json={"user_id": "ada", "feature_name": "echo"})
    job = await finished(site, response.json()["job_id"])
    assert job["result"] == {"echo": {}}


# ---------------------------------------------------------------- Idempotency-Key


async def test_the_same_key_and_body_return_the_same_job(site: Site) -> None:
    key = {"Idempotency-Key": "order-17"}
    first = await site.client.post("/api/v1/jobs", json=SOMEBODY, headers=key)
    await finished(site, first.json()["job_id"])
    again = await site.client.post("/api/v1/jobs", json=SOMEBODY, headers=key)
    assert again.status_code == 202
    assert again.json()["job_id"] == first.json()["job_id"]
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json()["status"] == "COMPLETED", "a replay returns the current state of the job"
    assert len(await site.job_ids()) == 1


async def test_many_equal_posts_at_once_create_one_job(still_site: Site) -> None:
    key = {"Idempotency-Key": "storm"}
    posts = [still_site.client.post("/api/v1/jobs", json=SOMEBODY, headers=key) for _ in range(50)]
    answers = await asyncio.gather(*posts)
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["job_id"] for answer in answers}) == 1
    assert sum("idempotent-replayed" not in answer.headers for answer in answers) == 1


async def test_the_same_key_with_another_body_is_refused(still_site: Site) -> None:
    key = {"Idempotency-Key": "order-17"}
    await still_site.client.post("/api/v1/jobs", json=SOMEBODY, headers=key)
    other = {**SOMEBODY, "input_data": {"n": 2}}
    response = await still_site.client.post("/api/v1/jobs", json=other, headers=key)
    assert response.status_code == 422
    assert response.json()["code"] == "idempotency_mismatch"
    assert len(await still_site.job_ids()) == 1


async def test_a_repeated_bulk_is_replayed_and_a_changed_one_refused(still_site: Site) -> None:
    key = {"Idempotency-Key": "k" * 255}
    jobs = [SOMEBODY, {**SOMEBODY, "input_data": {"n": 2}}]
    first = await still_site.client.post("/api/v1/jobs/bulk", json={"jobs": jobs}, headers=key)
    again = await still_site.client.post("/api/v1/jobs/bulk", json={"jobs": jobs}, headers=key)
    assert first.status_code == again.status_code == 202, first.text
    assert again.headers["idempotent-replayed"] == "true"
    assert [job["job_id"] for job in again.json()["jobs"]] == [job["job_id"] for job in first.json()["jobs"]]
    for changed in (jobs[:1], jobs[::-1], [jobs[0], jobs[0]], [*jobs, SOMEBODY]):
        response = await still_site.client.post("/api/v1/jobs/bulk", json={"jobs": changed}, headers=key)
        assert (response.status_code, response.json()["code"]) == (422, "idempotency_mismatch")
    assert len(await still_site.job_ids()) == 2


# ---------------------------------------------------------------- Prefer: wait


async def test_prefer_wait_returns_the_finished_job(site: Site) -> None:
    response = await site.client.post("/api/v1/jobs", json=SOMEBODY, headers={"Prefer": "respond-async, wait=10"})
    assert response.status_code == 200
    assert response.json()["status"] == "COMPLETED"
    assert response.json()["result"] == {"echo": {"n": 1}}
    assert response.headers["preference-applied"] == "wait=10"
    assert response.headers["location"].endswith(response.json()["job_id"])


async def test_prefer_wait_returns_202_if_the_job_takes_longer(site: Site) -> None:
    gated = {**SOMEBODY, "feature_name": "gated"}
    response = await site.client.post("/api/v1/jobs", json=gated, headers={"Prefer": "wait=1"})
    assert response.status_code == 202
    assert response.headers["preference-applied"] == "wait=1"
    receipt = models.Receipt.model_validate(response.json())
    assert (receipt.status, receipt.position) == ("RUNNING", None), "the state after the wait"
    site.gate.opened.set()


async def test_a_long_wait_is_capped_and_an_invalid_one_ignored(site: Site) -> None:
    for prefer, applied in (("wait=3600", "wait=60"), ("wait=0", None), ("wait=soon", None), ("return=minimal", None)):
        response = await site.client.post("/api/v1/jobs", json=SOMEBODY, headers={"Prefer": prefer})
        assert response.status_code == (200 if applied else 202)
        assert response.headers.get("preference-applied") == applied


# ---------------------------------------------------------------- bulk


async def test_a_bulk_is_accepted_as_a_whole_in_order(site: Site) -> None:
    jobs = [{**SOMEBODY, "input_data": {"n": n}} for n in range(20)]
    response = await site.client.post("/api/v1/jobs/bulk", json={"jobs": jobs})
    assert response.status_code == 202
    receipts = models.BulkReceipt.model_validate(response.json()).jobs
    for n, receipt in enumerate(receipts):
        assert (await finished(site, receipt.job_id))["result"] == {"echo": {"n": n}}


async def test_a_bulk_of_one_is_a_bulk(still_site: Site) -> None:
    response = await still_site.client.post("/api/v1/jobs/bulk", json={"jobs": [SOMEBODY]})
    assert response.status_code == 202
    assert [receipt["job_id"] for receipt in response.json()["jobs"]] == await still_site.job_ids()


async def test_a_bulk_with_bad_items_stores_nothing_and_names_all_of_them(still_site: Site) -> None:
    jobs: list[Any] = [SOMEBODY] * 6
    jobs[1] = {**SOMEBODY, "priority": "urgent"}
    jobs[3] = {**SOMEBODY, "feature_name": "nonesuch"}
    jobs[4] = {"feature_name": "echo", "colour": "red"}
    jobs[5] = "not even an object"
    response = await still_site.client.post("/api/v1/jobs/bulk", json={"jobs": jobs})
    assert response.status_code == 422
    found = {error["pointer"]: error["code"] for error in response.json()["errors"]}
    assert found == {
        "/jobs/1/priority": "invalid_input",
        "/jobs/3/feature_name": "unknown_feature",
        "/jobs/4/colour": "invalid_input",
        "/jobs/4/user_id": "invalid_input",
        "/jobs/5": "invalid_input",
    }
    assert await still_site.job_ids() == []


async def test_all_invalid_values_are_named(still_site: Site) -> None:
    jobs = [{**SOMEBODY, "delay": -1}, SOMEBODY, {**SOMEBODY, "user_id": ""}]
    response = await still_site.client.post("/api/v1/jobs/bulk", json={"jobs": jobs})
    assert [error["pointer"] for error in response.json()["errors"]] == ["/jobs/0/delay", "/jobs/2/user_id"]
    assert await still_site.job_ids() == []


async def test_a_bulk_has_at_least_one_job_and_at_most_max_bulk(make_site: MakeSite) -> None:
    site = await make_site(running=False, max_bulk=3)
    for jobs in ([], [SOMEBODY] * 4, "jobs", None):
        response = await site.client.post("/api/v1/jobs/bulk", json={"jobs": jobs})
        assert (response.status_code, response.json()["pointer"]) == (422, "/jobs")
    response = await site.client.post("/api/v1/jobs/bulk", json={"jobs": [SOMEBODY], "atomic": True})
    assert (response.status_code, response.json()["pointer"]) == (422, "/atomic")
    assert await site.job_ids() == []


async def test_too_many_waiting_jobs_are_429_with_retry_after(make_site: MakeSite) -> None:
    site = await make_site(running=False, max_waiting_per_user=2)
    for _ in range(2):
        await site.submit()
    response = await site.client.post("/api/v1/jobs", json=SOMEBODY)
    assert response.status_code == 429
    assert response.json()["code"] == "too_many_waiting"
    assert response.json()["retryable"] is True
    assert int(response.headers["retry-after"]) >= 1
    await site.submit(user_id="bob")
    bulk = await site.client.post("/api/v1/jobs/bulk", json={"jobs": [{**SOMEBODY, "user_id": "eve"}] * 3})
    assert bulk.status_code == 429
    assert len(await site.job_ids()) == 3


async def test_a_resume_counts_as_a_waiting_job_and_a_requeue_does_not(make_site: MakeSite) -> None:
    site = await make_site(max_waiting_per_user=2)
    failed: list[str] = []
    for _ in range(5):
        failed.append(await site.submit(feature_name="flaky"))
        assert (await finished(site, failed[-1]))["status"] == "FAILED"
    assert (await site.client.post("/admin/services/flaky/pause")).status_code == 200
    answers = await asyncio.gather(*(site.client.post(f"/api/v1/jobs/{job_id}/resume") for job_id in failed))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429, 429]
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["code"] == "too_many_waiting"
    assert int(refused.headers["retry-after"]) >= 1
    waiting = next(answer for answer in answers if answer.status_code == 200).json()["job_id"]
    assert (await site.client.post(f"/api/v1/jobs/{waiting}/resume")).json()["code"] == "wrong_state"
    assert await site.app.requeue(all=True) == 3


# ---------------------------------------------------------------- list


async def test_lists_are_filtered_and_paged_newest_first(still_site: Site) -> None:
    ids = [await still_site.submit() for _ in range(5)]
    await still_site.submit(user_id="bob", feature_name="gated")
    seen: list[str] = []
    cursor: str | None = None
    while True:
        params = {"user_id": "ada", "limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = models.JobPage.model_validate((await still_site.client.get("/api/v1/jobs", params=params)).json())
        seen += [job.job_id for job in page.data]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == ids[::-1]
    for params, count in (
        ({"feature_name": "gated"}, 1),
        ({"status": "PENDING"}, 6),
        ({"status": "FAILED"}, 0),
        ({"user_id": "unknown"}, 0),
    ):
        response = await still_site.client.get("/api/v1/jobs", params=params)
        assert len(response.json()["data"]) == count


# ---------------------------------------------------------------- cancel, resume, delete


async def test_a_waiting_and_a_running_job_can_be_cancelled_once(site: Site) -> None:
    running = await site.submit(feature_name="gated")
    await site.gate.entered.wait()
    waiting = await site.submit(feature_name="gated")
    for job_id in (waiting, running):
        response = await site.client.post(f"/api/v1/jobs/{job_id}/cancel")
        assert (response.status_code, response.json()["status"]) == (200, "CANCELLED")
        again = await site.client.post(f"/api/v1/jobs/{job_id}/cancel")
        assert (again.status_code, again.json()["code"]) == (409, "wrong_state")
        assert again.json()["details"]["status"] == "CANCELLED"


async def test_a_retryable_failure_can_be_resumed_and_a_completed_job_cannot(site: Site) -> None:
    job_id = await site.submit(feature_name="flaky")
    failed = await finished(site, job_id)
    assert (failed["status"], failed["retryable"]) == ("FAILED", True)
    site.gate.opened.set()
    response = await site.client.post(f"/api/v1/jobs/{job_id}/resume")
    assert response.status_code == 200
    done = await finished(site, job_id)
    assert (done["status"], done["result"]) == ("COMPLETED", {"worked": True})
    assert [attempt["error"]["code"] for attempt in done["attempts"]] == ["EXCEPTION"]
    models.Job.model_validate(done)
    again = await site.client.post(f"/api/v1/jobs/{job_id}/resume")
    assert (again.status_code, again.json()["code"]) == (409, "wrong_state")


async def test_only_a_finished_job_can_be_deleted(site: Site) -> None:
    waiting = await site.submit(delay=3600)
    refused = await site.client.delete(f"/api/v1/jobs/{waiting}")
    assert (refused.status_code, refused.json()["code"]) == (409, "wrong_state")
    done = await site.submit()
    await finished(site, done)
    deleted = await site.client.delete(f"/api/v1/jobs/{done}")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert (await site.client.get(f"/api/v1/jobs/{done}")).status_code == 404
    assert (await site.client.delete(f"/api/v1/jobs/{done}")).status_code == 404


async def test_a_result_that_is_not_json_fails_permanently(site: Site) -> None:
    job = await finished(site, await site.submit(feature_name="unspeakable"))
    assert (job["status"], job["retryable"]) == ("FAILED", False)
    assert job["error"]["code"] == "BAD_RESULT"
    assert "JSON" in job["error"]["message"]


async def test_every_route_of_a_job_is_404_for_an_unknown_job(still_site: Site) -> None:
    url = f"/api/v1/jobs/{uuid.uuid4()}"
    for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("POST", "/resume"), ("DELETE", "")):
        response = await still_site.client.request(method, url + path)
        assert (response.status_code, response.json()["code"]) == (404, "not_found")
        assert response.headers["content-type"] == "application/problem+json"
