"""The doctor's findings about usage, webhooks, schedules and files, each provoked in a running app."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead import Call, Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.observe.doctor import webhooks
from tests.integration.doctor_site import command_in, provokes, until_found, until_gone
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
        found = await until_found(app, "usage-ignored", "usage-missing")
        assert found["usage-ignored"].evidence["service"] == "absurd"
        assert found["usage-missing"].evidence["service"] == "silent"


@provokes("webhook-failing", "webhook-disabled")
async def test_a_receiver_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "FAILING_FOR", 0.0)
    async with new_app(tmp_path, webhooks={"allow_http": True, "allow_private": True}).running() as app:
        endpoint = (await app.webhooks.create(f"http://127.0.0.1:{free_port()}/", user_id="ada")).endpoint
        await (await app.submit("silent", user_id="ada")).result(timeout=60)
        found = await until_found(app, "webhook-failing")
        assert command_in(found["webhook-failing"], "fairlead", "webhooks", "deliveries")[-1] == endpoint.id
        await app.webhooks.change(endpoint.id, enabled=False)
        found = await until_found(app, "webhook-disabled")
        assert command_in(found["webhook-disabled"], "fairlead", "webhooks", "enable")[-1] == endpoint.id
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
        found = (await until_found(app, "schedule-unknown-feature"))["schedule-unknown-feature"]
        assert command_in(found, "fairlead", "schedules", "pause")[-1] == schedule.id
        assert (await app.schedules.runs(schedule.id)).data == runs
        await app.schedules.delete(schedule.id)
        await until_gone(app, "schedule-unknown-feature")


@provokes("object-store-unreachable", "object-store-local")
def test_an_object_store_that_cannot_be_used_or_is_not_shared() -> None:
    assert "object-store-unreachable" in doctor_facts.codes(objects_problem="s3://bucket: connection refused")
    worker = doctor_facts.process()
    elsewhere = doctor_facts.process("m1", "manager", services=(), bands=(), host="other")
    assert "object-store-local" in doctor_facts.codes(processes=(worker, elsewhere))
