"""Why a job waits: each reason provoked for real, and gone when what caused it is gone."""

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
from fairlead.domain.job import Hold
from fairlead.domain.keys import Role
from fairlead.errors import InvalidInput
from fairlead.gateway import models
from fairlead.gateway.access import CALLER, Caller
from fairlead.gateway.jobs import why_job
from fairlead.runtime import line, registry, why
from fairlead.runtime.rebuild import Rebuild
from fairlead.runtime.relay import Relay
from fairlead.runtime.roles import Roles
from fairlead.store.port import Farewell
from tests.integration.gateway_site import Site
from tests.redis_servers import Server

PATIENCE = 30.0
NO_WORKER = Roles(worker=False)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "EVERY", 0.05)


class Shop:
    """An app whose service `one` goes on until the gate is opened. `two` is like it, in the same worker."""

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
        """Running, its line built. What waits at the gate goes through before it closes."""
        async with self.app.running(roles or Roles()) as app:
            await until(lambda: _stands(app))
            try:
                yield app
            finally:
                self.gate.set()


async def _stands(app: Fairlead) -> bool:
    return set((await app.readiness())["checks"].values()) == {"ok"}


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await true():
            await asyncio.sleep(0.01)


async def is_now(app: Fairlead, job_id: str, status: JobStatus) -> None:
    async def reached() -> bool:
        return (await app.get(job_id)).status is status

    await until(reached)


async def running(app: Fairlead, service: str = "one", **options: Any) -> str:
    """A job that holds a slot."""
    job = await app.submit(service, **options)
    await is_now(app, job.id, JobStatus.RUNNING)
    return job.id


async def waiting(app: Fairlead, service: str = "one", **options: Any) -> str:
    """A job that is in line."""
    job = await app.submit(service, **options)

    async def in_line() -> bool:
        return bool(await app.places([job.id]))

    await until(in_line)
    return job.id


async def codes(app: Fairlead, job_id: str) -> list[str]:
    return [reason.code for reason in (await app.why(job_id)).reasons]


async def says(app: Fairlead, job_id: str, code: str) -> Reason:
    """Waits until this is among the reasons: other processes need a moment to be heard of."""
    found: list[Reason] = []

    async def said() -> bool:
        found[:] = [reason for reason in (await app.why(job_id)).reasons if reason.code == code]
        return bool(found)

    await until(said)
    return found[0]


async def says_no_more(app: Fairlead, job_id: str, code: str) -> None:
    async def gone() -> bool:
        return code not in await codes(app, job_id)

    await until(gone)


# ---------------------------------------------------------------- in line, and limits


async def test_in_line_behind_others_with_the_slots_holder_named(engines: dict[str, str]) -> None:
    shop = Shop(engines)
    async with shop.open() as app:
        holder = await running(app, user_id="bob")
        await waiting(app, user_id="high", priority="high")
        await waiting(app, user_id="cleo")
        await waiting(app, user_id="dan")
        job_id = await waiting(app, user_id="dan")
        answer = await app.why(job_id)
        assert [reason.code for reason in answer.reasons] == ["service_full", "in_line"]
        full, line_ = answer.reasons
        assert line_.details == {"ahead": 3, "retries": 0, "higher_priority": 1, "other_users": 1, "own": 1}
        assert (full.details["limit"], full.details["in_use"], full.details["more_holders"]) == (1, 1, 0)
        (named,) = full.details["holders"]
        assert (named["kind"], named["job_id"], named["user_id"]) == ("lease", holder, "bob")
        assert named["worker"] == (await app.processes())[0].name
        assert named["since"] < named["until"] < named["ends_by"]
        assert answer.position == 4
        assert answer.estimated_wait is not None
        assert answer.summary == (
            "The limit of one is full (1 of 1); the job is in line behind 3 jobs: 1 of higher priority, "
            "1 of other users whose turn is earlier, 1 this user's own."
        )
        shop.gate.set()
        await app.wait(job_id, PATIENCE)
        assert await codes(app, job_id) == ["ended"]


async def test_a_private_answer_has_counts_and_no_names(engines: dict[str, str]) -> None:
    async with Shop(engines).open() as app:
        holder = await running(app, user_id="bob")
        job_id = await waiting(app, user_id="ada")
        answer = await app.why(job_id, private=True)
        assert [reason.code for reason in answer.reasons] == ["service_full", "in_line"]
        assert answer.reasons[0].details == {"service": "one", "limit": 1, "in_use": 1, "held": 0}
        for secret in (holder, "bob", (await app.processes())[0].name):
            assert secret not in str(answer)


