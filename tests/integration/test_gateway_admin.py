"""Actions of operators over HTTP with one process: services, priorities, dead letters by filter, and the audit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.app.job_commands import JobCommands
from fairlead.domain.job import Job
from fairlead.errors import InvalidInput, NotFound
from fairlead.gateway import models, models_admin, models_runtime
from tests.integration.gateway_site import Site, open_site

MakeSite = Callable[..., Awaitable[Site]]


async def audit(site: Site, **params: Any) -> list[models_admin.AuditRow]:
    response = await site.client.get("/admin/audit", params=params)
    return models_admin.AuditPage.model_validate(response.json()).data


async def state_of(site: Site, service: str) -> tuple[int, bool]:
    status = models_runtime.QueueStatus.model_validate((await site.client.get("/queue/status")).json())
    found = next(each for each in status.services if each.service == service)
    return found.limit, found.paused


async def failed(site: Site, **fields: Any) -> str:
    job_id = await site.submit(**{"feature_name": "broken", **fields})
    assert (await site.app.wait(job_id, 10)).status == "FAILED"
    return job_id


# ---------------------------------------------------------------- services


async def test_a_paused_service_starts_nothing_until_it_is_resumed(site: Site) -> None:
    paused = await site.client.post("/admin/services/echo/pause")
    assert (paused.status_code, paused.json()["paused"]) == (200, True)
    job_id = await site.submit()
    other = await site.submit(feature_name="whisper")
    assert (await site.app.wait(other, 10)).status == "COMPLETED"
    assert (await site.app.get(job_id)).status == "PENDING"
    resumed = await site.client.post("/admin/services/echo/resume")
    assert (resumed.status_code, resumed.json()["paused"]) == (200, False)
    assert (await site.app.wait(job_id, 10)).status == "COMPLETED"
    rows = await audit(site)
    assert [(row.who, row.action, row.target) for row in rows] == [
        ("keyless", "service.resume", "echo"),
        ("keyless", "service.pause", "echo"),
    ]
    assert all(row.outcome == {"status": "done"} for row in rows)


async def test_a_limit_applies_at_once_and_until_it_is_removed(site: Site) -> None:
    first, second = [await site.submit(feature_name="gated") for _ in range(2)]
    await site.gate.entered.wait()
    site.gate.entered.clear()
    changed = await site.client.put("/admin/services/gated/limit", json={"limit": 2})
    assert models_admin.ServiceState.model_validate(changed.json()) == models_admin.ServiceState(
        service="gated", limit=2, paused=False, declared_limit=1, override_limit=2
    )
    await site.gate.entered.wait()  # the second one has its slot
    site.gate.opened.set()
    for job_id in (first, second):
        assert (await site.app.wait(job_id, 10)).status == "COMPLETED"
    lifted = await site.client.delete("/admin/services/gated/limit")
    assert (lifted.json()["limit"], lifted.json()["override_limit"]) == (1, None)
    rows = await audit(site)
    assert [(row.action, row.details) for row in rows] == [
        ("service.lift_limit", {"was": 2}),
        ("service.limit", {"limit": 2, "was": 1}),
    ]


async def test_limits_and_pauses_survive_a_restart(tmp_path: Path) -> None:
    async with open_site(tmp_path / "jobs.db") as site:
        await site.client.put("/admin/services/echo/limit", json={"limit": 3})
        await site.client.post("/admin/services/echo/pause")
    async with open_site(tmp_path / "jobs.db") as site:
        assert await state_of(site, "echo") == (3, True)
        job_id = await site.submit()
        await site.app.wait(await site.submit(feature_name="whisper"), 10)
        assert (await site.app.get(job_id)).status == "PENDING"
        await site.app.unpause("echo")
        assert (await site.app.wait(job_id, 10)).status == "COMPLETED"


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        (0, "pause it instead"),
        (-1, "from 1 to"),
        (1_000_001, "from 1 to"),
        (10**30, "limit has an integer beyond 64 bits, which is out of range"),
        (1.5, "integer"),
        (None, "integer"),
    ],
)
async def test_an_invalid_limit_is_refused(site: Site, limit: float | None, says: str) -> None:
    response = await site.client.put("/admin/services/echo/limit", json={"limit": limit})
    assert (response.status_code, response.json()["pointer"]) == (422, "/limit")
    assert says in response.json()["detail"]
    assert await audit(site) == []


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "pause"), ("POST", "resume"), ("PUT", "limit"), ("DELETE", "limit"), ("POST", "rebuild")],
)
async def test_an_undeclared_service_is_not_found(site: Site, method: str, path: str) -> None:
    body = {"json": {"limit": 2}} if method == "PUT" else {}
    response = await site.client.request(method, f"/admin/services/none/{path}", **body)
    assert (response.status_code, response.json()["code"]) == (404, "not_found")
    assert await audit(site) == []


async def test_a_rebuild_restores_the_queue_and_keeps_running_calls(site: Site) -> None:
    running = await site.submit(feature_name="gated")
    await site.gate.entered.wait()
    waiting = [await site.submit(feature_name="gated", user_id=user) for user in ("bob", "cyd")]
    process = site.app._runtime.node
    assert process is not None
    leader = process.shards["main"].leader
    assert leader is not None
    before = leader.scopes.rebuild.count
    response = await site.client.post("/admin/services/gated/rebuild")
    assert response.status_code == 202
    assert response.json() == {"service": "gated", "scopes": ["service:gated"], "problem": None}
    async with asyncio.timeout(10):
        while leader.scopes.rebuild.count == before or not leader.scopes.built:
            await asyncio.sleep(0.01)
    status = models_runtime.QueueStatus.model_validate((await site.client.get("/queue/status")).json())
    gated = next(each for each in status.services if each.service == "gated")
    assert ([slot.job_id for slot in gated.running], gated.waiting["medium"]) == ([running], 2)
    site.gate.opened.set()
    for job_id in (running, *waiting):
        job = await site.app.wait(job_id, 10)
        assert (job.status, job.attempts) == ("COMPLETED", [])
    [row] = await audit(site, action="service.rebuild")
    assert (row.target, row.details) == ("gated", {"scopes": ["service:gated"]})


# ---------------------------------------------------------------- priorities


async def test_a_rebuild_without_a_leader_reports_the_problem(tmp_path: Path) -> None:
    async with open_site(tmp_path / "jobs.db") as site:
        await site.app.wait(await site.submit(), 10)
        assert (await site.client.post("/admin/services/echo/rebuild")).json()["problem"] is None
    async with open_site(tmp_path / "jobs.db", running=False) as site:
        answer = await site.client.post("/admin/services/echo/rebuild")
        assert answer.status_code == 202
        assert "no manager is alive" in answer.json()["problem"]
        models_admin.RebuildRequested.model_validate(answer.json())


async def test_a_changed_priority_moves_the_waiting_step_and_notifies_its_user(site: Site) -> None:
    await site.submit(feature_name="gated")
    await site.gate.entered.wait()
    ahead = await site.submit(feature_name="gated", user_id="bob")
    late = await site.submit(feature_name="gated", user_id="cyd", priority="low")
    events = site.app.watch(late)
    assert (await anext(events) or {})["type"] == "SNAPSHOT"
    response = await site.client.post(f"/admin/jobs/{late}/priority", json={"priority": "high"})
    job = models.Job.model_validate(response.json())
    assert (job.priority, job.original_priority, job.position) == ("high", "low", 1)
    assert job.promoted_at is not None
    event = await anext(events) or {}
    while event["type"] == "POSITION":
        event = await anext(events) or {}
    assert (event["type"], event["old"], event["new"]) == ("JOB_PROMOTED", "low", "high")
    assert "operator" in event["message"]
    site.gate.opened.set()
    ended = [await site.app.wait(job_id, 10) for job_id in (late, ahead)]
    first, second = (job.started_at for job in ended)
    assert first is not None
    assert second is not None
    assert first < second
    [row] = await audit(site)
    assert (row.action, row.target) == ("job.priority", late)
    assert row.details == {"old": "low", "new": "high", "status": "PENDING"}


async def test_a_running_call_continues_and_the_next_step_waits_in_the_new_band(site: Site) -> None:
    job_id = await site.submit(feature_name="gated_then_whisper")
    await site.gate.entered.wait()
    await site.app.pause("whisper")
    response = await site.client.post(f"/admin/jobs/{job_id}/priority", json={"priority": "low"})
    assert (response.json()["status"], response.json()["priority"]) == ("RUNNING", "low")
    site.gate.opened.set()
    with site.app.hub.subscribe(job_id) as events:
        while (event := await events.next(10)) is not None and event.type != "WAITING":
            pass
    await site.app.wait(await site.submit(), 10)  # by then the queue is up to date
    status = models_runtime.QueueStatus.model_validate((await site.client.get("/queue/status")).json())
    whisper = next(each for each in status.services if each.service == "whisper")
    assert (whisper.waiting["low"], whisper.waiting["medium"]) == (1, 0)
    await site.app.unpause("whisper")
    job = await site.app.wait(job_id, 10)
    assert (job.status, job.priority, job.original_priority, job.attempts) == ("COMPLETED", "low", "medium", [])


async def test_changing_the_priority_of_an_ended_job_is_409_and_of_an_unknown_job_404(site: Site) -> None:
    job_id = await site.submit()
    await site.app.wait(job_id, 10)
    ended = await site.client.post(f"/admin/jobs/{job_id}/priority", json={"priority": "high"})
    assert (ended.status_code, ended.json()["code"]) == (409, "wrong_state")
    unknown = await site.client.post(f"/admin/jobs/{models.JOB_ID}/priority", json={"priority": "high"})
    assert unknown.status_code == 404
    wrong = await site.client.post(f"/admin/jobs/{job_id}/priority", json={"priority": "urgent"})
    assert (wrong.status_code, wrong.json()["pointer"]) == (422, "/priority")
    assert await audit(site) == []


async def test_the_same_priority_again_changes_nothing_and_is_in_the_audit(site: Site) -> None:
    job_id = await site.submit(delay=3600)
    response = await site.client.post(f"/admin/jobs/{job_id}/priority", json={"priority": "medium"})
    assert (response.status_code, response.json()["promoted_at"]) == (200, None)
    (row,) = await audit(site)
    assert (row.action, row.details) == ("job.priority", {"old": "medium", "new": "medium", "status": "SCHEDULED"})
    assert row.outcome == {"status": "done"}


async def test_a_scheduled_job_keeps_its_time_and_gets_the_new_priority(site: Site) -> None:
    job_id = await site.submit(delay=3600)
    before = await site.app.get(job_id)
    response = await site.client.post(f"/admin/jobs/{job_id}/priority", json={"priority": "high"})
    after = models.Job.model_validate(response.json())
    assert (after.status, after.priority, after.scheduled_at) == (
        "SCHEDULED",
        "high",
        before.as_dict()["scheduled_at"],
    )


# ---------------------------------------------------------------- dead letters by filter


async def test_dead_letters_are_filtered_by_service_error_and_time(site: Site) -> None:
    permanent = await failed(site)
    resumable = await failed(site, feature_name="flaky", user_id="bob")
    between = (await site.app.get(resumable)).as_dict()["finished_at"]

    async def found(**params: Any) -> list[str]:
        response = await site.client.get("/admin/queue-dead", params=params)
        return [job.job_id for job in models.JobPage.model_validate(response.json()).data]

    assert await found() == [resumable, permanent]
    assert await found(service="flaky") == [resumable]
    assert await found(error_code="PERMANENT") == [permanent]
    assert await found(retryable="true") == [resumable]
    assert await found(since="2100-01-01T00:00:00Z") == []
    assert await found(until="2000-01-01") == []
    assert resumable in await found(since=between)
    wrong = await site.client.get("/admin/queue-dead", params={"since": "yesterday"})
    assert (wrong.status_code, wrong.json()["pointer"]) == (422, "/since")


async def test_a_requeue_by_filter_takes_matching_jobs_only_and_audits_their_number(site: Site) -> None:
    kept = await failed(site)
    taken = [await failed(site, feature_name="flaky") for _ in range(2)]
    site.gate.opened.set()
    body = {"error_code": "EXCEPTION", "service": "flaky", "since": "2000-01-01"}
    response = await site.client.post("/admin/queue-dead/requeue", json=body)
    assert response.json() == {"requeued": 2, "dry_run": False}
    for job_id in taken:
        assert (await site.app.wait(job_id, 10)).status == "COMPLETED"
    assert (await site.app.get(kept)).status == "FAILED"
    await site.client.post("/admin/queue-dead/purge", json={"job_ids": [kept]})
    purge, requeue = await audit(site)
    assert (purge.action, purge.target, purge.outcome) == ("dead.purge", kept, {"status": "done", "purged": 1})
    assert (requeue.action, requeue.outcome) == ("dead.requeue", {"status": "done", "requeued": 2})
    assert requeue.details == {
        "error_code": "EXCEPTION",
        "service": "flaky",
        "since": "2000-01-01T00:00:00.000Z",
        "from_start": False,
    }


async def test_a_dry_run_counts_what_a_requeue_would_take_and_leaves_no_row(site: Site) -> None:
    await failed(site, deadline=0.3)
    await failed(site)
    body = {"all": True, "dry_run": True}
    # One of them cannot be requeued after its deadline.
    while (found := (await site.client.post("/admin/queue-dead/requeue", json=body)).json())["requeued"] == 2:
        pass
    assert (found["requeued"], len(found["sample"])) == (1, 1)
    assert (await site.client.post("/admin/queue-dead/purge", json=body)).json()["purged"] == 2
    assert await audit(site) == []


async def test_in_python_all_dead_letters_must_be_selected_explicitly(site: Site) -> None:
    await failed(site)
    for call in (site.app.purge, site.app.requeue, site.app.preview_purge, site.app.preview_requeue):
        with pytest.raises(InvalidInput, match="all=True"):
            await call()
        with pytest.raises(InvalidInput, match="all=True"):
            await call(all=True, user_id="ada")
    assert await site.app.purge(all=True, dry_run=True) == 1
    assert await site.app.purge(all=True, who="nightly") == 1
    [row] = (await site.app.audit()).data
    assert (row.who, row.details, row.outcome) == ("nightly", {"all": True}, {"status": "done", "purged": 1})


# ---------------------------------------------------------------- the audit


async def test_the_audit_comes_in_pages_and_by_action(site: Site) -> None:
    for _ in range(2):
        await site.app.pause("echo", who="ann")
        await site.app.unpause("echo")
    first = models_admin.AuditPage.model_validate((await site.client.get("/admin/audit?limit=3")).json())
    assert [(row.who, row.action) for row in first.data] == [
        ("python", "service.resume"),
        ("ann", "service.pause"),
        ("python", "service.resume"),
    ]
    rest = await audit(site, cursor=first.next_cursor)
    assert [row.who for row in rest] == ["ann"]
    assert len(await audit(site, action="service.pause")) == 2
    for params in ({"cursor": "x"}, {"limit": 0}, {"action": "a\0"}):
        assert (await site.client.get("/admin/audit", params=params)).status_code == 422


async def test_the_audit_records_how_far_a_failed_action_came(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await failed(site)

    async def broken(*_: object) -> None:
        raise RuntimeError("no more")

    group_commit = site.app._runtime.group_commit
    assert group_commit is not None
    with monkeypatch.context() as patched:
        patched.setattr(group_commit, "write_each", broken)
        with pytest.raises(RuntimeError):
            await site.app.purge(all=True)
    await group_commit.flush()
    [row] = (await site.app.audit()).data
    assert row.outcome == {"status": "failed", "reason": "no more", "purged": 0}


async def test_an_action_refused_by_a_state_change_is_not_audited(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = await site.submit(delay=3600)
    read, reads = JobCommands.job, 0

    async def late(commands: JobCommands, job_id: str) -> Job:
        nonlocal reads
        reads += 1
        job = await read(commands, job_id)
        return replace(job, run=job.run + 1) if reads == 1 else job

    monkeypatch.setattr(JobCommands, "job", late)
    assert (await site.app.set_priority(job_id, "high")).priority == "high"
    done, refused = (await site.app.audit()).data
    assert done.outcome == {"status": "done"}
    assert (refused.outcome or {})["status"] == "refused"


async def test_an_audited_action_needs_a_name(site: Site) -> None:
    with pytest.raises(InvalidInput, match="who"):
        await site.app.pause("echo", who="")
    with pytest.raises(NotFound):
        await site.app.pause("none")
    assert await state_of(site, "echo") == (10, False)
