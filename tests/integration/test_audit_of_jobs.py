"""What users may do to their own jobs, turns and batches is in the audit when an operator does it, and only then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from fairlead import Call, Config, Fairlead
from fairlead.domain.audit import AuditRecord
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.transitions import Delete, Move
from fairlead.errors import InvalidInput, WrongState
from fairlead.gateway import models
from fairlead.runtime import batches
from fairlead.store.port import Audit, Committed, Transition
from tests.integration.asking import Exchange, ask
from tests.integration.gateway_site import Site

PATIENCE = 30.0
BATCHES = "/api/v1/batches"


@dataclass
class Office:
    """A gateway with a key for each kind of caller. Jobs, turns and batches are ada's."""

    site: Site
    keys: dict[str, str]
    who: str

    async def does(self, caller: str, method: str, path: str) -> Exchange:
        return await ask(self.site.gateway, method, path, self.keys[caller])

    async def rows(self) -> list[AuditRecord]:
        """Newest first, without those of the keys that were made here."""
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
async def office(site: Site) -> Office:
    admin = await site.app.create_key("admin", name="ops")
    made = {
        "admin": admin,
        "user": await site.app.create_key("user", user_id="ada"),
        "service": await site.app.create_key("service", name="shop"),
    }
    return Office(site, {role: key.text for role, key in made.items()}, f"ops ({admin.key.id})")


@dataclass(frozen=True)
class Deed:
    """`prepared` makes what it is done to: the path, the row's target, and what its details have."""

    action: str
    method: str
    prepared: Callable[[Office], Awaitable[tuple[str, str, dict[str, Any]]]]
    outcome: dict[str, Any]


async def _cancel_job(office: Office) -> tuple[str, str, dict[str, Any]]:
    job = await office.waiting()
    return f"/api/v1/jobs/{job}/cancel", job, {"user_id": "ada", "feature_name": "echo", "status": "SCHEDULED"}


async def _resume_job(office: Office) -> tuple[str, str, dict[str, Any]]:
    job = await office.ended("flaky")
    return f"/api/v1/jobs/{job}/resume", job, {"user_id": "ada", "feature_name": "flaky", "status": "FAILED"}


async def _retry_step(office: Office) -> tuple[str, str, dict[str, Any]]:
    job = await office.ended("echo_then_shout")
    details = {"step": 1, "user_id": "ada", "feature_name": "echo_then_shout", "status": "COMPLETED"}
    return f"/api/v1/jobs/{job}/steps/1/retry", job, details


async def _delete_job(office: Office) -> tuple[str, str, dict[str, Any]]:
    job = await office.ended("echo")
    return f"/api/v1/jobs/{job}", job, {"user_id": "ada", "feature_name": "echo", "status": "COMPLETED"}


async def _cancel_turn(office: Office) -> tuple[str, str, dict[str, Any]]:
    turn = await office.turn()
    return f"/api/v1/turns/{turn}/cancel", turn, {"user_id": "ada", "feature_name": "slot", "status": "PENDING"}


async def _cancel_turn_as_job(office: Office) -> tuple[str, str, dict[str, Any]]:
    turn = await office.turn()
    return f"/api/v1/jobs/{turn}/cancel", turn, {"user_id": "ada", "feature_name": "slot", "status": "PENDING"}


async def _cancel_batch(office: Office) -> tuple[str, str, dict[str, Any]]:
    batch = await office.batch("echo", "echo", delay=3600)
    return f"{BATCHES}/{batch}/cancel", batch, {"user_id": "ada"}


async def _resume_batch(office: Office) -> tuple[str, str, dict[str, Any]]:
    batch = await office.batch("flaky", "broken")
    return f"{BATCHES}/{batch}/resume", batch, {"user_id": "ada"}


async def _retry_item(office: Office) -> tuple[str, str, dict[str, Any]]:
    batch = await office.batch("echo", "broken")
    job = (await office.site.app.batch_items(batch)).data[1].job_id
    details = {"item": "q1", "job_id": job, "user_id": "ada", "feature_name": "broken", "status": "FAILED"}
    return f"{BATCHES}/{batch}/items/q1/retry", batch, details


DONE = {"status": "done"}
DEEDS = [
    Deed("job.cancel", "POST", _cancel_job, DONE),
    Deed("job.resume", "POST", _resume_job, DONE),
    Deed("job.retry_step", "POST", _retry_step, DONE),
    Deed("job.delete", "DELETE", _delete_job, DONE),
    Deed("turn.cancel", "POST", _cancel_turn, DONE),
    Deed("turn.cancel", "POST", _cancel_turn_as_job, DONE),
    Deed("batch.cancel", "POST", _cancel_batch, {**DONE, "cancelled": 2}),
    Deed("batch.resume", "POST", _resume_batch, {**DONE, "resumed": 1}),
    Deed("batch.retry_item", "POST", _retry_item, DONE),
]
each_deed = pytest.mark.parametrize("deed", DEEDS, ids=[deed.prepared.__name__.strip("_") for deed in DEEDS])