async def test_a_user_at_its_limit_is_told_which_jobs_of_its_own_hold_it(engines: dict[str, str]) -> None:
    shop = Shop(engines, limit=9, user_limit=1)
    async with shop.open() as app:
        holder = await running(app, user_id="ada")
        job_id = await waiting(app, user_id="ada")
        answer = await app.why(job_id, private=True)
        assert [reason.code for reason in answer.reasons] == ["user_full", "in_line"]
        assert [each["job_id"] for each in answer.reasons[0].details["holders"]] == [holder]
        shop.gate.set()
        await app.wait(job_id, PATIENCE)
        assert await codes(app, job_id) == ["ended"]


async def test_a_full_pool_names_who_holds_it_in_another_service(engines: dict[str, str]) -> None:
    shop = Shop(engines, pools={"gpu": 1}, limit=9, pool="gpu")
    async with shop.open() as app:
        holder = await running(app, "two")
        job_id = await waiting(app, "one")
        full = (await app.why(job_id)).reasons[0]
        assert (full.code, full.details["pool"], full.details["limit"]) == ("pool_full", "gpu", 1)
        assert [(each["job_id"], each["service"]) for each in full.details["holders"]] == [(holder, "two")]
        shop.gate.set()
        await app.wait(job_id, PATIENCE)


async def test_a_held_slot_is_said_to_be_held_and_until_when(embedded: dict[str, str]) -> None:
    shop = Shop(embedded)
    async with shop.open() as app:
        assert app._process is not None
        dispatcher = app._process.lines["main"].dispatcher
        until_then = app._clock.now() + 3600
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
        await dispatcher.end_holds(until_then)
        await is_now(app, job_id, JobStatus.RUNNING)


async def test_only_so_many_holders_are_named(embedded: dict[str, str]) -> None:
    async with Shop(embedded, limit=12).open() as app:
        for _ in range(12):
            await running(app)
        full = (await app.why(await waiting(app))).reasons[0]
        assert (len(full.details["holders"]), full.details["more_holders"]) == (10, 2)


async def test_a_paused_lane(engines: dict[str, str]) -> None:
    shop = Shop(engines)
    async with shop.open() as app:
        await app.pause("one")
        job_id = await waiting(app)
        answer = await app.why(job_id)
        assert [reason.code for reason in answer.reasons] == ["paused", "in_line"]
        assert answer.summary.startswith("The service one is paused: "), "a name stays as it is"
        assert (answer.position, answer.estimated_wait) == (1, None), "nobody knows how long a pause lasts"
        seen = await app.get(job_id)
        assert (seen.position, seen.estimated_wait) == (1, None)
        await app.unpause("one")
        await is_now(app, job_id, JobStatus.RUNNING)
        assert await codes(app, job_id) == ["running"]


# ---------------------------------------------------------------- workers


async def test_no_worker_until_one_is_started(distributed: dict[str, str]) -> None:
    async with Shop(distributed).open(NO_WORKER) as app:
        job_id = await waiting(app)
        answer = await app.why(job_id)
        assert answer.summary == "No worker is alive for one; the job is next in line."
        assert answer.estimated_wait is None

        async def is_undated() -> bool:
            return (await app.get(job_id)).estimated_wait is None

        await until(is_undated)
        shop = Shop(distributed)
        async with shop.open(Roles(api=False, manager=False)):
            await is_now(app, job_id, JobStatus.RUNNING)
            assert await codes(app, job_id) == ["running"]
            shop.gate.set()
            await app.wait(job_id, PATIENCE)


async def test_workers_that_drain_do_not_count(engines: dict[str, str]) -> None:
    shop = Shop(engines)
    async with shop.open() as app:
        (worker,) = await app.processes()
        await app.drain_worker(worker.name)
        assert app._process is not None
        process = app._process

        async def drains() -> bool:
            return process.draining

        await until(drains)
        job_id = await waiting(app)
        reason = (await app.why(job_id)).reasons[0]
        assert (reason.code, reason.details["draining"], reason.details["other_bands"]) == ("no_worker", 1, 0)
        await app.undrain_worker(worker.name)
        await is_now(app, job_id, JobStatus.RUNNING)


async def test_workers_of_other_bands_do_not_count(embedded: dict[str, str]) -> None:
    shop = Shop(embedded)
    async with shop.open(Roles(bands=frozenset({1}))) as app:
        job_id = await waiting(app, priority="low")
        reason = (await app.why(job_id)).reasons[0]
        assert (reason.code, reason.details["other_bands"]) == ("no_worker", 1)
        assert reason.message == "no worker is alive for one and low: those that are serve other priorities"
        high = await running(app, priority="high")
        assert await codes(app, high) == ["running"]


