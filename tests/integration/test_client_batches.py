"""Batches with `fairlead.Client` and `AsyncClient`, against a real gateway over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from fairlead import AsyncClient, Client, NotFound, WrongState
from fairlead.app import batches
from fairlead.client import patience
from fairlead.errors import InvalidInput
from tests.integration.gateway_site import Site, served
from tests.integration.test_client import breaking

UNKNOWN = "0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a10"
ODD = "one\u2028line\x85still\x0bone"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(batches, "POLL_EVERY", 0.02)


@pytest.fixture
async def port(site: Site) -> AsyncIterator[int]:
    async with served(site.gateway) as port:
        yield port


async def test_a_batch_from_its_submission_to_its_results(site: Site, port: int) -> None:
    items = [{"custom_id": "a", "input_data": {"text": ODD}}, {"custom_id": "b", "feature_name": "flaky"}]
    async with AsyncClient(f"http://127.0.0.1:{port}") as client:
        batch = await client.submit_batch(items, user_id="ada", feature_name="echo", name="two", metadata={"n": 1})
        ended = await batch.wait(20)
        assert (ended.name, ended.metadata, ended.total, ended.progress) == ("two", {"n": 1}, 2, 1.0)
        assert (ended.counts["COMPLETED"], ended.counts["FAILED"], ended.finished) == (1, 1, True)
        site.gate.opened.set()
        retried = await batch.retry("b")
        assert retried.custom_id == "b"
        assert (await batch.wait(20)).counts["COMPLETED"] == 2
        found = {item.custom_id: item.result async for item in batch.results()}
        assert found == {"a": {"echo": {"text": ODD}}, "b": {"worked": True}}
        assert [each.batch_id for each in (await client.list_batches(user_id="ada")).data] == [batch.id]
        for refused in (batch.cancel(), batch.resume(), batch.retry(0)):
            with pytest.raises(WrongState):
                await refused
        with pytest.raises(NotFound):
            await client.get_batch(UNKNOWN)
        with pytest.raises(NotFound):
            _ = [item async for item in client.batch_results(UNKNOWN)]
        with pytest.raises(InvalidInput):
            await batch.retry("a/b")
        with pytest.raises(InvalidInput) as wrong:
            await client.submit_batch([{"feature_name": "echo", "priority": "urgent"}], user_id="ada")
        assert wrong.value.pointer == "/items/0/priority"


async def test_the_synchronous_client_does_the_same(site: Site, port: int) -> None:
    def session() -> None:
        with Client(f"http://127.0.0.1:{port}") as client:
            batch = client.submit_batch([{"feature_name": "gated"}, {"feature_name": "flaky"}], user_id="ada")
            assert batch.wait(0.1).finished is False
            assert client.batch(batch.id).cancel() >= 1
            ended = client.wait_batch(batch.id, 20)
            assert ended.counts["CANCELLED"] + ended.counts["FAILED"] == 2
            assert [item.item for item in batch.results()] == [0, 1]
            assert client.get_batch(batch.id) == batch.get()
            assert [each.batch_id for each in client.list_batches().data] == [batch.id]

    await asyncio.to_thread(session)


async def test_interrupted_results_continue_where_they_stopped(site: Site, port: int) -> None:
    items = [{"input_data": {"n": n, "text": "x" * 500}} for n in range(350)]
    batch = await site.app.submit_batch(items, user_id="ada", feature_name="echo")
    await batch.wait(20)
    async with (
        breaking(f"http://127.0.0.1:{port}", lambda number: 100_000 if number == 0 else None) as (url, proxy),
        AsyncClient(url) as client,
    ):
        found = [item.result["echo"]["n"] async for item in client.batch_results(batch.id)]
    assert found == list(range(350))
    assert proxy.connections > 1
