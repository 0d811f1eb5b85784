"""Regions, called for real: where jobs go, which bounds they keep, and limits as the endpoints count them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead import JobStatus
from fairlead.engine.roles import Roles
from fairlead.errors import NotFound
from fairlead.gateway.app import create_gateway
from fairlead.gateway.models_runtime import QueueStatus, RegionStatus
from tests.integration.gateway_site import client_of
from tests.integration.region_endpoints import Endpoints, open_endpoints

PATIENCE = 30.0


@pytest.fixture
async def endpoints() -> AsyncIterator[Endpoints]:
    async with open_endpoints("eu", "us") as served:
        yield served


async def test_a_job_that_fails_in_its_region_is_completed_by_the_first_free_one(
    endpoints: Endpoints, engines: dict[str, str]
) -> None:
    endpoints.switch("us", "fails")
    async with endpoints.app(engines).running() as app:
        job = await app.submit("gpu", region="us")
        assert await job.result(PATIENCE) == {"region": "eu"}
        shown = await job.get()
    assert shown.attempts is not None
    assert [(each["region"], each["error"]["code"]) for each in shown.attempts] == [("us", "HTTP_503")]
    assert (shown.region, shown.allowed_regions) == ("us", None)


async def test_allowed_regions_also_bind_retries(endpoints: Endpoints, engines: dict[str, str]) -> None:
    endpoints.switch("us", "fails")
    async with endpoints.app(engines).running() as app:
        strict = await app.submit("gpu", {"name": "strict"}, allowed_regions=["us"])
        shown = await app.wait(strict.id, PATIENCE)
        assert shown.status is JobStatus.FAILED
        assert shown.attempts is not None
        assert [each["region"] for each in shown.attempts] == ["us", "us", "us"]
        assert endpoints["eu"].calls == []


async def test_a_strictly_bound_job_waits_for_its_own_region_while_another_is_free(
    endpoints: Endpoints, engines: dict[str, str]
) -> None:
    endpoints.switch("us", "hangs")
    async with endpoints.app(engines).running() as app:
        hung = await app.submit("gpu", {"name": "hung"}, region="us")
        await endpoints["us"].is_called()
        strict = await app.submit("gpu", {"name": "strict"}, allowed_regions=["us"])
        free = await app.submit("gpu", {"name": "free"})
        assert await free.result(PATIENCE) == {"region": "eu"}
        assert (await strict.get()).status is JobStatus.PENDING
        endpoints.switch("us", "works")
        assert await strict.result(PATIENCE) == {"region": "us"}
        await hung.result(PATIENCE)
    assert endpoints["us"].calls == ["hung", "strict"]


async def test_a_rebuilt_queue_has_the_region_of_each_call(endpoints: Endpoints, engines: dict[str, str]) -> None:
    endpoints.switch("us", "hangs")
    async with endpoints.app(engines).running() as app:
        assert app._runtime.node is not None
        (line,) = app._runtime.node.shards.values()
        hung = await app.submit("gpu", {"name": "hung"}, allowed_regions=["us"])
        await endpoints["us"].is_called()
        (before,) = await line.dispatcher.snapshot(["gpu"])
        store = app._runtime.store
        assert store is not None
        epoch = (await store.epochs())["service:gpu"].number
        await app.rebuild("gpu")
        async with asyncio.timeout(PATIENCE):
            while (await store.epochs())["service:gpu"].number == epoch:
                await asyncio.sleep(0.01)
        strict = await app.submit("gpu", {"name": "strict"}, allowed_regions=["us"])
        free = await app.submit("gpu", {"name": "free"}, allowed_regions=["eu"])
        await free.result(PATIENCE)
        (after,) = await line.dispatcher.snapshot(["gpu"])
        async with asyncio.timeout(PATIENCE):
            while len(after.leases) > 1:  # a result is known before its slot is released
                await asyncio.sleep(0.01)
                (after,) = await line.dispatcher.snapshot(["gpu"])
        assert [(lease.name, lease.region) for lease in after.leases] == [(before.leases[0].name, "us")]
        assert (await strict.get()).status is JobStatus.PENDING
        endpoints.switch("us", "works")
        await strict.result(PATIENCE)
        await hung.result(PATIENCE)
    assert (endpoints["us"].most, endpoints["us"].calls) == (1, ["hung", "strict"])


async def test_a_job_that_waited_long_enough_for_its_region_runs_in_another(
    endpoints: Endpoints, engines: dict[str, str]
) -> None:
    endpoints.switch("us", "hangs")
    async with endpoints.app(engines, spill_after=0.2).running() as app:
        await app.submit("gpu", {"name": "hung"}, allowed_regions=["us"])
        await endpoints["us"].is_called()
        strict = await app.submit("gpu", {"name": "strict"}, region="us", allowed_regions=["us"])
        spilled = await app.submit("gpu", {"name": "spilled"}, region="us")
        assert await spilled.result(PATIENCE) == {"region": "eu"}
        assert (await strict.get()).status is JobStatus.PENDING
        endpoints.switch("us", "works")
        assert await strict.result(PATIENCE) == {"region": "us"}


# ---------------------------------------------------------------- regions that fail


async def test_a_region_that_fails_hangs_and_recovers_never_exceeds_its_limit(engines: dict[str, str]) -> None:
    """Three regions of limit 1 and a pool of 2, as the endpoints themselves count."""
    async with open_endpoints("ap", "eu", "us") as endpoints:
        for deployment in endpoints.regions.values():
            deployment.takes = 0.01
        options = {"pool": 2, "timeout": 0.4, "max_attempts": 20, "breaker": {"failures": 2, "rest": 0.2}}
        async with endpoints.app(engines, **options).running() as app:

            async def finish(count: int) -> None:
                jobs = [await app.submit("gpu", {"name": f"job {number}"}) for number in range(count)]
                for job in jobs:
                    await job.result(PATIENCE)

            await finish(6)
            for mode in ("fails", "hangs", "works"):
                endpoints.switch("us", mode)
                bound = [await app.submit("gpu", {"name": mode}, region="us") for _ in range(2)]
                strict = await app.submit("gpu", {"name": f"strict {mode}"}, allowed_regions=["ap", "eu"])
                await finish(12)
                for job in bound:
                    await job.result(PATIENCE)
                assert (await strict.result(PATIENCE))["region"] in ("ap", "eu")
            own = await app.submit("gpu", {"name": "own"}, allowed_regions=["us"])
            assert await own.result(PATIENCE) == {"region": "us"}
    assert {name: each.most for name, each in endpoints.regions.items()} == {"ap": 1, "eu": 1, "us": 1}
    assert endpoints.most == 2


async def test_a_failing_region_rests_is_probed_by_one_call_and_works_again(
    endpoints: Endpoints, engines: dict[str, str]
) -> None:
    endpoints.switch("us", "fails")
    async with endpoints.app(engines, breaker={"failures": 2, "rest": 0.5}, max_attempts=50).running() as app:

        async def state() -> str:
            breaker = (await app.region_status("us"))["services"][0]["breaker"]
            return "" if breaker is None else str(breaker["state"])  # unknown until the queue is built

        strict = await app.submit("gpu", {"name": "strict"}, allowed_regions=["us"])
        async with asyncio.timeout(PATIENCE):
            while await state() != "resting":
                await asyncio.sleep(0.01)
        assert await (await app.submit("gpu")).result(PATIENCE) == {"region": "eu"}
        endpoints.switch("us", "works")
        assert await strict.result(PATIENCE) == {"region": "us"}
        assert await state() == "working"


async def test_why_and_status_name_a_resting_region(endpoints: Endpoints, engines: dict[str, str]) -> None:
    endpoints.switch("us", "fails")
    async with endpoints.app(engines, breaker={"failures": 1, "rest": 600}).running() as app:
        moved = await app.submit("gpu", region="us")
        assert await moved.result(PATIENCE) == {"region": "eu"}
        strict = await app.submit("gpu", allowed_regions=["us"])
        why = await app.why(strict.id)
        assert [reason.code for reason in why.reasons] == ["region_resting", "in_line"]
        assert why.reasons[0].details["region"] == "us"
        there = (await app.region_status("us"))["services"][0]
        assert (there["breaker"]["state"], there["breaker"]["failures"]) == ("resting", 1)
        assert there["waiting"] == {"main": 1, "retry": 0}
        assert endpoints["us"].calls == [""]
        async with asyncio.timeout(PATIENCE):
            # A dispatcher that did not answer during the rebuild is not queried again at once.
            while (shown := (await strict.get()).estimated_wait) is None:
                await asyncio.sleep(0.01)
        assert why.estimated_wait is not None
        assert min(why.estimated_wait.low, shown.low) > 300, "nothing starts before the end of the rest"


async def test_jobs_that_prefer_a_region_go_elsewhere_at_once_while_it_rests(
    endpoints: Endpoints, engines: dict[str, str]
) -> None:
    endpoints.switch("us", "fails")
    async with endpoints.app(engines, breaker={"failures": 1, "rest": 600}, max_attempts=50).running() as app:
        jobs = [await app.submit("gpu", {"name": str(n)}, region="us") for n in range(6)]
        for job in jobs:
            assert await job.result(PATIENCE) == {"region": "eu"}
        assert len(endpoints["us"].calls) == 1, "only the first one tried it"
        endpoints.switch("eu", "hangs")
        await app.submit("gpu", {"name": "hung"}, region="us")
        await endpoints["eu"].reaches(1)
        waiting = await app.submit("gpu", {"name": "waiting"}, region="us")
        why = await app.why(waiting.id)
        assert {"region_resting", "region_full"} <= {reason.code for reason in why.reasons}
        assert {reason.details.get("region") for reason in why.reasons} >= {"us", "eu"}


async def test_rejected_input_does_not_count_against_a_region(endpoints: Endpoints, engines: dict[str, str]) -> None:
    endpoints.switch("us", "refuses")
    async with endpoints.app(engines, breaker={"failures": 1, "rest": 600}).running() as app:
        job = await app.wait((await app.submit("gpu", region="us")).id, PATIENCE)
        assert job.status is JobStatus.FAILED
        there = (await app.region_status("us"))["services"][0]
        assert there["breaker"] == {"state": "working", "failures": 0, "resting_until": None}


async def test_a_hung_region_does_not_reduce_the_throughput_of_the_others(
    endpoints: Endpoints, engines: dict[str, str]
) -> None:
    endpoints.switch("us", "hangs")
    async with endpoints.app(engines, timeout=300).running() as app:
        hung = await app.submit("gpu", {"name": "hung"}, region="us")
        await endpoints["us"].is_called()
        others = [await app.submit("gpu", {"name": str(number)}) for number in range(20)]
        for job in others:
            assert await job.result(PATIENCE) == {"region": "eu"}
        shown = await hung.get()
        assert (shown.status, shown.attempts) == (JobStatus.RUNNING, [])  # the others have not waited for its timeout
        endpoints.switch("us", "works")
        assert await hung.result(PATIENCE) == {"region": "us"}
    assert endpoints["us"].calls == ["hung"]


async def test_a_hung_region_costs_one_timeout(endpoints: Endpoints, engines: dict[str, str]) -> None:
    endpoints.switch("us", "hangs")
    async with endpoints.app(engines, timeout=0.3, breaker={"failures": 1, "rest": 600}).running() as app:
        hung = await app.submit("gpu", {"name": "hung"}, region="us")
        assert await hung.result(PATIENCE) == {"region": "eu"}
        for _ in range(5):
            assert await (await app.submit("gpu")).result(PATIENCE) == {"region": "eu"}
        shown = await hung.get()
    assert shown.attempts is not None
    assert [(each["region"], each["error"]["code"]) for each in shown.attempts] == [("us", "TIMEOUT")]
    assert endpoints["us"].calls == ["hung"]


async def test_an_unknown_region_is_not_found(endpoints: Endpoints, engines: dict[str, str]) -> None:
    async with endpoints.app(engines).running() as app:
        with pytest.raises(NotFound, match="the regions are: eu, us"):
            await app.region_status("mars")


# ---------------------------------------------------------------- over HTTP


async def test_regions_over_http(endpoints: Endpoints, tmp_path: Path) -> None:
    app = endpoints.app({"database_url": f"sqlite:///{tmp_path}/fairlead.db"}, breaker={"failures": 1, "rest": 600})
    endpoints.switch("us", "hangs")
    async with app.running(), client_of(create_gateway(app)) as client:
        job = {"user_id": "ada", "feature_name": "gpu"}
        there = [{**job, "region": "us"}, {**job, "allowed_regions": ["us"]}, {**job, "allowed_regions": ["us", "eu"]}]
        receipts = (await client.post("/api/v1/jobs/bulk", json={"jobs": there})).json()["jobs"]
        await endpoints["us"].is_called()
        assert (await app.wait(receipts[2]["job_id"], PATIENCE)).result == {"region": "eu"}
        shown = (await client.get(f"/api/v1/jobs/{receipts[1]['job_id']}")).json()
        assert (shown["status"], shown["region"], shown["allowed_regions"]) == ("PENDING", None, ["us"])
        seen = (await client.get("/queue/status/us")).json()
        status = RegionStatus.model_validate(seen)
        assert (status.limit, status.running, status.waiting.main, status.waiting.retry) == (1, 1, 1, 0)
        assert status.services[0].breaker.state == "working"
        whole = QueueStatus.model_validate((await client.get("/queue/status")).json())
        assert whole.services[0].regions["eu"].latency is not None
        assert [slot.region for slot in whole.services[0].running] == ["us"]
        unknown = await client.get("/queue/status/mars")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
        bad = await client.post("/api/v1/jobs/bulk", json={"jobs": [job, {**job, "region": "mars"}]})
        assert (bad.status_code, bad.json()["errors"][0]["pointer"]) == (422, "/jobs/1/region")
        endpoints.switch("us", "works")
        await app.wait(receipts[1]["job_id"], PATIENCE)


async def test_jobs_that_prefer_a_region_without_a_worker_go_elsewhere(
    endpoints: Endpoints, engines: dict[str, str]
) -> None:
    async with endpoints.app(engines).running(Roles(regions=frozenset({"eu"}))) as app:
        strict = await app.submit("gpu", {"name": "strict"}, allowed_regions=["us"])
        preferring = await app.submit("gpu", {"name": "preferring"}, region="us")
        assert await preferring.result(PATIENCE) == {"region": "eu"}
        (no_worker,) = [reason for reason in (await app.why(strict.id)).reasons if reason.code == "no_worker"]
        assert no_worker.message == "no worker is alive for gpu in us"
        async with asyncio.timeout(PATIENCE):
            while (await app.get(strict.id)).estimated_wait is not None:  # the processes are read every two seconds
                await asyncio.sleep(0.05)
        endpoints.switch("eu", "hangs")
        await app.submit("gpu", {"name": "hung"})
        await endpoints["eu"].reaches(1)
        waiting = await app.submit("gpu", {"name": "waiting"}, region="us")
        why = await app.why(waiting.id)
        assert [(reason.code, reason.details.get("region")) for reason in why.reasons] == [
            ("region_full", "eu"),
            ("in_line", None),
        ]
        assert why.estimated_wait is not None
        async with asyncio.timeout(PATIENCE):
            while (await app.get(waiting.id)).estimated_wait is None:  # a slow machine renews its registration late
                await asyncio.sleep(0.05)
        endpoints.switch("eu", "works")
        assert await waiting.result(PATIENCE) == {"region": "eu"}
    assert endpoints["us"].calls == []
