"""`why`: each reason for a wait is provoked for real, and gone when its cause is gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest
from starlette.requests import Request

from fairlead import Call, Config, Fairlead, JobStatus, NotFound, Permanent, Reason, Retry, Why
from fairlead.dispatch.port import Claim
from fairlead.domain.access import Role
from fairlead.domain.job import Hold
from fairlead.engine import registry, shard_runtime
from fairlead.engine.outbox_relay import OutboxRelay
from fairlead.engine.rebuild import Rebuild
from fairlead.engine.roles import Roles
from fairlead.errors import InvalidInput
from fairlead.gateway import models
from fairlead.gateway.jobs import why_job
from fairlead.gateway.permissions import CALLER, Caller
from fairlead.observe import explain
from fairlead.store.port import DeregisterProcess
from tests.integration.gateway_site import Site
from tests.redis_servers import Server

PATIENCE = 30.0
NO_WORKER = Roles(worker=False)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "EVERY", 0.05)


class GatedApp:
    """An app whose service `one` runs until the gate is opened. `two` is like it, in the same worker."""

    def __init__(self, engines: dict[str, str], *, pools: dict[str, int] | None = None, **options: Any) -> None:
        self.app = Fairlead(Config.model_validate({"pools": pools or {}}), **engines)
        self.gate = asyncio.Event()
        for name in ("one", "two"):
            self.app.service(name, **{"limit": 1, **options})(self.wait_at_gate)

    async def wait_at_gate(self, call: Call) -> str:
        await self.gate.wait()
        return "done"

    @contextlib.asynccontextmanager
    async def open(self, roles: Roles | None = None) -> AsyncIterator[Fairlead]:
        """Start the app and wait until its queue is built. At the end the gate is opened."""
        async with self.app.running(roles or Roles()) as app:
            await until(lambda: _is_ready(app))
            try:
                yield app
            finally:
                self.gate.set()


async def _is_ready(app: Fairlead) -> bool:
    return set((await app.readiness())["checks"].values()) == {"ok"}


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.01)


async def until_status(app: Fairlead, job_id: str, status: JobStatus) -> None:
    async def reached() -> bool:
        return (await app.get(job_id)).status is status

    await until(reached)


async def running(app: Fairlead, service: str = "one", **options: Any) -> str:
    """A job that holds a slot."""
    job = await app.submit(service, **options)
    await until_status(app, job.id, JobStatus.RUNNING)
    return job.id


async def waiting(app: Fairlead, service: str = "one", **options: Any) -> str:
    """A job that is queued."""
    job = await app.submit(service, **options)

    async def queued() -> bool:
        return bool(await app.places([job.id]))

    await until(queued)
    return job.id


async def codes(app: Fairlead, job_id: str) -> list[str]:
    return [reason.code for reason in (await app.why(job_id)).reasons]


async def until_reported(app: Fairlead, job_id: str, code: str) -> Reason:
    """Wait until this is among the reasons: reports of other processes need a moment to arrive."""
    found: list[Reason] = []

    async def reported() -> bool:
        found[:] = [reason for reason in (await app.why(job_id)).reasons if reason.code == code]
        return bool(found)

    await until(reported)
    return found[0]


async def until_gone(app: Fairlead, job_id: str, code: str) -> None:
    async def gone() -> bool:
        return code not in await codes(app, job_id)

    await until(gone)


# ---------------------------------------------------------------- queued, and limits


async def test_why_names_the_jobs_ahead_and_the_holders_of_the_slots(engines: dict[str, str]) -> None:
    gated = GatedApp(engines)
    async with gated.open() as app:
        holder = await running(app, user_id="bob")
        await waiting(app, user_id="high", priority="high")
        await waiting(app, user_id="cleo")
        await waiting(app, user_id="dan")
        job_id = await waiting(app, user_id="dan")
        answer = await app.why(job_id)
        assert [reason.code for reason in answer.reasons] == ["service_full", "in_line"]
        full, queued = answer.reasons
        counts = {"ahead": 3, "retries": 0, "higher_priority": 1, "other_users": 1, "own": 1}
        assert queued.details == {**counts, "estimate": {"seconds": 1.0, "source": "default"}}
        stated = (await app.why(await waiting(app, user_id="eve", cost=30.0))).reasons[-1].details["estimate"]
        assert stated == {"seconds": 30.0, "source": "stated", "cost": 30.0, "unit": "seconds"}
        assert (full.details["limit"], full.details["in_use"], full.details["more_holders"]) == (1, 1, 0)
        (named,) = full.details["holders"]
        assert (named["kind"], named["job_id"], named["user_id"]) == ("lease", holder, "bob")
        assert named["worker"] == (await app.processes())[0].name
        assert named["since"] < named["until"] < named["ends_by"]
        assert answer.position == 4
        assert answer.estimated_wait is not None
        assert answer.summary == (
            "The limit of one is full (1 of 1); the job is queued behind 3 jobs: 1 of higher priority, "
            "1 of other users whose turn is earlier, 1 of the same user."
        )
        gated.gate.set()
        await app.wait(job_id, PATIENCE)
        assert await codes(app, job_id) == ["ended"]


async def test_a_private_answer_has_counts_and_no_names(engines: dict[str, str]) -> None:
    async with GatedApp(engines).open() as app:
        holder = await running(app, user_id="bob")
        job_id = await waiting(app, user_id="ada")
        answer = await app.why(job_id, private=True)
        assert [reason.code for reason in answer.reasons] == ["service_full", "in_line"]
        assert answer.reasons[0].details == {"service": "one", "limit": 1, "in_use": 1, "held": 0}
        for secret in (holder, "bob", (await app.processes())[0].name):
            assert secret not in str(answer)


async def test_why_names_a_users_own_jobs_that_reach_its_limit(engines: dict[str, str]) -> None:
    gated = GatedApp(engines, limit=9, user_limit=1)
    async with gated.open() as app:
        holder = await running(app, user_id="ada")
        job_id = await waiting(app, user_id="ada")
        answer = await app.why(job_id, private=True)
        assert [reason.code for reason in answer.reasons] == ["user_full", "in_line"]
        assert [each["job_id"] for each in answer.reasons[0].details["holders"]] == [holder]
        gated.gate.set()
        await app.wait(job_id, PATIENCE)
        assert await codes(app, job_id) == ["ended"]


async def test_why_names_the_holders_of_a_full_pool_in_another_service(engines: dict[str, str]) -> None:
    gated = GatedApp(engines, pools={"gpu": 1}, limit=9, pool="gpu")
    async with gated.open() as app:
        holder = await running(app, "two")
        job_id = await waiting(app, "one")
        full = (await app.why(job_id)).reasons[0]
        assert (full.code, full.details["pool"], full.details["limit"]) == ("pool_full", "gpu", 1)
        assert [(each["job_id"], each["service"]) for each in full.details["holders"]] == [(holder, "two")]
        gated.gate.set()
        await app.wait(job_id, PATIENCE)


async def test_why_names_a_held_slot_and_its_end(embedded: dict[str, str]) -> None:
    gated = GatedApp(embedded)
    async with gated.open() as app:
        assert app._runtime.node is not None
        dispatcher = app._runtime.node.shards["main"].dispatcher
        until_then = app._runtime.clock.now() + 3600
        await dispatcher.hold([Hold("01938f1c-6f5e-7a30-9d2c-5b8f3c1d2e4f", "one", None, until_then, "h1")])
        job_id = await waiting(app)
        answer = await app.why(job_id)
        full = answer.reasons[0]
        assert answer.estimated_wait is not None
        assert 3500 < answer.estimated_wait.low <= 3600 < answer.estimated_wait.high
        assert (full.code, full.details["held"]) == ("service_full", 1)
        assert "held for calls whose worker is gone" in full.message
        (named,) = full.details["holders"]
        assert (named["kind"], named["job_id"]) == ("hold", "01938f1c-6f5e-7a30-9d2c-5b8f3c1d2e4f")
        assert "holders" not in (await app.why(job_id, private=True)).reasons[0].details
        # The offset between the two clocks is measured again; allow a second, so that its noise does not matter.
        assert await dispatcher.end_holds(until_then + 1) == 1
        await until_status(app, job_id, JobStatus.RUNNING)


async def test_the_number_of_named_holders_is_bounded(embedded: dict[str, str]) -> None:
    async with GatedApp(embedded, limit=12).open() as app:
        for _ in range(12):
            await running(app)
        full = (await app.why(await waiting(app))).reasons[0]
        assert (len(full.details["holders"]), full.details["more_holders"]) == (10, 2)


async def test_a_paused_lane(engines: dict[str, str]) -> None:
    gated = GatedApp(engines)
    async with gated.open() as app:
        await app.pause("one")
        job_id = await waiting(app)
        answer = await app.why(job_id)
        assert [reason.code for reason in answer.reasons] == ["paused", "in_line"]
        assert answer.summary.startswith("The service one is paused: "), "names are unchanged"
        assert (answer.position, answer.estimated_wait) == (1, None), "the end of a pause is unknown"
        seen = await app.get(job_id)
        assert (seen.position, seen.estimated_wait) == (1, None)
        await app.unpause("one")
        await until_status(app, job_id, JobStatus.RUNNING)
        assert await codes(app, job_id) == ["running"]


# ---------------------------------------------------------------- workers


async def test_no_worker_until_one_is_started(distributed: dict[str, str]) -> None:
    async with GatedApp(distributed).open(NO_WORKER) as app:
        job_id = await waiting(app)
        answer = await app.why(job_id)
        assert answer.summary == "No worker is alive for one; the job is next in the queue."
        assert answer.estimated_wait is None

        async def is_undated() -> bool:
            return (await app.get(job_id)).estimated_wait is None

        await until(is_undated)
        gated = GatedApp(distributed)
        async with gated.open(Roles(api=False, manager=False)):
            await until_status(app, job_id, JobStatus.RUNNING)
            assert await codes(app, job_id) == ["running"]
            gated.gate.set()
            await app.wait(job_id, PATIENCE)


async def test_draining_workers_do_not_count(engines: dict[str, str]) -> None:
    gated = GatedApp(engines)
    async with gated.open() as app:
        (worker,) = await app.processes()
        await app.drain_worker(worker.name)
        assert app._runtime.node is not None
        process = app._runtime.node

        async def drains() -> bool:
            return process.draining

        await until(drains)
        job_id = await waiting(app)
        reason = (await app.why(job_id)).reasons[0]
        assert (reason.code, reason.details["draining"], reason.details["other_bands"]) == ("no_worker", 1, 0)
        await app.undrain_worker(worker.name)
        await until_status(app, job_id, JobStatus.RUNNING)


async def test_workers_of_other_bands_do_not_count(embedded: dict[str, str]) -> None:
    gated = GatedApp(embedded)
    async with gated.open(Roles(bands=frozenset({1}))) as app:
        job_id = await waiting(app, priority="low")
        reason = (await app.why(job_id)).reasons[0]
        assert (reason.code, reason.details["other_bands"]) == ("no_worker", 1)
        assert reason.message == "no worker is alive for one and low priority; the live ones serve other priorities"
        high = await running(app, priority="high")
        assert await codes(app, high) == ["running"]


async def test_full_workers_are_named(embedded: dict[str, str]) -> None:
    gated = GatedApp(embedded, limit=5)
    async with gated.open(Roles(concurrency=1)) as app:
        await running(app, "two")
        job_id = await waiting(app, "one")
        reason = await until_reported(app, job_id, "workers_full")
        assert (await app.why(job_id)).estimated_wait is None
        (busy,) = reason.details["busy"]
        assert (busy["running"], busy["concurrency"]) == (1, 1)
        gated.gate.set()
        await app.wait(job_id, PATIENCE)


# ---------------------------------------------------------------- the dispatcher


async def test_a_queue_that_is_being_rebuilt(embedded: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, restore_slots = asyncio.Event(), Rebuild._restore_slots

    async def restore_late(self: Rebuild, *args: Any) -> bool:
        await go_on.wait()
        return await restore_slots(self, *args)

    monkeypatch.setattr(Rebuild, "_restore_slots", restore_late)
    monkeypatch.setattr(shard_runtime, "BUILT_WITHIN", 0.01)
    gated = GatedApp(embedded)
    async with gated.app.running() as app:
        job = await app.submit("one")
        assert await codes(app, job.id) == ["rebuilding"]
        go_on.set()
        await until_status(app, job.id, JobStatus.RUNNING)
        gated.gate.set()
        await job.result(PATIENCE)


async def test_a_queue_that_no_process_builds(distributed: dict[str, str]) -> None:
    async with GatedApp(distributed).app.running(Roles(worker=False, manager=False)) as app:
        job = await app.submit("one")
        assert (await until_reported(app, job.id, "no_manager")).message.startswith("no manager leads")
        assert await codes(app, job.id) == ["no_manager", "no_worker"]
        assert (await app.why(job.id)).summary.endswith("; no worker is alive for one.")
        gated = GatedApp(distributed)
        async with gated.open(Roles(api=False)):
            await until_status(app, job.id, JobStatus.RUNNING)
            gated.gate.set()
            await job.result(PATIENCE)


async def test_an_unreachable_dispatcher(distributed: dict[str, str]) -> None:
    server = Server().start()
    gated = GatedApp({**distributed, "redis_url": server.url})
    try:
        async with gated.open(NO_WORKER) as app:
            job_id = await waiting(app)
            server.kill()
            answer = await app.why(job_id)
            assert [reason.code for reason in answer.reasons] == ["dispatcher_unreachable"]
            assert answer.reasons[0].details["problem"]
            assert answer.position is None
            private = await app.why(job_id, private=True)
            assert private.reasons[0].details == {}
            assert str(server.port) not in str(private)
            server.start()
            await until_gone(app, job_id, "dispatcher_unreachable")
    finally:
        server.kill()


async def test_a_job_that_is_not_relayed_yet(embedded: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, relay = asyncio.Event(), OutboxRelay.relay

    async def relay_late(self: OutboxRelay, *args: Any) -> None:
        await go_on.wait()
        await relay(self, *args)

    gated = GatedApp(embedded)
    async with gated.open() as app:
        monkeypatch.setattr(OutboxRelay, "relay", relay_late)
        job = await app.submit("one")
        answer = await app.why(job.id)
        assert [reason.code for reason in answer.reasons] == ["not_relayed"]
        assert answer.reasons[0].details["age"] >= 0
        go_on.set()
        await until_status(app, job.id, JobStatus.RUNNING)


async def test_a_job_that_is_claimed_but_not_started(distributed: dict[str, str]) -> None:
    async with GatedApp(distributed).open(NO_WORKER) as app:
        job_id = await waiting(app)
        assert app._runtime.node is not None
        claim = Claim("somebody", 1, frozenset({"one"}))
        (lease,) = await app._runtime.node.shards["main"].dispatcher.exchange(claim)
        answer = await app.why(job_id)
        assert [reason.code for reason in answer.reasons] == ["starting"]
        assert (answer.reasons[0].details["worker"], answer.reasons[0].details["lease"]) == ("somebody", lease.name)
        assert "somebody" not in str(await app.why(job_id, private=True))


async def test_a_queue_in_another_process(embedded: dict[str, str]) -> None:
    gated = GatedApp(embedded)
    async with gated.open() as app, GatedApp(embedded).app as onlooker:
        await running(app)
        job_id = await waiting(app)
        assert await codes(onlooker, job_id) == ["line_elsewhere"]
        await app.pause("one")
        assert await codes(onlooker, job_id) == ["paused", "line_elsewhere"]


async def test_a_service_that_is_no_longer_declared(embedded: dict[str, str]) -> None:
    async with GatedApp(embedded).app as before:
        job = await before.submit("one")
    async with Fairlead(Config(), **embedded).running() as app:
        assert await codes(app, job.id) == ["not_declared"]


async def test_a_job_that_changes_between_the_queries_is_read_again(
    embedded: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gated = GatedApp(embedded)
    look = explain._read
    async with gated.open() as app:
        await app.pause("one")
        job_id = await waiting(app)

        async def look_late(*args: Any) -> explain.JobFacts:
            monkeypatch.setattr(explain, "_read", look)
            await app.unpause("one")
            gated.gate.set()
            await app.wait(job_id, PATIENCE)
            return await look(*args)

        monkeypatch.setattr(explain, "_read", look_late)
        assert await codes(app, job_id) == ["ended"]


# ---------------------------------------------------------------- jobs that are not queued


async def test_a_running_job_does_not_wait(engines: dict[str, str]) -> None:
    async with GatedApp(engines).open() as app:
        job_id = await running(app)
        (reason,) = (await app.why(job_id)).reasons
        details = reason.details
        assert (reason.code, details["service"], details["step"], details["total"]) == ("running", "one", 1, 1)
        assert details["worker"] == (await app.processes())[0].name
        assert details["since"] < details["lease_expires_at"] < details["ends_by"]


async def test_why_names_the_due_time_of_a_scheduled_job(engines: dict[str, str]) -> None:
    async with GatedApp(engines).open() as app:
        job = await app.submit("one", delay=3600)
        (reason,) = (await app.why(job.id)).reasons
        assert (reason.code, reason.details["until"]) == ("scheduled", (await job.get()).as_dict()["scheduled_at"])


async def test_a_due_job_that_is_not_queued_is_late(
    distributed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain, "LATE", 0.1)
    async with GatedApp(distributed).app.running(Roles(worker=False, manager=False)) as app:
        job = await app.submit("one", delay=0.1)
        late = await until_reported(app, job.id, "timers_late")
        assert late.details["late"] > 0.1
        assert await codes(app, job.id) == ["scheduled", "timers_late", "no_manager"]


async def test_a_running_job_whose_worker_is_gone(engines: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "EVERY", 3600.0)
    async with GatedApp(engines).open() as app:
        job_id = await running(app)
        assert await codes(app, job_id) == ["running"]
        (worker,) = await app.processes()
        await app._runtime.group_commit.write(DeregisterProcess(worker.name))
        gone = (await app.why(job_id)).reasons[1]
        assert (gone.code, gone.details) == ("worker_gone", {"lease_expired": False, "worker": worker.name})
        assert "worker" not in (await app.why(job_id, private=True)).reasons[1].details


async def test_a_running_job_whose_lease_has_expired(embedded: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    async with GatedApp(embedded).open() as app:
        job_id = await running(app)
        monkeypatch.setattr(explain, "LATE", -3600.0)
        assert (await app.why(job_id)).reasons[1].details["lease_expired"]


async def test_why_names_the_end_and_the_cause_of_a_backoff(engines: dict[str, str]) -> None:
    app = Fairlead(Config(), **engines)

    @app.service(limit=1, max_attempts=5)
    async def busy(call: Call) -> str:
        raise Retry("later", after=1000)

    async with app.running():
        job = await app.submit("busy")
        await until_status(app, job.id, JobStatus.RETRYING)
        (reason,) = (await app.why(job.id)).reasons
        assert reason.code == "backoff"
        assert (reason.details["attempt"], reason.details["max_attempts"]) == (1, 5)
        assert reason.details["error_code"] == "RETRY_ASKED"
        assert reason.details["until"] in reason.message
        await job.cancel()
        assert await codes(app, job.id) == ["ended"]


async def test_why_names_the_outcome_of_an_ended_job(embedded: dict[str, str]) -> None:
    app = Fairlead(Config(), **embedded)

    @app.service(limit=1)
    async def picky(call: Call) -> str:
        raise Permanent("never")

    async with app.running():
        job = await app.submit("picky")
        await app.wait(job.id, PATIENCE)
        answer = await job.why()
        assert answer.summary == "The job has ended: it is FAILED (PERMANENT)."
        assert (answer.reasons[0].details["error_code"], answer.reasons[0].details["retryable"]) == ("PERMANENT", False)


async def test_an_unknown_job(embedded: dict[str, str]) -> None:
    async with GatedApp(embedded).app as app:
        with pytest.raises(NotFound):
            await app.why("01938f1c-6f5e-7a30-9d2c-5b8f3c1d2e4f")
        with pytest.raises(InvalidInput):
            await app.why("mine")


# ---------------------------------------------------------------- over HTTP


async def test_the_gateway_returns_the_documented_shape(site: Site) -> None:
    await site.submit(feature_name="gated", user_id="bob")
    await asyncio.wait_for(site.gate.entered.wait(), PATIENCE)
    job_id = await site.submit(feature_name="gated")
    response = await site.client.get(f"/api/v1/jobs/{job_id}/why")
    assert response.status_code == 200
    answer = models.Why.model_validate(response.json())
    assert [reason.code for reason in answer.reasons] == ["service_full", "in_line"]
    assert response.json()["reasons"][0]["details"]["holders"][0]["user_id"] == "bob"
    site.gate.opened.set()


async def test_a_users_key_gets_no_names_of_others(site: Site) -> None:
    holder = await site.submit(feature_name="gated", user_id="bob")
    await asyncio.wait_for(site.gate.entered.wait(), PATIENCE)
    job_id = await site.submit(feature_name="gated", user_id="ada")
    scope = {"type": "http", "app": site.gateway, CALLER: Caller(Role.USER, "ada", "ada", "1")}
    answer = bytes((await why_job(Request(scope), UUID(job_id))).body).decode()
    assert "service_full" in answer
    assert holder not in answer
    assert "bob" not in answer
    scope[CALLER] = Caller(Role.SERVICE, None, "shop", "2")
    assert holder in bytes((await why_job(Request(scope), UUID(job_id))).body).decode()
    site.gate.opened.set()


async def test_an_unknown_job_is_not_found(still_site: Site) -> None:
    response = await still_site.client.get("/api/v1/jobs/01938f1c-6f5e-7a30-9d2c-5b8f3c1d2e4f/why")
    assert (response.status_code, response.json()["code"]) == (404, "not_found")


async def test_estimates_given_at_submit_are_scored_when_their_jobs_have_started(site: Site) -> None:
    await site.submit(feature_name="gated")
    await asyncio.wait_for(site.gate.entered.wait(), PATIENCE)
    job_id = await site.submit(feature_name="gated")
    assert site.app.scores() == {}
    site.gate.opened.set()
    await site.app.wait(job_id, PATIENCE)

    async def scored() -> bool:
        return bool(site.app.scores())

    await until(scored)
    assert site.app.scores()["gated"]["count"] == 1
    stats = (await site.client.get("/admin/runtime/stats")).json()
    assert stats["estimates"] == site.app.scores()


def test_why_is_a_public_method() -> None:
    assert {Why.__name__, Reason.__name__} <= set(__import__("fairlead").__all__)
