"""Each finding of the doctor provoked for real, and gone after its fix: here in one process, on SQLite and memory.
test_doctor_distributed.py, test_doctor_engines.py, test_celery_executor.py and test_sqlite_files.py have the others."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import time
from collections import namedtuple
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI, HTTPException

from fairlead import Call, Config, Fairlead, JobStatus, Permanent
from fairlead.config import Settings
from fairlead.dispatch.port import Withdrawal
from fairlead.engine.loops import reconcile
from fairlead.observe import doctor
from fairlead.observe.doctor import KINDS, facts
from fairlead.observe.doctor.finding import Severity
from tests.balancing import test_consumption
from tests.integration import (
    doctor_site,
    test_celery_executor,
    test_cut_off,
    test_doctor_capabilities,
    test_doctor_distributed,
    test_doctor_engines,
    test_sqlite_files,
)
from tests.integration.cli_process import fairlead
from tests.integration.doctor_site import API, Operator, command_in, provokes, until_found, until_gone
from tests.integration.gateway_site import served
from tests.integration.region_endpoints import open_endpoints

Make = Callable[..., Fairlead]


class Gate:
    def __init__(self) -> None:
        self.opened, self.entered = asyncio.Event(), asyncio.Semaphore(0)

    async def pass_through(self, call: Call) -> str:
        self.entered.release()
        await self.opened.wait()
        return "through"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter pauses between the doctor's two looks, and waiting jobs are expected in the queue at once."""
    monkeypatch.setattr(doctor, "SECOND_LOOK", 0.2)
    monkeypatch.setattr(facts, "SETTLED", 0.0)


