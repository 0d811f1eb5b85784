"""Recurring jobs from their declaration to their jobs: the gateway, restarts, and days in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fairlead.app.fairlead import Fairlead
from fairlead.domain.config import Config
from fairlead.domain.schedules import RunOutcome, Schedule
from fairlead.executors.port import Call
from fairlead.gateway.app import create_gateway
from fairlead.testing import in_virtual_time
from fairlead.testing.site import run
from fairlead.testing.virtual_time import EPOCH
from tests.integration.cli_process import up
from tests.integration.gateway_site import client_of
from tests.integration.key_site import keys_of, until

BASE = "/api/v1/schedules"
FAR = "0 0 1 1 *"


@pytest.fixture(params=["embedded", "distributed"])
def engine(request: pytest.FixtureRequest) -> dict[str, str]:
    found: dict[str, str] = request.getfixturevalue(request.param)
    return found


def app_of(engine: dict[str, str], **schedules: Any) -> Fairlead:
    app = Fairlead(Config.model_validate({"schedules": schedules}), **engine)

    @app.service("echo", limit=5)
    async def echo(call: Call) -> Any:
        return {"echo": call.params}

    return app


@asynccontextmanager
async def gateway(app: Fairlead) -> AsyncIterator[httpx2.AsyncClient]:
    async with app.running(), client_of(create_gateway(app)) as client:
        yield client


async def test_a_schedule_submits_jobs_of_its_user_through_the_gateway(engine: dict[str, str]) -> None:
    app = app_of(engine)
    async with gateway(app) as client:
        body = {"feature_name": "echo", "every": 1, "input_data": {"n": 7}, "user_id": "ada", "metadata": {"order": 1}}
        created = (await client.post(BASE, json=body)).json()
        assert len(created["next_times"]) == 5
        path = f"{BASE}/{created['id']}"

        async def has_run() -> bool:
            page = (await client.get(f"{path}/runs")).json()
            return any(each["status"] == "COMPLETED" for each in page["data"])

        await until(has_run)
        paused = (await client.post(f"{path}/pause")).json()
        assert (paused["next_at"], paused["next_times"]) == (None, [])
        runs = (await client.get(f"{path}/runs")).json()["data"]
        job = (await client.get(f"/api/v1/jobs/{runs[-1]['job_id']}")).json()
        assert (job["user_id"], job["input_data"]) == ("ada", {"n": 7})
        assert job["metadata"] == {"order": 1, "schedule": {"id": created["id"], "due_at": runs[-1]["due_at"]}}
        started = (await client.post(f"{path}/run")).json()
        newest = (await client.get(f"{path}/runs?limit=1")).json()
        assert (newest["data"][0]["job_id"], newest["data"][0]["due_at"]) == (started["job_id"], None)
        assert newest["next_cursor"] is not None
        assert (await client.post(f"{path}/resume")).json()["next_at"] is not None
        assert (await client.delete(path)).status_code == 204
        assert (await client.get(path)).status_code == 404
        rows = (await client.get("/admin/audit")).json()["data"]
        # A change that met a run of the schedule was refused and tried again.
        actions = [row["action"] for row in rows if row["outcome"]["status"] == "done"]
        assert actions == [f"schedule.{each}" for each in ("delete", "resume", "run", "pause", "create")]


async def test_a_change_keeps_the_rest_and_null_resets(embedded: dict[str, str]) -> None:
    async with gateway(app_of(embedded)) as client:
        body = {"feature_name": "echo", "cron": FAR, "timezone": "Europe/Berlin", "overlap": "skip", "priority": "low"}
        path = f"{BASE}/{(await client.post(BASE, json=body)).json()['id']}"
        changed = (await client.put(path, json={"every": 7200, "priority": None, "name": "slow"})).json()
        assert (changed["cron"], changed["every"], changed["priority"]) == (None, 7200, None)
        assert (changed["overlap"], changed["name"], changed["user_id"]) == ("skip", "slow", "schedules")
        again = (await client.put(path, json={"cron": FAR})).json()
        assert (again["cron"], again["every"]) == (FAR, None)
        assert again == (await client.get(path)).json()


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"cron": "61 * * * *"}, "/cron"),
        ({}, "/cron"),
        ({"cron": FAR, "every": 5}, "/cron"),
        ({"every": True}, "/every"),
        ({"cron": FAR, "cost": True}, "/cost"),
        ({"cron": FAR, "deadline": True}, "/deadline"),
        ({"cron": FAR, "timezone": "Nowhere/Town"}, "/timezone"),
        ({"cron": FAR, "feature_name": "unknown"}, "/feature_name"),
        ({"cron": FAR, "region": "eu", "allowed_regions": ["us"]}, "/region"),
        ({"cron": FAR, "webhook_url": "http://example.com"}, "/webhook_url"),
        ({"cron": FAR, "metadata": {"a": "x" * 17000}}, "/metadata"),
    ],
)
async def test_a_schedule_that_could_never_submit_is_refused(
    embedded: dict[str, str], body: dict[str, Any], pointer: str
) -> None:
    async with gateway(app_of(embedded)) as client:
        answer = await client.post(BASE, json={"feature_name": "echo", **body})
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer), answer.text
        assert (await client.get(BASE)).json() == {"data": []}


async def test_users_reach_their_own_schedules_and_change_none_of_the_configuration(embedded: dict[str, str]) -> None:
    app = app_of(embedded, nightly={"cron": FAR, "feature_name": "echo", "user_id": "ada"})
    async with gateway(app) as client:
        keys = {name: {"Authorization": f"Bearer {key}"} for name, key in (await keys_of(app)).items()}
        body = {"feature_name": "echo", "cron": FAR, "priority": "high"}
        own = (await client.post(BASE, json=body, headers=keys["ada"])).json()
        assert own["user_id"] == "ada"
        assert (await client.post(BASE, json={**body, "user_id": "bob"}, headers=keys["ada"])).status_code == 403
        listed = (await client.get(BASE, headers=keys["ada"])).json()["data"]
        assert [each["id"] for each in listed] == ["nightly", own["id"]]
        assert (await client.get(BASE, headers=keys["bob"])).json() == {"data": []}
        for method, path in (
            ("GET", ""),
            ("PUT", ""),
            ("DELETE", ""),
            ("POST", "/run"),
            ("POST", "/pause"),
            ("GET", "/runs"),
        ):
            sent = {"json": {"name": "x"}} if method == "PUT" else {}
            url = f"{BASE}/{own['id']}{path}"
            assert (await client.request(method, url, headers=keys["bob"], **sent)).status_code == 404
            if method != "GET":
                refused = await client.request(method, f"{BASE}/nightly{path}", headers=keys["ada"], **sent)
                assert refused.status_code == 409
        assert (await client.post(f"{BASE}/nightly/pause", headers=keys["admin"])).json()["paused_at"] is not None
        job_id = (await client.post(f"{BASE}/{own['id']}/run", headers=keys["ada"])).json()["job_id"]
        assert (await app.get(job_id)).priority == "medium", "a user's own schedule only lowers the priority"


async def test_schedules_follow_the_configuration_of_the_last_start(embedded: dict[str, str]) -> None:
    async def started(**schedules: Any) -> dict[str, Schedule]:
        app = app_of(embedded, **schedules)
        async with app.running():
            if "hourly" in schedules:
                await app.schedules.pause("hourly")
            return {each.id: each for each in await app.schedules.all()}

    echo = {"feature_name": "echo"}
    first = await started(hourly={**echo, "every": 3600}, nightly={**echo, "cron": FAR})
    second = await started(hourly={**echo, "every": 3600, "user_id": "ada"}, nightly={**echo, "cron": "0 0 2 1 *"})
    assert second["hourly"].paused_at is not None
    assert (second["hourly"].next_at, second["hourly"].user_id) == (first["hourly"].next_at, "ada")
    assert second["nightly"].next_at != first["nightly"].next_at
    assert await started() == {}


@in_virtual_time
async def test_functions_are_called_at_their_times_and_one_run_waits_for_another(tmp_path: Path) -> None:
    app, calls = Fairlead(Config()), []

    @app.cron("*/5 * * * *")
    async def quick(call: Call) -> None:
        calls.append(call.params)

    @app.cron("*/2 * * * *", "often", overlap="wait")
    @app.service(limit=2)
    async def slow(call: Call) -> None:
        await asyncio.sleep(250)

    async with run(app, tmp_path) as site:
        await asyncio.sleep(15 * 60)
        page = await site.app.schedules.runs("quick")
        due = [each.due_at or 0.0 for each, _ in page.data]
        assert len(calls) == len(due) == 3
        assert [at % 300 for at in due] == [0.0] * 3
        assert all(EPOCH < at < EPOCH + 900 for at in due)
        assert all(each.at - at < 1 for (each, _), at in zip(page.data, due, strict=True))
        often = await site.app.schedules.runs("often")
        jobs = [job for each, job in often.data if each.outcome is RunOutcome.SUBMITTED and job is not None]
        starts = sorted(job.started_at or 0.0 for job in jobs)
        assert len(starts) >= 3
        assert all(later - earlier >= 250 for earlier, later in pairwise(starts))
        assert {each.outcome for each, _ in often.data} == {RunOutcome.SUBMITTED, RunOutcome.SKIPPED}


def test_the_command_line_manages_schedules(tmp_path: Path) -> None:
    with up(tmp_path, "project:app") as server:
        options = ("--cron", "0 6 * * *", "--timezone", "Europe/Berlin", "--user", "ada", "--name", "news")
        created = server.run("schedules", "create", "echo", *options, "--input", '{"n": 1}', "--json").json
        id_ = created["id"]
        assert (created["cron"], created["input_data"], created["user_id"]) == ("0 6 * * *", {"n": 1}, "ada")
        listed = server.run("schedules", "list")
        assert id_ in listed.out
        assert "0 6 * * * Europe/Berlin" in listed.out
        assert len(server.run("schedules", "show", id_).out.splitlines()) == 6
        job_id = server.run("schedules", "run", id_).out.strip()
        assert server.run("get", job_id, "--json").json["input_data"] == {"n": 1}
        assert "paused since" in server.run("schedules", "pause", id_).out
        assert "paused" not in server.run("schedules", "resume", id_).out
        shown = server.run("schedules", "runs", id_).out
        assert job_id in shown
        assert "run now" in shown
        wrong = server.run("schedules", "create", "echo", "--cron", "0 6 * *")
        assert wrong.code != 0
        assert "cron" in wrong.err
        assert "deleted" in server.run("schedules", "delete", id_).out
        assert server.run("schedules", "show", id_).code != 0
