"""The doctor's findings about usage, webhooks, schedules and files, each provoked in a running app."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fairlead import Call, Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.observe.doctor import schedules, webhooks
from tests.integration.doctor_site import command_in, found, provokes, until_found, until_gone
from tests.integration.test_sample_project import free_port
from tests.unit import doctor_facts


def new_app(folder: Path, **config: Any) -> Fairlead:
    app = Fairlead(Settings(Config.model_validate(config), f"sqlite:///{folder}/fairlead.db"))

    @app.service(limit=1)
    async def silent(call: Call) -> None: ...

    @app.service(limit=1)
    async def absurd(call: Call) -> None:
        call.report_usage(tokens_in=-5)

    return app


@provokes("usage-ignored", "usage-missing")
async def test_usage_that_is_absurd_or_missing(tmp_path: Path) -> None:
    async with new_app(tmp_path, prices={"silent": {"per_million_tokens_in": 1.0}}).running() as app:
        for service in ("silent", "absurd"):
            await (await app.submit(service, user_id="ada")).result(timeout=60)
        seen = await until_found(app, "usage-ignored", "usage-missing")
        assert seen["usage-ignored"].evidence["service"] == "absurd"
        assert seen["usage-missing"].evidence["service"] == "silent"


@provokes("webhook-failing", "webhook-disabled")
async def test_a_receiver_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "FAILING_FOR", 0.0)
    async with new_app(tmp_path, webhooks={"allow_http": True, "allow_private": True}).running() as app:
        endpoint = (await app.webhooks.create(f"http://127.0.0.1:{free_port()}/", user_id="ada")).endpoint
        await (await app.submit("silent", user_id="ada")).result(timeout=60)
        seen = await until_found(app, "webhook-failing")
        assert command_in(seen["webhook-failing"], "fairlead", "webhooks", "deliveries")[-1] == endpoint.id
        await app.webhooks.change(endpoint.id, enabled=False)
        seen = await until_found(app, "webhook-disabled")
        assert command_in(seen["webhook-disabled"], "fairlead", "webhooks", "enable")[-1] == endpoint.id
        await app.webhooks.change(endpoint.id, enabled=True)
        await until_gone(app, "webhook-disabled")


@provokes("schedule-unknown-feature")
async def test_a_schedule_whose_feature_is_gone(tmp_path: Path) -> None:
    before = new_app(tmp_path)
    before.pipeline("gone", ["silent"])
    async with before.running() as app:
        schedule = await app.schedules.create("gone", every=1)
        assert "schedule-unknown-feature" not in [each.code for each in await app.doctor()]
        await app.schedules.pause(schedule.id)
    async with new_app(tmp_path).running() as app:
        await app.schedules.resume(schedule.id)
        runs = (await app.schedules.runs(schedule.id)).data
        seen = (await until_found(app, "schedule-unknown-feature"))["schedule-unknown-feature"]
        assert command_in(seen, "fairlead", "schedules", "pause")[-1] == schedule.id
        assert (await app.schedules.runs(schedule.id)).data == runs
        await app.schedules.delete(schedule.id)
        await until_gone(app, "schedule-unknown-feature")


@provokes("schedule-fails")
async def test_a_schedule_whose_runs_fail_again_and_again(tmp_path: Path) -> None:
    app = new_app(tmp_path)
    works = asyncio.Event()

    @app.service(limit=1, max_attempts=1)
    async def fragile(call: Call) -> None:
        if not works.is_set():
            raise ValueError("no")

    async with app.running():
        schedule = await app.schedules.create("fragile", every=3600)
        for number in range(schedules.IN_A_ROW):
            assert "schedule-fails" not in await found(app), f"after {number} runs"
            await _run(app, schedule.id)
        finding = (await found(app))["schedule-fails"]
        assert finding.about == schedule.id
        assert finding.evidence["feature_name"] == "fragile"
        assert command_in(finding, "fairlead", "schedules", "runs")[-1] == schedule.id
        works.set()
        await _run(app, schedule.id)
        assert "schedule-fails" not in await found(app)


async def _run(app: Fairlead, schedule_id: str) -> None:
    await app.wait(await app.schedules.run(schedule_id), timeout=60)


@provokes("budget-holds-jobs", "budget-nearly-spent")
async def test_a_budget_that_is_spent_and_holds_jobs(tmp_path: Path) -> None:
    budgets = {
        "each": {"tokens": 100, "per": "month", "each_user": True},
        "all": {"tokens": 1000, "per": "month", "timezone": "Europe/Berlin"},
    }
    app = new_app(tmp_path, budgets=budgets)

    @app.service(limit=1)
    async def draw(call: Call) -> None:
        call.report_usage(tokens_out=call.params["n"])

    async with app.running():
        await (await app.submit("draw", {"n": 50}, user_id="bob")).result(timeout=60)
        assert not {"budget-holds-jobs", "budget-nearly-spent"} & (await found(app)).keys()
        await (await app.submit("draw", {"n": 200}, user_id="ada")).result(timeout=60)
        finding = (await until_found(app, "budget-nearly-spent"))["budget-nearly-spent"]
        assert (finding.about, finding.evidence["users"]) == ("each", ["ada"])
        assert "200 of 100 tokens are used by ada" in finding.cause
        held = [await app.submit("draw", {"n": 1}, user_id="ada") for _ in range(2)]
        finding = (await until_found(app, "budget-holds-jobs"))["budget-holds-jobs"]
        assert (finding.about, finding.evidence["users"]) == ("each", ["ada"])
        assert command_in(finding, "fairlead", "budget")[-2:] == ["--user", "ID"]
        await app.set_budget("each", 10_000, user_id="ada")
        for job in held:
            await job.result(timeout=60)
        await until_gone(app, "budget-holds-jobs")
        await app.set_budget("all", 270)
        finding = (await until_found(app, "budget-nearly-spent"))["budget-nearly-spent"]
        assert finding.cause.startswith("the budget all of everyone is nearly or fully used up: 252 of 270 tokens")
        assert "users" not in finding.evidence, "all share it"


@provokes("object-store-unreachable", "object-store-local")
def test_an_object_store_that_cannot_be_used_or_is_not_shared() -> None:
    assert "object-store-unreachable" in doctor_facts.codes(objects_problem="s3://bucket: connection refused")
    worker = doctor_facts.process()
    elsewhere = doctor_facts.process("m1", "manager", services=(), bands=(), host="other")
    assert "object-store-local" in doctor_facts.codes(processes=(worker, elsewhere))