@each_deed
async def test_an_admin_s_act_on_what_is_a_user_s_leaves_a_row(office: Office, deed: Deed) -> None:
    path, target, details = await deed.prepared(office)
    answer = await office.does("admin", deed.method, path)
    assert answer.status in (200, 204), answer.body
    assert await office.rows() == [
        AuditRecord(
            (row := (await office.rows())[0]).id, row.at, office.who, deed.action, target, details, deed.outcome
        )
    ]


@each_deed
@pytest.mark.parametrize("caller", ["user", "service"])
async def test_a_user_s_own_act_leaves_none_nor_does_a_service_s_for_a_user(
    office: Office, deed: Deed, caller: str
) -> None:
    path, _, _ = await deed.prepared(office)
    assert (await office.does(caller, deed.method, path)).status in (200, 204)
    assert await office.rows() == []


async def test_what_was_refused_from_the_start_leaves_no_row(office: Office) -> None:
    done, waits, batch = await office.ended("echo"), await office.waiting(), await office.batch("echo")
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
        assert (await office.does("admin", method, path)).status == status, path
    assert await office.rows() == []


async def test_an_act_on_a_batch_that_changed_nothing_says_so(office: Office) -> None:
    batch = await office.batch("broken")
    for verb in ("cancel", "resume"):
        assert (await office.does("admin", "POST", f"{BATCHES}/{batch}/{verb}")).status == 409
    assert [(row.action, row.outcome) for row in await office.rows()] == [
        ("batch.resume", {**DONE, "resumed": 0}),
        ("batch.cancel", {**DONE, "cancelled": 0}),
    ]


async def test_an_act_on_a_batch_that_fails_midway_says_how_far_it_came(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await office.batch("echo", "echo", delay=3600)
    app, recorder = office.site.app, office.site.app._recorder
    apply, calls = recorder.apply_each, 0

    async def once(moves: Any, now: float) -> list[Move]:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise RuntimeError("no more")
        return await apply(moves, now)

    monkeypatch.setattr(batches, "AT_A_TIME", 1)
    monkeypatch.setattr(recorder, "apply_each", once)
    with pytest.raises(RuntimeError):
        await app.cancel_batch(batch, who="ann")
    assert app._journal is not None
    await app._journal.flush()
    [row] = await office.rows()
    assert row.outcome == {"status": "failed", "reason": "no more", "cancelled": 1}


async def test_a_job_that_moved_on_meanwhile_is_looked_at_again_and_both_are_told(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, operations = office.site.app, office.site.app._operations
    look, stale = operations.job, list[dict[str, Any]]()

    async def late(job_id: str) -> Job:
        return replace(await look(job_id), **(stale.pop() if stale else {}))

    monkeypatch.setattr(operations, "job", late)
    job_id = await office.waiting()
    stale.append({"status": JobStatus.COMPLETED})
    with pytest.raises(WrongState, match="SCHEDULED"):
        await app.delete(job_id, who="ann")
    stale.append({"run": 7})
    assert (await app.cancel(job_id, who="ann")).status == "CANCELLED"
    assert [(row.action, (row.outcome or {})["status"]) for row in await office.rows()] == [
        ("job.cancel", "done"),
        ("job.cancel", "refused"),
        ("job.delete", "refused"),
    ]


# ---------------------------------------------------------------- from Python, on every engine


def shop(engines: dict[str, str]) -> Fairlead:
    app = Fairlead(Config.model_validate({}), **engines)

    @app.service("flaky", limit=5, retry="manual")
    async def flaky(call: Call) -> None:
        raise RuntimeError("not yet")

    return app


async def test_with_who_every_act_is_one_commit_with_its_row_and_without_there_is_none(
    engines: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop(engines).running() as app:
        store = app._store
        assert store is not None
        commit, together = store.commit, set[tuple[str, str]]()

        async def seen(transitions: Any, **how: Any) -> Committed:
            together.update(_told(transitions))
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
        assert {("job.cancel", "cancel"), ("batch.retry_item", "resume")} <= together


def _told(transitions: list[Transition]) -> set[tuple[str, str]]:
    """(action, verb) of every row and every move that are in one commit."""
    verbs = [
        each.verb if isinstance(each, Move) else "delete" for each in transitions if isinstance(each, Move | Delete)
    ]
    actions = [each.record.action for each in transitions if isinstance(each, Audit)]
    return {(action, verb) for action in actions for verb in verbs}


async def test_an_operator_without_a_name_does_nothing(site: Site) -> None:
    job_id = await site.submit(delay=3600)
    with pytest.raises(InvalidInput, match="who"):
        await site.app.cancel(job_id, who="")
    assert (await site.app.get(job_id)).status == "SCHEDULED"


def test_the_synchronous_front_takes_who_as_well(embedded: dict[str, str]) -> None:
    front = shop(embedded).sync
    try:
        front.cancel(front.submit("flaky", delay=3600).id, who="ann")
        front.cancel(front.submit("flaky", delay=3600).id)
        assert [(row.who, row.action) for row in front.call(front._app.audit()).data] == [("ann", "job.cancel")]
    finally:
        front.close()
