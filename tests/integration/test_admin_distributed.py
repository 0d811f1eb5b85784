"""An operator acts at one process, and another one follows: through the database alone, or with Redis as well."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fairlead import Call, Config, Fairlead, JobStatus
from fairlead.engine import rebuild
from fairlead.engine.loops import sync_rules
from fairlead.engine.roles import Roles
from tests import redis_servers, servers

PATIENCE = 60.0
GATEWAY = Roles(worker=False, manager=False)


@dataclass
class Two:
    """A gateway, and a process that runs the queue, on the same database."""

    engines: dict[str, str]
    entered: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    def made(self) -> Fairlead:
        app = Fairlead(Config.model_validate({}), **self.engines)

        @app.service(limit=1)
        async def gated(call: Call) -> str:
            self.entered.put_nowait(call.job_id)
            await self.opened.wait()
            return "through"

        @app.service(limit=1)
        async def quick(call: Call) -> str:
            return "ok"

        app.pipeline("both", ["gated", "quick"])
        return app

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[Fairlead, Fairlead]]:
        # Beside a memory dispatcher, a gateway opens the database only.
        gateway, line = self.made(), self.made()
        alone = Roles(api=False) if "redis_url" in self.engines else Roles()
        async with line.running(alone), gateway.running(GATEWAY):
            yield gateway, line


@pytest.fixture(params=["sqlite", "redis"])
async def two(request: pytest.FixtureRequest, tmp_path: Path) -> Two:
    if request.param == "sqlite":
        return Two({"database_url": f"sqlite:///{tmp_path}/fairlead.db"})
    servers.postgres_url()
    database_url = await servers.shared_database()
    await servers.empty(database_url)
    redis_url = redis_servers.server_url()
    redis_servers.empty(redis_url)
    return Two({"database_url": database_url, "redis_url": redis_url})


async def until(what: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await what():
            await asyncio.sleep(0.02)


async def shown(app: Fairlead, service: str) -> dict[str, Any]:
    return next(each for each in (await app.status())["services"] if each["service"] == service)


def test_a_process_reads_the_rules_at_least_twice_a_second() -> None:
    assert max(sync_rules.EVERY, rebuild.EVERY) <= 0.5


async def test_a_pause_and_a_limit_set_at_one_process_apply_in_the_other_and_after_a_restart(two: Two) -> None:
    async with two.running() as (gateway, line):
        await gateway.pause("quick", who="ann")
        await until(lambda: _is(line, "quick", paused=True))
        kept = await gateway.submit("quick")
        first, second = [await gateway.submit("gated") for _ in range(2)]
        assert await asyncio.wait_for(two.entered.get(), PATIENCE) in (first.id, second.id)
        await gateway.set_limit("gated", 2, who="bob")
        await asyncio.wait_for(two.entered.get(), PATIENCE)  # the second one has its slot
        await until(lambda: _is(line, "gated", limit=2))
        two.opened.set()
        for job in (first, second):
            assert await job.result(PATIENCE) == "through"
        assert (await kept.get()).status is JobStatus.PENDING
    async with two.running() as (gateway, line):
        for app in (gateway, line):
            assert ((await shown(app, "gated"))["limit"], (await shown(app, "quick"))["paused"]) == (2, True)
            assert [row.who for row in (await app.audit()).data] == ["bob", "ann"]
        await line.unpause("quick")
        assert (await gateway.wait(kept.id, PATIENCE)).status is JobStatus.COMPLETED
        state = await gateway.set_limit("gated", None)
        assert (state.limit, state.override_limit) == (1, None)
        await until(lambda: _is(line, "gated", limit=1))


async def _is(app: Fairlead, service: str, **expected: Any) -> bool:
    found = await shown(app, service)
    return all(found[name] == value for name, value in expected.items())


async def test_a_priority_set_at_one_process_moves_the_step_in_the_others_queue(two: Two) -> None:
    async with two.running() as (gateway, line):
        busy = await gateway.submit("both")
        await asyncio.wait_for(two.entered.get(), PATIENCE)
        before = await gateway.submit("gated", user_id="bob")
        late = await gateway.submit("gated", user_id="cyd", priority="low")
        await until(lambda: _waits(line, "gated", {"retry": 0, "high": 0, "medium": 1, "low": 1}))
        moved = await gateway.set_priority(late.id, "high")
        assert (moved.status, moved.priority, moved.original_priority) == ("PENDING", "high", "low")
        await until(lambda: _waits(line, "gated", {"retry": 0, "high": 1, "medium": 1, "low": 0}))
        # The running call continues, and its next step waits in the new band.
        await gateway.pause("quick")
        await until(lambda: _is(line, "quick", paused=True))
        assert (await gateway.set_priority(busy.id, "low")).status is JobStatus.RUNNING
        two.opened.set()
        await until(lambda: _waits(line, "quick", {"retry": 0, "high": 0, "medium": 0, "low": 1}))
        await gateway.unpause("quick")
        for job in (busy, before, late):
            ended = await gateway.wait(job.id, PATIENCE)
            assert (ended.status, ended.attempts) == (JobStatus.COMPLETED, [])
        order = [two.entered.get_nowait() for _ in range(2)]
        assert order == [late.id, before.id]


async def _waits(app: Fairlead, service: str, waiting: dict[str, int]) -> bool:
    return bool((await shown(app, service))["waiting"] == waiting)


async def test_a_rebuild_requested_at_one_process_is_done_by_the_leader_in_the_other(two: Two) -> None:
    async with two.running() as (gateway, line):
        running = await gateway.submit("gated")
        await asyncio.wait_for(two.entered.get(), PATIENCE)
        waiting = await gateway.submit("gated")
        store = gateway._runtime.store
        assert store is not None
        before = (await store.epochs())["service:gated"]

        async def rebuilt() -> bool:
            now = (await store.epochs())["service:gated"]
            return now.number > before.number and not now.rebuild_asked

        assert await gateway.rebuild("gated") == ["service:gated"]
        await until(rebuilt)
        await until(lambda: _is(line, "gated", in_use=1))
        await until(lambda: _waits(line, "gated", {"retry": 0, "high": 0, "medium": 1, "low": 0}))
        two.opened.set()
        for job in (running, waiting):
            ended = await gateway.wait(job.id, PATIENCE)
            assert (ended.status, ended.attempts) == (JobStatus.COMPLETED, [])


async def test_values_of_an_unreachable_dispatcher_are_unknown_and_not_zero(two: Two) -> None:
    if "redis_url" not in two.engines:
        pytest.skip("a queue in memory is never unreachable")
    server = redis_servers.Server().start()
    try:
        async with replace(two, engines={**two.engines, "redis_url": server.url}).made().running() as app:
            await until(lambda: _seen(app))
            for away, back in ((server.freeze, server.thaw), (server.kill, server.start)):
                away()
                began = time.monotonic()
                status, stats = await asyncio.gather(app.status(), app.runtime_stats())
                assert time.monotonic() - began < 4.0, "1.5 s, with some tolerance for a busy machine"
                back()
                assert status["unknown"].startswith("main: ")
                assert stats["unknown"].startswith("main: ")
                assert "127.0.0.1" not in status["unknown"]
                gated = status["services"][0]
                assert (gated["in_use"], gated["held"], set(gated["waiting"].values())) == (None, None, {None})
                assert (stats["slots"]["in_use"], stats["slots"]["limit"]) == (None, 2)
                assert stats["services"][0]["bands"]["low"] == {"waiting": None, "in_use": None, "held": None}
                await until(lambda: _seen(app))
    finally:
        server.kill()


async def _seen(app: Fairlead) -> bool:
    return (await app.status())["unknown"] is None
