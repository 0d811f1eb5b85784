"""A service split over two Redis servers by priority: each with its own slots, leader and relay."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fairlead import Call, Config, Fairlead, JobStatus
from fairlead.errors import InvalidInput, WrongState
from tests import redis_servers, servers

PATIENCE = 60.0


class Shards:
    """The main Redis and one for critical work, both of this test."""

    def __init__(self) -> None:
        self.main, self.high = redis_servers.start_server(), redis_servers.start_server()

    def url(self, server: redis.Redis) -> str:
        return f"redis://127.0.0.1:{redis_servers.port_of(server)}/0"

    def waiting(self, server: redis.Redis) -> int:
        """The steps queued there, read from the server."""
        return sum(int(server.hlen(key)) for key in server.scan_iter("fairlead*:entries"))  # type: ignore[arg-type]


@pytest.fixture
async def shards() -> AsyncIterator[Shards]:
    shards = Shards()
    yield shards
    for server in (shards.main, shards.high):
        # It ends without a reply, so the client must not wait for one repeatedly.
        server.set_retry(Retry(NoBackoff(), 0))
        with contextlib.suppress(redis.ConnectionError):
            server.shutdown(nosave=True)
        server.close()


@pytest.fixture
async def make_app(shards: Shards) -> Callable[..., Fairlead]:
    servers.postgres_url()
    database_url = await servers.shared_database()
    await servers.empty(database_url)

    def make(**sections: Any) -> Fairlead:
        split = {"high_redis": {"bands": ["high"], "limit": 1}, "main": {"bands": ["medium", "low"], "limit": 2}}
        config = {
            "shards": {"high_redis": shards.url(shards.high)},
            "services": {"send": {"shards": split}},
            **sections,
        }
        return Fairlead(Config.model_validate(config), database_url=database_url, redis_url=shards.url(shards.main))

    return make


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.02)


async def test_each_band_has_the_slots_of_its_shard(make_app: Callable[..., Fairlead], shards: Shards) -> None:
    app = make_app()
    running: dict[str, int] = {"high": 0, "low": 0}
    most = dict(running)
    full, gate = asyncio.Event(), asyncio.Event()

    @app.service()
    async def send(call: Call) -> str:
        band = call.params["band"]
        running[band] += 1
        most[band] = max(most[band], running[band])
        if most == {"high": 1, "low": 2}:
            full.set()
        await gate.wait()
        running[band] -= 1
        return band

    async with app.running():
        jobs = [await app.submit("send", {"band": band}, priority=band) for band in ("low", "high") for _ in range(5)]
        await asyncio.wait_for(full.wait(), PATIENCE)
        await until(lambda: shards.waiting(shards.high) == 4 and shards.waiting(shards.main) == 3)
        status = await app.status()
        assert set(status["leaders"]) == {"main", "high_redis"}
        shown = status["services"][0]
        assert (shown["limit"], shown["in_use"], shown["shards"]) == (3, 3, ["high_redis", "main"])
        assert shown["waiting"] == {"retry": 0, "high": 4, "medium": 0, "low": 3}
        position = (await jobs[4].get()).position
        assert position == 3  # the low jobs wait behind one another, and behind no other job
        with pytest.raises(InvalidInput, match="per shard"):
            await app.set_limit("send", 5)
        gate.set()
        for job in jobs:
            await job.result(timeout=PATIENCE)
    assert most == {"high": 1, "low": 2}


async def test_a_promotion_moves_a_job_to_the_shard_of_its_new_band(
    make_app: Callable[..., Fairlead], shards: Shards
) -> None:
    app = make_app(promotion={"low_to_medium_after": 3600, "medium_to_high_after": 1.0})
    gate = asyncio.Event()

    @app.service()
    async def send(call: Call) -> str:
        await gate.wait()
        return "sent"

    async with app.running():
        jobs = [await app.submit("send", priority="high")]
        jobs += [await app.submit("send", priority="medium") for _ in range(5)]
        await until(lambda: shards.waiting(shards.high) == 3 and shards.waiting(shards.main) == 0)
        waiting = [view for job in jobs if (view := await job.get()).status is JobStatus.PENDING]
        assert [view.priority.value for view in waiting] == ["high"] * 3
        gate.set()
        for job in jobs:
            assert await job.result(timeout=PATIENCE) == "sent"


async def test_critical_work_continues_when_the_bulk_redis_is_gone(
    make_app: Callable[..., Fairlead], shards: Shards
) -> None:
    app = make_app()

    @app.service()
    async def send(call: Call) -> str:
        return "sent"

    async with app.running():
        await (await app.submit("send", priority="low")).result(timeout=PATIENCE)
        shards.main.shutdown(nosave=True)
        bulk = [await app.submit("send", priority="low") for _ in range(20)]
        for _ in range(5):
            job = await app.submit("send", priority="high")
            assert await job.result(timeout=PATIENCE) == "sent"
        late = await app.submit("send", priority="high", delay=0.1)  # the leader of the high shard releases it
        assert await late.result(timeout=PATIENCE) == "sent"
        assert {(await job.get()).status for job in bulk} == {JobStatus.PENDING}


async def test_a_changed_priority_moves_a_waiting_job_to_its_shard_and_is_refused_for_a_running_one(
    make_app: Callable[..., Fairlead], shards: Shards
) -> None:
    app = make_app()
    gate, entered = asyncio.Event(), asyncio.Semaphore(0)

    @app.service()
    async def send(call: Call) -> str:
        entered.release()
        await gate.wait()
        return "sent"

    async with app.running():
        running = [await app.submit("send", priority=priority) for priority in ("high", "low", "low")]
        for _ in running:
            await asyncio.wait_for(entered.acquire(), PATIENCE)
        waiting = await app.submit("send", priority="low")
        await until(lambda: shards.waiting(shards.main) == 1)
        assert (await app.set_priority(waiting.id, "high")).priority == "high"
        await until(lambda: (shards.waiting(shards.main), shards.waiting(shards.high)) == (0, 1))
        # Its slot is on the main shard, where a rebuild would look for it by the job's band.
        with pytest.raises(WrongState, match="split by priority"):
            await app.set_priority(running[1].id, "high")
        assert (await app.set_priority(running[1].id, "medium")).priority == "medium"
        gate.set()
        for job in (*running, waiting):
            assert await job.result(PATIENCE) == "sent"
