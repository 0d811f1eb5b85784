"""Responses that are not read do not stay in memory."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import httpx2
import pytest

from fairlead.domain.batch import ItemView
from fairlead.gateway import batches, connections
from tests.integration.gateway_site import Site, served, serving

MakeSite = Callable[..., Awaitable[Site]]
PATIENCE = 20
LARGE = {"text": "x" * 900_000}


async def ask_and_read_nothing(port: int, path: str, times: int = 1) -> socket.socket:
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    link.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(link, ("127.0.0.1", port))
    await loop.sock_sendall(link, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * times)
    return link


async def test_a_client_that_reads_nothing_is_disconnected(make_site: MakeSite) -> None:
    site = await make_site(running=False, send_timeout=0.5)
    job_id = await site.submit(input_data=LARGE)
    async with serving(site.gateway) as (port, server), asyncio.timeout(PATIENCE):
        links = [await ask_and_read_nothing(port, f"/api/v1/jobs/{job_id}", times=20) for _ in range(3)]
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            assert (await client.get("/livez")).status_code == 200
        while server.server_state.connections:
            await asyncio.sleep(0.01)
        for link in links:
            link.close()


async def test_a_slow_reader_stays_connected(make_site: MakeSite) -> None:
    site = await make_site(running=False, send_timeout=0.6)
    job_id = await site.submit(input_data=LARGE)
    async with served(site.gateway) as port, asyncio.timeout(PATIENCE):
        link = await ask_and_read_nothing(port, f"/api/v1/jobs/{job_id}", times=20)
        loop = asyncio.get_running_loop()
        until = loop.time() + 2
        while loop.time() < until:
            assert await loop.sock_recv(link, 4096)
            await asyncio.sleep(0.05)
        link.close()


async def test_when_too_much_is_unsent_those_that_read_least_are_disconnected(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_UNSENT", 100_000)
    monkeypatch.setattr(connections, "CHECK_EVERY_S", 0.05)
    site = await make_site(running=False)
    job_id = await site.submit(input_data=LARGE)
    async with serving(site.gateway) as (port, server), asyncio.timeout(PATIENCE):
        links = [await ask_and_read_nothing(port, f"/api/v1/jobs/{job_id}", times=20) for _ in range(3)]
        while server.server_state.connections:
            await asyncio.sleep(0.01)
        for link in links:
            link.close()


async def test_results_are_read_by_their_size(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site = await make_site()
    items = [{"feature_name": "echo", "input_data": {"text": "x" * 300_000, "n": n}} for n in range(14)]
    response = await site.client.post("/api/v1/batches", json={"user_id": "ada", "items": items}, timeout=60)
    batch = await site.app.wait_batch(response.json()["batch_id"], 60)
    store: Any = site.app._runtime.store
    asked: list[int] = []
    get_records = store.get_records

    async def counted(job_ids: Sequence[str]) -> Any:
        asked.append(len(job_ids))
        return await get_records(job_ids)

    monkeypatch.setattr(store, "get_records", counted)
    async with site.client.stream("GET", f"/api/v1/batches/{batch.batch_id}/results") as results:
        lines = [line async for line in results.aiter_lines()]
    assert len(lines) == 14
    assert max(asked) < 10


async def test_results_are_sent_by_their_size() -> None:
    item = ItemView(0, None, "id", "COMPLETED", None, None, None, {"text": "x" * 10_000})

    async def items() -> AsyncIterator[ItemView]:
        for _ in range(200):
            yield item

    pieces = [piece async for piece in batches._lines(item, items())]
    assert sum(piece.count(b"\n") for piece in pieces) == 201
    assert max(map(len, pieces)) < 100_000
    assert len(pieces) > 10
