"""A provider that counts every sliding window by itself never sees more than the rate, and sees most of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from fairlead import Config, Fairlead, JobStatus
from fairlead.engine.roles import Roles
from tests import redis_servers
from tests.chaos.rate_provider import Provider

PER, REQUESTS = 3.0, 30
PATIENCE_S = 60.0


@asynccontextmanager
async def serving(provider: Provider) -> AsyncIterator[str]:
    runner = web.AppRunner(provider.application())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/call"
    finally:
        await runner.cleanup()


def config_of(url: str, **service: Any) -> Config:
    rate = {"requests": REQUESTS, "per": PER}
    return Config.model_validate({"services": {"llm": {"limit": 100, "url": url, "rate": rate, **service}}})


@pytest.mark.slow
async def test_the_provider_sees_the_rate_and_no_more(engines: dict[str, str]) -> None:
    provider = Provider(REQUESTS, PER, seconds=0.05)
    async with serving(provider) as url:
        app = Fairlead(config_of(url), **engines)
        async with app.running(Roles()), asyncio.timeout(PATIENCE_S):
            handles = [await app.submit("llm", {"n": n}, user_id=f"user-{n % 5}") for n in range(3 * REQUESTS)]
            await asyncio.gather(*(handle.result() for handle in handles))
    assert provider.refused == 0
    assert provider.most() <= REQUESTS
    assert len(provider.arrivals) == 3 * REQUESTS
    assert provider.used() > 0.8, "95 % on a machine that does nothing else: see tests/chaos/rates.py"


@pytest.mark.slow
async def test_calls_that_take_longer_than_the_window_do_not_keep_others_waiting(embedded: dict[str, str]) -> None:
    provider = Provider(5, 1.0, seconds=4.0)
    async with serving(provider) as url:
        app = Fairlead(config_of(url, rate={"requests": 5, "per": 1.0}), **embedded)
        async with app.running(Roles()), asyncio.timeout(PATIENCE_S):
            handles = [await app.submit("llm", {"n": n}, user_id="ada") for n in range(15)]
            await asyncio.gather(*(handle.result() for handle in handles))
    assert provider.refused == 0
    assert provider.arrivals[-1] - provider.arrivals[0] < 4.0, "sent before the first one ended"


async def test_a_lost_redis_does_not_let_more_calls_through(distributed: dict[str, str]) -> None:
    """The rebuild finds the calls of the last window in the database."""
    provider = Provider(REQUESTS, 3600.0)
    async with serving(provider) as url:
        app = Fairlead(config_of(url, rate={"requests": REQUESTS, "per": 3600}), **distributed)
        async with app.running(Roles()), asyncio.timeout(PATIENCE_S):
            for n in range(REQUESTS + 5):
                await app.submit("llm", {"n": n}, user_id="ada")
            while len(provider.arrivals) < REQUESTS:
                await asyncio.sleep(0.05)
            shard = app._runtime.node.shards["main"]  # type: ignore[union-attr]
            rebuild = shard.leader.scopes.rebuild  # type: ignore[union-attr]
            before = rebuild.count
            redis_servers.empty(distributed["redis_url"])
            while rebuild.count == before:
                await asyncio.sleep(0.05)
            (seen,) = await shard.dispatcher.snapshot(["llm"])
            assert (seen.rates[0].requests, seen.waiting[2]) == (REQUESTS, 5)
    assert len(provider.arrivals) == REQUESTS


async def test_a_restart_does_not_let_more_calls_through(embedded: dict[str, str]) -> None:
    provider = Provider(3, 3600.0)
    async with serving(provider) as url:
        for started in range(2):
            app = Fairlead(config_of(url, rate={"requests": 3, "per": 3600}), **embedded)
            async with app.running(Roles()), asyncio.timeout(PATIENCE_S):
                handles = [await app.submit("llm", {}, user_id="ada") for _ in range(2)]
                if not started:
                    await asyncio.gather(*(handle.result() for handle in handles))
                while len(provider.arrivals) < 2 + started:
                    await asyncio.sleep(0.05)
                jobs = await app.list_jobs(status=JobStatus.PENDING)
                assert len(jobs.data) == started, "the fourth call waits"
    assert len(provider.arrivals) == 3