@pytest.fixture
async def operator(monkeypatch: pytest.MonkeyPatch, make: Make) -> AsyncIterator[Operator]:
    operator = Operator(monkeypatch)
    yield operator
    await operator.close()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def make(tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Make:
    """An app on the file of this test, with a service `gpu` of two slots whose calls wait at the gate."""
    url = f"sqlite:///{tmp_path}/fairlead.db"
    monkeypatch.setenv("DATABASE_URL", url)
    monkeypatch.chdir(tmp_path)

    def made(*, options: str = "", gpu: bool = True, admin_key: str | None = None, **config: Any) -> Fairlead:
        app = Fairlead(Settings(Config.model_validate(config), url + options, admin_key))
        if gpu:
            app.service("gpu", limit=2)(gate.pass_through)
        return app

    return made


async def running(app: Fairlead, gate: Gate, count: int) -> list[str]:
    jobs = [(await app.submit("gpu")).id for _ in range(count)]
    for _ in jobs:
        async with asyncio.timeout(30):
            await gate.entered.acquire()
    return jobs


# ---------------------------------------------------------------- coverage


def test_every_finding_is_provoked_by_a_test() -> None:
    elsewhere = (
        test_celery_executor,
        test_cut_off,
        test_doctor_capabilities,
        test_doctor_distributed,
        test_doctor_engines,
        test_sqlite_files,
    )
    modules = (globals(), vars(test_consumption), *map(vars, elsewhere))
    provoked = {code for module in modules for test in module.values() for code in getattr(test, "provoked_codes", ())}
    assert provoked == KINDS.keys()


async def test_a_healthy_deployment_is_reported_as_such_over_http_and_on_the_command_line(
    make: Make, operator: Operator
) -> None:
    app = make()
    async with app.running():
        await operator.serve(app)
        findings = await app.doctor()
        assert [each for each in findings if each.severity is not Severity.NOTE] == []
        shown = await operator.fairlead(["fairlead", "doctor"])
        assert "all is well" in shown
        assert "no-keys" in shown


# ---------------------------------------------------------------- queues and slots


@provokes("service-paused")
async def test_a_paused_service(make: Make, operator: Operator) -> None:
    app = make()
    async with app.running():
        await operator.serve(app)
        await app.pause("gpu")
        await app.submit("gpu")
        seen = await until_found(app, "service-paused")
        await operator.fairlead(command_in(seen["service-paused"], "fairlead", "unpause"))
        await until_gone(app, "service-paused")


@provokes("limit-overridden", "above-limit")
async def test_a_limit_below_the_running_calls(make: Make, operator: Operator, gate: Gate) -> None:
    app = make()
    async with app.running():
        await operator.serve(app)
        await running(app, gate, 2)
        await app.set_limit("gpu", 1)
        seen = await until_found(app, "limit-overridden", "above-limit")
        assert seen["above-limit"].evidence["open"] == 2
        lift = command_in(seen["above-limit"], "fairlead", "limit")
        assert lift == command_in(seen["limit-overridden"], "fairlead", "limit")
        await operator.fairlead(lift)
        await until_gone(app, "limit-overridden", "above-limit")
        gate.opened.set()


@provokes("region-resting")
async def test_a_resting_region(make: Make) -> None:
    async with open_endpoints("eu", "us") as world:
        world.switch("us", "fails")
        app = make(gpu=False, **world.config(breaker={"failures": 1, "rest": 1}))
        async with app.running():
            await (await app.submit("gpu", region="us")).result(30)
            strict = await app.submit("gpu", allowed_regions=["us"])
            seen = await until_found(app, "region-resting")
            assert seen["region-resting"].evidence["region"] == "us"
            assert "waiting-while-free" not in seen
            world.switch("us", "works")
            await strict.result(30)
            await until_gone(app, "region-resting")


@provokes("held-full")
async def test_holds_that_fill_a_service(make: Make, operator: Operator) -> None:
    endpoint, entered = FastAPI(), asyncio.Event()

    @endpoint.post("/")
    async def compute() -> None:
        entered.set()
        await asyncio.Event().wait()

    async with served(endpoint) as port:
        gpu = {"limit": 1, "url": f"http://127.0.0.1:{port}/"}
        app = make(gpu=False, worker={"drain_timeout": 0}, services={"gpu": gpu})
        async with app.running():
            await operator.serve(app)
            await app.submit("gpu")
            await entered.wait()
            # The call is released, and the endpoint continues to compute.
            await app.drain_worker((await app.processes())[0].name)
            seen = await until_found(app, "held-full")
            assert seen["held-full"].evidence["held"] == 1
            await operator.fairlead(command_in(seen["held-full"], "fairlead", "limit"))
            await until_gone(app, "held-full")


@provokes("workers-full")
async def test_full_workers_while_slots_are_free(make: Make, gate: Gate) -> None:
    async with make(worker={"concurrency": 1}).running() as app:
        await running(app, gate, 1)
        await app.submit("gpu")
        await until_found(app, "workers-full")
    async with make(worker={"concurrency": 2}).running() as app:
        await until_gone(app, "workers-full")
        gate.opened.set()


@provokes("not-in-line")
async def test_a_job_that_the_queue_lost(
    make: Make, operator: Operator, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "EVERY", 3600.0)  # a manager would repair it
    app = make()
    async with app.running():
        await operator.serve(app)
        await running(app, gate, 2)
        lost = await app.submit("gpu")
        process = app._runtime.node
        assert process is not None
        await process.shards["main"].relay.settled()
        assert await process.shards["main"].dispatcher.withdraw([Withdrawal(lost.id, "gpu", 1_000)])
        seen = await until_found(app, "not-in-line")
        assert seen["not-in-line"].evidence["jobs"] == [lost.id]
        await operator.fairlead(command_in(seen["not-in-line"], "fairlead", "rebuild"))
        await until_gone(app, "not-in-line")
        gate.opened.set()
        assert (await app.wait(lost.id, 30)).status is JobStatus.COMPLETED


@provokes("queue-repaired")
async def test_a_job_that_the_queue_lost_and_a_manager_put_back(
    make: Make, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "EVERY", 0.1)
    monkeypatch.setattr(reconcile, "LOOK_AGAIN", 0.1)
    app = make()
    async with app.running():
        await running(app, gate, 2)
        lost = await app.submit("gpu")
        process = app._runtime.node
        assert process is not None
        await process.shards["main"].relay.settled()
        assert await process.shards["main"].dispatcher.withdraw([Withdrawal(lost.id, "gpu", 1_000)])
        seen = await until_found(app, "queue-repaired")
        assert seen["queue-repaired"].evidence["jobs"] == {"gpu": [lost.id]}
        gate.opened.set()
        assert (await app.wait(lost.id, 30)).status is JobStatus.COMPLETED


@provokes("service-undeclared")
async def test_jobs_of_a_service_that_is_no_longer_declared(make: Make, operator: Operator) -> None:
    async with make().running() as app:
        await app.pause("gpu")
        await app.submit("gpu")
    other = make(gpu=False)
    other.service("cpu", limit=1)(lambda call: None)
    async with other.running():
        seen = await until_found(other, "service-undeclared")
        assert (seen["service-undeclared"].about, seen["service-undeclared"].evidence["waiting"]) == ("gpu", 1)
    async with operator.started(make(), command_in(seen["service-undeclared"], "fairlead", "up")) as app:
        await until_gone(app, "service-undeclared")


@provokes("region-undeclared")
async def test_jobs_for_a_region_that_is_no_longer_declared(make: Make, operator: Operator) -> None:
    async with open_endpoints("eu", "us") as world:
        async with make(gpu=False, **world.config()).running() as app:
            await app.pause("gpu")
            asked = await app.submit("gpu", region="us")
            strict = await app.submit("gpu", allowed_regions=["us"])
        fewer = world.config()
        del fewer["services"]["gpu"]["regions"]["us"]
        app = make(gpu=False, **fewer)
        async with app.running():
            await operator.serve(app)
            await app.unpause("gpu")
            seen = await until_found(app, "region-undeclared")
            assert "waiting-while-free" not in seen
            why = await app.why(strict.id)
            assert why.reasons[0].code == "region_not_declared"
            await operator.fairlead(command_in(seen["region-undeclared"], "fairlead", "rebuild"))
            assert (await app.wait(asked.id, 30)).result == {"region": "eu"}
            await app.cancel(strict.id)
            await until_gone(app, "region-undeclared")


@provokes("service-not-configured")
async def test_a_gateway_that_does_not_know_a_service(make: Make) -> None:
    async with make().running():
        async with make(gpu=False).running(API) as gateway:
            seen = await until_found(gateway, "service-not-configured")
            assert seen["service-not-configured"].about == "gpu"
        async with make().running(API) as gateway:
            await until_gone(gateway, "service-not-configured")


# ---------------------------------------------------------------- workers


@provokes("worker-draining")
async def test_a_draining_worker(make: Make, operator: Operator) -> None:
    app = make()
    async with app.running():
        await operator.serve(app)
        await app.drain_worker((await app.processes())[0].name)
        seen = await until_found(app, "worker-draining", "no-worker")
        await operator.fairlead(command_in(seen["worker-draining"], "fairlead", "workers", "drain"))
        await until_gone(app, "worker-draining", "no-worker")


@provokes("event-loop-blocked")
async def test_a_handler_that_blocks_the_event_loop(make: Make) -> None:
    async def blocks(call: Call) -> None:
        time.sleep(1.7)  # noqa: ASYNC251

    def in_a_thread(call: Call) -> None:
        time.sleep(1.7)

    app = make(gpu=False)
    # The shorter the lease, the more often the heartbeat checks the loop.
    app.service("slow", limit=1, lease_ttl=1.5)(blocks)
    async with app.running():
        await app.wait((await app.submit("slow")).id, 30)
        seen = await until_found(app, "event-loop-blocked")
        assert "in blocks" in seen["event-loop-blocked"].evidence["where"]
    app = make(gpu=False)
    app.service("slow", limit=1, lease_ttl=1.5)(in_a_thread)
    async with app.running():
        await app.wait((await app.submit("slow")).id, 30)
        await until_gone(app, "event-loop-blocked")


@provokes("versions-differ")
async def test_processes_of_two_versions(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async with make().running() as app:
        with monkeypatch.context() as older:
            older.setattr("fairlead.engine.registry.__version__", "0.0.1")
            async with make().running(API):
                await until_found(app, "versions-differ")
        async with make().running(API):
            await until_gone(app, "versions-differ")


# ---------------------------------------------------------------- settings


@provokes("lease-ttl-short", "promotion-slow", "any-origin", "commit-not-durable")
@pytest.mark.parametrize(
    ("code", "bad", "good"),
    [
        ("lease-ttl-short", {"lease_ttl": 2}, {"lease_ttl": 15}),
        ("promotion-slow", {"promotion": {"low_to_medium_after": 100_000}}, {}),
        ("any-origin", {"server": {"allowed_origins": ["*"]}}, {"server": {"allowed_origins": ["https://a.example"]}}),
        ("commit-not-durable", {"options": "?synchronous=normal"}, {}),
    ],
)
async def test_risky_settings(make: Make, code: str, bad: dict[str, Any], good: dict[str, Any]) -> None:
    def made(*, lease_ttl: float = 15, **settings: Any) -> Fairlead:
        app = make(gpu=False, **settings)
        app.service("gpu", limit=2, lease_ttl=lease_ttl)(lambda call: None)
        return app

    async with made(**bad).running() as app:
        await until_found(app, code)
    async with made(**good).running() as app:
        await until_gone(app, code)


@provokes("drain-timeout-short", "timeout-far-above-calls")
async def test_timeouts_that_do_not_fit_the_duration_of_calls(make: Make) -> None:
    endpoint = FastAPI()

    @endpoint.post("/")
    async def compute() -> dict[str, int]:
        return {"data": 1}

    async with served(endpoint) as port:
        for timeout, drain, ills in ((3600, 0, True), (30, 30, False)):
            gpu = {"limit": 1, "url": f"http://127.0.0.1:{port}/", "timeout": timeout}
            app = make(gpu=False, worker={"drain_timeout": drain}, services={"gpu": gpu})
            async with app.running():
                assert (await app.wait((await app.submit("gpu")).id, 30)).status is JobStatus.COMPLETED
                look = until_found if ills else until_gone
                await look(app, "drain-timeout-short", "timeout-far-above-calls")


@provokes("priority-not-answered")
async def test_a_priority_service_that_does_not_answer(make: Make) -> None:
    service, answers = FastAPI(), asyncio.Event()

    @service.get("/users/{user_id}/priority")
    async def priority(user_id: str) -> dict[str, str]:
        if not answers.is_set():
            raise HTTPException(503)
        return {"priority": "high"}

    def url(port: int) -> dict[str, Any]:
        # A loaded machine may answer slowly, which is not what this tests.
        return {"url": f"http://127.0.0.1:{port}", "timeout": 30}

    async with served(service) as port, make(priority=url(port)).running() as app:
        await app.submit("gpu", user_id="ada")
        seen = await until_found(app, "priority-not-answered")
        assert "503" in seen["priority-not-answered"].evidence["reason"]
        answers.set()
        await app.submit("gpu", user_id="bob")
        await until_gone(app, "priority-not-answered")


@provokes("calls-time-out")
async def test_calls_that_take_longer_than_their_timeout(make: Make, operator: Operator) -> None:
    app = make(gpu=False)

    @app.service(limit=10, timeout=0.1, max_attempts=1)
    async def slow(call: Call) -> None:
        await asyncio.Event().wait()

    async with app.running():
        await operator.serve(app)
        for job in [await app.submit("slow") for _ in range(3)]:
            await app.wait(job.id, 30)
        seen = await until_found(app, "calls-time-out")
        await operator.fairlead(command_in(seen["calls-time-out"], "fairlead", "dead", "list"))


@provokes("dead-letters-growing")
async def test_many_dead_letters(make: Make, operator: Operator) -> None:
    app = make(gpu=False)

    @app.service(limit=10)
    async def broken(call: Call) -> None:
        raise Permanent("never")

    async with app.running():
        await operator.serve(app)
        for job in [await app.submit("broken") for _ in range(12)]:
            await app.wait(job.id, 30)
        seen = await until_found(app, "dead-letters-growing")
        await operator.fairlead(command_in(seen["dead-letters-growing"], "fairlead", "dead", "list"))
        await operator.fairlead(command_in(seen["dead-letters-growing"], "fairlead", "dead", "purge"))
        await until_gone(app, "dead-letters-growing")


# ---------------------------------------------------------------- keys


@provokes("no-keys", "only-admin-keys")
async def test_keys_are_created_as_the_doctor_advises(make: Make, operator: Operator) -> None:
    async with make().running() as app:
        seen = await until_found(app, "no-keys")
        await operator.fairlead(command_in(seen["no-keys"], "fairlead", "keys", "create"))
        await until_gone(app, "no-keys")
        seen = await until_found(app, "only-admin-keys")
        await operator.fairlead(command_in(seen["only-admin-keys"], "fairlead", "keys", "create"))
        await until_gone(app, "only-admin-keys")


@provokes("bound-publicly")
async def test_a_gateway_that_listens_on_the_network(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from fairlead.cli import process

    app = make(admin_key="secret-secret-secret")
    async with app.running():
        for host, look in (("0.0.0.0", until_found), ("127.0.0.1", until_gone)):
            sockets = process.bind(app, host, 0).sockets
            await look(app, "bound-publicly")
            for each in sockets:
                each.close()


@provokes("gateway-unreachable", "gateway-refuses")
async def test_a_gateway_that_does_not_answer(make: Make, operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_URL", "http://127.0.0.1:1")
    assert codes_of(await looked()) >= {"gateway-unreachable", "database-older"}
    app = make(admin_key="secret-secret-secret")
    async with app.running():
        await operator.serve(app)
        refused = codes_of(await looked())
        assert "gateway-refuses" in refused
        assert "gateway-unreachable" not in refused
        monkeypatch.setenv("FAIRLEAD_API_KEY", "secret-secret-secret")
        asked = await looked()
        assert not codes_of(asked) & {"gateway-unreachable", "gateway-refuses"}
        assert asked["asked"]


def test_a_wrong_command_line_exits_with_two(tmp_path: Path) -> None:
    ended = fairlead("doctor", "--json", cwd=tmp_path, env={"FAIRLEAD_URL": "ftp://127.0.0.1"})
    assert (ended.code, ended.out) == (2, "")
    assert "FAIRLEAD_URL" in ended.err


async def looked() -> dict[str, Any]:
    """The output of `fairlead doctor --json`, whatever it finds."""
    ended = await doctor_site.run(["doctor", "--json"])
    report: dict[str, Any] = json.loads(ended.stdout)
    assert ended.exit_code == (0 if report["well"] else 1)
    return report


def codes_of(report: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in report["findings"]}


async def test_the_route_returns_the_documented_shape(make: Make, operator: Operator) -> None:
    app = make()
    async with app.running():
        await app.pause("gpu")
        await operator.serve(app)
        async with httpx2.AsyncClient(base_url=os.environ["FAIRLEAD_URL"]) as client:
            report = (await client.get("/admin/doctor")).json()
            document = (await client.get("/openapi.json")).json()
        assert report["well"] is False
        assert report["findings"][0]["code"] == "service-paused"
        shape = document["components"]["schemas"]["DoctorFinding"]
        assert set(report["findings"][0]) == set(shape["properties"])


# ---------------------------------------------------------------- the database, and checks without a gateway


@provokes("config-invalid")
async def test_an_invalid_configuration(make: Make, tmp_path: Path, operator: Operator) -> None:
    file = tmp_path / "fairlead.toml"
    file.write_text("[server]\nport = 'eight'\n")
    assert "config-invalid" in codes_of(await looked())
    file.write_text("[server]\nport = 8080\n")
    assert "config-invalid" not in codes_of(await looked())
    await operator.fairlead(["fairlead", "config", "check"])


@provokes("database-older", "database-newer")
async def test_a_database_of_another_version(make: Make, tmp_path: Path, operator: Operator) -> None:
    async with make():
        pass

    def set_version(number: int) -> None:
        with sqlite3.connect(tmp_path / "fairlead.db") as connection:
            connection.execute(f"PRAGMA user_version = {number}")
        connection.close()

    set_version(99)
    assert "database-newer" in codes_of(await looked())
    (tmp_path / "fairlead.db").unlink()
    seen = await looked()
    assert {finding["severity"] for finding in seen["findings"] if finding["code"] == "database-older"} == {"note"}
    assert not (tmp_path / "fairlead.db").exists(), "the doctor creates no database"
    await operator.fairlead(["fairlead", "migrate"])
    assert not codes_of(await looked()) & {"database-older", "database-newer"}
    assert "no-manager" in codes_of(await looked()), "it can be read now"


@provokes("disk-nearly-full")
async def test_a_nearly_full_disk(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only finding that is not provoked for real: a test should not fill the disk of the machine it runs on."""
    usage = namedtuple("usage", "total used free")
    async with make().running() as app:
        with monkeypatch.context() as full:
            full.setattr(shutil, "disk_usage", lambda path: usage(1 << 40, 1 << 40, 1 << 20))
            await until_found(app, "disk-nearly-full")
        await until_gone(app, "disk-nearly-full")
