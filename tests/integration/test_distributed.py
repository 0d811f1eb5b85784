"""Several processes on PostgreSQL and Redis, one aspect per test. All of them at once is tests/chaos/."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests import servers
from tests.chaos.cluster import Cluster, Shape
from tests.chaos.gateway import Gateway
from tests.chaos.redis_server import RedisServer
from tests.chaos.services_process import Seen
from tests.chaos.waiting import until, until_true
from tests.integration.cli_process import fairlead

pytestmark = pytest.mark.slow

Make = Callable[..., Awaitable[Cluster]]
ONE_OF_EACH: dict[str, Any] = {"apis": 1, "workers": ((),), "managers": 1, "pipelines": {}}


@pytest.fixture
async def make(tmp_path: Path, database: str) -> AsyncIterator[Make]:
    """`await make(apis=1, ...)`: a running cluster with its own Redis; its logs are shown when a test fails."""
    async with AsyncExitStack() as stack:

        async def made(*, url: str = database, redis: bool = True, start: bool = True, **shape: Any) -> Cluster:
            chosen = Shape(**{**ONE_OF_EACH, "limits": {"gpu": 1}, **shape})
            cluster = Cluster(tmp_path, chosen, database_url=url, redis=RedisServer(tmp_path) if redis else None)
            stack.push_async_callback(cluster.close)
            stack.callback(lambda: print(cluster.tails()))
            if start:
                await cluster.start()
            return cluster

        yield made


@pytest.fixture
async def gateway() -> AsyncIterator[Callable[..., Gateway]]:
    async with aiohttp.ClientSession() as http:

        def at(cluster: Cluster, name: str = "api0") -> Gateway:
            return Gateway(cluster.urls[name], http)

        yield at


async def until_seen(cluster: Cluster, what: str, look: Callable[[Seen], object]) -> Seen:
    """The counters of the services, once they satisfy the condition."""

    async def looked() -> Seen | None:
        seen = await cluster.services.seen()
        return seen if look(seen) else None

    seen = await until(what, looked)
    assert seen is not None
    return seen


def term(cluster: Cluster) -> int:
    assert cluster.redis is not None
    leader = cluster.redis.leader()
    assert leader is not None
    return int(leader.split()[0])


# ---------------------------------------------------------------- leadership


async def test_the_standby_takes_over_when_the_leader_is_killed(make: Make) -> None:
    cluster = await make(apis=0, workers=(), managers=2, leader_ttl=2.0)
    leader = await cluster.until_leader()
    first = term(cluster)
    leader.kill()
    assert await cluster.until_leader(other_than=leader) is not leader
    assert term(cluster) > first


async def test_a_leader_that_stops_resigns_at_once(make: Make) -> None:
    """Its lease would last far longer than the test waits."""
    cluster = await make(apis=0, workers=(), managers=2, leader_ttl=300.0)
    leader = await cluster.until_leader()
    first = term(cluster)
    leader.signal(signal.SIGTERM)
    await cluster.until_leader(other_than=leader)
    assert leader.wait() == 0
    assert term(cluster) > first


# ---------------------------------------------------------------- slots


async def test_a_killed_workers_call_keeps_its_slot_while_its_job_is_retried(
    make: Make, gateway: Callable[..., Gateway]
) -> None:
    cluster = await make(limits={"gpu": 2}, timeout=300.0, lease_ttl=2.0)
    api = gateway(cluster)
    job = await api.submit("gpu", {"gate": "g"})
    await until_seen(cluster, "the call is open", lambda seen: seen.services["gpu"]["in_flight"] == 1)
    cluster.processes["worker0"].kill()
    cluster.processes["worker0"].start()
    await until_seen(cluster, "the job is called again", lambda seen: seen.services["gpu"]["in_flight"] == 2)
    async with asyncio.timeout(30):
        while (slots := await api.slots("gpu")) and (slots["held"], len(slots["running"])) != (1, 1):
            await asyncio.sleep(0.05)  # the lost lease may be released after its job was granted again
    other = await api.submit("gpu", {"plain": True})
    assert (await api.job(other))["status"] == "PENDING"
    await cluster.services.open_gate("g")
    done = await api.until(job, "COMPLETED")
    assert [attempt["error"]["code"] for attempt in done["attempts"]] == ["WORKER_DIED"]
    await api.until(other, "COMPLETED")
    # The endpoint reports its end to no process: the slot stays taken until the call's deadline.
    assert (await api.slots("gpu"))["held"] == 1
    seen = await cluster.services.seen()
    assert seen.maximum("gpu") == 2
    assert seen.calls_of(job) == {f"{job}:0:0": 2}


async def test_a_flushed_redis_grants_no_slot_twice_and_ends_no_call(
    make: Make, gateway: Callable[..., Gateway]
) -> None:
    cluster = await make(timeout=300.0)
    api = gateway(cluster)
    redis = cluster.redis
    assert redis is not None
    long = await api.submit("gpu", {"gate": "g"})
    await until_seen(cluster, "the call is open", lambda seen: seen.services["gpu"]["in_flight"] == 1)
    waiting = await api.submit("gpu", {"plain": True})
    await until_true("it is queued", lambda: redis.sizes("entries") == 1)
    redis.ask("FLUSHALL")
    await until_true("lease and line are back", lambda: (redis.sizes("leases"), redis.sizes("entries")) == (1, 1))
    # From now on, every grant comes from the rebuilt queue.
    later = await api.submit("gpu", {"plain": True})
    await until_true("it is queued, too", lambda: redis.sizes("entries") == 2)
    await cluster.services.open_gate("g")
    done = [await api.until(job, "COMPLETED") for job in (long, waiting, later)]
    assert [job["attempts"] for job in done] == [[], [], []]
    seen = await cluster.services.seen()
    assert seen.maximum("gpu") == 1
    assert set(seen.calls.values()) == {1}
    assert not seen.gone


# ---------------------------------------------------------------- from one process to another


async def test_a_cancel_at_one_gateway_stops_the_call_elsewhere_and_is_seen_at_another(
    make: Make, gateway: Callable[..., Gateway]
) -> None:
    cluster = await make(apis=2, timeout=300.0)
    here, there = gateway(cluster, "api0"), gateway(cluster, "api1")
    job = await here.submit("gpu", {"gate": "never", "stops": True})
    await until_seen(cluster, "the call is open", lambda seen: seen.services["gpu"]["stoppable"] == 1)
    async with there.events(job) as events:
        first = await anext(events)
        assert (first["type"], first["job"]["status"]) == ("SNAPSHOT", "RUNNING")
        status, answer, _ = await here.post(f"/api/v1/jobs/{job}/cancel")
        assert (status, answer["status"]) == (200, "CANCELLED")
        assert [event["type"] async for event in events][-1] == "JOB_CANCELLED"
    seen = await until_seen(cluster, "the client went away", lambda seen: seen.gone.get(f"{job}:0:0") == 1)
    assert seen.calls_of(job) == {f"{job}:0:0": 1}
    # Its slot is free for the next one.
    await here.until(await there.submit("gpu", {"plain": True}), "COMPLETED")


async def test_every_gateway_sees_what_a_worker_does(make: Make, gateway: Callable[..., Gateway]) -> None:
    cluster = await make(apis=2, timeout=300.0, pipelines={"twice": ["gpu", "gpu"]})
    here, there = gateway(cluster, "api0"), gateway(cluster, "api1")
    job = await here.submit("twice", {"gate": "g"})
    await until_seen(cluster, "the call is open", lambda seen: seen.services["gpu"]["in_flight"] == 1)
    async with here.events(job) as one, there.events(job) as other:
        assert [(await anext(events))["type"] for events in (one, other)] == ["SNAPSHOT", "SNAPSHOT"]
        await cluster.services.open_gate("g")
        for events in (one, other):
            types = [event["type"] async for event in events]
            assert [kind for kind in types if kind not in ("POSITION", "WAITING")] == [
                "STEP_COMPLETE",
                "STEP_START",
                "STEP_COMPLETE",
                "JOB_COMPLETE",
            ]


# ---------------------------------------------------------------- outages


async def test_without_postgres_gateways_return_503_and_a_result_is_kept_until_it_is_back(
    make: Make, gateway: Callable[..., Gateway]
) -> None:
    postgres = servers.own_postgres()
    try:
        cluster = await make(url=postgres.url, timeout=300.0)
        api = gateway(cluster)
        job = await api.submit("gpu", {"gate": "g"})
        await until_seen(cluster, "the call is open", lambda seen: seen.services["gpu"]["in_flight"] == 1)
        postgres.stop()
        status, answer, headers = await api.post("/api/v1/jobs", {"user_id": "ada", "feature_name": "gpu"})
        assert (status, answer["code"]) == (503, "unavailable")
        assert float(headers["Retry-After"]) > 0
        assert str(postgres.port) not in answer["detail"]
        await cluster.services.open_gate("g")
        await until_seen(cluster, "the service has answered", lambda seen: seen.services["gpu"]["in_flight"] == 0)
        postgres.start()
        done = await api.until(job, "COMPLETED")
        assert done["result"] == {"key": f"{job}:0:0", "call": 1}
        assert (await cluster.services.seen()).calls == {f"{job}:0:0": 1}
        await api.until(await api.submit("gpu", {"plain": True}), "COMPLETED")
    finally:
        postgres.remove()


async def test_jobs_are_accepted_during_a_redis_outage_and_run_after_it(
    make: Make, gateway: Callable[..., Gateway]
) -> None:
    cluster = await make(limits={"gpu": 2})
    api = gateway(cluster)
    redis = cluster.redis
    assert redis is not None
    await api.until(await api.submit("gpu", {"plain": True}), "COMPLETED")
    redis.kill()
    jobs = [await api.submit("gpu", {"plain": True}) for _ in range(5)]
    bulk = {"jobs": [{"user_id": "ada", "feature_name": "gpu"}] * 3}
    status, answer, _ = await api.post("/api/v1/jobs/bulk", bulk)
    assert status == 202
    jobs += [receipt["job_id"] for receipt in answer["jobs"]]
    assert {(await api.job(job))["status"] for job in jobs} == {"PENDING"}
    redis.start()
    for job in jobs:
        await api.until(job, "COMPLETED")
    assert set((await cluster.services.seen()).calls.values()) == {1}


# ---------------------------------------------------------------- PostgreSQL alone


async def test_without_redis_one_process_dispatches_and_gateways_may_run_beside_it(
    make: Make, gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    cluster = await make(redis=False, start=False, apis=0, workers=(), managers=0)
    cluster.add_api("up0", "up")
    await cluster.start()
    env = {"DATABASE_URL": cluster.database_url}
    refused = fairlead("up", "--config", str(cluster.config), "--port", "0", cwd=tmp_path, env=env)
    assert refused.code == 1
    assert "REDIS_URL" in refused.err
    cluster.add_api("api0").start()
    await cluster.until_up("api0")
    api = gateway(cluster)
    job = await api.submit("gpu", {"plain": True})
    assert (await api.until(job, "COMPLETED"))["result"] == {"key": f"{job}:0:0", "call": 1}
