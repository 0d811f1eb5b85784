"""Actions on users' jobs, turns and batches are audited when an operator takes them, and only then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from fairlead import Call, Config, Fairlead
from fairlead.app import batches
from fairlead.app.job_commands import JobCommands
from fairlead.domain.access import AuditRecord
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.transitions import Delete, Move
from fairlead.engine.transition_writer import Applied
from fairlead.errors import InvalidInput, WrongState
from fairlead.gateway import models
from fairlead.store.port import Audit, Committed, Transition
from tests.integration.gateway_site import Site
from tests.integration.http_client import Exchange, ask

PATIENCE = 30.0
BATCHES = "/api/v1/batches"


@dataclass
class AuditSite:
    """A gateway with a key for each kind of caller. Jobs, turns and batches belong to ada."""

    site: Site
    keys: dict[str, str]
    who: str

    async def does(self, caller: str, method: str, path: str) -> Exchange:
        return await ask(self.site.gateway, method, path, self.keys[caller])

    async def rows(self) -> list[AuditRecord]:
        """Newest first, without the rows of the keys that this test created."""
        return [row for row in (await self.site.app.audit()).data if not row.action.startswith("key.")]

    async def waiting(self) -> str:
        return (await self.site.app.submit("echo", user_id="ada", delay=3600)).id

    async def ended(self, service: str) -> str:
        job = await self.site.app.submit(service, user_id="ada")
        await self.site.app.wait(job.id, PATIENCE)
        return job.id

    async def turn(self) -> str:
        return (await self.site.app.turns.open("slot", "ada", outside=True)).turn_id

    async def batch(self, *services: str, **given: Any) -> str:
        items = [{"custom_id": f"q{n}", "feature_name": service, **given} for n, service in enumerate(services)]
        batch = await self.site.app.submit_batch(items, user_id="ada")
        if not given:
            await batch.wait(PATIENCE)
        return batch.id


@pytest.fixture
async def audit_site(site: Site) -> AuditSite:
    admin = await site.app.create_key("admin", name="ops")
    made = {
        "admin": admin,
        "user": await site.app.create_key("user", user_id="ada"),
        "service": await site.app.create_key("service", name="shop"),
    }
    return AuditSite(site, {role: key.text for role, key in made.items()}, f"ops ({admin.key.id})")


@dataclass(frozen=True)
class Action:
    """`prepared` creates the object: the path, the target of the audit row, and its details."""

    action: str
    method: str
    prepared: Callable[[AuditSite], Awaitable[tuple[str, str, dict[str, Any]]]]
    outcome: dict[str, Any]


async def _cancel_job(audit_site: AuditSite) -> tuple[str, str, dict[str, Any]]:
    job = await audit_site.waiting()
    return f"/api/v1/jobs/{job}/cancel", job, {"user_id": "ada", "feature_name": "echo", "status": "SCHEDULED"}


async def _resume_job(audit_site: AuditSite) -> tuple[str, str, dict[str, Any]]:
    job = await audit_site.ended("flaky")
    return f"/api/v1/jobs/{job}/resume", job, {"user_id": "ada", "feature_name": "flaky", "status": "FAILED"}


async def _retry_job(audit_site: AuditSite) -> tuple[str, str, dict[str, Any]]:
    job = await audit_site.ended("broken")
    details = {"from_start": False, "user_id": "ada", "feature_name": "broken", "status": "FAILED"}
    return f"/api/v1/jobs/{job}/retry", job, details


async def _retry_batch(audit_site: AuditSite) -> tuple[str, str, dict[str, Any]]:
    batch = await audit_site.batch("echo", "broken")
    return f"{BATCHES}/{batch}/retry", batch, {"user_id": "ada"}


async def _retry_step(audit_site: AuditSite) -> tuple[str, str, dict[str, Any]]:
    job = await audit_site.ended("echo_then_shout")
    details = {"step": 1, "user_id": "ada", "feature_name": "echo_then_shout", "status": "COMPLETED"}
    return f"/api/v1/jobs/{job}/steps/1/retry", job, details


async def _delete_job(audit_site: AuditSite) -> tuple[str, str, dict[str, Any]]:
    job = await audit_site.ended("echo")
    return f"/api/v1/jobs/{job}", job, {"user_id": "ada", "feature_name": "echo", "status": "COMPLETED"}


async def _cancel_turn(audit_site: AuditSite) -> tuple[str, str, dict[str, Any]]:
    turn = await audit_site.turn()
    return f"/api/v1/turns/{turn}/cancel", turn, {"user_id": "ada", "feature_name": "slot", "status": "PENDING"}


async def _cancel_turn_as_job(audit_site: AuditSite) -> tuple[str, str, dict[str, Any]]:
    turn = await audit_site.turn()
    return f"/api/v1/jobs/{turn}/cancel", turn, {"user_id": "ada", "feature_name": "slot", "status": "PENDING"}


async def _cancel_batch(audit_site: AuditSite) -> tuple[str, str, dict[str, Any]]:
    batch = await audit_site.batch("echo", "echo", delay=3600)
    return f"{BATCHES}/{batch}/cancel", batch, {"user_id": "ada"}


async def _resume_batch(audit_site: AuditSite) -> tuple[str, str, dict[str, Any]]:
    batch = await audit_site.batch("flaky", "broken")
    return f"{BATCHES}/{batch}/resume", batch, {"user_id": "ada"}


async def _retry_item(audit_site: AuditSite) -> tuple[str, str, dict[str, Any]]:
    batch = await audit_site.batch("echo", "broken")
    job = (await audit_site.site.app.batch_items(batch)).data[1].job_id
    details = {"item": "q1", "job_id": job, "user_id": "ada", "feature_name": "broken", "status": "FAILED"}
    return f"{BATCHES}/{batch}/items/q1/retry", batch, details


DONE = {"status": "done"}
DEEDS = [
    Action("job.cancel", "POST", _cancel_job, DONE),
    Action("job.resume", "POST", _resume_job, DONE),
    Action("job.retry", "POST", _retry_job, DONE),
    Action("job.retry_step", "POST", _retry_step, DONE),
    Action("job.delete", "DELETE", _delete_job, DONE),
    Action("turn.cancel", "POST", _cancel_turn, DONE),
    Action("turn.cancel", "POST", _cancel_turn_as_job, DONE),
    Action("batch.cancel", "POST", _cancel_batch, {**DONE, "cancelled": 2}),
    Action("batch.resume", "POST", _resume_batch, {**DONE, "resumed": 1}),
    Action("batch.retry", "POST", _retry_batch, {**DONE, "retried": 1}),
    Action("batch.retry_item", "POST", _retry_item, DONE),
]
each_deed = pytest.mark.parametrize("action", DEEDS, ids=[action.prepared.__name__.strip("_") for action in DEEDS])


@each_deed
async def test_an_admins_action_on_a_users_object_is_audited(audit_site: AuditSite, action: Action) -> None:
    path, target, details = await action.prepared(audit_site)
    answer = await audit_site.does("admin", action.method, path)
    assert answer.status in (200, 204), answer.body
    assert await audit_site.rows() == [
        AuditRecord(
            (row := (await audit_site.rows())[0]).id,
            row.at,
            audit_site.who,
            action.action,
            target,
            details,
            action.outcome,
        )
    ]


@each_deed
@pytest.mark.parametrize("caller", ["user", "service"])
async def test_actions_of_a_user_and_of_a_service_for_a_user_are_not_audited(
    audit_site: AuditSite, action: Action, caller: str
) -> None:
    path, _, _ = await action.prepared(audit_site)
    assert (await audit_site.does(caller, action.method, path)).status in (200, 204)
    assert await audit_site.rows() == []


async def test_a_refused_request_is_not_audited(audit_site: AuditSite) -> None:
    done, waits, batch = await audit_site.ended("echo"), await audit_site.waiting(), await audit_site.batch("echo")
    refused = [
        ("POST", f"/api/v1/jobs/{done}/cancel", 409),
        ("POST", f"/api/v1/jobs/{done}/resume", 409),
        ("POST", f"/api/v1/jobs/{waits}/steps/0/retry", 409),
        ("POST", f"/api/v1/jobs/{done}/steps/7/retry", 422),
        ("DELETE", f"/api/v1/jobs/{waits}", 409),
        ("POST", f"{BATCHES}/{batch}/items/q0/retry", 409),
        ("POST", f"{BATCHES}/{batch}/items/q7/retry", 404),
        ("POST", f"/api/v1/jobs/{models.JOB_ID}/cancel", 404),
        ("DELETE", f"/api/v1/jobs/{models.JOB_ID}", 404),
        ("POST", f"{BATCHES}/{models.JOB_ID}/cancel", 404),
        ("POST", f"{BATCHES}/{models.JOB_ID}/resume", 404),
    ]
    for method, path, status in refused:
        assert (await audit_site.does("admin", method, path)).status == status, path
    assert await audit_site.rows() == []


async def test_an_action_on_a_batch_that_changes_nothing_is_audited_as_such(audit_site: AuditSite) -> None:
    batch = await audit_site.batch("broken")
    for verb in ("cancel", "resume"):
        assert (await audit_site.does("admin", "POST", f"{BATCHES}/{batch}/{verb}")).status == 409
    assert [(row.action, row.outcome) for row in await audit_site.rows()] == [
        ("batch.resume", {**DONE, "resumed": 0}),
        ("batch.cancel", {**DONE, "cancelled": 0}),
    ]


async def test_a_failed_action_on_a_batch_records_how_many_items_it_moved(
    audit_site: AuditSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await audit_site.batch("echo", "echo", delay=3600)
    app, recorder = audit_site.site.app, audit_site.site.app._runtime.writer
    apply, calls = recorder.apply_each, 0

    async def once(moves: Any, now: float) -> Applied:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise RuntimeError("no more")
        return await apply(moves, now)

    monkeypatch.setattr(batches, "AT_A_TIME", 1)
    monkeypatch.setattr(recorder, "apply_each", once)
    with pytest.raises(RuntimeError):
        await app.cancel_batch(batch, who="ann")
    await app._runtime.group_commit.flush()
    [row] = await audit_site.rows()
    assert row.outcome == {"status": "failed", "reason": "no more", "cancelled": 1}


async def test_a_job_that_changed_meanwhile_is_read_again_and_both_tries_are_audited(
    audit_site: AuditSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = audit_site.site.app
    read, stale = JobCommands.job, list[dict[str, Any]]()

    async def late(commands: JobCommands, job_id: str) -> Job:
        return replace(await read(commands, job_id), **(stale.pop() if stale else {}))

    monkeypatch.setattr(JobCommands, "job", late)
    job_id = await audit_site.waiting()
    stale.append({"status": JobStatus.COMPLETED})
    with pytest.raises(WrongState, match="SCHEDULED"):
        await app.delete(job_id, who="ann")
    stale.append({"run": 7})
    assert (await app.cancel(job_id, who="ann")).status == "CANCELLED"
    assert [(row.action, (row.outcome or {})["status"]) for row in await audit_site.rows()] == [
        ("job.cancel", "done"),
        ("job.cancel", "refused"),
        ("job.delete", "refused"),
    ]


# ---------------------------------------------------------------- from Python, on every engine


def make_app(engines: dict[str, str]) -> Fairlead:
    app = Fairlead(Config.model_validate({}), **engines)

    @app.service("flaky", limit=5, retry="manual")
    async def flaky(call: Call) -> None:
        raise RuntimeError("not yet")

    return app


async def test_with_actor_every_action_and_its_audit_row_are_one_commit_and_without_there_is_no_row(
    engines: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_app(engines).running() as app:
        store = app._runtime.store
        assert store is not None
        commit, together = store.commit, set[tuple[str, str]]()

        async def seen(transitions: Any, **how: Any) -> Committed:
            together.update(_audited_moves(transitions))
            return await commit(transitions, **how)

        monkeypatch.setattr(store, "commit", seen)
        for who in (None, "ann"):
            job = await app.submit("flaky", user_id="ada")
            await app.wait(job.id, PATIENCE)
            await app.resume(job.id, who=who)
            await app.wait(job.id, PATIENCE)
            await app.retry_step(job.id, 0, who=who)
            await app.wait(job.id, PATIENCE)
            await app.delete(job.id, who=who)
            await app.cancel((await app.submit("flaky", delay=3600)).id, who=who)
            batch = await app.submit_batch([{"feature_name": "flaky"}], user_id="ada")
            await batch.wait(PATIENCE)
            await app.retry_item(batch.id, 0, who=who)
            await batch.wait(PATIENCE)
            assert await app.resume_batch(batch.id, who=who) == 1
            await batch.wait(PATIENCE)
            later = await app.submit_batch([{"feature_name": "flaky", "delay": 3600}], user_id="ada")
            assert await app.cancel_batch(later.id, who=who) == 1
        rows = (await app.audit()).data
        assert [(row.who, row.action) for row in reversed(rows)] == [
            ("ann", "job.resume"),
            ("ann", "job.retry_step"),
            ("ann", "job.delete"),
            ("ann", "job.cancel"),
            ("ann", "batch.retry_item"),
            ("ann", "batch.resume"),
            ("ann", "batch.cancel"),
        ]
        assert {("job.resume", "resume"), ("job.retry_step", "rerun"), ("job.delete", "delete")} <= together
        assert {("job.cancel", "cancel"), ("batch.retry_item", "requeue")} <= together


def _audited_moves(transitions: list[Transition]) -> set[tuple[str, str]]:
    """(action, verb) of every audit row and every move that share a commit."""
    verbs = [
        each.verb if isinstance(each, Move) else "delete" for each in transitions if isinstance(each, Move | Delete)
    ]
    actions = [each.record.action for each in transitions if isinstance(each, Audit)]
    return {(action, verb) for action in actions for verb in verbs}


async def test_an_operator_needs_a_name(site: Site) -> None:
    job_id = await site.submit(delay=3600)
    with pytest.raises(InvalidInput, match="who"):
        await site.app.cancel(job_id, who="")
    assert (await site.app.get(job_id)).status == "SCHEDULED"


def test_the_synchronous_facade_takes_the_actor_too(embedded: dict[str, str]) -> None:
    front = make_app(embedded).sync
    try:
        front.cancel(front.submit("flaky", delay=3600).id, who="ann")
        front.cancel(front.submit("flaky", delay=3600).id)
        assert [(row.who, row.action) for row in front.call(front._app.audit()).data] == [("ann", "job.cancel")]
    finally:
        front.close()