async def test_workers_without_room(embedded: dict[str, str]) -> None:
    shop = Shop(embedded, limit=5)
    async with shop.open(Roles(concurrency=1)) as app:
        await running(app, "two")
        job_id = await waiting(app, "one")
        reason = await says(app, job_id, "workers_full")
        assert (await app.why(job_id)).estimated_wait is None
        (busy,) = reason.details["busy"]
        assert (busy["running"], busy["concurrency"]) == (1, 1)
        shop.gate.set()
        await app.wait(job_id, PATIENCE)


# ---------------------------------------------------------------- the dispatcher


async def test_a_line_that_is_being_rebuilt(embedded: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, restore_slots = asyncio.Event(), Rebuild._restore_slots

    async def restore_late(self: Rebuild, *args: Any) -> bool:
        await go_on.wait()
        return await restore_slots(self, *args)

    monkeypatch.setattr(Rebuild, "_restore_slots", restore_late)
    monkeypatch.setattr(line, "STANDS_WITHIN", 0.01)
    shop = Shop(embedded)
    async with shop.app.running() as app:
        job = await app.submit("one")
        assert await codes(app, job.id) == ["rebuilding"]
        go_on.set()
        await is_now(app, job.id, JobStatus.RUNNING)
        shop.gate.set()
        await job.result(PATIENCE)


async def test_a_line_that_nobody_builds(distributed: dict[str, str]) -> None:
    async with Shop(distributed).app.running(Roles(worker=False, manager=False)) as app:
        job = await app.submit("one")
        assert (await says(app, job.id, "no_manager")).message.startswith("no manager leads")
        assert await codes(app, job.id) == ["no_manager", "no_worker"]
        assert (await app.why(job.id)).summary.endswith("; no worker is alive for one.")
        shop = Shop(distributed)
        async with shop.open(Roles(api=False)):
            await is_now(app, job.id, JobStatus.RUNNING)
            shop.gate.set()
            await job.result(PATIENCE)


async def test_a_dispatcher_that_cannot_be_reached(distributed: dict[str, str]) -> None:
    server = Server().start()
    shop = Shop({**distributed, "redis_url": server.url})
    try:
        async with shop.open(NO_WORKER) as app:
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
            await says_no_more(app, job_id, "dispatcher_unreachable")
    finally:
        server.kill()


async def test_a_job_that_the_line_has_not_heard_of(embedded: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, relay = asyncio.Event(), Relay.relay

    async def relay_late(self: Relay, *args: Any) -> None:
        await go_on.wait()
        await relay(self, *args)

    shop = Shop(embedded)
    async with shop.open() as app:
        monkeypatch.setattr(Relay, "relay", relay_late)
        job = await app.submit("one")
        answer = await app.why(job.id)
        assert [reason.code for reason in answer.reasons] == ["not_relayed"]
        assert answer.reasons[0].details["age"] >= 0
        go_on.set()
        await is_now(app, job.id, JobStatus.RUNNING)


async def test_a_job_that_a_worker_has_taken_but_not_started(distributed: dict[str, str]) -> None:
    async with Shop(distributed).open(NO_WORKER) as app:
        job_id = await waiting(app)
        assert app._process is not None
        claim = Claim("somebody", 1, frozenset({"one"}))
        (lease,) = await app._process.lines["main"].dispatcher.exchange(claim)
        answer = await app.why(job_id)
        assert [reason.code for reason in answer.reasons] == ["starting"]
        assert (answer.reasons[0].details["worker"], answer.reasons[0].details["lease"]) == ("somebody", lease.name)
        assert "somebody" not in str(await app.why(job_id, private=True))


async def test_a_line_in_another_process(embedded: dict[str, str]) -> None:
    shop = Shop(embedded)
    async with shop.open() as app, Shop(embedded).app as onlooker:
        await running(app)
        job_id = await waiting(app)
        assert await codes(onlooker, job_id) == ["line_elsewhere"]
        await app.pause("one")
        assert await codes(onlooker, job_id) == ["paused", "line_elsewhere"]


async def test_a_service_that_is_declared_no_more(embedded: dict[str, str]) -> None:
    async with Shop(embedded).app as before:
        job = await before.submit("one")
    async with Fairlead(Config(), **embedded).running() as app:
        assert await codes(app, job.id) == ["not_declared"]


async def test_a_job_that_moves_on_between_the_questions_is_looked_at_again(
    embedded: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(embedded)
    look = why._look
    async with shop.open() as app:
        await app.pause("one")
        job_id = await waiting(app)

        async def look_late(*args: Any) -> why.Sight:
            monkeypatch.setattr(why, "_look", look)
            await app.unpause("one")
            shop.gate.set()
            await app.wait(job_id, PATIENCE)
            return await look(*args)

        monkeypatch.setattr(why, "_look", look_late)
        assert await codes(app, job_id) == ["ended"]


# ---------------------------------------------------------------- jobs that are not in line


async def test_a_running_job_does_not_wait(engines: dict[str, str]) -> None:
    async with Shop(engines).open() as app:
        job_id = await running(app)
        (reason,) = (await app.why(job_id)).reasons
        details = reason.details
        assert (reason.code, details["service"], details["step"], details["total"]) == ("running", "one", 1, 1)
        assert details["worker"] == (await app.processes())[0].name
        assert details["since"] < details["lease_expires_at"] < details["ends_by"]


async def test_a_scheduled_job_says_when(engines: dict[str, str]) -> None:
    async with Shop(engines).open() as app:
        job = await app.submit("one", delay=3600)
        (reason,) = (await app.why(job.id)).reasons
        assert (reason.code, reason.details["until"]) == ("scheduled", (await job.get()).as_dict()["scheduled_at"])


async def test_what_is_due_and_not_in_line_is_said_to_be_late(
    distributed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(why, "LATE", 0.1)
    async with Shop(distributed).app.running(Roles(worker=False, manager=False)) as app:
        job = await app.submit("one", delay=0.1)
        late = await says(app, job.id, "timers_late")
        assert late.details["late"] > 0.1
        assert await codes(app, job.id) == ["scheduled", "timers_late", "no_manager"]


async def test_a_running_job_whose_worker_is_gone(engines: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "EVERY", 3600.0)
    async with Shop(engines).open() as app:
        job_id = await running(app)
        assert await codes(app, job_id) == ["running"]
        (worker,) = await app.processes()
        assert app._journal is not None
        await app._journal.write(Farewell(worker.name))
        gone = (await app.why(job_id)).reasons[1]
        assert (gone.code, gone.details) == ("worker_gone", {"lease_expired": False, "worker": worker.name})
        assert "worker" not in (await app.why(job_id, private=True)).reasons[1].details


async def test_a_running_job_whose_lease_has_expired(embedded: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    async with Shop(embedded).open() as app:
        job_id = await running(app)
        monkeypatch.setattr(why, "LATE", -3600.0)
        assert (await app.why(job_id)).reasons[1].details["lease_expired"]


async def test_a_backoff_says_until_when_and_after_what(engines: dict[str, str]) -> None:
    app = Fairlead(Config(), **engines)

    @app.service(limit=1, max_attempts=5)
    async def busy(call: Call) -> str:
        raise Retry("later", after=1000)

    async with app.running():
        job = await app.submit("busy")
        await is_now(app, job.id, JobStatus.RETRYING)
        (reason,) = (await app.why(job.id)).reasons
        assert reason.code == "backoff"
        assert (reason.details["attempt"], reason.details["max_attempts"]) == (1, 5)
        assert reason.details["error_code"] == "RETRY_ASKED"
        assert reason.details["until"] in reason.message
        await job.cancel()
        assert await codes(app, job.id) == ["ended"]


async def test_an_ended_job_says_how(embedded: dict[str, str]) -> None:
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


async def test_a_job_that_is_not_there(embedded: dict[str, str]) -> None:
    async with Shop(embedded).app as app:
        with pytest.raises(NotFound):
            await app.why("01938f1c-6f5e-7a30-9d2c-5b8f3c1d2e4f")
        with pytest.raises(InvalidInput):
            await app.why("mine")


# ---------------------------------------------------------------- over HTTP


async def test_the_gateway_answers_in_the_documented_shape(site: Site) -> None:
    await site.submit(feature_name="gated", user_id="bob")
    await asyncio.wait_for(site.gate.entered.wait(), PATIENCE)
    job_id = await site.submit(feature_name="gated")
    response = await site.client.get(f"/api/v1/jobs/{job_id}/why")
    assert response.status_code == 200
    answer = models.Why.model_validate(response.json())
    assert [reason.code for reason in answer.reasons] == ["service_full", "in_line"]
    assert response.json()["reasons"][0]["details"]["holders"][0]["user_id"] == "bob"
    site.gate.opened.set()


async def test_a_users_key_is_not_told_who_others_are(site: Site) -> None:
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


def test_why_is_of_the_public_names() -> None:
    assert {Why.__name__, Reason.__name__} <= set(__import__("fairlead").__all__)
