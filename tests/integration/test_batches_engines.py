"""Batches on every engine, submitted at one process and run by others: the Beacon seed's, and the largest."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fairlead import Call, Config, Fairlead
from fairlead.app import batches
from fairlead.domain.job import JobStatus
from fairlead.engine.roles import Roles
from tests import redis_servers, servers

PATIENCE = 60.0
GATEWAY = Roles(worker=False, manager=False)
MODELS = ("llama", "mistral", "qwen")
REGIONS = ("us", "eu", "asia")
QUESTIONS = 4


@dataclass
class Beacon:
    """A gateway, and processes that run the queue: two of them with Redis. `qwen` fails half-way through its calls, and
    works again once `repaired` is set."""

    engines: dict[str, str]
    calls: Counter[str] = field(default_factory=Counter)
    repaired: asyncio.Event = field(default_factory=asyncio.Event)

    def made(self) -> Fairlead:
        app = Fairlead(Config.model_validate({}), **self.engines)

        def model(name: str) -> None:
            @app.service(name, limit=3, retry="manual")
            async def answer(call: Call) -> dict[str, Any]:
                self.calls[name] += 1
                if name == "qwen" and self.calls[name] > QUESTIONS * len(REGIONS) // 2 and not self.repaired.is_set():
                    raise RuntimeError("the model is gone")
                return {"model": name, **call.params}

        for name in MODELS:
            model(name)
        return app

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Fairlead]:
        distributed = "redis_url" in self.engines
        roles = [Roles(api=False), Roles(api=False)] if distributed else [Roles()]
        async with AsyncExitStack() as stack:
            for each in roles:
                await stack.enter_async_context(self.made().running(each))
            yield await stack.enter_async_context(self.made().running(GATEWAY))


@pytest.fixture(params=["sqlite", "redis"])
async def beacon(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Beacon:
    monkeypatch.setattr(batches, "POLL_EVERY", 0.05)
    if request.param == "sqlite":
        return Beacon({"database_url": f"sqlite:///{tmp_path}/fairlead.db"})
    database_url = await servers.shared_database()
    await servers.empty(database_url)
    redis_url = redis_servers.server_url()
    redis_servers.empty(redis_url)
    return Beacon({"database_url": database_url, "redis_url": redis_url})


async def test_the_seeds_submission(beacon: Beacon) -> None:
    """Questions x models x regions as one batch; one model fails half-way; the user retries one item, then the rest."""
    cells = list(itertools.product(range(QUESTIONS), MODELS, REGIONS))
    items = [
        {
            "custom_id": f"q{question}-{model}-{region}",
            "feature_name": model,
            "input_data": {"question": question, "region": region},
        }
        for question, model, region in cells
    ]
    async with beacon.running() as app:
        batch = await app.submit_batch(items, user_id="ada", name="bias check")
        ended = await batch.wait(PATIENCE)
        healthy, half = 2 * QUESTIONS * len(REGIONS), QUESTIONS * len(REGIONS) // 2
        assert (ended.counts["COMPLETED"], ended.counts["FAILED"], ended.progress) == (healthy + half, half, 1.0)
        assert ended.finished
        failed = await app.batch_items(batch.id, status=JobStatus.FAILED)
        assert {item.custom_id and "qwen" in item.custom_id for item in failed.data} == {True}

        beacon.repaired.set()
        one = failed.data[0]
        retried = await batch.retry(one.custom_id or "")
        assert retried.job_id == one.job_id
        again = await batch.wait(PATIENCE)
        assert (again.counts["COMPLETED"], again.counts["FAILED"]) == (healthy + half + 1, half - 1)
        assert again.finished_at is not None
        assert ended.finished_at is not None
        assert again.finished_at > ended.finished_at

        assert await batch.resume() == half - 1
        assert (await batch.wait(PATIENCE)).counts["COMPLETED"] == len(cells)
        lines = [line async for line in batch.results()]
        assert [(line.custom_id, line.result) for line in lines] == [
            (item["custom_id"], {"model": item["feature_name"], **item["input_data"]})  # type: ignore[dict-item]
            for item in items
        ]
        # Each item has its own record: the failed attempt is kept beside the result.
        record = await app.get(one.job_id)
        assert [attempt["error"]["message"] for attempt in record.attempts or ()] == ["RuntimeError: the model is gone"]


@pytest.mark.slow
async def test_ten_thousand_items_are_one_call(beacon: Beacon) -> None:
    items = [{"custom_id": f"i{n}", "input_data": {"question": n}} for n in range(10_000)]
    async with beacon.made() as app:
        batch = await app.submit_batch(items, user_id="ada", feature_name="llama", idempotency_key="all of them")
        assert (await batch.get()).counts["PENDING"] == 10_000
        again = await app.submit_batch(items, user_id="ada", feature_name="llama", idempotency_key="all of them")
        assert again.id == batch.id
        last = await app.batch_items(batch.id, status=JobStatus.PENDING, limit=500)
        assert [item.custom_id for item in last.data[:2]] == ["i0", "i1"]
        assert await batch.cancel() == 10_000
        ended = await batch.get()
        assert (ended.counts["CANCELLED"], ended.finished) == (10_000, True)
        assert [line.item async for line in batch.results()] == list(range(10_000))
